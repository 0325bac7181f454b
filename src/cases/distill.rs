//! Divergences from a teacher over chunks of logits.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::cross_entropy::{SOFTCAP, targets};
use super::inputs::{values, wide};
use super::tolerance::Tolerance;
use crate::data::teacher::{TaughtRow, TeacherRows};
use crate::gpu::GpuError;
use crate::ops::argmax::top;
use crate::ops::distill::teacher::{self, Found};
use crate::ops::distill::{Distill, Divergence, Lesson};
use crate::ops::row_status::Chunk;
use crate::reference::distill::{Taught, backward, forward};

/// Differences of log-probabilities of up to 100 in f32.
const LOSS: Tolerance = Tolerance::new(2e-5, 5e-5, 1e-5);
const GRADIENT: Tolerance = Tolerance::new(2e-5, 5e-5, 5e-6);

/// Sums of exponentials and their logarithms.
const SUMS: Tolerance = Tolerance::new(2e-6, 5e-6, 2e-6);

/// A divergence, the temperature, the weights of the divergence and of the cross entropy, and the softcap.
type Form = (Divergence, f64, [f64; 2], Option<f32>);

const FORMS: &[Form] = &[
    (Divergence::ForwardKl, 1.5, [0.75, 0.25], None),
    (Divergence::ReverseKl, 1.5, [0.75, 0.25], Some(SOFTCAP)),
    (Divergence::Jsd { beta: 0.5 }, 1.5, [0.75, 0.25], None),
];
const MORE_FORMS: &[Form] = &[
    (Divergence::ForwardKl, 1.0, [1.0, 0.0], Some(20.0)),
    (Divergence::ForwardKl, 1.0, [1.0, 0.0], None),
    (Divergence::ReverseKl, 2.0, [0.75, 0.5], Some(20.0)),
    (Divergence::ReverseKl, 2.0, [0.75, 0.5], None),
    (Divergence::Jsd { beta: 0.5 }, 0.9, [1.0, 0.0], Some(20.0)),
    (Divergence::Jsd { beta: 0.5 }, 0.9, [1.0, 0.0], None),
    (Divergence::Jsd { beta: 0.9 }, 1.0, [0.75, 0.5], Some(20.0)),
    (Divergence::Jsd { beta: 0.9 }, 1.0, [0.75, 0.5], None),
];
/// Rows of other chunks before these: of targets and of the teacher, and of results.
const BEFORE: [usize; 2] = [3, 2];

pub const CASES: [Case; 2] = [
    Case {
        op: "distill",
        name: "divergences from a teacher",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes {
            // More tokens than a workgroup's threads, no multiple of 4.
            small: &[(7, 1003, 70, 10.0, FAR, FORMS)],
            // All tokens in two: more than a workgroup's threads, and fewer.
            more: &[
                (7, 1003, 64, 10.0, NEAR, MORE_FORMS),
                (3, 300, 1, 3.0, NEAR, MORE_FORMS),
                (5, 130, 129, 60.0, NEAR, MORE_FORMS),
                (4, 130, 130, 10.0, NEAR, MORE_FORMS),
                (2, 7, 7, 1.0, NEAR, MORE_FORMS),
                (9, 64, 5, 2.0, NEAR, MORE_FORMS),
            ],
            check: lessons,
        },
    },
    Case {
        op: "distill",
        name: "sums of the teacher",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes {
            small: &[],
            more: &[(3, 1003, 64, 1.0), (5, 130, 1, 2.0), (2, 64, 63, 0.5)],
            check: sums_of_teacher,
        },
    },
];

