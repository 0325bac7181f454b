//! Attention of new tokens over cached keys and values, with sliding window and grouped queries; for decoding.

use crate::gpu::{ARRIVALS, Binding, Gpu, GpuError, Kernel, Recorder};
use crate::ops::Rows;
use crate::ops::attention;
use crate::ops::cached_heads::{Cache, Past};

/// Twin of `Params` in shaders/cached_attention/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    heads: u32,
    kv_heads: u32,
    window: u32,
    ring: u32,
    q_stride4: u32,
    q_size4: u32,
    splits: u32,
}

/// Maximum number of splits of the keys.
const MAX_SPLITS: usize = 64;
/// Up to this many tokens the keys are split. More tokens fill the device without splitting.
const SPLIT_ROWS: usize = crate::ops::matvec::MAX_ROWS;
/// Most rows where each has a sequence of its own.
pub const EACH_ROWS: usize = 64;
/// Most splits of the keys of each of these: the scratch has as much room for all of them.
const EACH_SPLITS: usize = SPLIT_ROWS * MAX_SPLITS / EACH_ROWS;
/// Keys of one of these splits, as far as there are no more splits. Twin of the number in the shader.
const EACH_KEYS: usize = 256;

/// The threads of a workgroup, and the work of each.
#[derive(Clone, Copy)]
struct Threads {
    /// In a workgroup.
    count: u32,
    /// Sharing the score of one key.
    together: u32,
    /// Loads that a thread issues at a time.
    loads: u32,
    /// Maximum number of queries of a workgroup, for heads of up to 256.
    queries: usize,
}

/// For passes that fill the device, and for software renderers: each thread has a key of its own.
const ALONE: Threads = Threads { count: 64, together: 1, loads: 1, queries: 8 };
/// For a few tokens, which mostly wait for memory: neighbouring threads read neighbouring parts of a key.
const TOGETHER: Threads = Threads { count: 256, together: 8, loads: 4, queries: 4 };

/// Loads of keys, and as many of values, that a thread issues before the kernel ahead has ended, where it starts that early.
const AHEAD: u32 = 8;

impl Threads {
    /// Keys that a workgroup reads at a time; a split has at least this many.
    fn keys(self) -> usize {
        (self.count / self.together) as usize
    }

    /// Sizes of the shader. `SCORES` is the room for the scores of the most queries.
    fn sizes(self) -> [(&'static str, u32); 5] {
        let scores = self.count * self.queries as u32;
        let ahead = if self.together > 1 { AHEAD } else { 1 };
        [
            ("THREADS", self.count),
            ("TOGETHER", self.together),
            ("LOADS", self.loads),
            ("SCORES", scores),
            ("AHEAD", ahead),
        ]
    }
}

/// Sizes that passes of every length ask for.
pub(crate) fn sizes() -> Vec<Vec<(&'static str, u32)>> {
    let variants = [
        (ALONE, 0, 0, 0, 0),
        (ALONE, 1, 0, 0, 0),
        (TOGETHER, 0, 0, 0, 0),
        (TOGETHER, 1, 0, 0, 0),
        (TOGETHER, 0, 1, 0, 0),
        (TOGETHER, 1, 1, attention::cap(Some(50.0)), 0),
        (ALONE, 1, 0, 0, 1),
        (TOGETHER, 0, 0, attention::cap(Some(50.0)), 1),
        (TOGETHER, 1, 1, 0, 1),
    ];
    let sizes = |(threads, sinks, arriving, cap, each): (Threads, u32, u32, u32, u32)| {
        // Those in which the last workgroup adds up, which such devices have.
        let early = u32::from(arriving == 1 && each == 0);
        let others =
            [("SINKS", sinks), ("ARRIVING", arriving), ("CAP", cap), ("EACH", each), ("EARLY", early)];
        [&threads.sizes()[..], &others].concat()
    };
    variants.map(sizes).to_vec()
}

/// The shape of one layer.
#[derive(Clone, Copy, Debug)]
pub struct CachedAttention<'a> {
    /// Query heads `H`.
    pub heads: usize,
    /// Whether each query has its gates `[K]` behind it.
    pub gated: bool,
    /// Key/value heads `G`.
    pub kv_heads: usize,
    /// Head size `K`, a multiple of 4, at most 512.
    pub head_size: usize,
    /// Sliding window.
    pub window: Option<usize>,
    /// One more score of each head, to which no value belongs, `[H]`.
    pub sinks: Option<&'a wgpu::Buffer>,
    /// `c` of `c·tanh(s/c)` on the scores; `None` without.
    pub softcap: Option<f32>,
}

/// Scratch for the partial results of several workgroups per query. All layers share it.
#[derive(Clone, Debug)]
pub struct Parts {
    sums: wgpu::Buffer,
    weights: wgpu::Buffer,
}

impl Parts {
    /// Allocates scratch for layers of up to `heads` query heads and `queries` = `H·K` columns.
    pub fn new(gpu: &Gpu, heads: usize, queries: usize) -> Result<Parts, GpuError> {
        let [sums, weights] = Parts::sizes(gpu, heads, queries);
        Ok(Parts {
            sums: gpu.buffer("sums of split attention", sums)?,
            weights: gpu.buffer("weights of split attention", weights)?,
        })
    }

    /// Bytes of [`Parts::new`].
    pub fn bytes_of(gpu: &Gpu, heads: usize, queries: usize) -> u64 {
        Parts::sizes(gpu, heads, queries).map(|bytes| bytes.max(16).next_multiple_of(16)).iter().sum()
    }

