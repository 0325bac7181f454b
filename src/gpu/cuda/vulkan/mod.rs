//! CUDA's kernels in Vulkan's own queue, on NVIDIA's GPUs of compute capability 9.0: no shading language reaches the matrix instructions
//! of these.
//!
//! The driver compiles PTX text and launches it among the other commands (VK_NVX_binary_import). A kernel gets addresses in place of
//! bindings, so that [`memory`] makes buffers that have one. A block may use 48 KiB of shared memory: a launch with more never ends.

mod memory;
mod timers;

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, OnceLock};

use ash::nvx::binary_import;
use ash::vk;
use wgpu::hal::api::Vulkan as Hal;

use memory::Memory;
pub use timers::Timers;

use crate::gpu::backend::NVIDIA;
use crate::gpu::error::OUT_OF_MEMORY;
use crate::gpu::{Entry, GpuError, Launch};

/// The first byte of the device numbers of NVIDIA's GPUs of compute capability 9.0: H100, H200, GH200.
const HOPPER: u32 = 0x23;

/// A device's side of CUDA's kernels: the compiled kernels, and memory that they can address.
pub struct Cuda {
    vulkan: ash::Device,
    binaries: binary_import::Device,
    memory: Memory,
    multiprocessors: usize,
    /// By the address of their texts.
    compiled: Mutex<HashMap<usize, Arc<Compiled>>>,
}

/// A compiled text, and the kernels in it. Each text has a lock of its own, so that several compile at once.
#[derive(Default)]
struct Compiled {
    module: OnceLock<Result<vk::CuModuleNVX, String>>,
    kernels: Mutex<HashMap<&'static CStr, Result<vk::CuFunctionNVX, String>>>,
}

impl Cuda {
    /// Opens `adapter` for CUDA's kernels too; `None` where it has none, or there are none for this GPU.
    pub fn open(
        adapter: &wgpu::Adapter,
        descriptor: &wgpu::DeviceDescriptor,
    ) -> Option<(wgpu::Device, wgpu::Queue, Cuda)> {
        // SAFETY: the adapter's own objects are only read.
        let hal = unsafe { adapter.as_hal::<Hal>() }?;
        let info = adapter.get_info();
        let extension = binary_import::NAME;
        let has_kernels = info.vendor == NVIDIA && info.device >> 8 == HOPPER;
        if !has_kernels || !hal.physical_device_capabilities().supports_extension(extension) {
            return None;
        }
        let mut addresses =
            vk::PhysicalDeviceBufferDeviceAddressFeatures::default().buffer_device_address(true);
        let callback: Box<wgpu::hal::vulkan::CreateDeviceCallback> = Box::new(|args| {
            args.extensions.push(extension);
            *args.create_info = args.create_info.push_next(&mut addresses);
        });
        let (features, limits) = (descriptor.required_features, &descriptor.required_limits);
        // SAFETY: the device supports the extension, and its GPU the feature.
        let open =
            unsafe { hal.open_with_callback(features, limits, &descriptor.memory_hints, Some(callback)) };
        // SAFETY: the device was opened with the features and limits of the descriptor.
        let (device, queue) = unsafe { adapter.create_device_from_hal(open.ok()?, descriptor) }.ok()?;
        // SAFETY: the device's own objects are only read.
        let hal = unsafe { device.as_hal::<Hal>() }?;
        let (vulkan, instance) = (hal.raw_device().clone(), hal.shared_instance().raw_instance());
        let cuda = Cuda {
            binaries: binary_import::Device::new(instance, &vulkan),
            memory: Memory::new(instance, hal.raw_physical_device(), &vulkan),
            multiprocessors: multiprocessors(instance, hal.raw_physical_device()),
            compiled: Mutex::default(),
            vulkan,
        };
        drop(hal);
        Some((device, queue, cuda))
    }

    /// A buffer with an address. Its content is undefined.
    pub fn buffer(
        &self,
        device: &wgpu::Device,
        descriptor: &wgpu::BufferDescriptor,
    ) -> Result<wgpu::Buffer, GpuError> {
        self.memory.buffer(device, descriptor).map_err(|error| match error {
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY => {
                GpuError::Device(OUT_OF_MEMORY.into())
            }
            other => GpuError::Device(other.to_string()),
        })
    }

    /// Bytes that [`Cuda::buffer`] has allocated.
    pub fn allocated_bytes(&self) -> u64 {
        self.memory.allocated()
    }

    /// Multiprocessors of the GPU.
    pub fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// Compiles a kernel, unless it is compiled already.
    pub fn prepare(&self, entry: Entry) -> Result<(), String> {
        self.kernel(entry).map(drop)
    }

    fn kernel(&self, entry: Entry) -> Result<vk::CuFunctionNVX, String> {
        let mut texts = self.compiled.lock().expect("lock is not poisoned");
        let text = texts.entry(entry.text.as_ptr().addr()).or_default().clone();
        drop(texts);
        let module = text.module.get_or_init(|| self.compile(entry.text)).clone()?;
        let mut kernels = text.kernels.lock().expect("lock is not poisoned");
        kernels.entry(entry.name).or_insert_with(|| self.find(module, entry.name)).clone()
    }

    fn compile(&self, text: &'static [u8]) -> Result<vk::CuModuleNVX, String> {
        let (data_size, p_data) = (text.len(), text.as_ptr().cast());
        let info = vk::CuModuleCreateInfoNVX { data_size, p_data, ..Default::default() };
        let mut module = vk::CuModuleNVX::null();
        let create = self.binaries.fp().create_cu_module_nvx;
        // SAFETY: the text ends with NUL, and outlives the call.
        let created = unsafe { create(self.vulkan.handle(), &info, std::ptr::null(), &mut module) };
        created
            .result_with_success(module)
            .map_err(|e| format!("the driver does not compile CUDA's kernels: {e}"))
    }

