//! Attention of new tokens over a cache, against the reference over whole sequences.

use rullama_train::gpu::Gpu;
use rullama_train::ops::cached_attention::{CachedAttention, Parts};
use rullama_train::ops::cached_heads::Cache;
use rullama_train::reference;

use super::check::{Block, Check, Outcome, Tolerance, run, values, wide};

/// As in attention.rs.
const FORWARD: Tolerance = Tolerance { norm: 2e-6, relative: 2e-6, absolute: 1e-5 };

struct Case {
    past: usize,
    rows: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    window: Option<usize>,
}

/// Tokens before, at and after multiples of 64 keys; one token, several, and too many for a split; windows of one, less
/// than 64, more, and none; one to sixteen query heads per key/value head; heads over one and two columns per thread.
fn cases() -> Vec<Case> {
    const PAST: [(usize, usize); 8] =
        [(0, 1), (63, 1), (64, 1), (200, 1), (0, 8), (61, 5), (130, 8), (70, 33)];
    const HEADS: [(usize, usize); 5] = [(1, 1), (8, 1), (6, 2), (4, 4), (16, 1)];
    const WINDOWS: [Option<usize>; 4] = [None, Some(1), Some(50), Some(100)];
    let mut cases = Vec::new();
    for (s, head_size) in [4, 32, 100, 256, 320, 512].into_iter().enumerate() {
        for (p, (past, rows)) in PAST.into_iter().enumerate() {
            for (w, window) in WINDOWS.into_iter().enumerate() {
                if head_size != 100 && (s + p + w) % 3 != 0 {
                    continue;
                }
                let (heads, kv_heads) = HEADS[(s + p + w) % 5];
                cases.push(Case { past, rows, heads, kv_heads, head_size, window });
            }
        }
    }
    cases
}

pub fn forward(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("cached_attention", FORWARD);
    for c in cases() {
        let Case { past, rows, heads, kv_heads, head_size, window } = c;
        let name = format!("past={past} T={rows} H={heads} G={kv_heads} K={head_size} window={window:?}");
        let size = 3.0 * (3.0 / (head_size as f32).sqrt()).sqrt();
        let of_size = |seed, len| values(seed, len).iter().map(|x| size * x).collect::<Vec<f32>>();
        let (tokens, q_width, kv_width) = (past + rows, heads * head_size, kv_heads * head_size);
        let (q, k, v) =
            (of_size(1, tokens * q_width), of_size(2, tokens * kv_width), values(3, tokens * kv_width));
        let starts = vec![0; tokens];
        let [wide_q, wide_k, wide_v] = [&q, &k, &v].map(|x| wide(x));
        // Every third past has a softcap.
        let softcap = past.is_multiple_of(3).then_some(2.5f32);
        let (mut expected, mut lse) = reference::attention::forward_capped(
            &wide_q,
            &wide_k,
            &wide_v,
            &starts,
            window,
            heads,
            kv_heads,
            softcap.map(f64::from),
        );
        // Every other past has sinks.
        let sinks = (past % 2 == 0).then(|| values(7, heads).iter().map(|x| 3.0 * x).collect::<Vec<f32>>());
        if let Some(sinks) = &sinks {
            reference::attention::add_sinks(&mut expected, &mut lse, &wide(sinks));
        }
        let sinks = sinks.map(|sinks| gpu.upload("sinks", &sinks)).transpose()?;
        // A ring that a window just fits in; the rest of it holds NaN.
        let ring = window.map_or(tokens + 3, |w| w + rows);
        let mut cached = vec![f32::NAN; ring * 2 * kv_width];
        for t in tokens.saturating_sub(ring)..tokens {
            let row = &mut cached[t % ring * 2 * kv_width..][..2 * kv_width];
            row[..kv_width].copy_from_slice(&k[t * kv_width..][..kv_width]);
            row[kv_width..].copy_from_slice(&v[t * kv_width..][..kv_width]);
        }
        let cache = Cache::new(gpu.upload("cache", &cached)?, ring);
        let products = Block::input(gpu, (0, 12), q_width, &q[past * q_width..]);
        let result = Block::output(gpu, (0, 0), q_width, rows);
        let before = gpu.upload("past", &[past as u32])?;
        let parts = Parts::new(gpu, heads, q_width)?;
        let attention = CachedAttention {
            heads,
            gated: false,
            kv_heads,
            head_size,
            window,
            sinks: sinks.as_ref(),
            softcap,
        };
        let context = tokens + 100;
        run(gpu, |rec| {
            attention.forward(rec, &result.rows, &products.rows, &cache, &before, context, &parts, rows);
        })?;
        check.close(&name, q_width, &result.read(gpu, &name)?, &expected[past * q_width..])?;
    }
    check.done()
}

/// With keys split, of which the last workgroup of each block of queries adds up the parts.
pub fn arriving(gpu: &Gpu) -> Outcome {
    forward(&gpu.with_kernels(gpu.kernels().filling(1 << 20).ordering_storage()))
}
