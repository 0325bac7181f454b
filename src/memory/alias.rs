//! Memory that attention's backward borrows: the feed-forward block and the experts need theirs no longer by then.

/// Which of the free buffers, by their place in a list, attention's backward works in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// Buffers for the gradients of the queries, of attention's output, and of keys or values by query head; `None` where
    /// they need memory of their own.
    pub rows: [Option<usize>; 3],
    /// Memory for scores.
    pub scores: ScorePlace,
}

/// Buffers in which attention's backward leaves weights and the gradients of scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScorePlace {
    /// In two buffers, so many bytes of each.
    Two([usize; 2], u64),
    /// In the buffer `(index, offset, bytes)`, after the gradients that it holds.
    Behind(usize, u64, u64),
    /// In so many bytes of their own.
    Own(u64),
}

impl Lent {
    /// Chooses among free buffers of `sizes` bytes: each gradient takes `rows` bytes, the scores `least` or more, in bindings of
    /// at most `binding` bytes.
    pub fn new(sizes: &[u64], rows: u64, least: u64, binding: u64) -> Lent {
        let mut by_size: Vec<usize> = (0..sizes.len()).collect();
        by_size.sort_by_key(|&i| sizes[i]);
        let mut fit = by_size.iter().copied().filter(|&i| sizes[i] >= rows);
        let taken = [fit.next(), fit.next(), fit.next()];
        let free: Vec<usize> = by_size.iter().copied().filter(|&i| !taken.contains(&Some(i))).collect();
        let behind = rows.next_multiple_of(256);
        let room = |i: usize| sizes[i].saturating_sub(behind).min(binding);
        let largest = taken.into_iter().flatten().last();
        let scores = match (&free[..], largest) {
            ([.., a, b], _) if 2 * sizes[*a].min(binding) >= least => {
                ScorePlace::Two([*a, *b], sizes[*a].min(binding))
            }
            (_, Some(i)) if room(i) >= least => ScorePlace::Behind(i, behind, room(i)),
            _ => ScorePlace::Own(least),
        };
        Lent { rows: taken, scores }
    }

    /// Bytes of memory that is not borrowed, where each gradient takes `rows`.
    pub fn own(&self, rows: u64) -> u64 {
        let of_rows = self.rows.iter().filter(|lent| lent.is_none()).count() as u64 * rows;
        match self.scores {
            ScorePlace::Own(bytes) => of_rows + bytes,
            _ => of_rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Lent, ScorePlace};

    #[test]
    fn the_smallest_that_fit_hold_the_gradients_and_the_largest_of_the_others_the_scores() {
        let lent = |sizes: &[u64], least| Lent::new(sizes, 1000, least, 1 << 20);
        let all = lent(&[4000, 2000, 2000, 4000, 4000], 8000);
        assert_eq!(all.rows, [Some(1), Some(2), Some(0)]);
        assert_eq!((all.scores, all.own(1000)), (ScorePlace::Two([3, 4], 4000), 0));
        let small = lent(&[1500, 700, 700, 1500, 1500], 1400);
        assert_eq!(small.rows, [Some(0), Some(3), Some(4)]);
        assert_eq!(small.scores, ScorePlace::Two([1, 2], 700));
        let kept = lent(&[4000, 2000, 2000], 2000);
        assert_eq!(kept.scores, ScorePlace::Behind(0, 1024, 2976));
        assert_eq!(lent(&[4000, 2000, 2000], 3000).scores, ScorePlace::Own(3000));
        let none = lent(&[900, 500, 500], 1100);
        assert_eq!((none.rows, none.scores), ([None; 3], ScorePlace::Own(1100)));
        assert_eq!(none.own(1000), 4100);
    }
}
