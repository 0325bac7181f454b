//! Bindings of more than 2 GiB, which wgpu does not offer: some drivers compute a binding's addresses as signed numbers of 32 bits.

use wgpu::hal::api::Vulkan as Hal;

use super::backend::NVIDIA;

/// `adapter` with bindings as long as its driver allows, where that is NVIDIA's for Vulkan: 4 GiB, of which llama.cpp makes use too.
pub(super) fn lengthen(instance: &wgpu::Instance, adapter: wgpu::Adapter) -> wgpu::Adapter {
    longer(instance, &adapter).unwrap_or(adapter)
}

fn longer(instance: &wgpu::Instance, adapter: &wgpu::Adapter) -> Option<wgpu::Adapter> {
    // SAFETY: the objects of wgpu are only read.
    let (driver, device) = unsafe { (instance.as_hal::<Hal>(), adapter.as_hal::<Hal>()) };
    let (driver, device) = (driver?, device?);
    if adapter.get_info().vendor != NVIDIA {
        return None;
    }
    let mut exposed = driver.expose_adapter(device.raw_physical_device())?;
    let longest = device.physical_device_capabilities().properties().limits.max_storage_buffer_range;
    let limits = &mut exposed.capabilities.limits;
    limits.max_storage_buffer_binding_size = u64::from(longest & !3).min(limits.max_buffer_size);
    // SAFETY: the adapter is of this instance.
    Some(unsafe { instance.create_adapter_from_hal(exposed) })
}
