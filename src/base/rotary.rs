//! Rotary embedding: the order of rows, YaRN, and factors on the result.

/// The order of the rows of heads in files that have the two rows of a rotary pair side by side: rows `i` and `i + n/2` of a head lie at
/// `2·i` and `2·i + 1`, where `n` rows of each head turn. Where these are the last of a head in files, both lie behind the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interleaved {
    /// Rows `K` of a head.
    pub head_size: usize,
    /// Leading rows `n` of a head that turn, in memory.
    pub turned: usize,
    /// Whether files have them behind the others. Else the others keep their places.
    pub behind: bool,
}

impl Interleaved {
    /// Heads of `head_size` rows, all of which turn.
    pub fn whole(head_size: usize) -> Interleaved {
        Interleaved { head_size, turned: head_size, behind: false }
    }

    /// The row of the file that holds row `row` of memory.
    pub fn stored(self, row: usize) -> usize {
        let (first, i, half) = self.place(row);
        let others = if self.behind { self.head_size - self.turned } else { 0 };
        match i < self.turned {
            true => first + others + 2 * (i % half) + i / half,
            false if self.behind => row - self.turned,
            false => row,
        }
    }

    /// Undoes [`Interleaved::stored`].
    pub fn in_memory(self, stored: usize) -> usize {
        let (first, i, half) = self.place(stored);
        let others = if self.behind { self.head_size - self.turned } else { 0 };
        match i.checked_sub(others) {
            Some(i) if i < self.turned => first + i / 2 + i % 2 * half,
            None => stored + self.turned,
            Some(_) => stored,
        }
    }

    /// The first row of a row's head, the row's number in it, and half of the rows that turn.
    fn place(self, row: usize) -> (usize, usize, usize) {
        let i = row % self.head_size;
        (row - i, i, self.turned / 2)
    }
}

/// LongRoPE (Ding et al. 2024, arXiv:2402.13753): divisors of the rotary frequencies for sequences beyond the context of the first training.
/// llama.cpp takes them by the size of its context, transformers by the length of each sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    /// `rope_factors_long.weight`, one per pair.
    pub factors: Vec<f32>,
    /// Tokens up to which the usual factors hold (`rope.scaling.original_context_length`).
    pub original_context: usize,
}

/// A rotary embedding with a factor on its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// `[K/2]`, in radians per position.
    pub frequencies: Vec<f64>,
    /// The factor.
    pub scale: f64,
    /// One more factor, by position.
    pub growth: Option<QueryGrowth>,
}

impl Rotary {
    /// The factor on the result at a position.
    pub fn factor(&self, position: usize) -> f64 {
        self.scale * self.growth.map_or(1.0, |growth| growth.factor(position))
    }
}

/// Queries that grow beyond the context of the first training: the one at position `p` by `1 + β·ln(1 + ⌊p/C⌋)`.
///
/// Source: llama.cpp `src/models/mistral3.cpp`, transformers' `llama_4_scaling_beta`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    /// `β` (`attention.temperature_scale`).
    pub beta: f64,
    /// `C` (`rope.scaling.original_context_length`).
    pub original_context: usize,
}

impl QueryGrowth {
    /// The factor on a query at `position`.
    pub fn factor(&self, position: usize) -> f64 {
        1.0 + self.beta * ((1 + position / self.original_context) as f64).ln()
    }
}

/// YaRN (Peng et al. 2023, arXiv:2309.00071): slow rotations are stretched, fast ones stay, and scores grow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Factor on the context (`rope.scaling.factor`).
    pub factor: f64,
    /// Tokens of the context before (`rope.scaling.original_context_length`).
    pub original_context: f64,
    /// Pairs that turn this often within the original context, or more often, stay (`yarn_beta_fast`).
    pub beta_fast: f64,
    /// Pairs that turn this often, or less often, are stretched by the whole factor (`yarn_beta_slow`).
    pub beta_slow: f64,
    /// Whether the bounds are rounded to whole pairs, the range between them grows.
    pub whole: bool,
    /// Factor on rotated queries, and on rotated keys.
    pub scale: f64,
}

