//! Columns of some rows, copied to columns of others: between rows of all heads and rows of some heads.

use crate::gpu::{Kernel, Recorder, grid};
use crate::ops::Rows;

/// Threads of a workgroup.
const THREADS: usize = 256;

/// Twin of `Params` in shaders/columns/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    count: u32,
    columns: u32,
    from_stride: u32,
    from_first: u32,
    to_stride: u32,
    to_first: u32,
}

/// Neighbouring columns of rows of all heads, and where they are in rows of some heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first of them among all.
    pub whole: usize,
    /// The first of them in the part.
    pub part: usize,
    /// Their number.
    pub count: usize,
}

impl Span {
    /// The span where each of its columns is `times` columns.
    pub fn times(self, times: usize) -> Span {
        Span { whole: times * self.whole, part: times * self.part, count: times * self.count }
    }
}

/// Copies `spans` of `rows` rows of `whole` to `part`.
pub fn take(rec: &mut Recorder, part: &Rows, whole: &Rows, spans: &[Span], rows: usize) {
    for span in spans {
        copy(rec, [part, whole], [span.part, span.whole], span.count, rows);
    }
}

/// Copies `spans` of `rows` rows of `part` to `whole`.
pub fn put(rec: &mut Recorder, whole: &Rows, part: &Rows, spans: &[Span], rows: usize) {
    for span in spans {
        copy(rec, [whole, part], [span.whole, span.part], span.count, rows);
    }
}

/// Copies `columns` columns of `rows` rows. The first of them are `firsts`, of the target and of the source.
fn copy(
    rec: &mut Recorder,
    [to, from]: [&Rows; 2],
    [to_first, from_first]: [usize; 2],
    columns: usize,
    rows: usize,
) {
    let count = rows * columns;
    let params = Params {
        count: count as u32,
        columns: columns as u32,
        from_stride: from.stride as u32,
        from_first: from_first as u32,
        to_stride: to.stride as u32,
        to_first: to_first as u32,
    };
    let kernel = Kernel::new("columns/plain", "copy");
    rec.dispatch(kernel, &params, &[from.bind(1), to.bind(2)], grid(count.div_ceil(THREADS)));
}
