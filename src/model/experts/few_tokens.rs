//! The experts of the few tokens of a short pass: each choice is multiplied by itself, without being sorted first.

use super::{ExpertLoras, Experts};
use crate::memory::{ExpertActs, ExpertScratch};
use crate::ops::act::Act;
use crate::ops::linear::experts::ExpertLora;
use crate::ops::linear::grouped::Source;
use crate::ops::matvec::grouped as grouped_matvec;
use crate::ops::pass::Pass;
use crate::ops::{Rows, Unfinished, cached_gated, rms_norm};

impl Experts {
    /// The experts over at most [`crate::ops::matvec::MAX_ROWS`] tokens, from the router's choices to `acts.output`; nothing is kept for
    /// backward.
    pub(super) fn forward_short(
        &self,
        p: &mut Pass,
        stream: &Act,
        acts: &ExpertActs,
        scratch: &ExpertScratch,
        loras: ExpertLoras,
    ) {
        let groups = &acts.groups;
        let tokens = p.tokens;
        let (f, choices) = (groups.experts.width, tokens * groups.experts.used);
        rms_norm::forward(p, &scratch.normed, stream, &self.input_norm);
        let x = Source::Tokens(scratch.normed.rows().all());
        let project = |p: &mut Pass, z: &Rows, x: Source, lora: Option<ExpertLora>| {
            let Some(lora) = lora else { return };
            grouped_matvec::each(p.rec.now(), z.all(), x, &lora.a_weight(groups), None, groups, tokens);
        };
        project(p, &acts.z_gate_up, x, loras.gate_up);
        for (i, w) in self.gate_up.iter().enumerate() {
            let term = loras.gate_up.map(|lora| lora.up(&acts.z_gate_up, i * f));
            grouped_matvec::each(p.rec.now(), acts.gate_up.from(i * f), x, w, term.as_ref(), groups, tokens);
        }
        let [gate_up_biases, down_biases] = &self.biases;
        if let Some(biases) = gate_up_biases {
            biases.add_each(p.rec.now(), &acts.gate_up, groups, tokens);
        }
        let gated = &scratch.wide.reshaped(f);
        let up = acts.gate_up.from(f);
        let gate = Unfinished::of(&acts.gate_up, None);
        cached_gated::forward(p.rec.now(), gated, &gate, up, self.activation, choices, None);
        project(p, &acts.z_down, Source::Rows(gated.all()), loras.down);
        let term = loras.down.map(|lora| lora.up(&acts.z_down, 0));
        let (y, x) = (acts.output.rows().all(), gated.all());
        grouped_matvec::summed(p.rec.now(), y, x, &self.down, term.as_ref(), &self.scales, groups, tokens);
        if let Some(biases) = down_biases {
            biases.add_summed(p.rec.now(), acts.output.rows(), &self.scales, groups, tokens);
        }
    }
}
