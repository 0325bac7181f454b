//! Packed operands, as tests of several operations make and read them.

use half::f16;
use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::gpu::Gpu;
use rullama_train::ops::pack::Packed;

use super::check::{Block, run};

pub(super) const EPS: f32 = 1e-6;

/// A block as tiles.
pub(super) fn packed(gpu: &Gpu, x: &Block, cols: usize, height: usize) -> Result<Packed, Failed> {
    let packed = Packed::new(gpu, "test", height, cols)?;
    run(gpu, |rec| packed.pack(rec, x.view(), cols, height))?;
    Ok(packed)
}

/// Unpacks to f32, after checking that zeros follow the values.
pub(super) fn unpacked(
    gpu: &Gpu,
    packed: &Packed,
    width: usize,
    height: usize,
    name: &str,
) -> Result<Vec<f64>, Failed> {
    nothing_behind(gpu, packed, width, height, name)?;
    let y = Block::output(gpu, (0, 0), width, height);
    run(gpu, |rec| packed.unpack(rec, y.view(), width, height))?;
    y.read(gpu, name)
}

/// Fills whole matrices, up to a multiple of 64 columns.
pub(super) fn make_stale(gpu: &Gpu, packed: &Packed, width: usize, height: usize) {
    let stale = vec![f16::NAN; width.next_multiple_of(64) * height.next_multiple_of(16)];
    gpu.write(packed.bind(0).buffer, &stale);
}

/// Products read zeros past the last column and row.
pub(super) fn nothing_behind(
    gpu: &Gpu,
    packed: &Packed,
    width: usize,
    height: usize,
    name: &str,
) -> Result<(), Failed> {
    let (tiles, across) = (height.div_ceil(16), width.next_multiple_of(64));
    let halves: Vec<f16> = block_on(gpu.read(packed.bind(0).buffer, across * tiles * 16))?;
    let place = |t: usize, c: usize| ((c / 16) * tiles + t / 16) * 256 + t % 16 * 16 + c % 16;
    let all = (0..tiles * 16).flat_map(|t| (0..across).map(move |c| (t, c)));
    let mut behind = all.filter(|&(t, c)| t >= height || c >= width);
    match behind.find(|&(t, c)| halves[place(t, c)] != f16::ZERO) {
        Some((t, c)) => Err(format!("{name}: {} is left at row {t}, column {c}", halves[place(t, c)]).into()),
        None => Ok(()),
    }
}

pub(super) fn same(name: &str, found: &[f64], expected: &[f64]) -> Result<(), Failed> {
    match found.iter().zip(expected).position(|(found, expected)| found.to_bits() != expected.to_bits()) {
        Some(i) => Err(format!("{name}: {} at {i}, expected exactly {}", found[i], expected[i]).into()),
        None => Ok(()),
    }
}
