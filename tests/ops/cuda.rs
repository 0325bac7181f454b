//! The panels that CUDA's products read, which every device can make that computes in f16.

use half::f16;
use pollster::block_on;
use rullama_train::base::formats::GgmlType;
use rullama_train::cases::product::{self, Shape};
use rullama_train::gpu::Gpu;
use rullama_train::ops::linear::coop16::LowRank;
use rullama_train::ops::linear::cuda::{self, Panels, Way, product_bytes};
use rullama_train::ops::pack::Packed;

use super::check::{Held, Outcome, run, values};
use super::linear::random_weight;

fn panels(gpu: &Gpu, n: usize, k: usize) -> Result<Panels, libtest_mimic::Failed> {
    Ok(Panels::new(gpu, product_bytes(n, k, 96))?)
}

/// Panels hold the matrix in f16, 64 rows and columns each, the sixteenths of a row swizzled, and zeros behind it. Those of the adapter's matrix
/// follow.
pub fn operands(gpu: &Gpu) -> Outcome {
    let z = Packed::new(gpu, "test", 1, 16)?;
    for ty in GgmlType::SUPPORTED {
        for Shape { n, k, rank, .. } in product::of_cuda(ty) {
            let rank = (rank > 0).then_some(rank);
            let (weight, w) = random_weight(gpu, ty, n, k, false);
            let own = rank.unwrap_or(16);
            // A holds the rows of two matrices; this matrix's are the second.
            let (a, b) = (values(4, (16 + own) * k), values(3, n * own));
            let (held_a, held_b) = (Held::new(gpu, k, &a), Held::new(gpu, own, &b));
            let lora = |matrix, first_row| {
                rank.map(|rank| LowRank { z: &z, z_offset: 0, matrix, first_row, rank, scale: 0.75 })
            };
            let panels = panels(gpu, n, k)?;
            let (mut forward, mut backward) = (0, 0);
            run(gpu, |rec| {
                let b = lora(&held_b.param, 0);
                forward = cuda::prepare(rec, &panels, Way::Forward, &weight, 0.5, b.as_ref());
            })?;
            expect(gpu, &format!("W of {ty:?}"), (&panels, 0), [n, k], |row, col| 0.5 * w[row * k + col])?;
            let of_b = |row, col| 0.75 * f64::from(b[row * own + col]);
            expect(gpu, &format!("B beside {ty:?}"), (&panels, forward), [n, rank.unwrap_or(0)], of_b)?;
            run(gpu, |rec| {
                let a = lora(&held_a.param, 16);
                backward = cuda::prepare(rec, &panels, Way::Backward, &weight, 2.0, a.as_ref());
            })?;
            expect(gpu, &format!("Wᵀ of {ty:?}"), (&panels, 0), [k, n], |row, col| 2.0 * w[col * k + row])?;
            let of_a = |row, col| 0.75 * f64::from(a[(16 + col) * k + row]);
            expect(gpu, &format!("Aᵀ beside {ty:?}"), (&panels, backward), [k, rank.unwrap_or(0)], of_a)?;
        }
    }
    Ok(())
}

/// Compares the panels of a matrix `[rows, summed]`, from a byte on, with values.
fn expect(
    gpu: &Gpu,
    name: &str,
    (panels, start): (&Panels, u64),
    [rows, summed]: [usize; 2],
    value: impl Fn(usize, usize) -> f64,
) -> Outcome {
    let found: Vec<u16> = block_on(gpu.read(panels.buffer(), panels.buffer().size() as usize / 2))?;
    let across = summed.div_ceil(64);
    for (row, col) in
        (0..rows.next_multiple_of(64)).flat_map(|row| (0..64 * across).map(move |col| (row, col)))
    {
        let eight = ((col / 8) ^ row) % 8;
        let at =
            start as usize / 2 + (row / 64 * across + col / 64) * 4096 + row % 64 * 64 + eight * 8 + col % 8;
        let found = f16::from_bits(found[at]).to_f64();
        let value = if row < rows && col < summed { value(row, col) } else { 0.0 };
        if (found - value).abs() > value.abs() / 1024.0 + 1e-7 {
            return Err(format!("{name}: row {row}, column {col} is {found}, expected {value}").into());
        }
    }
    Ok(())
}
