//! Attention over packed samples.

use super::bench::Bench;
use super::block::Block;
use super::case::{Case, Needs, Shapes};
use super::inputs::{plus, values, wide};
use super::step::Step;
use super::tolerance::Tolerance;
use crate::gpu::{GpuError, Tier};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::attention::{Attention, coop16, coop16_backward, cuda};
use crate::ops::pack::Packed;
use crate::reference::attention as reference;

/// Scores are sums of up to 512 products, about 3 in size: rounding moves each by some 1e-6, and exp passes the error on. exp itself may
/// be off by 3 + 2|x| ULP (WGSL, 15.7.4.1): about 3e-6 at x = -10.
const FORWARD: Tolerance = Tolerance::new(2e-6, 2e-6, 1e-5);
/// The log-sum-exp is as exact as the largest score. It may be near zero: it is a sum of scores of about 3.
const LSE: Tolerance = Tolerance::new(1e-6, 1e-6, 2e-6).around(3.0);
/// dp − delta cancels in part, and every p has the error above.
const BACKWARD: Tolerance = Tolerance::new(5e-6, 5e-6, 5e-6);
/// Tolerance with operands in f16: those of scores, and on cooperative matrices also weights and their gradients. At heads of 192, one
/// element of the results is 6.9e-3 off.
const HALF: Tolerance = Tolerance { device: 1e-2, norm: 3e-3, relative: 7e-3, absolute: 7e-3, size: 0.0 };

/// A softcap that bends most scores.
const SOFTCAP: f32 = 2.5;

/// A shape of attention.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// First rows of the samples.
    starts: &'static [u32],
    tokens: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    window: Option<usize>,
    sinks: bool,
    softcap: Option<f32>,
    /// Whether kernels on matrices pack their result.
    packs: bool,
}

pub const CASES: [Case; 5] = [
    Case {
        op: "attention",
        name: "forward and backward",
        needs: Needs::Rows,
        variants: super::ROWS,
        shapes: &Shapes {
            small: &[small([67, 4, 2, 36], None, None), small([67, 2, 1, 100], Some(20), None)],
            more: &[],
            check: both_ways,
        },
    },
    Case {
        op: "attention",
        name: "forward and backward",
        needs: Needs::Tiles,
        variants: super::TILES,
        shapes: &Shapes {
            small: &[
                small([67, 4, 2, 64], None, None),
                small([67, 2, 1, 32], Some(20), None),
                small([131, 2, 1, 128], None, None),
                small([67, 2, 1, 256], Some(20), None),
            ],
            more: &[],
            check: both_ways,
        },
    },
    Case {
        op: "attention",
        name: "a softcap",
        needs: Needs::Rows,
        variants: super::ROWS,
        shapes: &Shapes { small: &[small([67, 4, 2, 36], None, Some(SOFTCAP))], more: &[], check: both_ways },
    },
    // CUDA's kernels have a softcap for heads of 128 and 256 alone.
    Case {
        op: "attention",
        name: "a softcap",
        needs: Needs::Tiles,
        variants: super::TILES,
        shapes: &Shapes {
            small: &[
                small([67, 4, 2, 64], Some(20), Some(SOFTCAP)),
                small([131, 2, 1, 128], None, Some(SOFTCAP)),
                small([67, 2, 1, 256], Some(20), Some(SOFTCAP)),
            ],
            more: &[],
            check: both_ways,
        },
    },
    Case {
        op: "attention",
        name: "large scores",
        needs: Needs::Any,
        variants: super::EVERY,
        shapes: &Shapes::<Scores> {
            small: &[],
            more: &[
                ("the first", |key| if key == 0 { 300.0 } else { -300.0 }),
                ("rising", |key| 12.0 * key as f32 - 900.0),
                ("falling", |key| 900.0 - (4 * key * key / 8) as f32),
                ("in steps that need no other reference", |key| 5.0 * (key / 32) as f32),
            ],
            check: large_scores,
        },
    },
];

