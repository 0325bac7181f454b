//! The status of rows, alone and with losses and gradients, and its counts.

use super::bench::Bench;
use super::case::{Case, Combined, Needs, Shapes};
use super::inputs::{values, wide};
use super::tolerance::{F32, Tolerance};
use crate::gpu::{GpuError, Recorder};
use crate::ops::adamw::Clip;
use crate::ops::cross_entropy::{Chunk, coop16 as with_losses};
use crate::ops::pack::Packed;
use crate::ops::row_status::{self, NOT_FINITE, RIGHT, Verdicts, WRONG};
use crate::reference::verdict;

pub const CASES: [Case; 4] = [
    Case {
        op: "row_status",
        name: "right, wrong, lost",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Combined {
            small: &[(7, 60, 1003, Lost::AsNanAmongLogits), (7, 60, 1003, Lost::AsHiddenInfinity)],
            more: combinations,
            check: alone,
        },
    },
    Case {
        op: "row_status",
        name: "counts",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes {
            small: &[(5003, 1)],
            more: &[(1, 0), (63, 1), (5000, 0), (70_001, 3)],
            check: tally,
        },
    },
    Case {
        op: "row_status",
        name: "right, wrong, lost, with losses",
        needs: Needs::Tiles,
        variants: super::PACKED,
        shapes: &Combined { small: &[], more: whole_vec4s, check: |b, shape| check(b, shape, beside_losses) },
    },
    Case {
        op: "row_status",
        name: "right, wrong, lost, with losses and gradients",
        needs: Needs::Tiles,
        variants: super::PACKED,
        shapes: &Combined {
            small: &[],
            more: whole_vec4s,
            check: |b, shape| check(b, shape, beside_gradients),
        },
    },
];

/// Counts, and a norm that f32 represents.
const COUNTS: Tolerance = Tolerance::new(0.0, 0.0, 0.0);

/// The third row's loss, where there is one: one value that is not finite, or a sum of squares that exceeds f32.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lost {
    No,
    AsHiddenNan,
    AsHiddenInfinity,
    /// 2e19² exceeds f32's largest value, 3.4e38.
    AsSquaresBeyondF32,
    AsNanAmongLogits,
    AsInfiniteLogit,
    AsLogitOfMinusInfinity,
    AsNothingButNan,
}

impl Lost {
    const ALL: [Lost; 7] = [
        Lost::AsHiddenNan,
        Lost::AsHiddenInfinity,
        Lost::AsSquaresBeyondF32,
        Lost::AsNanAmongLogits,
        Lost::AsInfiniteLogit,
        Lost::AsLogitOfMinusInfinity,
        Lost::AsNothingButNan,
    ];

    /// Changes a row's hidden states and logits.
    fn spoil(self, hidden: &mut [f32], logits: &mut [f32]) {
        match self {
            Lost::No => {}
            Lost::AsHiddenNan => hidden[59] = f32::NAN,
            Lost::AsHiddenInfinity => hidden[0] = f32::NEG_INFINITY,
            Lost::AsSquaresBeyondF32 => hidden[13] = 2e19,
            Lost::AsNanAmongLogits => logits[999] = f32::NAN,
            Lost::AsInfiniteLogit => logits[1002] = f32::INFINITY,
            Lost::AsLogitOfMinusInfinity => logits[0] = f32::NEG_INFINITY,
            Lost::AsNothingButNan => logits.fill(f32::NAN),
        }
    }
}

/// Rows, width, vocabulary, and what is lost.
type Shape = (usize, usize, usize, Lost);

/// One, less than a workgroup, not multiples of 64, several values per thread, more rows than one dimension may have.
fn combinations() -> Vec<Shape> {
    let sizes = [(1, 4, 1), (7, 60, 5), (65, 256, 1003), (17, 64, 5003), (130, 1536, 64), (70_001, 4, 3)];
    with_lost(&sizes, 1003)
}

/// For the kernels that compute losses, too.
fn whole_vec4s() -> Vec<Shape> {
    with_lost(&[(1, 4, 4), (7, 60, 8), (65, 256, 1004), (17, 64, 5004), (130, 1536, 64)], 1004)
}

fn with_lost(sizes: &[(usize, usize, usize)], vocab: usize) -> Vec<Shape> {
    let sound = sizes.iter().map(|&(rows, width, vocab)| (rows, width, vocab, Lost::No));
    sound.chain(Lost::ALL.map(|lost| (5, 60, vocab, lost))).collect()
}

/// The kernel that writes the status.
type Dispatch = fn(&mut Recorder, &Chunk, &Verdicts, &Packed, &wgpu::Buffer);

fn alone(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    check(b, shape, |rec, chunk, verdicts, _, _| row_status::rows(rec, chunk, verdicts))
}

fn beside_losses(rec: &mut Recorder, chunk: &Chunk, to: &Verdicts, _: &Packed, _: &wgpu::Buffer) {
    with_losses::forward(rec, chunk, to);
}

