//! The ops between the products in decoding: heads, ends of blocks, gates, per-layer inputs, argmax.

use rullama_train::base::config::Activation;
use rullama_train::base::formats::GgmlType;
use rullama_train::cases::block::POISON;
use rullama_train::gpu::Gpu;
use rullama_train::ops::Rows;
use rullama_train::ops::Unfinished;
use rullama_train::ops::Up;
use rullama_train::ops::argmax::top;
use rullama_train::ops::argmax::{Argmax, Likeliest};
use rullama_train::ops::block_end as residual;
use rullama_train::ops::block_end::{End, Next};
use rullama_train::ops::cached_gated as gated;
use rullama_train::ops::cached_heads as heads;
use rullama_train::ops::cached_heads::{Cache, Heads};
use rullama_train::ops::categorical::{Categorical, Draw, Drawn};
use rullama_train::ops::matvec::{self, Down, Ended, Gated};
use rullama_train::ops::per_layer;
use rullama_train::ops::rms_norm::Norm;
use rullama_train::ops::rope::Table;
use rullama_train::reference;

use super::check::{Block, Check, Held, Outcome, Tolerance, run, scaled, sum, values, wide};
use super::linear::{random_weight, widths};

/// A norm and a few sums.
const SUMS: Tolerance = Tolerance::new(2e-6, 4e-6, 4e-6);
const EPS: f32 = 1e-6;
/// Factor on the queries.
const SCORE_SCALE: f32 = 0.375;

pub fn norm(gpu: &Gpu, weight: &[f32]) -> Norm {
    Norm::new(gpu, "weight", Some(weight), weight.len(), EPS).expect("it fits")
}

/// An adapter's `B` of several matrices, with gaps between them, and its `z` of every row.
pub struct Adapter {
    rank: usize,
    b: Vec<Vec<f32>>,
    pub z: Vec<f32>,
    buffer: wgpu::Buffer,
    offsets: Vec<usize>,
}

impl Adapter {
    pub fn new(gpu: &Gpu, rank: usize, outputs: &[usize], rows: usize) -> Adapter {
        let b: Vec<Vec<f32>> = (50..).zip(outputs).map(|(seed, n)| values(seed, n * rank)).collect();
        let (mut all, mut offsets) = (Vec::new(), Vec::new());
        for b in &b {
            offsets.push(all.len());
            let rows: Vec<&[f32]> = b.chunks(rank).collect();
            all.extend((0..rank).flat_map(|r| rows.iter().map(move |row| row[r])));
            all.resize((all.len() + 1).next_multiple_of(64), f32::NAN);
        }
        let buffer = gpu.upload("adapter B transposed", &all).expect("a small buffer");
        Adapter { rank, z: values(60, rows * outputs.len() * rank), b, buffer, offsets }
    }

    /// Columns of `z` in a row.
    fn z_width(&self) -> usize {
        self.b.len() * self.rank
    }

    pub fn up(&self, z_offset: usize) -> Up<'_> {
        Up { b: &self.buffer, offsets: &self.offsets, rank: self.rank, z_offset }
    }

    /// `B·z` of matrix `i`, `[rows, N]`.
    fn term(&self, i: usize) -> Vec<f64> {
        let z: Vec<f32> =
            self.z.chunks(self.z_width()).flat_map(|z| &z[i * self.rank..][..self.rank]).copied().collect();
        reference::linear::forward(&wide(&z), &wide(&self.b[i]), self.rank)
    }
}

/// Rows of `left` and `right` side by side.
fn beside(left: &[f32], width: usize, right: &[f32], right_width: usize) -> Vec<f32> {
    if right_width == 0 {
        return left.to_vec();
    }
    left.chunks(width).zip(right.chunks(right_width)).flat_map(|(l, r)| [l, r].concat()).collect()
}

/// Columns `from..from + count` of every row.
fn columns(rows: &[f64], width: usize, from: usize, count: usize) -> Vec<f64> {
    rows.chunks(width).flat_map(|row| &row[from..from + count]).copied().collect()
}

