//! Norms and rotary embeddings of heads as tiles, operands of attention and of products, and their gradients.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{scaled, values, wide};
use super::rms_norm::EPS;
use super::tiles::{ROUNDED, block_room, in_blocks, packed, room, rounded, stale, unpacked};
use crate::gpu::GpuError;
use crate::ops::act::Act;
use crate::ops::heads::{self, coop16, coop16_backward};
use crate::ops::norm::Norm;
use crate::ops::pass::{Pass, Scratch};
use crate::ops::rope::Table;
use crate::reference::{rms_norm, rope};

pub const CASES: [Case; 3] = [
    Case {
        op: "heads",
        name: "forward and backward",
        needs: Needs::Tiles,
        variants: super::PACKED,
        shapes: &Shapes {
            small: &[
                shape(67, 3, 32).turned(32),
                shape(67, 3, 32).turned(32).normed(Kind::OfRows),
                shape(67, 3, 32).turned(32).normed(Kind::Behind),
            ],
            more: &[
                shape(1, 1, 16).turned(16),
                shape(7, 3, 32),
                shape(33, 2, 256).turned(256),
                shape(33, 2, 256).turned(64),
                shape(17, 1, 512).turned(512),
                shape(33, 3, 128).turned(128).normed(Kind::None),
                shape(7, 2, 64).turned(24).normed(Kind::None),
                shape(7, 2, 64).normed(Kind::None),
                shape(65_552, 9, 16).normed(Kind::None), // more tokens than a dispatch has workgroups along an axis
                shape(7, 2, 32).turned(32).normed(Kind::OfRows),
                shape(5, 20, 128).turned(128).normed(Kind::OfRows), // more heads than a workgroup takes at once
                shape(33, 3, 96).normed(Kind::OfRows),
                shape(33, 3, 128).turned(128).normed(Kind::Behind),
                shape(5, 20, 64).turned(64).normed(Kind::Behind),
            ],
            check: both_ways,
        },
    },
    Case {
        op: "heads",
        name: "backward",
        needs: Needs::Tiles,
        variants: super::PACKED,
        shapes: &Shapes {
            small: &[],
            // Columns that are no multiple of 64, more heads than a workgroup takes at once, without weights.
            more: &[
                shape(1, 1, 16).turned(16),
                shape(7, 3, 32),
                shape(33, 8, 256).turned(256),
                shape(33, 8, 256).turned(64),
                shape(17, 3, 512).turned(512).normed(Kind::WithoutWeights),
                shape(5, 20, 16).turned(16),
                shape(33, 3, 128).turned(128).normed(Kind::None),
                shape(5, 3, 64).turned(24).normed(Kind::None),
                shape(5, 20, 64).normed(Kind::None),
                shape(65_552, 9, 16).normed(Kind::None), // see above
            ],
            check: backward,
        },
    },
    Case {
        op: "heads",
        name: "backward, norms of rows",
        needs: Needs::Tiles,
        variants: super::PACKED,
        shapes: &Shapes {
            small: &[],
            more: &[shape(7, 3, 32).normed(Kind::OfRows), shape(33, 8, 64).normed(Kind::OfRows)],
            check: backward_of_rows,
        },
    },
];

/// The norm of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    None,
    OfHeads,
    WithoutWeights,
    /// One norm takes all heads of a token together.
    OfRows,
    /// Each head has a norm, whose weights stand behind the rotary embedding.
    Behind,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    tokens: usize,
    heads: usize,
    size: usize,
    /// Rotated values of a head.
    turned: usize,
    kind: Kind,
}

const fn shape(tokens: usize, heads: usize, size: usize) -> Shape {
    Shape { tokens, heads, size, turned: 0, kind: Kind::OfHeads }
}

impl Shape {
    const fn turned(self, turned: usize) -> Shape {
        Shape { turned, ..self }
    }

    const fn normed(self, kind: Kind) -> Shape {
        Shape { kind, ..self }
    }