/// The status of a row does not depend on its coefficient.
fn beside_gradients(
    rec: &mut Recorder,
    chunk: &Chunk,
    to: &Verdicts,
    dlogits: &Packed,
    coefficients: &wgpu::Buffer,
) {
    with_losses::backward(rec, chunk, to, dlogits, coefficients);
}

/// Logits of few different values, so that some are equal, and targets: one row in four has any, one the last of the largest values, and two the
/// first of them.
fn logits_and_targets(rows: usize, vocab: usize) -> (Vec<f32>, Vec<u32>) {
    let logits: Vec<f32> = values(1, rows * vocab).iter().map(|x| (x * 20.0).round()).collect();
    let largest = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("one");
    let target = |(n, row): (usize, &[f32])| match n % 4 {
        0 => n * 7 % vocab,
        1 => largest(row),
        _ => row.iter().position(|&z| z == row[largest(row)]).expect("one"),
    };
    let targets = logits.chunks(vocab).enumerate().map(|row| target(row) as u32).collect();
    (logits, targets)
}

/// Right, wrong and lost rows, and the status around them, which stays.
fn check(b: &mut Bench, shape: &Shape, dispatch: Dispatch) -> Result<(), GpuError> {
    const AROUND: u32 = 77;
    let &(rows, width, vocab, lost) = shape;
    let (mut logits, targets) = logits_and_targets(rows, vocab);
    let mut hidden = values(2, rows * width);
    let right = verdict::right(&wide(&logits), &targets, vocab);
    let status = |(row, right): (usize, bool)| match right {
        _ if row == 2 && lost != Lost::No => NOT_FINITE,
        true => RIGHT,
        false => WRONG,
    };
    let expected: Vec<u32> = right.into_iter().enumerate().map(status).collect();
    assert!(rows <= 4 || [RIGHT, WRONG].iter().all(|s| expected.contains(s)), "{shape:?}: one kind of row");
    if lost != Lost::No {
        lost.spoil(&mut hidden[2 * width..3 * width], &mut logits[2 * vocab..3 * vocab]);
    }
    let (logits, hidden) = (b.input(vocab, &logits)?, b.input(width, &hidden)?);
    let targets = b.gpu.upload("case", &[&[u32::MAX; 2][..], &targets].concat())?;
    let (losses, before) = (b.gpu.buffer("case", 4 * rows as u64)?, 3);
    let found = b.gpu.upload("case", &vec![AROUND; before + rows + 2])?;
    let (dlogits, coefficients) =
        (Packed::new(b.gpu, "case", rows, vocab)?, b.gpu.buffer("case", 4 * rows as u64)?);
    let chunk = Chunk {
        logits: logits.rows(),
        rows,
        vocab,
        softcap: None,
        temperature: 1.0,
        targets: (&targets, 2),
        losses: (&losses, 0),
    };
    let verdicts = Verdicts { hidden: hidden.rows(), buffer: (&found, before) };
    b.run(|rec| dispatch(rec, &chunk, &verdicts, &dlogits, &coefficients))?;
    let around = |count: usize| std::iter::repeat_n(AROUND, count);
    b.expect_bits(&format!("{shape:?}"), &found, around(before).chain(expected).chain(around(2)));
    Ok(())
}

/// The counts of a step's rows, some of them lost, which stops the optimizer; values past the step's rows are ignored.
fn tally(b: &mut Bench, shape: &(usize, usize)) -> Result<(), GpuError> {
    let &(rows, lost) = shape;
    let mut statuses: Vec<u32> = (0..rows).map(|n| if n % 3 == 0 { RIGHT } else { WRONG }).collect();
    (0..lost).for_each(|n| statuses[rows - 1 - 7 * n] = NOT_FINITE);
    let right = statuses.iter().filter(|status| **status == RIGHT).count() as f32;
    statuses.extend([NOT_FINITE, RIGHT]);
    let statuses = b.gpu.upload("case", &statuses)?;
    let gradients = [b.gpu.upload("case", &[3.0f32, 4.0, 0.0, 0.0])?];
    let clip = Clip::new(b.gpu, [16].into_iter())?;
    b.run(|rec| {
        clip.norm(rec, &gradients, 1.0);
        row_status::tally(rec, &clip, &statuses, rows);
    })?;
    let (factor, finite) = ((1.0 / (5.0 + 1e-6)) as f32, f32::from(u8::from(lost == 0)));
    let counts = [finite, right, lost as f32].map(f64::from).to_vec();
    b.expect_from(&format!("norm {shape:?}"), &clip.state, 0, vec![5.0], COUNTS);
    b.expect_from(&format!("factor {shape:?}"), &clip.state, 1, vec![factor.into()], F32);
    b.expect_from(&format!("finite, right, lost {shape:?}"), &clip.state, 2, counts, COUNTS);
    Ok(())
}
