//! Choices between kernels that compute the same product: which one is the fastest depends on the device.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Gpu;

/// A product, as far as the best way to compute it depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Product {
    /// File in `shaders/`, without `.wgsl`.
    pub shader: &'static str,
    /// Entry point.
    pub entry: &'static str,
    /// Name of the weights' format, a file of `shaders/formats/`.
    pub format: &'static str,
    /// Rows of the result, tokens. Products of as many rows up to the next power of two share a choice.
    pub rows: usize,
    /// Columns of the result.
    pub columns: usize,
    /// Terms of a sum.
    pub summed: usize,
}

/// Rows from which on more of them change no choice: every multiprocessor has several tiles by then.
const MANY_ROWS: usize = 2048;

impl Product {
    /// The product of the most rows that shares its choice.
    pub fn of_most_rows(self) -> Product {
        Product { rows: self.rows.next_power_of_two().min(MANY_ROWS), ..self }
    }
}

impl std::fmt::Display for Product {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Product { shader, entry, format, rows, columns, summed } = self.of_most_rows();
        write!(f, "{shader}.{entry} {format} {rows}×{summed}×{columns}")
    }
}

/// A way to compute a product. It decides the order in which terms are added, and so the last bits of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Rows of a workgroup's tile.
    pub tile_rows: u32,
    /// Whether tiles come column after column of tiles, not row after row.
    pub by_columns: bool,
    /// Parts of every sum, which workgroups of their own compute, as far as there is room for them.
    pub parts: u32,
}

/// Choices by product, as [`Product`] is displayed.
pub type Choices = BTreeMap<String, Choice>;

impl Gpu {
    /// The choices that this handle's recordings make.
    pub fn choices(&self) -> Choices {
        self.choices.read().expect("lock is not poisoned").clone()
    }

    /// Makes these choices in later recordings of this handle, and usual ones for products that are not among them.
    pub fn choose(&self, choices: Choices) {
        *self.choices.write().expect("lock is not poisoned") = choices;
    }

    /// The choice for `product`; `None` for the usual one.
    pub(crate) fn choice(&self, product: &Product) -> Option<Choice> {
        let choices = self.choices.read().expect("lock is not poisoned");
        if choices.is_empty() { None } else { choices.get(&product.to_string()).copied() }
    }
}
