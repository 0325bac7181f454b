//! Attention over packed samples, and over a cache.

use crate::gpu::GpuError;
use crate::ops::Rows;
use crate::ops::attention::{Attention, coop16, coop16_backward};
use crate::ops::cached_attention::{CachedAttention, Parts};
use crate::ops::cached_heads::Cache;
use crate::ops::pack::Packed;
use crate::reference::attention as reference;
use crate::selftest::bench::{Bench, F32, plus, values, wide};

/// Tokens, query heads, key/value heads, head size and window of each case.
type Case = (usize, usize, usize, usize, Option<usize>);

/// A softcap that bends most scores.
const SOFTCAP: f32 = 2.5;

/// First rows of two samples; the second begins inside a block.
const STARTS: [u32; 2] = [0, 30];

/// Values whose scores are about 3.
fn scores(seed: u64, len: usize, head_size: usize) -> Vec<f32> {
    let size = 3.0 * (3.0 / (head_size as f32).sqrt()).sqrt();
    values(seed, len).iter().map(|x| size * x).collect()
}

/// Heads that share keys, two samples, a window and none, head sizes that are no multiple of 32 where kernels take them.
pub fn attention(b: &mut Bench) -> Result<(), GpuError> {
    let cases: &[Case] = match b.gpu.kernels().reads_tiles() {
        true => &[
            (67, 4, 2, 64, None),
            (67, 2, 1, 32, Some(20)),
            (131, 2, 1, 128, None),
            (67, 2, 1, 256, Some(20)),
        ],
        false => &[(67, 4, 2, 36, None), (67, 2, 1, 100, Some(20))],
    };
    cases.iter().try_for_each(|case| packed_samples(b, *case, None))
}

/// [`attention`] with a softcap on the scores, which CUDA's kernels have for heads of 128 and 256 alone.
pub fn capped(b: &mut Bench) -> Result<(), GpuError> {
    let cases: &[Case] = match b.gpu.kernels().reads_tiles() {
        true => &[(67, 4, 2, 64, Some(20)), (131, 2, 1, 128, None), (67, 2, 1, 256, Some(20))],
        false => &[(67, 4, 2, 36, None)],
    };
    cases.iter().try_for_each(|case| packed_samples(b, *case, Some(SOFTCAP)))
}

fn packed_samples(
    b: &mut Bench,
    (tokens, heads, kv_heads, size, window): Case,
    softcap: Option<f32>,
) -> Result<(), GpuError> {
    // Longer than 60 lines: inputs, both passes and five comparisons of one case.
    let (wide_row, narrow) = (heads * size, kv_heads * size);
    let (q, k) = (scores(1, tokens * wide_row, size), scores(2, tokens * narrow, size));
    let (v, dout) = (values(3, tokens * narrow), values(4, tokens * wide_row));
    let [dk, dv] = [5, 6].map(|seed| values(seed, tokens * narrow));
    let start = |t: usize| if t < STARTS[1] as usize { STARTS[0] } else { STARTS[1] };
    let end = |t: usize| if t < STARTS[1] as usize { STARTS[1] } else { tokens as u32 };
    let starts: Vec<u32> = (0..tokens).map(start).collect();
    let bounds: Vec<[u32; 2]> = (0..tokens).map(|t| [start(t), end(t)]).collect();
    let [qs, ks, vs, douts] = [&q, &k, &v, &dout].map(|x| wide(x));
    let cap = softcap.map(f64::from);
    let (mut out_expected, mut lse_expected) =
        reference::forward_capped(&qs, &ks, &vs, &starts, window, heads, kv_heads, cap);
    // Cases with a window have sinks too.
    let sinks = window.map(|_| values(7, heads));
    if let Some(sinks) = &sinks {
        reference::add_sinks(&mut out_expected, &mut lse_expected, &wide(sinks));
    }
    let [mut dks, mut dvs] = [(); 2].map(|()| vec![0.0; tokens * narrow]);
    let dq_expected = reference::backward_capped(
        &douts,
        &qs,
        &ks,
        &vs,
        &starts,
        window,
        heads,
        kv_heads,
        &out_expected,
        &lse_expected,
        &mut dks,
        &mut dvs,
        cap,
    );
    let tolerance = b.operands();
    let inputs =
        [b.input(wide_row, &q)?, b.input(narrow, &k)?, b.input(narrow, &v)?, b.input(wide_row, &dout)?];
    let (out, dq) = (b.output(wide_row, tokens)?, b.output(wide_row, tokens)?);
    let (dk_rows, dv_rows) = (b.in_out(narrow, &dk)?, b.in_out(narrow, &dv)?);
    let lse = b.output(tokens.next_multiple_of(4) * heads, 1)?;
    let bounds = b.gpu.upload("self-test", &bounds)?;
    let sinks = sinks.map(|sinks| b.gpu.upload("self-test", &sinks)).transpose()?;
    let attention = Attention {
        window,
        sinks: sinks.as_ref(),
        softcap,
        ..Attention::of_sample([heads, kv_heads, size], tokens, &bounds)
    };
    let gradients = [dq.rows(), dk_rows.rows(), dv_rows.rows()];
    let [q, k, v, dout] = inputs.each_ref().map(|block| block.rows());
    if b.gpu.kernels().reads_tiles() {
        on_matrices(b, &attention, [q, k, v, dout], (out.rows(), lse.rows()), gradients)?;
    } else {
        let delta = Rows::new(b.gpu, "self-test", 1, 2 * tokens.next_multiple_of(4) * heads)?;
        let dheads = Rows::new(b.gpu, "self-test", tokens, wide_row)?;
        b.run(|rec| {
            attention.forward(rec, out.rows(), lse.rows(), q, k, v);
            attention.backward(rec, gradients, [&delta, &dheads], dout, [q, k, v], out.rows(), lse.rows());
        })?;
    }
    let name = format!("heads of {size}");
    b.expect(format!("{name}: out"), &out, out_expected, tolerance);
    b.expect_first(format!("{name}: log-sum-exp"), &lse, lse_expected, tolerance);
    b.expect(format!("{name}: dq"), &dq, dq_expected, tolerance);
    b.expect(format!("{name}: dk"), &dk_rows, plus(&dks, 1.0, &wide(&dk)), tolerance);
    b.expect(format!("{name}: dv"), &dv_rows, plus(&dvs, 1.0, &wide(&dv)), tolerance);
    Ok(())
}

