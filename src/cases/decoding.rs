//! The operations between the products of decoding: heads, ends of blocks, gates, per-layer inputs, the likeliest token.

use super::bench::Bench;
use super::inputs::{plus, values, wide};
use super::product::columns;
use super::rms_norm::{EPS, norm};
use super::tolerance::{BYTES, F32};
use crate::base::config::Activation;
use crate::base::formats::GgmlType;
use crate::gpu::GpuError;
use crate::ops::argmax::{Argmax, top};
use crate::ops::block_end::{self, End, Next};
use crate::ops::cached_heads::{Cache, Heads};
use crate::ops::categorical::{Categorical, Draw};
use crate::ops::matvec::integers::Integers;
use crate::ops::matvec::{self, Down, Ended, Gated};
use crate::ops::rms_norm::Norm;
use crate::ops::rope::Table;
use crate::ops::{Unfinished, Up, cached_gated, cached_heads, per_layer};
use crate::reference::{gated, linear, rms_norm, rope};

/// Rank of the adapters.
const RANK: usize = 8;

/// `B` of several matrices, transposed, and `z` of every row.
struct Adapter {
    b: Vec<Vec<f32>>,
    z: Vec<f32>,
    buffer: wgpu::Buffer,
    offsets: Vec<usize>,
}

impl Adapter {
    fn new(bench: &Bench, outputs: &[usize], rows: usize) -> Result<Adapter, GpuError> {
        let b: Vec<Vec<f32>> = (50..).zip(outputs).map(|(seed, n)| values(seed, n * RANK)).collect();
        let (mut all, mut offsets) = (Vec::new(), Vec::new());
        for b in &b {
            offsets.push(all.len());
            all.extend((0..RANK).flat_map(|r| b.chunks(RANK).map(move |row| row[r])));
            all.resize((all.len() + 1).next_multiple_of(64), f32::NAN);
        }
        let buffer = bench.gpu.upload("case", &all)?;
        Ok(Adapter { z: values(60, rows * outputs.len() * RANK), b, buffer, offsets })
    }

    fn width(&self) -> usize {
        self.b.len() * RANK
    }

    fn up(&self, z_offset: usize) -> Up<'_> {
        Up { b: &self.buffer, offsets: &self.offsets, rank: RANK, z_offset }
    }

    /// `product + B·z` of matrix `i`.
    fn added(&self, product: &[f64], i: usize) -> Vec<f64> {
        let z: Vec<f64> = part(&wide(&self.z), self.width(), i * RANK, RANK);
        plus(product, 1.0, &linear::forward(&z, &wide(&self.b[i]), RANK))
    }

    /// Rows of products with `z` beside them.
    fn beside(&self, products: &[f32], width: usize) -> Vec<f32> {
        let rows = products.chunks(width).zip(self.z.chunks(self.width()));
        rows.flat_map(|(products, z)| [products, z].concat()).collect()
    }
}

/// Columns `from..from + count` of every row.
fn part(rows: &[f64], width: usize, from: usize, count: usize) -> Vec<f64> {
    rows.chunks(width).flat_map(|row| &row[from..from + count]).copied().collect()
}

