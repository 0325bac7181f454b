//! Forward over a key-value cache, and over the states of delta nets and short convolutions: a prompt in large passes, then token by token
//! without recomputing earlier tokens.
//!
//! A pass over 1 to [`MAX_ROWS`] tokens uses matrix-vector kernels, a longer pass uses the
//! training forward's kernels. The commands for one token are recorded once and resubmitted; everything that changes is in
//! buffers. If experts are in host memory, they are copied to the device for every token, layer by layer, and the commands are
//! recorded again.

mod adapter;
mod delta;
mod latent;
mod lengths;
mod pass;
mod scores;
mod sequences;
mod short_conv;
mod sizes;
mod step;
mod tokens;
mod workspace;

use crate::adapter::lora::Adapter;
use crate::base::config::LayerConfig;
use crate::gpu::{GpuError, Prepared, Recorder, Recording};
use crate::ops::argmax::Likeliest;
use crate::ops::cached_heads::{Cache, Past};
use crate::ops::delta::Carried;
use crate::ops::matvec::MAX_ROWS;
use adapter::Applied;
pub use lengths::Lengths;
pub use scores::Scoring;
pub use sequences::Sequences;
pub(super) use sizes::sequences_that_fit;
pub use sizes::{bytes, bytes_of_sequences, sequences_beside};
pub use step::STEP;
pub use workspace::{CHUNK, Workspace, longest_context};

/// The result that is read from the device after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    Logits,
    Likeliest,
}

/// The recorded commands of a pass over one token.
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

/// The sequences of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The only one.
    Alone,
    /// One of several.
    One(usize),
    /// Each of the first rows belongs to another one: this many rows.
    Each(usize),
}

/// One sequence: its key-value cache and its adapter.
pub struct Decoder<'a> {
    w: &'a Workspace<'a>,
    adapter: Option<Applied>,
    caches: Vec<Option<Cache>>, // by layer; `None` if the layer uses another layer's cache
    states: Vec<Option<Carried>>, // by layer; `None` if the layer has attention
    len: usize,
    /// Maximum number of tokens that the caches have held since they were last empty. A ring has overwritten older ones.
    seen: usize,
    place: Place,
    one_token: Option<OneToken>,
    prepared: Option<(Tail, Prepared)>,
}

