//! Parts of the heads of attention or of a delta net, or of the channels of a short convolution. Their buffers are the widest that hold all
//! tokens, so those of long samples would exceed the largest buffer of a device. Heads and channels do not depend on each other: each part
//! has buffers of its own, and is computed after the one before.

use super::storage::Storages;
use super::table::{Saved, Span, TABLE, TEMPS, Temp};
use super::widths::LayerWidths;
use crate::base::config::{Config, DeltaNet, LayerConfig, ShortConv};
use crate::gpu::Gpu;
use crate::ops::columns;

/// The columns of one part of a layer's heads, among those of all heads.
#[derive(Clone, Debug)]
pub struct PartSpans {
    /// Columns of queries, with the gates of attention's output where it has any, of queries, keys and values of a delta net, or of input and
    /// gates of a short convolution.
    pub input: Vec<columns::Span>,
    /// Columns of the input of the output projection, and of the gates of a delta net's output.
    pub output: Vec<columns::Span>,
    /// Columns of the keys, and of the values, that the part's queries see.
    pub keys: Vec<columns::Span>,
    /// Columns of values by head: sinks of attention, or decays and rates of a delta net.
    pub heads: Vec<columns::Span>,
}

impl PartSpans {
    /// The columns of part `part` of `parts`.
    pub fn of(layer: &LayerConfig, part: usize, parts: usize) -> PartSpans {
        if let Some(net) = layer.delta {
            return PartSpans::of_delta(net, part, parts);
        }
        if let Some(conv) = layer.short_conv {
            return PartSpans::of_short_conv(conv, part, parts);
        }
        let count = layer.heads / parts;
        let heads = columns::Span { whole: part * count, part: 0, count };
        let kv_heads = layer.kv_heads.div_ceil(parts);
        let keys = columns::Span { whole: part * layer.kv_heads / parts, part: 0, count: kv_heads };
        let size = layer.head_size;
        PartSpans {
            input: vec![heads.times(if layer.output_gate { 2 * size } else { size })],
            output: vec![heads.times(size)],
            keys: vec![keys.times(size)],
            heads: vec![heads],
        }
    }

    /// A part has neighbouring channels.
    fn of_short_conv(conv: ShortConv, part: usize, parts: usize) -> PartSpans {
        let count = conv.channels / parts;
        let span =
            |i: usize| columns::Span { whole: i * conv.channels + part * count, part: i * count, count };
        let input = [0, 1, 2].map(span).into();
        PartSpans { input, output: vec![span(0)], keys: Vec::new(), heads: Vec::new() }
    }

    /// A part has neighbouring key heads, and every value head that reads one of them.
    fn of_delta(net: DeltaNet, part: usize, parts: usize) -> PartSpans {
        let count = net.key_heads / parts;
        let first = part * count;
        let times = net.value_heads / net.key_heads;
        let heads =
            (0..times).map(|i| columns::Span { whole: i * net.key_heads + first, part: i * count, count });
        let heads: Vec<columns::Span> = heads.collect();
        let size = net.head_size;
        let output: Vec<columns::Span> = heads.iter().map(|span| span.times(size)).collect();
        let of_keys = |i: usize| columns::Span {
            whole: i * net.keys() + first * size,
            part: i * count * size,
            count: count * size,
        };
        let behind = |span: &columns::Span| columns::Span {
            whole: 2 * net.keys() + span.whole,
            part: 2 * count * size + span.part,
            ..*span
        };
        let input = [0, 1].map(of_keys).into_iter().chain(output.iter().map(behind)).collect();
        PartSpans { input, output, keys: Vec::new(), heads }
    }
}

/// Numbers of parts that the heads of a layer divide into, in order.
fn choices(layer: &LayerConfig) -> Vec<usize> {
    let divides = |parts: &usize| match (layer.delta, layer.short_conv) {
        (Some(net), _) => net.key_heads.is_multiple_of(*parts),
        (_, Some(conv)) => (conv.channels / 4).is_multiple_of(*parts),
        _ => {
            let (heads, kv_heads) = (layer.heads, layer.kv_heads);
            heads.is_multiple_of(*parts)
                && (kv_heads.is_multiple_of(*parts) || parts.is_multiple_of(kv_heads))
        }
    };
    let most = match (layer.delta, layer.short_conv) {
        (Some(net), _) => net.key_heads,
        (_, Some(conv)) => conv.channels / 4,
        // A norm of whole rows reads all heads.
        _ if layer.qk_norm_of_rows => 1,
        // Parts of the heads would each expand the latent vectors.
        _ if layer.latent.is_some() => 1,
        _ => layer.heads,
    };
    (1..=most.max(1)).filter(divides).collect()
}