    fn find(&self, module: vk::CuModuleNVX, name: &CStr) -> Result<vk::CuFunctionNVX, String> {
        let info = vk::CuFunctionCreateInfoNVX::default().module(module).name(name);
        let mut function = vk::CuFunctionNVX::null();
        let create = self.binaries.fp().create_cu_function_nvx;
        // SAFETY: the module lives, and the name outlives the call.
        let created = unsafe { create(self.vulkan.handle(), &info, std::ptr::null(), &mut function) };
        created
            .result_with_success(function)
            .map_err(|e| format!("the driver does not find CUDA's kernel {name:?}: {e}"))
    }

    /// Records `launches`, each behind everything before it, in an encoder that has no other commands. Their buffers are used by commands
    /// of wgpu's in the same submission or a later one, which keep them alive. Takes the time of each launch where they are `timed`.
    pub fn record(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        launches: &[&Launch],
        timed: bool,
    ) -> Result<Option<Timers>, String> {
        let kernels = launches.iter().map(|launch| self.kernel(launch.entry));
        let kernels: Vec<vk::CuFunctionNVX> = kernels.collect::<Result<_, String>>()?;
        let addresses = |launch: &&Launch| self.memory.addresses(&launch.buffers);
        let addresses: Vec<Vec<u64>> = launches.iter().map(addresses).collect::<Result<_, String>>()?;
        let timers = timed.then(|| Timers::new(&self.vulkan, launches)).transpose()?;
        // SAFETY: the encoder is not used meanwhile, and its command buffer is recorded to as wgpu does.
        unsafe {
            encoder.as_hal_mut::<Hal, _, _>(|encoder| {
                let commands = encoder.ok_or("the device is not Vulkan's")?.raw_handle();
                timers.iter().for_each(|timers| timers.reset(commands));
                self.wait_for_all(commands);
                for (i, launch) in launches.iter().enumerate() {
                    timers.iter().for_each(|timers| timers.write(commands, 2 * i));
                    self.launch(commands, launch, kernels[i], &addresses[i]);
                    timers.iter().for_each(|timers| timers.write(commands, 2 * i + 1));
                    self.wait_for_all(commands);
                }
                Ok(())
            })
        }
        .map(|()| timers)
    }

    /// Later commands see everything that earlier ones wrote.
    unsafe fn wait_for_all(&self, commands: vk::CommandBuffer) {
        let all = vk::PipelineStageFlags::ALL_COMMANDS;
        let barrier = vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::MEMORY_WRITE)
            .dst_access_mask(vk::AccessFlags::MEMORY_READ | vk::AccessFlags::MEMORY_WRITE);
        // SAFETY: the caller records to the command buffer.
        unsafe {
            self.vulkan.cmd_pipeline_barrier(
                commands,
                all,
                all,
                vk::DependencyFlags::empty(),
                &[barrier],
                &[],
                &[],
            );
        }
    }

    /// Records one launch, whose only parameter is a struct: `addresses`, then the launch's numbers.
    unsafe fn launch(
        &self,
        commands: vk::CommandBuffer,
        launch: &Launch,
        function: vk::CuFunctionNVX,
        addresses: &[u64],
    ) {
        // As in cuLaunchKernel: pairs of a kind and a pointer, and 0 at the end.
        const POINTER: *const c_void = std::ptr::without_provenance(1);
        const SIZE: *const c_void = std::ptr::without_provenance(2);
        let parameter = [bytemuck::cast_slice(addresses), &launch.numbers].concat();
        let bytes = parameter.len();
        let bytes: *const usize = &bytes;
        let extras = [POINTER, parameter.as_ptr().cast(), SIZE, bytes.cast(), std::ptr::null()];
        let [grid_dim_x, grid_dim_y, grid_dim_z] = launch.blocks;
        let info = vk::CuLaunchInfoNVX {
            function,
            grid_dim_x,
            grid_dim_y,
            grid_dim_z,
            block_dim_x: launch.threads,
            block_dim_y: 1,
            block_dim_z: 1,
            extra_count: 1,
            p_extras: extras.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the driver copies the parameter, which is as long as the kernel's.
        unsafe { (self.binaries.fp().cmd_cu_launch_kernel_nvx)(commands, &info) };
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // SAFETY: the device lives, and is done with the kernels.
        unsafe {
            let _ = self.vulkan.device_wait_idle();
            let device = self.vulkan.handle();
            for text in self.compiled.lock().expect("lock is not poisoned").values() {
                for function in text.kernels.lock().expect("lock is not poisoned").values().flatten() {
                    (self.binaries.fp().destroy_cu_function_nvx)(device, *function, std::ptr::null());
                }
                if let Some(Ok(module)) = text.module.get() {
                    (self.binaries.fp().destroy_cu_module_nvx)(device, *module, std::ptr::null());
                }
            }
        }
    }
}

fn multiprocessors(instance: &ash::Instance, adapter: vk::PhysicalDevice) -> usize {
    let mut counts = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut counts);
    // SAFETY: Vulkan 1.1 has this call, and NVIDIA's driver knows this struct.
    unsafe { instance.get_physical_device_properties2(adapter, &mut properties) };
    counts.shader_sm_count.max(1) as usize
}

/// State of the memory that its buffers share.
type Shared<T> = Arc<Mutex<T>>;
