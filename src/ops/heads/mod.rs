//! RMSNorm and rotary embedding of heads, for training.

pub mod coop16;
pub mod coop16_backward;
