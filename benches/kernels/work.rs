//! The timed work: every kernel of the hot path at the shapes of a step.

use anyhow::Result;
use rullama_train::base::config::{Activation, ShortConv};
use rullama_train::base::formats::{GgmlType, random_blocks};
use rullama_train::gpu::{Gpu, Recorder};
use rullama_train::ops;
use rullama_train::ops::Param;
use rullama_train::ops::Rows;
use rullama_train::ops::Weight;
use rullama_train::ops::act::Act;
use rullama_train::ops::adamw::{AdamW, Clip, Shard};
use rullama_train::ops::attention::Attention;
use rullama_train::ops::attention::coop16 as coop_attention;
use rullama_train::ops::attention::coop16::Operands;
use rullama_train::ops::attention::coop16_backward::{ScoreScratch, Scratch};
use rullama_train::ops::cross_entropy::Chunk;
use rullama_train::ops::cross_entropy::coop16 as coop_cross_entropy;
use rullama_train::ops::gated::coop16 as coop_gated;
use rullama_train::ops::heads::coop16 as coop_heads;
use rullama_train::ops::heads::coop16_backward as coop_heads_backward;
use rullama_train::ops::linear::coop16 as coop_linear;
use rullama_train::ops::lora::coop16 as coop_lora;
use rullama_train::ops::lora::coop16_project::{self, Member};
use rullama_train::ops::pack::Packed;
use rullama_train::ops::rms_norm::Norm;
use rullama_train::ops::rms_norm::coop16 as coop_norm;
use rullama_train::ops::row_status::Verdicts;
use rullama_train::ops::short_conv::{Convolution, Taps};

use super::checks::check::values;

