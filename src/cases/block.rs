//! Buffers with guards around what a kernel reads or writes.

use crate::gpu::{Gpu, GpuError};
use crate::ops::pack::Packed;
use crate::ops::{Param, Rows, View};

/// Fills outputs and their guards before the kernel runs. A driver that reports success and writes nothing leaves it.
pub const POISON: f32 = -12345.678;
/// Floats behind every buffer: more than a workgroup's tile of a row.
const GUARD: usize = 512;
/// Floats before the first of a [`Param`].
const BEFORE: usize = 128;

/// Columns left and right of a [`Block`], multiples of 4.
pub type Margins = (usize, usize);

/// The content of one float of a buffer.
#[derive(Clone, Copy, PartialEq)]
pub enum Place {
    /// The next of the values.
    Value,
    /// These bits.
    Kept(u32),
    /// A pair of zeros in f16, of either sign.
    Zeros,
    /// Anything.
    Any,
}

/// Place around a result.
pub const AROUND: Place = Place::Kept(POISON.to_bits());

/// Places of values in a buffer, and of what must stay around them.
pub struct Layout {
    /// The buffer.
    pub buffer: wgpu::Buffer,
    /// Its floats from the first on.
    pub places: Vec<Place>,
}

impl Layout {
    /// Reads the values, after checking what is around them.
    ///
    /// # Errors
    /// The first float that changed, in words, or the device's error.
    pub async fn read(&self, gpu: &Gpu, name: &str) -> Result<Vec<f64>, String> {
        let all =
            gpu.read::<f32>(&self.buffer, self.places.len()).await.map_err(|error| error.to_string())?;
        let mut values = Vec::with_capacity(all.len());
        for (at, (found, place)) in all.iter().zip(&self.places).enumerate() {
            match *place {
                Place::Any => {}
                Place::Value => values.push(f64::from(*found)),
                Place::Kept(bits) if found.to_bits() == bits => {}
                Place::Zeros if found.to_bits() & 0x7fff_7fff == 0 => {}
                Place::Zeros => {
                    return Err(format!("{name}: float {at} is {found:e}, expected two zeros in f16"));
                }
                Place::Kept(bits) => {
                    let kept = f32::from_bits(bits);
                    return Err(format!("{name}: float {at} is {found:e}, expected exactly {kept:e}"));
                }
            }
        }
        Ok(values)
    }
}

/// `[height, width]` in rows that may be wider, with guards after them. The columns up to the next multiple of 4 are zero.
pub struct Block {
    rows: Rows,
    left: usize,
    /// Rows.
    pub height: usize,
    /// Columns between the margins.
    pub width: usize,
}

impl Block {
    /// An input. Everything around it is NaN, which no product with zero hides.
    ///
    /// # Errors
    /// The device's error, as of the others.
    pub fn input(gpu: &Gpu, margins: Margins, width: usize, values: &[f32]) -> Result<Block, GpuError> {
        Block::new(gpu, margins, width, values, (f32::NAN, 0.0))
    }

    /// An output, poisoned.
    pub fn output(gpu: &Gpu, margins: Margins, width: usize, height: usize) -> Result<Block, GpuError> {
        Block::new(gpu, margins, width, &vec![POISON; width * height], (POISON, POISON))
    }

    /// An input that is overwritten or added to.
    pub fn in_out(gpu: &Gpu, margins: Margins, width: usize, values: &[f32]) -> Result<Block, GpuError> {
        Block::new(gpu, margins, width, values, (POISON, 0.0))
    }

    fn new(
        gpu: &Gpu,
        (left, right): Margins,
        width: usize,
        values: &[f32],
        (around, pad): (f32, f32),
    ) -> Result<Block, GpuError> {
        let (height, padded) = (values.len() / width, width.next_multiple_of(4));
        let stride = left + padded + right;
        let mut all = vec![around; height * stride + GUARD];
        for (row, values) in values.chunks(width).enumerate() {
            let at = row * stride + left;
            all[at..at + width].copy_from_slice(values);
            all[at + width..at + padded].fill(pad);
        }
        let rows = Rows { buffer: gpu.upload("case", &all)?, stride, start: 0 };
        Ok(Block { rows, left, height, width })
    }

