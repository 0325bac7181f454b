//! The buffers of a plan, by name, without making them.

use super::experts::{ExpertActs, ExpertScratch};
use super::plan::Plan;
use super::storage::{Role, Storage};
use super::table::{Span, TABLE, TEMPS};
use super::widths::LayerWidths;
use crate::base::config::Config;
use crate::gpu::Gpu;
use crate::ops::pack::packed_bytes;

impl Plan {
    /// The buffers of activations and gradients that [`super::Activations::new`] makes for the plan, and the rows of logits: name and bytes
    /// of each. Of parts of the heads, the first is listed; of values that are stored as tiles, the longer one of the two buffers.
    pub fn buffers(&self, gpu: &Gpu, config: &Config) -> Vec<(String, u64)> {
        let widest = LayerWidths::widest(&self.layers);
        let mut all = self.saved(&widest, gpu.max_binding_bytes());
        all.extend(self.of_backward(&widest));
        for (w, shape) in self.layers.iter().filter_map(|w| Some((w, w.experts.as_ref()?))) {
            all.push(("experts' activations".into(), ExpertActs::longest(gpu, shape, w, self.chunk)));
            let scratch = ExpertScratch::spare_bytes(gpu, self.storages, shape, w.width, self.chunk);
            all.extend(scratch.map(|bytes| ("products of experts".into(), bytes)));
        }
        let row = config.vocab.next_multiple_of(4) * 4;
        all.push(("logits".into(), (self.head_rows * row) as u64));
        all
    }

    /// Activations, of each layer and shared ones.
    fn saved(&self, widest: &LayerWidths, longest: u64) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        for entry in &TABLE {
            let storage = self.storages.of(entry.role);
            let layers = || self.layers.iter().zip(&self.kept).enumerate();
            for (i, (w, _)) in layers().filter(|(_, (w, kept))| entry.is_own(w, **kept)) {
                let (_, rows) = entry.own_buffers(w, self.storages, [self.tokens, self.chunk], longest);
                let bytes = storage.value_bytes(rows, (entry.width)(w));
                all.push((format!("layer {i} {:?}", entry.name), bytes));
            }
            if layers().any(|(_, (w, kept))| !entry.is_own(w, *kept)) {
                let rows = entry.span.rows(self.tokens, self.chunk);
                let bytes = storage.value_bytes(rows, (entry.width)(widest));
                all.push((format!("recomputed {:?}", entry.name), bytes));
            }
        }
        all
    }

    /// The buffers of backward, and scratch of ops.
    fn of_backward(&self, widest: &LayerWidths) -> Vec<(String, u64)> {
        let temps = TEMPS.iter().map(|temp| {
            let width = (temp.width)(widest, self.storages);
            let rows = temp.span.rows(self.tokens, self.chunk);
            (format!("{:?}", temp.name), self.storages.of(temp.role).value_bytes(rows, width))
        });
        let rows = |name: &str, width: usize| {
            (name.to_string(), Storage::F32.value_bytes(Span::Tokens.rows(self.tokens, self.chunk), width))
        };
        let packed = |name: &str, width: usize| {
            let bytes = if self.shapes.operand > 0 { packed_bytes(self.tokens, width) } else { 0 };
            (name.to_string(), bytes)
        };
        let queries = if self.storages.of(Role::Heads) == Storage::Tiled { widest.queries } else { 0 };
        temps
            .chain([
                rows("stream", widest.width),
                rows("dq, dattention and dheads", widest.queries),
                rows("key gradients", widest.shared_keys),
                rows("u", self.shapes.u),
                rows("masked input", self.shapes.masked),
                packed("packed input", self.shapes.operand),
                packed("packed z", self.shapes.u),
                packed("packed attention gradient", queries),
                ("attention rows".into(), (8 * self.tokens.next_multiple_of(2) * widest.heads) as u64),
            ])
            .collect()
    }

    /// Parts that the heads of each layer are divided into.
    pub fn parts(&self) -> Vec<usize> {
        self.layers.iter().map(|w| w.parts).collect()
    }
}
