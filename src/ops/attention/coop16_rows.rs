//! Row values for the backward of [`crate::ops::attention::coop16`]: the log-sum-exp, and `Σ dout·out`.

use crate::gpu::{Binding, Kernel, Recorder, grid};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::attention::Attention;
use crate::ops::pack::Packed;

/// Twin of `Params` in shaders/attention/coop16_rows.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    heads: u32,
    head_size4: u32,
    tiles: u32,
}

/// Computes `rows` `[T, H, 2]`: the log-sum-exp, and `Σ dout·out` in units of the factor that undoes the scaling of `packed`'s row.
///
/// `out` and `dout` are `[T, H·K]`, `lse` is `[T, H]`; `packed` is `dout` packed. `out` may be packed, unscaled.
pub fn forward(
    rec: &mut Recorder,
    rows: Binding,
    attention: &Attention,
    out: &Act,
    dout: &Rows,
    packed: &Packed,
    lse: &Rows,
) {
    let params = Params {
        rows: attention.rows as u32,
        heads: attention.heads as u32,
        head_size4: (attention.head_size / 4) as u32,
        tiles: out.tile_stride(),
    };
    let rows = Binding { index: 5, ..rows };
    let values = out.bind(1, 0)[0];
    let bindings = [values, dout.bind(2), packed.bind_factors(3), lse.bind(4), rows];
    let all = grid(attention.rows * attention.heads);
    let kernel = Kernel::new("attention/coop16_rows", "forward").with_sizes(out.sizes());
    rec.dispatch(kernel, &params, &bindings, all);
}
