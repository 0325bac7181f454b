//! Attention over packed samples.

use libtest_mimic::Failed;
use rullama_train::gpu::{Gpu, Tier};
use rullama_train::ops::Rows;
use rullama_train::ops::act::Act;
use rullama_train::ops::attention::Attention;
use rullama_train::ops::attention::coop16 as coop_attention;
use rullama_train::ops::attention::coop16::Operands;
use rullama_train::ops::attention::coop16_backward::{ScoreScratch, Scratch};
use rullama_train::ops::pack::Packed;
use rullama_train::reference;

use super::check::{Block, Check, Outcome, Tolerance, UNTOUCHED, run, sum, values, wide};
use super::half::{make_stale, nothing_behind};

/// Scores are sums of up to 512 products, about 3 in size: rounding moves each by some 1e-6, and exp passes the error on.
/// exp itself may be off by 3 + 2|x| ULP (WGSL, 15.7.4.1): about 3e-6 at x = -10.
const FORWARD: Tolerance = Tolerance { norm: 2e-6, relative: 2e-6, absolute: 1e-5 };
/// The log-sum-exp is as exact as the largest score.
const LSE: Tolerance = Tolerance { norm: 1e-6, relative: 1e-6, absolute: 2e-6 };
/// dp − delta cancels in part, and every p has the error above.
const BACKWARD: Tolerance = Tolerance { norm: 5e-6, relative: 5e-6, absolute: 5e-6 };

/// Tolerance with operands in f16: those of scores, and on cooperative matrices also weights and their gradients. At heads of 192, one
/// element of the results is 6.9e-3 off.
const HALF: Tolerance = Tolerance { norm: 3e-3, relative: 7e-3, absolute: 7e-3 };

struct Case {
    /// First rows of the samples.
    starts: &'static [u32],
    tokens: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    window: Option<usize>,
    softcap: Option<f32>,
}

/// Sizes against blocks of 32 tokens and of 32 and 64 dimensions, samples that end inside a block, and windows
/// that are one, smaller than a block, a block, larger, and none. Some have a softcap: of one head size without matrices of 16×16, of each
/// with them, and then without a softcap too.
fn cases(sizes: &[usize], cooperative: bool) -> Vec<Case> {
    const WINDOWS: [Option<usize>; 5] = [None, Some(1), Some(5), Some(32), Some(64)];
    const HEADS: [(usize, usize); 4] = [(1, 1), (4, 2), (4, 1), (2, 2)];
    const PACKED: [(usize, &[u32]); 10] = [
        (1, &[0]),
        (31, &[0]),
        (33, &[0, 1, 14]),
        (66, &[0, 7]),
        (97, &[0]),
        (97, &[0, 1, 33, 34, 77]),
        (97, &[0, 31, 64, 96]),
        (200, &[0, 130]),
        (520, &[0, 300]),
        (397, &[0, 5]),
    ];
    let mut cases = Vec::new();
    for (s, head_size) in sizes.iter().copied().enumerate() {
        for (p, (tokens, starts)) in PACKED.into_iter().enumerate() {
            for (w, window) in WINDOWS.into_iter().enumerate() {
                // All combinations at one size; at the others a third of them, each time a different third.
                if head_size != 100 && (s + p + w) % 3 != 0 {
                    continue;
                }
                let (heads, kv_heads) = HEADS[(s + p + w) % 4];
                let is_capped = tokens % 3 == 1 && (head_size == 100 || cooperative);
                let case = |softcap| Case { starts, tokens, heads, kv_heads, head_size, window, softcap };
                if cooperative || !is_capped {
                    cases.push(case(None));
                }
                cases.extend(is_capped.then(|| case(Some(2.5))));
            }
        }
    }
    cases
}

