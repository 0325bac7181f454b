//! Attention of new tokens over a cache, against the reference over whole sequences.

use super::bench::Bench;
use super::case::{Case, Combined, Needs};
use super::inputs::{values, wide};
use super::tolerance::Tolerance;
use crate::gpu::GpuError;
use crate::ops::cached_attention::{CachedAttention, Parts};
use crate::ops::cached_heads::Cache;
use crate::reference::attention as reference;

/// That of attention over packed samples.
const FORWARD: Tolerance = Tolerance::new(2e-6, 2e-6, 1e-5);

pub const CASES: [Case; 1] = [Case {
    op: "cached_attention",
    name: "over a cache",
    needs: Needs::Any,
    variants: super::F32,
    shapes: &Combined {
        small: &[small(70, 3, None, Some(2.0)), small(75, 1, Some(5), None)],
        more: combinations,
        check: forward,
    },
}];

#[derive(Clone, Copy, Debug)]
struct Shape {
    past: usize,
    rows: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    window: Option<usize>,
    sinks: bool,
    softcap: Option<f32>,
}

/// Four heads that share two of keys and values. Those with a window have sinks.
const fn small(past: usize, rows: usize, window: Option<usize>, softcap: Option<f32>) -> Shape {
    Shape { past, rows, heads: 4, kv_heads: 2, head_size: 36, window, sinks: window.is_some(), softcap }
}

/// Tokens before, at and after multiples of 64 keys; one token, several, and too many for a split; windows of one, less than 64, more, and
/// none; one to sixteen query heads per key/value head; heads over one and two columns per thread. Every third past has
/// a softcap, and every other one has sinks.
fn combinations() -> Vec<Shape> {
    const PAST: [(usize, usize); 8] =
        [(0, 1), (63, 1), (64, 1), (200, 1), (0, 8), (61, 5), (130, 8), (70, 33)];
    const HEADS: [(usize, usize); 5] = [(1, 1), (8, 1), (6, 2), (4, 4), (16, 1)];
    const WINDOWS: [Option<usize>; 4] = [None, Some(1), Some(50), Some(100)];
    let mut shapes = Vec::new();
    for (s, head_size) in [4, 32, 100, 256, 320, 512].into_iter().enumerate() {
        for (p, (past, rows)) in PAST.into_iter().enumerate() {
            for (w, window) in WINDOWS.into_iter().enumerate() {
                if head_size != 100 && (s + p + w) % 3 != 0 {
                    continue;
                }
                let (heads, kv_heads) = HEADS[(s + p + w) % 5];
                let (sinks, softcap) = (past.is_multiple_of(2), past.is_multiple_of(3).then_some(2.5));
                shapes.push(Shape { past, rows, heads, kv_heads, head_size, window, sinks, softcap });
            }
        }
    }
    shapes
}

/// New tokens over a cache that is a ring.
fn forward(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let &Shape { past, rows, heads, kv_heads, head_size, window, softcap, .. } = shape;
    let size = 3.0 * (3.0 / (head_size as f32).sqrt()).sqrt();
    let of_size = |seed, len| values(seed, len).iter().map(|x| size * x).collect::<Vec<f32>>();
    let (tokens, wide_row, narrow) = (past + rows, heads * head_size, kv_heads * head_size);
    let (q, k) = (of_size(1, tokens * wide_row), of_size(2, tokens * narrow));
    let v = values(3, tokens * narrow);
    let sinks = shape.sinks.then(|| values(7, heads).iter().map(|x| 3.0 * x).collect::<Vec<f32>>());
    let on_device = sinks.as_ref().map(|sinks| b.gpu.upload("case", sinks)).transpose()?;
    // A ring that a window just fits in; the rest of it holds NaN.
    let ring = window.map_or(tokens + 3, |window| window + rows);
    let mut held = vec![f32::NAN; ring * 2 * narrow];
    for t in tokens.saturating_sub(ring)..tokens {
        let row = &mut held[t % ring * 2 * narrow..][..2 * narrow];
        row[..narrow].copy_from_slice(&k[t * narrow..][..narrow]);
        row[narrow..].copy_from_slice(&v[t * narrow..][..narrow]);
    }
    let cache = Cache::new(b.gpu.upload("case", &held)?, ring);
    let products = b.input_within((0, 12), wide_row, &q[past * wide_row..])?;
    let result = b.output(wide_row, rows)?;
    let before = b.gpu.upload("case", &[past as u32])?;
    let parts = Parts::new(b.gpu, heads, wide_row)?;
    let attention = CachedAttention {
        heads,
        gated: false,
        kv_heads,
        head_size,
        window,
        sinks: on_device.as_ref(),
        softcap,
    };
    b.run(|rec| {
        let (to, from) = (result.rows(), products.rows());
        attention.forward(rec, to, from, &cache, &before, tokens + 100, &parts, rows);
    })?;
    if b.compares() {
        let (q, k, v, starts) = (wide(&q), wide(&k), wide(&v), vec![0; tokens]);
        let cap = softcap.map(f64::from);
        let (mut expected, mut lse) =
            reference::forward_capped(&q, &k, &v, &starts, window, heads, kv_heads, cap);
        if let Some(sinks) = &sinks {
            reference::add_sinks(&mut expected, &mut lse, &wide(sinks));
        }
        b.expect(format!("{shape:?}"), &result, expected.split_off(past * wide_row), FORWARD);
    }
    Ok(())
}
