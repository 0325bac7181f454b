//! Attention over packed samples, with heads of some sizes.

use rullama_train::cases::attention::{both_ways, of_heads};
use rullama_train::gpu::Gpu;

use super::check::{Outcome, each};

/// `out` and the log-sum-exp; `dq`; `dk` and `dv`, which are added to their buffers.
pub fn forward_and_backward(gpu: &Gpu, sizes: &[usize]) -> Outcome {
    each(gpu, "attention", &of_heads(sizes, gpu.kernels().reads_tiles()), both_ways)
}
