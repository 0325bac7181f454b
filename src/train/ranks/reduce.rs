//! The sum of the gradients of all shares: within a host through memory that its processes share, between hosts by messages.

use std::borrow::Cow;
use std::ops::Range;

use rayon::prelude::*;

use super::Ranks;
use super::link::{Link, LinkError};
use super::slots::Slots;
use super::sum::{Forest, Part, shares_of};
use super::window::Window;

/// Values that are added at a time: they stay in the cache.
const CHUNK: usize = 1 << 14;
/// Values of a message between hosts.
const MESSAGE: usize = 1 << 18;

/// Memory and connections for sums of `values` values.
pub struct Reduction {
    shares: usize,
    values: usize,
    /// Values from one slot to the next.
    stride: usize,
    /// Slots of each rank.
    slots: usize,
    rank: usize,
    size: usize,
    /// The ranks that share a window, for each window.
    hosts: Vec<Vec<usize>>,
    window: Window,
    /// The ranks of the own window; `None` if it has one.
    host: Option<Box<dyn Link>>,
    /// One rank of each window; `None` if there is one window.
    lane: Option<Box<dyn Link>>,
}

impl Reduction {
    /// Sums of `shares` shares by `ranks`, whose number divides it.
    pub fn new(ranks: &Ranks, shares: usize, values: usize) -> Result<Reduction, LinkError> {
        let (rank, size) = (ranks.rank(), ranks.size());
        let full = |own| Slots::planned(shares, own, &|_| false).used();
        let slots = (0..size).map(|rank| full(shares_of(rank, size, shares))).max().unwrap_or(1);
        let stride = values.next_multiple_of(CHUNK);
        let mut reduction = Reduction {
            window: Window::own(0),
            hosts: ranks.hosts.clone(),
            host: None,
            lane: None,
            shares,
            values,
            stride,
            slots,
            rank,
            size,
        };
        reduction.connect(ranks)?;
        Ok(reduction)
    }

    /// Opens the windows. Where one of them cannot be shared, every rank has one of its own.
    fn connect(&mut self, ranks: &Ranks) -> Result<(), LinkError> {
        #[cfg(feature = "native")]
        if let Some(world) = ranks.world.as_ref().filter(|_| self.hosts.iter().any(|host| host.len() > 1)) {
            let members = self.members().len();
            let host = world.split(self.host_of(self.rank))?;
            let length = (members * self.slots + 1) * self.stride;
            let shared = Window::shared(&*host, length)?;
            match ranks.largest(u8::from(shared.is_none()))? {
                0 => {
                    self.window = shared.unwrap_or_else(|| Window::own(0));
                    self.host = Some(host);
                }
                _ => self.hosts = (0..self.size).map(|rank| vec![rank]).collect(),
            }
        }
        if self.host.is_none() {
            self.window = Window::own((self.slots + usize::from(self.size > 1)) * self.stride);
        }
        let Some(world) = ranks.world.as_ref().filter(|_| self.hosts.len() > 1) else { return Ok(()) };
        self.lane = Some(world.split(self.place().min(self.lanes()))?);
        Ok(())
    }

    fn host_of(&self, rank: usize) -> usize {
        self.hosts.iter().position(|host| host.contains(&rank)).unwrap_or(0)
    }

    /// The ranks of the own window.
    fn members(&self) -> &[usize] {
        &self.hosts[self.host_of(self.rank)]
    }

    /// The own place among them.
    fn place(&self) -> usize {
        self.members().iter().position(|rank| *rank == self.rank).unwrap_or(0)
    }

    /// Ranks of each window that add up and send: as many as the smallest has.
    fn lanes(&self) -> usize {
        self.hosts.iter().map(Vec::len).min().unwrap_or(1)
    }

    fn place_of_slot(&self, member: usize, slot: usize) -> Range<usize> {
        let start = (member * self.slots + slot) * self.stride;
        start..start + self.values
    }

    /// A slot of this rank.
    pub fn slot(&mut self, slot: usize) -> &mut [f32] {
        // SAFETY: other ranks read the slots of this one only within `sum`.
        unsafe { &mut *self.window.values(self.place_of_slot(self.place(), slot)) }
    }

