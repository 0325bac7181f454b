//! Queries, keys and values of a few rows: products become heads, and keys and values go into the cache.

use super::adapter::Adapter;
use super::bench::Bench;
use super::case::{Case, Combined, Needs};
use super::inputs::{part, scaled, values, wide};
use super::rms_norm::EPS;
use super::tolerance::{EXACT, SUMS};
use crate::gpu::GpuError;
use crate::ops::Unfinished;
use crate::ops::cached_heads::{self, Cache, Heads};
use crate::ops::rms_norm::Norm;
use crate::ops::rope::Table;
use crate::reference::{rms_norm, rope};

/// Factor on the queries.
const SCORE_SCALE: f32 = 0.375;

pub const CASES: [Case; 1] = [Case {
    op: "cached_heads",
    name: "into the cache",
    needs: Needs::Any,
    variants: super::F32,
    shapes: &Combined {
        small: &[Shape {
            heads: 4,
            kv_heads: 2,
            size: 36,
            rank: 8,
            past: 9,
            rows: 3,
            own: true,
            k_eq_v: false,
            norms: Norms::All,
        }],
        more: combinations,
        check,
    },
}];

/// Which heads are normed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Norms {
    All,
    QueriesAndKeys,
    None,
    /// Those of queries and keys, behind the rotary embedding.
    Behind,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    size: usize,
    rank: usize,
    past: usize,
    rows: usize,
    /// Whether the layer has keys and values of its own, and whether its values are the raw keys.
    own: bool,
    k_eq_v: bool,
    norms: Norms,
}

/// With and without own keys, values that are raw keys, with and without norms and an adapter.
fn combinations() -> Vec<Shape> {
    const KINDS: [(bool, bool, Norms); 6] = [
        (true, false, Norms::All),
        (true, true, Norms::All),
        (false, false, Norms::All),
        (true, false, Norms::QueriesAndKeys),
        (true, false, Norms::None),
        (true, false, Norms::Behind),
    ];
    const HEADS: [(usize, usize, usize); 4] = [(2, 1, 4), (4, 2, 64), (3, 3, 100), (2, 1, 512)];
    const PASSES: [(usize, usize, usize); 4] = [(0, 0, 1), (4, 70, 1), (12, 5, 9), (32, 3, 11)];
    let mut shapes = Vec::new();
    for (own, k_eq_v, norms) in KINDS {
        for (heads, kv_heads, size) in HEADS {
            for (rank, past, rows) in PASSES {
                shapes.push(Shape { heads, kv_heads, size, rank, past, rows, own, k_eq_v, norms });
            }
        }
    }
    shapes
}

impl Shape {
    /// Outputs of the products: queries, keys, values.
    fn outputs(&self) -> Vec<usize> {
        let (queries, keys) = (self.heads * self.size, self.kv_heads * self.size);
        let own = [self.own.then_some(keys), (self.own && !self.k_eq_v).then_some(keys)];
        std::iter::once(queries).chain(own.into_iter().flatten()).collect()
    }

    fn norm(&self, b: &Bench, is_normed: bool, weight: Option<&[f32]>) -> Result<Norm, GpuError> {
        if !is_normed {
            return Ok(Norm::identity(self.size));
        }
        let norm = Norm::new(b.gpu, "case", weight, self.size, EPS)?;
        Ok(Norm { behind_rotation: self.norms == Norms::Behind, ..norm })
    }

    /// Queries, keys and values in f64, of products with the adapter's term.
    fn expected(&self, members: &[Vec<f64>], weights: [&[f32]; 2], frequencies: &[f64]) -> [Vec<f64>; 3] {
        let positions: Vec<u32> = (self.past..self.past + self.rows).map(|p| p as u32).collect();
        let normed = |x: &[f64], weight: Option<&[f32]>| {
            rms_norm::forward(x, weight.map(wide).as_deref(), self.size, f64::from(EPS))
        };
        let turned = |x: &[f64], heads| rope::forward(x, &positions, frequencies, heads);
        let both = |x: &[f64], weight: &[f32], heads: usize| match self.norms {
            Norms::Behind => normed(&turned(x, heads), Some(weight)),
            Norms::None => turned(x, heads),
            _ => turned(&normed(x, Some(weight)), heads),
        };
        let q = scaled(SCORE_SCALE, &both(&members[0], weights[0], self.heads));
        let Some(keys) = members.get(1) else { return [q, Vec::new(), Vec::new()] };
        let values = members.get(2).unwrap_or(keys);
        let v = if self.norms == Norms::All { normed(values, None) } else { values.clone() };
        [q, both(keys, weights[1], self.kv_heads), v]
    }
}

fn check(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let &Shape { heads, kv_heads, size, rank, past, rows, own, k_eq_v, norms } = shape;
    let (outputs, keys) = (shape.outputs(), kv_heads * size);
    let (queries, width) = (outputs[0], outputs.iter().sum::<usize>());
    let raw = values(1, rows * width);
    let adapter = Adapter::new(b, rank, &outputs, rows)?;
    let (q_weight, k_weight) = (values(2, size), values(3, size));
    let frequencies: Vec<f64> = (0..size / 2).map(|i| 1.0 / (1.0 + i as f64)).collect();

    let (all, held) = (width + adapter.width(), adapter.beside(&raw, width));
    let products = b.in_out(all, &held)?;
    let q_norm = shape.norm(b, norms != Norms::None, Some(&q_weight))?;
    let k_norm = shape.norm(b, norms != Norms::None, Some(&k_weight))?;
    let v_norm = shape.norm(b, norms == Norms::All, None)?;
    let q_table = Table::new(b.gpu, &frequencies, f64::from(SCORE_SCALE), past + rows)?;
    let k_table = Table::new(b.gpu, &frequencies, 1.0, past + rows)?;
    let ring = rows + 2;
    let stored = b.output(2 * keys, ring)?;
    let cache = Cache::new(stored.rows().buffer.clone(), ring);
    let before = b.gpu.upload("case", &[past as u32])?;
    let layer = Heads {
        heads,
        kv_heads,
        head_size: size,
        gated: false,
        k_eq_v,
        q_norm: &q_norm,
        kv_norms: own.then_some([&k_norm, &v_norm]),
        cache: &cache,
        tables: [&q_table, &k_table],
    };
    b.run(|rec| {
        let products = Unfinished::of(products.rows(), adapter.up(width));
        cached_heads::forward(rec, &products, &layer, &before, rows)
    })?;

    let mut start = 0;
    let members = outputs.iter().enumerate().map(|(i, n)| {
        start += n;
        adapter.added(&part(&wide(&raw), width, start - n, *n), i)
    });
    let [q, k, v] = shape.expected(&members.collect::<Vec<_>>(), [&q_weight, &k_weight], &frequencies);
    b.expect_columns(&format!("queries, {shape:?}"), &products, 0, queries, q, SUMS);
    let rest = part(&wide(&held), all, queries, all - queries);
    b.expect_columns(&format!("products, {shape:?}"), &products, queries, all - queries, rest, EXACT);
    let written = |row: &usize| own && (0..rows).any(|t| (past + t) % ring == *row);
    let token = |row: usize| (0..rows).find(|t| (past + t) % ring == row).expect("it is written");
    let of_row = |t: usize| [&k[t * keys..][..keys], &v[t * keys..][..keys]].concat();
    let expected = (0..ring).filter(written).flat_map(|row| of_row(token(row))).collect();
    b.expect_only_rows(format!("cache, {shape:?}"), &stored, |row| written(&row), expected, SUMS);
    Ok(())
}
