//! The teacher's own sums.

use pollster::block_on;
use rullama_train::gpu::Gpu;
use rullama_train::ops::argmax::top;
use rullama_train::ops::distill::teacher;

use super::check::{Block, Check, Outcome, Tolerance, run, values, wide};

/// Sums of exponentials and their logarithms.
const SUMS: Tolerance = Tolerance::new(2e-6, 5e-6, 2e-6);

/// The sums of a teacher's logits: over all tokens, and over those behind the likeliest. Some logits are equal.
pub fn of_teacher(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("distill, sums of the teacher", SUMS);
    for (rows, count, tokens, temperature) in [(3, 1003, 64, 1.0), (5, 130, 1, 2.0), (2, 64, 63, 0.5)] {
        let logits: Vec<f32> = values(1, rows * count).iter().map(|x| (x * 40.0).round() / 4.0).collect();
        let block = Block::input(gpu, (0, 0), count, &logits);
        let targets = gpu.upload("targets", &vec![0u32; rows + 1])?;
        let results = gpu.buffer("results", (4 * (rows + 1) * top::words(tokens)) as u64)?;
        let sums = gpu.buffer("sums", (8 * (rows + 1)) as u64)?;
        run(gpu, |rec| {
            top::forward(rec, &block.rows, count, &targets, &results, 1, tokens, rows);
            let found =
                teacher::Found { values: &block.rows, count, results: &results, top: tokens, first: 1 };
            teacher::forward(rec, &found, temperature, &sums, rows);
        })?;
        let found = block_on(gpu.read::<f32>(&sums, 2 * (rows + 1)))?;
        let mut expected = Vec::new();
        for row in logits.chunks(count) {
            let mut sorted: Vec<f64> = row.iter().map(|&x| f64::from(x) / temperature).collect();
            sorted.sort_by(|a, b| b.total_cmp(a));
            let log_sum = |x: &[f64]| x.iter().map(|x| x.exp()).sum::<f64>().ln();
            expected.extend([log_sum(&sorted), log_sum(&sorted[tokens..])]);
        }
        let name = format!("rows={rows} V={count} top={tokens} temperature={temperature}");
        check.close_to(&name, 2, &wide(&found[2..]), &expected, 10.0)?;
    }
    check.done()
}
