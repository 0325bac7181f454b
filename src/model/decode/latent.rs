//! Attention whose keys and values come from a latent vector, in a pass. The cache has the keys and values of every head.

use super::Decoder;
use super::lengths::rows;
use crate::base::config::{Config, LayerConfig};
use crate::gpu::{Gpu, GpuError, Recorder};
use crate::model::LatentLayer;
use crate::model::latent::{is_narrow, parts, vector};
use crate::ops::columns::{self, Span};
use crate::ops::latent;
use crate::ops::linear::transposed;
use crate::ops::linear::with_adapter::{self, Applied};
use crate::ops::lora::Input;
use crate::ops::{Rows, Unfinished, rms_norm};

/// The buffers of one pass that only models with latent vectors need.
pub(super) struct Buffers {
    heads: Rows,   // queries, keys and values [chunk, 3, H·K]
    queries: Rows, // latent vectors of queries [chunk, Rq]
    vectors: Rows, // latent vectors of keys and values [chunk, Rk]
    keys: Rows,    // keys without their turned part [chunk, H·(K − n)]
    values: Rows,  // values [chunk, H·V]
    output: Rows,  // of attention, without the zeros behind its heads [chunk, H·V]
}

/// Widths of the rows of [`Buffers`]; `None` for a model without latent vectors.
fn widths(config: &Config) -> Option<[usize; 6]> {
    let of = |l: &LayerConfig| {
        let latent = l.latent?;
        let values = l.attention_width();
        let queries = latent.query_rank.unwrap_or(0);
        Some([3 * l.heads * l.head_size, queries, latent.rank, l.heads * latent.key_size, values, values])
    };
    let layers = config.layers.iter().filter_map(of);
    layers.reduce(|a, b| std::array::from_fn(|i| a[i].max(b[i])))
}

impl Buffers {
    /// Buffers for passes of `chunk` tokens; `None` for a model without latent vectors.
    pub fn new(gpu: &Gpu, config: &Config, chunk: usize) -> Result<Option<Buffers>, GpuError> {
        let Some(widths) = widths(config) else { return Ok(None) };
        let row = |i: usize| Rows::new(gpu, "latent vectors", chunk, widths[i]);
        Ok(Some(Buffers {
            heads: row(0)?,
            queries: row(1)?,
            vectors: row(2)?,
            keys: row(3)?,
            values: row(4)?,
            output: row(5)?,
        }))
    }

    /// Bytes of [`Buffers::new`].
    pub fn bytes_of(config: &Config, chunk: usize) -> u64 {
        widths(config).map_or(0, |widths| widths.into_iter().map(|width| rows(chunk, width)).sum())
    }
}

impl<'a> Decoder<'a> {
    /// Queries, keys and values side by side, from the normed input.
    pub(super) fn of_latent(
        &self,
        rec: &mut Recorder<'a>,
        layer: usize,
        lw: &'a LatentLayer,
        rows: usize,
    ) -> Unfinished<'a> {
        let w = self.w;
        let l = &w.model.config().layers[layer];
        let latent = l.latent.expect("the layer has a latent vector");
        let b = w.latent.as_ref().expect("the model has latent vectors");
        let first = self.qkv(layer);
        let products = self.products(rec, layer, Input::AttnNormed, &w.normed, &first, rows);
        let products = self.add_terms(rec, products, &first, rows);
        let (width, behind) = (l.heads * l.head_size, first[0].rows);
        let heads = b.heads.reshaped(3 * width);
        let of_queries = Span { whole: 0, part: 0, count: behind };
        let to = if lw.q_a.is_some() { b.queries.reshaped(behind) } else { heads.clone() };
        columns::take(rec, &to, &products, &[of_queries], rows);
        let vectors = b.vectors.reshaped(latent.rank);
        let span = vector(&latent);
        let span = Span { whole: behind + span.whole, ..span };
        columns::take(rec, &vectors, &products, &[span], rows);
        rms_norm::columns::in_place(rec, vectors.all(), &lw.kv_norm, rows);

        let (keys, values) =
            (b.keys.reshaped(l.heads * latent.key_size), b.values.reshaped(l.attention_width()));
        let group = self.adapter.as_ref().and_then(|a| a.group(layer, Input::Latent));
        let z = w.z.reshaped(group.map_or(0, |group| group.rank));
        for (i, (matrix, y)) in [(&lw.k_b, &keys), (&lw.v_b, &values)].into_iter().enumerate() {
            let of_member = group.map(|group| (group.rank, group.member(i)));
            let adapter = of_member.as_ref();
            let adapter = adapter.map(|(rank, (a, b))| Applied { a, b, rank: *rank });
            let p = &mut self.long(rec, rows);
            match latent.apart && i == 0 {
                true => transposed::with_adapter(p, y, &vectors, matrix, adapter, &z),
                false => with_adapter::forward(p, y, &vectors, &[matrix], adapter, &z),
            }
        }
        let [of_keys, of_values] = parts(l, &latent);
        let turned = Some(products.from(behind));
        latent::join(rec, &of_keys, heads.from(width), &keys, turned, rows);
        latent::join(rec, &of_values, heads.from(2 * width), &values, None, rows);

        if let Some((q_a, norm)) = &lw.q_a {
            rms_norm::columns::in_place(rec, b.queries.reshaped(q_a.rows).all(), norm, rows);
            let x = b.queries.reshaped(q_a.rows);
            let products = self.products(rec, layer, Input::QueryLatent, &x, &[&lw.q], rows);
            let products = self.add_terms(rec, products, &[&lw.q], rows);
            columns::take(rec, &heads, &products, &[Span { whole: 0, part: 0, count: width }], rows);
        }
        Unfinished::of(&heads, None)
    }

    /// The output of attention without the zeros behind its heads, where heads of values are narrower than those of keys.
    pub(super) fn without_zeros(
        &self,
        rec: &mut Recorder<'a>,
        layer: usize,
        attention: Rows,
        rows: usize,
    ) -> Rows {
        let l = &self.w.model.config().layers[layer];
        let (Some(latent), Some(b)) = (l.latent.filter(|_| is_narrow(l)), &self.w.latent) else {
            return attention;
        };
        let [_, values] = parts(l, &latent);
        let output = b.output.reshaped(l.attention_width());
        latent::part(rec, &values, &output, &attention, rows);
        output
    }
}