/// Queries, keys and values: with and without their own keys, values that are raw keys, with and without norms and an adapter.
pub fn heads_and_cache(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("cached_heads", SUMS);
    let cases = [
        (true, false, Norms::All),
        (true, true, Norms::All),
        (false, false, Norms::All),
        (true, false, Norms::QueriesAndKeys),
        (true, false, Norms::None),
        (true, false, Norms::Behind),
    ];
    for (case, (own, k_eq_v, norms)) in cases.into_iter().enumerate() {
        for (h, g, size) in [(2, 1, 4), (4, 2, 64), (3, 3, 100), (2, 1, 512)] {
            for (rank, past, rows) in [(0, 0, 1), (4, 70, 1), (12, 5, 9), (32, 3, 11)] {
                let name = format!("case {case} H={h} G={g} K={size} R={rank} past={past} T={rows}");
                let shape = HeadsShape { h, g, size, own, k_eq_v, norms };
                heads_case(gpu, &mut check, &name, shape, rank, past, rows)?;
            }
        }
    }
    check.done()
}

struct HeadsShape {
    h: usize,
    g: usize,
    size: usize,
    own: bool,
    k_eq_v: bool,
    norms: Norms,
}

/// Which heads are normed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Norms {
    All,
    QueriesAndKeys,
    None,
    /// Those of queries and keys, behind the rotary embedding.
    Behind,
}

fn heads_case(
    gpu: &Gpu,
    check: &mut Check,
    name: &str,
    HeadsShape { h, g, size, own, k_eq_v, norms }: HeadsShape,
    rank: usize,
    past: usize,
    rows: usize,
) -> Outcome {
    let (queries, keys) = (h * size, g * size);
    let mut outputs = vec![queries];
    outputs.extend(own.then_some(keys));
    outputs.extend((own && !k_eq_v).then_some(keys));
    let width: usize = outputs.iter().sum();
    let raw = values(1, rows * width);
    let adapter = (rank > 0).then(|| Adapter::new(gpu, rank, &outputs, rows));
    let (z_width, z) = adapter.as_ref().map_or((0, &[][..]), |a| (a.z_width(), &a.z[..]));
    let (q_weight, k_weight) = (values(2, size), values(3, size));
    let frequencies: Vec<f64> = (0..size / 2).map(|i| 1.0 / (1.0 + i as f64)).collect();
    let positions: Vec<u32> = (past..past + rows).map(|p| p as u32).collect();

    // The reference: products with the adapter's term, then norm and rotary embedding.
    let mut start = 0;
    let mut members = Vec::new();
    for (i, &n) in outputs.iter().enumerate() {
        let mut member = columns(&wide(&raw), width, start, n);
        if let Some(adapter) = &adapter {
            member = sum(&member, &adapter.term(i));
        }
        members.push(member);
        start += n;
    }
    let normed = |x: &[f64], weight: Option<&[f32]>| {
        let weight = weight.map(wide);
        reference::rms_norm::forward(x, weight.as_deref(), size, f64::from(EPS))
    };
    let normed_if = |is_normed: bool, x: &[f64], weight: Option<&[f32]>| match is_normed {
        true => normed(x, weight),
        false => x.to_vec(),
    };
    let has_weights = norms != Norms::None;
    let behind = norms == Norms::Behind;
    let turned = |x: &[f64], heads| reference::rope::forward(x, &positions, &frequencies, heads);
    let turned_and_normed = |x: &[f64], weight: &[f32], heads: usize| match behind {
        true => normed(&turned(x, heads), Some(weight)),
        false => turned(&normed_if(has_weights, x, Some(weight)), heads),
    };
    let q = scaled(SCORE_SCALE, &turned_and_normed(&members[0], &q_weight, h));

    let products = Block::in_out(gpu, (0, 0), width + z_width, &beside(&raw, width, z, z_width));
    let norm_if = |is_normed: bool, weight: Option<&[f32]>| match is_normed {
        true => {
            Norm { behind_rotation: behind, ..Norm::new(gpu, "weight", weight, size, EPS).expect("it fits") }
        }
        false => Norm::identity(size),
    };
    let q_norm = norm_if(has_weights, Some(&q_weight));
    let k_norm = norm_if(has_weights, Some(&k_weight));
    let v_norm = norm_if(norms == Norms::All, None);
    let q_table = Table::new(gpu, &frequencies, f64::from(SCORE_SCALE), past + rows)?;
    let k_table = Table::new(gpu, &frequencies, 1.0, past + rows)?;
    let ring = rows + 2;
    let cache = Cache::new(gpu.upload("cache", &vec![POISON; ring * 2 * keys])?, ring);
    let before = gpu.upload("past", &[past as u32])?;
    let layer = Heads {
        heads: h,
        kv_heads: g,
        head_size: size,
        gated: false,
        k_eq_v,
        q_norm: &q_norm,
        kv_norms: own.then_some([&k_norm, &v_norm]),
        cache: &cache,
        tables: [&q_table, &k_table],
    };
    let unfinished = Unfinished::of(&products.rows, adapter.as_ref().map(|a| a.up(width)));
    run(gpu, |rec| heads::forward(rec, &unfinished, &layer, &before, rows))?;

    let found = products.read(gpu, name)?;
    check.close(&format!("{name}: q"), queries, &columns(&found, width + z_width, 0, queries), &q)?;
    let rest = width + z_width - queries;
    let all = wide(&beside(&raw, width, z, z_width));
    if columns(&found, width + z_width, queries, rest) != columns(&all, width + z_width, queries, rest) {
        return Err(format!("{name}: the raw keys, values or z were written").into());
    }
    let mut expected = vec![f64::from(POISON); ring * 2 * keys];
    if own {
        let k = turned_and_normed(&members[1], &k_weight, g);
        let v = normed_if(norms == Norms::All, &members[if k_eq_v { 1 } else { 2 }], None);
        for t in 0..rows {
            let row = &mut expected[(past + t) % ring * 2 * keys..][..2 * keys];
            row[..keys].copy_from_slice(&k[t * keys..][..keys]);
            row[keys..].copy_from_slice(&v[t * keys..][..keys]);
        }
    }
    let found = wide(&pollster::block_on(gpu.read::<f32>(&cache.buffer, ring * 2 * keys))?);
    for (row, (found, expected)) in found.chunks(2 * keys).zip(expected.chunks(2 * keys)).enumerate() {
        let case = format!("{name}: cache row {row}");
        match expected.iter().all(|&e| e == f64::from(POISON)) {
            true if found == expected => {}
            true => return Err(format!("{case} was written").into()),
            false => check.close(&case, 2 * keys, found, expected)?,
        }
    }
    Ok(())
}

