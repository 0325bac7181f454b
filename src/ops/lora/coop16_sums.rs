//! The end of a split product with a thin matrix: adds up its parts and packs the sum.

use crate::gpu::{Binding, Kernel, Recorder, grid};
use crate::ops::pack::Packed;
use crate::ops::partial_sums::Target;

/// Twin of `Params` in shaders/lora/coop16_sums.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    cols4: u32,
    packed4: u32,
    parts: u32,
    y_stride4: u32,
    y_offset4: u32,
}

/// Adds up `parts` results in the device's scratch. Stores the sum in `target`, and in `packed` as [`Packed::pack_alike`] does, scaled as
/// the rows of `wide`.
pub fn sum(rec: &mut Recorder, target: &Target, parts: u32, packed: &Packed, wide: &Packed) {
    let params = Params {
        rows: target.rows,
        tiles: packed.tiles(),
        cols4: target.cols4,
        packed4: target.cols4.next_multiple_of(16),
        parts,
        y_stride4: target.stride4,
        y_offset4: target.offset4,
    };
    let scratch = Binding { index: 1, buffer: rec.gpu().partial_sums(), range: None };
    let bindings = [scratch, wide.bind_factors(2), Binding { index: 3, ..target.y }, packed.bind(4)];
    let count = (params.rows.next_multiple_of(16) * params.packed4) as usize;
    rec.dispatch(Kernel::new("lora/coop16_sums", "sum"), &params, &bindings, grid(count.div_ceil(64)));
}
