//! Devices whose subgroups have 32 lanes only on demand, such as AMD's RDNA 3 and 4: wgpu has no option for it. The device's table of
//! functions, which wgpu takes from whoever opens the device, gets another `vkCreateComputePipelines`, and a `vkCreateShaderModule` that
//! mends naga's SPIR-V.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::{PoisonError, RwLock};

use ash::vk;
use wgpu::hal::api::Vulkan as Hal;

use super::{Matrices, spirv};

/// Lanes of a subgroup that holds a matrix of 16×16.
const LANES: u32 = 32;

/// Functions of a driver, by the device that they belong to.
#[derive(Clone, Copy)]
struct Functions {
    pipelines: vk::PFN_vkCreateComputePipelines,
    module: vk::PFN_vkCreateShaderModule,
}

static FUNCTIONS: RwLock<Option<HashMap<vk::Device, Functions>>> = RwLock::new(None);

fn functions(device: vk::Device) -> Functions {
    let all = FUNCTIONS.read().unwrap_or_else(PoisonError::into_inner);
    all.as_ref().and_then(|all| all.get(&device)).copied().expect("it is set before the device is used")
}

/// Whether the driver supports the cooperative matrices that it lists, for which wgpu does not ask: llvmpipe lists them on CPUs with vectors
/// of 128 bits too, such as those of arm64, and refuses to open the device with them.
pub(super) fn supports_matrices(adapter: &wgpu::Adapter) -> bool {
    // SAFETY: the handles are only read while the adapter lives.
    let Some(hal) = (unsafe { adapter.as_hal::<Hal>() }) else { return true };
    let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
    let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut matrices);
    let instance = hal.shared_instance().raw_instance();
    // SAFETY: the physical device is that of the adapter, which lists matrices, and so has Vulkan 1.1 and their extension.
    unsafe { instance.get_physical_device_features2(hal.raw_physical_device(), &mut features) };
    matrices.cooperative_matrix == vk::TRUE
}

/// Whether every kernel can be required to have subgroups of 32 lanes, on a device that has other sizes too.
pub(super) fn can_be_required(adapter: &wgpu::Adapter) -> bool {
    let info = adapter.get_info();
    let varies = info.subgroup_min_size < info.subgroup_max_size;
    if !varies || !(info.subgroup_min_size..=info.subgroup_max_size).contains(&LANES) {
        return false;
    }
    // SAFETY: the handles are only read while the adapter lives.
    let Some(hal) = (unsafe { adapter.as_hal::<Hal>() }) else { return false };
    let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut sizes);
    let instance = hal.shared_instance().raw_instance();
    // SAFETY: the physical device is that of the adapter, which has Vulkan 1.1.
    unsafe { instance.get_physical_device_properties2(hal.raw_physical_device(), &mut properties) };
    sizes.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE)
}

/// Whether the device must be opened by [`open`] for its matrices.
pub(super) fn must_be_required(adapter: &wgpu::Adapter, matrices: Option<Matrices>) -> bool {
    matrices.is_some_and(|matrices| matrices.edge == 16) && can_be_required(adapter)
}

/// Opens the device so that every kernel has subgroups of 32 lanes. The error is a reason.
pub(super) fn open(
    adapter: &wgpu::Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Result<(wgpu::Device, wgpu::Queue), String> {
    let features = descriptor.required_features;
    // SAFETY: as wgpu's own `request_device`, but for the table of functions.
    let open = unsafe {
        let hal = adapter.as_hal::<Hal>().ok_or("it is not a device of Vulkan")?;
        let extensions = hal.required_device_extensions(features);
        let mut supported = hal.physical_device_features(&extensions, features);
        let queue = [vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0])];
        let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
        let info = vk::DeviceCreateInfo::default().queue_create_infos(&queue).enabled_extension_names(&names);
        let info = supported.add_to_device_create(info);
        let instance = hal.shared_instance().raw_instance();
        let raw = instance
            .create_device(hal.raw_physical_device(), &info, None)
            .map_err(|error| error.to_string())?;
        let raw = with_own_functions(instance, &raw);
        let (limits, hints) = (&descriptor.required_limits, &descriptor.memory_hints);
        hal.device_from_raw(raw, None, &extensions, features, limits, hints, 0, 0)
            .map_err(|error| error.to_string())?
    };
    // SAFETY: the device is of this adapter, with the features of the descriptor.
    unsafe { adapter.create_device_from_hal(open, descriptor) }.map_err(|error| error.to_string())
}

/// The device with the functions of this file in its table.
///
/// # Safety
///
/// `device` is a device of `instance`.
unsafe fn with_own_functions(instance: &ash::Instance, device: &ash::Device) -> ash::Device {
    let get = instance.fp_v1_0().get_device_proc_addr;
    // SAFETY: a name that ends by a zero; the device lives.
    let find = |name: &CStr| unsafe { get(device.handle(), name.as_ptr()) };
    let pointer = |found: vk::PFN_vkVoidFunction| found.map_or(std::ptr::null(), |f| f as *const c_void);
    let original = device.fp_v1_0();
    let own =
        Functions { pipelines: original.create_compute_pipelines, module: original.create_shader_module };
    FUNCTIONS
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert_default()
        .insert(device.handle(), own);
    let load = |name: &CStr| match name.to_bytes() {
        b"vkCreateComputePipelines" => create_pipelines as *const c_void,
        b"vkCreateShaderModule" => create_module as *const c_void,
        _ => pointer(find(name)),
    };
    // SAFETY: every function is that of its name.
    unsafe { ash::Device::load_with(load, device.handle()) }
}

/// `vkCreateComputePipelines` with a required size in every stage. wgpu allows varying sizes, which excludes a required one.
unsafe extern "system" fn create_pipelines(
    device: vk::Device,
    cache: vk::PipelineCache,
    count: u32,
    infos: *const vk::ComputePipelineCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    pipelines: *mut vk::Pipeline,
) -> vk::Result {
    // SAFETY: the caller gives `count` of them.
    let mut infos = unsafe { std::slice::from_raw_parts(infos, count as usize) }.to_vec();
    let mut sizes = vec![vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default(); infos.len()];
    for (info, size) in infos.iter_mut().zip(&mut sizes) {
        size.required_subgroup_size = LANES;
        size.p_next = info.stage.p_next.cast_mut();
        info.stage.p_next = std::ptr::from_ref(size).cast();
        info.stage.flags &= !vk::PipelineShaderStageCreateFlags::ALLOW_VARYING_SUBGROUP_SIZE;
    }
    // SAFETY: the arguments of the caller; `infos` and `sizes` live until it returns.
    unsafe { (functions(device).pipelines)(device, cache, count, infos.as_ptr(), allocator, pipelines) }
}

/// `vkCreateShaderModule` with mended SPIR-V.
unsafe extern "system" fn create_module(
    device: vk::Device,
    info: *const vk::ShaderModuleCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    module: *mut vk::ShaderModule,
) -> vk::Result {
    // SAFETY: the caller gives one, whose code has so many bytes.
    let mut info = unsafe { *info };
    let words = unsafe { std::slice::from_raw_parts(info.p_code, info.code_size / 4) };
    let words = spirv::mended(words);
    (info.p_code, info.code_size) = (words.as_ptr(), 4 * words.len());
    // SAFETY: the arguments of the caller; `words` live until it returns.
    unsafe { (functions(device).module)(device, &info, allocator, module) }
}