/// Two samples, the second of which begins inside a block: tokens, heads, key/value heads and head size. Those with a window have sinks.
const fn small(
    [tokens, heads, kv_heads, head_size]: [usize; 4],
    window: Option<usize>,
    softcap: Option<f32>,
) -> Shape {
    let sinks = window.is_some();
    Shape { starts: &[0, 30], tokens, heads, kv_heads, head_size, window, sinks, softcap, packs: false }
}

/// Heads of some sizes against blocks of 32 tokens and of 32 and 64 dimensions, samples that end inside a block, and windows that are one,
/// smaller than a block, a block, larger, and none. Half of the shapes have sinks. Some have a softcap: of one head size without matrices of
/// 16×16, of each with them, and then without a softcap too.
pub fn of_heads(sizes: &[usize], cooperative: bool) -> Vec<Shape> {
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
    let mut shapes = Vec::new();
    for (s, head_size) in sizes.iter().copied().enumerate() {
        for (p, (tokens, starts)) in PACKED.into_iter().enumerate() {
            for (w, window) in WINDOWS.into_iter().enumerate() {
                // All combinations at one size; at the others a third of them, each time a different third.
                if head_size != 100 && (s + p + w) % 3 != 0 {
                    continue;
                }
                let (heads, kv_heads) = HEADS[(s + p + w) % 4];
                let sinks = (tokens + head_size / 4 + window.unwrap_or(0)).is_multiple_of(2);
                let is_capped = tokens % 3 == 1 && (head_size == 100 || cooperative);
                // Every other head size packs its result.
                let packs = [64, 256, 512].contains(&head_size);
                let shape = |softcap| Shape {
                    starts,
                    tokens,
                    heads,
                    kv_heads,
                    head_size,
                    window,
                    sinks,
                    softcap,
                    packs,
                };
                if cooperative || !is_capped {
                    shapes.push(shape(None));
                }
                shapes.extend(is_capped.then(|| shape(Some(SOFTCAP))));
            }
        }
    }
    shapes
}

/// Layers of a step: one sample, one head of keys, without sinks.
pub fn of_step(step: &Step) -> [Shape; 2] {
    step.layers.map(|(head_size, window)| Shape {
        starts: &[0],
        sinks: false,
        ..small([step.tokens, step.heads, 1, head_size], window, None)
    })
}

/// The reference's results.
struct Expected {
    out: Vec<f64>,
    lse: Vec<f64>,
    dq: Vec<f64>,
    dk: Vec<f64>,
    dv: Vec<f64>,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "heads of {}", self.head_size)?;
        self.window.map_or(Ok(()), |window| write!(f, ", window {window}"))
    }
}

impl Shape {
    /// Floating-point operations of one product of queries and keys of one sample, at the pairs that a query sees.
    pub fn operations(&self) -> f64 {
        let seen = |t: usize| self.window.map_or(t + 1, |window| window.min(t + 1));
        (2 * (0..self.tokens).map(seen).sum::<usize>() * self.heads * self.head_size) as f64
    }

    /// First row and one past the last row of each token's sample.
    fn bounds(&self) -> Vec<[u32; 2]> {
        let start = |t: usize| *self.starts.iter().rfind(|&&s| s as usize <= t).expect("the first is 0");
        let end = |t: usize| *self.starts.iter().find(|&&s| s as usize > t).unwrap_or(&(self.tokens as u32));
        (0..self.tokens).map(|t| [start(t), end(t)]).collect()
    }

    /// Values of queries and keys whose scores are about 3.
    fn size(&self) -> f32 {
        3.0 * (3.0 / (self.head_size as f32).sqrt()).sqrt()
    }

    fn expected(&self, [q, k, v, dout]: [&[f32]; 4], sinks: Option<&[f32]>) -> Expected {
        let &Shape { heads, kv_heads, window, softcap, .. } = self;
        let starts: Vec<u32> = self.bounds().iter().map(|bounds| bounds[0]).collect();
        let [q, k, v, dout] = [q, k, v, dout].map(wide);
        let cap = softcap.map(f64::from);
        let (mut out, mut lse) = reference::forward_capped(&q, &k, &v, &starts, window, heads, kv_heads, cap);
        if let Some(sinks) = sinks {
            reference::add_sinks(&mut out, &mut lse, &wide(sinks));
        }
        let [mut dk, mut dv] = [(); 2].map(|()| vec![0.0; k.len()]);
        let dq = reference::backward_capped(
            &dout, &q, &k, &v, &starts, window, heads, kv_heads, &out, &lse, &mut dk, &mut dv, cap,
        );
        Expected { out, lse, dq, dk, dv }
    }
}

