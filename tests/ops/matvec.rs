//! Products of a few rows with weights of every format.

use rullama_train::base::formats::GgmlType;
use rullama_train::cases::matvec;
use rullama_train::gpu::Gpu;

use super::check::{Outcome, each};

pub fn forward(gpu: &Gpu, formats: &[GgmlType]) -> Outcome {
    each(gpu, "matvec", &matvec::few_rows(formats), matvec::product)
}

pub fn wide_rows(gpu: &Gpu, formats: &[GgmlType]) -> Outcome {
    each(gpu, "matvec, wide rows", &matvec::wide_rows(formats), matvec::product)
}

pub fn gated(gpu: &Gpu, formats: &[GgmlType]) -> Outcome {
    each(gpu, "matvec, gated", &matvec::gates(formats), matvec::gated_product)
}
