//! Rows in f16 tiles, each scaled by a power of two.

use half::f16;

use super::bench::Bench;
use super::block::Block;
use super::tolerance::{F16, Tolerance};
use crate::gpu::GpuError;
use crate::ops::Rows;
use crate::ops::pack::{FACTOR_COLUMNS, Packed};

/// Rounding to f16, relative to the largest value of the row.
pub const ROUNDED: Tolerance = Tolerance { device: F16.device, ..Tolerance::new(5e-4, 1e-3, 1e-3) };

/// Room for tiles.
pub fn room(b: &Bench, height: usize, width: usize) -> Result<Packed, GpuError> {
    Packed::new(b.gpu, "case", height, width)
}

/// Room for tiles in blocks.
pub fn block_room(b: &Bench, height: usize, width: usize) -> Result<Packed, GpuError> {
    Packed::in_blocks(b.gpu, "case", height, width)
}

/// Rows as tiles in blocks, as products of CUDA leave them, and the values that these hold. NaN is behind the last column and row.
pub fn in_blocks(b: &Bench, x: &[f32], width: usize) -> Result<(Packed, Vec<f64>), GpuError> {
    let packed = block_room(b, x.len() / width, width)?;
    let (tiles, stride) = (packed.tiles() as usize, packed.factors_of_row(width).1 as usize);
    let mut halves = vec![f16::NAN; 256 * tiles * width.next_multiple_of(64) / 16];
    let mut factors = vec![f32::NAN; stride * width.div_ceil(FACTOR_COLUMNS)];
    let mut held = vec![0.0; x.len()];
    for (row, values) in x.chunks(width).enumerate() {
        for (block, values) in values.chunks(FACTOR_COLUMNS).enumerate() {
            let factor = factor(values);
            factors[block * stride + row] = factor as f32;
            for (i, value) in values.iter().enumerate() {
                let (column, half) = (block * FACTOR_COLUMNS + i, f16::from_f64(f64::from(*value) / factor));
                halves[(column / 16 * tiles + row / 16) * 256 + row % 16 * 16 + column % 16] = half;
                held[row * width + column] = half.to_f64() * factor;
            }
        }
    }
    b.gpu.write(&packed.place(0).0, &halves.iter().map(|half| half.to_bits()).collect::<Vec<u16>>());
    b.gpu.write(&packed.factors_place().0, &factors);
    Ok((packed, held))
}

/// The power of two that brings the largest of some values into `[½, 1)` when they are divided by it.
fn factor(values: &[f32]) -> f64 {
    let most = f64::from(values.iter().fold(0f32, |most, x| most.max(x.abs())));
    if most > 0.0 { 2f64.powi(most.log2().floor() as i32 + 1) } else { 1.0 }
}

/// Room for tiles that hold NaN.
pub fn stale(b: &Bench, height: usize, width: usize) -> Result<Packed, GpuError> {
    let packed = room(b, height, width)?;
    b.make_stale(&packed, width, height);
    Ok(packed)
}

/// Rows of f32 as tiles.
pub fn packed(b: &Bench, x: &Rows, width: usize, height: usize) -> Result<Packed, GpuError> {
    let packed = room(b, height, width)?;
    b.run(|rec| packed.pack(rec, x.all(), width, height))?;
    Ok(packed)
}

/// The tiles as rows of f32.
pub fn unpacked(b: &Bench, packed: &Packed, width: usize, height: usize) -> Result<Block, GpuError> {
    let y = b.output(width, height)?;
    b.run(|rec| packed.unpack(rec, y.view(), width, height))?;
    Ok(y)
}

/// Notes what tiles must hold, and that zeros are behind them, which products read.
pub fn expect(
    b: &mut Bench,
    name: &str,
    packed: &Packed,
    width: usize,
    values: Vec<f64>,
) -> Result<(), GpuError> {
    let height = values.len() / width;
    let rows = unpacked(b, packed, width, height)?;
    b.expect(name, &rows, values, ROUNDED);
    b.expect_nothing_behind(format!("{name}, behind"), packed, width, height);
    Ok(())
}

/// The values of rows as tiles hold them: scaled by the power of two that brings the largest value into `[½, 1)`, and rounded to f16.
pub fn rounded(x: &[f32], width: usize) -> Vec<f64> {
    let row = |row: &[f32]| {
        let factor = factor(row);
        row.iter().map(|x| f16::from_f64(f64::from(*x) / factor).to_f64() * factor).collect::<Vec<f64>>()
    };
    x.chunks(width).flat_map(row).collect()
}
