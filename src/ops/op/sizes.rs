//! Sizes of the shaders, with values that cover what the ops ask for.

use super::Sizes;
use crate::base::config::{Activation, Gating};
use crate::ops::heads::kernels::Shared;
use crate::ops::lora::{coop16_gradients, coop16_project};
use crate::ops::{attention, block_end, delta, experts, gated, short_conv};

pub(super) fn each(name: &'static str, values: &[u32]) -> Vec<Sizes> {
    values.iter().map(|value| vec![(name, *value)]).collect()
}

pub(super) fn activations() -> Vec<Sizes> {
    Activation::ALL.map(|activation| gated::sizes(activation).to_vec()).to_vec()
}

pub(super) fn short_convolutions() -> Vec<Sizes> {
    [(false, false), (true, false), (true, true)]
        .map(|(carried, each)| short_conv::sizes(carried, each).to_vec())
        .to_vec()
}

pub(super) fn routers() -> Vec<Sizes> {
    [Gating::Chosen, Gating::All, Gating::Sigmoid]
        .map(|gating| experts::router::sizes(gating).to_vec())
        .to_vec()
}

pub(super) fn tiled_products() -> Vec<Sizes> {
    [(0, 2, 0), (1, 2, 0), (0, 1, 1), (1, 1, 1)]
        .map(|(half, high, turned)| vec![("HALF", half), ("HIGH", high), ("TURNED", turned)])
        .to_vec()
}

pub(super) fn coop16_products() -> Vec<Sizes> {
    [(2, 0, 0, false), (1, 1, 0, false), (2, 0, 3, true), (1, 1, 1, false)]
        .map(|(high, turned, members, of_a)| coop16_product(0, high, turned, members, of_a))
        .to_vec()
}

pub(super) fn grouped_coop16_products() -> Vec<Sizes> {
    vec![coop16_product(1, 2, 0, 0, false)]
}

fn coop16_product(grouped: u32, high: u32, turned: u32, members: usize, of_a: bool) -> Sizes {
    let product = [("GROUPED", grouped), ("HIGH", high), ("TURNED", turned)];
    product.into_iter().chain(coop16_gradients::sizes(members, of_a)).collect()
}

pub(super) fn grouped_products() -> Vec<Sizes> {
    let sizes =
        |(half, masked, high)| vec![("HALF", half), ("MASKED", masked), ("HIGH", high), ("TURNED", 0)];
    [(0, 0, 1), (1, 0, 2), (0, 1, 2)].map(sizes).to_vec()
}

pub(super) fn adapter_products() -> Vec<Sizes> {
    [(1, 1), (1, 4), (2, 1), (3, 2)]
        .map(|(columns, down)| coop16_project::sizes(columns, down).to_vec())
        .to_vec()
}

pub(super) fn adapter_gradients() -> Vec<Sizes> {
    let of = |members| [false, true].map(|of_a| coop16_gradients::sizes(members, of_a).to_vec());
    (1..=coop16_gradients::MOST).flat_map(of).collect()
}

pub(super) fn matrices() -> Vec<Sizes> {
    each("MATRICES", &[0, 1])
}

pub(super) fn lanes() -> Vec<Sizes> {
    [8, 32].map(|lanes| vec![("LANES", lanes), ("TURNED", 0)]).to_vec()
}

pub(super) fn turned_lanes() -> Vec<Sizes> {
    [(8, 0), (32, 1)].map(|(lanes, turned)| vec![("LANES", lanes), ("TURNED", turned)]).to_vec()
}

/// Sizes of subgroups on software renderers; `HEAD4` and `SINKS` are attention's.
pub(super) fn software() -> Vec<Sizes> {
    [(4, 0), (8, 1), (16, 0)]
        .map(|(n, sinks)| vec![("LANES", n), ("QUADS", n / 4), ("HEAD4", 16), ("SINKS", sinks)])
        .to_vec()
}

pub(super) fn attention_software() -> Vec<Sizes> {
    with_cap(software())
}