/// Queries normed and turned in place, keys and values into the cache.
pub fn heads(b: &mut Bench) -> Result<(), GpuError> {
    let (heads, kv_heads, size, past, rows) = (4, 2, 36, 5, 3);
    let (queries, keys, ring) = (heads * size, kv_heads * size, rows + 6);
    let width = queries + 2 * keys;
    let raw = values(1, rows * width);
    let adapter = Adapter::new(b, &[queries, keys, keys], rows)?;
    let (q_weight, k_weight) = (values(2, size), values(3, size));
    let frequencies: Vec<f64> = (0..size / 2).map(|i| 1.0 / (1.0 + i as f64)).collect();
    let positions: Vec<u32> = (past as u32..(past + rows) as u32).collect();
    let member =
        |i: usize, from: usize, count: usize| adapter.added(&part(&wide(&raw), width, from, count), i);
    let normed = |x: &[f64], weight: Option<&[f32]>| {
        rms_norm::forward(x, weight.map(wide).as_deref(), size, f64::from(EPS))
    };
    let turned = |x: &[f64], weight: &[f32], heads: usize| {
        rope::forward(&normed(x, Some(weight)), &positions, &frequencies, heads)
    };
    let q = turned(&member(0, 0, queries), &q_weight, heads);
    let k = turned(&member(1, queries, keys), &k_weight, kv_heads);
    let v = normed(&member(2, queries + keys, keys), None);

    let products = b.in_out(width + adapter.width(), &adapter.beside(&raw, width))?;
    let (q_norm, k_norm) = (norm(b, &q_weight)?, norm(b, &k_weight)?);
    let table = Table::new(b.gpu, &frequencies, 1.0, past + rows)?;
    let v_norm = Norm::new(b.gpu, "case", None, size, EPS)?;
    let stored = b.output(2 * keys, ring)?;
    let cache = Cache::new(stored.rows().buffer.clone(), ring);
    let before = b.gpu.upload("case", &[past as u32])?;
    let layer = Heads {
        heads,
        kv_heads,
        head_size: size,
        gated: false,
        k_eq_v: false,
        q_norm: &q_norm,
        kv_norms: Some([&k_norm, &v_norm]),
        cache: &cache,
        tables: [&table, &table],
    };
    b.run(|rec| {
        let products = Unfinished::of(products.rows(), adapter.up(width));
        cached_heads::forward(rec, &products, &layer, &before, rows)
    })?;
    b.expect_columns("queries", &products, 0, queries, q, F32);
    let written: Vec<usize> = (past..past + rows).map(|t| t % ring).collect();
    let mut order: Vec<usize> = (0..rows).collect();
    order.sort_by_key(|t| written[*t]);
    let row = |t: usize| [&k[t * keys..][..keys], &v[t * keys..][..keys]].concat();
    b.expect_rows(
        "cache",
        &stored,
        |row| written.contains(&row),
        order.into_iter().flat_map(row).collect(),
        F32,
    );
    Ok(())
}

/// The residual stream at the end of a block, and the next norm.
pub fn block_ends(b: &mut Bench) -> Result<(), GpuError> {
    for (width, rows) in [(252, 3), (1028, 1)] {
        let (y, stream) = (values(1, rows * width), values(2, rows * width));
        let (weight, next_weight) = (values(3, width), values(4, width));
        let adapter = Adapter::new(b, &[width], rows)?;
        let normed = |x: &[f64], w: &[f32]| rms_norm::forward(x, Some(&wide(w)), width, f64::from(EPS));
        let product = adapter.added(&wide(&y), 0);
        let sum = plus(&wide(&stream), 1.0, &normed(&product, &weight));
        let sum: Vec<f64> = sum.iter().map(|x| 1.25 * x).collect();
        let next_expected = normed(&sum, &next_weight);
        let y = b.input(width + RANK, &adapter.beside(&y, width))?;
        let (stream, next) = (b.in_out(width, &stream)?, b.output(width, rows)?);
        let (first, second) = (norm(b, &weight)?, norm(b, &next_weight)?);
        b.run(|rec| {
            let y = Unfinished::of(y.rows(), adapter.up(width));
            let second = Some(Next { norm: &second, integers: None });
            let end = End { scale: 1.25, next: second, ..End::of(&first) };
            block_end::forward(rec, stream.rows(), next.rows(), &y, end, rows);
        })?;
        b.expect(format!("stream of {width}"), &stream, sum, F32);
        b.expect(format!("next norm of {width}"), &next, next_expected, F32);
    }
    Ok(())
}

/// Gate and up in one row of products, with both adapters.
pub fn gates(b: &mut Bench) -> Result<(), GpuError> {
    let (width, rows) = (100, 3);
    for activation in Activation::ALL {
        let products = values(1, rows * 2 * width);
        let adapter = Adapter::new(b, &[width, width], rows)?;
        let of = |i: usize| adapter.added(&part(&wide(&products), 2 * width, i * width, width), i);
        let expected = gated::forward(&of(0), &of(1), activation);
        let products = b.input(2 * width + adapter.width(), &adapter.beside(&products, 2 * width))?;
        let y = b.output(width, rows)?;
        b.run(|rec| {
            let gate = Unfinished::of(products.rows(), adapter.up(2 * width));
            let up = products.rows().from(width);
            cached_gated::forward(rec, y.rows(), &gate, up, activation, rows, None);
        })?;
        b.expect(format!("{activation:?}"), &y, expected, F32);
    }
    Ok(())
}

