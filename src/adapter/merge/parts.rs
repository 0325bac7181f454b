//! Maps the pairs of an adapter to rows of the base's tensors.

use std::ops::Range;

use crate::adapter::Error;
use crate::adapter::lora::{Adapter, Pair, Slot};
use crate::base::Base;
use crate::base::Module;
use crate::base::config::Interleaved;

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
    /// The order of the rows where the tensor has those of heads interleaved.
    interleaved: Option<Interleaved>,
}

impl Part<'_> {
    /// The rows of `A` `[rank, cols]` and of `B` `[rank]` for a row of the tensor.
    pub fn of_row(&self, row: usize, cols: usize) -> (&[f32], &[f32]) {
        let row = row - self.rows.start;
        let row = self.interleaved.map_or(row, |order| order.in_memory(row));
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
    let part = |(module, rows): (Module, Range<usize>)| (module.gguf_name(), rows.len() / slot.experts);
    slot.parts(config).into_iter().map(part).collect()
}

/// Finds the rows of each pair. Fails if the adapter does not fit the base.
pub(super) fn locate<'a>(base: &'a Base, adapter: &'a Adapter) -> Result<Vec<Part<'a>>, Error> {
    let refuse = |problem: String| Err(Error::Merge { problem });
    if adapter.pairs.is_empty() {
        return refuse("it has no matrices; choose at least one target module".into());
    }
    let mut parts = Vec::new();
    for (slot, pair) in &adapter.pairs {
        let Slot { layer, out_features, in_features, experts, .. } = *slot;
        let rank = adapter.rank;
        let mut end = 0;
        for (name, expert_rows) in matrices(base, slot) {
            end += expert_rows;
            let name = format!("blk.{layer}.{name}");
            let Some((tensor, rows)) = base.location(&name) else {
                return refuse(format!(
                    "{} does not have or use the matrix {name}; use the base that it was trained on",
                    base.name()
                ));
            };
            let (height, width) = (rows.len(), tensor.shape[0]);
            if (height, width) != (experts * expert_rows, in_features) {
                return refuse(format!(
                    "{name} is [{height}, {width}] in {}, but [{}, {in_features}] in the adapter; use the base that it was \
                     trained on",
                    base.name(),
                    experts * expert_rows,
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
                interleaved: base.config().interleaved(&name),
            });
        }
    }
    Ok(parts)
}
