//! Divergences from a teacher over chunks of logits, and the teacher's own sums.

use pollster::block_on;
use rullama_train::data::teacher::{TaughtRow, TeacherRows};
use rullama_train::gpu::Gpu;
use rullama_train::ops::argmax::top;
use rullama_train::ops::cross_entropy::Chunk;
use rullama_train::ops::distill::{Distill, Divergence, Lesson, teacher};
use rullama_train::reference::distill::{Taught, backward, forward};

use super::check::{Block, Check, Outcome, Tolerance, UNTOUCHED, run, values, wide};

/// Differences of log-probabilities of up to 100 in f32.
const LOSS: Tolerance = Tolerance { norm: 2e-5, relative: 5e-5, absolute: 1e-5 };
const GRADIENT: Tolerance = Tolerance { norm: 2e-5, relative: 5e-5, absolute: 5e-6 };
/// Sums of exponentials and their logarithms.
const SUMS: Tolerance = Tolerance { norm: 2e-6, relative: 5e-6, absolute: 2e-6 };

/// Rows, vocabulary, tokens of the teacher, size of the logits. All tokens in two: more than a workgroup's threads, and fewer.
const SHAPES: [(usize, usize, usize, f32); 6] = [
    (7, 1003, 64, 10.0),
    (3, 300, 1, 3.0),
    (5, 130, 129, 60.0),
    (4, 130, 130, 10.0),
    (2, 7, 7, 1.0),
    (9, 64, 5, 2.0),
];
const FORMS: [(Divergence, f64); 4] = [
    (Divergence::ForwardKl, 1.0),
    (Divergence::ReverseKl, 2.0),
    (Divergence::Jsd { beta: 0.5 }, 0.9),
    (Divergence::Jsd { beta: 0.9 }, 1.0),
];
/// Rows of other chunks before these.
const BEFORE: usize = 3;

struct Case {
    name: String,
    rows: usize,
    vocab: usize,
    softcap: Option<f32>,
    distill: Distill,
    logits: Vec<f32>,
    targets: Vec<u32>,
    given: TeacherRows,
    taught: Vec<Taught>,
}

/// The distribution of a teacher whose logits are near those of its student.
fn row(logits: &[f32], seed: u64, tokens: usize) -> TaughtRow {
    let noise = values(seed, logits.len());
    let moved: Vec<f32> = logits.iter().zip(noise).map(|(x, noise)| 0.5 * x + noise).collect();
    let sum = moved.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
    let mut all: Vec<(u32, f32)> =
        moved.iter().enumerate().map(|(id, &x)| (id as u32, (f64::from(x) - sum) as f32)).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    let rest = all.split_off(tokens);
    let rest = (!rest.is_empty())
        .then(|| rest.iter().map(|(_, log)| f64::from(*log).exp()).sum::<f64>().ln() as f32);
    TaughtRow { tokens: all, rest }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, (rows, vocab, tokens, size)) in SHAPES.into_iter().enumerate() {
        for (j, (divergence, temperature)) in FORMS.into_iter().enumerate() {
            let softcap = ((i + j) % 3 == 0).then_some(20.0);
            let (weight, sft_weight) = [(1.0, 0.0), (0.75, 0.5)][j % 2];
            let logits: Vec<f32> = values(1, rows * vocab).iter().map(|x| size * x).collect();
            let mut given = TeacherRows::unknown(tokens, tokens == vocab);
            let mut taught = Vec::new();
            for n in 0..rows {
                let row = row(&logits[n * vocab..][..vocab], 10 + n as u64, tokens);
                given.push(row.clone());
                let mut sorted: Vec<u32> = row.tokens.iter().map(|(id, _)| *id).collect();
                sorted.sort_unstable();
                let logs = &given.values[n * (tokens + 1)..][..tokens + 1];
                let listed = sorted.into_iter().zip(logs.iter().map(|log| f64::from(*log))).collect();
                taught.push(Taught { tokens: listed, rest: row.rest.map(|_| f64::from(logs[tokens])) });
            }
            let targets = (0..rows).map(|n| ((n * 77 + 1) * (vocab - 1) % vocab) as u32).collect();
            let distill = Distill { divergence, temperature, weight, sft_weight };
            let name = format!(
                "rows={rows} V={vocab} top={tokens} logits up to {size} {distill:?} softcap={softcap:?}"
            );
            cases.push(Case { name, rows, vocab, softcap, distill, logits, targets, given, taught });
        }
    }
    cases
}

impl Case {
    fn coefficients(&self) -> Vec<f32> {
        (0..self.rows).map(|n| if n % 5 == 4 { -0.3 } else { 0.2 * (1.0 + n as f32) }).collect()
    }

