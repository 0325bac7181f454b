//! Products of rows that are grouped by expert with the experts' frozen matrices, and the adapter's product in the same pass: in f32, with
//! operands in f16, or on cooperative matrices of 8×8.

use std::ops::Range;

use crate::base::formats::GgmlType;
use crate::gpu::{Choice, Gpu, GpuError, Kernel, Products, Recorder};
pub use crate::ops::Columns;
use crate::ops::dropout::grouped::{ExpertMask, MaskParams};
use crate::ops::experts::groups::Groups;
use crate::ops::linear::tiling::TILED;
use crate::ops::row_factors;
use crate::ops::{Param, Tile, View, Weight};

/// Twin of `Params` in shaders/linear/grouped.wgsl, which imports it from shaders/common/expert_product.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    weight_rows: u32,
    weight_cols: u32,
    expert_rows: u32,
    first_expert: u32,
    used: u32,
    x_stride4: u32,
    x_offset4: u32,
    y_stride4: u32,
    y_offset4: u32,
    rank4: u32,
    z_stride4: u32,
    z_offset4: u32,
    scale: f32,
    lora_scale: f32,
    accumulate: u32,
    cols4: u32,
    first_column: u32,
    tile: u32,
    lora_rows: u32,
    lora_first: u32,
    mask: MaskParams,
}

/// A matrix `[N, K]` for each expert, in a weight format.
#[derive(Clone, Debug)]
pub struct ExpertWeight {
    /// The matrices of all experts, `[E·N, K]`, in tiles of whole experts.
    pub weight: Weight,
    /// `N`.
    pub rows: usize,
}

impl ExpertWeight {
    /// Uploads `[experts·rows, cols]` of `data`, in the file's own blocks.
    pub fn upload(
        gpu: &Gpu,
        name: &str,
        ty: GgmlType,
        [experts, rows, cols]: [usize; 3],
        data: &[u8],
    ) -> Result<ExpertWeight, GpuError> {
        let row_bytes = data.len() / (experts * rows).max(1);
        let mut tiles = Vec::new();
        for tile in expert_tiles(gpu, ty, [experts, rows], row_bytes) {
            let bytes = &data[tile.start * row_bytes..tile.end * row_bytes];
            tiles.push(Tile::upload(gpu, name, ty, tile, bytes)?);
        }
        Ok(ExpertWeight { weight: Weight { ty, rows: experts * rows, cols, tiles, bias: None }, rows })
    }

    /// Parameters `[experts·rows, cols]` as matrices of experts.
    pub fn of_param(param: &Param, experts: usize) -> ExpertWeight {
        ExpertWeight { weight: param.as_weight(), rows: param.rows / experts }
    }
}

/// The rows of each tile: whole experts, as many as a binding can span.
pub(crate) fn expert_tiles(
    gpu: &Gpu,
    ty: GgmlType,
    [experts, rows]: [usize; 2],
    row_bytes: usize,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let fit =
        ((gpu.max_binding_bytes() as usize - ty.table().len()) / (rows * row_bytes).max(1)).clamp(1, experts);
    (0..experts).step_by(fit).map(move |first| first * rows..experts.min(first + fit) * rows)
}

/// The adapter's product of rank `R`, which is added: `scale·z·B_eᵀ` forward, `u·A_e` backward.
pub struct LowRank<'a> {
    /// `z` or `u`, grouped `[rows, R]`.
    pub z: View<'a>,
    /// `B` `[E·N, R]` or `A` `[E·R, K]`.
    pub matrix: &'a Param,
    /// Row of every `B_e` that belongs to the first of `W_e`, where `B` holds those of several matrices; forward only.
    pub first_row: usize,
    /// `R`, a multiple of 4.
    pub rank: usize,
    /// Factor of the whole term; forward only.
    pub scale: f32,
}

