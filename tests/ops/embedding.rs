//! Rows of the longest binding.

use rullama_train::gpu::Gpu;
use rullama_train::ops::{Rows, embedding};
use rullama_train::reference;

use super::check::{Block, Check, Outcome, Tolerance, run, values, wide};

/// Rows of f32 are copied.
const EXACT: Tolerance = Tolerance::new(0.0, 0.0, 0.0);
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
    let (y, chosen) = (Block::output(gpu, (0, 0), WIDTH, 4), gpu.upload("ids", &last.map(|row| row as u32))?);
    run(gpu, |rec| embedding::forward(rec, &y.rows, &chosen, 0, &long.as_weight(rows), 0, 1.0, 4))?;
    let found = y.read(gpu, "long")?;
    let expected = reference::embedding::gather(&wide(&table), &last.map(|row| (row % 3) as u32), WIDTH);
    let mut check = Check::new("embedding, long", EXACT);
    check.close(&format!("{bytes} bytes"), WIDTH, &found, &expected)?;
    check.done()
}