/// The residual stream and its next norm, at widths below, at and above a workgroup's threads.
pub fn residual_and_next(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("block_end", SUMS);
    for (width, rows, rank, with_next, scale, is_normed) in [
        (4, 1, 0, true, 1.0, true),
        (252, 3, 4, true, 0.5, true),
        (1024, 1, 12, false, 1.0, true),
        (1536, 2, 16, true, 1.25, true),
        (2564, 9, 0, true, 1.0, true),
        (2560, 1, 32, true, 1.0, true),
        (5376, 2, 8, true, 1.0, true),
        (252, 3, 4, true, 0.5, false),
        (2560, 1, 32, true, 1.0, false),
    ] {
        let name = format!("D={width} T={rows} R={rank} next={with_next} normed={is_normed}");
        let (y, stream) = (values(1, rows * width), values(2, rows * width));
        let (weight, next_weight) = (values(3, width), values(4, width));
        let adapter = (rank > 0).then(|| Adapter::new(gpu, rank, &[width], rows));
        let (z_width, z) = adapter.as_ref().map_or((0, &[][..]), |a| (a.z_width(), &a.z[..]));
        let mut product = wide(&y);
        if let Some(adapter) = &adapter {
            product = sum(&product, &adapter.term(0));
        }
        // The next norm may have an ε of its own.
        let next_eps = if width == 1536 { 0.25 } else { EPS };
        let normed = |x: &[f64], w: &[f32], eps: f32| {
            reference::rms_norm::forward(x, Some(&wide(w)), width, f64::from(eps))
        };
        let term = if is_normed { normed(&product, &weight, EPS) } else { product.clone() };
        let expected = scaled(scale, &sum(&wide(&stream), &term));
        let expected_next = normed(&expected, &next_weight, next_eps);

        let y = Block::input(gpu, (0, 0), width + z_width, &beside(&y, width, z, z_width));
        let stream = Block::in_out(gpu, (0, 0), width, &stream);
        let next = Block::output(gpu, (0, 0), width, rows);
        let first = if is_normed { norm(gpu, &weight) } else { Norm::identity(width) };
        let second = Norm { eps: next_eps, ..norm(gpu, &next_weight) };
        let up = adapter.as_ref().map(|a| a.up(width));
        let then = with_next.then_some(Next { norm: &second, integers: None });
        run(gpu, |rec| {
            let end = End { scale, next: then, ..End::of(&first) };
            residual::forward(rec, &stream.rows, &next.rows, &Unfinished::of(&y.rows, up), end, rows);
        })?;
        check.close(&name, width, &stream.read(gpu, &name)?, &expected)?;
        let found = next.read(gpu, &name)?;
        if with_next {
            check.close(&format!("{name}: next"), width, &found, &expected_next)?;
        }
    }
    check.done()
}