impl Yarn {
    /// The divisor of the frequency of pair `pair` in heads of `size` values, of which the base is `base`.
    ///
    /// Between the two bounds it is interpolated. They are fractions of pairs or `whole` ones: `truncate` in transformers. llama.cpp
    /// always rounds them.
    pub(super) fn divisor(&self, pair: usize, size: usize, base: f64) -> f64 {
        let turns = |turns: f64| {
            let radians = self.original_context / (turns * 2.0 * std::f64::consts::PI);
            size as f64 * radians.ln() / (2.0 * base.ln())
        };
        let (first, last) = (turns(self.beta_fast), turns(self.beta_slow));
        let (first, last) = if self.whole { (first.floor(), last.ceil()) } else { (first, last) };
        let (first, last) = (first.max(0.0), last.min(size as f64 - 1.0));
        let stretched = ((pair as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0);
        1.0 / (stretched / self.factor + (1.0 - stretched))
    }

    /// The usual [`Yarn::scale`] of a factor on the context.
    pub fn usual_scale(factor: f64) -> f64 {
        Yarn::scale_by(factor, 1.0)
    }

    /// The scale that grows `slope` times as fast as usual.
    pub fn scale_by(factor: f64, slope: f64) -> f64 {
        0.1 * slope * factor.max(1.0).ln() + 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_turn_alternate_in_files() {
        let order = Interleaved { head_size: 6, turned: 4, behind: false };
        assert_eq!(std::array::from_fn(|row| order.stored(row)), [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]);
        let behind = Interleaved { behind: true, ..order };
        assert_eq!(std::array::from_fn(|row| behind.stored(row)), [2, 4, 3, 5, 0, 1, 8, 10, 9, 11, 6, 7]);
        for order in [order, behind, Interleaved::whole(6)] {
            assert!((0..12).all(|row| order.in_memory(order.stored(row)) == row), "{order:?}");
        }
    }

    /// transformers' `ROPE_INIT_FUNCTIONS["yarn"]` for gpt-oss-20b, every third pair: of these, only 9 to 15 lie between the bounds.
    #[test]
    fn yarn_is_that_of_transformers() {
        let yarn = Yarn {
            factor: 32.0,
            original_context: 4096.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            whole: false,
            scale: 1.0,
        };
        let found: Vec<f64> = (0..32)
            .step_by(3)
            .map(|i| 150_000f64.powf(-2.0 * i as f64 / 64.0) / yarn.divisor(i, 64, 150_000.0))
            .collect();
        let expected = [
            1.0,
            3.271_458_7e-1,
            1.070_244_2e-1,
            3.170_569_6e-2,
            6.794_959_3e-3,
            1.052_602_2e-3,
            3.830_881_2e-5,
            1.253_257_0e-5,
            4.099_978_5e-6,
            1.341_291_0e-6,
            4.387_978_5e-7,
        ];
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (found / expected - 1.0f64).abs();
            assert!(error < 1e-6, "pair {}: expected {expected:e}, found {found:e}", 3 * i);
        }
        assert!((Yarn::usual_scale(32.0) - 1.346_573_590_279_972_7).abs() < 1e-12);
        // Qwen 3 with four times its context: the bounds are whole pairs.
        let yarn = Yarn {
            factor: 4.0,
            original_context: 32_768.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            whole: true,
            scale: 1.0,
        };
        for (i, expected) in [
            (16, 3.162_277_9e-2),
            (24, 5.375_321_5e-3),
            (28, 1.848_276_6e-3),
            (32, 6.029_411_5e-4),
            (36, 1.798_411_5e-4),
            (40, 4.445_698_5e-5),
            (56, 1.405_853_4e-6),
        ] {
            let found = 1e6f64.powf(-2.0 * f64::from(i) / 128.0) / yarn.divisor(i as usize, 128, 1e6);
            assert!(
                (found / expected - 1.0f64).abs() < 1e-6,
                "pair {i}: expected {expected:e}, found {found:e}"
            );
        }
        assert!((Yarn::usual_scale(4.0) - 1.138_629_436_111_989).abs() < 1e-12);
    }
}