    fn width(&self) -> usize {
        self.heads * self.size
    }

    /// Values that are normed together.
    fn together(&self) -> usize {
        if self.kind == Kind::OfRows { self.width() } else { self.size }
    }

    fn weights(&self) -> Option<Vec<f32>> {
        let has = ![Kind::None, Kind::WithoutWeights].contains(&self.kind);
        has.then(|| values(3, self.together()))
    }

    fn norm(&self, b: &Bench) -> Result<Norm, GpuError> {
        let norm = match self.kind {
            Kind::None => Norm::identity(self.size),
            _ => Norm::new(b.gpu, "case", self.weights().as_deref(), self.together(), EPS)?,
        };
        Ok(Norm { of_rows: self.kind == Kind::OfRows, behind_rotation: self.kind == Kind::Behind, ..norm })
    }

    fn positions(&self) -> Vec<u32> {
        (0..self.tokens as u32).map(|t| t % 13).collect()
    }

    fn frequencies(&self) -> Vec<f64> {
        (0..self.turned / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / self.turned as f64)).collect()
    }

    fn table(&self, b: &Bench) -> Result<(wgpu::Buffer, Table), GpuError> {
        Ok((b.gpu.upload("case", &self.positions())?, Table::new(b.gpu, &self.frequencies(), 1.0, 13)?))
    }

    fn forward(&self, x: &[f64]) -> Vec<f64> {
        let weights = self.weights().as_deref().map(wide);
        let normed = |x: &[f64]| match self.kind {
            Kind::None => x.to_vec(),
            _ => rms_norm::forward(x, weights.as_deref(), self.together(), EPS.into()),
        };
        let turned = |x: &[f64]| match self.turned {
            0 => x.to_vec(),
            _ => rope::forward(x, &self.positions(), &self.frequencies(), self.heads),
        };
        if self.kind == Kind::Behind { normed(&turned(x)) } else { turned(&normed(x)) }
    }

    fn backward(&self, dy: &[f64], x: &[f64]) -> Vec<f64> {
        let straight = match self.turned {
            0 => dy.to_vec(),
            _ => rope::backward(dy, &self.positions(), &self.frequencies(), self.heads),
        };
        let weights = self.weights().as_deref().map(wide);
        match self.kind {
            Kind::None => straight,
            _ => rms_norm::backward(&straight, x, weights.as_deref(), self.together(), EPS.into()),
        }
    }
}

/// Forward, and backward of heads with a norm each.
fn both_ways(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    forward(b, shape)?;
    match shape.kind {
        Kind::OfHeads => backward(b, shape),
        _ => Ok(()),
    }
}

/// Tiles of heads in f32, of heads that are packed on the way, and of tiles.
fn forward(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let &Shape { tokens, heads, turned, .. } = shape;
    let (width, x) = (shape.width(), values(1, tokens * shape.width()));
    let (norm, (positions, table)) = (shape.norm(b)?, shape.table(b)?);
    let (of_f32, of_tiles) = (shape.forward(&wide(&x)), shape.forward(&rounded(&x, width)));
    let (blocks, of_blocks) = in_blocks(b, &x, width)?;
    let rows = b.input(width, &x)?;
    let (first, stored) = (packed(b, rows.rows(), width, tokens)?, block_room(b, tokens, width)?);
    let fresh = Act::tiled(stored.clone(), None).packed_by_reader(rows.rows().clone());
    let mut found = Vec::new();
    for (what, x, expected) in [
        ("in f32", rows.rows().clone().into(), of_f32),
        ("packed on the way", fresh.clone(), of_tiles.clone()),
        ("packed", fresh.keep(), of_tiles),
        ("in blocks", Act::tiled(blocks, None), shape.forward(&of_blocks)),
    ] {
        let y = room(b, tokens, width)?;
        b.run(|rec| {
            let turn = (turned > 0).then_some((&positions, &table));
            coop16::forward(rec, &y, &x, &norm, turn, heads, tokens);
        })?;
        // No factors are written, because the scale is the norm's.
        b.gpu.write(y.bind_factors(0).buffer, &vec![1f32; tokens]);
        let y = unpacked(b, &y, width, tokens)?;
        b.expect(format!("{shape:?}, {what}"), &y, scaled(norm.scale, &expected), ROUNDED);
        found.push(y);
    }
    let [stored, first] = [unpacked(b, &stored, width, tokens)?, unpacked(b, &first, width, tokens)?];
    b.expect_same(format!("{shape:?}: x packed on the way"), &stored, &first);
    b.expect_same(format!("{shape:?}: heads of tiles"), &found[2], &found[1]);
    Ok(())
}

