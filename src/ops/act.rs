//! [`Act`]: an activation that knows how it is stored, so that the model does not have to.

use crate::gpu::{Binding, Recorder};
use crate::ops::matvec::integers::Integers;
use crate::ops::norm::Norm;
use crate::ops::pack::Packed;
use crate::ops::{Rows, View};

/// An activation `[rows, width]` on the device.
///
/// Ops take any storage: one that needs f32 calls [`Act::f32`], one that multiplies on 16×16 matrices asks for tiles.
#[derive(Clone, Debug)]
pub struct Act {
    stored: Stored,
    kept: bool,
    passing: bool,
    by_reader: bool,
    halves: bool,
    column: usize,
    integers: Option<Integers>,
}

#[derive(Clone, Debug)]
enum Stored {
    /// Rows of f32.
    F32(Rows),
    /// f16 tiles. `staging` is f32 memory, shared with other activations, in which ops compute the values or unpack them. `by_reader`:
    /// the op that reads the values there packs them.
    Tiled { tiles: Packed, staging: Option<Rows>, by_reader: bool },
    /// f16 tiles, and in memory that other activations share, rows of f32.
    Both { rows: Rows, tiles: Packed },
}

impl From<Rows> for Act {
    fn from(rows: Rows) -> Act {
        Stored::F32(rows).into()
    }
}

impl From<Stored> for Act {
    fn from(stored: Stored) -> Act {
        Act {
            stored,
            kept: false,
            passing: false,
            by_reader: false,
            halves: false,
            column: 0,
            integers: None,
        }
    }
}

impl Act {
    /// An activation stored as f16 tiles; `staging` is memory for its values in f32, where any op needs them.
    pub fn tiled(tiles: Packed, staging: Option<Rows>) -> Act {
        Stored::Tiled { tiles, staging, by_reader: false }.into()
    }

    /// Takes `staging` as memory for the f32 values of tiles; has no effect on rows of f32.
    pub fn with_staging(self, staging: Rows) -> Act {
        match self.stored {
            Stored::Tiled { tiles, by_reader, .. } => {
                Act { stored: Stored::Tiled { tiles, staging: Some(staging), by_reader }, ..self }
            }
            _ => self,
        }
    }

    /// Leaves `staging` as it is once an op has computed the values there: the one that reads them rounds them to tiles on the way, which
    /// saves a pass. Has no effect on rows of f32.
    pub fn packed_by_reader(self, staging: Rows) -> Act {
        match self.stored {
            Stored::Tiled { tiles, .. } => {
                Act { stored: Stored::Tiled { tiles, staging: Some(staging), by_reader: true }, ..self }
            }
            _ => self,
        }
    }

    /// The columns of `rows` from `first`, a multiple of 4, on: other activations lie beside them.
    pub fn columns(rows: Rows, first: usize) -> Act {
        Act { column: first, ..rows.into() }
    }

    /// Lets the op that computes the values leave work to the one that reads them: to add up a product's partial sums, or a gated product.
    pub fn finished_by_reader(self) -> Act {
        Act { by_reader: true, ..self }
    }

    /// Lets a product leave the values in f16 blocks in the memory of the rows of f32. One op reads all rows that the product writes, and takes
    /// either.
    pub fn in_halves(self) -> Act {
        Act { halves: true, ..self }
    }

    /// Lets a product write the tiles that their reader would pack, where these are in blocks: likewise. Has no effect on rows of f32.
    pub fn packed_by_product(self) -> Act {
        let halves = matches!(self.stored, Stored::Tiled { .. });
        Act { halves, ..self }
    }

    /// The gradient of the output of `norm`: a norm with weights takes it [in f16](Act::in_halves), too.
    pub fn read_by(&self, norm: &Norm) -> Act {
        if norm.weight.is_some() { self.clone().in_halves() } else { self.clone() }
    }

    /// Has the only row stored as integers, too, where they are given.
    pub fn with_integers(self, integers: Option<&Integers>) -> Act {
        Act { integers: integers.cloned(), ..self }
    }

    /// Adds rows of f32, in memory that other activations share, to tiles; has no effect on rows of f32.
    pub fn beside(self, rows: Rows) -> Act {
        match self.stored {
            Stored::Tiled { tiles, .. } => Act { stored: Stored::Both { rows, tiles }, ..self },
            _ => self,
        }
    }

    /// Marks values that backward will not read (inference, or recomputed later): tiles that only backward reads need not be written.
    pub fn pass_by(self) -> Act {
        Act { passing: true, ..self }
    }

    /// Marks the values as computed by an earlier pass and kept: ops read them, and do not write them again.
    pub fn keep(self) -> Act {
        Act { kept: true, ..self }
    }

