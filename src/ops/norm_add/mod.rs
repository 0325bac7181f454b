//! A norm's result added to the stream, and the operand that the next products read of the sum.

pub mod coop16;
