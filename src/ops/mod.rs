//! The operations, one file each, forward and backward side by side; shaders and f64 references have the same names.
//!
//! Accumulation rule: gradients of adapter matrices, and `dk` and `dv`, are added to what their buffers hold; everything
//! else is overwritten unless the call says `accumulate`.

pub mod act;
pub mod adamw;
pub mod argmax;
pub mod attention;
pub mod bias;
pub mod block_end;
pub mod cached_attention;
pub mod cached_gated;
pub mod cached_heads;
pub mod categorical;
pub mod columns;
pub mod cross_entropy;
pub mod delta;
pub mod distill;
pub mod dropout;
pub mod embedding;
pub mod experts;
pub mod gated;
pub mod heads;
pub mod latent;
pub mod linear;
pub mod lora;
pub mod matvec;
pub mod norm;
pub mod norm_add;
pub mod op;
pub mod output_gate;
pub mod pack;
pub mod partial_sums;
pub mod pass;
pub mod peak;
pub mod pending;
pub mod per_layer;
pub mod random;
pub mod rms_norm;
pub mod rope;
pub mod row_factors;
pub mod row_status;
pub mod scale;
mod self_test;
pub mod short_conv;
pub mod update_norm;

use std::ops::Range;

use crate::base::formats::GgmlType;
use crate::base::formats::planes;
use crate::gpu::{Binding, Gpu, GpuError};

/// Steps of the sum that shaders/common/tile.wgsl stages at a time.
const STEPS: usize = 16;

/// Rows of f32 on the device. The stride is the width rounded up to 4; the padding is zero.
#[derive(Clone, Debug)]
pub struct Rows {
    /// `[rows, stride]`.
    pub buffer: wgpu::Buffer,
    /// Floats from one row to the next.
    pub stride: usize,
    /// Byte of `buffer` at which the first row begins, a multiple of 256.
    pub start: u64,
}

impl Rows {
    /// Zeroed rows.
    pub fn new(gpu: &Gpu, label: &str, rows: usize, width: usize) -> Result<Rows, GpuError> {
        let stride = width.next_multiple_of(4);
        let buffer = gpu.buffer(label, (rows * stride * 4) as u64)?;
        Ok(Rows { buffer, stride, start: 0 })
    }

    /// The rows from `first`, a multiple of 64, on.
    pub fn below(&self, first: usize) -> Rows {
        Rows { start: self.start + (first * self.stride * 4) as u64, ..self.clone() }
    }

    /// A view of the memory as rows of `width` values.
    pub fn reshaped(&self, width: usize) -> Rows {
        Rows { stride: width.next_multiple_of(4), ..self.clone() }
    }

    /// All columns.
    pub fn all(&self) -> View<'_> {
        View { rows: self, offset: 0 }
    }

    /// The columns from `offset` (a multiple of 4) on.
    pub fn from(&self, offset: usize) -> View<'_> {
        View { rows: self, offset }
    }

    /// The rows at binding `index`.
    pub fn bind(&self, index: u32) -> Binding<'_> {
        Binding { index, buffer: &self.buffer, range: self.range() }
    }

    /// Their buffer, and the byte of the first.
    fn place(&self) -> (wgpu::Buffer, u64) {
        (self.buffer.clone(), self.start)
    }

    /// The part of the buffer that they lie in.
    fn range(&self) -> Option<(u64, u64)> {
        (self.start > 0).then(|| (self.start, self.buffer.size() - self.start))
    }

    /// These rows as an F32 matrix, so that what reads weights can read them.
    pub fn as_weight(&self, rows: usize) -> Weight {
        let tile = Tile { first_row: 0, rows, buffer: self.buffer.clone(), range: self.range() };
        Weight { ty: GgmlType::F32, rows, cols: self.stride, tiles: vec![tile], bias: None }
    }
}

/// Some columns of [`Rows`].
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Buffer that holds them.
    pub rows: &'a Rows,
    /// First column, a multiple of 4.
    pub offset: usize,
}

impl View<'_> {
    fn stride4(&self) -> u32 {
        (self.rows.stride / 4) as u32
    }

    fn offset4(&self) -> u32 {
        (self.offset / 4) as u32
    }

    /// Their buffer, and the byte of the first.
    fn place(&self) -> (wgpu::Buffer, u64) {
        (self.rows.buffer.clone(), self.rows.start + 4 * self.offset as u64)
    }
}

/// The destination of a product: columns of the result from `first` (a multiple of 128) on, as many as there are or fit the view.
#[derive(Clone, Copy)]
pub struct Columns<'a> {
    /// `[rows, …]`.
    pub y: View<'a>,
    /// The column of the result that is the view's first.
    pub first: usize,
}

impl<'a> Columns<'a> {
    /// All columns.
    pub fn all(y: View<'a>) -> Columns<'a> {
        Columns { y, first: 0 }
    }

    /// Their number, of a result of `columns` columns.
    fn count(&self, columns: usize) -> usize {
        (columns - self.first).min(self.y.rows.stride - self.y.offset)
    }
}

/// A matrix of adapter parameters or of their gradients: a part of a larger buffer.
#[derive(Clone, Debug)]
pub struct Param {
    /// The buffer that it lies in.
    pub buffer: wgpu::Buffer,
    /// First byte, a multiple of 256.
    pub offset: u64,
    /// Rows.
    pub rows: usize,
    /// Columns, a multiple of 4.
    pub cols: usize,
}

impl Param {
    /// Bytes.
    pub fn bytes(&self) -> u64 {
        (self.rows * self.cols * 4) as u64
    }

    /// The matrix at binding `index`.
    pub fn bind(&self, index: u32) -> Binding<'_> {
        Binding { index, buffer: &self.buffer, range: Some((self.offset, self.bytes())) }
    }