/// Gradients of heads in f32 and in tiles.
fn backward(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let &Shape { tokens, heads, turned, .. } = shape;
    let width = shape.width();
    let [x, dy] = [1, 2].map(|seed| values(seed, tokens * width));
    let (norm, (positions, table)) = (shape.norm(b)?, shape.table(b)?);
    let (blocks, of_blocks) = in_blocks(b, &x, width)?;
    let expected = [wide(&x), rounded(&x, width), of_blocks].map(|x| shape.backward(&wide(&dy), &x));
    let (x, dy) = (b.input(width, &x)?, b.input(width, &dy)?);
    let tiles = Act::tiled(packed(b, x.rows(), width, tokens)?, None);
    for (x, expected) in [Act::from(x.rows().clone()), tiles, Act::tiled(blocks, None)].iter().zip(expected) {
        let dx = stale(b, tokens, width)?;
        b.run(|rec| {
            let turn = (turned > 0).then_some((&positions, &table));
            coop16_backward::backward(rec, &dx, dy.rows(), x, &norm, turn, heads, tokens);
        })?;
        super::tiles::expect(b, &format!("{shape:?}, backward"), &dx, width, expected)?;
    }
    Ok(())
}

/// Gradients of keys whose norm takes all heads of a token together, beside values without a norm, into f32 and into tiles.
fn backward_of_rows(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let shape = shape.turned(shape.size);
    let (Shape { tokens, heads, size, .. }, width) = (shape, shape.width());
    let [x, dkeys, dvalues] = [1, 2, 4].map(|seed| values(seed, tokens * width));
    let expected = [shape.backward(&wide(&dkeys), &wide(&x)), wide(&dvalues)];
    let (norm, none, (positions, table)) = (shape.norm(b)?, Norm::identity(size), shape.table(b)?);
    let (scratch, x) = (Scratch::for_products(b.gpu, None)?, b.input(width, &x)?);
    let x = Act::from(x.rows().clone());
    for in_tiles in [false, true] {
        let name = format!("{shape:?}, in tiles={in_tiles}");
        let dy = [b.in_out(width, &dkeys)?, b.in_out(width, &dvalues)?];
        let dy = dy.each_ref().map(|dy| Act::from(dy.rows().clone()));
        let blocks = [b.output(width, tokens)?, b.output(width, tokens)?];
        let packed = [room(b, tokens, width)?, room(b, tokens, width)?];
        let dx = [0, 1].map(|i| match in_tiles {
            true => Act::tiled(packed[i].clone(), None),
            false => blocks[i].rows().clone().into(),
        });
        b.run(|rec| {
            let p = &mut Pass::new(rec, tokens, &scratch);
            let (norms, turn) = ([&norm, &none], Some((&positions, &table)));
            heads::backward_both(p, [&dx[0], &dx[1]], [&dy[0], &dy[1]], [&x, &x], norms, turn, heads);
        })?;
        for (i, expected) in expected.iter().enumerate() {
            match in_tiles {
                true => super::tiles::expect(b, &name, &packed[i], width, expected.clone())?,
                false => b.expect(&name, &blocks[i], expected.clone(), ROUNDED),
            }
        }
    }
    Ok(())
}
