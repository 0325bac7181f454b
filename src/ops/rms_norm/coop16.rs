//! [`crate::ops::rms_norm`] and its gradient into operands of products on cooperative matrices, and its gradient onto rows of f32.

use crate::gpu::{Binding, Kernel, Kernels, Recorder, grid};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::norm::Norm;
use crate::ops::pack::Packed;
use crate::ops::partial_sums;

/// The threads that compute rows: see shaders/common/norm.wgsl.
pub(in crate::ops) struct Workgroup {
    rows: usize,
    threads: usize,
    /// Subgroups whose lanes add up first; 0 where none do.
    warps: usize,
}

impl Workgroup {
    /// That for rows of `packed4` vec4s on a device with these kernels. In CUDA, a thread has at most eight vec4s, if that is possible: with
    /// 16 they take so many registers that a multiprocessor has one workgroup, and memory waits for its sums.
    pub fn new(kernels: Kernels, packed4: usize) -> Workgroup {
        match kernels.cuda() {
            None => Workgroup { rows: 4, threads: 64, warps: 0 },
            Some(_) if packed4 <= 8 * 128 => Workgroup { rows: 2, threads: 128, warps: 8 },
            Some(_) => Workgroup { rows: 1, threads: 256, warps: 8 },
        }
    }

    /// The shaders' sizes.
    pub fn sizes(&self, packed4: usize) -> [(&'static str, u32); 4] {
        let each = packed4.div_ceil(self.threads);
        [("EACH", each), ("ROWS", self.rows), ("THREADS", self.threads), ("WARPS", self.warps)]
            .map(|(name, value)| (name, value as u32))
    }

    /// The workgroups for `rows` rows.
    pub fn grid(&self, rows: usize) -> [u32; 3] {
        grid(rows.next_multiple_of(16) / self.rows)
    }
}

/// Twin of `Params` in shaders/rms_norm/coop16.wgsl.
#[repr(C)]
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    x_tiles: u32,
    x_blocks: u32,
    added_tiles: u32,
    added_blocks: u32,
    width4: u32,
    packed4: u32,
    eps: f32,
    added_eps: f32,
    scale: f32,
    parts: u32,
    dy_tiles: u32,
    dy_blocks: u32,
}

/// The gradient of a norm's output.
#[derive(Clone, Copy)]
pub enum Gradient<'a> {
    /// Rows of f32; or above 0 parts their sum: see [`crate::ops::partial_sums::Unsummed`].
    Rows(&'a Rows, u32),
    /// f16 blocks.
    Halves(&'a Packed),
}

/// A norm that a gradient passes: what the norm read, and where the gradient of that goes.
#[derive(Clone, Copy)]
pub struct Through<'a> {
    /// The result.
    pub dx: &'a Packed,
    /// The norm's input.
    pub x: &'a Act,
    /// The norm.
    pub norm: &'a Norm,
}

/// `y = norm(x)` over `rows` rows, for a norm with weights; every row of `y` is scaled as [`Packed::pack`] does.
pub fn forward(rec: &mut Recorder, y: &Packed, x: &Rows, norm: &Norm, rows: usize) {
    let bindings = [x.bind(1), norm.weights(rec, 2), y.bind(3), y.bind_factors(4)];
    let params = Params { tiles: y.tiles(), ..params(norm, rows) };
    dispatch(rec, "forward", &[], params, &bindings);
}

/// The gradient of `x`, which may come packed, from `dy`, likewise.
pub fn backward(rec: &mut Recorder, dx: &Packed, dy: &Rows, x: &Act, norm: &Norm, rows: usize) {
    let mut kernel = Backward::new(norm, rows, dy.bind(5), 1);
    kernel.pass(rec, Through { dx, x, norm });
    kernel.dispatch(rec);
}

