//! The order in which the gradients of shares are added: a binary tree over the shares' numbers, whoever holds them.
//!
//! A node over `n` shares has the first `m` of them on its left, where `m` is the largest power of two below `n`. So neighbours that
//! form a node can be added wherever they are, before the rest is known, and every grouping gives the same bits.

use std::ops::Range;

/// Consecutive shares that are added up; `sum` is `None` if none of them has a micro-batch. Nothing is added for those: even a zero
/// would change the sign of another zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part<T> {
    /// The shares.
    pub shares: Range<usize>,
    /// Their sum.
    pub sum: Option<T>,
}

/// Parts of the tree in ascending order, each as large as the shares so far allow.
#[derive(Clone, Debug)]
pub struct Forest<T> {
    of: usize,
    parts: Vec<Part<T>>,
}

impl<T> Forest<T> {
    /// No parts yet of a tree over `of` shares.
    pub fn new(of: usize) -> Forest<T> {
        Forest { of, parts: Vec::new() }
    }

    /// Appends a part that is a node of the tree and comes after all others. `add` adds its second argument to its first.
    pub fn push(&mut self, part: Part<T>, mut add: impl FnMut(&mut T, T)) {
        self.parts.push(part);
        while let [.., left, right] = &self.parts[..] {
            if left.shares.end != right.shares.start || !self.are_children(&left.shares, &right.shares) {
                return;
            }
            let Some(right) = self.parts.pop() else { return };
            let Some(left) = self.parts.last_mut() else { return };
            left.shares.end = right.shares.end;
            match (&mut left.sum, right.sum) {
                (Some(left), Some(right)) => add(left, right),
                (left @ None, right) => *left = right,
                (Some(_), None) => {}
            }
        }
    }

    /// Whether two neighbours are the children of a node.
    fn are_children(&self, left: &Range<usize>, right: &Range<usize>) -> bool {
        let mut node = 0..self.of;
        while node.len() > 1 {
            let middle = node.start + node.len().next_power_of_two() / 2;
            if right.end <= middle {
                node.end = middle;
            } else if left.start >= middle {
                node.start = middle;
            } else {
                return node.start == left.start && middle == right.start && node.end == right.end;
            }
        }
        false
    }

    /// The parts.
    pub fn parts(&self) -> &[Part<T>] {
        &self.parts
    }

    /// The parts.
    pub fn into_parts(self) -> Vec<Part<T>> {
        self.parts
    }
}

/// The micro-batches of share `share` of `shares`, of a step with `of`.
pub fn micro_batches(share: usize, shares: usize, of: usize) -> Range<usize> {
    of * share / shares..of * (share + 1) / shares
}

/// The shares of rank `rank` of `ranks`, where `ranks` divides `shares`.
pub fn shares_of(rank: usize, ranks: usize, shares: usize) -> Range<usize> {
    rank * shares / ranks..(rank + 1) * shares / ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Terms whose sum depends on its order.
    fn term(share: usize) -> f32 {
        (1.0 + share as f32 * 0.37) * 10f32.powi(share as i32 * 7 % 9 - 4)
    }

    fn leaf(share: usize, empty: &[usize]) -> Part<f32> {
        Part { shares: share..share + 1, sum: (!empty.contains(&share)).then(|| term(share)) }
    }

    /// The sum of all shares.
    fn sum<T>(forest: Forest<T>) -> Option<T> {
        let of = forest.of;
        let [part] = <[Part<T>; 1]>::try_from(forest.into_parts()).ok()?;
        part.sum.filter(|_| part.shares == (0..of))
    }

    fn add(left: &mut f32, right: f32) {
        *left += right;
    }

    /// Sums each group first, as its rank does, and then the groups' parts in order.
    fn grouped(shares: usize, groups: &[Range<usize>], empty: &[usize]) -> Option<f32> {
        let mut all = Vec::new();
        for group in groups {
            let mut own = Forest::new(shares);
            group.clone().for_each(|share| own.push(leaf(share, empty), add));
            all.extend(own.into_parts());
        }
        all.sort_by_key(|part| part.shares.start);
        let mut whole = Forest::new(shares);
        all.into_iter().for_each(|part| whole.push(part, add));
        sum(whole)
    }

    #[test]
    fn every_grouping_gives_the_same_bits() {
        for shares in 1..=9usize {
            for empty in [vec![], vec![0], vec![shares - 1], vec![shares / 2, shares / 3]] {
                let expected = grouped(shares, std::slice::from_ref(&(0..shares)), &empty).map(f32::to_bits);
                // Each bit of `cuts` says whether a group ends after that share.
                for cuts in 0..1usize << (shares - 1) {
                    let mut groups = Vec::new();
                    let mut start = 0;
                    for end in (1..=shares).filter(|&end| end == shares || cuts >> (end - 1) & 1 == 1) {
                        groups.push(start..end);
                        start = end;
                    }
                    let found = grouped(shares, &groups, &empty).map(f32::to_bits);
                    assert_eq!(found, expected, "{groups:?} without {empty:?}");
                    // In any order of the groups, as hosts may hold ranks in turn.
                    groups.reverse();
                    assert_eq!(grouped(shares, &groups, &empty).map(f32::to_bits), expected, "{groups:?}");
                }
            }
        }
    }

    #[test]
    fn the_tree_is_balanced() {
        let text = |shares: usize| {
            let mut forest = Forest::new(shares);
            for share in 0..shares {
                let part = Part { shares: share..share + 1, sum: Some(share.to_string()) };
                forest.push(part, |left: &mut String, right| *left = format!("({left}+{right})"));
            }
            sum(forest).expect("complete")
        };
        assert_eq!(text(4), "((0+1)+(2+3))");
        assert_eq!(text(6), "(((0+1)+(2+3))+(4+5))");
        assert_eq!(text(7), "(((0+1)+(2+3))+((4+5)+6))");
    }

    #[test]
    fn shares_hold_every_micro_batch_once() {
        for (shares, of) in [(1, 5), (4, 4), (4, 3), (4, 10), (8, 3), (3, 0)] {
            let all: Vec<usize> = (0..shares).flat_map(|share| micro_batches(share, shares, of)).collect();
            assert_eq!(all, (0..of).collect::<Vec<_>>(), "{shares} shares of {of}");
        }
        assert_eq!((0..3).map(|rank| shares_of(rank, 3, 6)).collect::<Vec<_>>(), [0..2, 2..4, 4..6]);
    }
}
