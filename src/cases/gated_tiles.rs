//! The gated unit as tiles, and its gradients in their place.

use super::bench::Bench;
use super::case::{Case, Combined, Needs};
use super::inputs::{values, wide};
use super::rms_norm_tiles::SHAPES;
use super::tiles::{block_room, expect, in_blocks, packed, room, rounded, stale, unpacked};
use super::tolerance::EXACT;
use crate::base::config::Activation;
use crate::gpu::GpuError;
use crate::ops::act::Act;
use crate::ops::gated::coop16 as gated;
use crate::ops::gated::tiles;
use crate::ops::pack::Packed;
use crate::reference::gated as reference;

pub const CASES: [Case; 1] = [Case {
    op: "gated",
    name: "tiles, forward and backward",
    needs: Needs::Tiles,
    variants: super::PACKED,
    shapes: &Combined { small: &SMALL, more: combinations, check },
}];

/// Values beyond the range of f16; more than one block of columns.
const SMALL: [Shape; 3] = [
    ((67, 132), 4096.0, Activation::Gelu),
    ((67, 132), 131_072.0, Activation::Silu),
    ((19, 388), 8.0, Activation::SwigluOai),
];

/// Rows and width, the size of the values, the activation.
type Shape = ((usize, usize), f32, Activation);

/// Rows that overflow and underflow f16, and more rows than a dispatch has workgroups along an axis.
fn combinations() -> Vec<Shape> {
    let sizes = SHAPES.into_iter().zip([1e-6, 3.0, 50.0, 3e3, 1e5]);
    let all = sizes.flat_map(|(shape, size)| Activation::ALL.map(|activation| (shape, size, activation)));
    all.chain([((65_552, 4), 3.0, Activation::default())]).collect()
}

/// Tiles with one factor for a row, and in blocks.
fn check(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    rounded_on_the_way(b, shape, room)?;
    rounded_on_the_way(b, shape, block_room)?;
    of_blocks(b, shape)
}

/// Makes room for tiles.
type Room = fn(&Bench, usize, usize) -> Result<Packed, GpuError>;

/// The unit of rows in f32, of rows that are packed on the way, and of tiles; the gradients take the place of the tiles.
fn rounded_on_the_way(b: &mut Bench, shape: &Shape, room_of: Room) -> Result<(), GpuError> {
    let &((height, width), size, activation) = shape;
    let name = |what: &str| format!("[{height}, {width}] {activation:?}, values up to {size}, {what}");
    let [gate, up, dy] = inputs(shape);
    let (of_f32, of_tiles) = ([wide(&gate), wide(&up)], [rounded(&gate, width), rounded(&up, width)]);
    let inputs = [b.input(width, &gate)?, b.input(width, &up)?];
    let rows = inputs.each_ref().map(|x| x.rows().clone());
    let [gate, up] = &rows;
    let first = [packed(b, gate, width, height)?, packed(b, up, width, height)?];
    let stored = [room_of(b, height, width)?, room_of(b, height, width)?];
    let fresh = [0, 1].map(|i| Act::tiled(stored[i].clone(), None).packed_by_reader(rows[i].clone()));
    let mut found = Vec::new();
    for (what, [gate, up], acts) in [
        ("in f32", &of_f32, rows.map(Act::from)),
        ("of a pass", &of_tiles, fresh.clone().map(Act::pass_by)),
        ("packed on the way", &of_tiles, fresh),
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
    let y = room(b, height, width)?;
    b.run(|rec| tiles::forward(rec, &y, [&stored[0], &stored[1]], width, activation, height))?;
    found.push(unpacked(b, &y, width, height)?);
    b.expect_same(name("y of a pass"), &found[1], &found[2]);
    b.expect_same(name("y of tiles"), &found[3], &found[2]);
    for (stored, first) in stored.iter().zip(&first) {
        let [stored, first] = [unpacked(b, stored, width, height)?, unpacked(b, first, width, height)?];
        b.expect_same(name("gate and up"), &stored, &first);
    }

    let (dgate, dup) = reference::backward(&wide(&dy), &of_tiles[0], &of_tiles[1], activation);
    let dy = b.input(width, &dy)?;
    b.run(|rec| gated::backward(rec, [&stored[0], &stored[1]], dy.rows(), activation, height))?;
    expect(b, &name("dgate"), &stored[0].by_row(), width, dgate)?;
    expect(b, &name("dup"), &stored[1].by_row(), width, dup)
}

/// Gate, up and the gradient of the result.
fn inputs(&((height, width), size, _): &Shape) -> [Vec<f32>; 3] {
    [1, 2, 3].map(|seed| values(seed, height * width).iter().map(|x| size * x).collect())
}

/// Both ways where all are in blocks of very different sizes.
fn of_blocks(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let &((height, width), size, activation) = shape;
    let name =
        |what: &str| format!("[{height}, {width}] {activation:?}, values up to {size}, blocks, {what}");
    // Gates of nearly 0 make gradients of up too small for the factor of those of gate.
    let mut inputs = match activation {
        Activation::SwigluOai => inputs(&((height, width), size.max(0.1), activation)),
        _ => inputs(shape),
    };
    for (i, x) in inputs.iter_mut().flat_map(|x| x.iter_mut().enumerate()) {
        *x *= [1.0, 8.0, 0.125][i % width / 256 % 3];
    }
    let [(gate, gate_values), (up, up_values), (dy, dy_values)] = [
        in_blocks(b, &inputs[0], width)?,
        in_blocks(b, &inputs[1], width)?,
        in_blocks(b, &inputs[2], width)?,
    ];
    let y = stale(b, height, width)?;
    b.run(|rec| tiles::forward(rec, &y, [&gate, &up], width, activation, height))?;
    expect(b, &name("y"), &y, width, reference::forward(&gate_values, &up_values, activation))?;
    let (dgate, dup) = reference::backward(&dy_values, &gate_values, &up_values, activation);
    b.run(|rec| tiles::backward(rec, [&gate, &up], &dy, width, activation, height))?;
    expect(b, &name("dgate"), &gate.by_row(), width, dgate)?;
    expect(b, &name("dup"), &up.scaled_as(&gate.by_row()), width, dup)
}