    fn sizes(gpu: &Gpu, heads: usize, queries: usize) -> [u64; 2] {
        let parts = if gpu.kernels().workgroups_to_fill() > 1 { SPLIT_ROWS * MAX_SPLITS } else { 0 };
        [(parts * queries * 4) as u64, (parts * heads * 8) as u64]
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.sums.size() + self.weights.size()
    }
}

impl CachedAttention<'_> {
    /// Computes `result` `[rows, H, K]` of the queries at the start of the rows of `products`. The cache already holds the new tokens'
    /// keys and values. No more than `context` tokens are ever read from it. The results of a row do not depend on other sequences.
    pub fn forward<'p>(
        &self,
        rec: &mut Recorder,
        result: &Rows,
        products: &Rows,
        cache: &Cache,
        past: impl Into<Past<'p>>,
        context: usize,
        parts: &Parts,
        rows: usize,
    ) {
        let past = past.into();
        let each = matches!(past, Past::Each(_));
        let per_kv = self.heads / self.kv_heads;
        let keys = self.window.map_or(context, |w| w.min(context));
        let fill = rec.gpu().kernels().workgroups_to_fill();
        let threads = if fill > 1 && (rows <= SPLIT_ROWS || each) { TOGETHER } else { ALONE };
        let (queries, splits) = match each {
            true => self.shares_of_each(threads, keys),
            false => self.shares(threads, fill, keys, rows),
        };
        let blocks = if each { rows * per_kv.div_ceil(queries) } else { (rows * per_kv).div_ceil(queries) };
        let arriving = splits > 1 && rec.gpu().kernels().orders_storage();
        assert!(
            !arriving || blocks * self.kv_heads <= ARRIVALS,
            "there is a counter for each block of queries"
        );
        let params = Params {
            rows: rows as u32,
            heads: self.heads as u32,
            kv_heads: self.kv_heads as u32,
            window: self.window.unwrap_or(0) as u32,
            ring: cache.ring as u32,
            q_stride4: (products.stride / 4) as u32,
            q_size4: (self.head_size / if self.gated { 2 } else { 4 }) as u32,
            splits: splits as u32,
        };
        let bound = |index, buffer| Binding { index, buffer, range: None };
        let [sums, weights] = [bound(5, &parts.sums), bound(6, &parts.weights)];
        let arrivals = arriving.then(|| bound(8, rec.gpu().arrivals()));
        let sinks = self.sinks.map(|buffer| bound(7, buffer));
        let of_cache = [products.bind(1), cache.bind(2), past.bind(3)];
        let of_parts = [result.bind(4), sums, weights];
        let size4 = (self.head_size / 4) as u32;
        let usual = threads.together > 1 && !each;
        let early = ("EARLY", u32::from(usual && rec.gpu().kernels().starts_early()));
        let kernel = |entry| {
            Kernel::new("cached_attention/plain", entry)
                .with_constant("HEAD_SIZE4", size4)
                .with_sizes(threads.sizes())
                .with_size("SINKS", u32::from(sinks.is_some()))
                .with_size("ARRIVING", u32::from(arriving))
                .with_size("CAP", attention::cap(self.softcap))
                .with_sizes([past.size(), early])
        };
        let forward = kernel("forward").with_constant("QUERIES", queries as u32);
        let bindings = [&of_cache[..], &of_parts, sinks.as_slice(), arrivals.as_slice()].concat();
        rec.dispatch(forward, &params, &bindings, [blocks as u32, self.kv_heads as u32, splits as u32]);
        if splits > 1 && !arriving {
            let groups = [self.heads as u32, rows as u32, 1];
            let combine = kernel("combine").with_constant("QUERIES", 1);
            let past = [past.bind(3)];
            let past = if each { &past[..] } else { &[] };
            rec.dispatch(combine, &params, &[&of_parts[..], sinks.as_slice(), past].concat(), groups);
        }
    }

    /// Queries per workgroup, and splits of the keys, where every row has a sequence of its own: they depend on no other row.
    fn shares_of_each(&self, threads: Threads, keys: usize) -> (usize, usize) {
        let per_kv = self.heads / self.kv_heads;
        let most = if self.head_size <= 256 { threads.queries } else { 4 };
        let splits = if threads.together == 1 { 1 } else { keys.div_ceil(EACH_KEYS).clamp(1, EACH_SPLITS) };
        (most.min(per_kv.next_power_of_two()), splits)
    }

    /// Queries per workgroup, and splits of the keys. Queries in a workgroup share the keys that it reads, so each workgroup
    /// takes as many queries as leave enough workgroups for the device: a sixteenth of the number that fills it, because they
    /// mostly wait for memory.
    fn shares(
        &self,
        threads: Threads,
        workgroups_to_fill: usize,
        keys: usize,
        rows: usize,
    ) -> (usize, usize) {
        let queries = rows * self.heads / self.kv_heads;
        let most = if self.head_size <= 256 { threads.queries } else { 4 }.min(queries.next_power_of_two());
        let blocks = |of: usize| queries.div_ceil(of) * self.kv_heads;
        if threads.together == 1 {
            return (most, 1);
        }
        let parts = keys.div_ceil(threads.keys()).clamp(1, MAX_SPLITS);
        let few = |of: &usize| *of <= most && blocks(*of) * parts <= workgroups_to_fill / 16;
        let of = [1, 2, 4].into_iter().find(few).unwrap_or(most);
        (of, (workgroups_to_fill / blocks(of)).clamp(1, parts))
    }
}