/// Rows, vocabulary, tokens of the teacher, size of the logits, the teacher's likeness, and forms.
type Shape = (usize, usize, usize, f32, Likeness, &'static [Form]);

/// Factors of the student's logits and of noise, whose sum is the teacher's logits.
type Likeness = [f32; 2];

const NEAR: Likeness = [0.5, 1.0];
const FAR: Likeness = [0.0, 4.0];

/// Cross entropies, divergences and agreement, forward and backward; gradients of the logits.
fn lessons(b: &mut Bench, &(rows, vocab, top, size, likeness, forms): &Shape) -> Result<(), GpuError> {
    let logits: Vec<f32> = values(1, rows * vocab).iter().map(|x| size * x).collect();
    let (given, taught) = teacher(&logits, vocab, top, likeness);
    let targets = targets(rows, vocab);
    let own = Lessons { rows, vocab, logits, targets, given, taught };
    for &(divergence, temperature, [weight, sft_weight], softcap) in forms {
        let distill = Distill { divergence, temperature, weight, sft_weight };
        own.check(b, &distill, softcap, false)?;
        own.check(b, &distill, softcap, true)?;
    }
    Ok(())
}

/// The distributions of a teacher.
fn teacher(
    logits: &[f32],
    vocab: usize,
    top: usize,
    [of_student, of_noise]: Likeness,
) -> (TeacherRows, Vec<Taught>) {
    let (mut given, mut taught) = (TeacherRows::unknown(top, top == vocab), Vec::new());
    for (n, logits) in logits.chunks(vocab).enumerate() {
        let noise = values(10 + n as u64, vocab);
        let moved: Vec<f32> =
            logits.iter().zip(noise).map(|(x, noise)| of_student * x + of_noise * noise).collect();
        let sum = moved.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
        let log = |(id, &x): (usize, &f32)| (id as u32, (f64::from(x) - sum) as f32);
        let mut tokens: Vec<(u32, f32)> = moved.iter().enumerate().map(log).collect();
        tokens.sort_by(|a, b| b.1.total_cmp(&a.1));
        let others = tokens.split_off(top);
        let rest = others.iter().map(|(_, log)| f64::from(*log).exp()).sum::<f64>().ln() as f32;
        let mut sorted: Vec<u32> = tokens.iter().map(|(id, _)| *id).collect();
        sorted.sort_unstable();
        let rest = (!others.is_empty()).then_some(rest);
        given.push(TaughtRow { tokens, rest });
        let logs = &given.values[n * (top + 1)..][..top + 1];
        let listed = sorted.into_iter().zip(logs.iter().map(|log| f64::from(*log))).collect();
        taught.push(Taught { tokens: listed, rest: rest.map(|_| f64::from(logs[top])) });
    }
    (given, taught)
}

/// A chunk of logits and what a teacher gives for them.
struct Lessons {
    rows: usize,
    vocab: usize,
    logits: Vec<f32>,
    targets: Vec<u32>,
    given: TeacherRows,
    taught: Vec<Taught>,
}

impl Lessons {
    /// Losses and divergences; with gradients, those in place of the logits too.
    fn check(
        &self,
        b: &mut Bench,
        distill: &Distill,
        softcap: Option<f32>,
        gradients: bool,
    ) -> Result<(), GpuError> {
        let Lessons { rows, vocab, ref given, .. } = *self;
        let block = b.in_out(vocab, &self.logits)?;
        let [behind, first] = BEFORE;
        // Rows of others stand before the chunk's, which must not be read.
        let before = |per_row: usize| vec![u32::MAX; behind * per_row];
        let columns = given.top + 1;
        let targets = b.gpu.upload("case", &[before(1), self.targets.clone()].concat())?;
        let of_ids = before(if given.whole { 1 } else { columns });
        let ids = b.gpu.upload("case", &[of_ids, given.ids.clone()].concat())?;
        let nan = vec![f32::NAN; behind * columns];
        let logs = b.gpu.upload("case", &[nan, given.values.clone()].concat())?;
        let losses = b.output((first + rows).next_multiple_of(4), 1)?;
        let results = b.output((2 * (first + rows)).next_multiple_of(4), 1)?;
        let coefficients = [vec![f32::NAN; first], self.coefficients()].concat();
        let factors = b.gpu.upload("case", &coefficients)?;
        let chunk = Chunk {
            logits: block.rows(),
            rows,
            vocab,
            softcap,
            temperature: 1.0,
            targets: (&targets, behind),
            losses: (&losses.rows().buffer, first),
        };
        let (top, results_at) = (given.top, &results.rows().buffer);
        let lesson = Lesson { distill: *distill, top, ids: &ids, values: &logs, results: results_at };
        b.run(|rec| match gradients {
            false => lesson.forward(rec, &chunk),
            true => lesson.backward(rec, &chunk, &factors),
        })?;
        if !b.compares() {
            return Ok(());
        }
        let name =
            |what: &str| format!("{what}, [{rows}, {vocab}] top={top} {distill:?} softcap={softcap:?}");
        let (logits, cap) = (wide(&self.logits), softcap.map(f64::from));
        let expected = forward(distill, &logits, &self.targets, &self.taught, cap, vocab);
        let entropies = expected.iter().map(|row| row[1]).collect();
        let lessons = expected.iter().enumerate().flat_map(|(n, row)| [row[0], self.agrees(n)]).collect();
        b.expect_behind(name("losses"), &losses, first, entropies, LOSS.around(10.0));
        b.expect_behind(name("divergences"), &results, 2 * first, lessons, LOSS.around(1.0));
        if gradients {
            let factors = wide(&coefficients[first..]);
            let dlogits = backward(distill, &factors, &logits, &self.targets, &self.taught, cap, vocab);
            b.expect(name("gradients"), &block, dlogits, GRADIENT.around(0.1));
        }
        Ok(())
    }

    fn coefficients(&self) -> Vec<f32> {
        (0..self.rows).map(|n| if n % 5 == 4 { -0.3 } else { 0.2 * (1.0 + n as f32) }).collect()
    }

    /// Whether the likeliest token of row `n` is the teacher's.
    fn agrees(&self, n: usize) -> f64 {
        let own = &self.logits[n * self.vocab..][..self.vocab];
        let TeacherRows { ref ids, top, whole, .. } = self.given;
        let first = if whole { ids[n] } else { ids[n * (top + 1) + top] };
        let likeliest = own.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(id, _)| id as u32);
        f64::from(u8::from(likeliest == Some(first)))
    }
}

