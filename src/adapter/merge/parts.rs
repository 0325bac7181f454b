//! Maps the pairs of an adapter to rows of the base's tensors.

use std::ops::Range;

use crate::adapter::Error;
use crate::adapter::lora::{Adapter, Pair, Slot};
use crate::base::Base;
use crate::base::Module;
use crate::base::TensorInfo;
use crate::base::config::{Latent, RowOrder};

/// An adapted range of rows of a tensor.
pub(super) struct Part<'a> {
    pub tensor: &'a str,
    pub rows: Range<usize>,
    rank: usize,
    pair: &'a Pair,
    /// Rows per expert in the tensor; all rows for dense matrices.
    expert_rows: usize,
    /// Rows per expert in `B`; all rows for dense matrices.
    b_rows: usize,
    /// Row of an expert's `B` that belongs to the expert's first row in the tensor.
    first_b_row: usize,
    /// The order of the rows where the tensor has another than memory.
    order: Option<RowOrder>,
    /// Set where the tensor has the transposed matrices of the keys of a latent vector.
    transposed: Option<Transposed>,
}

/// The transposed matrices of the keys of a latent vector, one for each head: row `i` of each has value `i` of the vector.
struct Transposed {
    latent: Latent,
    /// `Bᵀ` of each head, `[R, K − n]`.
    b: Vec<f32>,
    /// `Aᵀ` `[Rk, R]`.
    a: Vec<f32>,
}

impl Transposed {
    fn new(latent: &Latent, pair: &Pair, heads: usize, rank: usize) -> Transposed {
        let of_head = latent.key_size * rank;
        let b = pair.b[..heads * of_head].chunks_exact(of_head).flat_map(|head| transpose(head, rank));
        Transposed { latent: *latent, b: b.collect(), a: transpose(&pair.a, latent.rank) }
    }
}

/// The transpose of a matrix with rows of `columns` values.
fn transpose(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|c| values.iter().skip(c).step_by(columns).copied()).collect()
}

impl Part<'_> {
    /// The rows of `A` `[rank, cols]` and of `B` `[rank]` for a row of the tensor.
    pub fn of_row(&self, row: usize, cols: usize) -> (&[f32], &[f32]) {
        let row = row - self.rows.start;
        if let Some(Transposed { latent, a, b }) = &self.transposed {
            let (head, value) = (row / latent.rank, row % latent.rank);
            return (&b[head * self.rank * cols..][..self.rank * cols], &a[value * self.rank..][..self.rank]);
        }
        let row = self.order.map_or(row, |order| order.in_memory(row));
        let expert = row / self.expert_rows;
        let row = row % self.expert_rows;
        let b_row = expert * self.b_rows + self.first_b_row + row;
        let a = &self.pair.a[expert * self.rank * cols..][..self.rank * cols];
        let b = &self.pair.b[b_row * self.rank..][..self.rank];
        (a, b)
    }
}

/// The base's matrices that a slot's adapter adapts, by their names in the layer, with their rows per expert, in the order of `B`.
fn matrices(base: &Base, slot: &Slot) -> Vec<(&'static str, usize)> {
    let config = base.config();
    if slot.module == Module::FfnGateUpExps && config.layers[slot.layer].experts_split {
        return ["ffn_gate_exps", "ffn_up_exps"].map(|name| (name, slot.out_features / 2)).into();
    }
    if slot.module == Module::AttnKvB && config.layers[slot.layer].latent.is_some_and(|l| !l.apart) {
        return vec![(slot.module.gguf_name(), slot.out_features)];
    }
    let part = |(module, rows): (Module, Range<usize>)| (module.gguf_name(), rows.len() / slot.experts);
    slot.parts(config).into_iter().map(part).collect()
}

/// The tensor that has the matrix `name` of a slot, the rows of the matrix in it, and the shape that both must have.
fn place<'a>(
    base: &'a Base,
    slot: &Slot,
    name: &str,
    rows: usize,
) -> Option<(&'a TensorInfo, Range<usize>, [usize; 2])> {
    let l = &base.config().layers[slot.layer];
    let find = |name: &str| base.location(&format!("blk.{}.{name}", slot.layer));
    let of_keys = Module::AttnKB.gguf_name();
    match l.latent {
        // One tensor of all keys and values, which begins with keys.
        Some(latent) if slot.module == Module::AttnKvB && !latent.apart => {
            find(of_keys).map(|(tensor, _)| (tensor, 0..rows, [rows, slot.in_features]))
        }
        Some(latent) if name == of_keys => {
            let rows = l.heads * latent.rank;
            find(name).map(|(tensor, _)| (tensor, 0..rows, [rows, latent.key_size]))
        }
        _ => find(name).map(|(tensor, found)| (tensor, found, [slot.experts * rows, slot.in_features])),
    }
}

/// Finds the rows of each pair. Fails if the adapter does not fit the base.
pub(super) fn locate<'a>(base: &'a Base, adapter: &'a Adapter) -> Result<Vec<Part<'a>>, Error> {
    let refuse = |problem: String| Err(Error::Merge { problem });
    if adapter.pairs.is_empty() {
        return refuse("it has no matrices; choose at least one target module".into());
    }
    let mut parts = Vec::new();
    for (slot, pair) in &adapter.pairs {
        let Slot { layer, out_features, .. } = *slot;
        let rank = adapter.rank;
        let mut end = 0;
        for (name, expert_rows) in matrices(base, slot) {
            end += expert_rows;
            let found = place(base, slot, name, expert_rows);
            let l = &base.config().layers[layer];
            let transposed = l.latent.filter(|l| l.apart && name == Module::AttnKB.gguf_name());
            let transposed = transposed.map(|latent| Transposed::new(&latent, pair, l.heads, rank));
            let name = format!("blk.{layer}.{name}");
            let Some((tensor, rows, expected)) = found else {
                return refuse(format!(
                    "{} does not have or use the matrix {name}; use the base that it was trained on",
                    base.name()
                ));
            };
            let found = [rows.len(), tensor.shape[0]];
            if found != expected {
                return refuse(format!(
                    "{name} is {found:?} in {}, but {expected:?} in the adapter; use the base that it was trained on",
                    base.name(),
                ));
            }
            let lengths = (slot.len_a(rank), slot.len_b(rank));
            assert_eq!((pair.a.len(), pair.b.len()), lengths, "a pair has the lengths of its slot and rank");
            parts.push(Part {
                tensor: &tensor.name,
                rows,
                rank,
                pair,
                expert_rows,
                b_rows: out_features,
                first_b_row: end - expert_rows,
                order: base.config().row_order(&name),
                transposed,
            });
        }
    }
    Ok(parts)
}
