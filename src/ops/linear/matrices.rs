//! Products of tiles on 16×16 matrices: by a kernel of CUDA, where they are long enough, or by the device's own.

use super::coop16::{self, Product};
use super::cuda;
use crate::gpu::Recorder;
use crate::ops::lora::coop16_gradients::Beside;
use crate::ops::partial_sums::Unsummed;
use crate::ops::pass::Operands;

/// See [`coop16::forward_onto`]; nothing is left in parts where a kernel of CUDA runs.
pub fn forward(rec: &mut Recorder, scratch: &Operands, product: &Product, unsummed: Option<&mut Unsummed>) {
    let &Product { w, rows, .. } = product;
    match &scratch.panels {
        Some(panels) if cuda::is_worth(rec, [rows, w.rows, w.cols]) => {
            cuda::forward(rec, panels, product, None);
        }
        _ => coop16::forward_onto(rec, product, unsummed),
    }
}

/// See [`coop16::backward_onto`]; nothing is left in parts where a kernel of CUDA runs.
pub fn backward(
    rec: &mut Recorder,
    scratch: &Operands,
    product: &Product,
    unsummed: Option<&mut Unsummed>,
    beside: Option<Beside>,
) {
    let &Product { w, rows, .. } = product;
    match &scratch.panels {
        Some(panels) if cuda::is_worth(rec, [rows, w.cols, w.rows]) => {
            if let Some(beside) = beside {
                beside.dispatch(rec);
            }
            cuda::backward(rec, panels, product);
        }
        _ => coop16::backward_onto(rec, product, unsummed, beside),
    }
}
