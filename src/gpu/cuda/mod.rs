//! CUDA beside Vulkan, on NVIDIA's GPUs of compute capability 9.0: Vulkan does not reach the matrix instructions of these.
//!
//! Both work on the same memory: [`memory`] allocates it with Vulkan, and CUDA maps it at its first use. A semaphore that both know
//! keeps their order. Each change from one to the other costs the GPU some 160 µs, so only long products are worth it.

mod driver;
mod memory;

use std::ffi::CStr;
use std::sync::{Arc, Mutex, OnceLock};

use ash::vk;
use wgpu::hal::api::Vulkan as Hal;

pub(super) use driver::Timer;
use driver::{Driver, Ordinal};
use memory::Memory;

use super::error::OUT_OF_MEMORY;
use super::{GpuError, Launch};

/// The CUDA side of a device.
pub(super) struct Cuda {
    ordinal: Ordinal,
    vulkan: ash::Device,
    memory: Memory,
    semaphore: vk::Semaphore,
    semaphores: ash::khr::external_semaphore_fd::Device,
    /// The value that the last of either side signals.
    value: Mutex<u64>,
    /// Started by the first launch.
    driver: OnceLock<Result<Arc<Driver>, String>>,
}

impl Cuda {
    /// Opens `adapter` with CUDA beside it; `None` where there is none, or no kernels for this GPU.
    pub fn open(
        adapter: &wgpu::Adapter,
        descriptor: &wgpu::DeviceDescriptor,
    ) -> Option<(wgpu::Device, wgpu::Queue, Cuda)> {
        // SAFETY: the adapter's own objects are only read.
        let hal = unsafe { adapter.as_hal::<Hal>() }?;
        let ordinal = driver::find(uuid(&hal)?)?;
        let extension = ash::khr::external_semaphore_fd::NAME;
        if !hal.physical_device_capabilities().supports_extension(extension) {
            return None;
        }
        let callback: Box<wgpu::hal::vulkan::CreateDeviceCallback> =
            Box::new(|args| args.extensions.push(extension));
        let (features, limits) = (descriptor.required_features, &descriptor.required_limits);
        // SAFETY: the device supports the extension.
        let open =
            unsafe { hal.open_with_callback(features, limits, &descriptor.memory_hints, Some(callback)) };
        // SAFETY: the device was opened with the features and limits of the descriptor.
        let (device, queue) = unsafe { adapter.create_device_from_hal(open.ok()?, descriptor) }.ok()?;
        let cuda = Cuda::new(ordinal, &device)?;
        Some((device, queue, cuda))
    }

