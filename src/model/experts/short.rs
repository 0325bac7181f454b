//! The experts of the few tokens of a short pass: each choice multiplies by itself, without being sorted first.

use super::{ExpertActivations, ExpertLora, ExpertScratch, Experts};
use crate::gpu::Recorder;
use crate::ops::Rows;
use crate::ops::Weight;
use crate::ops::cached_gated as gated;
use crate::ops::linear::grouped::{ExpertWeight, Source};
use crate::ops::matvec::grouped as expert_matvec;
use crate::ops::rms_norm;

impl Experts {
    /// What [`Experts::forward`] makes of at most [`crate::ops::matvec::MAX_ROWS`] tokens; what a backward needs is not there.
    pub fn forward_short<'a>(
        &'a self,
        rec: &mut Recorder<'a>,
        stream: &Rows,
        acts: &ExpertActivations,
        scratch: &ExpertScratch,
        [lora_gate_up, lora_down]: [Option<ExpertLora>; 2],
        tokens: usize,
        score: impl FnOnce(&mut Recorder<'a>, &Rows, &Rows, &Weight),
    ) {
        let (groups, normed) = (&acts.groups, &scratch.normed);
        let (f, choices) = (groups.experts.width, tokens * groups.experts.used);
        self.route(rec, stream, groups, scratch, tokens, score);

        rms_norm::forward(rec, normed, stream, &self.pre_ffw_norm_2, None, 1.0, tokens);
        let x = Source::Tokens(normed.all());
        let project = |rec: &mut Recorder<'a>, z: &Rows, x: Source, lora: Option<ExpertLora>| {
            let Some(lora) = lora else { return };
            let a = ExpertWeight::of_param(lora.a, groups.experts.count);
            expert_matvec::each(rec, z.all(), x, &a, None, groups, tokens);
        };
        project(rec, &acts.z_gate_up, x, lora_gate_up);
        for (i, w) in self.gate_up.iter().enumerate() {
            let term = lora_gate_up.map(|l| l.up(&acts.z_gate_up, i * f));
            expert_matvec::each(rec, acts.gate_up.from(i * f), x, w, term.as_ref(), groups, tokens);
        }
        let geglu = &scratch.wide.narrowed(f);
        gated::forward(rec, geglu, &acts.gate_up, acts.gate_up.from(f), None, choices);
        project(rec, &acts.z_down, Source::Rows(geglu.all()), lora_down);
        let term = lora_down.map(|l| l.up(&acts.z_down, 0));
        let (y, x) = (acts.output.all(), geglu.all());
        expert_matvec::summed(rec, y, x, &self.down, term.as_ref(), &self.scales, groups, tokens);
    }
}
