//! Products with weights of every format, with and without the adapter's term.

use rullama_train::base::formats::GgmlType;
use rullama_train::cases::experts::products as experts;
use rullama_train::cases::product::{self, Shape, head};
use rullama_train::cases::products::{
    backward as back, backward_in_cuda, forward as product, forward_in_cuda,
};
use rullama_train::cases::weight;
use rullama_train::gpu::{Gpu, GpuOptions, Tier};
use rullama_train::ops::Weight;

use super::check::{Outcome, each};

/// A random weight on the device, in pieces with `tiled`, and its values from the decoder of src/base.
pub fn random_weight(gpu: &Gpu, ty: GgmlType, rows: usize, cols: usize, tiled: bool) -> (Weight, Vec<f64>) {
    weight::random(gpu, ty, rows, cols, tiled).expect("a small matrix")
}

/// Products of the device's kernels, and in f32 those of a head.
pub fn forward(gpu: &Gpu, formats: &[GgmlType]) -> Outcome {
    let mut shapes = shapes(gpu, formats);
    if gpu.kernels().tier() == Tier::F32 {
        shapes.extend([GgmlType::Q6_K, GgmlType::F32].map(head));
    }
    each(gpu, "linear forward", &shapes, product)
}

/// Their gradients, and in f32 one more that is written, with an adapter's term, and that of a head.
pub fn backward(gpu: &Gpu, formats: &[GgmlType]) -> Outcome {
    let mut shapes = shapes(gpu, formats);
    if gpu.kernels().tier() == Tier::F32 {
        let written = |ty: &GgmlType| Shape { accumulate: false, ..product::of_rows(*ty)[3].clone() };
        shapes.extend(formats.iter().map(written));
        shapes.push(head(GgmlType::Q6_K));
    }
    each(gpu, "linear backward", &shapes, back)
}

fn shapes(gpu: &Gpu, formats: &[GgmlType]) -> Vec<Shape> {
    match gpu.kernels().reads_tiles() {
        true => formats.iter().flat_map(|ty| product::of_tiles(*ty)).collect(),
        false => formats.iter().flat_map(|ty| product::of_rows(*ty)).collect(),
    }
}

fn in_cuda() -> Vec<Shape> {
    GgmlType::SUPPORTED.into_iter().flat_map(product::of_cuda).collect()
}

/// Long products by CUDA's kernels.
pub fn cuda_forward(gpu: &Gpu) -> Outcome {
    each(gpu, "linear forward, CUDA", &in_cuda(), forward_in_cuda)
}

/// Their gradients.
pub fn cuda_backward(gpu: &Gpu) -> Outcome {
    each(gpu, "linear backward, CUDA", &in_cuda(), backward_in_cuda)
}

/// Long sums with few results: they are cut into parts.
pub fn cuda_split(gpu: &Gpu) -> Outcome {
    let [forward, backward] = product::of_long_sums();
    each(gpu, "linear with split sums, CUDA", &[forward], forward_in_cuda)?;
    each(gpu, "linear with split sums, CUDA, backward", &[backward], backward_in_cuda)
}

/// Products of grouped rows with the matrices of experts.
pub fn of_experts(gpu: &Gpu, formats: &[GgmlType]) -> Outcome {
    let in_cuda = gpu.kernels().cuda().is_some();
    let shapes: Vec<_> = formats.iter().flat_map(|ty| experts::of_format(*ty, in_cuda)).collect();
    each(gpu, "linear of experts", &shapes, experts::product)
}

/// The self-test of a device passes, and leaves no compiled kernels behind.
pub fn self_test(gpu: &Gpu) -> Outcome {
    let fresh = pollster::block_on(Gpu::open(GpuOptions::default()))?;
    pollster::block_on(fresh.self_test(gpu.kernels().tier()))?;
    let left = fresh.compiled();
    let expected = 0;
    if left != expected || gpu.failed_self_test().is_some() {
        return Err(format!("{left:?}, {:?}, expected {expected:?}", gpu.failed_self_test()).into());
    }
    Ok(())
}