    /// The rows, for operations that take all columns: only of blocks without a margin on the left.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// The columns between the margins.
    pub fn view(&self) -> View<'_> {
        self.rows.from(self.left)
    }

    /// All values; everything around them must be as it was.
    pub fn whole(&self) -> Layout {
        self.of_rows(|_| true)
    }

    /// The values of the rows for which `of` is true; other rows may hold anything.
    pub fn of_rows(&self, of: impl Fn(usize) -> bool) -> Layout {
        self.of_rows_among(Place::Any, of)
    }

    /// The values of the rows for which `of` is true, and what the places of other rows hold.
    pub fn of_rows_among(&self, others: Place, of: impl Fn(usize) -> bool) -> Layout {
        let stride = self.rows.stride;
        self.layout(self.height * stride, |i| {
            let (row, column) = (i / stride, (i % stride).checked_sub(self.left));
            match column {
                _ if !of(row) => others,
                Some(column) if column < self.width => Place::Value,
                Some(column) if column < self.width.next_multiple_of(4) => Place::Kept(0),
                _ => AROUND,
            }
        })
    }

    /// Columns `range`, each `own`; the others may hold anything.
    pub fn of_columns(&self, range: std::ops::Range<usize>, own: Place) -> Layout {
        let stride = self.rows.stride;
        self.layout(self.height * stride, |i| match (i % stride).checked_sub(self.left) {
            Some(column) if range.contains(&column) => own,
            Some(column) if column < self.width.next_multiple_of(4) => Place::Any,
            _ => AROUND,
        })
    }

    /// The values in `range` of an output of one row; the rest keeps its poison.
    pub fn of_range(&self, range: std::ops::Range<usize>) -> Layout {
        let place = |i| if range.contains(&i) { Place::Value } else { AROUND };
        self.layout(self.rows.stride, place)
    }

    /// Anything in the first floats of an output of one row, and poison from float `from` on.
    pub fn any_before(&self, from: usize) -> Layout {
        self.layout(self.rows.stride, |i| if i < from { Place::Any } else { AROUND })
    }

    fn layout(&self, inside: usize, place: impl Fn(usize) -> Place) -> Layout {
        let place = |i| if i < inside { place(i) } else { AROUND };
        Layout { buffer: self.rows.buffer.clone(), places: (0..inside + GUARD).map(place).collect() }
    }
}

/// A matrix of the adapter in the middle of a larger buffer.
///
/// # Errors
/// The device's error.
pub fn param(gpu: &Gpu, cols: usize, values: &[f32]) -> Result<Param, GpuError> {
    let mut all = vec![POISON; BEFORE + values.len() + GUARD];
    all[BEFORE..BEFORE + values.len()].copy_from_slice(values);
    let buffer = gpu.upload("case", &all)?;
    Ok(Param { buffer, offset: 4 * BEFORE as u64, rows: values.len() / cols, cols })
}

/// The values of a matrix that [`param`] made.
pub fn of_param(param: &Param) -> Layout {
    let inside = BEFORE..BEFORE + param.rows * param.cols;
    let place = |i| if inside.contains(&i) { Place::Value } else { AROUND };
    Layout { buffer: param.buffer.clone(), places: (0..inside.end + GUARD).map(place).collect() }
}

/// Anything in packed rows, and zeros behind their last column and row: pairs of f16 in tiles of 16×16.
pub fn behind(packed: &Packed, width: usize, height: usize) -> Layout {
    assert_eq!(width % 2, 0, "pairs of columns");
    let (tiles, across) = (height.div_ceil(16), width.next_multiple_of(64));
    let mut places = vec![Place::Any; across * tiles * 8];
    for t in 0..16 * tiles {
        for c in (0..across).step_by(2).filter(|c| t >= height || *c >= width) {
            places[(((c / 16) * tiles + t / 16) * 256 + t % 16 * 16 + c % 16) / 2] = Place::Zeros;
        }
    }
    Layout { buffer: packed.bind(0).buffer.clone(), places }
}