/// Gate and up in one row of products with both adapters, and a gate with an adapter against rows of another buffer.
pub fn gates(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("cached_gated", SUMS);
    let shapes = [(4, 1, 0), (100, 3, 4), (516, 2, 12), (64, 9, 32)];
    for ((width, rows, rank), activation) in shapes.into_iter().flat_map(|s| Activation::ALL.map(|a| (s, a)))
    {
        let name = format!("F={width} T={rows} R={rank} {activation:?}");
        let gate_up = values(1, rows * 2 * width);
        let adapter = (rank > 0).then(|| Adapter::new(gpu, rank, &[width, width], rows));
        let (z_width, z) = adapter.as_ref().map_or((0, &[][..]), |a| (a.z_width(), &a.z[..]));
        let part = |i: usize| {
            let product = columns(&wide(&gate_up), 2 * width, i * width, width);
            adapter.as_ref().map_or(product.clone(), |a| sum(&product, &a.term(i)))
        };
        let expected = reference::gated::forward(&part(0), &part(1), activation);
        let all = 2 * width + z_width;
        let products = Block::input(gpu, (0, 0), all, &beside(&gate_up, 2 * width, z, z_width));
        let y = Block::output(gpu, (0, 0), width, rows);
        let up = adapter.as_ref().map(|a| a.up(2 * width));
        run(gpu, |rec| {
            let from = products.rows.from(width);
            let gate = Unfinished::of(&products.rows, up);
            gated::forward(rec, &y.rows, &gate, from, activation, rows, None);
        })?;
        check.close(&name, width, &y.read(gpu, &name)?, &expected)?;

        let (gate, inputs) = (values(2, rows * width), values(3, rows * 3 * width));
        let adapter = (rank > 0).then(|| Adapter::new(gpu, rank, &[width], rows));
        let (z_width, z) = adapter.as_ref().map_or((0, &[][..]), |a| (a.z_width(), &a.z[..]));
        let product = adapter.as_ref().map_or(wide(&gate), |a| sum(&wide(&gate), &a.term(0)));
        let middle = columns(&wide(&inputs), 3 * width, width, width);
        let expected = reference::gated::forward(&product, &middle, activation);
        let products = Block::input(gpu, (0, 0), width + z_width, &beside(&gate, width, z, z_width));
        let inputs = Block::input(gpu, (0, 0), 3 * width, &inputs);
        let y = Block::output(gpu, (0, 0), width, rows);
        let up = adapter.as_ref().map(|a| a.up(width));
        run(gpu, |rec| {
            let from = inputs.rows.from(width);
            let gate = Unfinished::of(&products.rows, up);
            gated::forward(rec, &y.rows, &gate, from, activation, rows, None);
        })?;
        check.close(&format!("{name}: per-layer input"), width, &y.read(gpu, &name)?, &expected)?;
    }
    check.done()
}