/// `dx = scale·(dx + (∂norm/∂x)ᵀ·dy)` in f32, for a norm with weights; `x` may come packed. The
/// gradient `dx` then goes `through` another norm of the same width, with weights, or is packed as it is where that is none.
pub fn backward_add(
    rec: &mut Recorder,
    dx: &Rows,
    dy: Gradient,
    x: &Act,
    norm: &Norm,
    rows: usize,
    scale: f32,
    through: Option<Through>,
) {
    let mut kernel = match dy {
        Gradient::Rows(dy, parts) => {
            Backward::new(norm, rows, partial_sums::operand(rec, dy, parts, 5), parts.max(1))
        }
        Gradient::Halves(dy) => Backward::of_halves(norm, rows, dy),
    };
    let (added_tiles, added_blocks) = (x.tile_stride(), x.factors_of_row(norm.width).1);
    kernel.params = Params { added_tiles, added_blocks, added_eps: norm.eps, scale, ..kernel.params };
    kernel.sizes.extend([("ADDS", 1), ("ADDED_MATRICES", u32::from(x.tile_stride() > 0))]);
    kernel.bindings.push(dx.bind(6));
    kernel.bindings.extend(x.bind(9, 10));
    kernel.bindings.push(norm.weights(rec, 11));
    if let Some(through) = through {
        kernel.pass(rec, through);
    }
    kernel.dispatch(rec);
}

/// `dy += Σ parts` in f32, of `parts` parts in the device's scratch; the gradient `dy` then goes `through` a norm.
pub fn backward_of_sum(rec: &mut Recorder, dy: &Rows, parts: u32, through: Through, rows: usize) {
    let mut kernel = Backward::new(through.norm, rows, partial_sums::in_scratch(rec, 5), parts);
    kernel.sizes.push(("SUMS", 1));
    kernel.bindings.push(dy.bind(6));
    kernel.pass(rec, through);
    kernel.dispatch(rec);
}

/// A dispatch of the kernel's backward, as far as it is known.
struct Backward<'a> {
    params: Params,
    sizes: Vec<(&'static str, u32)>,
    bindings: Vec<Binding<'a>>,
}

impl<'a> Backward<'a> {
    fn new(norm: &Norm, rows: usize, dy: Binding<'a>, parts: u32) -> Backward<'a> {
        Backward { params: Params { parts, ..params(norm, rows) }, sizes: Vec::new(), bindings: vec![dy] }
    }

    fn of_halves(norm: &Norm, rows: usize, dy: &'a Packed) -> Backward<'a> {
        let mut kernel = Backward::new(norm, rows, dy.bind(5), 1);
        kernel.params.dy_tiles = dy.tiles();
        kernel.params.dy_blocks = dy.factors_of_row(norm.width).1;
        kernel.sizes.push(("HALVES", 1));
        kernel.bindings.push(dy.bind_factors(12));
        kernel
    }

    fn pass(&mut self, rec: &Recorder<'a>, Through { dx, x, norm }: Through<'a>) {
        let (tiles, x_tiles) = (dx.tiles(), x.tile_stride());
        let x_blocks = x.factors_of_row(norm.width).1;
        self.params = Params { tiles, x_tiles, x_blocks, eps: norm.eps, ..self.params };
        self.sizes.extend([("PACKS", 1), norm.size(), ("MATRICES", u32::from(x.tile_stride() > 0))]);
        self.bindings.extend([dx.bind(3), dx.bind_factors(4)]);
        if !norm.identity {
            self.bindings.extend(x.bind(1, 8));
            self.bindings.push(norm.weights(rec, 2));
        }
    }

    fn dispatch(&self, rec: &mut Recorder) {
        dispatch(rec, "backward", &self.sizes, self.params, &self.bindings);
    }
}

fn params(norm: &Norm, rows: usize) -> Params {
    Params {
        rows: rows as u32,
        width4: (norm.width / 4) as u32,
        packed4: (norm.width.next_multiple_of(64) / 4) as u32,
        eps: norm.eps,
        ..Params::default()
    }
}

/// Runs the kernel with those of its sizes that are not 0.
fn dispatch(
    rec: &mut Recorder,
    entry: &'static str,
    sizes: &[(&'static str, u32)],
    params: Params,
    bindings: &[Binding],
) {
    let packed4 = params.packed4 as usize;
    let workgroup = Workgroup::new(rec.gpu().kernels(), packed4);
    let size = |name| sizes.iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| *value);
    let stores = size("ADDS").max(size("SUMS"));
    let names = ["ADDS", "ADDED_MATRICES", "SUMS", "PACKS", "IDENTITY", "MATRICES", "HALVES"];
    let kernel = Kernel::new("rms_norm/coop16", entry)
        .with_sizes(workgroup.sizes(packed4))
        .with_size("STORES", stores)
        .with_sizes(names.map(|name| (name, size(name))));
    rec.dispatch(kernel, &params, bindings, workgroup.grid(params.rows as usize));
}