/// `out` and the log-sum-exp; `dq`; `dk` and `dv`, which are added to their buffers.
pub fn forward_and_backward(gpu: &Gpu, sizes: &[usize]) -> Outcome {
    let cooperative = gpu.kernels().reads_tiles();
    let in_f16 = gpu.kernels().tier() != Tier::F32;
    let [forward, lse, backward] = if in_f16 { [HALF; 3] } else { [FORWARD, LSE, BACKWARD] };
    let mut out_check = Check::new("attention out", forward);
    let mut lse_check = Check::new("attention lse", lse);
    let mut checks = ["attention dq", "attention dk", "attention dv"].map(|what| Check::new(what, backward));
    for c in cases(sizes, cooperative) {
        let Case { starts, tokens, heads, kv_heads, head_size, window, softcap } = c;
        let name =
            format!("T={tokens} starts={starts:?} H={heads} G={kv_heads} K={head_size} window={window:?}");
        let (q_len, kv_len) = (tokens * heads * head_size, tokens * kv_heads * head_size);
        // Scores of about 3 at every head size.
        let size = 3.0 * (3.0 / (head_size as f32).sqrt()).sqrt();
        let of_size = |seed, len| values(seed, len).iter().map(|x| size * x).collect::<Vec<f32>>();
        let (q, k, v) = (of_size(1, q_len), of_size(2, kv_len), values(3, kv_len));
        let (dk, dv) = (values(5, kv_len), values(6, kv_len));
        // Rows of different size, none with a largest value in [½, 1).
        let row_size = |i: usize| if (i / (heads * head_size)).is_multiple_of(2) { 4.0 } else { 8.0 };
        let dout: Vec<f32> = values(4, q_len).iter().enumerate().map(|(i, x)| row_size(i) * x).collect();

        let start_of = |t: usize| *starts.iter().rfind(|&&s| s as usize <= t).expect("the first is 0");
        let end_of = |t: usize| *starts.iter().find(|&&s| s as usize > t).unwrap_or(&(tokens as u32));
        let row_starts: Vec<u32> = (0..tokens).map(start_of).collect();
        let bounds: Vec<[u32; 2]> = (0..tokens).map(|t| [start_of(t), end_of(t)]).collect();
        let [wide_q, wide_k, wide_v] = [&q, &k, &v].map(|x| wide(x));
        let (mut out, mut lse) = reference::attention::forward_capped(
            &wide_q,
            &wide_k,
            &wide_v,
            &row_starts,
            window,
            heads,
            kv_heads,
            softcap.map(f64::from),
        );
        // Half of the cases have sinks, about as large as the scores.
        let sinks = (tokens + head_size / 4 + window.unwrap_or(0)).is_multiple_of(2);
        let sinks = sinks.then(|| values(7, heads).iter().map(|x| 3.0 * x).collect::<Vec<f32>>());
        if let Some(sinks) = &sinks {
            reference::attention::add_sinks(&mut out, &mut lse, &wide(sinks));
        }
        let name = format!("{name} sinks={} softcap={softcap:?}", sinks.is_some());
        let (mut dk_expected, mut dv_expected) = (vec![0.0; kv_len], vec![0.0; kv_len]);
        let dq_expected = reference::attention::backward_capped(
            &wide(&dout),
            &wide_q,
            &wide_k,
            &wide_v,
            &row_starts,
            window,
            heads,
            kv_heads,
            &out,
            &lse,
            &mut dk_expected,
            &mut dv_expected,
            softcap.map(f64::from),
        );
        let dk_expected = sum(&dk_expected, &wide(&dk));
        let dv_expected = sum(&dv_expected, &wide(&dv));

        let (q_width, kv_width) = (heads * head_size, kv_heads * head_size);
        let input = |width: usize, x: &[f32]| Block::input(gpu, (0, 0), width, x);
        let (q, k, v, dout) =
            (input(q_width, &q), input(kv_width, &k), input(kv_width, &v), input(q_width, &dout));
        let (dk, dv) = (Block::in_out(gpu, (0, 0), kv_width, &dk), Block::in_out(gpu, (0, 0), kv_width, &dv));
        let [out_block, dq] = [(); 2].map(|()| Block::output(gpu, (0, 0), q_width, tokens));
        // Without padding between the rows: [T, H].
        let [lse_block, delta] =
            [1, 2].map(|n| Block::output(gpu, (0, 0), n * tokens.next_multiple_of(4) * heads, 1));
        let dheads = Rows::new(gpu, "dheads", tokens, heads * head_size)?;
        let bounds = gpu.upload("bounds", &bounds)?;
        let longest = tokens;
        // Packed values are unscaled here.
        let [q_scale, k_scale] = if cooperative { [1.0; 2] } else { [0.5, 4.0] };
        let (rows, bounds) = (tokens, &bounds);
        let sinks = sinks.map(|sinks| gpu.upload("sinks", &sinks)).transpose()?;
        let sinks = sinks.as_ref();
        let attention = Attention {
            heads,
            kv_heads,
            head_size,
            window,
            sinks,
            softcap,
            bounds,
            rows,
            longest,
            q_scale,
            k_scale,
        };
        // Every other case runs in parts of two blocks of keys and one of queries. Unwritten scratch must not be read.
        let (of_part, reach) = if tokens % 2 == 0 { (tokens, window.unwrap_or(tokens)) } else { (256, 1) };
        let half = ScoreScratch::least_bytes(heads, of_part, reach) / 2;
        let memory = Rows::new(gpu, "left", 1, half as usize / 2)?;
        gpu.write(&memory.buffer, &vec![half::f16::NAN; half as usize]);
        let left = ScoreScratch::within([&memory, &memory], [0, half], half);
        let cooperative_scratch = Scratch::new(gpu, tokens, q_width, heads, left)?;
        // A row whose largest value is ½ is unscaled, and so are rows with its scaling.
        let halves = Block::input(gpu, (0, 0), 4, &vec![0.5; 4 * tokens]);
        let unscaled = Packed::new(gpu, "unscaled", tokens, 4)?;
        let packed = |width: usize| Packed::new(gpu, "packed", tokens, width);
        let packed = [packed(q_width)?, packed(kv_width)?, packed(kv_width)?];
        let gradients = [&dq.rows, &dk.rows, &dv.rows];
        let inputs = [&q.rows, &k.rows, &v.rows];
        let (out_rows, lse_rows, scratch) = (&out_block.rows, &lse_block.rows, [&delta.rows, &dheads]);
        // Every other head size packs its result.
        let packed_out = Packed::new(gpu, "packed out", tokens, q_width)?;
        let leaves_packed = cooperative && [64, 256, 512].contains(&head_size);
        if leaves_packed {
            make_stale(gpu, &packed_out, q_width, tokens);
        }
        run(gpu, |rec| {
            if cooperative {
                unscaled.pack(rec, halves.rows.all(), 4, tokens);
                for (packed, (x, width)) in packed.iter().zip([(&q, q_width), (&k, kv_width), (&v, kv_width)])
                {
                    packed.pack_alike(rec, x.rows.all(), width, tokens, &unscaled);
                }
                let [pq, pk, pv] = &packed;
                let operands = Operands { q: pq, k: pk, v: pv };
                let packed = leaves_packed.then(|| packed_out.clone());
                let out = &match packed {
                    Some(packed) => Act::tiled(packed, Some(out_rows.clone())),
                    None => out_rows.clone().into(),
                };
                coop_attention::forward(rec, &attention, out, lse_rows, operands);
                out.f32(rec, tokens);
                let (scratch, dout) = (&cooperative_scratch, &dout.rows);
                scratch.backward(rec, &attention, gradients, &dheads, dout, operands, out, lse_rows);
            } else {
                attention.forward(rec, out_rows, lse_rows, inputs[0], inputs[1], inputs[2]);
                attention.backward(rec, gradients, scratch, &dout.rows, inputs, out_rows, lse_rows);
            }
        })?;
        if leaves_packed {
            nothing_behind(gpu, &packed_out, q_width, tokens, &name)?;
        }
        out_check.close(&name, q_width, &out_block.read(gpu, &name)?, &out)?;
        let lse_found = per_row(gpu, &name, &lse_block, tokens * heads)?;
        per_row(gpu, &name, &delta, 2 * tokens * heads)?;
        // An lse may be near zero; it is a sum of scores of about 3.
        lse_check.close_to(&name, heads, &lse_found, &lse, 3.0)?;
        for (check, (block, expected)) in
            checks.iter_mut().zip([(&dq, &dq_expected), (&dk, &dk_expected), (&dv, &dv_expected)])
        {
            // If every token sees only itself, dq and dk vanish: they are a difference of two sums over the head size,
            // which may be rounded differently.
            let alone = window == Some(1) || tokens == 1;
            let terms = if alone { (head_size as f32).sqrt() } else { 2.0 };
            let (width, floor) = (expected.len() / tokens, if in_f16 { 8.0 * size } else { terms * size });
            check.close_to(&name, width, &block.read(gpu, &name)?, expected, f64::from(floor))?;
        }
    }
    out_check.done()?;
    lse_check.done()?;
    checks.into_iter().try_for_each(Check::done)
}

