//! The storage of activations: rows of f32, or f16 tiles.

use crate::base::config::{Config, LayerConfig};
use crate::gpu::{Gpu, GpuError};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::attention::coop16;
use crate::ops::heads;
use crate::ops::pack::{Packed, block_factor_bytes, packed_bytes};

/// Use of an activation, which decides its storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Kernels for f32 read it.
    Plain,
    /// Products read it, or kernels that write what products read.
    Operand,
    /// A gated unit reads it, which rounds what products leave in f32 as their operands.
    Gate,
    /// A norm behind a product reads it: rounded as a block's output.
    Result,
    /// The output projection of attention or of a delta net reads it: an operand, unless heads are in parts, which write f32.
    MixerOutput,
    /// Attention reads it.
    Heads,
    /// Norms of heads read it before attention does.
    RawHeads,
    /// A block's input or output, or the input of a norm behind a product: rounded to f16 where products round their operands to that as
    /// well, at every choice of what layers keep, so that no bit depends on that choice.
    Block,
}

/// Storage of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Rows of f32.
    F32,
    /// f16 tiles.
    Tiled,
    /// f16 tiles with a factor for every 256 columns of a row: see [`Packed`].
    Blocks,
}

/// Storage of the activations of each role in a run.
#[derive(Clone, Copy, Debug)]
pub struct Storages {
    /// Whether products run on 16×16 matrices.
    pub tiles: bool,
    /// Whether products may leave f16 blocks.
    pub blocks: bool,
    /// Whether adapters read their inputs under a dropout mask, which is computed in f32.
    pub masked: bool,
    /// Whether attention runs on 16×16 matrices: it supports some head sizes.
    pub heads: bool,
    /// Whether nothing but the kernels of heads reads queries, keys and values before their norms there.
    pub raw_heads: bool,
    /// Whether the heads of any layer are in parts.
    pub parted: bool,
}

impl Storages {
    /// The storages of a training run.
    pub fn new(gpu: &Gpu, config: &Config, masked: bool) -> Storages {
        let tiles = gpu.kernels().reads_tiles();
        let on_tiles = |l: &LayerConfig| {
            coop16::supports(l.head_size) && heads::coop16::supports(l.rotated.unwrap_or(0))
        };
        let heads = tiles && config.layers.iter().all(|l| !l.has_attention() || on_tiles(l));
        let reads_rows =
            |l: &LayerConfig| !l.has_attention() || l.output_gate || l.k_eq_v || l.latent.is_some();
        let raw_heads = !config.layers.iter().any(reads_rows);
        let blocks = tiles && gpu.kernels().cuda().is_some();
        Storages { tiles, blocks, masked, heads, raw_heads, parted: false }
    }

    /// The storages where the heads of some layers are in parts.
    pub fn in_parts(self) -> Storages {
        Storages { raw_heads: false, parted: true, ..self }
    }

    /// The storage of `role`.
    pub fn of(self, role: Role) -> Storage {
        let tiled = |yes: bool| if yes { Storage::Tiled } else { Storage::F32 };
        // Tiles that a product may write.
        let left = |yes: bool| if yes && self.blocks { Storage::Blocks } else { tiled(yes) };
        match role {
            Role::Plain => Storage::F32,
            Role::Operand => tiled(self.tiles && !self.masked),
            Role::Gate => left(self.tiles && !self.masked),
            Role::MixerOutput => tiled(self.tiles && !self.masked && !self.parted),
            Role::Heads => tiled(self.heads),
            Role::RawHeads => left(self.heads && self.raw_heads),
            Role::Block => tiled(self.tiles),
            Role::Result => left(self.tiles),
        }
    }
}

impl Storage {
    /// Bytes of `rows` rows of `width` values.
    pub fn bytes(self, rows: usize, width: usize) -> u64 {
        let f32 = (rows * width.next_multiple_of(4) * 4) as u64;
        let tiles = packed_bytes(rows, width);
        match self {
            _ if width == 0 => 0,
            Storage::F32 => f32,
            Storage::Tiled => tiles + 4 * rows as u64,
            Storage::Blocks => tiles + block_factor_bytes(rows, width),
        }
    }

    /// Bytes of the values' buffer; the factors of tiles have a buffer of their own.
    pub fn value_bytes(self, rows: usize, width: usize) -> u64 {
        match self {
            Storage::Tiled | Storage::Blocks if width > 0 => packed_bytes(rows, width),
            _ => Storage::F32.bytes(rows, width),
        }
    }

    /// Bytes of each buffer of `rows` rows of `width` values, all of them above 0.
    pub fn buffer_bytes(self, rows: usize, width: usize) -> Vec<u64> {
        match self {
            Storage::F32 => vec![self.bytes(rows, width)],
            Storage::Tiled => vec![packed_bytes(rows, width), 4 * rows as u64],
            Storage::Blocks => vec![packed_bytes(rows, width), block_factor_bytes(rows, width)],
        }
    }

    /// Allocates `rows` rows of `width` values.
    pub fn make(self, gpu: &Gpu, label: &str, rows: usize, width: usize) -> Result<Act, GpuError> {
        let f32 = || Rows::new(gpu, label, if width == 0 { 0 } else { rows }, width);
        Ok(match self {
            _ if width == 0 => f32()?.into(),
            Storage::F32 => f32()?.into(),
            Storage::Tiled => Act::tiled(Packed::new(gpu, label, rows, width)?, None),
            Storage::Blocks => Act::tiled(Packed::in_blocks(gpu, label, rows, width)?, None),
        })
    }
}