/// Rows to multiply: one per row of the groups, or one per token.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// Rows that are grouped already.
    Rows(View<'a>),
    /// Rows of the tokens: every choice reads its token's row.
    Tokens(View<'a>),
}

/// `y = scale·x·W_eᵀ + lora.scale·z·B_eᵀ` for `y` `[rows, N]`, in the tiles of a pass over `tokens` tokens.
pub fn forward(
    rec: &mut Recorder,
    y: Columns,
    x: Source,
    w: &ExpertWeight,
    scale: f32,
    lora: Option<&LowRank>,
    groups: &Groups,
    tokens: usize,
) {
    dispatch(rec, "forward", y, x, w, scale, lora, None, groups, tokens, false);
}

/// `z = (mask·x)·A_eᵀ` for `z` `[rows, R]` and an adapter's `A`.
pub fn forward_masked(
    rec: &mut Recorder,
    z: Columns,
    x: Source,
    a: &ExpertWeight,
    mask: ExpertMask,
    groups: &Groups,
    tokens: usize,
) {
    dispatch(rec, "forward", z, x, a, 1.0, None, Some(mask), groups, tokens, false);
}

/// `dx = scale·dy·W_e + u·A_e` for `dx` `[rows, K]`; added to `dx` with `accumulate`.
pub fn backward(
    rec: &mut Recorder,
    dx: Columns,
    dy: Source,
    w: &ExpertWeight,
    scale: f32,
    lora: Option<&LowRank>,
    groups: &Groups,
    tokens: usize,
    accumulate: bool,
) {
    dispatch(rec, "backward", dx, dy, w, scale, lora, None, groups, tokens, accumulate);
}

fn dispatch(
    rec: &mut Recorder,
    entry: &'static str,
    to: Columns,
    x: Source,
    w: &ExpertWeight,
    scale: f32,
    lora: Option<&LowRank>,
    mask: Option<ExpertMask>,
    groups: &Groups,
    tokens: usize,
    accumulate: bool,
) {
    // Longer than 60 lines: one line per parameter of the kernel.
    let masked = mask.is_some(); // such products are thin, and stay in f32
    let mask = mask.map_or_else(MaskParams::default, |mask| mask.params(w.weight.cols, groups));
    let (x, used) = match x {
        Source::Rows(x) => (x, 0),
        Source::Tokens(x) => (x, groups.experts.used),
    };
    let half = row_factors::needed(rec) && !masked;
    let factors = half.then(|| {
        let cols = if entry == "forward" { w.weight.cols } else { w.rows };
        let rows = if used == 0 { groups.most_rows(tokens) } else { tokens };
        row_factors::of(rec, 8, x, cols, rows)
    });
    // Groups of 128 rows are two tiles. The tiles on 8×8 matrices are as large.
    let tile_rows = (groups.tile as u32).min(TILED.rows[0]);
    let choice = Choice { tile_rows, by_columns: false, parts: 1 };
    let kernel = match rec.gpu().kernels().products() {
        Products::Coop8 { lanes } if half => {
            Kernel::new("linear/grouped_coop8", entry).with_sizes([("LANES", lanes), ("TURNED", 0)])
        }
        _ => Kernel::new("linear/grouped", entry)
            .with_sizes([row_factors::size(half), ("MASKED", u32::from(masked))])
            .with_sizes(TILED.sizes(choice)),
    };
    let kernel = kernel.with_format(w.weight.ty.reader());
    let columns = to.count(if entry == "backward" { w.weight.cols } else { w.rows });
    let y = to.y;
    for tile in &w.weight.tiles {
        let params = Params {
            weight_rows: tile.rows as u32,
            weight_cols: w.weight.cols as u32,
            expert_rows: w.rows as u32,
            first_expert: (tile.first_row / w.rows) as u32,
            used: used as u32,
            x_stride4: x.stride4(),
            x_offset4: x.offset4(),
            y_stride4: y.stride4(),
            y_offset4: y.offset4(),
            rank4: lora.map_or(0, |l| (l.rank / 4) as u32),
            z_stride4: lora.map_or(0, |l| l.z.stride4()),
            z_offset4: lora.map_or(0, |l| l.z.offset4()),
            scale,
            lora_scale: lora.map_or(0.0, |l| l.scale),
            accumulate: u32::from(accumulate),
            cols4: columns.div_ceil(4) as u32,
            first_column: to.first as u32,
            tile: groups.tile as u32,
            lora_rows: lora.map_or(0, |l| (l.matrix.rows / groups.experts.count) as u32),
            lora_first: lora.map_or(0, |l| l.first_row as u32),
            mask,
        };
        let z = lora.map_or(rec.unused(3), |l| l.z.rows.bind(3));
        let matrix = lora.map_or(rec.unused(4), |l| l.matrix.bind(4));
        let (tiles, choices) = (groups.tiles.bind(6), groups.choices.bind(7));
        let mut bindings = vec![tile.bind(1), x.rows.bind(2), z, matrix, y.rows.bind(5), tiles, choices];
        bindings.extend(factors);
        let workgroups = TILED.workgroups(choice, groups.most_rows(tokens) as u32, columns as u32, 1);
        rec.dispatch(kernel.clone(), &params, &bindings, workgroups);
    }
}
