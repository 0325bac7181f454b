//! The sizes that all kernels of gated units share.

use crate::base::config::Activation;

/// The sizes of the shaders that import shaders/common/activation.wgsl.
pub fn sizes(activation: Activation) -> [(&'static str, u32); 2] {
    let is = |other| u32::from(activation == other);
    [("GELU", is(Activation::Gelu)), ("OAI", is(Activation::SwigluOai))]
}