/// A product whose workgroups compute its gated input, with both adapters: every format with one of the activations.
pub fn gated_products(gpu: &Gpu, formats: &[GgmlType]) -> Outcome {
    let mut check = Check::new("matvec, gated", SUMS);
    for (i, ty) in formats.iter().copied().enumerate() {
        let activation = Activation::ALL[i % Activation::ALL.len()];
        let (width, rows, rank, n) = (256, [1, 2, 5, 8][i % 4], [0, 4, 16][i % 3], 131);
        let name = format!("{} P={width} T={rows} R={rank} {activation:?}", ty.name());
        let (gate, inputs) = (values(2, rows * width), values(3, rows * 3 * width));
        let adapter = (rank > 0).then(|| Adapter::new(gpu, rank, &[width], rows));
        let (z_width, z) = adapter.as_ref().map_or((0, &[][..]), |a| (a.z_width(), &a.z[..]));
        let product = adapter.as_ref().map_or(wide(&gate), |a| sum(&wide(&gate), &a.term(0)));
        let middle = columns(&wide(&inputs), 3 * width, width, width);
        let x = reference::gated::forward(&product, &middle, activation);
        let (weight, truth) = random_weight(gpu, ty, n, width, false);
        let a = values(4, rank.max(4) * width);
        let held = Held::new(gpu, width, &a);

        let gate = Block::input(gpu, (0, 0), width + z_width, &beside(&gate, width, z, z_width));
        let inputs = Block::input(gpu, (0, 0), 3 * width, &inputs);
        let y = Block::output(gpu, (0, 0), n + 1 + rank, rows);
        let up = adapter.as_ref().map(|a| a.up(width));
        let down = (rank > 0).then(|| Down { a: &held.param, z_offset: n + 1 });
        run(gpu, |rec| {
            let gate = &Unfinished::of(&gate.rows, up);
            let x = Gated { gate, up: inputs.rows.from(width), activation };
            matvec::forward_gated(rec, y.rows.all(), &x, &weight, down.as_ref(), rows);
        })?;
        let found = y.read(gpu, &name)?;
        let of = |from, count| columns(&found, n + 1 + rank, from, count);
        check.close(&name, n, &of(0, n), &reference::linear::forward(&x, &truth, width))?;
        if rank > 0 {
            let expected = reference::linear::forward(&x, &wide(&a), width);
            check.close(&format!("{name}: z"), rank, &of(n + 1, rank), &expected)?;
        }
    }
    check.done()
}

/// A product whose workgroups compute the stream behind a block, and the end of the next block, which finds that stream where the product
/// left it.
pub fn ended_products(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("matvec, ended", SUMS);
    for (ty, width, rank, n) in
        [(GgmlType::F32, 100, 0, 131), (GgmlType::Q4_K, 1536, 16, 255), (GgmlType::Q6_K, 2560, 12, 67)]
    {
        let name = format!("{} K={width} R={rank}", ty.name());
        let (y, stream) = (values(1, width), values(2, width));
        let (weight, a) = (values(3, width), values(4, rank.max(4) * width));
        let adapter = (rank > 0).then(|| Adapter::new(gpu, rank, &[width], 1));
        let (z_width, z) = adapter.as_ref().map_or((0, &[][..]), |a| (a.z_width(), &a.z[..]));
        let product = adapter.as_ref().map_or(wide(&y), |a| sum(&wide(&y), &a.term(0)));
        let normed = |x: &[f64]| reference::rms_norm::forward(x, Some(&wide(&weight)), width, f64::from(EPS));
        let after_first = sum(&wide(&stream), &normed(&product));
        let after_second = scaled(0.5, &sum(&after_first, &normed(&product)));
        let (matrix, truth) = random_weight(gpu, ty, n, width, false);
        let held = Held::new(gpu, width, &a);

        let y = Block::input(gpu, (0, 0), width + z_width, &beside(&y, width, z, z_width));
        let stream = Block::in_out(gpu, (0, 0), width, &stream);
        let (after, last) = (Block::output(gpu, (0, 0), width, 1), Block::output(gpu, (0, 0), width, 1));
        let result = Block::output(gpu, (0, 0), n + 1 + rank, 1);
        let norm = norm(gpu, &weight);
        let up = || adapter.as_ref().map(|a| a.up(width));
        let down = (rank > 0).then(|| Down { a: &held.param, z_offset: n + 1 });
        assert!(matvec::takes_ended(1, &norm, &matrix), "{name}");
        run(gpu, |rec| {
            let (y, stream, after) = (&Unfinished::of(&y.rows, up()), &stream.rows, &after.rows);
            let x = Ended { y, norm: &norm, stream, after };
            matvec::forward_ended(rec, result.rows.all(), &x, &matrix, down.as_ref());
        })?;
        check.close(&format!("{name}: stream"), width, &after.read(gpu, &name)?, &after_first)?;
        let found = result.read(gpu, &name)?;
        let of = |from, count| columns(&found, n + 1 + rank, from, count);
        check.close(&name, n, &of(0, n), &reference::linear::forward(&after_first, &truth, width))?;
        if rank > 0 {
            let expected = reference::linear::forward(&after_first, &wide(&a), width);
            check.close(&format!("{name}: z"), rank, &of(n + 1, rank), &expected)?;
        }
        run(gpu, |rec| {
            let y = Unfinished::of(&y.rows, up());
            let end = End { scale: 0.5, ended: true, ..End::of(&norm) };
            residual::forward(rec, &last.rows, &after.rows, &y, end, 1);
        })?;
        check.close(&format!("{name}: next stream"), width, &last.read(gpu, &name)?, &after_second)?;
    }
    check.done()
}