/// `sizes` without a softcap, and the first of them with one.
fn with_cap(sizes: Vec<Sizes>) -> Vec<Sizes> {
    let with = |sizes: &Sizes, cap| [&sizes[..], &[("CAP", cap)]].concat();
    let capped: Vec<Sizes> =
        sizes.iter().take(1).map(|sizes| with(sizes, attention::cap(Some(50.0)))).collect();
    sizes.iter().map(|sizes| with(sizes, 0)).chain(capped).collect()
}

pub(super) fn attention_tiled() -> Vec<Sizes> {
    let cap = attention::cap(Some(50.0));
    let heads = [(4, 0, 0), (64, 1, cap), (100, 0, 0), (256, 0, cap), (512, 0, 0)];
    let each = |half, few| {
        heads.map(|(size, sinks, cap)| {
            [&attention::sizes(size, half, few)[..], &[("SINKS", sinks), ("CAP", cap)]].concat()
        })
    };
    // Short heads in f16 are alike for all.
    [&each(false, false)[..], &each(true, false), &each(false, true), &each(true, true)[2..]].concat()
}

pub(super) fn attention_coop8() -> Vec<Sizes> {
    let each = |lanes| {
        let cap = attention::cap(Some(50.0));
        [(4, 0, 0), (64, 1, 0), (100, 0, cap), (512, 0, 0)].map(|(size, sinks, cap)| {
            let kinds = [("LANES", lanes), ("SINKS", sinks), ("CAP", cap)];
            [&attention::coop8_sizes(size)[..], &kinds].concat()
        })
    };
    [each(8), each(32)].concat()
}

pub(super) fn attention_coop16() -> Vec<Sizes> {
    let of = |(size, matrices, sinks, cap)| {
        let kinds = [("MATRICES", matrices), ("SINKS", sinks), ("CAP", cap)];
        [&attention::coop16::sizes(size)[..], &kinds].concat()
    };
    let cap = attention::cap(Some(50.0));
    let plain =
        [(32, 0, 1), (64, 1, 0), (64, 1, 1), (96, 1, 0), (128, 0, 0), (192, 1, 0), (256, 1, 0), (512, 1, 0)];
    let plain = plain.map(|(size, matrices, sinks)| (size, matrices, sinks, 0));
    plain.into_iter().chain([(64, 1, 1, cap), (256, 0, 0, cap)]).map(of).collect()
}

pub(super) fn attention_parts() -> Vec<Sizes> {
    [32, 64, 96, 128, 192, 512].map(|size| attention::coop16_backward::sizes(size).to_vec()).to_vec()
}

pub(super) fn attention_scores() -> Vec<Sizes> {
    with_cap(attention_parts())
}

pub(super) fn block_ends() -> Vec<Sizes> {
    let sizes = |shares: u32, deep: u32, groups: u32, identity: u32, early: u32| {
        vec![
            ("EARLY", early),
            ("INTEGERS", u32::from(shares.is_multiple_of(2))),
            ("SHARES", shares),
            ("DEEP", deep),
            ("THREADS", 256 * groups),
            ("GROUPED", u32::from(groups > 1)),
            ("IDENTITY", identity),
            ("TWO_EPS", u32::from(shares.is_multiple_of(2))),
        ]
    };
    let alone = (1..=block_end::MAX_SHARES as u32).map(|shares| sizes(shares, 4 / shares.min(4), 1, 0, 0));
    let early = [sizes(2, 1, 4, 0, 1), sizes(2, 2, 1, 1, 1), sizes(3, 1, 1, 0, 1)];
    alone.chain([sizes(2, 1, 4, 0, 0), sizes(2, 2, 1, 1, 0)]).chain(early).collect()
}

