//! The gated unit as tiles, and its gradients in their place.

use super::bench::Bench;
use super::case::{Case, Combined, Needs};
use super::inputs::{values, wide};
use super::rms_norm_tiles::SHAPES;
use super::tiles::{expect, packed, room, rounded, unpacked};
use super::tolerance::EXACT;
use crate::base::config::Activation;
use crate::gpu::GpuError;
use crate::ops::act::Act;
use crate::ops::gated::coop16 as gated;
use crate::reference::gated as reference;

pub const CASES: [Case; 1] = [Case {
    op: "gated",
    name: "tiles, forward and backward",
    needs: Needs::Tiles,
    variants: super::PACKED,
    shapes: &Combined {
        // Values beyond the range of f16.
        small: &[
            ((67, 132), 4096.0, Activation::Gelu),
            ((67, 132), 131_072.0, Activation::Silu),
            ((67, 132), 8.0, Activation::SwigluOai),
        ],
        more: combinations,
        check,
    },
}];

/// Rows and width, the size of the values, the activation.
type Shape = ((usize, usize), f32, Activation);

/// Rows that overflow and underflow f16, and more rows than a dispatch has workgroups along an axis.
fn combinations() -> Vec<Shape> {
    let sizes = SHAPES.into_iter().zip([1e-6, 3.0, 50.0, 3e3, 1e5]);
    let all = sizes.flat_map(|(shape, size)| Activation::ALL.map(|activation| (shape, size, activation)));
    all.chain([((65_552, 4), 3.0, Activation::default())]).collect()
}

/// The unit of rows in f32, of rows that are packed on the way, and of tiles; the gradients take the place of the tiles.
fn check(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let &((height, width), size, activation) = shape;
    let name = |what: &str| format!("[{height}, {width}] {activation:?}, values up to {size}, {what}");
    let [gate, up, dy] =
        [1, 2, 3].map(|seed| values(seed, height * width).iter().map(|x| size * x).collect::<Vec<f32>>());
    let (of_f32, of_tiles) = ([wide(&gate), wide(&up)], [rounded(&gate, width), rounded(&up, width)]);
    let inputs = [b.input(width, &gate)?, b.input(width, &up)?];
    let rows = inputs.each_ref().map(|x| x.rows().clone());
    let [gate, up] = &rows;
    let first = [packed(b, gate, width, height)?, packed(b, up, width, height)?];
    let stored = [room(b, height, width)?, room(b, height, width)?];
    let fresh = [0, 1].map(|i| Act::tiled(stored[i].clone(), None).packed_by_reader(rows[i].clone()));
    let passing = fresh.clone().map(Act::pass_by);
    let mut found = Vec::new();
    for (what, [gate, up], acts) in [
        ("in f32", &of_f32, rows.map(Act::from)),
        ("of a pass", &of_tiles, passing),
        ("packed on the way", &of_tiles, fresh.clone()),
        ("packed", &of_tiles, fresh.clone().map(Act::keep)),
    ] {
        if what == "packed on the way" {
            for tiles in &stored {
                let tiles = unpacked(b, tiles, width, height)?;
                b.expect(name("not stored"), &tiles, vec![0.0; height * width], EXACT);
            }
        }
        let y = room(b, height, width)?;
        b.run(|rec| gated::forward(rec, &y, &acts[0], &acts[1], activation, height))?;
        expect(b, &name(what), &y, width, reference::forward(gate, up, activation))?;
        found.push(unpacked(b, &y, width, height)?);
    }
    b.expect_same(name("y of a pass"), &found[1], &found[2]);
    b.expect_same(name("y of tiles"), &found[3], &found[2]);
    for (stored, first) in stored.iter().zip(&first) {
        let [stored, first] = [unpacked(b, stored, width, height)?, unpacked(b, first, width, height)?];
        b.expect_same(name("gate and up"), &stored, &first);
    }

    let (dgate, dup) = reference::backward(&wide(&dy), &of_tiles[0], &of_tiles[1], activation);
    let dy = b.input(width, &dy)?;
    b.run(|rec| gated::backward(rec, [&stored[0], &stored[1]], dy.rows(), activation, height))?;
    expect(b, &name("dgate"), &stored[0], width, dgate)?;
    expect(b, &name("dup"), &stored[1], width, dup)
}
