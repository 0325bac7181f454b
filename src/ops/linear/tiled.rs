//! Products with a frozen matrix, with the adapter's product in the same pass: in f32, or with operands in f16 whose rows are
//! scaled, alone or on cooperative matrices of 8×8, by [`crate::gpu::Tier`].

use super::tiling::{COOP8, TILED};
use crate::gpu::{Binding, Kernel, Product, Products, Recorder};
use crate::ops::Param;
use crate::ops::View;
use crate::ops::Weight;
use crate::ops::partial_sums::{self, Target};
use crate::ops::row_factors;

/// Twin of `Params` in shaders/linear/tiled.wgsl, which imports it from shaders/common/product.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    weight_rows: u32,
    weight_cols: u32,
    x_stride4: u32,
    x_offset4: u32,
    y_stride4: u32,
    y_offset4: u32,
    rank4: u32,
    z_stride4: u32,
    z_offset4: u32,
    lora_offset4: u32,
    scale: f32,
    lora_scale: f32,
    accumulate: u32,
    cols4: u32,
    part_steps: u32,
}

/// A product of rank `R` that is added: `scale·z·Bᵀ` forward, `u·A` backward.
pub struct LowRank<'a> {
    /// `z` or `u`, `[T, R]`.
    pub z: View<'a>,
    /// `B` `[N, R]` or `A` `[R, K]`.
    pub matrix: &'a Param,
    /// `R`, a multiple of 4.
    pub rank: usize,
    /// Factor of the whole term; forward only.
    pub scale: f32,
}

/// `y = scale·x·Wᵀ + lora.scale·z·Bᵀ` for `x` `[rows, K]`, `y` `[rows, N]`.
pub fn forward(
    rec: &mut Recorder,
    y: View,
    x: View,
    w: &Weight,
    scale: f32,
    lora: Option<&LowRank>,
    rows: usize,
) {
    let factors = factors(rec, x, w.cols, rows);
    for tile in &w.tiles {
        let cols4 = tile.rows.div_ceil(4);
        let params = Params {
            y_offset4: y.offset4() + (tile.first_row / 4) as u32,
            lora_offset4: lora.map_or(0, |l| (tile.first_row * l.rank / 4) as u32),
            cols4: cols4 as u32,
            ..params(y, x, w, tile, scale, lora, rows)
        };
        dispatch(rec, "forward", y, x, w, tile, lora, factors, params);
    }
}

/// `dx = scale·dy·W + u·A` for `dy` `[rows, N]`, `dx` `[rows, K]`; added to `dx` where `accumulate`.
pub fn backward(
    rec: &mut Recorder,
    dx: View,
    dy: View,
    w: &Weight,
    scale: f32,
    lora: Option<&LowRank>,
    rows: usize,
    accumulate: bool,
) {
    let factors = factors(rec, dy, w.rows, rows);
    for (i, tile) in w.tiles.iter().enumerate() {
        let lora = lora.filter(|_| i + 1 == w.tiles.len());
        let params = Params {
            x_offset4: dy.offset4() + (tile.first_row / 4) as u32,
            accumulate: u32::from(accumulate || i > 0),
            cols4: (w.cols / 4) as u32,
            ..params(dx, dy, w, tile, scale, lora, rows)
        };
        dispatch(rec, "backward", dx, dy, w, tile, lora, factors, params);
    }
}

/// Scale factors of the rows of a product's operand, where it becomes f16.
fn factors<'g>(rec: &mut Recorder<'g>, x: View, cols: usize, rows: usize) -> Option<Binding<'g>> {
    row_factors::needed(rec).then(|| row_factors::of(rec, 6, x, cols, rows))
}

fn params(
    y: View,
    x: View,
    w: &Weight,
    tile: &crate::ops::Tile,
    scale: f32,
    lora: Option<&LowRank>,
    rows: usize,
) -> Params {
    Params {
        rows: rows as u32,
        weight_rows: tile.rows as u32,
        weight_cols: w.cols as u32,
        x_stride4: x.stride4(),
        x_offset4: x.offset4(),
        y_stride4: y.stride4(),
        y_offset4: y.offset4(),
        rank4: lora.map_or(0, |l| (l.rank / 4) as u32),
        z_stride4: lora.map_or(0, |l| l.z.stride4()),
        z_offset4: lora.map_or(0, |l| l.z.offset4()),
        lora_offset4: 0,
        scale,
        lora_scale: lora.map_or(0.0, |l| l.scale),
        accumulate: 0,
        cols4: 0,
        part_steps: 0,
    }
}

fn dispatch(
    rec: &mut Recorder,
    entry: &'static str,
    y: View,
    x: View,
    w: &Weight,
    tile: &crate::ops::Tile,
    lora: Option<&LowRank>,
    factors: Option<Binding>,
    params: Params,
) {
    let z = lora.map_or(rec.unused(3), |l| l.z.rows.bind(3));
    let matrix = lora.map_or(rec.unused(4), |l| l.matrix.bind(4));
    if let (Some(lanes), None) = (rec.gpu().kernels().software_lanes(), factors) {
        let kernel = Kernel::new("linear/software", entry).with_format(w.ty.reader()).with_lanes(lanes);
        let across = params.cols4.div_ceil(if entry == "forward" { lanes } else { 8 });
        let bindings = [tile.bind(1), x.rows.bind(2), z, matrix, y.rows.bind(5)];
        return rec.dispatch(kernel, &params, &bindings, [across, params.rows.div_ceil(4 * lanes), 1]);
    }
    let summed = if entry == "forward" { w.cols } else { tile.rows };
    let target = Target {
        y: y.rows.bind(5),
        rows: params.rows,
        cols4: params.cols4,
        stride4: params.y_stride4,
        offset4: params.y_offset4,
        accumulate: params.accumulate == 1,
    };
    let (tiling, own) = match rec.gpu().kernels().products() {
        Products::Coop8 { lanes } => (&COOP8, ("LANES", lanes)),
        _ => (&TILED, row_factors::size(factors.is_some())),
    };
    let format = w.ty.reader();
    let (rows, columns) = (params.rows as usize, 4 * params.cols4 as usize);
    let choice = tiling.choose(rec, Product { shader: tiling.shader, entry, format, rows, columns, summed });
    let kernel = Kernel::new(tiling.shader, entry)
        .with_format(format)
        .with_sizes(tiling.sizes(choice))
        .with_sizes([own]);
    let (wanted, steps) = (choice.parts as usize, summed.div_ceil(tiling.steps));
    partial_sums::split(rec, &target, wanted, steps, |rec, parts| {
        let params = Params {
            y_stride4: parts.stride4,
            y_offset4: parts.offset4,
            accumulate: parts.accumulate,
            part_steps: parts.steps,
            ..params
        };
        let mut bindings = vec![tile.bind(1), x.rows.bind(2), z, matrix, parts.result];
        bindings.extend(factors);
        let workgroups = tiling.workgroups(choice, params.rows, 4 * params.cols4, parts.count);
        rec.dispatch(kernel, &params, &bindings, workgroups);
    });
}