/// Divides the heads of the layers, whose widths are `whole`, into as few parts as keep every buffer within a binding, but at least into
/// `least` where they divide. If one part is enough everywhere, nothing changes.
pub(super) fn divide(
    gpu: &Gpu,
    config: &Config,
    tokens: usize,
    least: usize,
    whole: &[LayerWidths],
    storages: Storages,
) -> (Vec<LayerWidths>, Storages) {
    let fits = |w: &LayerWidths, storages| longest(w, tokens, storages) <= gpu.max_binding_bytes();
    let of_layers = || whole.iter().zip(&config.layers);
    let is_whole =
        |(w, l): (&LayerWidths, &LayerConfig)| choices(l).len() == 1 || least <= 1 && fits(w, storages);
    if of_layers().all(is_whole) {
        return (whole.to_vec(), storages);
    }
    let storages = storages.in_parts();
    let parted = |(w, l): (&LayerWidths, &LayerConfig)| {
        let choices = choices(l);
        let most = *choices.last().expect("one part is a choice");
        let enough = choices.into_iter().filter(|parts| *parts >= least.min(most));
        let fitting = enough.map(|parts| w.in_parts(gpu, l, parts)).find(|w| fits(w, storages));
        fitting.unwrap_or_else(|| w.in_parts(gpu, l, most))
    };
    (of_layers().map(parted).collect(), storages)
}

/// Bytes of the longest buffer of all tokens that division makes shorter.
fn longest(w: &LayerWidths, tokens: usize, storages: Storages) -> u64 {
    let saved = TABLE.iter().filter(|entry| entry.name.is_by_part() || entry.name == Saved::DeltaNormed);
    let saved = saved.map(|entry| (entry.role, entry.span, (entry.width)(w)));
    let is_divided = |name: Temp| name.is_by_part() || IN_TURN.contains(&name);
    let temps = TEMPS.iter().filter(|temp| is_divided(temp.name));
    let temps = temps.map(|temp| (temp.role, temp.span, (temp.width)(w, storages)));
    let bytes = |(role, span, width): (_, Span, usize)| {
        storages.of(role).value_bytes(span.rows(tokens, tokens), width)
    };
    let queries = (tokens * w.queries * 4) as u64;
    saved.chain(temps).map(bytes).max().unwrap_or(0).max(queries)
}

/// Buffers of backward that all parts use in turn.
const IN_TURN: [Temp; 6] =
    [Temp::Delta, Temp::DDeltaOutput, Temp::DU, Temp::DStates, Temp::DPairs, Temp::DMixed];

#[cfg(test)]
mod tests {
    use super::{PartSpans, choices};
    use crate::base::config::{DeltaNet, LayerConfig, ShortConv};
    use crate::ops::columns::Span;

    #[test]
    fn parts_have_whole_groups_of_heads_or_share_a_group() {
        let attention =
            |heads, kv_heads| LayerConfig { heads, kv_heads, head_size: 8, ..LayerConfig::default() };
        assert_eq!(choices(&attention(8, 4)), [1, 2, 4, 8]);
        assert_eq!(choices(&attention(12, 1)), [1, 2, 3, 4, 6, 12]);
        assert_eq!(choices(&attention(12, 4)), [1, 2, 4, 12]);
        let rows = LayerConfig { qk_norm_of_rows: true, ..attention(8, 4) };
        assert_eq!(choices(&rows), [1]);
        let keys = |parts| -> Vec<usize> {
            (0..parts).map(|part| PartSpans::of(&attention(12, 4), part, parts).keys[0].whole / 8).collect()
        };
        assert_eq!(keys(2), [0, 2]);
        assert_eq!(keys(12), [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
    }

    #[test]
    fn parts_of_a_short_convolution_have_neighbouring_channels() {
        let short_conv = Some(ShortConv { channels: 24, taps: 3 });
        let layer = LayerConfig { short_conv, ..LayerConfig::default() };
        assert_eq!(choices(&layer), [1, 2, 3, 6]);
        let spans = PartSpans::of(&layer, 1, 3);
        let span = |whole: usize, part: usize| Span { whole, part, count: 8 };
        assert_eq!(spans.input, [span(8, 0), span(32, 8), span(56, 16)]);
        assert_eq!(spans.output, [span(8, 0)]);
    }

    #[test]
    fn parts_of_a_delta_net_take_every_column_once() {
        let net = DeltaNet { key_heads: 4, value_heads: 12, head_size: 3 };
        let layer = LayerConfig { delta: Some(net), ..LayerConfig::default() };
        assert_eq!(choices(&layer), [1, 2, 4]);
        let mut taken = vec![0; net.channels()];
        for part in 0..2 {
            let spans = PartSpans::of(&layer, part, 2);
            for Span { whole, count, .. } in &spans.input {
                taken[*whole..whole + count].iter_mut().for_each(|n| *n += 1);
            }
            let columns: Vec<usize> =
                spans.input.iter().flat_map(|span| span.part..span.part + span.count).collect();
            assert_eq!(columns, (0..net.channels() / 2).collect::<Vec<usize>>());
        }
        assert!(taken.iter().all(|n| *n == 1));
        let second = PartSpans::of(&layer, 1, 2);
        assert_eq!(second.heads[1], Span { whole: 6, part: 2, count: 2 }, "values 2, 3, 6, 7, 10 and 11");
    }
}