    /// Adds slot `from` of this rank to its slot `into`.
    pub fn add(&mut self, into: usize, from: usize) {
        assert!(into != from, "two slots");
        let place = self.place();
        // SAFETY: as in `slot`, and the two do not overlap.
        let [into, from] =
            [into, from].map(|slot| unsafe { &mut *self.window.values(self.place_of_slot(place, slot)) });
        into.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK)).for_each(|(into, from)| add(into, from));
    }

    /// Adds up the slots of all ranks, and returns the sum of all shares. `own`: the slots of this rank; `is_empty` tells which
    /// shares have no micro-batch.
    pub fn sum(&mut self, own: &Slots, is_empty: &dyn Fn(usize) -> bool) -> Result<&[f32], LinkError> {
        if self.size == 1 {
            let slot = own.parts().iter().find_map(|part| part.sum).unwrap_or(0);
            return Ok(self.slot(slot));
        }
        self.wait()?;
        let lanes = if self.lane.is_some() { self.lanes() } else { self.members().len() };
        let place = self.place();
        if place < lanes {
            let range = self.values * place / lanes..self.values * (place + 1) / lanes;
            match &self.lane {
                None => self.sum_here(range, is_empty),
                Some(lane) => self.sum_across(&**lane, range, is_empty)?,
            }
        }
        self.wait()?;
        // SAFETY: no rank writes the total before all have filled their slots again.
        Ok(unsafe { &*self.window.values(self.total()) })
    }

    fn wait(&self) -> Result<(), LinkError> {
        self.host.as_ref().map_or(Ok(()), |host| host.barrier())
    }

    fn total(&self) -> Range<usize> {
        let start = self.members().len() * self.slots * self.stride;
        start..start + self.values
    }

    /// A part of the own window's total.
    fn total_of(&self, range: Range<usize>) -> *mut [f32] {
        let start = self.total().start;
        self.window.values(start + range.start..start + range.end)
    }

    /// The parts of a host's ranks in ascending order, each with its rank's place and its slot.
    fn parts(&self, host: usize, is_empty: &dyn Fn(usize) -> bool) -> Vec<Part<(usize, usize)>> {
        let mut all = Vec::new();
        for (member, rank) in self.hosts[host].iter().enumerate() {
            let own = shares_of(*rank, self.size, self.shares);
            for part in Slots::planned(self.shares, own, is_empty).parts() {
                all.push(Part { shares: part.shares.clone(), sum: part.sum.map(|slot| (member, slot)) });
            }
        }
        all.sort_by_key(|part| part.shares.start);
        all
    }

    /// The own host's parts, within `range` of the values.
    fn parts_here(&self, range: &Range<usize>, is_empty: &dyn Fn(usize) -> bool) -> Vec<Part<&[f32]>> {
        let values = |(member, slot): (usize, usize)| {
            let start = self.place_of_slot(member, slot).start;
            // SAFETY: between two barriers, slots are only read.
            unsafe { &*self.window.values(start + range.start..start + range.end) }
        };
        let parts = self.parts(self.host_of(self.rank), is_empty);
        parts.into_iter().map(|part| Part { shares: part.shares, sum: part.sum.map(values) }).collect()
    }

    /// The sum over all ranks of one window.
    fn sum_here(&self, range: Range<usize>, is_empty: &dyn Fn(usize) -> bool) {
        let parts = self.parts_here(&range, is_empty);
        // SAFETY: every rank writes another range, and none reads before the barrier.
        total(self.shares, &parts, unsafe { &mut *self.total_of(range) });
    }

    /// The sum over all windows: that of the own window first, then by messages with the others.
    fn sum_across(
        &self,
        lane: &dyn Link,
        range: Range<usize>,
        is_empty: &dyn Fn(usize) -> bool,
    ) -> Result<(), LinkError> {
        let nodes: Vec<Vec<Part<()>>> =
            (0..self.hosts.len()).map(|host| self.nodes(host, is_empty)).collect();
        let most = nodes.iter().map(Vec::len).max().unwrap_or(1);
        // Members of a lane are in the order of their ranks.
        let mut members: Vec<(usize, usize)> =
            self.hosts.iter().enumerate().map(|(host, ranks)| (ranks[self.place()], host)).collect();
        members.sort_unstable();
        let count = members.len();
        for start in range.clone().step_by(MESSAGE) {
            let piece = start..(start + MESSAGE).min(range.end);
            let part = piece.len().div_ceil(count);
            let of = |member: usize| {
                let start = (piece.start + member * part).min(piece.end);
                start..(start + part).min(piece.end)
            };
            let mut sent = vec![0f32; count * most * part];
            for member in 0..count {
                let range = of(member);
                let parts = self.parts_here(&range, is_empty);
                for (node, found) in add_up(self.shares, &parts, 0..range.len()).into_iter().enumerate() {
                    if let Some(values) = found.sum {
                        sent[(member * most + node) * part..][..values.len()].copy_from_slice(&values);
                    }
                }
            }
            let mut received = vec![0f32; sent.len()];
            lane.all_to_all(bytemuck::cast_slice(&sent), bytemuck::cast_slice_mut(&mut received))?;
            let own = of(lane.rank());
            let mut parts = Vec::new();
            for (member, (_, host)) in members.iter().enumerate() {
                for (node, found) in nodes[*host].iter().enumerate() {
                    let values = &received[(member * most + node) * part..][..own.len()];
                    parts.push(Part { shares: found.shares.clone(), sum: found.sum.map(|()| values) });
                }
            }
            parts.sort_by_key(|part| part.shares.start);
            let mut sum = vec![0f32; part];
            total(self.shares, &parts, &mut sum[..own.len()]);
            let mut all = vec![0f32; count * part];
            lane.all_gather(bytemuck::cast_slice(&sum), bytemuck::cast_slice_mut(&mut all))?;
            for member in 0..count {
                let range = of(member);
                let values = &all[member * part..][..range.len()];
                // SAFETY: as in `sum_here`.
                unsafe { &mut *self.total_of(range) }.copy_from_slice(values);
            }
        }
        Ok(())
    }

    /// The parts that a host's ranks add up to.
    fn nodes(&self, host: usize, is_empty: &dyn Fn(usize) -> bool) -> Vec<Part<()>> {
        let mut forest = Forest::new(self.shares);
        for part in self.parts(host, is_empty) {
            forest.push(Part { shares: part.shares, sum: part.sum.map(|_| ()) }, |(), ()| ());
        }
        forest.into_parts()
    }
}

