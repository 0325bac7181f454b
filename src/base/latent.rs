//! [`Latent`]: keys and values in a latent vector (MLA), and the order of the rows of its matrices in files.
//!
//! A token has one latent vector of `Rk` values for the keys and values of all heads, and one turned part of its keys, of `n` values. Per
//! head, a matrix `[K − n, Rk]` makes the rest of the keys and another, `[V, Rk]`, the values. transformers has both matrices of all heads
//! as one, head by head; memory has all keys above all values. Files have them as transformers does (`attn_kv_b`) or apart (`attn_k_b` and
//! `attn_v_b`). Apart, the matrices of keys are transposed, one below the other: row `i` of all of them, side by side, is a row of the
//! transpose of the whole matrix, which is how memory has it.
//!
//! In memory the turned part of queries and of keys stands in front of the rest, in files behind it.

use super::rotary::Interleaved;

/// Keys and values in a latent vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latent {
    /// Values `Rk` of the latent vector of keys and values (`attention.kv_lora_rank`).
    pub rank: usize,
    /// Values `Rq` of the latent vector of queries (`attention.q_lora_rank`); `None` where one matrix makes the queries.
    pub query_rank: Option<usize>,
    /// Values `n` of queries and keys that rotary embedding turns (`rope.dimension_count`).
    pub turned: usize,
    /// Values `K − n` of each head of keys that come from the latent vector.
    pub key_size: usize,
    /// Values `V` of each head of values (`attention.value_length_mla`), at most `K`.
    pub value_size: usize,
    /// Whether the file has the matrices of keys and of values apart.
    pub apart: bool,
}

impl Latent {
    /// Columns of the latent vector with the turned part of keys.
    pub fn both(&self) -> usize {
        self.turned + self.rank
    }

    /// The order of the rows of the matrix of queries, of heads of `K` values.
    pub fn queries(&self) -> RowOrder {
        let head_size = self.turned + self.key_size;
        RowOrder::Pairs(Interleaved { head_size, turned: self.turned, behind: true })
    }

    /// The order of the rows of the matrix of latent vectors.
    pub fn vectors(&self) -> RowOrder {
        RowOrder::Pairs(Interleaved { head_size: self.both(), turned: self.turned, behind: true })
    }

    /// The order of the rows of the matrix of all keys and values, of `heads` heads.
    pub fn keys_values(&self, heads: usize) -> RowOrder {
        RowOrder::KeysValues { heads, sizes: [self.key_size, self.value_size] }
    }

    /// The rows of keys, or of values, in the matrix of both.
    pub fn part(&self, values: bool) -> RowOrder {
        let (size, of) = if values { (self.value_size, self.key_size) } else { (self.key_size, 0) };
        RowOrder::Part { size, first: of, stride: self.key_size + self.value_size }
    }
}

/// The order of the rows of a matrix in files, where it is not that of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// The two rows of a rotary pair lie side by side.
    Pairs(Interleaved),
    /// Keys and values of each head lie below each other; memory has the keys of all heads above the values of all.
    KeysValues {
        /// Heads.
        heads: usize,
        /// Rows of a head's keys, and of its values.
        sizes: [usize; 2],
    },
    /// The rows are `size` of every `stride`, from `first` on.
    Part {
        /// Rows of a head.
        size: usize,
        /// The first of them among the head's.
        first: usize,
        /// Rows of a head of all.
        stride: usize,
    },
}

impl RowOrder {
    /// The row of the file that holds row `row` of memory.
    pub fn stored(self, row: usize) -> usize {
        match self {
            RowOrder::Pairs(order) => order.stored(row),
            RowOrder::KeysValues { heads, sizes: [keys, values] } => match row.checked_sub(heads * keys) {
                None => row / keys * (keys + values) + row % keys,
                Some(row) => row / values * (keys + values) + keys + row % values,
            },
            RowOrder::Part { size, first, stride } => row / size * stride + first + row % size,
        }
    }

    /// Undoes [`RowOrder::stored`].
    pub fn in_memory(self, stored: usize) -> usize {
        match self {
            RowOrder::Pairs(order) => order.in_memory(stored),
            RowOrder::KeysValues { heads, sizes: [keys, values] } => {
                let (head, i) = (stored / (keys + values), stored % (keys + values));
                match i.checked_sub(keys) {
                    None => head * keys + i,
                    Some(i) => heads * keys + head * values + i,
                }
            }
            RowOrder::Part { size, first, stride } => stored / stride * size + stored % stride - first,
        }
    }

    /// The rows of `width` values each, in the order of memory.
    pub fn sorted<T: Copy>(self, stored: &[T], width: usize) -> Vec<T> {
        let row = |row: usize| &stored[self.stored(row) * width..][..width];
        (0..stored.len() / width.max(1)).flat_map(row).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_above_values_and_turned_rows_in_front() {
        let latent = Latent { rank: 3, turned: 4, key_size: 2, value_size: 1, ..Latent::default() };
        let of = |order: RowOrder, rows: usize| (0..rows).map(|row| order.stored(row)).collect::<Vec<_>>();
        assert_eq!(of(latent.keys_values(2), 6), [0, 1, 3, 4, 2, 5]);
        assert_eq!(of(latent.part(false), 4), [0, 1, 3, 4]);
        assert_eq!(of(latent.part(true), 2), [2, 5]);
        assert_eq!(of(latent.vectors(), 7), [3, 5, 4, 6, 0, 1, 2]);
        assert_eq!(of(latent.queries(), 6), [2, 4, 3, 5, 0, 1]);
        for (order, rows) in [(latent.keys_values(2), 6), (latent.vectors(), 7), (latent.queries(), 12)] {
            assert!((0..rows).all(|row| order.in_memory(order.stored(row)) == row), "{order:?}");
        }
        assert_eq!(latent.keys_values(2).sorted(&[0, 1, 2, 3, 4, 5], 1), [0, 1, 3, 4, 2, 5]);
    }
}
