//! The products of [`crate::ops::linear`] on cooperative matrices of 16×16: f16 operands, each row scaled, and f32 sums.

use super::tiling::COOP16;
use crate::gpu::{self, Kernel, Recorder};
use crate::ops::Param;
use crate::ops::Tile;
use crate::ops::View;
use crate::ops::Weight;
use crate::ops::lora::coop16_gradients::{self, Beside, GradientParams};
use crate::ops::pack::Packed;
use crate::ops::partial_sums::{self, Parts, Target, Unsummed};

/// Twin of `Params` in shaders/linear/coop16.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    weight_rows: u32,
    weight_cols: u32,
    tiles: u32,
    x_column: u32,
    y_stride4: u32,
    y_offset4: u32,
    cols4: u32,
    columns: u32,
    ranks: u32,
    z_column: u32,
    z_tiles: u32,
    lora_offset4: u32,
    scale: f32,
    lora_scale: f32,
    accumulate: u32,
    part_steps: u32,
    parts: u32,
    gradients: GradientParams,
}

/// `scale·z·matrixᵀ` (forward, `matrix` = B `[N, R]`) or `z·matrix` (backward, `matrix` = rows of A `[R, K]`).
pub struct LowRank<'a> {
    /// z or u, packed with the scaling of the product's operand.
    pub z: &'a Packed,
    /// Its first column, a multiple of 16.
    pub z_offset: usize,
    /// B or A.
    pub matrix: &'a Param,
    /// First row of `matrix`, where A holds the rows of several matrices.
    pub first_row: usize,
    /// `R`, a multiple of 16.
    pub rank: usize,
    /// The adapter's scale.
    pub scale: f32,
}

/// A product of a frozen matrix, with the adapter's part.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    /// The result.
    pub y: View<'a>,
    /// The input, or the gradient of the output.
    pub x: &'a Packed,
    /// The matrix.
    pub w: &'a Weight,
    /// Factor of the matrix's part.
    pub scale: f32,
    /// The adapter's part.
    pub lora: Option<&'a LowRank<'a>>,
    /// Rows of `x`.
    pub rows: usize,
    /// Whether a gradient is added to what `y` holds.
    pub accumulate: bool,
}