/// Rows of a table of every format, by token and layer.
pub fn per_layer_inputs(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("per_layer", SUMS);
    for ty in GgmlType::SUPPORTED {
        for (rows, layers) in [(1, 1), (3, 2)] {
            let cols = widths(ty)[1] * layers;
            let width = cols / layers;
            let name = format!("{} T={rows} L={layers} P={width}", ty.name());
            let (table, values_of) = random_weight(gpu, ty, rows, cols, false);
            let (x, weight) = (values(1, rows * cols), values(2, width));
            let normed = reference::rms_norm::forward(&wide(&x), Some(&wide(&weight)), width, f64::from(EPS));
            let from_token = values_of.iter().map(|v| (width as f64).sqrt() * v);
            let expected: Vec<f64> =
                normed.iter().zip(from_token).map(|(n, t)| (n + t) / 2f64.sqrt()).collect();
            let block = Block::in_out(gpu, (0, 0), cols, &x);
            let weight = norm(gpu, &weight);
            run(gpu, |rec| per_layer::forward(rec, &block.rows, &table, &weight))?;
            check.close(&name, cols, &block.read(gpu, &name)?, &expected)?;
        }
    }
    check.done()
}

/// Per-layer inputs of the second of three layers, for tokens of any order from the second on.
pub fn inputs_of_a_layer(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("per_layer, one layer", SUMS);
    for ty in GgmlType::SUPPORTED {
        for (rows, tokens, tiled) in [(1, 1, false), (37, 9, true)] {
            let width = widths(ty)[1];
            let name = format!("{} T={rows} P={width}", ty.name());
            let (table, values_of) = random_weight(gpu, ty, tokens, 3 * width, tiled);
            let (x, weight) = (values(1, rows * width), values(2, width));
            let ids: Vec<u32> = (0..=rows).map(|t| (t * 7 % tokens) as u32).collect();
            let normed = reference::rms_norm::forward(&wide(&x), Some(&wide(&weight)), width, f64::from(EPS));
            let of_token = |t: usize| &values_of[(3 * ids[t + 1] as usize + 1) * width..][..width];
            let sums = normed.chunks(width).enumerate().flat_map(|(t, row)| {
                let root = (width as f64).sqrt();
                row.iter().zip(of_token(t)).map(move |(n, v)| (n + root * v) / 2f64.sqrt())
            });
            let expected: Vec<f64> = sums.collect();
            let (x, y) = (Block::input(gpu, (0, 0), width, &x), Block::output(gpu, (0, 0), width, rows));
            let (weight, ids) = (norm(gpu, &weight), gpu.upload("ids", &ids)?);
            let table = per_layer::layer::Table { rows: &table, ids: &ids, first: 1 };
            run(gpu, |rec| per_layer::layer::forward(rec, &y.rows, (&x.rows, 0), &weight, table, 1, rows))?;
            check.close(&name, width, &y.read(gpu, &name)?, &expected)?;
        }
    }
    check.done()
}

/// The largest value at any place, the first of equal values, never NaN; none if all values are NaN.
pub fn likeliest(gpu: &Gpu) -> Outcome {
    let argmax = Argmax::new(gpu)?;
    let found = |values: &[f32]| -> Result<Likeliest, libtest_mimic::Failed> {
        // The guard after the values is larger than all of them.
        let mut padded = values.to_vec();
        padded.resize(values.len() + 70, 1e30);
        let (buffer, stride) = (gpu.upload("values", &padded)?, padded.len());
        let rows = Rows { buffer, stride, start: 0 };
        run(gpu, |rec| argmax.forward(rec, &rows, values.len()))?;
        Ok(pollster::block_on(gpu.read::<Likeliest>(&argmax.result, 1))?[0])
    };
    for len in [1, 63, 64, 65, 1024, 5000, 300_000] {
        let row = values(len as u64, len);
        for at in [0, len / 2, len - 1] {
            let mut row = row.clone();
            row[at] = 2.0;
            if at + 1 < len {
                row[len - 1] = 2.0;
                row[at / 2] = f32::NAN;
                row[at] = 2.0;
            }
            let expected = Likeliest { index: at as u32, value: 2.0 };
            let found = found(&row)?;
            if found != expected {
                return Err(format!("{len} values: expected {expected:?}, found {found:?}").into());
            }
        }
    }
    for (row, finite) in [
        (vec![f32::NAN; 100], false),
        (vec![f32::NEG_INFINITY; 100], false),
        (vec![f32::INFINITY; 100], false),
        (vec![-3e38; 100], true),
    ] {
        if found(&row)?.is_finite() != finite {
            return Err(format!("{} and its like: finite should be {finite}", row[0]).into());
        }
    }
    Ok(())
}

