//! Random blocks are finite, have the expected spread, and are reproducible.

use libtest_mimic::Failed;
use rullama_train::base::Tensor;
use rullama_train::base::formats::GgmlType;
use rullama_train::gpu::Gpu;
use rullama_train::ops::embedding;
use rullama_train::ops::random;

use super::check::{Block, Outcome, run};

/// Every format of blocks, in two tiles, the second with an odd number of rows.
pub fn blocks(gpu: &Gpu) -> Outcome {
    let (rows, cols) = (131, 768);
    let mut made = 0;
    for ty in GgmlType::SUPPORTED.into_iter().filter(|ty| random::makes(*ty)) {
        made += 1;
        let read = || -> Result<Vec<f64>, Failed> {
            let matrix =
                Tensor { name: "random", ty, rows, cols, range: 4096..5000, order: None, side_by_side: 1 };
            let weight = random::weight(gpu, &matrix, [0..64, 64..rows].into_iter())?;
            let ids = gpu.upload("ids", &(0..rows as u32).collect::<Vec<_>>())?;
            let y = Block::output(gpu, (0, 0), cols, rows);
            run(gpu, |rec| embedding::forward(rec, &y.rows, &ids, 0, &weight, 0, 1.0, rows))?;
            y.read(gpu, ty.name().as_str())
        };
        let values = read()?;
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let deviation = (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt();
        let expected = (cols as f64).powf(-0.5);
        // Factors are f16, and a K-quant's scales of 6 bits are shared by 32 values: some percent. The values of Q4_0 are -8 to 7
        // steps, half a step from the middle, which is a ninth of their deviation.
        // The scales of MXFP4 are powers of two, and those of NVFP4 have four bits of precision.
        let (least, most) =
            if matches!(ty, GgmlType::MXFP4 | GgmlType::NVFP4) { (0.7, 1.42) } else { (0.95, 1.05) };
        if !((least..most).contains(&(deviation / expected)) && mean.abs() < 0.12 * expected) {
            return Err(format!("{}: {mean} ± {deviation}, expected 0 ± {expected}", ty.name()).into());
        }
        let tiles: Vec<&[f64]> = values.chunks(64 * cols).collect();
        if tiles[0] == tiles[1] || values != read()? {
            return Err(format!("{}: tiles are alike, or do not repeat", ty.name()).into());
        }
    }
    let quantized = GgmlType::SUPPORTED.into_iter().filter(|ty| !ty.is_row_by_row()).count();
    if made == quantized { Ok(()) } else { Err(format!("{made} formats, expected {quantized}").into()) }
}