    /// Runs forward, or backward with `coefficients`; returns cross entropies, results, and what then stands in place of the logits.
    fn run(&self, gpu: &Gpu, coefficients: Option<&[f32]>) -> Result<[Vec<f64>; 3], libtest_mimic::Failed> {
        let logits = Block::in_out(gpu, (0, 0), self.vocab, &self.logits);
        // The chunk's rows stand behind others, which must not be read.
        let behind = |per_row: usize| vec![u32::MAX; BEFORE * per_row];
        let targets = gpu.upload("targets", &[behind(1), self.targets.clone()].concat())?;
        let columns = self.given.top + 1;
        let id_columns = if self.given.whole { 1 } else { columns };
        let ids = gpu.upload("ids", &[behind(id_columns), self.given.ids.clone()].concat())?;
        let nan = vec![f32::NAN; BEFORE * columns];
        let given = gpu.upload("teacher", &[nan, self.given.values.clone()].concat())?;
        let places = 2 + self.rows;
        let losses = Block::output(gpu, (0, 0), places.next_multiple_of(4), 1);
        let results = Block::output(gpu, (0, 0), (2 * places).next_multiple_of(4), 1);
        let chunk = Chunk {
            logits: &logits.rows,
            rows: self.rows,
            vocab: self.vocab,
            softcap: self.softcap,
            temperature: 1.0,
            targets: (&targets, BEFORE),
            losses: (&losses.rows.buffer, 2),
        };
        let lesson = Lesson {
            distill: self.distill,
            top: self.given.top,
            ids: &ids,
            values: &given,
            results: &results.rows.buffer,
        };
        let coefficients =
            coefficients.map(|own| gpu.upload("coefficients", &[&[f32::NAN; 2], own].concat()));
        let coefficients = coefficients.transpose()?;
        run(gpu, |rec| match &coefficients {
            None => lesson.forward(rec, &chunk),
            Some(coefficients) => lesson.backward(rec, &chunk, coefficients),
        })?;
        let (losses, results) = (losses.read(gpu, &self.name)?, results.read(gpu, &self.name)?);
        let around = losses[..2].iter().chain(&losses[places..]).chain(&results[..4]);
        if around.clone().any(|&x| x != f64::from(UNTOUCHED)) {
            return Err(format!("distill {}: results of other rows were written", self.name).into());
        }
        Ok([losses[2..places].to_vec(), results[4..2 * places].to_vec(), logits.read(gpu, &self.name)?])
    }

    /// Cross entropies and results.
    fn expected(&self) -> [Vec<f64>; 2] {
        let (logits, cap) = (wide(&self.logits), self.softcap.map(f64::from));
        let rows = forward(&self.distill, &logits, &self.targets, &self.taught, cap, self.vocab);
        let agrees = |n: usize| {
            let own = &self.logits[n * self.vocab..][..self.vocab];
            let first =
                self.given.ids[if self.given.whole { n } else { n * (self.given.top + 1) + self.given.top }];
            let likeliest = own.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(id, _)| id as u32);
            f64::from(u8::from(likeliest == Some(first)))
        };
        let results = rows.iter().enumerate().flat_map(|(n, row)| [row[0], agrees(n)]).collect();
        [rows.iter().map(|row| row[1]).collect(), results]
    }
}

/// Cross entropies, divergences and agreement, forward and backward; gradients of the logits.
pub fn both_ways(gpu: &Gpu) -> Outcome {
    let mut losses = Check::new("distill, losses", LOSS);
    let mut results = Check::new("distill, divergences and agreement", LOSS);
    let mut gradients = Check::new("distill, dlogits", GRADIENT);
    for c in cases() {
        let [entropies, lessons] = c.expected();
        let coefficients = c.coefficients();
        for coefficients in [None, Some(&coefficients[..])] {
            let [found, lesson, logits] = c.run(gpu, coefficients)?;
            losses.close_to(&c.name, 1, &found, &entropies, 10.0)?;
            results.close_to(&c.name, 2, &lesson, &lessons, 1.0)?;
            let Some(coefficients) = coefficients else { continue };
            let expected = backward(
                &c.distill,
                &wide(coefficients),
                &wide(&c.logits),
                &c.targets,
                &c.taught,
                c.softcap.map(f64::from),
                c.vocab,
            );
            gradients.close_to(&c.name, c.vocab, &logits, &expected, 0.1)?;
        }
    }
    losses.done()?;
    results.done()?;
    gradients.done()
}

/// The sums of a teacher's logits: over all tokens, and over those behind the likeliest. Some logits are equal.
pub fn of_teacher(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("distill, sums of the teacher", SUMS);
    for (rows, count, tokens, temperature) in [(3, 1003, 64, 1.0), (5, 130, 1, 2.0), (2, 64, 63, 0.5)] {
        let logits: Vec<f32> = values(1, rows * count).iter().map(|x| (x * 40.0).round() / 4.0).collect();
        let block = Block::input(gpu, (0, 0), count, &logits);
        let targets = gpu.upload("targets", &vec![0u32; rows + 1])?;
        let results = gpu.buffer("results", (4 * (rows + 1) * top::words(tokens)) as u64)?;
        let sums = gpu.buffer("sums", (8 * (rows + 1)) as u64)?;
        run(gpu, |rec| {
            top::forward(rec, &block.rows, count, &targets, &results, 1, tokens, rows);
            let found =
                teacher::Found { values: &block.rows, count, results: &results, top: tokens, first: 1 };
            teacher::forward(rec, &found, temperature, &sums, rows);
        })?;
        let found = block_on(gpu.read::<f32>(&sums, 2 * (rows + 1)))?;
        let mut expected = Vec::new();
        for row in logits.chunks(count) {
            let mut sorted: Vec<f64> = row.iter().map(|&x| f64::from(x) / temperature).collect();
            sorted.sort_by(|a, b| b.total_cmp(a));
            let log_sum = |x: &[f64]| x.iter().map(|x| x.exp()).sum::<f64>().ln();
            expected.extend([log_sum(&sorted), log_sum(&sorted[tokens..])]);
        }
        let name = format!("rows={rows} V={count} top={tokens} temperature={temperature}");
        check.close_to(&name, 2, &wide(&found[2..]), &expected, 10.0)?;
    }
    check.done()
}
