//! Norms and rotary embedding of heads, and storing keys and values in the cache; for decoding.

pub mod copy;

use crate::gpu::{Binding, Kernel, Recorder};
use crate::ops::Unfinished;
use crate::ops::act::Act;
use crate::ops::lora::Term;
use crate::ops::norm::Norm;
use crate::ops::pass::Pass;
use crate::ops::rope::Table;

/// Twin of `Params` in shaders/cached_heads/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    heads: u32,
    kv_heads: u32,
    head_size: u32,
    stride: u32,
    values: u32,
    rank: u32,
    z_offset: u32,
    k_z_offset: u32,
    v_z_offset: u32,
    k_b_offset: u32,
    v_b_offset: u32,
    ring: u32,
    query_size: u32,
    pairs: u32,
    eps: f32,
}

/// Shape and weights of one layer. A row of products holds queries `[H, K]`, keys and values `[G, K]`, and `z`.
pub struct Heads<'a> {
    /// Query heads `H`.
    pub heads: usize,
    /// Key/value heads `G`.
    pub kv_heads: usize,
    /// Head size `K`, at most 512.
    pub head_size: usize,
    /// Whether each query has its gates `[K]` behind it.
    pub gated: bool,
    /// Whether the values are the raw keys.
    pub k_eq_v: bool,
    /// The norm of the queries. Either it and the norm of the keys are the identity, or neither is.
    pub q_norm: &'a Norm,
    /// The norms of the keys and of the values; `None` if the layer uses another layer's.
    pub kv_norms: Option<[&'a Norm; 2]>,
    /// The cache that the layer's attention reads: its own or another layer's.
    pub cache: &'a Cache,
    /// Tables of the rotary embedding of queries and of keys.
    pub tables: [&'a Table; 2],
}

/// A layer's key-value cache.
#[derive(Clone, Debug)]
pub struct Cache {
    /// `[ring, 2, G, K]`: keys, then values. Token `p` is in row `p % ring`. Where it is for several sequences, these lie one after the other.
    pub buffer: wgpu::Buffer,
    /// Number of rows of a sequence.
    pub ring: usize,
    /// The part of the buffer that holds the sequence of a pass; `None` for all of it.
    pub range: Option<(u64, u64)>,
}

impl Cache {
    /// The cache of one sequence, or of as many as `buffer` has room for.
    pub fn new(buffer: wgpu::Buffer, ring: usize) -> Cache {
        Cache { buffer, ring, range: None }
    }

    /// The part that holds sequence `of`, of `bytes` bytes each.
    pub fn sequence(&self, of: usize, bytes: u64) -> Cache {
        Cache { range: Some((of as u64 * bytes, bytes)), ..self.clone() }
    }

    pub(crate) fn bind(&self, index: u32) -> Binding<'_> {
        Binding { index, buffer: &self.buffer, range: self.range }
    }
}

/// The sequence of a row of a step that belongs to none. Twin of the constant in shaders/common/steps.wgsl.
pub const NO_SEQUENCE: u32 = u32::MAX;

/// The sequences of a pass's tokens.
#[derive(Clone, Copy)]
pub enum Past<'a> {
    /// They follow each other behind as many tokens as this buffer says, u32 `[1]`.
    One(&'a wgpu::Buffer),
    /// Each is the next token of a sequence of its own. The buffer has the tokens before it and its sequence, u32 `[T, 2]`.
    Each(&'a wgpu::Buffer),
}

impl<'a> From<&'a wgpu::Buffer> for Past<'a> {
    fn from(past: &'a wgpu::Buffer) -> Past<'a> {
        Past::One(past)
    }
}

impl<'a> Past<'a> {
    pub(crate) fn bind(self, index: u32) -> Binding<'a> {
        let (Past::One(buffer) | Past::Each(buffer)) = self;
        Binding { index, buffer, range: None }
    }

    /// The shader's size.
    pub(crate) fn size(self) -> (&'static str, u32) {
        ("EACH", u32::from(matches!(self, Past::Each(_))))
    }
}

/// [`forward`] in a pass, whose first `live` rows belong to sequences. The term may be pending.
pub fn of_pass(p: &mut Pass, products: &Act, layer: &Heads, past: Past, live: usize) {
    let term = p.rec.take_term(products, p.tokens);
    let products = Unfinished::of(products.rows(), term.as_ref().map(Term::up));
    forward(p.rec.now(), &products, layer, past, live);
}

/// Adds the adapter's term to `rows` rows of `products`, norms and rotates the queries in place, and stores keys and values in
/// the cache of their sequences. The term is that of queries, keys and values, as far as the layer has them.
pub fn forward<'p>(
    rec: &mut Recorder,
    products: &Unfinished,
    layer: &Heads,
    past: impl Into<Past<'p>>,
    rows: usize,
) {
    let past = past.into();
    let up = products.term.as_ref();
    let products = &products.rows;
    let kv_heads = if layer.kv_norms.is_some() { layer.kv_heads } else { 0 };
    let [k_norm, v_norm] = layer.kv_norms.unwrap_or([layer.q_norm; 2]);
    assert_eq!(layer.q_norm.identity, k_norm.identity, "queries and keys are treated alike");
    assert!(v_norm.identity || !k_norm.identity, "values alone are never normed");
    let query_size = if layer.gated { 2 * layer.head_size } else { layer.head_size };
    let keys = layer.heads * query_size;
    let member = |i: usize| up.map_or((0, 0), |u| u.member(i));
    let [(z_offset, _), (k_z_offset, k_b_offset)] = [0, 1].map(member);
    // If the values are the raw keys, they include the keys' term.
    let (v_z_offset, v_b_offset) = member(if layer.k_eq_v { 1 } else { 2 });
    let params = Params {
        heads: layer.heads as u32,
        kv_heads: kv_heads as u32,
        head_size: layer.head_size as u32,
        stride: products.stride as u32,
        values: (keys + if layer.k_eq_v { 0 } else { kv_heads * layer.head_size }) as u32,
        rank: up.map_or(0, |u| u.rank as u32),
        z_offset,
        k_z_offset,
        v_z_offset,
        k_b_offset,
        v_b_offset,
        ring: layer.cache.ring as u32,
        query_size: query_size as u32,
        pairs: layer.tables[0].pairs() as u32,
        eps: layer.q_norm.eps,
    };
    let b = up.map_or(rec.unused(2), |u| u.bind(2));
    let mut bindings = vec![
        products.bind(1),
        b,
        layer.tables[0].bind(5),
        past.bind(6),
        layer.cache.bind(7),
        layer.tables[1].bind(8),
    ];
    bindings.extend(layer.q_norm.weights_of_norm(rec, 3));
    bindings.extend(k_norm.weights_of_norm(rec, 4));
    let normed_values = u32::from(!v_norm.identity);
    let deep = up.map_or(1, |u| u.deep(4, 1));
    let behind = ("BEHIND", u32::from(layer.q_norm.behind_rotation));
    let usual = !layer.q_norm.identity && !layer.q_norm.behind_rotation && matches!(past, Past::One(_));
    let early = ("EARLY", u32::from(usual && rec.gpu().kernels().starts_early()));
    let norms = [("NORMED_VALUES", normed_values), layer.q_norm.size(), behind];
    let sizes = [&[("DEEP", deep), past.size(), early][..], &norms].concat();
    let kernel = Kernel::new("cached_heads/plain", "forward").with_sizes(sizes);
    rec.dispatch(kernel, &params, &bindings, [(layer.heads + 2 * kv_heads) as u32, rows as u32, 1]);
}
