//! Attention whose keys and values come from a latent vector, in a pass. The cache has the keys and values of every head.

use super::lengths::rows;
use super::tokens::Walk;
use crate::base::Module;
use crate::base::config::{Config, LayerConfig};
use crate::gpu::{Gpu, GpuError};
use crate::memory::{LayerActs, Saved};
use crate::model::LatentLayer;
use crate::model::batch::Tokens;
use crate::model::latent::{parts, vector};
use crate::ops::act::Act;
use crate::ops::columns::{self, Span};
use crate::ops::linear::{self, Adapters, transposed};
use crate::ops::lora::Input;
use crate::ops::pass::{Decoding, Pass};
use crate::ops::{Rows, latent, rms_norm};

/// The buffers of one pass that only models with latent vectors need.
pub(super) struct Buffers {
    heads: Rows,             // queries, keys and values [chunk, 3, H·K]
    queries: Rows,           // latent vectors of queries [chunk, Rq]
    vectors: Rows,           // latent vectors of keys and values [chunk, Rk]
    keys: Rows,              // keys without their turned part [chunk, H·(K − n)]
    values: Rows,            // values [chunk, H·V]
    pub(super) output: Rows, // of attention, without the zeros behind its heads [chunk, H·V]
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

impl Walk<'_, '_> {
    /// Queries, keys and values side by side, from the results of the first products.
    pub(super) fn of_latent(&self, p: &mut Pass, layer: usize, lw: &LatentLayer, a: &LayerActs) -> Act {
        let (w, rows) = (self.decoder.w, self.rows);
        let l = &w.model.config().layers[layer];
        let latent = l.latent.expect("the layer has a latent vector");
        let b = w.latent.as_ref().expect("the model has latent vectors");
        let (queries, both) = (a[Saved::QueryLatent].rows(), a[Saved::KeyValueLatent].view());
        let (width, behind) = (l.heads * l.head_size, both.offset);
        let heads = b.heads.reshaped(3 * width);
        let of_queries = Span { whole: 0, part: 0, count: behind };
        let to = if lw.q_a.is_some() { b.queries.reshaped(behind) } else { heads.clone() };
        columns::take(p.rec.now(), &to, queries, &[of_queries], rows);
        let vectors = b.vectors.reshaped(latent.rank);
        let span = vector(&latent);
        let span = Span { whole: behind + span.whole, ..span };
        columns::take(p.rec.now(), &vectors, queries, &[span], rows);
        rms_norm::columns::in_place(p.rec.now(), vectors.all(), &lw.kv_norm, rows);

        let (keys, values) =
            (b.keys.reshaped(l.heads * latent.key_size), b.values.reshaped(l.attention_width()));
        self.expand(p, layer, lw, &vectors.into(), [&keys, &values]);
        let [of_keys, of_values] = parts(l, &latent);
        latent::join(p.rec.now(), &of_keys, heads.from(width), &keys, Some(both), rows);
        latent::join(p.rec.now(), &of_values, heads.from(2 * width), &values, None, rows);

        if let Some((q_a, norm)) = &lw.q_a {
            let x = b.queries.reshaped(q_a.rows);
            rms_norm::columns::in_place(p.rec.now(), x.all(), norm, rows);
            let y = w.products.reshaped(lw.q.rows + self.z(layer, Input::QueryLatent));
            let adapters = self.adapters(layer, Input::QueryLatent);
            linear::forward(
                p,
                &[(Module::AttnQB, &lw.q, &y.clone().into())],
                &x.into(),
                adapters,
                &a[Saved::ZQuery],
            );
            columns::take(p.rec.now(), &heads, &y, &[Span { whole: 0, part: 0, count: width }], rows);
        }
        heads.into()
    }

    /// The keys without their turned part, and the values, of every head, by the kernels of long passes.
    fn expand(&self, p: &mut Pass, layer: usize, lw: &LatentLayer, x: &Act, [keys, values]: [&Rows; 2]) {
        let latent = self.decoder.w.model.config().layers[layer].latent;
        let applied = self.adapter(layer, Input::Latent);
        let members = [0, 1].map(|i| applied.map(|applied| applied.member(i)));
        let member = |i: usize| Adapters::Applied(members[i].as_ref());
        let [keys, values] = [keys, values].map(|rows| Act::from(rows.clone()));
        let (of_keys, of_values) = ((Module::AttnKB, &lw.k_b, &keys), (Module::AttnVB, &lw.v_b, &values));
        let rank = applied.map_or(0, |applied| applied.rank);
        let z = &self.decoder.w.z.reshaped(rank).into();
        let decoding = p.decoding;
        p.decoding = decoding.map(|decoding| Decoding { short: false, ..decoding });
        match latent.is_some_and(|latent| latent.apart) {
            true => transposed::forward(p, of_keys, x, member(0), z),
            false => linear::forward(p, &[of_keys], x, member(0), z),
        }
        linear::forward(p, &[of_values], x, member(1), z);
        p.decoding = decoding;
    }
}