/// Operands are packed unscaled: with the factors of rows whose largest value is ½.
fn on_matrices(
    b: &Bench,
    attention: &Attention,
    [q, k, v, dout]: [&Rows; 4],
    (out, lse): (&Rows, &Rows),
    gradients: [&Rows; 3],
) -> Result<(), GpuError> {
    let Attention { heads, kv_heads, head_size, rows: tokens, .. } = *attention;
    let (wide_row, narrow) = (heads * head_size, kv_heads * head_size);
    let halves = b.input(4, &vec![0.5; 4 * tokens])?;
    let pack = |width: usize| Packed::new(b.gpu, "self-test", tokens, width);
    let (unscaled, packed_q, packed_k, packed_v) = (pack(4)?, pack(wide_row)?, pack(narrow)?, pack(narrow)?);
    let reach = attention.window.unwrap_or(tokens);
    let half = coop16_backward::ScoreScratch::least_bytes(heads, tokens, reach) / 2;
    let memory = Rows::new(b.gpu, "self-test", 1, half as usize / 2)?;
    let left = coop16_backward::ScoreScratch::within([&memory, &memory], [0, half], half);
    let scratch = coop16_backward::Scratch::new(b.gpu, tokens, wide_row, heads, left)?;
    let dheads = Rows::new(b.gpu, "self-test", tokens, wide_row)?;
    b.run(|rec| {
        unscaled.pack(rec, halves.rows().all(), 4, tokens);
        for (packed, x, width) in [(&packed_q, q, wide_row), (&packed_k, k, narrow), (&packed_v, v, narrow)] {
            packed.pack_alike(rec, x.all(), width, tokens, &unscaled);
        }
        let operands = coop16::Operands { q: &packed_q, k: &packed_k, v: &packed_v };
        let out = &out.clone().into();
        coop16::forward(rec, attention, out, lse, operands);
        scratch.backward(rec, attention, gradients, &dheads, dout, operands, out, lse);
    })
}

/// New tokens over a cache that is a ring, with a window and without.
pub fn cached(b: &mut Bench) -> Result<(), GpuError> {
    for (past, rows, window) in [(70, 3, None), (75, 1, Some(5))] {
        let (tokens, heads, kv_heads, size) = (past + rows, 4, 2, 36);
        let (wide_row, narrow) = (heads * size, kv_heads * size);
        let (q, k) = (scores(1, tokens * wide_row, size), scores(2, tokens * narrow, size));
        let v = values(3, tokens * narrow);
        let starts = vec![0; tokens];
        let [qs, ks, vs] = [&q, &k, &v].map(|x| wide(x));
        // A softcap stands where there is no window.
        let softcap = window.is_none().then_some(2.0);
        let (mut expected, mut lse) = reference::forward_capped(
            &qs,
            &ks,
            &vs,
            &starts,
            window,
            heads,
            kv_heads,
            softcap.map(f64::from),
        );
        let sinks = window.map(|_| values(7, heads));
        if let Some(sinks) = &sinks {
            reference::add_sinks(&mut expected, &mut lse, &wide(sinks));
        }
        let sinks = sinks.map(|sinks| b.gpu.upload("self-test", &sinks)).transpose()?;
        let ring = window.map_or(tokens + 3, |window| window + rows);
        let mut held = vec![f32::NAN; ring * 2 * narrow];
        for t in tokens.saturating_sub(ring)..tokens {
            let row = &mut held[t % ring * 2 * narrow..][..2 * narrow];
            row[..narrow].copy_from_slice(&k[t * narrow..][..narrow]);
            row[narrow..].copy_from_slice(&v[t * narrow..][..narrow]);
        }
        let cache = Cache::new(b.gpu.upload("self-test", &held)?, ring);
        let (products, result) = (b.input(wide_row, &q[past * wide_row..])?, b.output(wide_row, rows)?);
        let before = b.gpu.upload("self-test", &[past as u32])?;
        let parts = Parts::new(b.gpu, heads, wide_row)?;
        let attention = CachedAttention {
            heads,
            gated: false,
            kv_heads,
            head_size: size,
            window,
            sinks: sinks.as_ref(),
            softcap,
        };
        b.run(|rec| {
            let (to, from) = (result.rows(), products.rows());
            attention.forward(rec, to, from, &cache, &before, tokens + 100, &parts, rows);
        })?;
        b.expect(format!("{rows} after {past}"), &result, expected[past * wide_row..].to_vec(), F32);
    }
    Ok(())
}