/// `out` and the log-sum-exp; `dq`; `dk` and `dv`, which are added to their buffers.
pub fn both_ways(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    // Longer than 60 lines: inputs, both passes and five comparisons of one shape.
    let &Shape { tokens, heads, kv_heads, head_size, window, softcap, .. } = shape;
    let cooperative = b.gpu.kernels().reads_tiles();
    let (wide_row, narrow) = (heads * head_size, kv_heads * head_size);
    let of_size = |seed, len| values(seed, len).iter().map(|x| shape.size() * x).collect::<Vec<f32>>();
    let (q, k) = (of_size(1, tokens * wide_row), of_size(2, tokens * narrow));
    let [v, dk, dv] = [3, 5, 6].map(|seed| values(seed, tokens * narrow));
    // Rows, and 256 columns of these, of different size, none with a largest value in [½, 1).
    let size_at = |i: usize| {
        let by = |odd: bool, size: f32| if odd { size } else { 1.0 };
        4.0 * by(i / wide_row % 2 == 1, 2.0) * by(i % wide_row / 256 % 2 == 1, 0.0625)
    };
    let dout = values(4, tokens * wide_row).into_iter().enumerate();
    let dout: Vec<f32> = dout.map(|(i, x)| size_at(i) * x).collect();
    let sinks = shape.sinks.then(|| values(7, heads).iter().map(|x| 3.0 * x).collect::<Vec<f32>>());

    let [q_block, k_block, v_block, dout_block] =
        [b.input(wide_row, &q)?, b.input(narrow, &k)?, b.input(narrow, &v)?, b.input(wide_row, &dout)?];
    let (out, dq) = (b.output(wide_row, tokens)?, b.output(wide_row, tokens)?);
    let (dk_block, dv_block) = (b.in_out(narrow, &dk)?, b.in_out(narrow, &dv)?);
    // Without padding between the rows: [T, H].
    let places = tokens.next_multiple_of(4) * heads;
    let (lse, delta) = (b.output(places, 1)?, b.output(2 * places, 1)?);
    let bounds = b.gpu.upload("case", &shape.bounds())?;
    let on_device = sinks.as_ref().map(|sinks| b.gpu.upload("case", sinks)).transpose()?;
    // Packed values are unscaled here.
    let [q_scale, k_scale] = if cooperative { [1.0; 2] } else { [0.5, 4.0] };
    let attention = Attention {
        window,
        sinks: on_device.as_ref(),
        softcap,
        q_scale,
        k_scale,
        ..Attention::of_sample([heads, kv_heads, head_size], tokens, &bounds)
    };
    let gradients = [dq.rows(), dk_block.rows(), dv_block.rows()];
    let name = format!("{shape:?}");
    if cooperative {
        let inputs = [&q_block, &k_block, &v_block, &dout_block];
        on_matrices(b, &name, &attention, inputs, (&out, lse.rows()), (gradients, shape.packs))?;
    } else {
        let dheads = Rows::new(b.gpu, "case", tokens, wide_row)?;
        let inputs = [q_block.rows(), k_block.rows(), v_block.rows()];
        b.run(|rec| {
            let ([q, k, v], scratch) = (inputs, [delta.rows(), &dheads]);
            attention.forward(rec, out.rows(), lse.rows(), q, k, v);
            attention.backward(rec, gradients, scratch, dout_block.rows(), inputs, out.rows(), lse.rows());
        })?;
    }
    if !b.compares() {
        return Ok(());
    }
    let expected = shape.expected([&q, &k, &v, &dout], sinks.as_deref());
    let in_f16 = b.gpu.kernels().tier() != Tier::F32;
    let [forward, of_lse, backward] =
        if in_f16 { [HALF, HALF.around(3.0), HALF] } else { [FORWARD, LSE, BACKWARD] };
    // If every token sees only itself, dq and dk vanish: they are a difference of two sums over the head size, which may be rounded
    // differently.
    let alone = window == Some(1) || tokens == 1;
    let terms = if in_f16 {
        8.0
    } else if alone {
        (head_size as f32).sqrt()
    } else {
        2.0
    };
    let backward = backward.around(f64::from(terms * shape.size()));
    b.expect(format!("out, {name}"), &out, expected.out, forward);
    b.expect_first(format!("log-sum-exp, {name}"), &lse, expected.lse, of_lse);
    b.expect_kept(format!("scratch, {name}"), &delta, 2 * tokens * heads);
    b.expect(format!("dq, {name}"), &dq, expected.dq, backward);
    b.expect(format!("dk, {name}"), &dk_block, plus(&expected.dk, 1.0, &wide(&dk)), backward);
    b.expect(format!("dv, {name}"), &dv_block, plus(&expected.dv, 1.0, &wide(&dv)), backward);
    Ok(())
}