/// The first `len` values by row and head, after checking that nothing past them was written.
fn per_row(gpu: &Gpu, case: &str, block: &Block, len: usize) -> Result<Vec<f64>, Failed> {
    let mut found = block.read(gpu, case)?;
    match found.split_off(len).iter().any(|&x| x != f64::from(UNTOUCHED)) {
        true => Err(format!("attention {case}: something behind the values by row was written").into()),
        false => Ok(found),
    }
}

/// Scores that differ by more than exp can take: the largest score of all keys so far must be subtracted, whichever block
/// it is in. With q = (1, 0, 0, 0) the scores are the keys' first values, exactly.
pub fn large_scores(gpu: &Gpu) -> Outcome {
    let cooperative = gpu.kernels().reads_tiles();
    let mut check =
        Check::new("attention, large scores", if gpu.kernels().tier() == Tier::F32 { FORWARD } else { HALF });
    let tokens = 97;
    let by_key = |score: fn(usize) -> f32| (0..tokens).map(score).collect::<Vec<f32>>();
    let scores = [
        ("the first", by_key(|j| if j == 0 { 300.0 } else { -300.0 })),
        ("rising", by_key(|j| 12.0 * j as f32 - 900.0)),
        ("falling", by_key(|j| 900.0 - (4 * j * j / 8) as f32)),
        ("in steps that need no other reference", by_key(|j| 5.0 * (j / 32) as f32)),
    ];
    // A sink near the largest of all scores is far above those of some queries.
    let near = |scores: &[f32]| scores.iter().copied().reduce(f32::max).map(|most| most - 3.0);
    let cases = scores.iter().flat_map(|case| [None, near(&case.1)].map(|sink| (case, sink, None)));
    // A softcap of kernels in f16 alone: exp of scores near 50 loses more than the tolerance of f32.
    let capped = scores.iter().map(|case| (case, None, Some(50.0f32))).filter(|_| cooperative);
    for ((name, scores), sink, softcap) in cases.chain(capped) {
        // A head size of both kinds of kernels on matrices, and one of those that have a softcap in CUDA.
        let width = if !cooperative {
            4
        } else if softcap.is_some() {
            128
        } else {
            64
        };
        let name = format!("{name}, sink {sink:?}, softcap {softcap:?}");
        let name = name.as_str();
        let row = |first: f32| [vec![first], vec![0.25; width - 1]].concat();
        let q: Vec<f32> = [vec![1.0], vec![0.0; width - 1]].concat().repeat(tokens);
        // f16 holds them exactly.
        let k: Vec<f32> = scores.iter().flat_map(|&score| row(half::f16::from_f32(score).to_f32())).collect();
        let v = values(3, tokens * width);
        let starts = vec![0; tokens];
        let [wide_q, wide_k, wide_v] = [&q, &k, &v].map(|x| wide(x));
        let cap = softcap.map(f64::from);
        let (mut expected, mut lse) =
            reference::attention::forward_capped(&wide_q, &wide_k, &wide_v, &starts, None, 1, 1, cap);
        if let Some(sink) = sink {
            reference::attention::add_sinks(&mut expected, &mut lse, &[f64::from(sink)]);
        }
        let sinks = sink.map(|sink| gpu.upload("sinks", &[sink])).transpose()?;
        let [q, k, v] = [&q, &k, &v].map(|x| Block::input(gpu, (0, 0), width, x));
        let (out, lse_block) =
            (Block::output(gpu, (0, 0), width, tokens), Block::output(gpu, (0, 0), 100, 1));
        let bounds = gpu.upload("bounds", &vec![[0, tokens as u32]; tokens])?;
        let attention = Attention {
            sinks: sinks.as_ref(),
            softcap,
            ..Attention::of_sample([1, 1, width], tokens, &bounds)
        };
        let [pq, pk, pv] = [(); 3].map(|()| Packed::new(gpu, "packed", tokens, width));
        let (pq, pk, pv, unscaled) = (pq?, pk?, pv?, Packed::new(gpu, "unscaled", tokens, 4)?);
        let halves = Block::input(gpu, (0, 0), 4, &vec![0.5; 4 * tokens]);
        run(gpu, |rec| {
            if cooperative {
                unscaled.pack(rec, halves.rows.all(), 4, tokens);
                for (packed, x) in [(&pq, &q), (&pk, &k), (&pv, &v)] {
                    packed.pack_alike(rec, x.rows.all(), width, tokens, &unscaled);
                }
                let operands = Operands { q: &pq, k: &pk, v: &pv };
                coop_attention::forward(rec, &attention, &out.rows.clone().into(), &lse_block.rows, operands);
            } else {
                attention.forward(rec, &out.rows, &lse_block.rows, &q.rows, &k.rows, &v.rows);
            }
        })?;
        check.close(name, width, &out.read(gpu, name)?, &expected)?;
        check.close(&format!("lse, {name}"), 1, &per_row(gpu, name, &lse_block, tokens)?, &lse)?;
    }
    check.done()
}