/// The largest values of rows in their order, and the softmax of a target, against f64.
pub fn likeliest_of_rows(gpu: &Gpu) -> Outcome {
    let mut worst = 0f64;
    for (count, rows, wanted) in
        [(1, 1, 3), (63, 2, 0), (64, 3, 1), (65, 70, 5), (5003, 3, 20), (49_152, 2, 20), (70_001, 2, 600)]
    {
        let stride = (count + 3_usize).next_multiple_of(4);
        // The padding between the rows is larger than all values.
        let mut all = vec![1e30f32; rows * stride];
        let mut row_of = |row: usize| {
            let mut own: Vec<f32> = values(row as u64 + 1, count).iter().map(|x| 12.0 * x).collect();
            if count > 200 {
                // Equal values in different lanes, and what is never chosen.
                (own[77], own[150], own[4], own[5]) = (99.0, 99.0, f32::NEG_INFINITY, 99.0);
            }
            if wanted > 256 && row == 1 {
                // Far more equal values than are wanted of them, zeros of both signs among them.
                own.iter_mut().for_each(|x| *x = (*x / 12.0).round());
            }
            all[row * stride..][..count].copy_from_slice(&own);
            own
        };
        let plain: Vec<Vec<f32>> = (0..rows).map(&mut row_of).collect();
        let targets: Vec<u32> = (0..=rows).map(|row| ((row * 31 + count / 2) % count) as u32).collect();
        let block = Rows { buffer: gpu.upload("values", &all)?, stride, start: 0 };
        let (ids, words) = (gpu.upload("targets", &targets)?, top::words(wanted));
        let results = gpu.upload("results", &vec![7u32; (rows + 1) * words])?;
        run(gpu, |rec| top::forward(rec, &block, count, &ids, &results, 1, wanted, rows))?;
        let found = pollster::block_on(gpu.read::<u32>(&results, (rows + 1) * words))?;
        if found[..words] != vec![7; words] {
            return Err("the place before the first row was written".into());
        }
        for ((row, found), target) in plain.iter().zip(top::read(&found[words..], wanted)).zip(&targets[1..])
        {
            let mut order: Vec<u32> = (0..count as u32).filter(|i| row[*i as usize].is_finite()).collect();
            let value = |i: &u32| row[*i as usize] + 0.0; // -0 counts as 0
            order.sort_by(|a, b| value(b).total_cmp(&value(a)).then(a.cmp(b)));
            order.truncate(wanted);
            let expected: Vec<Likeliest> =
                order.iter().map(|&index| Likeliest { index, value: row[index as usize] }).collect();
            if found.top != expected {
                return Err(format!("{count} values: expected {expected:?}, found {:?}", found.top).into());
            }
            let lse = row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
            let of = |x: f32| f64::from(x) - f64::from(found.largest) - f64::from(found.sum).ln();
            let target = row[*target as usize];
            worst = worst.max((of(target) - (f64::from(target) - lse)).abs());
            if found.target != target || worst.is_nan() || worst >= 2e-6 {
                return Err(
                    format!("{count} values: {found:?}, a log-probability is off by {worst:e}").into()
                );
            }
        }
    }
    let block = Rows { buffer: gpu.upload("values", &[1.0, f32::NAN, 2.0, 0.0])?, stride: 4, start: 0 };
    let (ids, results) = (gpu.upload("targets", &[0u32])?, gpu.upload("results", &[0u32; 5])?);
    run(gpu, |rec| top::forward(rec, &block, 4, &ids, &results, 0, 1, 1))?;
    match &top::read(&pollster::block_on(gpu.read::<u32>(&results, 5))?, 1)[..] {
        [row] if !row.sum.is_finite() => Ok(()),
        rows => Err(format!("NaN must make the sum NaN: {rows:?}").into()),
    }
}

