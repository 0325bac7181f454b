//! The status of rows, and its counts.

use super::bench::Bench;
use super::case::{Case, Needs, Once};
use super::cross_entropy::targets;
use super::inputs::values;
use super::tolerance::F32;
use crate::gpu::GpuError;
use crate::ops::adamw::Clip;
use crate::ops::row_status::{self, Chunk, NOT_FINITE, RIGHT, Verdicts, WRONG};

pub const CASES: [Case; 2] = [
    super::case("row_status", "right, wrong, lost", Needs::Any, super::F32, &Once(statuses)),
    super::case("row_status", "counts", Needs::Any, super::F32, &Once(tally)),
];

/// Right, wrong and lost rows.
fn statuses(b: &mut Bench) -> Result<(), GpuError> {
    let (rows, vocab, width) = (7, 1003, 60);
    let mut logits = values(1, rows * vocab);
    let (mut hidden, mut ids) = (values(2, rows * width), targets(rows, vocab));
    for row in [0, 3, 6] {
        logits[row * vocab + 1002] = 5.0;
        ids[row] = 1002;
    }
    logits[2 * vocab + 999] = f32::NAN;
    hidden[5 * width + 59] = f32::INFINITY;
    let status = |row: usize| match row {
        0 | 3 | 6 => RIGHT,
        2 | 5 => NOT_FINITE,
        _ => WRONG,
    };
    let (logits, hidden) = (b.input(vocab, &logits)?, b.input(width, &hidden)?);
    let (ids, losses) = (b.gpu.upload("case", &ids)?, b.gpu.buffer("case", 4 * rows as u64)?);
    let found = b.gpu.upload("case", &vec![77u32; rows + 2])?;
    let chunk = Chunk {
        logits: logits.rows(),
        rows,
        vocab,
        softcap: None,
        temperature: 1.0,
        targets: (&ids, 0),
        losses: (&losses, 0),
    };
    b.run(|rec| row_status::rows(rec, &chunk, &Verdicts { hidden: hidden.rows(), buffer: (&found, 0) }))?;
    b.expect_bits("status of rows", &found, (0..rows).map(status).chain([77, 77]));
    Ok(())
}

/// The counts of a step's rows; one row that is not finite stops the optimizer.
fn tally(b: &mut Bench) -> Result<(), GpuError> {
    let rows = 5003;
    let mut statuses: Vec<u32> = (0..rows).map(|n| if n % 3 == 0 { RIGHT } else { WRONG }).collect();
    statuses[rows - 1] = NOT_FINITE;
    let right = statuses.iter().filter(|status| **status == RIGHT).count() as f32;
    statuses.extend([NOT_FINITE, RIGHT]);
    let statuses = b.gpu.upload("case", &statuses)?;
    let gradients = [b.gpu.upload("case", &[3.0f32, 4.0, 0.0, 0.0])?];
    let clip = Clip::new(b.gpu, [16].into_iter())?;
    b.run(|rec| {
        clip.norm(rec, &gradients, 1.0);
        row_status::tally(rec, &clip, &statuses, rows);
    })?;
    let factor = (1.0 / (5.0 + 1e-6)) as f32;
    let state = [5.0, factor, 0.0, right, 1.0].map(f64::from);
    b.expect_start("norm, factor, finite, right, lost", &clip.state, state.to_vec(), F32);
    Ok(())
}
