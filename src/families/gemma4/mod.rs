//! Gemma 4.

mod names;

use super::Family;

/// Gemma 4: the text models e2b, e4b, 12b, 26b-a4b and 31b.
pub static FAMILY: Family = Family { name: "gemma4", names: &names::NAMES };
