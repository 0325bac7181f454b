//! Which part of a sum lies where, while a rank adds up its shares.

use std::ops::Range;

use super::sum::{Forest, Part};

/// The parts of a rank's shares, by the slots that hold them. Every rank knows the slots of every other, as they follow from the
/// shares alone.
pub struct Slots {
    forest: Forest<usize>,
    free: Vec<usize>,
    used: usize,
}

impl Slots {
    /// No parts yet of a sum of `shares` shares.
    pub fn new(shares: usize) -> Slots {
        Slots { forest: Forest::new(shares), free: Vec::new(), used: 0 }
    }

    /// The slots of the shares `own`, where `is_empty` tells which of them have no micro-batch.
    pub fn planned(shares: usize, own: Range<usize>, is_empty: &dyn Fn(usize) -> bool) -> Slots {
        let mut slots = Slots::new(shares);
        for share in own {
            let slot = (!is_empty(share)).then(|| slots.place());
            slots.push(share, slot, |_, _| ());
        }
        slots
    }

    /// A free slot.
    pub fn place(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            self.used - 1
        })
    }

    /// Appends a share, whose gradient lies in `slot`. `add` adds the slot that it gets second to the first.
    pub fn push(&mut self, share: usize, slot: Option<usize>, mut add: impl FnMut(usize, usize)) {
        let Slots { forest, free, .. } = self;
        forest.push(Part { shares: share..share + 1, sum: slot }, |into, from| {
            add(*into, from);
            free.push(from);
        });
    }

    /// The parts so far.
    pub fn parts(&self) -> &[Part<usize>] {
        self.forest.parts()
    }

    /// Slots that were needed so far.
    pub fn used(&self) -> usize {
        self.used
    }
}
