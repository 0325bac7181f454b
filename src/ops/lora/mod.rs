//! Gradients of the adapter's matrices. Their forward products are [`crate::ops::linear`]'s.

pub mod backward;
pub mod cached;
pub mod coop16;
pub mod coop16_gradients;
pub mod coop16_project;
pub mod cuda;
mod group;
pub mod grouped;
mod term;

pub use group::{Group, Input, Lora, Member, PerInput, Trained};
pub(in crate::ops) use term::Term;

use crate::gpu::{Kernel, Recorder};
use crate::ops::Param;
use crate::ops::STEPS;
use crate::ops::View;
use crate::ops::partial_sums::{self, Target};

/// Most rows of a gradient whose sum one workgroup of [`coop16_gradients`] makes. With more, the sum in parts is faster, although a second pass adds them up.
pub const FEW: usize = 1024;

/// Twin of `Params` in shaders/lora/tiled.wgsl.
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
    part_steps: u32,
    accumulate: u32,
}

/// `dW += scale·pᵀ·q` for `p` `[rows, N]`, `q` `[rows, M]`, `dW` `[N, M]`: `dB` from `dy` and `z`, `dA` from `u` and `x`.
pub fn gradient(rec: &mut Recorder, dweight: &Param, p: View, q: View, scale: f32, rows: usize) {
    assert!(dweight.rows.is_multiple_of(4), "rows past the matrix would be written");
    let [p_cols4, q_cols4] = [dweight.rows / 4, dweight.cols / 4].map(|n| n as u32);
    let all = Params {
        rows: rows as u32,
        p_cols4,
        p_stride4: p.stride4(),
        p_offset4: p.offset4(),
        q_cols4,
        q_stride4: q.stride4(),
        q_offset4: q.offset4(),
        scale,
        part_steps: 0,
        accumulate: 1,
    };
    let [from, to] = [p.rows.bind(1), q.rows.bind(2)];
    if let Some(lanes) = rec.gpu().kernels().software_lanes() {
        let kernel = Kernel::new("lora/software", "gradient").with_lanes(lanes);
        let workgroups = [q_cols4.div_ceil(lanes), p_cols4.div_ceil(lanes), 1];
        return rec.dispatch(kernel, &all, &[from, to, dweight.bind(3)], workgroups);
    }
    let [across, down] = [q_cols4.div_ceil(16), p_cols4.div_ceil(16)];
    let steps = rows.div_ceil(STEPS);
    let target = Target {
        y: dweight.bind(3),
        rows: dweight.rows as u32,
        cols4: q_cols4,
        stride4: q_cols4,
        offset4: 0,
        accumulate: true,
    };
    let wanted = partial_sums::usual_parts(rec.gpu(), across * down, steps, 1);
    partial_sums::split(rec, &target, wanted, steps, |rec, parts| {
        let params = Params { part_steps: parts.steps, accumulate: parts.accumulate, ..all };
        let bindings = [from, to, parts.result];
        let kernel = Kernel::new("lora/tiled", "gradient").with_size("HIGH", 2);
        rec.dispatch(kernel, &params, &bindings, [across, down, parts.count]);
    });
}
