//! The status of rows: right, wrong or not finite, and the optimizer's handling of rows that are not finite.

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::gpu::{Gpu, Recorder};
use rullama_train::ops::adamw::{Clip, ClipState};
use rullama_train::ops::cross_entropy::Chunk;
use rullama_train::ops::cross_entropy::coop16 as coop_cross_entropy;
use rullama_train::ops::pack::Packed;
use rullama_train::ops::row_status as verdict;
use rullama_train::ops::row_status::{NOT_FINITE, RIGHT, Verdicts, WRONG};
use rullama_train::reference;

use super::check::{Block, Outcome, run, values, wide};

/// The status around the rows of the chunk.
const AROUND: u32 = 77;
const BEFORE: usize = 3;

/// Rows, width, vocabulary: one, less than a workgroup, not multiples of 64, several values per thread, more rows than one dimension may have.
const SHAPES: [(usize, usize, usize); 6] =
    [(1, 4, 1), (7, 60, 5), (65, 256, 1003), (17, 64, 5003), (130, 1536, 64), (70_001, 4, 3)];

/// Shapes for the kernels that compute losses, too.
const WHOLE_VEC4S: [(usize, usize, usize); 5] =
    [(1, 4, 4), (7, 60, 8), (65, 256, 1004), (17, 64, 5004), (130, 1536, 64)];

/// The kernel that writes the status.
type Dispatch = fn(&mut Recorder, &Chunk, &Verdicts, &Packed);

fn alone(rec: &mut Recorder, chunk: &Chunk, verdicts: &Verdicts, _: &Packed) {
    verdict::rows(rec, chunk, verdicts);
}

fn with_losses(rec: &mut Recorder, chunk: &Chunk, verdicts: &Verdicts, _: &Packed) {
    coop_cross_entropy::forward(rec, chunk, verdicts);
}

fn with_gradients(rec: &mut Recorder, chunk: &Chunk, verdicts: &Verdicts, dlogits: &Packed) {
    // The status of a row does not depend on its coefficient.
    let coefficients = rec.gpu().buffer("coefficients", (4 * chunk.rows) as u64).expect("it is small");
    coop_cross_entropy::backward(rec, chunk, verdicts, dlogits, &coefficients);
}

/// Changes the hidden states and logits.
type Spoil = fn(&mut [f32], &mut [f32]);

struct Case {
    rows: usize,
    width: usize,
    vocab: usize,
    hidden: Vec<f32>,
    logits: Vec<f32>,
    targets: Vec<u32>,
}

impl Case {
    fn new((rows, width, vocab): (usize, usize, usize)) -> Case {
        // Few different values, so that some are equal.
        let logits: Vec<f32> = values(1, rows * vocab).iter().map(|x| (x * 20.0).round()).collect();
        let largest = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("one");
        // One row in four has any target, one the last of the largest values, and two the first of them.
        let target = |(n, row): (usize, &[f32])| match n % 4 {
            0 => n * 7 % vocab,
            1 => largest(row),
            _ => row.iter().position(|&z| z == row[largest(row)]).expect("one"),
        };
        let targets = logits.chunks(vocab).enumerate().map(|row| target(row) as u32).collect();
        Case { rows, width, vocab, hidden: values(2, rows * width), logits, targets }
    }

    fn run(&self, gpu: &Gpu, dispatch: Dispatch) -> Result<Vec<u32>, Failed> {
        let hidden = Block::input(gpu, (0, 0), self.width, &self.hidden);
        let logits = Block::input(gpu, (0, 0), self.vocab, &self.logits);
        let targets = [&[u32::MAX; 2][..], &self.targets].concat();
        let targets = gpu.upload("targets", &targets)?;
        let losses = gpu.buffer("losses", (self.rows * 4) as u64)?;
        let verdicts = gpu.upload("verdicts", &vec![AROUND; BEFORE + self.rows + 2])?;
        let chunk = Chunk {
            logits: &logits.rows,
            rows: self.rows,
            vocab: self.vocab,
            softcap: None,
            temperature: 1.0,
            targets: (&targets, 2),
            losses: (&losses, 0),
        };
        let packed = Packed::new(gpu, "dlogits", self.rows, self.vocab)?;
        let judged = Verdicts { hidden: &hidden.rows, buffer: (&verdicts, BEFORE) };
        run(gpu, |rec| dispatch(rec, &chunk, &judged, &packed))?;
        let found: Vec<u32> = block_on(gpu.read(&verdicts, BEFORE + self.rows + 2))?;
        let (before, rest) = found.split_at(BEFORE);
        let (own, after) = rest.split_at(self.rows);
        if before.iter().chain(after).any(|&v| v != AROUND) {
            return Err("verdicts of other rows were written".into());
        }
        Ok(own.to_vec())
    }
}