/// Drawn tokens lie where the running sum of the f64 softmax passes the point, and their probabilities are those of the softmax.
pub fn drawn(gpu: &Gpu) -> Outcome {
    const ROUNDING: f64 = 2e-6;
    let points = [0.0, 1e-7, 0.1, 0.5, 0.77, 0.999, 1.0 - 1e-9];
    let mut drawn = 0;
    for (count, spread) in
        [(1, 1.0), (63, 2.0), (256, 5.0), (257, 0.0), (5003, 12.0), (70_001, 3.0), (262_144, 8.0)]
    {
        for temperature in [0.7, 1.0, 3.0] {
            let stride = (count + 3_usize).next_multiple_of(4);
            // The padding between the rows is larger than all values.
            let mut all = vec![1e30f32; points.len() * stride];
            for (row, values_of) in all.chunks_exact_mut(stride).enumerate() {
                let own = values(row as u64 + 1, count);
                values_of.iter_mut().zip(own).for_each(|(to, x)| *to = spread * x);
                if count > 200 {
                    (values_of[3], values_of[150]) = (f32::NEG_INFINITY, 1.5 * spread);
                }
            }
            let block = Rows { buffer: gpu.upload("values", &all)?, stride, start: 0 };
            let categorical = Categorical::new(gpu, points.len())?;
            let draws = points.map(|point| Draw::at(point, temperature));
            gpu.write(&categorical.draws, &draws);
            run(gpu, |rec| categorical.forward(rec, &block, count, points.len()))?;
            let found = pollster::block_on(gpu.read::<Drawn>(&categorical.results, points.len()))?;
            for (((row, found), draw), point) in all.chunks_exact(stride).zip(&found).zip(draws).zip(points) {
                let row = &row[..count];
                let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let weight = |x: &f32| (f64::from(x - largest) / temperature).exp();
                let total: f64 = row.iter().map(weight).sum();
                let id = found.id as usize;
                let before = row[..id].iter().map(weight).sum::<f64>() / total;
                let own = weight(&row[id]) / total;
                let is_there = before - ROUNDING <= point && point <= before + own + ROUNDING && own > 0.0;
                let is_right = found.value == row[id] && found.largest == largest && found.is_sound();
                let error = (found.logprob(draw) - own.ln()).abs();
                if !(is_there && is_right && error < 5e-6) {
                    return Err(format!("{count} values over {spread} at {temperature}, point {point}: {found:?}, {before} before, {own}; {error:e}").into());
                }
                drawn += 1;
            }
        }
    }
    likeliest_is_drawn(gpu, drawn)
}

/// Without a temperature the first of the largest values is taken, and rows without a softmax are not sound.
fn likeliest_is_drawn(gpu: &Gpu, drawn: usize) -> Outcome {
    assert_eq!(drawn, 7 * 3 * 7);
    let draw = |row: &[f32]| -> Result<Drawn, libtest_mimic::Failed> {
        let categorical = Categorical::new(gpu, 1)?;
        gpu.write(&categorical.draws, &[Draw::LIKELIEST]);
        let block = Rows { buffer: gpu.upload("values", row)?, stride: row.len(), start: 0 };
        run(gpu, |rec| categorical.forward(rec, &block, row.len(), 1))?;
        Ok(pollster::block_on(gpu.read::<Drawn>(&categorical.results, 1))?[0])
    };
    for len in [4, 256, 4096, 100_000] {
        for at in [0, len / 2, len - 1] {
            let mut row = values(len as u64, len);
            (row[len - 1], row[at]) = (2.0, 2.0);
            let found = draw(&row)?;
            let sum: f64 = row.iter().map(|&x| (f64::from(x) - 2.0).exp()).sum();
            let error = (f64::from(found.sum) / sum - 1.0).abs();
            if (found.id, found.likeliest, found.value) != (at as u32, at as u32, 2.0) || error > 2e-6 {
                return Err(format!("{len} values: expected {at}, found {found:?}, {error:e}").into());
            }
        }
    }
    for (value, sound) in
        [(f32::NAN, false), (f32::INFINITY, false), (f32::NEG_INFINITY, false), (-3e38, true)]
    {
        let all = draw(&[value; 100])?;
        let one = draw(&[vec![0.5; 99], vec![value]].concat())?;
        let is_no_number = value.is_nan() || value == f32::INFINITY;
        if all.is_sound() != sound || one.is_sound() == is_no_number {
            return Err(format!("{value}: {all:?}, {one:?}").into());
        }
    }
    Ok(())
}