    fn new(ordinal: Ordinal, device: &wgpu::Device) -> Option<Cuda> {
        // SAFETY: the device's own objects are only read.
        let hal = unsafe { device.as_hal::<Hal>() }?;
        let vulkan = hal.raw_device().clone();
        let instance = hal.shared_instance().raw_instance();
        let memory = Memory::new(instance, hal.raw_physical_device(), &vulkan);
        let mut exported = vk::ExportSemaphoreCreateInfo::default()
            .handle_types(vk::ExternalSemaphoreHandleTypeFlags::OPAQUE_FD);
        let mut timeline = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut exported).push_next(&mut timeline);
        // SAFETY: the device has the extension, and `Cuda` destroys the semaphore.
        let semaphore = unsafe { vulkan.create_semaphore(&info, None) }.ok()?;
        let semaphores = ash::khr::external_semaphore_fd::Device::new(instance, &vulkan);
        let (value, driver) = (Mutex::new(0), OnceLock::new());
        Some(Cuda { ordinal, vulkan, memory, semaphore, semaphores, value, driver })
    }

    /// A buffer in memory that CUDA maps too. Its content is undefined.
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

    /// Starts CUDA, and compiles `module`.
    pub fn prepare(&self, module: &'static CStr) -> Result<(), String> {
        self.driver()?.module(module).map(drop)
    }

    fn driver(&self) -> Result<&Arc<Driver>, String> {
        self.driver
            .get_or_init(|| Driver::start(self.ordinal, self.semaphore_fd()?).map(Arc::new))
            .as_ref()
            .map_err(String::clone)
    }

    fn semaphore_fd(&self) -> Result<i32, String> {
        let info = vk::SemaphoreGetFdInfoKHR::default()
            .semaphore(self.semaphore)
            .handle_type(vk::ExternalSemaphoreHandleTypeFlags::OPAQUE_FD);
        // SAFETY: the semaphore was made for this.
        unsafe { self.semaphores.get_semaphore_fd(&info) }.map_err(|e| format!("CUDA: no semaphore: {e}"))
    }

    /// Runs `launches` after everything that `queue` was given, and before everything that it will be given. Returns a timer of each
    /// launch where they are `timed`.
    ///
    /// The caller lets nobody else submit meanwhile.
    pub fn run(&self, queue: &wgpu::Queue, launches: &[&Launch], timed: bool) -> Result<Vec<Timer>, String> {
        let driver = self.driver()?;
        driver.enter()?;
        let mut value = self.value.lock().expect("lock is not poisoned");
        let (before, after) = (*value + 1, *value + 2);
        *value = after;
        // SAFETY: semaphores are staged for the next submission, which follows at once.
        let hal = unsafe { queue.as_hal::<Hal>() }.ok_or("CUDA: the device is not Vulkan's")?;
        hal.add_signal_semaphore(self.semaphore, Some(before));
        drop(hal);
        queue.submit(None);
        let done = self.launch(driver, launches, before, timed).and_then(|timers| {
            driver.signal(after)?;
            Ok(timers)
        });
        if done.is_err() {
            // Nobody else would end the wait.
            let info = vk::SemaphoreSignalInfo::default().semaphore(self.semaphore).value(after);
            // SAFETY: the value is above every earlier one.
            let _ = unsafe { self.vulkan.signal_semaphore(&info) };
        }
        // SAFETY: as above; the wait belongs to the next submission, whosever it is.
        let hal = unsafe { queue.as_hal::<Hal>() }.ok_or("CUDA: the device is not Vulkan's")?;
        hal.add_wait_semaphore(self.semaphore, Some(after), vk::PipelineStageFlags::ALL_COMMANDS);
        done
    }

    fn launch(
        &self,
        driver: &Arc<Driver>,
        launches: &[&Launch],
        before: u64,
        timed: bool,
    ) -> Result<Vec<Timer>, String> {
        driver.wait(before)?;
        let mut timers = Vec::new();
        for launch in launches {
            let address = |(buffer, at): &(wgpu::Buffer, u64)| Ok(self.memory.address(driver, buffer)? + at);
            let addresses: Vec<u64> = launch.buffers.iter().map(address).collect::<Result<_, String>>()?;
            let parameters = [bytemuck::cast_slice(&addresses), &launch.numbers].concat();
            timers.extend(driver.launch(launch, parameters, timed)?);
        }
        Ok(timers)
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if let Some(Ok(driver)) = self.driver.take() {
            driver.finish();
        }
        // SAFETY: no submission is left that uses it: wgpu waits for its work when the device is dropped, which still lives here.
        unsafe {
            let _ = self.vulkan.device_wait_idle();
            self.vulkan.destroy_semaphore(self.semaphore, None);
        }
    }
}

/// The number by which Vulkan and CUDA know the same GPU.
fn uuid(hal: &wgpu::hal::vulkan::Adapter) -> Option<[u8; 16]> {
    const NVIDIA: u32 = 0x10de;
    let instance = hal.shared_instance().raw_instance();
    let mut id = vk::PhysicalDeviceIDProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut id);
    // SAFETY: Vulkan 1.1 has this call, and wgpu's adapters of it have that version.
    unsafe { instance.get_physical_device_properties2(hal.raw_physical_device(), &mut properties) };
    (properties.properties.vendor_id == NVIDIA).then_some(id.device_uuid)
}

/// State of the memory that its buffers share.
type Shared<T> = Arc<Mutex<T>>;