fn add(into: &mut [f32], from: &[f32]) {
    into.iter_mut().zip(from).for_each(|(into, from)| *into += from);
}

/// Adds up the values `range` of ascending parts, as far as they form nodes.
fn add_up<'v>(of: usize, parts: &[Part<&'v [f32]>], range: Range<usize>) -> Vec<Part<Cow<'v, [f32]>>> {
    let mut forest = Forest::new(of);
    for part in parts {
        let sum = part.sum.map(|values| Cow::Borrowed(&values[range.clone()]));
        forest.push(Part { shares: part.shares.clone(), sum }, |into: &mut Cow<[f32]>, from| {
            add(into.to_mut(), &from);
        });
    }
    forest.into_parts()
}

/// Writes the sum of all shares, whose parts are given in ascending order.
fn total(of: usize, parts: &[Part<&[f32]>], out: &mut [f32]) {
    out.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, out)| {
        let start = chunk * CHUNK;
        match &add_up(of, parts, start..start + out.len())[..] {
            [Part { sum: Some(sum), .. }] => out.copy_from_slice(sum),
            // Without any micro-batch, a step is refused before.
            _ => out.fill(0.0),
        }
    });
}

#[cfg(all(test, feature = "native"))]
mod tests {
    use super::super::threads;
    use super::*;

    /// More than a chunk, and a length that nothing divides.
    const VALUES: usize = (1 << 18) + CHUNK + 7;

    fn value(share: usize, i: usize) -> f32 {
        let mixed = (i as u32).wrapping_mul(2_654_435_761) ^ (share as u32 + 1).wrapping_mul(0x9e37_79b9);
        (mixed as f32 / u32::MAX as f32 - 0.5) * 10f32.powi((mixed % 7) as i32 - 3)
    }

    /// The bits of the sum, by ranks on these hosts.
    fn summed(hosts: &[usize], shares: usize, empty: &[usize]) -> Vec<u32> {
        let work = |link: Box<dyn Link>| -> Result<Vec<u32>, LinkError> {
            let ranks = Ranks::new(link, "host")?;
            let mut reduction = Reduction::new(&ranks, shares, VALUES)?;
            let mut bits = Vec::new();
            // Twice, as the memory is used again.
            for _ in 0..2 {
                let mut slots = Slots::new(shares);
                for share in ranks.own_shares(shares) {
                    let slot = (!empty.contains(&share)).then(|| slots.place());
                    if let Some(slot) = slot {
                        reduction.slot(slot).iter_mut().enumerate().for_each(|(i, x)| *x = value(share, i));
                    }
                    slots.push(share, slot, |into, from| reduction.add(into, from));
                }
                bits = reduction
                    .sum(&slots, &|share| empty.contains(&share))?
                    .iter()
                    .map(|x| x.to_bits())
                    .collect();
            }
            Ok(bits)
        };
        let mut all: Vec<_> =
            threads::run(hosts, work).into_iter().map(|r| r.expect("no rank fails")).collect();
        assert!(all.iter().all(|bits| *bits == all[0]), "{hosts:?}: every rank has the same sum");
        all.swap_remove(0)
    }

    #[test]
    fn any_ranks_on_any_hosts_have_the_same_sum() {
        let one = summed(&[0], 4, &[]);
        for hosts in
            [&[0, 0][..], &[0, 1], &[0, 0, 0, 0], &[0, 0, 1, 1], &[0, 1, 0, 1], &[0, 1, 1, 1], &[0, 1, 2, 3]]
        {
            assert!(summed(hosts, 4, &[]) == one, "{hosts:?}");
        }
        let one = summed(&[0], 6, &[1, 4, 5]);
        for hosts in
            [&[0, 0][..], &[0, 0, 1], &[1, 0, 0], &[0, 1, 2], &[0, 0, 0, 1, 1, 1], &[0, 1, 2, 2, 1, 0]]
        {
            assert!(summed(hosts, 6, &[1, 4, 5]) == one, "{hosts:?}");
        }
    }
}
