//! Long products of [`crate::ops::linear`] by CUDA's kernels, shaders/linear/cuda.cu: f16 operands, each row scaled, and f32 sums.
//!
//! They read panels, which the device's own kernels make of tiles and of quantized weights, one matrix at a time. A change between
//! the two sides takes the time of some 10¹¹ multiplications, so that products share one: a [`Stretch`] collects them.

use std::ffi::CStr;

use super::coop16::LowRank;
use crate::gpu::{Binding, Gpu, GpuError, Kernel, Launch, Recorder};
use crate::ops::op;
use crate::ops::pack::Packed;
use crate::ops::{View, Weight};

/// Columns of a panel.
const PANEL: usize = 64;
/// Bytes of a row of a panel.
const ROW: u64 = 128;
/// Rows of weights are padded to the columns that a block computes.
const COLUMNS: usize = 128;
/// Tokens that a block computes, so that it reads as many rows behind the last.
const TOKENS: usize = 256;
/// Shared memory of a block: three stages, what leaves, factors, barriers, and room to align them. As in shaders/linear/cuda.cu.
const SHARED: u32 = 3 * 49_152 + 4 * 64 * 272 + 2 * 256 * 4 + 3 * 16 + 1024;

const MODULE: &[u8] = concat!(include_str!("../../../shaders/linear/cuda.ptx"), "\0").as_bytes();

/// Twin of the numbers of `Arguments` in shaders/linear/cuda.cu.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Numbers {
    rows: u32,
    columns: u32,
    stride: u32,
    steps: u32,
    low_steps: u32,
    x_rows: u32,
    w_rows: u32,
    low_rows: u32,
    scale: f32,
    accumulate: u32,
}

/// Twin of `Params` in shaders/linear/panels.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct FromTiles {
    rows: u32,
    tiles: u32,
    first: u32,
    columns: u32,
    factors: u32,
}

/// Twin of `Params` in shaders/linear/weight_panels.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct FromWeight {
    weight_rows: u32,
    weight_cols: u32,
    rows: u32,
    scale: f32,
}

/// Bytes of the panels that passes of `tokens` tokens, and chunks of them, need: `widths` are the model's, its widest mixer's and its
/// feed-forward block's, `rank` is that of the widest adapter. 0 where no product has `least` multiplications.
pub fn panels_bytes(
    least: u64,
    [tokens, chunk]: [usize; 2],
    [width, mixer, ffn]: [usize; 3],
    rank: usize,
) -> u64 {
    let work = |factors: [usize; 3]| factors.iter().map(|factor| *factor as u64).product::<u64>();
    if work([tokens, width, mixer]) < least && work([2 * chunk, width, ffn]) < least {
        return 0;
    }
    // The gradients of gate and up share a stretch.
    product_bytes(tokens, mixer, width, rank).max(2 * product_bytes(chunk, ffn, width, rank))
}

/// Bytes of the panels of one product: its operand, its matrix, and those of its adapter of rank `rank`.
pub fn product_bytes(rows: usize, weight_rows: usize, weight_cols: usize, rank: usize) -> u64 {
    let widest = weight_rows.max(weight_cols);
    activation_bytes(rows, widest)
        + weight_bytes(weight_rows, weight_cols)
        + activation_bytes(rows, rank)
        + weight_bytes(weight_rows, rank).max(weight_bytes(rank, weight_cols))
}

/// Memory for panels.
#[derive(Clone, Debug)]
pub struct Panels(wgpu::Buffer);

impl Panels {
    /// Room for `bytes`.
    pub fn new(gpu: &Gpu, bytes: u64) -> Result<Panels, GpuError> {
        Ok(Panels(gpu.buffer("panels", bytes)?))
    }

    /// The memory.
    pub fn buffer(&self) -> &wgpu::Buffer {
        &self.0
    }
}

/// Panels in the memory: the byte at which they begin, the rows of each, and their number.
#[derive(Clone, Copy)]
struct Place {
    at: u64,
    rows: usize,
    panels: usize,
}

/// Products that CUDA computes one after the other.
pub struct Stretch<'a> {
    panels: &'a Panels,
    used: u64,
    launches: Vec<Launch>,
    /// The operand of the last forward product, and its panels.
    operand: Option<((wgpu::Buffer, u64), Place)>,
}

