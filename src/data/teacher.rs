//! A teacher's distributions for the loss rows of a micro-batch.

/// Log-probability of a token that never occurs; its exponential is 0 in f32.
const NEVER: f32 = -1e30;

/// The teacher's likeliest tokens of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct TaughtRow {
    /// Tokens and their log-probabilities, likeliest first.
    pub tokens: Vec<(u32, f32)>,
    /// Log-probability of all other tokens together; `None` if there are none.
    pub rest: Option<f32>,
}

/// The teacher's distributions for the loss rows of a micro-batch, in the order that the kernel reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TeacherRows {
    /// Tokens per row.
    pub top: usize,
    /// Whether these are all tokens of the student's vocabulary.
    pub whole: bool,
    /// Ids in ascending order, and behind them that of the likeliest, `[N, top + 1]`; `[N]`, the likeliest alone, where the tokens are all.
    /// Empty before the teacher is known.
    pub ids: Vec<u32>,
    /// Log-probabilities in the same order, and behind them that of all other tokens, `[N, top + 1]`.
    pub values: Vec<f32>,
}

impl TeacherRows {
    /// Room for rows of a teacher that is not known yet: it is even.
    pub fn unknown(top: usize, whole: bool) -> TeacherRows {
        TeacherRows { top, whole, ..TeacherRows::default() }
    }

    /// Bytes of a row on the device.
    pub fn row_bytes(&self) -> usize {
        4 * (self.top + 1 + if self.whole { 1 } else { self.top + 1 })
    }

    /// Adds a row, whose probabilities are made to add up to 1.
    pub fn push(&mut self, row: TaughtRow) {
        let first = row.tokens.first().map_or(0, |(id, _)| *id);
        let logs = row.tokens.iter().map(|(_, log)| *log).chain(row.rest);
        let sum: f64 = logs.map(|log| f64::from(log).exp()).sum();
        let norm = sum.ln();
        let normed = |log: f32| (f64::from(log) - norm) as f32;
        let mut tokens = row.tokens;
        tokens.sort_unstable_by_key(|(id, _)| *id);
        if !self.whole {
            self.ids.extend(tokens.iter().map(|(id, _)| id));
        }
        self.ids.push(first);
        self.values.extend(tokens.iter().map(|(_, log)| normed(*log)));
        self.values.push(row.rest.map_or(NEVER, normed));
    }

    /// The rows of `rows` loss rows: these, or even ones if the teacher is not known yet.
    pub fn known(&self, rows: usize) -> TeacherRows {
        if !self.values.is_empty() || rows == 0 {
            return self.clone();
        }
        let mut even = TeacherRows::unknown(self.top, self.whole);
        let tokens: Vec<(u32, f32)> = (0..self.top as u32).map(|id| (id, 0.0)).collect();
        let row = TaughtRow { tokens, rest: (!self.whole).then_some(0.0) };
        (0..rows).for_each(|_| even.push(row.clone()));
        even
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_and_add_up() {
        let mut rows = TeacherRows::unknown(2, false);
        rows.push(TaughtRow { tokens: vec![(7, -0.5), (3, -1.5)], rest: Some(-2.5) });
        assert_eq!(rows.ids, [3, 7, 7]);
        let sum: f64 = rows.values.iter().map(|log| f64::from(*log).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert!((rows.values[1] - rows.values[0] - 1.0).abs() < 1e-6, "{:?}", rows.values);
        assert_eq!(rows.row_bytes(), 24);
    }

    #[test]
    fn whole_rows_have_one_id() {
        let mut rows = TeacherRows::unknown(3, true);
        rows.push(TaughtRow { tokens: vec![(2, -0.1), (0, -3.0), (1, -4.0)], rest: None });
        assert_eq!((rows.ids.as_slice(), rows.values.len()), (&[2][..], 4));
        assert_eq!(rows.values[3].exp(), 0.0);
        let even = TeacherRows::unknown(3, true).known(2);
        assert_eq!((even.ids.len(), even.values.len()), (2, 8));
    }
}
