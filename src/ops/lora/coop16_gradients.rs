//! Gradients of an adapter's matrices on cooperative matrices of 16×16: those of `A` and of several `B` in one dispatch, where the rows are
//! few.

use crate::gpu::{Binding, Kernel, Recorder};
use crate::ops::Param;
use crate::ops::View;
use crate::ops::lora::{FEW, coop16};
use crate::ops::pack::Packed;

/// Twin of `Params` in shaders/lora/coop16_gradients.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    gradients: GradientParams,
}

/// The part of a kernel's parameters that shaders/common/adapter_gradients.wgsl reads.
#[repr(C)]
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
pub(in crate::ops) struct GradientParams {
    b_scale: f32,
    z_stride4: u32,
    u_stride4: u32,
    tiles_0: u32,
    cols_0: u32,
    ranks4_0: u32,
    offset4_0: u32,
    end_0: u32,
    tiles_1: u32,
    cols_1: u32,
    ranks4_1: u32,
    offset4_1: u32,
    end_1: u32,
    tiles_2: u32,
    cols_2: u32,
    ranks4_2: u32,
    offset4_2: u32,
    end_2: u32,
    tiles_a: u32,
    cols_a: u32,
    ranks4_a: u32,
    offset4_a: u32,
    end_a: u32,
}

/// One gradient, and the operands of its product.
#[derive(Clone, Copy)]
pub struct Gradient<'a> {
    /// `dB` `[N, R]` or `dA` `[Σ R, K]`, to which the product is added.
    pub matrix: &'a Param,
    /// `dy` `[rows, N]` or `x` `[rows, K]`.
    pub wide: &'a Packed,
    /// `z` `[rows, R]` or `u` `[rows, Σ R]`.
    pub thin: View<'a>,
}

/// Most `B` whose gradients one call makes.
pub const MOST: usize = 3;

/// Gradients that workgroups of their own compute, in a dispatch of this op or behind the workgroups of a product: they seldom fill a device,
/// and nothing waits for them before the optimizer.
pub struct Beside<'a> {
    pub(in crate::ops) params: GradientParams,
    pub(in crate::ops) bindings: Vec<Binding<'a>>,
    pub(in crate::ops) sizes: [(&'static str, u32); 4],
    pub(in crate::ops) workgroups: u32,
    rows: usize,
}

impl<'a> Beside<'a> {
    /// `dB += scale·dyᵀ·z` for each of `b` and, where `a` is given, `dA += uᵀ·x`, each a sum over at most [`FEW`] rows.
    ///
    /// # Panics
    /// If `b` has no gradient or more than [`MOST`], or if their `z` are not columns of the same rows: the kernel binds these once.
    pub fn new(b: &[Gradient<'a>], a: Option<Gradient<'a>>, scale: f32, rows: usize) -> Beside<'a> {
        assert!((1..=MOST).contains(&b.len()), "gradients of {} B in one call", b.len());
        let z = b[0].thin.rows;
        let are_same = |b: &Gradient| b.thin.rows.place() == z.place() && b.thin.rows.stride == z.stride;
        assert!(b.iter().all(are_same), "z of every B lies in the same rows");
        let mut bindings = vec![z.bind(7)];
        for (at, one) in (8..).step_by(3).zip(b) {
            bindings.extend([one.wide.bind(at), one.wide.bind_factors(at + 1), one.matrix.bind(at + 2)]);
        }
        if let Some(a) = a {
            bindings.extend([
                a.wide.bind(17),
                a.wide.bind_factors(18),
                a.thin.rows.bind(19),
                a.matrix.bind(20),
            ]);
        }
        let params = params(b, a, scale);
        Beside { params, bindings, sizes: sizes(b.len(), a.is_some()), workgroups: params.end_a, rows }
    }

    /// Computes them in a dispatch of their own.
    pub fn dispatch(self, rec: &mut Recorder) {
        let kernel = Kernel::new("lora/coop16_gradients", "gradients").with_sizes(self.sizes);
        let params = Params { rows: self.rows as u32, gradients: self.params };
        rec.dispatch(kernel, &params, &self.bindings, [self.workgroups, 1, 1]);
    }
}

/// See [`Beside::new`], over any number of rows.
pub fn gradients(rec: &mut Recorder, b: &[Gradient], a: Option<Gradient>, scale: f32, rows: usize) {
    if rows <= FEW {
        return Beside::new(b, a, scale, rows).dispatch(rec);
    }
    b.iter().for_each(|b| coop16::gradient_b(rec, b.matrix, b.wide, b.thin, scale, rows));
    if let Some(a) = a {
        coop16::gradient_a(rec, a.matrix, a.thin, a.wide, rows);
    }
}

fn params(b: &[Gradient], a: Option<Gradient>, scale: f32) -> GradientParams {
    let mut end = 0;
    let [first, second, third] = [0, 1, 2].map(|i| {
        let Some(b) = b.get(i) else { return ([0; 4], end) };
        end += workgroups(b.matrix.rows, b.matrix.cols);
        (b.numbers(b.matrix.rows, b.matrix.cols), end)
    });
    let ([tiles_0, cols_0, ranks4_0, offset4_0], end_0) = first;
    let ([tiles_1, cols_1, ranks4_1, offset4_1], end_1) = second;
    let ([tiles_2, cols_2, ranks4_2, offset4_2], end_2) = third;
    let [tiles_a, cols_a, ranks4_a, offset4_a] =
        a.map_or([0; 4], |a| a.numbers(a.matrix.cols, a.matrix.rows));
    GradientParams {
        b_scale: scale,
        z_stride4: b[0].thin.stride4(),
        u_stride4: a.map_or(0, |a| a.thin.stride4()),
        tiles_0,
        cols_0,
        ranks4_0,
        offset4_0,
        end_0,
        tiles_1,
        cols_1,
        ranks4_1,
        offset4_1,
        end_1,
        tiles_2,
        cols_2,
        ranks4_2,
        offset4_2,
        end_2,
        tiles_a,
        cols_a,
        ranks4_a,
        offset4_a,
        end_a: end_2 + a.map_or(0, |a| workgroups(a.matrix.cols, a.matrix.rows)),
    }
}

/// A kernel's sizes for the gradients of `members` `B`, at most [`MOST`], and of `A`; of none where there are no members.
pub fn sizes(members: usize, of_a: bool) -> [(&'static str, u32); 4] {
    [("GRADIENTS", members > 0), ("SECOND", members > 1), ("THIRD", members > 2), ("OF_A", of_a)]
        .map(|(name, on)| (name, u32::from(on)))
}

impl Gradient<'_> {
    /// Fields of [`Params`] from `tiles` to `offset4`; `cols` are those of the wide operand, `ranks` those of the thin one.
    fn numbers(&self, cols: usize, ranks: usize) -> [u32; 4] {
        [self.wide.tiles(), cols as u32, (ranks / 4) as u32, self.thin.offset4()]
    }
}

/// Workgroups of a gradient: each makes 64 by 16 values.
fn workgroups(cols: usize, ranks: usize) -> u32 {
    (cols.div_ceil(64) * ranks.div_ceil(16)) as u32
}