/// A named series of dispatches.
pub struct Timed {
    pub name: String,
    /// Floating-point operations of the kernels whose names match; the rate of other kernels is in bytes.
    pub operations: Vec<(&'static str, f64)>,
    pub work: Box<dyn Fn(&mut Recorder<'static>)>,
}

impl Timed {
    fn new(
        name: impl Into<String>,
        operations: &[(&'static str, f64)],
        work: impl Fn(&mut Recorder<'static>) + 'static,
    ) -> Timed {
        Timed { name: name.into(), operations: operations.to_vec(), work: Box::new(work) }
    }
}

/// The shapes of a step.
pub struct Size {
    tokens: usize,
    width: usize,
    ffn: usize,
    heads: usize,
    /// Head size and window of sliding and of full layers.
    layers: [(usize, Option<usize>); 2],
    rank: usize,
    vocab: usize,
    /// Tokens whose logits are in memory at a time.
    head_rows: usize,
}

impl Size {
    /// The shapes of gemma4:e2b on 2048 tokens, or small ones on a software renderer.
    pub fn of(gpu: &Gpu, tokens: Option<usize>) -> Size {
        let small = gpu.is_software();
        let size = match small {
            true => Size {
                tokens: 128,
                width: 256,
                ffn: 512,
                heads: 2,
                layers: [(64, Some(64)), (128, None)],
                rank: 16,
                vocab: 2048,
                head_rows: 64,
            },
            false => Size {
                tokens: 2048,
                width: 1536,
                ffn: 6144,
                heads: 8,
                layers: [(256, Some(512)), (512, None)],
                rank: 16,
                vocab: 262_144,
                head_rows: 256,
            },
        };
        Size { tokens: tokens.unwrap_or(size.tokens), ..size }
    }

    /// Pairs of a query and a key that it sees, over all heads, times the head size.
    fn pairs(&self, head_size: usize, window: Option<usize>) -> f64 {
        let seen = |t: usize| window.map_or(t + 1, |window| window.min(t + 1));
        ((0..self.tokens).map(seen).sum::<usize>() * self.heads * head_size) as f64
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Size { tokens, width, ffn, heads, rank, vocab, head_rows, .. } = self;
        write!(f, "{tokens} tokens, width {width}, feed-forward {ffn}, {heads} heads, rank {rank}, ")?;
        write!(f, "logits of {head_rows} tokens over {vocab}")
    }
}

/// Rows of random values.
fn rows(gpu: &Gpu, height: usize, width: usize) -> Result<Rows> {
    let mut rows = Rows::new(gpu, "bench", 0, width)?;
    rows.buffer = gpu.upload("bench", &noise(height * rows.stride))?;
    Ok(rows)
}

/// Random values that repeat: kernels take the same time.
fn noise(len: usize) -> Vec<f32> {
    let piece = values(0, len.min(1 << 16));
    piece.iter().copied().cycle().take(len).collect()
}

fn param(gpu: &Gpu, height: usize, width: usize) -> Result<Param> {
    let buffer = gpu.upload("bench", &noise(height * width))?;
    Ok(Param { buffer, offset: 0, rows: height, cols: width })
}

fn weight(gpu: &Gpu, ty: GgmlType, height: usize, width: usize) -> Result<Weight> {
    let bytes = random_blocks(ty, height * width / ty.block_len(), 0);
    Ok(Weight::upload(gpu, "bench", ty, height, width, &bytes)?)
}

fn packed(gpu: &Gpu, x: &Rows, height: usize) -> Result<Packed> {
    let packed = Packed::new(gpu, "bench", height, x.stride)?;
    let mut rec = Recorder::new(gpu);
    packed.pack(&mut rec, x.all(), x.stride, height);
    rec.submit()?;
    Ok(packed)
}

/// A norm that lives as long as the kernels that read it.
fn norm(gpu: &Gpu, width: usize) -> Result<&'static Norm> {
    Ok(Box::leak(Box::new(Norm::new(gpu, "bench", Some(&noise(width)), width, 1e-6)?)))
}

pub fn linear(gpu: &'static Gpu, size: &Size) -> Result<Vec<Timed>> {
    let (t, k, n) = (size.tokens, size.width, size.ffn);
    let operations = (2 * t * k * n) as f64;
    let (x, y) = (rows(gpu, t, k)?, rows(gpu, t, n)?);
    let mut all = Vec::new();
    for ty in GgmlType::SUPPORTED {
        let w = weight(gpu, ty, n, k)?;
        let (x, y) = (x.clone(), y.clone());
        let name = format!("{} [{n}, {k}], both ways", ty.name());
        let operations = [("linear/*.forward", operations), ("linear/*.backward", operations)];
        all.push(Timed::new(name, &operations, move |rec| {
            ops::linear::tiled::forward(rec, y.all(), x.all(), &w, 1.0, None, t);
            ops::linear::tiled::backward(rec, x.all(), y.all(), &w, 1.0, None, t, false);
        }));
    }
    Ok(all)
}

pub fn coop_linear(gpu: &'static Gpu, size: &Size) -> Result<Vec<Timed>> {
    let (t, k, n) = (size.tokens, size.width, size.ffn);
    let operations = (2 * t * k * n) as f64;
    let (x, y) = (rows(gpu, t, k)?, rows(gpu, t, n)?);
    let (px, py) = (packed(gpu, &x, t)?, packed(gpu, &y, t)?);
    let mut all = Vec::new();
    let (from, to) = (x.clone(), px.clone());
    all.push(Timed::new(format!("pack [{t}, {k}]"), &[], move |rec| {
        to.pack(rec, from.all(), k, t);
        to.unpack(rec, from.all(), k, t);
    }));
    for ty in GgmlType::SUPPORTED {
        let w = weight(gpu, ty, n, k)?;
        let (x, y, px, py) = (x.clone(), y.clone(), px.clone(), py.clone());
        let name = format!("{} [{n}, {k}], both ways", ty.name());
        let operations = [("linear/coop16.forward", operations), ("linear/coop16.backward", operations)];
        all.push(Timed::new(name, &operations, move |rec| {
            coop_linear::forward(rec, y.all(), &px, &w, 1.0, None, t);
            coop_linear::backward(rec, x.all(), &py, &w, 1.0, None, t, false);
        }));
    }
    Ok(all)
}

pub fn lora(gpu: &'static Gpu, size: &Size) -> Result<Vec<Timed>> {
    let (t, k, r) = (size.tokens, size.width, size.rank);
    let operations = (2 * t * k * r) as f64;
    let (x, z) = (rows(gpu, t, k)?, rows(gpu, t, r)?);
    let (a, da) = (param(gpu, r, k)?, param(gpu, r, k)?);
    let each =
        ["linear/*.forward", "linear/*.backward", "lora/*.gradient"].map(|kernel| (kernel, operations));
    Ok(vec![Timed::new(format!("A [{r}, {k}]: z, dx and dA"), &each, move |rec| {
        let a = a.as_weight();
        ops::linear::tiled::forward(rec, z.all(), x.all(), &a, 1.0, None, t);
        ops::linear::tiled::backward(rec, x.all(), z.all(), &a, 1.0, None, t, false);
        ops::lora::gradient(rec, &da, z.all(), x.all(), 1.0, t);
    })])
}

pub fn coop_lora(gpu: &'static Gpu, size: &Size) -> Result<Vec<Timed>> {
    let (t, k, r) = (size.tokens, size.width, size.rank);
    let (x, z) = (rows(gpu, t, k)?, rows(gpu, t, r)?);
    let (px, thin) = (packed(gpu, &x, t)?, Packed::new(gpu, "bench", t, r)?);
    let (a, da) = (param(gpu, r, k)?, param(gpu, r, k)?);
    let (b, db) = (param(gpu, k, r)?, param(gpu, k, r)?);
    let each = ["lora/coop16.", "lora/coop16_project."].map(|kernel| (kernel, (2 * t * k * r) as f64));
    Ok(vec![Timed::new(format!("A and B of width {k}: z, u and gradients"), &each, move |rec| {
        coop16_project::project(rec, z.all(), &px, &a, t, &thin);
        coop16_project::project_back(rec, z.all(), &[Member { dy: &px, b: &b, offset: 0 }], 1.0, t, &thin);
        coop_lora::gradient_a(rec, &da, z.all(), &px, t);
        coop_lora::gradient_b(rec, &db, &px, z.all(), 1.0, t);
    })])
}

fn attention_name(head_size: usize, window: Option<usize>) -> String {
    window.map_or(format!("heads of {head_size}"), |window| format!("heads of {head_size}, window {window}"))
}

/// Bounds of one sequence.
fn bounds(gpu: &Gpu, tokens: usize) -> Result<wgpu::Buffer> {
    Ok(gpu.upload("bench", &vec![[0, tokens as u32]; tokens])?)
}

/// Attention with one head of keys.
fn attention_of(
    [rows, heads, head_size]: [usize; 3],
    window: Option<usize>,
    bounds: &wgpu::Buffer,
) -> Attention<'_> {
    Attention { window, ..Attention::of_sample([heads, 1, head_size], rows, bounds) }
}

pub fn attention(gpu: &'static Gpu, size: &Size) -> Result<Vec<Timed>> {
    let (t, heads) = (size.tokens, size.heads);
    let mut all = Vec::new();
    for (head_size, window) in size.layers {
        let (wide, narrow) = (heads * head_size, head_size);
        let [q, out, dq, dout, dheads] = rows_of(gpu, t, wide)?;
        let [k, v, dk, dv] = rows_of(gpu, t, narrow)?;
        let [lse] = rows_of(gpu, t, heads.next_multiple_of(4))?;
        let [delta] = rows_of(gpu, t, 2 * heads.next_multiple_of(4))?;
        let bounds = bounds(gpu, t)?;
        let pairs = size.pairs(head_size, window);
        let operations = [
            ("attention/*.forward", 4.0 * pairs),
            ("attention/*.backward_q", 6.0 * pairs),
            ("attention/*.backward_kv", 8.0 * pairs),
        ];
        all.push(Timed::new(attention_name(head_size, window), &operations, move |rec| {
            let attention = attention_of([t, heads, head_size], window, &bounds);
            attention.forward(rec, &out, &lse, &q, &k, &v);
            let (gradients, scratch) = ([&dq, &dk, &dv], [&delta, &dheads]);
            attention.backward(rec, gradients, scratch, &dout, [&q, &k, &v], &out, &lse);
        }));
    }
    Ok(all)
}

fn rows_of<const N: usize>(gpu: &Gpu, height: usize, width: usize) -> Result<[Rows; N]> {
    let all = (0..N).map(|_| rows(gpu, height, width)).collect::<Result<Vec<Rows>>>()?;
    Ok(all.try_into().unwrap_or_else(|_| unreachable!("N were made")))
}

pub fn coop_attention(gpu: &'static Gpu, size: &Size) -> Result<Vec<Timed>> {
    let (t, heads) = (size.tokens, size.heads);
    let mut all = Vec::new();
    for (head_size, window) in size.layers {
        let (wide, narrow) = (heads * head_size, head_size);
        let [q, out, dq, dout, dheads] = rows_of(gpu, t, wide)?;
        let [k, v, dk, dv] = rows_of(gpu, t, narrow)?;
        let [lse] = rows_of(gpu, t, heads.next_multiple_of(4))?;
        let [q, k, v] = [packed(gpu, &q, t)?, packed(gpu, &k, t)?, packed(gpu, &v, t)?];
        let left = ScoreScratch::new(gpu, ScoreScratch::least_bytes(heads, t, window.unwrap_or(t)))?;
        let (bounds, scratch) = (bounds(gpu, t)?, Scratch::new(gpu, t, wide, heads, left)?);
        let pairs = size.pairs(head_size, window);
        let operations = [
            ("attention/coop16.forward", 4.0 * pairs),
            ("attention/coop16_scores.", 4.0 * pairs),
            ("attention/coop16_product.", 6.0 * pairs),
        ];
        all.push(Timed::new(attention_name(head_size, window), &operations, move |rec| {
            let attention = attention_of([t, heads, head_size], window, &bounds);
            let operands = Operands { q: &q, k: &k, v: &v };
            let out = out.clone().into();
            coop_attention::forward(rec, &attention, &out, &lse, operands);
            scratch.backward(rec, &attention, [&dq, &dk, &dv], &dheads, &dout, operands, &out, &lse);
        }));
    }
    Ok(all)
}

pub fn rms_norm(gpu: &'static Gpu, size: &Size) -> Result<Vec<Timed>> {
    let (t, d) = (size.tokens, size.width);
    let [x, y, dy, dx] = rows_of(gpu, t, d)?;
    let norm = norm(gpu, d)?;
    Ok(vec![Timed::new(format!("[{t}, {d}], both ways"), &[], move |rec| {
        ops::rms_norm::plain::forward(rec, &y, &x, norm, Some(&dy), 1.0, t);
        ops::rms_norm::plain::backward(rec, &dx, &dy, &x, norm, t, None);
    })])
}

pub fn coop_norm(gpu: &'static Gpu, size: &Size) -> Result<Vec<Timed>> {
    let (t, d) = (size.tokens, size.width);
    let [x, dy] = rows_of(gpu, t, d)?;
    let (y, norm) = (Packed::new(gpu, "bench", t, d)?, norm(gpu, d)?);
    Ok(vec![Timed::new(format!("[{t}, {d}], both ways"), &[], move |rec| {
        coop_norm::forward(rec, &y, &x, norm, t);
        coop_norm::backward(rec, &y, &dy, &x.clone().into(), norm, t);
    })])
}

fn table(gpu: &Gpu, head_size: usize, positions: usize) -> Result<ops::rope::Table> {
    let frequency = |i: usize| 1e4f64.powf(-2.0 * i as f64 / head_size as f64);
    let frequencies: Vec<f64> = (0..head_size / 2).map(frequency).collect();
    Ok(ops::rope::Table::new(gpu, &frequencies, 1.0, positions)?)
}

fn positions(gpu: &Gpu, tokens: usize) -> Result<wgpu::Buffer> {
    Ok(gpu.upload("bench", &(0..tokens as u32).collect::<Vec<u32>>())?)
}

pub fn rope(gpu: &'static Gpu, size: &Size) -> Result<Vec<Timed>> {
    let (t, heads, head_size) = (size.tokens, size.heads, size.layers[0].0);
    let x = rows(gpu, t, heads * head_size)?;
    let (positions, table) = (positions(gpu, t)?, table(gpu, head_size, t)?);
    Ok(vec![Timed::new(format!("[{t}, {heads}·{head_size}], both ways"), &[], move |rec| {
        ops::rope::forward(rec, &x, &positions, &table, heads, t);
        ops::rope::backward(rec, &x, &positions, &table, heads, t);
    })])
}

pub fn coop_heads(gpu: &'static Gpu, size: &Size) -> Result<Vec<Timed>> {
    let (t, heads, head_size) = (size.tokens, size.heads, size.layers[0].0);
    let x = rows(gpu, t, heads * head_size)?;
    let (positions, table) = (positions(gpu, t)?, table(gpu, head_size, t)?);
    let (y, norm) = (Packed::new(gpu, "bench", t, heads * head_size)?, norm(gpu, head_size)?);
    let dy = rows(gpu, t, heads * head_size)?;
    let x = Act::tiled(packed(gpu, &x, t)?, None).packed_by_reader(x);
    Ok(vec![Timed::new(format!("[{t}, {heads}·{head_size}], both ways"), &[], move |rec| {
        let turn = Some((&positions, &table));
        coop_heads::forward(rec, &y, &x, norm, turn, heads, t);
        coop_heads_backward::backward(rec, &y, &dy, &x, norm, turn, heads, t);
    })])
}

pub fn gated(gpu: &'static Gpu, size: &Size) -> Result<Vec<Timed>> {
    let (t, f) = (size.tokens, size.ffn);
    let [gate, up, y, dgate, dup] = rows_of(gpu, t, f)?;
    Ok(vec![Timed::new(format!("[{t}, {f}], both ways"), &[], move |rec| {
        ops::gated::plain::forward(rec, &y, &gate, &up, Activation::Gelu, t);
        ops::gated::plain::backward(rec, &dgate, Some(&dup), (&y, 0), &gate, &up, Activation::Gelu, t);
    })])
}

pub fn coop_gated(gpu: &'static Gpu, size: &Size) -> Result<Vec<Timed>> {
    let (t, f) = (size.tokens, size.ffn);
    let [gate, up, dy] = rows_of(gpu, t, f)?;
    let [y, dgate, dup] = [packed(gpu, &gate, t)?, packed(gpu, &gate, t)?, packed(gpu, &gate, t)?];
    let [gate, up] = [(&dgate, gate), (&dup, up)]
        .map(|(tiles, rows)| Act::tiled(tiles.clone(), None).packed_by_reader(rows));
    Ok(vec![Timed::new(format!("[{t}, {f}], both ways"), &[], move |rec| {
        coop_gated::forward(rec, &y, &gate, &up, Activation::Gelu, t);
        coop_gated::backward(rec, [&dgate, &dup], &dy, Activation::Gelu, t);
    })])
}

pub fn short_conv(gpu: &'static Gpu, size: &Size) -> Result<Vec<Timed>> {
    let (tokens, channels) = (size.tokens, size.width);
    let [y, dy] = rows_of(gpu, tokens, channels)?;
    let [bcx, dbcx] = rows_of(gpu, tokens, 3 * channels)?;
    let taps = Taps::new(gpu, &ShortConv { channels, taps: 3 }, &values(1, 3 * channels))?;
    let bounds = gpu.upload("bounds", &vec![[0, tokens as u32]; tokens])?;
    Ok(vec![Timed::new(format!("[{tokens}, {channels}], both ways"), &[], move |rec| {
        let conv = Convolution { channels, taps: &taps, tokens };
        ops::short_conv::forward(rec, &conv, &y, &bcx, &bounds);
        ops::short_conv::backward(rec, &conv, &dbcx, &dy, &bcx, &bounds);
    })])
}

/// Logits, targets, losses and coefficients of one chunk.
struct Head {
    logits: Rows,
    rows: usize,
    vocab: usize,
    targets: wgpu::Buffer,
    losses: wgpu::Buffer,
    coefficients: wgpu::Buffer,
}

impl Head {
    fn new(gpu: &Gpu, size: &Size) -> Result<Head> {
        let (rows, vocab) = (size.head_rows, size.vocab);
        let targets: Vec<u32> = (0..rows as u32).collect();
        Ok(Head {
            logits: self::rows(gpu, rows, vocab)?,
            rows,
            vocab,
            targets: gpu.upload("bench", &targets)?,
            losses: gpu.buffer("bench", 4 * rows as u64)?,
            coefficients: gpu.upload("bench", &vec![1.0f32; rows])?,
        })
    }

    fn chunk(&self) -> Chunk<'_> {
        let (targets, losses) = ((&self.targets, 0), (&self.losses, 0));
        Chunk {
            logits: &self.logits,
            rows: self.rows,
            vocab: self.vocab,
            softcap: Some(30.0),
            temperature: 1.0,
            targets,
            losses,
        }
    }
}

pub fn cross_entropy(gpu: &'static Gpu, size: &Size) -> Result<Vec<Timed>> {
    let head = Head::new(gpu, size)?;
    Ok(vec![Timed::new(format!("[{}, {}], both ways", head.rows, head.vocab), &[], move |rec| {
        head.chunk().forward(rec);
        head.chunk().backward(rec, &head.coefficients);
    })])
}

pub fn coop_cross_entropy(gpu: &'static Gpu, size: &Size) -> Result<Vec<Timed>> {
    let head = Head::new(gpu, size)?;
    let dlogits = Packed::new(gpu, "bench", head.rows, head.vocab)?;
    let hidden = Rows::new(gpu, "bench", head.rows, size.width)?;
    let verdicts = gpu.buffer("bench", (4 * head.rows) as u64)?;
    Ok(vec![Timed::new(format!("[{}, {}], both ways", head.rows, head.vocab), &[], move |rec| {
        let verdicts = Verdicts { hidden: &hidden, buffer: (&verdicts, 0) };
        coop_cross_entropy::forward(rec, &head.chunk(), &verdicts);
        coop_cross_entropy::backward(rec, &head.chunk(), &verdicts, &dlogits, &head.coefficients);
    })])
}

pub fn adamw(gpu: &'static Gpu, size: &Size) -> Result<Vec<Timed>> {
    // As many as the adapter of all of e2b's matrices has: 24 M at rank 16.
    let count = 1024 * size.rank * size.width;
    let [parameters, gradients] = [gpu.upload("bench", &noise(count))?, gpu.upload("bench", &noise(count))?];
    let [first, second] = [gpu.buffer("bench", parameters.size())?, gpu.buffer("bench", parameters.size())?];
    let clip = Clip::new(gpu, std::iter::once(gradients.size()))?;
    let adam = AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
    Ok(vec![Timed::new(format!("{count} parameters, norm and update"), &[], move |rec| {
        clip.norm(rec, std::slice::from_ref(&gradients), 1.0);
        let shard = Shard { parameters: &parameters, gradients: &gradients, first: &first, second: &second };
        ops::adamw::adamw(rec, &shard, &clip, &adam, 1e-4, 1);
    })])
}
