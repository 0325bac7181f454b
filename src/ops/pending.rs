//! Work on an activation that its reader can do on the way.
//!
//! A product may leave its result as split-K partial sums, and a sum or a gradient may wait for the norm that reads it: one kernel does both
//! then. In decoding, products leave out the adapter's term, and a short gated product may wait for the product that reads it. Whatever else
//! is recorded finishes that first, so that a wrong order is slower and never a wrong sum.

use crate::base::config::Activation;
use crate::gpu::{Gpu, Recorder};
use crate::ops::act::Act;
use crate::ops::lora::Term;
use crate::ops::norm_add::sum::Sum;
use crate::ops::pack::Packed;
use crate::ops::partial_sums::{self, Unsummed};
use crate::ops::rms_norm::gradient::GradientSum;
use crate::ops::{Rows, Unfinished, cached_gated};

/// Where a pass records its commands, and what is pending on the last activation.
pub struct Commands<'p, 'g> {
    rec: &'p mut Recorder<'g>,
    pending: Option<(Place, Pending)>,
    /// Activations that products left in f16 blocks, and these, until they are read.
    halves: Vec<(Act, Packed)>,
}

/// Some rows of an activation.
struct Place {
    of: Act,
    rows: usize,
}

/// Work that is pending on an activation.
pub(in crate::ops) enum Pending {
    /// Its partial sums, which are in the device's scratch.
    Parts(Parts),
    /// The sum of a stream and a norm.
    Sum(Box<Sum>),
    /// The sum of a gradient and that of a norm.
    GradientSum(GradientSum),
    /// The term of a frozen adapter.
    Term(Term),
    /// A gated product.
    Gated(Gated),
}

/// `activation(gate + B·z)·up`, as in [`cached_gated`].
pub(in crate::ops) struct Gated {
    pub gate: Rows,
    pub term: Option<Term>,
    pub up: Act,
    pub activation: Activation,
}

/// Partial sums of a product.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Parts {
    /// Number of them.
    pub count: u32,
    /// Whether their sum is added to the present values.
    pub accumulate: bool,
}

impl Pending {
    fn finish(self, rec: &mut Recorder, Place { of, rows }: &Place) {
        match self {
            Pending::Parts(Parts { count, accumulate: false }) => {
                partial_sums::add_up(rec, &of.staging(), *rows, count);
            }
            Pending::Parts(Parts { count, .. }) => {
                partial_sums::add(rec, &of.staging(), *rows, 0..count as usize);
            }
            Pending::Sum(sum) => sum.finish(rec, of, *rows),
            Pending::GradientSum(sum) => sum.finish(rec, of.rows(), *rows),
            Pending::Term(term) => term.add(rec, of.rows(), *rows),
            Pending::Gated(Gated { gate, term, up, activation }) => {
                let gate = Unfinished::of(&gate, term.as_ref().map(Term::up));
                cached_gated::forward(rec, of.rows(), &gate, up.view(), activation, *rows, of.integers());
            }
        }
    }
}

impl<'p, 'g> Commands<'p, 'g> {
    /// Commands that `rec` records.
    pub fn new(rec: &'p mut Recorder<'g>) -> Commands<'p, 'g> {
        Commands { rec, pending: None, halves: Vec::new() }
    }

    /// The device that they are recorded for.
    pub fn gpu(&self) -> &'g Gpu {
        self.rec.gpu()
    }

    /// The recorder, with nothing pending.
    pub fn now(&mut self) -> &mut Recorder<'g> {
        if let Some((place, pending)) = self.pending.take() {
            pending.finish(self.rec, &place);
        }
        self.rec
    }

    /// The recorder for copies to other buffers. Partial sums and terms stay pending: copies leave what they read as it is. Sums are finished:
    /// one may read what the copies overwrite, such as a layer's input.
    pub fn for_copies(&mut self) -> &mut Recorder<'g> {
        match &self.pending {
            Some((_, Pending::Parts(_) | Pending::Term(_))) => self.rec,
            _ => self.now(),
        }
    }

    /// Leaves `pending` on `rows` rows of `act`.
    pub(in crate::ops) fn leave(&mut self, act: &Act, rows: usize, pending: Pending) {
        self.now();
        self.pending = Some((Place { of: act.clone(), rows }, pending));
    }

    /// Leaves the partial sums of `act` that the last commands computed, if they computed any.
    pub(in crate::ops) fn leave_parts(
        &mut self,
        act: &Act,
        rows: usize,
        parts: Option<Unsummed>,
        accumulate: bool,
    ) {
        if let Some(Unsummed { count: count @ 1.., .. }) = parts {
            let place = Place { of: act.clone(), rows };
            self.pending = Some((place, Pending::Parts(Parts { count, accumulate })));
        }
    }

    /// Hands the work on `rows` rows of `act` to a reader that finishes it; finishes any other.
    pub(in crate::ops) fn take(
        &mut self,
        act: &Act,
        rows: usize,
        finishes: impl FnOnce(&Pending) -> bool,
    ) -> Option<Pending> {
        let is_taken = |(place, pending): &mut (Place, Pending)| {
            place.rows == rows && place.of.shares_memory(act) && finishes(pending)
        };
        let taken = self.pending.take_if(is_taken);
        if taken.is_none() {
            self.now();
        }
        taken.map(|(_, pending)| pending)
    }

    /// Notes that a product left `act` in these f16 blocks.
    pub(in crate::ops) fn note_halves(&mut self, act: &Act, halves: Packed) {
        let is_left = self.halves.iter().any(|(other, _)| other.shares_memory(act));
        debug_assert!(!is_left, "the last ones were not read");
        self.halves.push((act.clone(), halves));
    }

    /// The f16 blocks that a product left of `act`, for the op that reads them.
    pub(in crate::ops) fn take_halves(&mut self, act: &Act) -> Option<Packed> {
        let at = self.halves.iter().position(|(other, _)| other.shares_memory(act))?;
        Some(self.halves.swap_remove(at).1)
    }

    /// `act` as it is: where a product left f16 blocks, the tiles of these alone.
    pub(in crate::ops) fn as_left(&mut self, act: &Act) -> Act {
        match self.take_halves(act) {
            Some(halves) => act.clone().left_in(halves),
            None => act.clone(),
        }
    }

    /// The number of partial sums in the device's scratch whose sum `rows` rows of `act` are; 0 where they are whole.
    pub(in crate::ops) fn take_parts(&mut self, act: &Act, rows: usize) -> u32 {
        match self.take(act, rows, |pending| matches!(pending, Pending::Parts(parts) if !parts.accumulate)) {
            Some(Pending::Parts(parts)) => parts.count,
            _ => 0,
        }
    }

    /// The term that `rows` rows of `act` lack.
    pub(in crate::ops) fn take_term(&mut self, act: &Act, rows: usize) -> Option<Term> {
        match self.take(act, rows, |pending| matches!(pending, Pending::Term(_))) {
            Some(Pending::Term(term)) => Some(term),
            _ => None,
        }
    }
}

impl Drop for Commands<'_, '_> {
    fn drop(&mut self) {
        self.now();
    }
}
