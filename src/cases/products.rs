//! Products with frozen weights of every format, and with the adapter's matrices, in rows of f32.

use super::bench::Bench;
use super::inputs::pcg;
use super::matrices;
use super::product::{Product, ROWS, TOKENS, columns};
use crate::base::Tensor;
use crate::base::formats::GgmlType;
use crate::gpu::GpuError;
use crate::ops::linear::tiled::{self, LowRank};
use crate::ops::random;

/// Rows and columns of a matrix whose sums have one step, forward and backward: no device splits its products.
const SHORT: [usize; 2] = [12, 12];

/// Products with weights in Q4_K, and short ones.
pub fn q4_k(b: &mut Bench) -> Result<(), GpuError> {
    products(b, GgmlType::Q4_K, [ROWS, columns(GgmlType::Q4_K)])?;
    products(b, GgmlType::F32, SHORT)
}

/// Products with weights in every format.
pub fn every_format(b: &mut Bench) -> Result<(), GpuError> {
    GgmlType::SUPPORTED.into_iter().try_for_each(|ty| products(b, ty, [ROWS, columns(ty)]))
}

fn products(b: &mut Bench, ty: GgmlType, shape: [usize; 2]) -> Result<(), GpuError> {
    if b.gpu.kernels().reads_tiles() { matrices::product(b, ty, shape) } else { in_rows(b, ty, shape) }
}

/// An odd number of outputs of rows.
fn in_rows(b: &mut Bench, ty: GgmlType, [n, k]: [usize; 2]) -> Result<(), GpuError> {
    const RANK: usize = 12;
    let tolerance = b.operands();
    let Product { weight, x, z, up, dy, u, down, before, y_expected, dx_expected } =
        Product::new(b, ty, [n, k], RANK)?;
    let (x, z, up) = (b.input_view(k, &x)?, b.input_view(RANK, &z)?, b.param(RANK, &up)?);
    let (y, dy, u) = (b.output_view(n, TOKENS)?, b.input_view(n, &dy)?, b.input_view(RANK, &u)?);
    let (down, dx) = (b.param(k, &down)?, b.in_out(k, &before)?);
    b.run(|rec| {
        let term = LowRank { z: z.view(), matrix: &up, rank: RANK, scale: 0.75 };
        tiled::forward(rec, y.view(), x.view(), &weight, 0.5, Some(&term), TOKENS);
        let term = LowRank { z: u.view(), matrix: &down, rank: RANK, scale: 1.0 };
        tiled::backward(rec, dx.view(), dy.view(), &weight, -1.5, Some(&term), TOKENS, true);
    })?;
    b.expect(format!("{} [{n}, {k}]: x·Wᵀ", ty.name()), &y, y_expected, tolerance);
    b.expect(format!("{} [{n}, {k}]: dy·W", ty.name()), &dx, dx_expected, tolerance);
    Ok(())
}

/// The table of the format and the words of the first plane of random blocks, drawn again here.
pub fn random_blocks(b: &mut Bench) -> Result<(), GpuError> {
    let (rows, cols, start) = (67, 256, 4096);
    for ty in GgmlType::SUPPORTED.into_iter().filter(|ty| random::makes(*ty)) {
        let plane = &ty.format().expect("a supported format").planes[0];
        if plane.factors.is_some() {
            continue;
        }
        let matrix = Tensor {
            name: "random",
            ty,
            rows,
            cols,
            range: start..start + 1000,
            order: None,
            side_by_side: 1,
        };
        let weight = random::weight(b.gpu, &matrix, std::iter::once(0..rows))?;
        let words = rows * cols / plane.values * plane.bytes / 4;
        let key = pcg((start / 4) as u32);
        let table = ty.table().as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let words = table.chain((0..words as u32).map(|i| pcg(key.wrapping_add(i))));
        b.expect_bits(&format!("{}, random", ty.name()), &weight.tiles[0].buffer, words);
    }
    Ok(())
}
