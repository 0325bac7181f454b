//! Forward over cached keys and values: a prompt at once, then token by token without running the sequence again.
//!
//! A pass over 1 to [`matvec::MAX_ROWS`] tokens multiplies with matrix-vector kernels, a longer one with the training
//! forward's. What one token needs is recorded once and submitted again and again; all that changes lies in buffers.

use super::Model;
use super::applied::{self, Applied, Group};
use super::trainable::Input;
use crate::config::Config;
use crate::gpu::{Gpu, GpuError, Prepared, Recorder, Recording, Staging};
use crate::lora::Adapter;
use crate::ops::argmax::{Argmax, Likeliest};
use crate::ops::cached_attention::{CachedAttention, Parts};
use crate::ops::heads::{self, Cache, Heads};
use crate::ops::linear::{self, LowRank};
use crate::ops::matvec::{self, Down};
use crate::ops::pack::{Packed, packed_bytes};
use crate::ops::{
    Rows, Tile, Up, Weight, coop_linear, coop_lora, embedding, gated, per_layer, residual, rms_norm,
};
use crate::weights::planes;

/// How long sequences may get, and how they are taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Most tokens in a sequence.
    pub context: usize,
    /// Most tokens in one pass: a longer prompt takes several.
    pub chunk: usize,
}

impl Lengths {
    /// Rows of a layer's cache. A sliding layer keeps its window, room for a pass, and as much again: so many tokens can
    /// be taken back ([`Decoder::rewind`]).
    fn ring(&self, window: Option<usize>) -> usize {
        window.map_or(self.context, |w| self.context.min(w + 2 * self.chunk))
    }
}

/// Bytes of the cache of one layer, for one sequence; 0 where it uses another layer's.
fn cache_bytes(config: &Config, layer: usize, lengths: &Lengths) -> u64 {
    let l = &config.layers[layer];
    match l.kv_donor {
        Some(_) => 0,
        None => (lengths.ring(l.window) * 2 * l.kv_heads * l.head_size * 4) as u64,
    }
}

/// The longest context whose cache fits the device's bindings, at most `wanted`.
pub fn longest_context(gpu: &Gpu, config: &Config, wanted: usize) -> usize {
    let full = config.layers.iter().filter(|l| l.kv_donor.is_none() && l.window.is_none());
    let row_bytes = full.map(|l| 2 * l.kv_heads * l.head_size * 4).max().unwrap_or(1);
    wanted.min(gpu.max_binding_bytes() as usize / row_bytes)
}

/// What every sequence uses in turn: the buffers of one pass. All sequences of a workspace take turns on one device.
pub struct Workspace<'a> {
    gpu: &'a Gpu,
    model: &'a Model<'a>,
    lengths: Lengths,
    model_proj: Option<Weight>,  // [L·P, D]: one product for all layers
    ids: wgpu::Buffer,           // [chunk]
    table: wgpu::Buffer,         // the ids' rows of the per-layer embeddings, in the file's format
    stream: Rows,                // [chunk, D]
    normed: Rows,                // [chunk, D]
    per_layer: Rows,             // [chunk, L·P]
    products: Rows,              // what the matrices that read one input make, and z [chunk, widest]
    wide: Rows,                  // what attention and gates make [chunk, widest]
    z: Rows,                     // of long passes [chunk, Σ R]
    packed: Option<[Packed; 2]>, // inputs and z of long passes on cooperative matrices
    parts: Parts,
    logits: Rows, // [1, V]
    argmax: Argmax,
    logits_staging: Staging,
    likeliest_staging: Staging,
}

