//! How activations are stored: rows of f32, f16 tiles, or both.

use crate::gpu::{Gpu, GpuError};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::pack::{Packed, packed_bytes};

/// Use of an activation, which decides its storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Kernels for f32 read it.
    Plain,
    /// Only products read it.
    Operand,
    /// Products read it, and something else.
    OperandAndRows,
    /// Attention reads it.
    Heads,
    /// A block's input or output: rounded to f16 where products round what they read to that as well, at every choice of what
    /// layers keep, so that no bit depends on that choice.
    Block,
}

/// Storage of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Rows of f32.
    F32,
    /// f16 tiles.
    Tiled,
    /// Both.
    Both,
}

/// Storage of the activations of each role in a run.
#[derive(Clone, Copy, Debug)]
pub struct Storages {
    /// Whether products run on 16×16 matrices.
    pub tiles: bool,
    /// Whether adapters read their inputs under a dropout mask, which is computed in f32.
    pub masked: bool,
    /// Whether attention runs on 16×16 matrices: it supports some head sizes.
    pub heads: bool,
}

impl Storages {
    /// The storage of `role`.
    pub fn of(self, role: Role) -> Storage {
        let tiled = |yes: bool| if yes { Storage::Tiled } else { Storage::F32 };
        match role {
            Role::Plain => Storage::F32,
            Role::Operand => tiled(self.tiles && !self.masked),
            Role::OperandAndRows if self.tiles && !self.masked => Storage::Both,
            Role::OperandAndRows => Storage::F32,
            Role::Heads => tiled(self.heads),
            Role::Block => tiled(self.tiles),
        }
    }
}

impl Storage {
    /// Bytes of `rows` rows of `width` values.
    pub fn bytes(self, rows: usize, width: usize) -> u64 {
        let f32 = (rows * width.next_multiple_of(4) * 4) as u64;
        let tiles = packed_bytes(rows, width) + 4 * rows as u64;
        match self {
            _ if width == 0 => 0,
            Storage::F32 => f32,
            Storage::Tiled => tiles,
            Storage::Both => f32 + tiles,
        }
    }

    /// Bytes of the values' buffer; the factors of tiles have a buffer of their own.
    pub fn value_bytes(self, rows: usize, width: usize) -> u64 {
        match self {
            Storage::Tiled if width > 0 => packed_bytes(rows, width),
            _ => Storage::F32.bytes(rows, width),
        }
    }

    /// Allocates `rows` rows of `width` values.
    pub fn make(self, gpu: &Gpu, label: &str, rows: usize, width: usize) -> Result<Act, GpuError> {
        let f32 = || Rows::new(gpu, label, if width == 0 { 0 } else { rows }, width);
        Ok(match self {
            _ if width == 0 => f32()?.into(),
            Storage::F32 => f32()?.into(),
            Storage::Tiled => Act::tiled(Packed::new(gpu, label, rows, width)?, None),
            Storage::Both => Act::both(f32()?, Packed::new(gpu, label, rows, width)?),
        })
    }
}
