//! Replies that do not end as they should: in a loop, or at their limit.

use serde::{Deserialize, Serialize};

use super::generate::{Finish, Reply};

/// Copies of a text at the end of a reply that make a loop.
const COPIES: usize = 3;
/// Tokens that a loop covers at least: three words may be said three times.
const LEAST: usize = 8;

/// A fault at the end of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It repeats itself: see [`period`].
    Loop,
    /// It was cut off at its limit of tokens.
    Limit,
}

impl Ending {
    /// The fault of a reply; `None` for one that ended by itself without repeating itself, or that the caller cancelled.
    pub fn of(reply: &Reply) -> Option<Ending> {
        match reply.finish {
            Finish::Cancelled => None,
            _ if period(&reply.ids).is_some() => Some(Ending::Loop),
            Finish::Length | Finish::Context => Some(Ending::Limit),
            Finish::Stop => None,
        }
    }

    /// The fault in words, behind the reply.
    pub fn text(self) -> &'static str {
        match self {
            Ending::Loop => "repeats itself",
            Ending::Limit => "cut off at the limit",
        }
    }
}

/// The least number of tokens after which the end of a reply repeats. Its last tokens are then at least three copies of one text, which may
/// begin anywhere in it, and at least eight tokens.
pub fn period(ids: &[u32]) -> Option<usize> {
    let repeats = |period: &usize| {
        let covered = (COPIES * period).max(LEAST);
        let Some(from) = ids.len().checked_sub(covered) else { return false };
        (from + period..ids.len()).all(|i| ids[i] == ids[i - period])
    };
    (1..=ids.len() / COPIES).find(repeats)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(ids: &[u32], finish: Finish) -> Reply {
        Reply { ids: ids.to_vec(), finish, ..Reply::cancelled(1) }
    }

    #[test]
    fn a_loop_is_three_copies_and_eight_tokens() {
        let after =
            |start: &[u32], copy: &[u32], copies: usize| period(&[start, &copy.repeat(copies)].concat());
        assert_eq!(after(&[1, 2, 3], &[9], 8), Some(1), "one word");
        assert_eq!(after(&[], &[9], 7), None, "too few tokens");
        assert_eq!(after(&[1], &[5, 6], 4), Some(2));
        assert_eq!(after(&[1], &[5, 6], 3), None);
        assert_eq!(after(&[1, 2], &[5, 6, 7, 8, 4], 3), Some(5), "a sentence");
        assert_eq!(after(&[1, 2], &[5, 6, 7, 8, 4], 2), None, "said twice");
        // The limit may cut the last copy.
        let cut = [&[1, 2][..], &[5, 6, 7, 8].repeat(4), &[5, 6]].concat();
        assert_eq!(period(&cut), Some(4));
        assert_eq!(period(&[7, 7, 7, 7, 7, 7, 7, 7, 7, 1]), None, "it went on");
        assert_eq!(period(&(0..100).collect::<Vec<_>>()), None);
        assert_eq!(period(&[]), None);
    }

    #[test]
    fn a_loop_counts_more_than_the_limit() {
        let (plain, looping) = ([1, 2, 3, 4, 5, 6, 7, 8, 9], [4; 9]);
        assert_eq!(Ending::of(&reply(&plain, Finish::Stop)), None);
        assert_eq!(Ending::of(&reply(&plain, Finish::Length)), Some(Ending::Limit));
        assert_eq!(Ending::of(&reply(&plain, Finish::Context)), Some(Ending::Limit));
        assert_eq!(Ending::of(&reply(&looping, Finish::Length)), Some(Ending::Loop));
        assert_eq!(Ending::of(&reply(&looping, Finish::Stop)), Some(Ending::Loop), "it ended, but too late");
        assert_eq!(Ending::of(&reply(&looping, Finish::Cancelled)), None);
    }
}