impl<'a> Workspace<'a> {
    /// Buffers for passes with adapters of up to `rank`.
    pub fn new(
        gpu: &'a Gpu,
        model: &'a Model<'a>,
        lengths: Lengths,
        rank: usize,
    ) -> Result<Workspace<'a>, GpuError> {
        assert!(lengths.context <= model.positions, "the rotary tables cover the context");
        let lengths = Lengths { chunk: lengths.chunk.clamp(1, lengths.context), ..lengths };
        let config = model.config();
        let (chunk, d, p) = (lengths.chunk, config.width, config.per_layer_width);
        let z = 3 * applied::padded(gpu, rank);
        let widest = |of: &dyn Fn(&crate::config::LayerConfig) -> usize| {
            config.layers.iter().map(of).max().expect("a model has layers")
        };
        let products = widest(&|l| {
            let heads = (l.heads + if l.kv_donor.is_none() { 2 * l.kv_heads } else { 0 }) * l.head_size;
            heads.max(2 * l.ffn_width).max(d).max(p)
        });
        let wide = widest(&|l| (l.heads * l.head_size).max(l.ffn_width).max(p));
        let (heads, queries) = (widest(&|l| l.heads), widest(&|l| l.heads * l.head_size));
        let whole = model.base.matrix("per_layer_model_proj");
        let upload =
            |m: crate::weights::base::Matrix| Weight::upload(gpu, m.name, m.ty, m.rows, m.cols, m.data);
        let row_bytes = model.base.matrix("per_layer_token_embd").map_or(0, |m| m.row_bytes());
        let rows = |label: &str, width: usize| Rows::new(gpu, label, chunk, width);
        Ok(Workspace {
            gpu,
            model,
            lengths,
            model_proj: whole.map(upload).transpose()?,
            ids: gpu.buffer("token ids", (chunk * 4) as u64)?,
            table: gpu.buffer("per-layer embedding rows", (chunk * row_bytes + 16) as u64)?,
            stream: rows("stream", d)?,
            normed: rows("normed", d)?,
            per_layer: rows("per-layer inputs", config.layers.len() * p)?,
            products: rows("products", products + z)?,
            wide: rows("attention and gates", wide)?,
            z: rows("z", z)?,
            packed: match gpu.cooperative() && chunk > matvec::MAX_ROWS {
                true => Some([
                    Packed::new(gpu, "packed input", chunk, wide.max(d))?,
                    Packed::new(gpu, "packed z", chunk, z)?,
                ]),
                false => None,
            },
            parts: Parts::new(gpu, heads, queries)?,
            logits: Rows::new(gpu, "logits", 1, config.vocab)?,
            argmax: Argmax::new(gpu)?,
            logits_staging: gpu.staging((config.vocab * 4) as u64),
            likeliest_staging: gpu.staging(size_of::<Likeliest>() as u64),
        })
    }

    /// The lengths that it was made for.
    pub fn lengths(&self) -> Lengths {
        self.lengths
    }

    /// Logits of a token, `V`.
    pub fn vocab(&self) -> usize {
        self.model.config().vocab
    }

    /// The device that it is on.
    pub fn gpu(&self) -> &'a Gpu {
        self.gpu
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        let rows =
            [&self.stream, &self.normed, &self.per_layer, &self.products, &self.wide, &self.z, &self.logits];
        let rows: u64 = rows.iter().map(|r| r.buffer.size()).sum();
        let proj = self.model_proj.as_ref().map_or(0, Weight::bytes);
        let packed = match &self.packed {
            Some(_) => packed_bytes(self.lengths.chunk, self.wide.stride.max(self.stream.stride)),
            None => 0,
        };
        rows + proj + self.table.size() + self.parts.bytes() + packed
    }
}

/// What is read back after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    Logits,
    Likeliest,
}

/// What one token takes, recorded.
struct OneToken {
    body: Recording,
    logits: Recording,
    likeliest: Recording,
}

impl OneToken {
    fn parts(&self, tail: Tail) -> [&Recording; 2] {
        [&self.body, if tail == Tail::Logits { &self.logits } else { &self.likeliest }]
    }
}

/// One sequence: its keys and values, and the adapter that it is read with.
pub struct Decoder<'a> {
    w: &'a Workspace<'a>,
    adapter: Option<Applied>,
    caches: Vec<Option<Cache>>, // by layer; none where it uses another one's
    past: wgpu::Buffer,         // [1]
    len: usize,
    /// Most tokens that the caches have held since they were empty: rings lost what lies further back.
    seen: usize,
    one_token: Option<OneToken>,
    prepared: Option<(Tail, Prepared)>,
}

