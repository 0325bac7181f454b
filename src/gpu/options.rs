//! Which device is opened.

use super::{Backend, Place};

/// Which device `Gpu::open` opens, and how much of it is used. The default is the fastest kind of device, with all that it offers.
///
/// ```
/// use rullama_train::GpuOptions;
///
/// let options = GpuOptions { name: Some("H100".into()), ..GpuOptions::default() };
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuOptions {
    /// The interface that reaches the device.
    pub backend: Backend,
    /// A part of the device's name, in any case. If unset, a discrete GPU is preferred to an integrated one, and both to a software
    /// renderer.
    pub name: Option<String>,
    /// Whether the device is limited to what every WebGPU browser guarantees.
    pub webgpu_limits: bool,
    /// The place among the processes of this host, each of which gets a device of its own.
    pub place: Place,
}
