//! Gradients of the adapter's matrices. Their forward products are [`super::linear`]'s.

use super::{Param, View};
use crate::gpu::{Kernel, Recorder};

/// Twin of `Params` in shaders/lora.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    p_cols4: u32,
    p_stride4: u32,
    p_offset4: u32,
    q_cols4: u32,
    q_stride4: u32,
    q_offset4: u32,
    scale: f32,
}

/// `dW += scale·pᵀ·q` for `p` `[rows, N]`, `q` `[rows, M]`, `dW` `[N, M]`: `dB` from `dy` and `z`, `dA` from `u` and `x`.
pub fn gradient(rec: &mut Recorder, dweight: &Param, p: View, q: View, scale: f32, rows: usize) {
    let params = Params {
        rows: rows as u32,
        p_cols4: dweight.rows.div_ceil(4) as u32,
        p_stride4: p.stride4(),
        p_offset4: p.offset4(),
        q_cols4: (dweight.cols / 4) as u32,
        q_stride4: q.stride4(),
        q_offset4: q.offset4(),
        scale,
    };
    let workgroups = [params.q_cols4.div_ceil(16), params.p_cols4.div_ceil(16), 1];
    rec.dispatch(
        Kernel::new("lora", "gradient"),
        &params,
        &[p.rows.bind(1), q.rows.bind(2), dweight.bind(3)],
        workgroups,
    );
}