impl<'a> Product<'a> {
    /// The product alone, over `rows` rows.
    pub fn new(y: View<'a>, x: &'a Packed, w: &'a Weight, rows: usize) -> Product<'a> {
        Product { y, x, w, scale: 1.0, lora: None, rows, accumulate: false }
    }

    fn params(&self, tile: &Tile) -> Params {
        let Product { y, x, lora, .. } = *self;
        Params {
            rows: self.rows as u32,
            weight_rows: tile.rows as u32,
            weight_cols: self.w.cols as u32,
            tiles: x.tiles(),
            x_column: 0,
            y_stride4: y.stride4(),
            y_offset4: y.offset4(),
            cols4: 0,
            columns: 0,
            ranks: lora.map_or(0, |l| (l.rank / 16) as u32),
            z_column: lora.map_or(0, |l| (l.z_offset / 16) as u32),
            z_tiles: lora.map_or(0, |l| l.z.tiles()),
            lora_offset4: 0,
            scale: self.scale,
            lora_scale: lora.map_or(0.0, |l| l.scale),
            accumulate: 0,
            part_steps: 0,
            parts: 0,
            gradients: GradientParams::default(),
        }
    }
}

/// `y = scale·x·Wᵀ + lora.scale·z·Bᵀ` for `x` `[rows, K]`, `y` `[rows, N]`.
pub fn forward(
    rec: &mut Recorder,
    y: View,
    x: &Packed,
    w: &Weight,
    scale: f32,
    lora: Option<&LowRank>,
    rows: usize,
) {
    forward_onto(rec, &Product { scale, lora, ..Product::new(y, x, w, rows) }, None);
}

/// [`forward`], or where `unsummed` is given, which takes a matrix in one buffer, only the parts of the sum, in the place of `y`.
pub fn forward_onto(rec: &mut Recorder, product: &Product, mut unsummed: Option<&mut Unsummed>) {
    for tile in &product.w.tiles {
        let params = Params {
            y_offset4: product.y.offset4() + (tile.first_row / 4) as u32,
            lora_offset4: product.lora.map_or(0, |l| (tile.first_row * l.rank / 4) as u32),
            cols4: tile.rows.div_ceil(4) as u32,
            columns: tile.rows as u32,
            ..product.params(tile)
        };
        dispatch(rec, "forward", product, tile, params, unsummed.as_deref_mut(), None);
    }
}

/// `dx = scale·dy·W + u·A` for `dy` `[rows, N]`, `dx` `[rows, K]`; added to `dx` where `accumulate`.
pub fn backward(
    rec: &mut Recorder,
    dx: View,
    dy: &Packed,
    w: &Weight,
    scale: f32,
    lora: Option<&LowRank>,
    rows: usize,
    accumulate: bool,
) {
    let product = Product { scale, lora, accumulate, ..Product::new(dx, dy, w, rows) };
    backward_onto(rec, &product, None, None);
}

/// [`backward`], or where `unsummed` is given only the parts of the sum, in the place of `dx`. The gradients `beside` are computed meanwhile.
pub fn backward_onto(
    rec: &mut Recorder,
    product: &Product,
    mut unsummed: Option<&mut Unsummed>,
    mut beside: Option<Beside>,
) {
    let w = product.w;
    for (i, tile) in w.tiles.iter().enumerate() {
        let lora = product.lora.filter(|_| i + 1 == w.tiles.len());
        let product = Product { lora, ..*product };
        let params = Params {
            x_column: (tile.first_row / 16) as u32,
            lora_offset4: lora.map_or(0, |l| (l.first_row * l.matrix.cols / 4) as u32),
            accumulate: u32::from(product.accumulate || i > 0),
            cols4: (w.cols / 4) as u32,
            columns: w.cols as u32,
            ..product.params(tile)
        };
        dispatch(rec, "backward", &product, tile, params, unsummed.as_deref_mut(), beside.take());
    }
}

fn dispatch(
    rec: &mut Recorder,
    entry: &'static str,
    &Product { y, x, w, lora, .. }: &Product,
    tile: &Tile,
    params: Params,
    unsummed: Option<&mut Unsummed>,
    beside: Option<Beside>,
) {
    let summed = if entry == "forward" { w.cols } else { tile.rows };
    let target = Target {
        y: y.rows.bind(6),
        rows: params.rows,
        cols4: params.cols4,
        stride4: params.y_stride4,
        offset4: params.y_offset4,
        accumulate: params.accumulate == 1,
    };
    let z = lora.map_or(rec.unused(4), |l| l.z.bind(4));
    let matrix = lora.map_or(rec.unused(5), |l| l.matrix.bind(5));
    let format = w.ty.reader();
    let (rows, columns) = (params.rows as usize, 4 * params.cols4 as usize);
    let choice =
        COOP16.choose(rec, gpu::Product { shader: COOP16.shader, entry, format, rows, columns, summed });
    let kernel = Kernel::new(COOP16.shader, entry).with_format(format);
    let kernel = kernel.with_sizes(COOP16.sizes(choice)).with_size("GROUPED", 0);
    let kernel =
        kernel.with_sizes(beside.as_ref().map_or(coop16_gradients::sizes(0, false), |beside| beside.sizes));
    let [across, down] = COOP16.tiles(choice.tile_rows, rows, columns);
    let others = beside.as_ref().map_or(0, |beside| beside.workgroups);
    let wanted = COOP16.parts_beside(rec.gpu(), choice, across * down, others) as usize;
    let steps = summed.div_ceil(COOP16.steps);
    let product = |rec: &mut Recorder, parts: &Parts| {
        let params = Params {
            y_stride4: parts.stride4,
            y_offset4: parts.offset4,
            accumulate: parts.accumulate,
            part_steps: parts.steps,
            parts: parts.count,
            gradients: beside.as_ref().map_or(GradientParams::default(), |beside| beside.params),
            ..params
        };
        let mut bindings = vec![tile.bind(1), x.bind(2), x.bind_factors(3), z, matrix, parts.result];
        let mut workgroups = COOP16.workgroups(choice, params.rows, 4 * params.cols4, parts.count);
        if let Some(beside) = beside {
            workgroups[2] += beside.workgroups.div_ceil(workgroups[0] * workgroups[1]);
            bindings.extend(beside.bindings);
        }
        rec.dispatch(kernel, &params, &bindings, workgroups);
    };
    match unsummed {
        Some(unsummed) => partial_sums::split_unsummed(rec, &target, wanted, steps, unsummed, product),
        None => partial_sums::split(rec, &target, wanted, steps, product),
    }
}
