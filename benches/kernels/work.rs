//! The timed work: every kernel of the hot path at the shapes of a step.

use anyhow::Result;
use rullama_train::base::config::{Activation, ShortConv};
use rullama_train::base::formats::GgmlType;
use rullama_train::cases::step::Step;
use rullama_train::cases::{self, product, products};
use rullama_train::gpu::{Gpu, Recorder};
use rullama_train::ops;
use rullama_train::ops::Param;
use rullama_train::ops::Rows;
use rullama_train::ops::act::Act;
use rullama_train::ops::adamw::{AdamW, Clip, Shard};
use rullama_train::ops::cross_entropy::Chunk;
use rullama_train::ops::cross_entropy::coop16 as coop_cross_entropy;
use rullama_train::ops::gated::coop16 as coop_gated;
use rullama_train::ops::heads::coop16 as coop_heads;
use rullama_train::ops::heads::coop16_backward as coop_heads_backward;
use rullama_train::ops::lora::coop16 as coop_lora;
use rullama_train::ops::lora::coop16_project::{self, Member};
use rullama_train::ops::pack::Packed;
use rullama_train::ops::rms_norm::Norm;
use rullama_train::ops::rms_norm::coop16 as coop_norm;
use rullama_train::ops::row_status::Verdicts;
use rullama_train::ops::short_conv::{Convolution, Taps};

use super::checks::check::values;
use super::timer::Timer;

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

fn packed(gpu: &Gpu, x: &Rows, height: usize) -> Result<Packed> {
    let packed = Packed::new(gpu, "bench", height, x.stride)?;
    let mut rec = Recorder::new(gpu);
    packed.pack(&mut rec, x.all(), x.stride, height);
    rec.submit()?;
    Ok(packed)
}

fn norm(gpu: &Gpu, width: usize) -> Result<Norm> {
    Ok(Norm::new(gpu, "bench", Some(&noise(width)), width, 1e-6)?)
}

pub fn linear(timer: &Timer, step: &Step) -> Result<()> {
    for ty in GgmlType::SUPPORTED {
        let shape = product::Shape::of_step(ty, step);
        let name = format!("{} [{}, {}], both ways", ty.name(), shape.n, shape.k);
        let operations = ["linear/*.forward", "linear/*.backward"].map(|kernel| (kernel, shape.operations()));
        timer.case(name, &operations, |b| {
            products::forward(b, &shape)?;
            products::backward(b, &shape)
        })?;
    }
    Ok(())
}

pub fn coop_linear(timer: &Timer, step: &Step) -> Result<()> {
    let gpu = timer.gpu;
    let (t, k) = (step.tokens, step.width);
    let x = rows(gpu, t, k)?;
    let tiles = packed(gpu, &x, t)?;
    timer.time(format!("pack [{t}, {k}]"), &[], |rec| {
        tiles.pack(rec, x.all(), k, t);
        tiles.unpack(rec, x.all(), k, t);
    })?;
    linear(timer, step)
}

pub fn lora(timer: &Timer, step: &Step) -> Result<()> {
    let gpu = timer.gpu;
    let (t, k, r) = (step.tokens, step.width, step.rank);
    let operations = (2 * t * k * r) as f64;
    let (x, z) = (rows(gpu, t, k)?, rows(gpu, t, r)?);
    let (a, da) = (param(gpu, r, k)?, param(gpu, r, k)?);
    let each =
        ["linear/*.forward", "linear/*.backward", "lora/*.gradient"].map(|kernel| (kernel, operations));
    timer.time(format!("A [{r}, {k}]: z, dx and dA"), &each, |rec| {
        let a = a.as_weight();
        ops::linear::tiled::forward(rec, z.all(), x.all(), &a, 1.0, None, t);
        ops::linear::tiled::backward(rec, x.all(), z.all(), &a, 1.0, None, t, false);
        ops::lora::gradient(rec, &da, z.all(), x.all(), 1.0, t);
    })
}