/// Right and wrong against the reference, equal logits included.
pub fn top1(gpu: &Gpu) -> Outcome {
    compare(gpu, &SHAPES, alone)
}

/// As above, by the kernels that compute losses and gradients, too.
pub fn top1_with_gradients(gpu: &Gpu) -> Outcome {
    compare(gpu, &WHOLE_VEC4S, with_losses)?;
    compare(gpu, &WHOLE_VEC4S, with_gradients)
}

fn compare(gpu: &Gpu, shapes: &[(usize, usize, usize)], dispatch: Dispatch) -> Outcome {
    for &shape in shapes {
        let case = Case::new(shape);
        let right = reference::verdict::right(&wide(&case.logits), &case.targets, case.vocab);
        let expected: Vec<u32> = right.iter().map(|&r| if r { RIGHT } else { WRONG }).collect();
        let found = case.run(gpu, dispatch)?;
        if let Some(row) = (0..case.rows).find(|&n| found[n] != expected[n]) {
            return Err(
                format!("{shape:?}, row {row}: expected {}, found {}", expected[row], found[row]).into()
            );
        }
        let both = [RIGHT, WRONG].map(|v| expected.contains(&v));
        if case.rows > 4 && both != [true, true] {
            return Err(format!("{shape:?}: the case has only one kind of row").into());
        }
    }
    Ok(())
}

/// One value that is not finite, or a sum of squares that exceeds f32, is reported in its row and in no other.
pub fn lost_rows(gpu: &Gpu) -> Outcome {
    lose(gpu, 1003, alone)
}

/// As above, by the kernels that compute losses and gradients, too.
pub fn lost_rows_with_gradients(gpu: &Gpu) -> Outcome {
    lose(gpu, 1004, with_losses)?;
    lose(gpu, 1004, with_gradients)
}

fn lose(gpu: &Gpu, vocab: usize, dispatch: Dispatch) -> Outcome {
    let spoils: [(&str, Spoil); 7] = [
        ("a hidden NaN", |hidden, _| hidden[59] = f32::NAN),
        ("a hidden infinity", |hidden, _| hidden[0] = f32::NEG_INFINITY),
        // 2e19² exceeds f32's largest value, 3.4e38.
        ("squares beyond f32", |hidden, _| hidden[13] = 2e19),
        ("a NaN among the logits", |_, logits| logits[999] = f32::NAN),
        ("an infinite logit", |_, logits| logits[1002] = f32::INFINITY),
        ("a logit of minus infinity", |_, logits| logits[0] = f32::NEG_INFINITY),
        ("nothing but NaN", |_, logits| logits.fill(f32::NAN)),
    ];
    for (what, spoil) in spoils {
        let mut case = Case::new((5, 60, vocab));
        let sound = case.run(gpu, dispatch)?;
        let (hidden, logits) = (&mut case.hidden[2 * 60..3 * 60], &mut case.logits[2 * vocab..3 * vocab]);
        spoil(hidden, logits);
        let mut expected = sound;
        expected[2] = NOT_FINITE;
        let found = case.run(gpu, dispatch)?;
        if found != expected {
            return Err(format!("{what}: expected {expected:?}, found {found:?}").into());
        }
    }
    Ok(())
}

/// The counts of a step, and the flag that stops the optimizer.
pub fn tally(gpu: &Gpu) -> Outcome {
    for (rows, lost) in [(1, 0), (63, 1), (5000, 0), (70_001, 3)] {
        let mut verdicts: Vec<u32> = (0..rows).map(|n| if n % 3 == 0 { RIGHT } else { WRONG }).collect();
        (0..lost).for_each(|n| verdicts[rows - 1 - 7 * n] = NOT_FINITE);
        let right = verdicts.iter().filter(|&&v| v == RIGHT).count() as f32;
        // Values past the step's rows are ignored.
        verdicts.extend([NOT_FINITE, RIGHT]);
        let buffer = gpu.upload("verdicts", &verdicts)?;
        let gradients = [gpu.upload("gradients", &[3.0f32, 4.0, 0.0, 0.0])?];
        let clip = Clip::new(gpu, [16].into_iter())?;
        run(gpu, |rec| {
            clip.norm(rec, &gradients, 1.0);
            verdict::tally(rec, &clip, &buffer, rows);
        })?;
        let state = block_on(gpu.read::<ClipState>(&clip.state, 1))?[0];
        let finite = if lost > 0 { 0.0 } else { 1.0 };
        let found = [state.norm, state.finite, state.right, state.not_finite];
        if found != [5.0, finite, right, lost as f32] {
            return Err(format!("{rows} rows, {lost} lost: found {state:?}").into());
        }
    }
    Ok(())
}