    /// Whether the values are there already, so that the op that makes them has nothing to do.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// The rows from `first`, a multiple of 64, on.
    pub fn rows_from(&self, first: usize) -> Act {
        self.mapped(|rows| rows.below(first), |tiles| tiles.below(first))
    }

    /// A view of the memory as rows of `width` values.
    pub fn reshaped(&self, width: usize) -> Act {
        self.mapped(|rows| rows.reshaped(width), Packed::clone)
    }

    /// A view of the memory with tiles laid out for `count` rows.
    pub fn for_rows(&self, count: usize) -> Act {
        self.mapped(Rows::clone, |tiles| tiles.for_rows(count))
    }

    /// A view of the memory: `of_rows` of all f32 rows, staging memory too, and `of_tiles` of the tiles.
    fn mapped(&self, of_rows: impl Fn(&Rows) -> Rows, of_tiles: impl Fn(&Packed) -> Packed) -> Act {
        let stored = match &self.stored {
            Stored::F32(rows) => Stored::F32(of_rows(rows)),
            Stored::Tiled { tiles, staging, by_reader } => Stored::Tiled {
                tiles: of_tiles(tiles),
                staging: staging.as_ref().map(of_rows),
                by_reader: *by_reader,
            },
            Stored::Both { rows, tiles } => Stored::Both { rows: of_rows(rows), tiles: of_tiles(tiles) },
        };
        Act { stored, integers: None, ..*self }
    }

    /// The f32 rows, where they are stored. They may be longer than the activation is wide: others lie behind it.
    ///
    /// # Panics
    /// If the activation is stored as tiles alone, or behind others in its rows: a mistake in the table of buffers.
    pub fn rows(&self) -> &Rows {
        assert_eq!(self.column, 0, "this activation lies behind others");
        self.view().rows
    }