/// The sums of a teacher's logits: over all tokens, and over those behind the likeliest. Some logits are equal. Rows, vocabulary, likeliest
/// tokens, temperature.
fn sums_of_teacher(b: &mut Bench, shape: &(usize, usize, usize, f64)) -> Result<(), GpuError> {
    let &(rows, count, tokens, temperature) = shape;
    let logits: Vec<f32> = values(1, rows * count).iter().map(|x| (x * 40.0).round() / 4.0).collect();
    let block = b.input(count, &logits)?;
    let targets = b.gpu.upload("case", &vec![0u32; rows + 1])?;
    let results = b.gpu.buffer("case", (4 * (rows + 1) * top::words(tokens)) as u64)?;
    let sums = b.gpu.buffer("case", (8 * (rows + 1)) as u64)?;
    b.run(|rec| {
        top::forward(rec, block.rows(), count, &targets, &results, 1, tokens, rows);
        let found = Found { values: block.rows(), count, results: &results, top: tokens, first: 1 };
        teacher::forward(rec, &found, temperature, &sums, rows);
    })?;
    let of_row = |row: &[f32]| {
        let mut sorted: Vec<f64> = row.iter().map(|&x| f64::from(x) / temperature).collect();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let log_sum = |x: &[f64]| x.iter().map(|x| x.exp()).sum::<f64>().ln();
        [log_sum(&sorted), log_sum(&sorted[tokens..])]
    };
    let expected = logits.chunks(count).flat_map(of_row).collect();
    b.expect_from(&format!("{shape:?}"), &sums, 2, expected, SUMS.around(10.0));
    Ok(())
}