/// Rows as packed operands, unscaled.
fn packed(b: &Bench, blocks: &[&Block]) -> Result<Vec<Packed>, GpuError> {
    let tokens = blocks[0].height;
    // A row whose largest value is ½ is unscaled, and so are rows with its scaling.
    let (halves, unscaled) = (b.input(4, &vec![0.5; 4 * tokens])?, Packed::new(b.gpu, "case", tokens, 4)?);
    let room = |block: &&Block| Packed::new(b.gpu, "case", tokens, block.width);
    let packed: Vec<Packed> = blocks.iter().map(room).collect::<Result<_, _>>()?;
    b.untimed(|rec| {
        unscaled.pack(rec, halves.rows().all(), 4, tokens);
        for (packed, block) in packed.iter().zip(blocks) {
            packed.pack_alike(rec, block.rows().all(), block.width, tokens, &unscaled);
        }
    })?;
    Ok(packed)
}

fn on_matrices(
    b: &mut Bench,
    name: &str,
    attention: &Attention,
    [q, k, v, dout]: [&Block; 4],
    (out, lse): (&Block, &Rows),
    (gradients, packs): ([&Rows; 3], bool),
) -> Result<(), GpuError> {
    let Attention { heads, head_size, rows: tokens, window, .. } = *attention;
    let wide_row = heads * head_size;
    let packed = packed(b, &[q, k, v])?;
    // Every other shape runs in parts of two blocks of keys and one of queries. Unwritten scratch must not be read.
    let whole = tokens % 2 == 0 || b.is_timed();
    let (of_part, reach) = if whole { (tokens, window.unwrap_or(tokens)) } else { (256, 1) };
    let half = coop16_backward::ScoreScratch::least_bytes(heads, of_part, reach) / 2;
    let memory = Rows::new(b.gpu, "case", 1, half as usize / 2)?;
    b.gpu.write(&memory.buffer, &vec![u32::MAX; half as usize / 2]);
    let left = coop16_backward::ScoreScratch::within([&memory, &memory], [0, half], half);
    let scratch = coop16_backward::Scratch::new(b.gpu, tokens, wide_row, heads, left)?;
    let dheads = Rows::new(b.gpu, "case", tokens, wide_row)?;
    let result = Packed::new(b.gpu, "case", tokens, wide_row)?;
    if packs {
        b.make_stale(&result, wide_row, tokens);
    }
    let takes_halves = packs && cuda::supports(b.gpu, head_size, attention.softcap);
    let halves = takes_halves.then(|| Packed::in_blocks(b.gpu, "case", tokens, wide_row)).transpose()?;
    b.run(|rec| {
        let operands = coop16::Operands { q: &packed[0], k: &packed[1], v: &packed[2] };
        let out = match packs {
            true => Act::tiled(result.clone(), Some(out.rows().clone())),
            false => out.rows().clone().into(),
        };
        coop16::forward(rec, attention, &out, lse, operands);
        out.f32(rec, tokens);
        if let Some(halves) = &halves {
            halves.pack(rec, dout.rows().all(), wide_row, tokens);
        }
        let dout = (dout.rows(), halves.clone());
        scratch.backward(rec, attention, gradients, &dheads, dout, operands, &out, lse);
    })?;
    if packs {
        b.expect_nothing_behind(format!("packed out, {name}"), &result, wide_row, tokens);
    }
    Ok(())
}