impl<'a> Decoder<'a> {
    /// Creates an empty sequence. `adapter` is applied unmerged.
    pub fn new(w: &'a Workspace<'a>, adapter: Option<&Adapter>) -> Result<Decoder<'a>, GpuError> {
        Decoder::of(w, adapter, None)
    }

    /// Creates room for one sequence, or for several.
    fn of(
        w: &'a Workspace<'a>,
        adapter: Option<&Adapter>,
        sequences: Option<usize>,
    ) -> Result<Decoder<'a>, GpuError> {
        let config = w.model.config();
        let upload = |a: &Adapter| Applied::upload(w.gpu, a, config);
        let cache = |layer: usize| -> Result<Option<Cache>, GpuError> {
            let window = config.layers[layer].window;
            let (bytes, ring) = match sequences {
                None => (w.lengths.cache_bytes(config, layer), w.lengths.ring(window)),
                Some(n) => {
                    (n as u64 * w.lengths.cache_bytes_of_each(config, layer), w.lengths.ring_of_each(window))
                }
            };
            if bytes == 0 {
                return Ok(None);
            }
            Ok(Some(Cache::new(w.gpu.buffer("keys and values", bytes)?, ring)))
        };
        let state = |l: &LayerConfig| -> Result<Option<Carried>, GpuError> {
            let new = |shape: [usize; 3]| match sequences {
                None => Carried::new(w.gpu, shape[0], shape[1], shape[2]),
                Some(n) => Carried::for_each(w.gpu, shape, n),
            };
            state_shape(l).map(new).transpose()
        };
        Ok(Decoder {
            place: if sequences.is_some() { Place::One(0) } else { Place::Alone },
            w,
            adapter: adapter.map(upload).transpose()?,
            caches: (0..config.layers.len()).map(cache).collect::<Result<_, _>>()?,
            states: config.layers.iter().map(state).collect::<Result<_, _>>()?,
            len: 0,
            seen: 0,
            one_token: None,
            prepared: None,
        })
    }

    /// Number of tokens so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the sequence is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the adapter, the key-value cache and the states of delta nets and short convolutions.
    pub fn bytes(&self) -> u64 {
        let caches: u64 = self.caches.iter().flatten().map(|c| c.buffer.size()).sum();
        let states: u64 = self.states.iter().flatten().map(|s| s.history.size() + s.state.size()).sum();
        caches + states + self.adapter.as_ref().map_or(0, Applied::bytes)
    }

    /// Number of dispatches for one token, including the argmax.
    pub fn dispatches(&mut self) -> usize {
        self.one_token().parts(Tail::Likeliest).iter().map(|r| r.dispatches()).sum()
    }

    /// Compiles, in parallel, the kernels of passes of every length, so that no reply waits for them. Returns how many were new.
    pub fn compile(&self) -> Result<usize, GpuError> {
        let mut rec = Recorder::ahead(self.w.gpu);
        // Kernels differ by the number of tokens, rounded up to a power of two.
        let lengths = std::iter::successors(Some(1), |rows| Some(2 * rows));
        for rows in lengths.take_while(|&rows| rows <= self.w.lengths.chunk) {
            self.pass(&mut rec, rows);
        }
        self.tail(&mut rec, 0, Tail::Logits);
        self.tail(&mut rec, 0, Tail::Likeliest);
        rec.compile()
    }

    /// Rewinds to the first `len` tokens, or to none if sliding-window layers no longer hold the keys that the next token
    /// needs, or if a state holds later tokens: that of a delta net or a short convolution cannot be rewound. Returns the number of tokens kept.
    pub fn rewind(&mut self, len: usize) -> usize {
        let config = self.w.model.config();
        let windows = config.layers.iter().filter(|l| l.kv_donor.is_none()).filter_map(|l| l.window);
        let ring = |window: usize| match self.place {
            Place::Alone => self.w.lengths.ring(Some(window)),
            Place::One(_) | Place::Each(_) => self.w.lengths.ring_of_each(Some(window)),
        };
        let lost = |window: usize| {
            // The next token sees keys from this position on; the ring holds the last `ring` of the `seen` tokens.
            let first = (len + 1).saturating_sub(window);
            first + ring(window) < self.seen
        };
        let merged = config.layers.iter().any(|l| !l.has_attention());
        self.len =
            if len < self.len && (merged || windows.into_iter().any(lost)) { 0 } else { len.min(self.len) };
        if self.len == 0 {
            self.seen = 0;
        }
        self.len
    }

    /// Appends tokens, at most a chunk.
    pub async fn append(&mut self, ids: &[u32]) -> Result<(), GpuError> {
        let rows = self.start(ids).await?;
        let mut rec = Recorder::new(self.w.gpu);
        self.pass_fetching(&mut rec, rows).await?;
        rec.submit()
    }

    /// Appends 1 to `chunk` tokens and reads the logits after the last one, `[V]`, with the softcap applied.
    pub async fn logits(&mut self, ids: &[u32]) -> Result<Vec<f32>, GpuError> {
        self.finish(ids, Tail::Logits).await?;
        self.w.gpu.read_staging(&self.w.logits_staging, self.w.model.config().vocab).await
    }

    /// Appends 1 to `chunk` tokens and reads only the likeliest next token.
    pub async fn likeliest(&mut self, ids: &[u32]) -> Result<Likeliest, GpuError> {
        self.finish(ids, Tail::Likeliest).await?;
        Ok(self.w.gpu.read_staging(&self.w.likeliest_staging, 1).await?[0])
    }

    async fn finish(&mut self, ids: &[u32], tail: Tail) -> Result<(), GpuError> {
        let rows = self.start(ids).await?;
        if rows > 1 || self.place != Place::Alone || self.w.model.offload.is_some() {
            let mut rec = Recorder::new(self.w.gpu);
            self.pass_fetching(&mut rec, rows).await?;
            self.tail(&mut rec, rows - 1, tail);
            return rec.submit();
        }
        let ready = self.prepared.take().filter(|(of, _)| *of == tail).map(|(_, prepared)| prepared);
        let gpu = self.w.gpu;
        let prepared = ready.unwrap_or_else(|| gpu.prepare(&self.one_token().parts(tail)));
        gpu.submit(prepared)?;
        // The next token's commands are recorded while the device computes this one.
        self.prepared = Some((tail, gpu.prepare(&self.one_token().parts(tail))));
        Ok(())
    }

    /// Writes the tokens to the pass's input buffers and counts them. Returns their number.
    async fn start(&mut self, ids: &[u32]) -> Result<usize, GpuError> {
        let w = self.w;
        assert!((1..=w.lengths.chunk).contains(&ids.len()), "a pass takes one token to a chunk of them");
        assert!(self.len + ids.len() <= w.lengths.context, "the sequence stays within its context");
        w.write_tokens(self.len as u32, ids).await?;
        self.len += ids.len();
        self.seen = self.seen.max(self.len);
        Ok(ids.len())
    }

    /// The cache that layer `layer` owns, of the sequences of the pass.
    fn cache(&self, layer: usize) -> Cache {
        let cache = self.caches[layer].as_ref().expect("donors have a cache");
        let bytes = || self.w.lengths.cache_bytes_of_each(self.w.model.config(), layer);
        match self.place {
            Place::One(of) => cache.sequence(of, bytes()),
            Place::Alone | Place::Each(_) => cache.clone(),
        }
    }

    /// The sequences of the pass's tokens.
    fn past(&self) -> Past<'a> {
        match self.place {
            Place::Alone | Place::One(_) => Past::One(&self.w.tokens),
            Place::Each(_) => Past::Each(&self.w.step().table),
        }
    }

    /// Those of the `rows` rows of a pass that belong to a sequence.
    fn live(&self, rows: usize) -> usize {
        if let Place::Each(live) = self.place { live } else { rows }
    }

    /// Whether a pass over `rows` tokens takes matrix-vector kernels: not where each is of another sequence, since a row's result must not
    /// depend on their number.
    fn is_short(&self, rows: usize) -> bool {
        rows <= MAX_ROWS && !matches!(self.place, Place::Each(_))
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
        self.one_token.as_ref().expect("recorded above")
    }
}

/// Channels, values and head size of the state that a layer has: a short convolution has channels alone. `None` where the layer has attention.
fn state_shape(l: &LayerConfig) -> Option<[usize; 3]> {
    let of_conv = l.short_conv.map(|conv| [conv.channels, 0, 0]);
    l.delta.map(|net| [net.channels(), net.values(), net.head_size]).or(of_conv)
}