pub fn coop_lora(timer: &Timer, step: &Step) -> Result<()> {
    let gpu = timer.gpu;
    let (t, k, r) = (step.tokens, step.width, step.rank);
    let (x, z) = (rows(gpu, t, k)?, rows(gpu, t, r)?);
    let (px, thin) = (packed(gpu, &x, t)?, Packed::new(gpu, "bench", t, r)?);
    let (a, da) = (param(gpu, r, k)?, param(gpu, r, k)?);
    let (b, db) = (param(gpu, k, r)?, param(gpu, k, r)?);
    let each = ["lora/coop16.", "lora/coop16_project."].map(|kernel| (kernel, (2 * t * k * r) as f64));
    timer.time(format!("A and B of width {k}: z, u and gradients"), &each, |rec| {
        coop16_project::project(rec, z.all(), &px, &a, t, &thin);
        coop16_project::project_back(rec, z.all(), &[Member { dy: &px, b: &b, offset: 0 }], 1.0, t, &thin);
        coop_lora::gradient_a(rec, &da, z.all(), &px, t);
        coop_lora::gradient_b(rec, &db, &px, z.all(), 1.0, t);
    })
}

pub fn attention(timer: &Timer, step: &Step) -> Result<()> {
    for shape in cases::attention::of_step(step) {
        // The products of each kernel.
        let operations = [
            ("attention/coop16_scores.", 2.0),
            ("attention/coop16_product.", 3.0),
            ("attention/*.forward", 2.0),
            ("attention/*.backward_q", 3.0),
            ("attention/*.backward_kv", 4.0),
        ];
        let operations = operations.map(|(kernel, products)| (kernel, products * shape.operations()));
        timer.case(shape, &operations, |b| cases::attention::both_ways(b, &shape))?;
    }
    Ok(())
}

fn rows_of<const N: usize>(gpu: &Gpu, height: usize, width: usize) -> Result<[Rows; N]> {
    let all = (0..N).map(|_| rows(gpu, height, width)).collect::<Result<Vec<Rows>>>()?;
    Ok(all.try_into().unwrap_or_else(|_| unreachable!("N were made")))
}

pub fn rms_norm(timer: &Timer, step: &Step) -> Result<()> {
    let name = format!("[{}, {}], both ways", step.tokens, step.width);
    timer.case(name, &[], |b| cases::rms_norm::of_step(b, step))
}

pub fn coop_norm(timer: &Timer, step: &Step) -> Result<()> {
    let gpu = timer.gpu;
    let (t, d) = (step.tokens, step.width);
    let [x, dy] = rows_of(gpu, t, d)?;
    let (y, norm) = (Packed::new(gpu, "bench", t, d)?, norm(gpu, d)?);
    timer.time(format!("[{t}, {d}], both ways"), &[], |rec| {
        coop_norm::forward(rec, &y, &x, &norm, t);
        coop_norm::backward(rec, &y, &dy, &x.clone().into(), &norm, t);
    })
}

fn table(gpu: &Gpu, head_size: usize, positions: usize) -> Result<ops::rope::Table> {
    let frequency = |i: usize| 1e4f64.powf(-2.0 * i as f64 / head_size as f64);
    let frequencies: Vec<f64> = (0..head_size / 2).map(frequency).collect();
    Ok(ops::rope::Table::new(gpu, &frequencies, 1.0, positions)?)
}

fn positions(gpu: &Gpu, tokens: usize) -> Result<wgpu::Buffer> {
    Ok(gpu.upload("bench", &(0..tokens as u32).collect::<Vec<u32>>())?)
}

pub fn rope(timer: &Timer, step: &Step) -> Result<()> {
    let name = format!("[{}, {}·{}], both ways", step.tokens, step.heads, step.layers[0].0);
    timer.case(name, &[], |b| cases::rope::of_step(b, step))
}

pub fn coop_heads(timer: &Timer, step: &Step) -> Result<()> {
    let gpu = timer.gpu;
    let (t, heads, head_size) = (step.tokens, step.heads, step.layers[0].0);
    let x = rows(gpu, t, heads * head_size)?;
    let (positions, table) = (positions(gpu, t)?, table(gpu, head_size, t)?);
    let (y, norm) = (Packed::new(gpu, "bench", t, heads * head_size)?, norm(gpu, head_size)?);
    let dy = rows(gpu, t, heads * head_size)?;
    let x = Act::tiled(packed(gpu, &x, t)?, None).packed_by_reader(x);
    timer.time(format!("[{t}, {heads}·{head_size}], both ways"), &[], |rec| {
        let turn = Some((&positions, &table));
        coop_heads::forward(rec, &y, &x, &norm, turn, heads, t);
        coop_heads_backward::backward(rec, &y, &dy, &x, &norm, turn, heads, t);
    })
}