/// A product whose workgroups compute its gated input.
pub fn gated_products(b: &mut Bench) -> Result<(), GpuError> {
    let (width, rows, n, activation) = (256, 2, 67, Activation::Gelu);
    let (gate, up, a) = (values(1, rows * width), values(2, rows * width), values(3, RANK * width));
    let adapter = Adapter::new(b, &[width], rows)?;
    let x = gated::forward(&adapter.added(&wide(&gate), 0), &wide(&up), activation);
    let (weight, w) = b.weight(GgmlType::Q4_K, n, width)?;
    let (y_expected, z_expected) = (linear::forward(&x, &w, width), linear::forward(&x, &wide(&a), width));
    let (gate, up) = (b.input(width + RANK, &adapter.beside(&gate, width))?, b.input(width, &up)?);
    let (a, y) = (b.param(width, &a)?, b.output(72 + RANK, rows)?);
    b.run(|rec| {
        let gate = &Unfinished::of(gate.rows(), adapter.up(width));
        let x = Gated { gate, up: up.rows().all(), activation };
        let down = Down { a: &a, z_offset: 72 };
        matvec::forward_gated(rec, y.view(), &x, &weight, Some(&down), rows);
    })?;
    b.expect_columns("y", &y, 0, n, y_expected, F32);
    b.expect_columns("z", &y, 72, RANK, z_expected, F32);
    Ok(())
}

/// A product whose workgroups compute the stream behind a block.
pub fn ended_products(b: &mut Bench) -> Result<(), GpuError> {
    let (width, n) = (1028, 67);
    let (y, stream, weight, a) =
        (values(1, width), values(2, width), values(3, width), values(4, RANK * width));
    let adapter = Adapter::new(b, &[width], 1)?;
    let normed = rms_norm::forward(&adapter.added(&wide(&y), 0), Some(&wide(&weight)), width, f64::from(EPS));
    let x = plus(&wide(&stream), 1.0, &normed);
    let (matrix, w) = b.weight(GgmlType::F16, n, width)?;
    let (y_expected, z_expected) = (linear::forward(&x, &w, width), linear::forward(&x, &wide(&a), width));
    let (y, stream) = (b.input(width + RANK, &adapter.beside(&y, width))?, b.input(width, &stream)?);
    let (after, norm, a) = (b.output(width, 1)?, norm(b, &weight)?, b.param(width, &a)?);
    let result = b.output(72 + RANK, 1)?;
    b.run(|rec| {
        let y = &Unfinished::of(y.rows(), adapter.up(width));
        let x = Ended { y, norm: &norm, stream: stream.rows(), after: after.rows() };
        matvec::forward_ended(rec, result.view(), &x, &matrix, Some(&Down { a: &a, z_offset: 72 }));
    })?;
    b.expect("stream", &after, x, F32);
    b.expect_columns("y", &result, 0, n, y_expected, F32);
    b.expect_columns("z", &result, 72, RANK, z_expected, F32);
    Ok(())
}

/// Products in bytes with the row that the end of a block leaves as integers.
pub fn byte_products(b: &mut Bench) -> Result<(), GpuError> {
    let (width, n) = (1536, 67);
    let (stream, weight) = (values(1, width), values(2, width));
    let x = rms_norm::forward(&wide(&stream), Some(&wide(&weight)), width, f64::from(EPS));
    for ty in GgmlType::SUPPORTED.into_iter().filter(|ty| ty.byte_reader().is_some()) {
        let (matrix, w) = b.weight(ty, n, width)?;
        let (zero, before) = (b.input(width, &vec![0.0; width])?, b.in_out(width, &stream)?);
        let (normed, integers) = (b.output(width, 1)?, Integers::new(b.gpu, width)?);
        let (norm, y) = (norm(b, &weight)?, b.output(72, 1)?);
        b.run(|rec| {
            let next = Some(Next { norm: &norm, integers: Some(&integers) });
            let (then, none) = (normed.rows(), Norm::identity(width));
            let (zero, end) = (Unfinished::of(zero.rows(), None), End { next, ..End::of(&none) });
            block_end::forward(rec, before.rows(), then, &zero, end, 1);
            matvec::forward_integers(rec, y.view(), then.all(), &integers, &[&matrix], None, None);
        })?;
        b.expect("normed", &normed, x.clone(), F32);
        b.expect_columns(&ty.name(), &y, 0, n, linear::forward(&x, &w, width), BYTES);
        b.expect("stream", &before, wide(&stream), F32);
    }
    Ok(())
}