    /// Its columns of f32 rows, where they are stored.
    ///
    /// # Panics
    /// If the activation is stored as tiles alone: a mistake in the table of buffers.
    pub fn view(&self) -> View<'_> {
        match &self.stored {
            Stored::F32(rows) | Stored::Both { rows, .. } => rows.from(self.column),
            Stored::Tiled { .. } => panic!("this activation is stored as f16 tiles"),
        }
    }

    /// The row of integers in which its only row is stored, too.
    pub(in crate::ops) fn integers(&self) -> Option<&Integers> {
        self.integers.as_ref()
    }

    /// The f16 tiles, where they are stored.
    pub fn tiles(&self) -> Option<&Packed> {
        match &self.stored {
            Stored::F32(_) => None,
            Stored::Tiled { tiles, .. } | Stored::Both { tiles, .. } => Some(tiles),
        }
    }

    /// Its buffers, whole: rows of f32, or tiles and their factors.
    pub fn buffers(&self) -> Vec<wgpu::Buffer> {
        match &self.stored {
            Stored::F32(rows) => vec![rows.buffer.clone()],
            Stored::Tiled { tiles, .. } => vec![tiles.place(0).0, tiles.factors_place().0],
            Stored::Both { rows, tiles } => {
                vec![rows.buffer.clone(), tiles.place(0).0, tiles.factors_place().0]
            }
        }
    }

    /// The memory in which a product may leave `count` rows in f16 blocks, where their reader takes those.
    pub(in crate::ops) fn halves(&self, count: usize) -> Option<Packed> {
        match &self.stored {
            _ if self.kept || !self.halves => None,
            Stored::Tiled { tiles, by_reader: true, .. } if tiles.is_in_blocks() => Some(tiles.clone()),
            Stored::F32(rows) => Packed::over(rows, count),
            _ => None,
        }
    }

    /// The tiles, where the values are stored as tiles alone and no reader has to pack them.
    pub(in crate::ops) fn only_tiles(&self) -> Option<&Packed> {
        self.tiles().filter(|_| !self.has_rows() && self.fresh().is_none())
    }

    /// Whether f32 rows are stored, beside tiles or alone.
    pub(in crate::ops) fn has_rows(&self) -> bool {
        !matches!(self.stored, Stored::Tiled { .. })
    }

    /// The values of `count` rows in f32, unpacked into the staging memory where tiles alone are stored.
    pub fn f32(&self, rec: &mut Recorder, count: usize) -> Rows {
        match &self.stored {
            Stored::F32(rows) | Stored::Both { rows, .. } => rows.clone(),
            Stored::Tiled { tiles, .. } => {
                let rows = self.staging();
                tiles.unpack(rec, rows.all(), rows.stride, count);
                rows
            }
        }
    }

    /// The f32 memory in which an op computes the values; [`Act::store`] follows.
    pub fn staging(&self) -> Rows {
        match &self.stored {
            Stored::F32(rows) | Stored::Both { rows, .. } => rows.clone(),
            Stored::Tiled { staging, .. } => {
                staging.clone().expect("the table of buffers gives staging memory to what is computed in f32")
            }
        }
    }

    /// Packs `count` rows that an op left in [`Act::staging`], where tiles are stored and the op that reads them does not pack them.
    pub fn store(&self, rec: &mut Recorder, count: usize) {
        if let (None, Some(tiles)) = (self.fresh(), self.tiles()) {
            let rows = self.staging();
            tiles.pack(rec, rows.all(), rows.stride, count);
        }
    }

    /// The rows of f32 that the op that reads them has to pack.
    fn fresh(&self) -> Option<&Rows> {
        match &self.stored {
            Stored::Tiled { staging, by_reader: true, .. } if !self.kept => staging.as_ref(),
            _ => None,
        }
    }

    /// Whether the op that computes the values may leave work to the one that reads them.
    pub(in crate::ops) fn is_finished_by_reader(&self) -> bool {
        self.by_reader
    }

    /// Whether the values of both begin at one place.
    pub(in crate::ops) fn shares_memory(&self, other: &Act) -> bool {
        self.place() == other.place()
    }

    /// The buffer that holds the values, and the byte where they begin.
    fn place(&self) -> (wgpu::Buffer, u64) {
        match &self.stored {
            Stored::F32(rows) => rows.place(),
            Stored::Tiled { tiles, .. } | Stored::Both { tiles, .. } => tiles.place(0),
        }
    }

    /// Packs `count` rows, where the op that reads them should have.
    pub(in crate::ops) fn store_fresh(&self, rec: &mut Recorder, count: usize) {
        if let (Some(rows), Some(tiles)) = (self.fresh(), self.tiles()) {
            tiles.pack(rec, rows.all(), rows.stride, count);
        }
    }

    /// Binds the values as [`Act::bind`] does, for the op that reads them first: rows of f32 that it has to round come with tiles and
    /// factors to write, at bindings `tiles` and `factors`.
    pub(in crate::ops) fn bind_source(&self, index: u32, factors: u32, tiles: u32) -> Vec<Binding<'_>> {
        match (self.fresh(), self.tiles()) {
            (Some(rows), Some(packed)) => {
                vec![rows.bind(index), packed.bind_factors(factors), packed.bind(tiles)]
            }
            _ => self.bind(index, factors),
        }
    }

    /// The sizes of a kernel that reads what [`Act::bind_source`] binds.
    pub(in crate::ops) fn source_sizes(&self) -> [(&'static str, u32); 2] {
        let fresh = self.fresh().is_some();
        [("MATRICES", u32::from(!self.has_rows() && !fresh)), ("ROUNDED", u32::from(fresh))]
    }

    /// Whether a kernel that rounds the values has to write the tiles.
    pub(in crate::ops) fn is_stored(&self) -> bool {
        !self.passing
    }

    /// The values at binding `index`: tiles with their factors at binding `factors`, where tiles alone are stored, else rows.
    pub(in crate::ops) fn bind(&self, index: u32, factors: u32) -> Vec<Binding<'_>> {
        match &self.stored {
            Stored::F32(rows) | Stored::Both { rows, .. } => vec![rows.bind(index)],
            Stored::Tiled { tiles, .. } => vec![tiles.bind(index), tiles.bind_factors(factors)],
        }
    }

    /// Tiles from one column of them to the next, where tiles alone are stored, else 0.
    pub(in crate::ops) fn tile_stride(&self) -> u32 {
        match &self.stored {
            Stored::Tiled { tiles, .. } => tiles.tiles(),
            _ => 0,
        }
    }

    /// The factors of a row of `cols` columns, and floats from one to the next, where tiles are stored: see [`Packed`].
    pub(in crate::ops) fn factors_of_row(&self, cols: usize) -> (u32, u32) {
        self.tiles().map_or((1, 0), |tiles| tiles.factors_of_row(cols))
    }

    /// The values as a product left them in [`Act::halves`]: tiles that no reader has to pack.
    pub(in crate::ops) fn left_in(self, halves: Packed) -> Act {
        let staging = self.staging();
        Act { stored: Stored::Tiled { tiles: halves, staging: Some(staging), by_reader: false }, ..self }
    }

    /// The sizes of a kernel that reads or writes either storage.
    pub(in crate::ops) fn sizes(&self) -> [(&'static str, u32); 1] {
        [("MATRICES", u32::from(!self.has_rows()))]
    }
}