impl<'a> Stretch<'a> {
    /// An empty stretch.
    pub fn new(panels: &'a Panels) -> Stretch<'a> {
        Stretch { panels, used: 0, launches: Vec::new(), operand: None }
    }

    /// A stretch for the products of `rows` rows with `matrices`, where they fit and have `least` multiplications.
    pub fn of(
        least: u64,
        panels: &'a Panels,
        rows: usize,
        matrices: &[&Weight],
        rank: usize,
    ) -> Option<Stretch<'a>> {
        let fits =
            |w: &&Weight| w.tiles.len() == 1 && product_bytes(rows, w.rows, w.cols, rank) <= panels.0.size();
        let weights: u64 = matrices.iter().map(|w| w.rows as u64 * w.cols as u64).sum();
        (rows as u64 * weights >= least && matrices.iter().all(fits)).then(|| Stretch::new(panels))
    }

    /// `y = x·Wᵀ + lora.scale·z·Bᵀ`, as [`super::coop16::forward`].
    pub fn forward(
        &mut self,
        rec: &mut Recorder,
        y: View,
        x: &Packed,
        w: &Weight,
        lora: Option<&LowRank>,
        rows: usize,
    ) {
        self.make_room(rec, product_bytes(rows, w.rows, w.cols, rank(lora)));
        let own = x.place();
        let x_place = match &self.operand {
            Some((other, place)) if *other == own => *place,
            _ => self.tiles(rec, x, 0, w.cols, rows),
        };
        self.operand = Some((own, x_place));
        let w_place = self.weight(rec, w, 1.0);
        let low = lora.map(|l| (self.z(rec, l, rows), self.weight(rec, &l.matrix.as_weight(), l.scale)));
        let shape = [rows, w.cols, w.rows.next_multiple_of(4)];
        self.launch(c"forward", "linear/cuda.forward", shape, [x_place, w_place], low, y, false);
    }

    /// `dx = dy·W + u·A`, added to `dx` where `accumulate`, as [`super::coop16::backward`].
    pub fn backward(
        &mut self,
        rec: &mut Recorder,
        dx: View,
        dy: &Packed,
        w: &Weight,
        lora: Option<&LowRank>,
        rows: usize,
        accumulate: bool,
    ) {
        self.make_room(rec, product_bytes(rows, w.rows, w.cols, rank(lora)));
        let dy_place = self.tiles(rec, dy, 0, w.rows, rows);
        let w_place = self.weight(rec, w, 1.0);
        let low = lora.map(|l| {
            let a = l.matrix.part(l.first_row, l.rank).as_weight();
            (self.z(rec, l, rows), self.weight(rec, &a, l.scale))
        });
        let (shape, places) = ([rows, w.rows, w.cols], [dy_place, w_place]);
        self.launch(c"backward", "linear/cuda.backward", shape, places, low, dx, accumulate);
    }

    /// Records the launches, behind everything that they read.
    pub fn finish(&mut self, rec: &mut Recorder) {
        self.launches.drain(..).for_each(|launch| rec.launch(launch));
        (self.used, self.operand) = (0, None);
    }

    fn make_room(&mut self, rec: &mut Recorder, bytes: u64) {
        if self.used + bytes > self.panels.0.size() {
            self.finish(rec);
        }
    }

    fn take(&mut self, bytes: u64, rows: usize, cols: usize) -> Place {
        let place = Place { at: self.used, rows, panels: cols.div_ceil(PANEL) };
        self.used += bytes;
        place
    }

    /// Panels of `cols` columns of `x`, from column `first` on.
    fn tiles(&mut self, rec: &mut Recorder, x: &Packed, first: usize, cols: usize, rows: usize) -> Place {
        let place = self.take(activation_bytes(rows, cols), rows.next_multiple_of(16), cols);
        let params = FromTiles {
            rows: place.rows as u32,
            tiles: x.tiles(),
            first: (first / 16) as u32,
            columns: cols.div_ceil(16) as u32,
            factors: (panel_bytes(place.rows, cols) / 16) as u32,
        };
        let groups = [place.rows.div_ceil(32) as u32, place.panels as u32, 1];
        let bindings = [x.bind(1), self.bind(place, activation_bytes(rows, cols)), x.bind_factors(3)];
        rec.dispatch(Kernel::new("linear/panels", "from_tiles"), &params, &bindings, groups);
        place
    }