/// Per-layer inputs: a norm beside rows of a table, of all layers and of the second.
pub fn per_layer_inputs(b: &mut Bench) -> Result<(), GpuError> {
    for ty in [GgmlType::BF16, GgmlType::Q5_0, GgmlType::Q6_K] {
        let (rows, width) = (3, columns(ty));
        let cols = 2 * width;
        let (table, truth) = b.weight(ty, rows, cols)?;
        let (x, weight) = (values(1, rows * cols), values(2, width));
        let normed = rms_norm::forward(&wide(&x), Some(&wide(&weight)), width, f64::from(EPS));
        let sums = plus(&normed, (width as f64).sqrt(), &truth);
        let expected: Vec<f64> = sums.iter().map(|x| x / 2f64.sqrt()).collect();
        let second =
            |all: &[f64]| all.chunks(width).skip(1).step_by(2).flatten().copied().collect::<Vec<_>>();
        let own: Vec<f32> = second(&wide(&x)).iter().map(|x| *x as f32).collect();
        let (own, y, ids) =
            (b.input(width, &own)?, b.output(width, rows)?, b.gpu.upload("ids", &[0u32, 1, 2])?);
        let (block, weight) = (b.in_out(cols, &x)?, norm(b, &weight)?);
        b.run(|rec| {
            per_layer::forward(rec, block.rows(), &table, &weight);
            let table = per_layer::layer::Table { rows: &table, ids: &ids, first: 0 };
            per_layer::layer::forward(rec, y.rows(), (own.rows(), 0), &weight, table, 1, rows);
        })?;
        b.expect(format!("{}, one layer", ty.name()), &y, second(&expected), F32);
        b.expect(ty.name(), &block, expected, F32);
    }
    Ok(())
}

/// The first of the largest values, in the last workgroup.
pub fn likeliest(b: &mut Bench) -> Result<(), GpuError> {
    let count = 5003;
    let mut row = values(1, count);
    row[7] = f32::NAN;
    [4999, count - 1].into_iter().for_each(|at| row[at] = 2.0);
    let (block, argmax) = (b.input(count, &row)?, Argmax::new(b.gpu)?);
    b.run(|rec| argmax.forward(rec, block.rows(), count))?;
    b.expect_bits("index and value", &argmax.result, [4999, 2f32.to_bits()]);
    Ok(())
}

/// The largest values of two rows, and their targets; the first of equal values comes first.
pub fn likeliest_of_rows(b: &mut Bench) -> Result<(), GpuError> {
    let count = 1003;
    let low = -200.0;
    let mut rows = vec![low; 2 * count];
    [(900, 2.0), (70, 2.0), (count + 1000, 3.0)].into_iter().for_each(|(at, value)| rows[at] = value);
    let block = b.input(count, &rows)?;
    let results = b.gpu.upload("results", &[0u32; 14])?;
    let targets = b.gpu.upload("targets", &[5u32, 1000])?;
    b.run(|rec| top::forward(rec, block.rows(), count, &targets, &results, 0, 2, 2))?;
    let [one, two, three, low] = [1.0, 2.0, 3.0, low].map(f32::to_bits);
    // Largest value, sum (e^-202 is zero), target, and index and value of the two largest.
    let found = [two, two, low, 70, two, 900, two, three, one, three, 1000, three, 0, low];
    b.expect_bits("likeliest of rows", &results, found);
    Ok(())
}

/// A token drawn from each of two rows, and the likeliest of a third: each has two equal values among others that weigh nothing.
pub fn drawn(b: &mut Bench) -> Result<(), GpuError> {
    let (count, low) = (1003, -200.0);
    let mut rows = vec![low; 3 * count];
    (0..3).for_each(|row| [70, 900].into_iter().for_each(|at| rows[row * count + at] = 2.0));
    let block = b.input(count, &rows)?;
    let categorical = Categorical::new(b.gpu, 3)?;
    b.gpu.write(&categorical.draws, &[Draw::at(0.6, 0.5), Draw::at(0.4, 2.0), Draw::LIKELIEST]);
    b.run(|rec| categorical.forward(rec, block.rows(), count, 3))?;
    let two = 2f32.to_bits();
    // The token and its value, the likeliest and its value, and the sum.
    let found = [900, 70, 70].into_iter().flat_map(|id| [id, two, 70, two, two]);
    b.expect_bits("drawn tokens", &categorical.results, found);
    Ok(())
}
