//! Forward over cached keys and values: a prompt at once, then token by token without running the sequence again.
//!
//! A pass over 1 to [`MAX_ROWS`](crate::ops::matvec::MAX_ROWS) tokens multiplies with matrix-vector kernels, a longer one with the training
//! forward's. What one token needs is recorded once and submitted again and again; all that changes lies in buffers. Where experts
//! stay in host memory, every token copies them to the device, layer by layer, and is recorded anew.

mod applied;
mod pass;
mod workspace;

use crate::adapter::lora::Adapter;
use crate::base::formats::planes;
use crate::gpu::{GpuError, Prepared, Recorder, Recording};
use crate::ops::argmax::Likeliest;
use crate::ops::cached_heads::Cache;
use applied::Applied;
pub use workspace::{Lengths, Workspace, longest_context};

/// The result that is read back after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    Logits,
    Likeliest,
}

/// The commands of a pass over one token, recorded.
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
    /// Most tokens that the caches have held since they were empty: a ring has overwritten older ones.
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
            let bytes = w.lengths.cache_bytes(config, layer);
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
    pub async fn append(&mut self, ids: &[u32]) -> Result<(), GpuError> {
        let rows = self.start(ids).await?;
        let mut rec = Recorder::new(self.w.gpu);
        self.pass_fetching(&mut rec, rows).await?;
        rec.submit()
    }

    /// Takes in at most a chunk of tokens, at least one, and reads the logits after the last, `[V]`, softcap applied.
    pub async fn logits(&mut self, ids: &[u32]) -> Result<Vec<f32>, GpuError> {
        self.finish(ids, Tail::Logits).await?;
        self.w.gpu.read_staging(&self.w.logits_staging, self.w.model.config().vocab).await
    }

    /// Takes in at most a chunk of tokens, at least one, and reads the likeliest next token only.
    pub async fn likeliest(&mut self, ids: &[u32]) -> Result<Likeliest, GpuError> {
        self.finish(ids, Tail::Likeliest).await?;
        Ok(self.w.gpu.read_staging(&self.w.likeliest_staging, 1).await?[0])
    }

    async fn finish(&mut self, ids: &[u32], tail: Tail) -> Result<(), GpuError> {
        let rows = self.start(ids).await?;
        if rows > 1 || self.w.model.offload.is_some() {
            let mut rec = Recorder::new(self.w.gpu);
            self.pass_fetching(&mut rec, rows).await?;
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
    async fn start(&mut self, ids: &[u32]) -> Result<usize, GpuError> {
        let w = self.w;
        assert!((1..=w.lengths.chunk).contains(&ids.len()), "one token to a chunk of them");
        assert!(self.len + ids.len() <= w.lengths.context, "the sequence stays within its context");
        w.gpu.write(&w.ids, ids);
        w.gpu.write(&self.past, &[self.len as u32]);
        if let Some(table) = w.model.base.tensor("per_layer_token_embd") {
            let rows = w.model.base.read_rows(&table, ids).await.map_err(GpuError::read)?;
            w.gpu.write(&w.table, &planes::to_planes(table.ty, ids.len(), &rows));
        }
        self.len += ids.len();
        self.seen = self.seen.max(self.len);
        Ok(ids.len())
    }

    fn one_token(&mut self) -> &OneToken {
        if self.one_token.is_none() {
            let record = |work: &dyn Fn(&mut Recorder<'a>)| {
                let mut rec = Recorder::lasting(self.w.gpu);
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
}
