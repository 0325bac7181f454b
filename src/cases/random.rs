//! Random blocks of weights.

use super::bench::Bench;
use super::inputs::pcg;
use crate::base::Tensor;
use crate::base::formats::GgmlType;
use crate::gpu::GpuError;
use crate::ops::random;

/// The table of the format and the words of the first plane of random blocks, drawn again here.
pub fn blocks(b: &mut Bench) -> Result<(), GpuError> {
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