impl<'a> Decoder<'a> {
    /// An empty sequence, read with `adapter` unmerged.
    pub fn new(w: &'a Workspace<'a>, adapter: Option<&Adapter>) -> Result<Decoder<'a>, GpuError> {
        let config = w.model.config();
        let upload = |a: &Adapter| Applied::upload(w.gpu, a, config);
        let cache = |layer: usize| -> Result<Option<Cache>, GpuError> {
            let bytes = cache_bytes(config, layer, &w.lengths);
            if bytes == 0 {
                return Ok(None);
            }
            let buffer = w.gpu.buffer("keys and values", bytes)?;
            Ok(Some(Cache { buffer, ring: w.lengths.ring(config.layers[layer].window) }))
        };
        Ok(Decoder {
            w,
            adapter: adapter.map(upload).transpose()?,
            caches: (0..config.layers.len()).map(cache).collect::<Result<_, _>>()?,
            past: w.gpu.buffer("past", 4)?,
            len: 0,
            seen: 0,
            one_token: None,
            prepared: None,
        })
    }

    /// Tokens so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the adapter and of the cached keys and values.
    pub fn bytes(&self) -> u64 {
        let caches: u64 = self.caches.iter().flatten().map(|c| c.buffer.size()).sum();
        caches + self.adapter.as_ref().map_or(0, Applied::bytes)
    }

    /// Dispatches that one token takes, its likeliest successor included.
    pub fn dispatches(&mut self) -> usize {
        self.one_token().parts(Tail::Likeliest).iter().map(|r| r.dispatches()).sum()
    }

    /// Goes back to the first `len` tokens, or to none where sliding layers no longer hold what the next would see.
    /// Returns the tokens that are left.
    pub fn rewind(&mut self, len: usize) -> usize {
        let config = self.w.model.config();
        let windows = config.layers.iter().filter(|l| l.kv_donor.is_none()).filter_map(|l| l.window);
        let lost = |window: usize| {
            // The next token sees keys from here on; the ring holds the last `ring` that it has seen.
            let first = (len + 1).saturating_sub(window);
            first + self.w.lengths.ring(Some(window)) < self.seen
        };
        self.len = if len < self.len && windows.into_iter().any(lost) { 0 } else { len.min(self.len) };
        if self.len == 0 {
            self.seen = 0;
        }
        self.len
    }

    /// Takes in at most a chunk of tokens.
    pub fn append(&mut self, ids: &[u32]) -> Result<(), GpuError> {
        let rows = self.start(ids);
        let mut rec = Recorder::new(self.w.gpu);
        self.pass(&mut rec, rows);
        rec.submit()
    }

    /// Takes in at most a chunk of tokens, at least one, and reads the logits after the last, `[V]`, softcap applied.
    pub async fn logits(&mut self, ids: &[u32]) -> Result<Vec<f32>, GpuError> {
        self.finish(ids, Tail::Logits)?;
        self.w.gpu.read_staging(&self.w.logits_staging, self.w.model.config().vocab).await
    }

    /// The same, and reads the likeliest next token only.
    pub async fn likeliest(&mut self, ids: &[u32]) -> Result<Likeliest, GpuError> {
        self.finish(ids, Tail::Likeliest)?;
        Ok(self.w.gpu.read_staging(&self.w.likeliest_staging, 1).await?[0])
    }

    fn finish(&mut self, ids: &[u32], tail: Tail) -> Result<(), GpuError> {
        let rows = self.start(ids);
        if rows > 1 {
            let mut rec = Recorder::new(self.w.gpu);
            self.pass(&mut rec, rows);
            self.tail(&mut rec, rows - 1, tail);
            return rec.submit();
        }
        let ready = self.prepared.take().filter(|(of, _)| *of == tail).map(|(_, prepared)| prepared);
        let gpu = self.w.gpu;
        let prepared = ready.unwrap_or_else(|| gpu.prepare(&self.one_token().parts(tail)));
        gpu.submit(prepared)?;
        // The next token's commands are made while the device works on this one.
        self.prepared = Some((tail, gpu.prepare(&self.one_token().parts(tail))));
        Ok(())
    }

    /// Puts the tokens where the next pass reads them, and counts them; returns how many there are.
    fn start(&mut self, ids: &[u32]) -> usize {
        let w = self.w;
        assert!((1..=w.lengths.chunk).contains(&ids.len()), "one token to a chunk of them");
        assert!(self.len + ids.len() <= w.lengths.context, "the sequence stays within its context");
        w.gpu.write(&w.ids, ids);
        w.gpu.write(&self.past, &[self.len as u32]);
        if let Some(table) = w.model.base.matrix("per_layer_token_embd") {
            let rows: Vec<u8> =
                ids.iter().flat_map(|&id| table.rows(id as usize..id as usize + 1).data).copied().collect();
            w.gpu.write(&w.table, &planes::pack(table.ty, ids.len(), &rows));
        }
        self.len += ids.len();
        self.seen = self.seen.max(self.len);
        ids.len()
    }

    fn one_token(&mut self) -> &OneToken {
        if self.one_token.is_none() {
            let record = |work: &dyn Fn(&mut Recorder<'a>)| {
                let mut rec = Recorder::new(self.w.gpu);
                work(&mut rec);
                rec.keep()
            };
            self.one_token = Some(OneToken {
                body: record(&|rec| self.pass(rec, 1)),
                logits: record(&|rec| self.tail(rec, 0, Tail::Logits)),
                likeliest: record(&|rec| self.tail(rec, 0, Tail::Likeliest)),
            });
        }
        self.one_token.as_ref().expect("made above")
    }

    /// All layers over `rows` tokens, up to the output norm. The mirror of `forward.rs` without what backward needs.
    fn pass(&self, rec: &mut Recorder<'a>, rows: usize) {
        let (w, model) = (self.w, self.w.model);
        let (config, layers) = (model.config(), &model.layers);
        let root_d = (config.width as f64).sqrt() as f32;
        embedding::forward(rec, &w.stream, &w.ids, 0, &model.token_embd, 0, root_d, rows);
        self.per_layer_inputs(rec, rows);
        rms_norm::forward(rec, &w.normed, &w.stream, &layers[0].attn_norm, None, 1.0, rows);
        for layer in 0..layers.len() {
            let (l, lw) = (&config.layers[layer], &layers[layer]);
            let after = layers.get(layer + 1).map_or(&model.output_norm, |next| &next.attn_norm);
            let attention = w.wide.narrowed(l.heads * l.head_size);
            let mut matrices = vec![&lw.attn_q];
            if l.kv_donor.is_none() {
                matrices.extend(lw.attn_k.iter().chain(&lw.attn_v));
            }
            let (products, up) = self.products(rec, layer, Input::AttnNormed, &w.normed, &matrices, rows);
            let cache = self.caches[l.kv_donor.unwrap_or(layer)].as_ref().expect("donors have a cache");
            let shape = Heads {
                heads: l.heads,
                kv_heads: l.kv_heads,
                head_size: l.head_size,
                k_eq_v: l.k_eq_v,
                q_norm: &lw.attn_q_norm,
                k_norm: lw.attn_k_norm.as_ref(),
                cache,
                table: &lw.rope,
            };
            heads::forward(rec, &products, &shape, up.as_ref(), &self.past, rows);
            let shape = CachedAttention {
                heads: l.heads,
                kv_heads: l.kv_heads,
                head_size: l.head_size,
                window: l.window,
            };
            let context = w.lengths.context;
            shape.forward(rec, &attention, &products, cache, &self.past, context, &w.parts, rows);
            let (y, up) = self.products(rec, layer, Input::Attention, &attention, &[&lw.attn_output], rows);
            let (stream, normed) = (&w.stream, &w.normed);
            let (norm, next) = (&lw.post_attention_norm, Some(&lw.ffn_norm));
            residual::forward(rec, stream, normed, &y, up.as_ref(), norm, next, 1.0, rows);

            let geglu = w.wide.narrowed(l.ffn_width);
            let matrices = [&lw.ffn_gate, &lw.ffn_up];
            let (gate, up) = self.products(rec, layer, Input::FfnNormed, normed, &matrices, rows);
            gated::forward(rec, &geglu, &gate, gate.from(l.ffn_width), up.as_ref(), rows);
            let (y, up) = self.products(rec, layer, Input::Geglu, &geglu, &[&lw.ffn_down], rows);
            let norm = &lw.post_ffw_norm;
            let Some(branch) = &lw.per_layer else {
                let (next, scale) = (Some(after), lw.output_scale);
                residual::forward(rec, stream, normed, &y, up.as_ref(), norm, next, scale, rows);
                continue;
            };
            residual::forward(rec, stream, normed, &y, up.as_ref(), norm, None, 1.0, rows);
            let gated_input = w.wide.narrowed(config.per_layer_width);
            let (gate, up) = self.products(rec, layer, Input::AfterFfn, stream, &[&branch.inp_gate], rows);
            let input = w.per_layer.from(layer * config.per_layer_width);
            gated::forward(rec, &gated_input, &gate, input, up.as_ref(), rows);
            let (y, up) = self.products(rec, layer, Input::PerLayer, &gated_input, &[&branch.proj], rows);
            let (norm, next, scale) = (&branch.post_norm, Some(after), lw.output_scale);
            residual::forward(rec, stream, normed, &y, up.as_ref(), norm, next, scale, rows);
        }
    }

    /// `(√P·table[token] + norm(D^-½·model_proj·embedding))/√2` of all layers.
    fn per_layer_inputs(&self, rec: &mut Recorder<'_>, rows: usize) {
        let (w, model) = (self.w, self.w.model);
        let (Some(global), Some(projection)) = (&model.per_layer, &w.model_proj) else { return };
        let factor = (model.config().width as f64).sqrt().recip() as f32;
        let (y, x) = (w.per_layer.all(), w.stream.all());
        match (rows <= matvec::MAX_ROWS, &w.packed) {
            (true, _) => matvec::forward(rec, y, x, 0, projection, None, factor, None, rows),
            (false, None) => linear::forward(rec, y, x, projection, factor, None, rows),
            (false, Some([packed, _])) => {
                packed.pack(rec, x, projection.cols, rows);
                coop_linear::forward(rec, y, packed, projection, factor, None, rows);
            }
        }
        let of_file = model.base.matrix("per_layer_token_embd").expect("such models have the table");
        let tile = Tile { first_row: 0, rows, buffer: w.table.clone(), range: None };
        let table = Weight { ty: of_file.ty, rows, cols: of_file.cols, tiles: vec![tile] };
        per_layer::forward(rec, &w.per_layer, &table, &global.proj_norm);
    }

    /// Products of `x` with `matrices`, side by side, and what is still to be added by who reads them: a long pass adds the
    /// adapter's term itself.
    fn products(
        &self,
        rec: &mut Recorder<'_>,
        layer: usize,
        input: Input,
        x: &Rows,
        matrices: &[&Weight],
        rows: usize,
    ) -> (Rows, Option<Up<'_>>) {
        let group = self.adapter.as_ref().and_then(|a| a.group(layer, input));
        let width: usize = matrices.iter().map(|m| m.rows).sum();
        let y = self.w.products.narrowed(width + group.map_or(0, |g| g.a.rows));
        let starts = matrices.iter().scan(0, |next, m| Some(std::mem::replace(next, *next + m.rows)));
        if rows > matvec::MAX_ROWS {
            let starts: Vec<usize> = starts.collect();
            self.long_products(rec, group, x, matrices, &y, &starts, rows);
            return (y, None);
        }
        for (i, (matrix, start)) in matrices.iter().zip(starts).enumerate() {
            let down = group.filter(|_| i == 0).map(|g| Down { a: &g.a, z_offset: width });
            matvec::forward(rec, y.from(start), x.all(), 0, matrix, down.as_ref(), 1.0, None, rows);
        }
        (y, group.map(|g| g.up(width)))
    }

    fn long_products(
        &self,
        rec: &mut Recorder<'_>,
        group: Option<&Group>,
        x: &Rows,
        matrices: &[&Weight],
        y: &Rows,
        starts: &[usize],
        rows: usize,
    ) {
        let z = self.w.z.narrowed(group.map_or(0, |g| g.a.rows));
        if let Some(packed) = &self.w.packed {
            return coop_products(rec, packed, group, x, matrices, y, starts, &z, rows);
        }
        if let Some(group) = group {
            linear::forward(rec, z.all(), x.all(), &group.a.as_weight(), 1.0, None, rows);
        }
        for (i, (matrix, &start)) in matrices.iter().zip(starts).enumerate() {
            let term =
                group.map(|g| LowRank { z: z.from(i * g.rank), matrix: &g.b[i], rank: g.rank, scale: 1.0 });
            linear::forward(rec, y.from(start), x.all(), matrix, 1.0, term.as_ref(), rows);
        }
    }

    /// Logits of the pass's row `row`, and what the host reads of them.
    fn tail(&self, rec: &mut Recorder<'_>, row: usize, tail: Tail) {
        let (w, model) = (self.w, self.w.model);
        let (vocab, softcap) = (model.config().vocab, model.config().softcap);
        let (y, x) = (w.logits.all(), w.normed.all());
        matvec::forward(rec, y, x, row, model.head_matrix(), None, 1.0, softcap, 1);
        match tail {
            Tail::Logits => rec.copy(&w.logits.buffer, &w.logits_staging, (vocab * 4) as u64),
            Tail::Likeliest => {
                w.argmax.forward(rec, &w.logits, vocab);
                rec.copy(&w.argmax.result, &w.likeliest_staging, size_of::<Likeliest>() as u64);
            }
        }
    }
}

/// The same on cooperative matrices, as training has them there.
fn coop_products(
    rec: &mut Recorder<'_>,
    [packed_x, packed_z]: &[Packed; 2],
    group: Option<&Group>,
    x: &Rows,
    matrices: &[&Weight],
    y: &Rows,
    starts: &[usize],
    z: &Rows,
    rows: usize,
) {
    packed_x.pack(rec, x.all(), matrices[0].cols, rows);
    if let Some(group) = group {
        coop_lora::project(rec, z.all(), packed_x, &group.a, rows);
        packed_z.pack_alike(rec, z.all(), group.a.rows, rows, packed_x);
    }
    for (i, (matrix, &start)) in matrices.iter().zip(starts).enumerate() {
        let term = group.map(|g| coop_linear::LowRank {
            z: packed_z,
            z_offset: i * g.rank,
            matrix: &g.b[i],
            first_row: 0,
            rank: g.rank,
            scale: 1.0,
        });
        coop_linear::forward(rec, y.from(start), packed_x, matrix, 1.0, term.as_ref(), rows);
    }
}
