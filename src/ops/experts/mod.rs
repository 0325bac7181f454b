//! Sorting tokens by expert and back: the parts of a mixture that no dense layer has.

pub mod bias;
pub mod combine;
pub mod groups;
pub mod router;
pub mod shared;