pub fn gated(timer: &Timer, step: &Step) -> Result<()> {
    let name = format!("[{}, {}], both ways", step.tokens, step.ffn);
    timer.case(name, &[], |b| cases::gated::of_step(b, step))
}

pub fn coop_gated(timer: &Timer, step: &Step) -> Result<()> {
    let gpu = timer.gpu;
    let (t, f) = (step.tokens, step.ffn);
    let [gate, up, dy] = rows_of(gpu, t, f)?;
    let [y, dgate, dup] = [packed(gpu, &gate, t)?, packed(gpu, &gate, t)?, packed(gpu, &gate, t)?];
    let [gate, up] = [(&dgate, gate), (&dup, up)]
        .map(|(tiles, rows)| Act::tiled(tiles.clone(), None).packed_by_reader(rows));
    timer.time(format!("[{t}, {f}], both ways"), &[], |rec| {
        coop_gated::forward(rec, &y, &gate, &up, Activation::Gelu, t);
        coop_gated::backward(rec, [&dgate, &dup], &dy, Activation::Gelu, t);
    })
}

pub fn short_conv(timer: &Timer, step: &Step) -> Result<()> {
    let gpu = timer.gpu;
    let (tokens, channels) = (step.tokens, step.width);
    let [y, dy] = rows_of(gpu, tokens, channels)?;
    let [bcx, dbcx] = rows_of(gpu, tokens, 3 * channels)?;
    let taps = Taps::new(gpu, &ShortConv { channels, taps: 3 }, &values(1, 3 * channels))?;
    let bounds = gpu.upload("bounds", &vec![[0, tokens as u32]; tokens])?;
    timer.time(format!("[{tokens}, {channels}], both ways"), &[], |rec| {
        let conv = Convolution { channels, taps: &taps, tokens };
        ops::short_conv::forward(rec, &conv, &y, &bcx, &bounds);
        ops::short_conv::backward(rec, &conv, &dbcx, &dy, &bcx, &bounds);
    })
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
    fn new(gpu: &Gpu, step: &Step) -> Result<Head> {
        let (rows, vocab) = (step.head_rows, step.vocab);
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

pub fn cross_entropy(timer: &Timer, step: &Step) -> Result<()> {
    let gpu = timer.gpu;
    let head = Head::new(gpu, step)?;
    timer.time(format!("[{}, {}], both ways", head.rows, head.vocab), &[], |rec| {
        head.chunk().forward(rec);
        head.chunk().backward(rec, &head.coefficients);
    })
}

pub fn coop_cross_entropy(timer: &Timer, step: &Step) -> Result<()> {
    let gpu = timer.gpu;
    let head = Head::new(gpu, step)?;
    let dlogits = Packed::new(gpu, "bench", head.rows, head.vocab)?;
    let hidden = Rows::new(gpu, "bench", head.rows, step.width)?;
    let verdicts = gpu.buffer("bench", (4 * head.rows) as u64)?;
    timer.time(format!("[{}, {}], both ways", head.rows, head.vocab), &[], |rec| {
        let verdicts = Verdicts { hidden: &hidden, buffer: (&verdicts, 0) };
        coop_cross_entropy::forward(rec, &head.chunk(), &verdicts);
        coop_cross_entropy::backward(rec, &head.chunk(), &verdicts, &dlogits, &head.coefficients);
    })
}

pub fn adamw(timer: &Timer, step: &Step) -> Result<()> {
    let gpu = timer.gpu;
    // As many as the adapter of all of e2b's matrices has: 24 M at rank 16.
    let count = 1024 * step.rank * step.width;
    let [parameters, gradients] = [gpu.upload("bench", &noise(count))?, gpu.upload("bench", &noise(count))?];
    let [first, second] = [gpu.buffer("bench", parameters.size())?, gpu.buffer("bench", parameters.size())?];
    let clip = Clip::new(gpu, std::iter::once(gradients.size()))?;
    let adam = AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
    timer.time(format!("{count} parameters, norm and update"), &[], |rec| {
        clip.norm(rec, std::slice::from_ref(&gradients), 1.0);
        let shard = Shard { parameters: &parameters, gradients: &gradients, first: &first, second: &second };
        ops::adamw::adamw(rec, &shard, &clip, &adam, 1e-4, 1);
    })
}
