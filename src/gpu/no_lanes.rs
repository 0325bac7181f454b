//! Subgroups of a required size are a matter of Vulkan.

pub(super) fn supports_matrices(_: &wgpu::Adapter) -> bool {
    true
}

pub(super) fn can_be_required(_: &wgpu::Adapter) -> bool {
    false
}

pub(super) fn must_be_required(_: &wgpu::Adapter, _: Option<super::Matrices>) -> bool {
    false
}

pub(super) fn open(
    _: &wgpu::Adapter,
    _: &wgpu::DeviceDescriptor<'_>,
) -> Result<(wgpu::Device, wgpu::Queue), String> {
    Err("it is not a device of Vulkan".into())
}