pub(super) fn cached_gates() -> Vec<Sizes> {
    let [gelu, silu, oai] = Activation::ALL.map(gated::sizes);
    let sizes = |(deep, parts, activation, early): (u32, u32, [(&'static str, u32); 2], u32)| {
        let integers = u32::from(activation == gelu);
        let own =
            [("DEEP", deep), ("PARTS", parts), ("PARTED", u32::from(parts > 1)), ("INTEGERS", integers)];
        [&own, &activation[..], &[("EARLY", early)]].concat()
    };
    let plain = [(1, 1, gelu), (4, 1, gelu), (1, 4, gelu), (4, 1, silu), (1, 4, silu), (1, 4, oai)];
    let plain = plain.map(|(deep, parts, activation)| (deep, parts, activation, 0));
    plain.into_iter().chain([(4, 1, gelu, 1), (1, 4, gelu, 1), (1, 4, silu, 1)]).map(sizes).collect()
}

pub(super) fn gates() -> Vec<Sizes> {
    let [gelu, silu, oai] = Activation::ALL.map(gated::sizes);
    let sizes = |(each, rounded, activation): (u32, u32, [(&'static str, u32); 2])| {
        let sizes = [("EACH", each), ("THREADS", 256), ("ROUNDED", rounded)];
        [&sizes[..], &activation[..]].concat()
    };
    let packed = [(21, 1, gelu), (1, 1, silu), (12, 1, oai)];
    let rows = [(1, gelu), (6, gelu), (12, gelu), (21, gelu), (1, silu), (21, silu), (12, oai)];
    rows.map(|(each, activation)| (each, 0, activation)).into_iter().chain(packed).map(sizes).collect()
}

pub(super) fn deltas() -> Vec<Sizes> {
    [(4, true), (16, false), (100, false), (128, false), (128, true)]
        .map(|(size, carried)| delta::sizes(size, carried).to_vec())
        .to_vec()
}

pub(super) fn mixes() -> Vec<Sizes> {
    [(4, true, false), (16, false, false), (100, false, false), (128, false, true), (128, true, false)]
        .map(|(size, carried, halves)| delta::mix_sizes(size, carried, halves))
        .into_iter()
        .chain([delta::each_sizes(16), delta::each_sizes(128)])
        .collect()
}

pub(super) fn steps() -> Vec<Sizes> {
    let alone = [4, 128].map(|size| delta::mix_sizes(size, true, false));
    alone.into_iter().chain([delta::each_sizes(16), delta::each_sizes(100)]).collect()
}

pub(super) fn delta_norms() -> Vec<Sizes> {
    [4, 16, 100, 128].map(delta::norm::sizes).to_vec()
}

pub(super) fn coop16_deltas() -> Vec<Sizes> {
    [16, 32, 128].map(|size| delta::coop16::sizes(size).to_vec()).to_vec()
}

pub(super) fn heads_forward() -> Vec<Sizes> {
    let with = |rounded, of_rows, behind| {
        move |sizes: Sizes| {
            [&sizes[..], &[("ROUNDED", rounded), ("OF_ROWS", of_rows), ("BEHIND", behind)]].concat()
        }
    };
    let all_of = |shared: fn(usize) -> Shared| {
        let fresh = heads(shared).into_iter().filter(|sizes| sizes.contains(&("MATRICES", 0)));
        let usual = heads(shared).into_iter().map(with(0, 0, 0)).chain(fresh.map(with(1, 0, 0)));
        // Queries alone, and keys beside values without a norm.
        let normed = || heads(shared).into_iter().filter(|sizes| sizes.contains(&("IDENTITY", 0)));
        usual.chain(normed().map(with(0, 1, 0))).chain(normed().map(with(0, 0, 1)))
    };
    let of_heads = heads(Shared::of_heads);
    let of_heads =
        of_heads.clone().into_iter().map(with(0, 0, 0)).chain(of_heads.into_iter().map(with(0, 0, 1)));
    all_of(Shared::usual).chain(all_of(Shared::of_rows)).chain(of_heads).collect()
}

pub(super) fn heads_backward() -> Vec<Sizes> {
    [heads(Shared::usual), heads(Shared::of_rows)].concat()
}

/// Sizes of both directions for heads that are shared so.
fn heads(shared: fn(usize) -> Shared) -> Vec<Sizes> {
    // IDENTITY, MATRICES, VALUES and VALUES_IDENTITY.
    let alone = [(1, 16, [0, 0, 0, 0]), (8, 256, [0, 1, 0, 0]), (20, 512, [0, 0, 0, 0])];
    let of_none = [(8, 128, [1, 1, 0, 0]), (8, 128, [1, 0, 0, 0])];
    let both = [(1, 256, [0, 0, 1, 0]), (8, 128, [0, 0, 1, 1]), (8, 128, [1, 0, 1, 1])];
    let both_packed = [(1, 256, [0, 1, 1, 0]), (8, 128, [0, 1, 1, 1])];
    let names = ["IDENTITY", "MATRICES", "VALUES", "VALUES_IDENTITY"];
    let all = alone.into_iter().chain(of_none).chain(both).chain(both_packed);
    all.map(|(count, size, values)| {
        let sizes = shared(count).sizes(count, size);
        sizes.into_iter().chain(names.into_iter().zip(values)).collect()
    })
    .collect()
}

pub(super) fn cached_heads() -> Vec<Sizes> {
    let plain = [(1, 1, 0, 0), (4, 1, 0, 0), (4, 0, 0, 0), (1, 0, 1, 0), (4, 1, 0, 1), (1, 0, 1, 1)];
    let behind = [(4, 0, 0, 0), (4, 0, 0, 1)];
    let all = plain.map(|sizes| (sizes, 0, 0)).into_iter().chain(behind.map(|sizes| (sizes, 1, 0)));
    let early =
        plain.into_iter().filter(|(_, _, identity, each)| identity + each == 0).map(|sizes| (sizes, 0, 1));
    all.chain(early)
        .map(|((deep, values, identity, each), behind, early)| {
            vec![
                ("EARLY", early),
                ("DEEP", deep),
                ("NORMED_VALUES", values),
                ("IDENTITY", identity),
                ("EACH", each),
                ("BEHIND", behind),
            ]
        })
        .collect()
}

pub(super) fn ropes() -> Vec<Sizes> {
    [0, 1].map(|weighted| vec![("WEIGHTED", weighted)]).to_vec()
}

pub(super) fn matvecs() -> Vec<Sizes> {
    let [gelu, silu, oai] = Activation::ALL.map(gated::sizes);
    // BYTES, ENDED, GATED, ALONE, WHOLE and EARLY.
    let stored = [([0, 0, 0, 0, 1, 0], gelu), ([0, 0, 0, 1, 0, 0], gelu), ([1, 0, 0, 0, 1, 0], gelu)];
    let computed = [[0, 0, 1, 0, 1, 0], [0, 0, 1, 0, 0, 0], [0, 0, 1, 0, 1, 0]];
    let computed = computed.into_iter().zip([gelu, silu, oai]);
    let ended = [([0, 1, 0, 0, 1, 0], gelu)];
    let early = [[0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 1, 1], [0, 0, 1, 0, 1, 1], [0, 1, 0, 0, 1, 1]];
    let names = ["BYTES", "ENDED", "GATED", "ALONE", "WHOLE", "EARLY"];
    let each = stored.into_iter().chain(computed).chain(ended).chain(early.map(|values| (values, gelu)));
    each.map(|(values, activation)| {
        // One row where it is in bytes or ends a block, and else the most.
        let sums = if values[0] + values[1] > 0 { 256 } else { 2048 };
        let more = [("SUMS", sums), ("SHARES", 3), ("DEEP", 1), ("AHEAD", 2), ("AHEAD_A", 3)];
        let sizes: Sizes = names.into_iter().zip(values).collect();
        [&sizes[..], &more, &activation].concat()
    })
    .collect()
}

/// Threads per workgroup, and whether each takes a row alone.
pub(super) fn norms_of_rows() -> Vec<Sizes> {
    [(64, 0), (4, 1), (8, 1), (16, 1)]
        .map(|(threads, alone)| vec![("THREADS", threads), ("ALONE", alone)])
        .to_vec()
}

pub(super) fn norms() -> Vec<Sizes> {
    [(64, 0, 0), (4, 1, 0), (8, 1, 0), (16, 1, 0), (64, 0, 1), (8, 1, 1)]
        .map(|(threads, alone, identity)| {
            vec![("THREADS", threads), ("ALONE", alone), ("IDENTITY", identity)]
        })
        .to_vec()
}

pub(super) fn norms_packed() -> Vec<Sizes> {
    // EACH, STORES, ADDS, ADDED_MATRICES, SUMS, PACKS, IDENTITY and MATRICES.
    let packed = [[1, 0, 0, 0, 0, 1, 0, 0], [6, 0, 0, 0, 0, 1, 0, 1], [12, 0, 0, 0, 0, 1, 0, 0]];
    let added = [[6, 1, 1, 0, 0, 0, 0, 0], [21, 1, 1, 1, 0, 0, 0, 0]];
    let passed = [[6, 1, 1, 0, 0, 1, 0, 1], [21, 1, 1, 1, 0, 1, 0, 1], [12, 1, 1, 0, 0, 1, 1, 0]];
    let summed = [[6, 1, 0, 0, 1, 1, 0, 1], [6, 1, 0, 0, 1, 1, 1, 0]];
    let names = ["EACH", "STORES", "ADDS", "ADDED_MATRICES", "SUMS", "PACKS", "IDENTITY", "MATRICES"];
    let of_rows = packed.into_iter().chain(added).chain(passed).chain(summed).map(|values| (values, 0));
    let of_halves = added.into_iter().chain(passed).map(|values| (values, 1));
    let sizes = |(values, halves)| {
        let all: Sizes = names.into_iter().zip(values).collect();
        [&all[..], &[("HALVES", halves)]].concat()
    };
    of_rows.chain(of_halves).map(sizes).flat_map(norm_workgroups).collect()
}

pub(super) fn norms_added() -> Vec<Sizes> {
    // EACH, MATRICES, ROUNDED, NORMED, KEPT and IDENTITY.
    let packed = [[6, 1, 0, 0, 0, 0], [21, 1, 0, 1, 1, 0], [6, 1, 0, 0, 0, 1]];
    let rows = [[1, 0, 0, 0, 0, 0], [12, 0, 0, 1, 0, 0], [12, 0, 0, 1, 0, 1]];
    let rounded = [[6, 0, 1, 0, 0, 0], [21, 0, 1, 1, 1, 0], [12, 0, 1, 1, 0, 1], [6, 0, 1, 1, 1, 1]];
    let names = ["EACH", "MATRICES", "ROUNDED", "NORMED", "KEPT", "IDENTITY"];
    let all = packed.into_iter().chain(rows).chain(rounded);
    all.flat_map(|values| norm_workgroups(names.into_iter().zip(values).collect())).collect()
}

/// Sizes that begin with `EACH`, of norms in 64 threads per row, and those that CUDA has for the same rows.
fn norm_workgroups(sizes: Sizes) -> [Sizes; 2] {
    let (_, each) = sizes[0];
    let (rows, threads) = if each > 16 { (1, 256) } else { (2, 128) };
    let with = |each: u32, [rows, threads, warps]: [u32; 3]| {
        [&[("EACH", each)], &sizes[1..], &[("ROWS", rows), ("THREADS", threads), ("WARPS", warps)]].concat()
    };
    [with(each, [4, 64, 0]), with((64 * each).div_ceil(threads), [rows, threads, 8])]
}

pub(super) fn peaks() -> Vec<Sizes> {
    [(8, 8), (8, 32), (16, 32)].map(|(edge, lanes)| vec![("EDGE", edge), ("LANES", lanes)]).to_vec()
}
