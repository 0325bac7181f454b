//! [`Act`]: an activation that knows how it is stored, so that the model does not have to.

use crate::gpu::{Binding, Recorder};
use crate::ops::Rows;
use crate::ops::pack::Packed;

/// An activation `[rows, width]` on the device.
///
/// Ops take any storage: one that needs f32 calls [`Act::f32`], one that multiplies on 16×16 matrices asks for tiles.
#[derive(Clone, Debug)]
pub struct Act {
    stored: Stored,
    kept: bool,
}

#[derive(Clone, Debug)]
enum Stored {
    /// Rows of f32.
    F32(Rows),
    /// f16 tiles. `staging` is f32 memory, shared with other activations, in which ops compute the values or unpack them.
    Tiled { tiles: Packed, staging: Option<Rows> },
    /// Rows of f32, and f16 tiles of the same values for products.
    Both { rows: Rows, tiles: Packed },
}

impl From<Rows> for Act {
    fn from(rows: Rows) -> Act {
        Act { stored: Stored::F32(rows), kept: false }
    }
}

impl Act {
    /// An activation stored as f16 tiles; `staging` is memory for its values in f32, where any op needs them.
    pub fn tiled(tiles: Packed, staging: Option<Rows>) -> Act {
        Act { stored: Stored::Tiled { tiles, staging }, kept: false }
    }

    /// An activation stored as rows of f32 and as f16 tiles.
    pub fn both(rows: Rows, tiles: Packed) -> Act {
        Act { stored: Stored::Both { rows, tiles }, kept: false }
    }

    /// Takes `staging` as memory for the f32 values of tiles; has no effect on rows of f32.
    pub fn with_staging(self, staging: Rows) -> Act {
        match self.stored {
            Stored::Tiled { tiles, .. } => {
                Act { stored: Stored::Tiled { tiles, staging: Some(staging) }, ..self }
            }
            _ => self,
        }
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
        self.view(|rows| rows.below(first), |tiles| tiles.below(first))
    }

    /// A view of the memory as rows of `width` values.
    pub fn reshaped(&self, width: usize) -> Act {
        self.view(|rows| rows.reshaped(width), Packed::clone)
    }

    /// A view of the memory with tiles laid out for `count` rows.
    pub fn for_rows(&self, count: usize) -> Act {
        self.view(Rows::clone, |tiles| tiles.for_rows(count))
    }

    /// A view of the memory: `of_rows` of all f32 rows, staging memory too, and `of_tiles` of the tiles.
    fn view(&self, of_rows: impl Fn(&Rows) -> Rows, of_tiles: impl Fn(&Packed) -> Packed) -> Act {
        let stored = match &self.stored {
            Stored::F32(rows) => Stored::F32(of_rows(rows)),
            Stored::Tiled { tiles, staging } => {
                Stored::Tiled { tiles: of_tiles(tiles), staging: staging.as_ref().map(of_rows) }
            }
            Stored::Both { rows, tiles } => Stored::Both { rows: of_rows(rows), tiles: of_tiles(tiles) },
        };
        Act { stored, kept: self.kept }
    }

    /// The f32 rows, where they are stored.
    ///
    /// # Panics
    /// If the activation is stored as tiles alone: a mistake in the table of buffers.
    pub fn rows(&self) -> &Rows {
        match &self.stored {
            Stored::F32(rows) | Stored::Both { rows, .. } => rows,
            Stored::Tiled { .. } => panic!("this activation is stored as f16 tiles"),
        }
    }

    /// The f16 tiles, where they are stored.
    pub fn tiles(&self) -> Option<&Packed> {
        match &self.stored {
            Stored::F32(_) => None,
            Stored::Tiled { tiles, .. } | Stored::Both { tiles, .. } => Some(tiles),
        }
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

    /// Packs `count` rows that an op left in [`Act::staging`], where tiles are stored.
    pub fn store(&self, rec: &mut Recorder, count: usize) {
        if let Some(tiles) = self.tiles() {
            let rows = self.staging();
            tiles.pack(rec, rows.all(), rows.stride, count);
        }
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

    /// The sizes of a kernel that reads or writes either storage.
    pub(in crate::ops) fn sizes(&self) -> [(&'static str, u32); 1] {
        [("MATRICES", u32::from(!self.has_rows()))]
    }
}
