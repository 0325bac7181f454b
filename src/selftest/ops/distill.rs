//! Divergences from a teacher.

use super::training::{SOFTCAP, targets};
use crate::data::teacher::{TaughtRow, TeacherRows};
use crate::gpu::GpuError;
use crate::ops::distill::{Distill, Divergence, Lesson};
use crate::ops::row_status::Chunk;
use crate::reference::distill::{Taught, backward, forward};
use crate::selftest::bench::{Bench, F32, values, wide};

/// Rows, vocabulary and tokens of the teacher: more than a workgroup's threads, no multiple of 4.
const SHAPE: (usize, usize, usize) = (7, 1003, 70);

/// Losses, divergences and gradients of logits up to 10 for each divergence.
pub fn lessons(b: &mut Bench) -> Result<(), GpuError> {
    let (rows, vocab, top) = SHAPE;
    let logits: Vec<f32> = values(1, rows * vocab).iter().map(|x| 10.0 * x).collect();
    let (ids, factors) = (targets(rows, vocab), values(2, rows));
    let (given, taught) = teacher(rows, vocab, top);
    let on_device = (b.gpu.upload("self-test", &ids)?, b.gpu.upload("self-test", &factors)?);
    let teacher = (b.gpu.upload("self-test", &given.ids)?, b.gpu.upload("self-test", &given.values)?);
    for (divergence, softcap) in [
        (Divergence::ForwardKl, None),
        (Divergence::ReverseKl, Some(SOFTCAP)),
        (Divergence::Jsd { beta: 0.5 }, None),
    ] {
        let distill = Distill { divergence, temperature: 1.5, weight: 0.75, sft_weight: 0.25 };
        let (wide_logits, cap) = (wide(&logits), softcap.map(f64::from));
        let expected = forward(&distill, &wide_logits, &ids, &taught, cap, vocab);
        let dlogits = backward(&distill, &wide(&factors), &wide_logits, &ids, &taught, cap, vocab);
        let block = b.in_out(vocab, &logits)?;
        let (losses, results) = (b.output(8, 1)?, b.output(16, 1)?);
        let results_at = results.rows().buffer.clone();
        let chunk = Chunk {
            logits: block.rows(),
            rows,
            vocab,
            softcap,
            temperature: 1.0,
            targets: (&on_device.0, 0),
            losses: (&losses.rows().buffer, 0),
        };
        let lesson = Lesson { distill, top, ids: &teacher.0, values: &teacher.1, results: &results_at };
        b.run(|rec| lesson.backward(rec, &chunk, &on_device.1))?;
        let name = |what: &str| format!("{what}, {divergence:?}");
        let agrees = |n: usize| {
            let own = &logits[n * vocab..][..vocab];
            let likeliest = own.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(id, _)| id as u32);
            f64::from(u8::from(likeliest == Some(given.ids[n * (top + 1) + top])))
        };
        let lessons = expected.iter().enumerate().flat_map(|(n, row)| [row[0], agrees(n)]).collect();
        b.expect_first(name("losses"), &losses, expected.iter().map(|row| row[1]).collect(), F32);
        b.expect_first(name("divergences"), &results, lessons, F32);
        b.expect(name("gradients"), &block, dlogits, F32);
    }
    Ok(())
}

/// Made-up distributions.
fn teacher(rows: usize, vocab: usize, top: usize) -> (TeacherRows, Vec<Taught>) {
    let (mut given, mut taught) = (TeacherRows::unknown(top, false), Vec::new());
    for n in 0..rows {
        // Ids that differ, in no order.
        let id = |i: usize| ((n * 31 + i * 389) % vocab) as u32;
        let logs = values(3 + n as u64, top);
        let mut tokens: Vec<(u32, f32)> = (0..top).map(|i| (id(i), 4.0 * logs[i] - 6.0)).collect();
        tokens.sort_by(|a, b| b.1.total_cmp(&a.1));
        given.push(TaughtRow { tokens, rest: Some(-2.0) });
        let (ids, logs) = (&given.ids[n * (top + 1)..], &given.values[n * (top + 1)..]);
        let listed = ids[..top].iter().zip(logs).map(|(id, log)| (*id, f64::from(*log))).collect();
        taught.push(Taught { tokens: listed, rest: Some(f64::from(logs[top])) });
    }
    (given, taught)
}