/// A name, and the score of a key.
type Scores = (&'static str, fn(usize) -> f32);

/// Scores that differ by more than exp can take: the largest score of all keys so far must be subtracted, whichever block it is in.
fn large_scores(b: &mut Bench, (name, score): &Scores) -> Result<(), GpuError> {
    let scores: Vec<f32> = (0..97).map(score).collect();
    let most = scores.iter().copied().fold(f32::MIN, f32::max);
    // A sink near the largest of all scores is far above those of some queries.
    large(b, name, &scores, Some(most - 3.0), None)?;
    // exp of scores near 50 loses more than the tolerance of f32.
    if b.gpu.kernels().reads_tiles() {
        large(b, name, &scores, None, Some(50.0))?;
    }
    large(b, name, &scores, None, None)
}

/// With q = (1, 0, …) the scores are the keys' first values, exactly.
fn large(
    b: &mut Bench,
    name: &str,
    scores: &[f32],
    sink: Option<f32>,
    softcap: Option<f32>,
) -> Result<(), GpuError> {
    let (tokens, cooperative) = (scores.len(), b.gpu.kernels().reads_tiles());
    // A head size of both kinds of kernels on matrices, and one of those that have a softcap in CUDA.
    let width = if !cooperative {
        4
    } else if softcap.is_some() {
        128
    } else {
        64
    };
    let name = format!("{name}, sink {sink:?}, softcap {softcap:?}");
    let row = |first: f32| [vec![first], vec![0.25; width - 1]].concat();
    let q: Vec<f32> = [vec![1.0], vec![0.0; width - 1]].concat().repeat(tokens);
    // f16 holds them exactly.
    let k: Vec<f32> = scores.iter().flat_map(|&score| row(half::f16::from_f32(score).to_f32())).collect();
    let v = values(3, tokens * width);
    let sinks = sink.map(|sink| b.gpu.upload("case", &[sink])).transpose()?;
    let blocks = [b.input(width, &q)?, b.input(width, &k)?, b.input(width, &v)?];
    let (out, lse) = (b.output(width, tokens)?, b.output(100, 1)?);
    let bounds = b.gpu.upload("case", &vec![[0, tokens as u32]; tokens])?;
    let attention =
        Attention { sinks: sinks.as_ref(), softcap, ..Attention::of_sample([1, 1, width], tokens, &bounds) };
    if cooperative {
        let packed = packed(b, &blocks.each_ref())?;
        b.run(|rec| {
            let operands = coop16::Operands { q: &packed[0], k: &packed[1], v: &packed[2] };
            coop16::forward(rec, &attention, &out.rows().clone().into(), lse.rows(), operands);
        })?;
    } else {
        let [q, k, v] = blocks.each_ref().map(|block| block.rows());
        b.run(|rec| attention.forward(rec, out.rows(), lse.rows(), q, k, v))?;
    }
    let (q, k, v, starts) = (wide(&q), wide(&k), wide(&v), vec![0; tokens]);
    let cap = softcap.map(f64::from);
    let (mut expected, mut lse_expected) = reference::forward_capped(&q, &k, &v, &starts, None, 1, 1, cap);
    if let Some(sink) = sink {
        reference::add_sinks(&mut expected, &mut lse_expected, &[f64::from(sink)]);
    }
    let tolerance = if b.gpu.kernels().tier() == Tier::F32 { FORWARD } else { HALF };
    b.expect(name.as_str(), &out, expected, tolerance);
    b.expect_first(format!("lse, {name}"), &lse, lse_expected, tolerance);
    Ok(())
}