    /// `rows` rows from `first` on, which begin at a multiple of 256 bytes.
    pub fn part(&self, first: usize, rows: usize) -> Param {
        Param { offset: self.offset + (first * self.cols * 4) as u64, rows, ..self.clone() }
    }

    /// The matrix as something to multiply by.
    pub fn as_weight(&self) -> Weight {
        let range = Some((self.offset, self.bytes()));
        let tile = Tile { first_row: 0, rows: self.rows, buffer: self.buffer.clone(), range };
        Weight { ty: GgmlType::F32, rows: self.rows, cols: self.cols, tiles: vec![tile], bias: None }
    }
}

/// The B half of an adapter during decoding, added by the op that reads the result of [`matvec`].
#[derive(Clone, Copy)]
pub struct Up<'a> {
    /// `Bᵀ` `[R, N]` of every matrix that read the same input, with the scale in it: neighbouring threads, which have
    /// neighbouring outputs, read neighbouring floats.
    pub b: &'a wgpu::Buffer,
    /// First float of each matrix's `Bᵀ`, a multiple of 4.
    pub offsets: &'a [usize],
    /// `R`, a multiple of 4.
    pub rank: usize,
    /// First column of the first matrix's `z`; the others' follow.
    pub z_offset: usize,
}

/// Products of one input, side by side in each row. Their reader adds the term of a frozen adapter.
#[derive(Clone)]
pub struct Unfinished<'a> {
    /// `[rows, …]`: the products, and `z` where there is a term.
    pub rows: Rows,
    /// The term.
    pub term: Option<Up<'a>>,
}

impl<'a> Unfinished<'a> {
    /// `rows` that lack `term`, where there is one.
    pub fn of(rows: &Rows, term: impl Into<Option<Up<'a>>>) -> Unfinished<'a> {
        Unfinished { rows: rows.clone(), term: term.into() }
    }
}

impl<'a> Up<'a> {
    /// First column of `z` and first float of `Bᵀ` of matrix `i`; zeros where the adapter has no such matrix.
    fn member(&self, i: usize) -> (u32, u32) {
        let offset = self.offsets.get(i).map(|offset| *offset as u32);
        offset.map_or((0, 0), |offset| ((self.z_offset + i * self.rank) as u32, offset))
    }

    /// Vec4s of `z`, at most `most`, whose rows of `Bᵀ` a thread asks for before it adds up the first: memory answers all of
    /// them in the time that it takes to answer one. `parts` threads share the rows.
    fn deep(&self, most: usize, parts: usize) -> u32 {
        let fits = |deep: &usize| *deep <= most && (self.rank / 4).is_multiple_of(deep * parts);
        [4, 2].into_iter().find(fits).unwrap_or(1) as u32
    }

    fn bind(&self, index: u32) -> Binding<'a> {
        Binding { index, buffer: self.b, range: None }
    }
}

/// A frozen matrix `[rows, cols]` in its own format, cut into tiles of rows that fit a binding.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Format of every tile.
    pub ty: GgmlType,
    /// Output features.
    pub rows: usize,
    /// Input features, a multiple of 4.
    pub cols: usize,
    /// Top to bottom.
    pub tiles: Vec<Tile>,
    /// A frozen bias `[rows]` of its outputs, where it has one.
    pub bias: Option<wgpu::Buffer>,
}

/// Neighbouring rows of a [`Weight`].
#[derive(Clone, Debug)]
pub struct Tile {
    /// A multiple of 64.
    pub first_row: usize,
    /// Number of them.
    pub rows: usize,
    /// The rows, repacked by [`crate::base::formats::planes::to_planes`].
    pub buffer: wgpu::Buffer,
    /// Part of the buffer, where it holds more.
    pub range: Option<(u64, u64)>,
}

/// The rows of each tile of a matrix: multiples of 64, as many as a binding can span.
pub(crate) fn row_tiles(
    gpu: &Gpu,
    ty: GgmlType,
    rows: usize,
    row_bytes: usize,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let most = ((gpu.max_binding_bytes() as usize - ty.table().len()) / row_bytes.max(1)).max(64) / 64 * 64;
    (0..rows).step_by(most).map(move |first| first..rows.min(first + most))
}

impl Tile {
    /// Uploads the rows `rows` of a matrix, in the file's own blocks.
    pub(crate) fn upload(
        gpu: &Gpu,
        name: &str,
        ty: GgmlType,
        rows: Range<usize>,
        bytes: &[u8],
    ) -> Result<Tile, GpuError> {
        let size = planes::planes_bytes(ty, bytes.len());
        let buffer =
            gpu.filled_buffer(name, size, |place| planes::write_planes(ty, rows.len(), bytes, place))?;
        Ok(Tile { first_row: rows.start, rows: rows.len(), buffer, range: None })
    }

    /// The rows at binding `index`.
    pub fn bind(&self, index: u32) -> Binding<'_> {
        Binding { index, buffer: &self.buffer, range: self.range }
    }
}

impl Weight {
    /// Uploads `[rows, cols]` of `data`, in the file's own blocks.
    pub fn upload(
        gpu: &Gpu,
        name: &str,
        ty: GgmlType,
        rows: usize,
        cols: usize,
        data: &[u8],
    ) -> Result<Weight, GpuError> {
        let row_bytes = data.len() / rows.max(1);
        let mut tiles = Vec::new();
        for tile in row_tiles(gpu, ty, rows, row_bytes) {
            let bytes = &data[tile.start * row_bytes..tile.end * row_bytes];
            tiles.push(Tile::upload(gpu, name, ty, tile, bytes)?);
        }
        Ok(Weight { ty, rows, cols, tiles, bias: None })
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.tiles.iter().map(|t| t.buffer.size()).sum()
    }
}
