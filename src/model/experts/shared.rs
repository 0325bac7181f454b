//! A dense feed-forward block beside the experts: a sum of norms, or a shared expert with or without a gate.

use super::Experts;
use crate::memory::{ExpertActs, ExpertScratch};
use crate::ops::Weight;
use crate::ops::act::Act;
use crate::ops::experts::shared;
use crate::ops::norm_add;
use crate::ops::pass::Pass;
use crate::ops::rms_norm::{self, Norm};

/// How the output of a dense feed-forward block is added to that of the experts.
pub enum Beside {
    /// There is none.
    Nothing,
    /// The norms of its output and of the experts'.
    Norms([Norm; 2]),
    /// It is a shared expert. The matrix `[1, D]` scores it.
    Gate(Weight),
    /// It is a shared expert without scores, whose output is added as it is. This is the norm that passes it on.
    Sum(Norm),
}

impl Experts {
    /// The output of the experts, to which that of the dense block, `down`, is added.
    pub fn with_dense<'a>(
        &self,
        p: &mut Pass,
        down: &Act,
        acts: &'a ExpertActs,
        scratch: &ExpertScratch,
    ) -> &'a Act {
        match &self.beside {
            Beside::Nothing => return &acts.output,
            Beside::Norms([dense_norm, experts_norm]) if p.decoding.is_some() => {
                // The first norm is added to zeros: then it can add the adapter's term.
                let sum = &acts.sum;
                p.rec.for_copies().clear(&sum.rows().buffer, (p.tokens * sum.rows().stride * 4) as u64);
                norm_add::forward(p, sum, down, dense_norm, sum, 1.0);
                norm_add::forward(p, sum, &acts.output, experts_norm, sum, 1.0);
            }
            Beside::Sum(norm) if p.decoding.is_some() => {
                norm_add::forward(p, &acts.output, down, norm, &acts.output, 1.0);
                return &acts.output;
            }
            Beside::Norms([dense_norm, experts_norm]) => {
                rms_norm::forward(p, &scratch.normed, down, dense_norm);
                rms_norm::forward_add(p, &acts.sum, &acts.output, experts_norm, &scratch.normed);
            }
            Beside::Gate(_) => shared::forward(p, &acts.sum, &acts.output, down, &acts.shared_scores),
            Beside::Sum(norm) => {
                let down: Act = down.f32(p.rec.now(), p.tokens).into();
                rms_norm::forward_add(p, &acts.sum, &down, norm, &acts.output);
            }
        }
        &acts.sum
    }

    /// From the gradient `dhidden` of the layer's output to that of the experts' output, in `scratch.normed`, to that of a shared
    /// expert's scores and, where there is a dense block, to that of the sum, `dsum`.
    pub fn sum_backward(
        &self,
        p: &mut Pass,
        [dsum, dhidden]: [&Act; 2],
        norm: &Norm,
        down: &Act,
        acts: &ExpertActs,
        scratch: &ExpertScratch,
    ) {
        let dexperts = &scratch.normed;
        match &self.beside {
            Beside::Nothing => rms_norm::backward(p, dexperts, dhidden, &acts.output, norm),
            Beside::Norms([_, experts_norm]) => {
                rms_norm::backward(p, dsum, dhidden, &acts.sum, norm);
                rms_norm::backward(p, dexperts, dsum, &acts.output, experts_norm);
            }
            Beside::Gate(_) | Beside::Sum(_) => {
                rms_norm::backward(p, dsum, dhidden, &acts.sum, norm);
                rms_norm::backward(p, dexperts, dhidden, &acts.sum, norm);
                if let Beside::Gate(_) = self.beside {
                    shared::backward_scores(p, &scratch.dshared_scores, dsum, down, &acts.shared_scores);
                }
            }
        }
    }

    /// From the gradient of the sum to that of the dense block's output, `ddown`, for which `scratch.normed` is scratch.
    pub fn down_output_backward(
        &self,
        p: &mut Pass,
        [ddown, dsum]: [&Act; 2],
        down: &Act,
        acts: &ExpertActs,
        scratch: &ExpertScratch,
    ) {
        match &self.beside {
            Beside::Nothing => {}
            Beside::Norms([norm, _]) | Beside::Sum(norm) => rms_norm::backward(p, ddown, dsum, down, norm),
            Beside::Gate(_) => {
                let ddown = ddown.clone().with_staging(scratch.normed.rows().clone());
                shared::backward(p, &ddown, dsum, &acts.shared_scores);
            }
        }
    }
}