    fn z(&mut self, rec: &mut Recorder, lora: &LowRank, rows: usize) -> Place {
        self.tiles(rec, lora.z, lora.z_offset, lora.rank, rows)
    }

    fn weight(&mut self, rec: &mut Recorder, w: &Weight, scale: f32) -> Place {
        let bytes = weight_bytes(w.rows, w.cols);
        let place = self.take(bytes, w.rows.next_multiple_of(COLUMNS), w.cols);
        let params = FromWeight {
            weight_rows: w.rows as u32,
            weight_cols: w.cols as u32,
            rows: place.rows as u32,
            scale,
        };
        let kernel = Kernel::new("linear/weight_panels", "from_weight").with_format(op::reader(w.ty));
        let groups = [(place.rows / 64) as u32, place.panels as u32, 1];
        rec.dispatch(kernel, &params, &[w.tiles[0].bind(1), self.bind(place, bytes)], groups);
        place
    }

    fn bind(&self, place: Place, bytes: u64) -> Binding<'_> {
        Binding { index: 2, buffer: &self.panels.0, range: Some((place.at, bytes)) }
    }

    /// `shape` is the product's: rows, steps of the sum, columns.
    fn launch(
        &mut self,
        entry: &'static CStr,
        name: &'static str,
        [rows, summed, columns]: [usize; 3],
        [x, w]: [Place; 2],
        low: Option<(Place, Place)>,
        y: View,
        accumulate: bool,
    ) {
        let numbers = Numbers {
            rows: rows as u32,
            columns: columns as u32,
            stride: y.rows.stride as u32,
            steps: summed.div_ceil(PANEL) as u32,
            low_steps: low.map_or(0, |(z, _)| z.panels as u32),
            x_rows: x.rows as u32,
            w_rows: w.rows as u32,
            low_rows: low.map_or(0, |(_, matrix)| matrix.rows as u32),
            scale: 1.0,
            accumulate: u32::from(accumulate),
        };
        let (z, matrix) = low.unwrap_or((x, w));
        let mut buffers: Vec<_> = [x, z, w, matrix].map(|place| (self.panels.0.clone(), place.at)).into();
        let factors = x.at + panel_bytes(x.rows, x.panels * PANEL);
        buffers.extend([
            (self.panels.0.clone(), factors),
            (y.rows.buffer.clone(), y.rows.start + 4 * y.offset as u64),
        ]);
        self.launches.push(Launch {
            name,
            module: CStr::from_bytes_with_nul(MODULE).expect("PTX text has no NUL within"),
            entry,
            buffers,
            numbers: bytemuck::bytes_of(&numbers).to_vec(),
            blocks: (columns.div_ceil(COLUMNS) * rows.div_ceil(TOKENS)) as u32,
            threads: 384,
            shared: SHARED,
            bytes: (2 * summed * (rows + columns) + 4 * rows * columns) as u64,
        });
    }
}

fn rank(lora: Option<&LowRank>) -> usize {
    lora.map_or(0, |l| l.rank)
}

/// Bytes of the panels of `rows` rows of `cols` columns.
fn panel_bytes(rows: usize, cols: usize) -> u64 {
    (cols.div_ceil(PANEL) * rows) as u64 * ROW
}

/// Bytes of the panels of activations, of their factors, and of the rows that a block reads behind them.
fn activation_bytes(rows: usize, cols: usize) -> u64 {
    let padded = rows.next_multiple_of(16);
    panel_bytes(padded, cols) + (4 * padded as u64).next_multiple_of(256).max(TOKENS as u64 * ROW)
}

/// Bytes of the panels of a matrix, and of the panel that a block of columns reads behind them.
fn weight_bytes(rows: usize, cols: usize) -> u64 {
    panel_bytes(rows.next_multiple_of(COLUMNS), cols + PANEL)
}
