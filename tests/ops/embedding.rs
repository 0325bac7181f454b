//! Rows of tables of every format, and of the longest binding.

use rullama_train::base::formats::GgmlType;
use rullama_train::cases::inputs::widths;
use rullama_train::gpu::Gpu;
use rullama_train::ops::{Rows, embedding};
use rullama_train::reference;

use super::check::{Block, Check, Outcome, Tolerance, run, values, wide};
use super::linear::random_weight;

/// Rows of f32 are copied.
const EXACT: Tolerance = Tolerance::new(0.0, 0.0, 0.0);
/// One more rounding, by the factor.
const SCALED: Tolerance = Tolerance::new(1.2e-7, 1.2e-7, 0.0);

/// `y[t] = scale·W[ids[offset + t], columns]`, with rows at the ends of tiles and repeated rows.
pub fn forward(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("embedding forward", SCALED);
    for ty in GgmlType::SUPPORTED {
        let cols = widths(ty)[2];
        let (mut weight, truth) = random_weight(gpu, ty, 200, cols, true);
        // Each row is in exactly one tile, so that the order of tiles does not matter.
        weight.tiles.rotate_left(1);
        // From the middle of a block to the middle of another, like the slice of one layer.
        for (first, width) in [(0, cols), (4, cols - 12)] {
            for tokens in [1, 7, 65] {
                let name = format!("{ty:?} T={tokens} columns {first}..{}", first + width);
                let ids: Vec<u32> = [9, 9, 199, 0, 63, 64, 127, 128, 191, 192, 64]
                    .into_iter()
                    .cycle()
                    .take(3 + tokens)
                    .collect();
                let slice: Vec<f64> =
                    truth.chunks(cols).flat_map(|row| row[first..first + width].to_vec()).collect();
                let expected = reference::embedding::forward(&ids[3..], &slice, width, f64::from(7.3f32));
                let y = look_up(gpu, &name, &weight, &ids, 3, (first, width), 7.3)?;
                check.close(&name, width, &y, &expected)?;
            }
        }
    }
    // More rows than one dimension of workgroups may have.
    let (weight, truth) = random_weight(gpu, GgmlType::F16, 200, 4, false);
    let ids: Vec<u32> = (0..70_001).map(|t| t * 7 % 200).collect();
    let expected = reference::embedding::forward(&ids, &truth, 4, 2.0);
    check.close("F16 T=70001", 4, &look_up(gpu, "F16 T=70001", &weight, &ids, 0, (0, 4), 2.0)?, &expected)?;
    check.done()
}

fn look_up(
    gpu: &Gpu,
    case: &str,
    weight: &rullama_train::ops::Weight,
    ids: &[u32],
    ids_offset: usize,
    (first, width): (usize, usize),
    scale: f32,
) -> Result<Vec<f64>, libtest_mimic::Failed> {
    let rows = ids.len() - ids_offset;
    let ids = gpu.upload("ids", ids)?;
    let y = Block::output(gpu, (0, 0), width, rows);
    run(gpu, |rec| embedding::forward(rec, &y.rows, &ids, ids_offset, weight, first, scale, rows))?;
    y.read(gpu, case)
}

/// The last rows of the longest binding, of more than 2 GiB where the device has such: written, and read again.
pub fn longest_binding(gpu: &Gpu) -> Outcome {
    const WIDTH: usize = 1024;
    let bytes = gpu.max_binding_bytes().min((2 << 30) + (1 << 20)) as usize;
    let rows = bytes / (4 * WIDTH);
    let table = values(1, 3 * WIDTH);
    let held = Block::input(gpu, (0, 0), WIDTH, &table);
    let ids: Vec<u32> = (0..rows as u32).map(|row| row % 3).collect();
    let (long, ids) = (Rows::new(gpu, "long", rows, WIDTH)?, gpu.upload("ids", &ids)?);
    run(gpu, |rec| embedding::forward(rec, &long, &ids, 0, &held.rows.as_weight(3), 0, 1.0, rows))?;
    let last = [rows - 1, rows - 2, rows / 2, 0];
    let found = look_up(gpu, "long", &long.as_weight(rows), &last.map(|row| row as u32), 0, (0, WIDTH), 1.0)?;
    let expected = reference::embedding::gather(&wide(&table), &last.map(|row| (row % 3) as u32), WIDTH);
    let mut check = Check::new("embedding, long", EXACT);
    check.close(&format!("{bytes} bytes"), WIDTH, &found, &expected)?;
    check.done()
}
