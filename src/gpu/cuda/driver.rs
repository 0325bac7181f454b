//! NVIDIA's driver: its context, stream and kernels. Errors are one line.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::Launch;

/// A GPU's number in CUDA.
pub type Ordinal = i32;

/// Compute capability of the GPUs that have kernels.
const CAPABILITY: [i32; 2] = [9, 0];

/// Version of CUDA, from which on drivers compile the kernels' PTX 8.3.
const VERSION: i32 = 12_030;

/// The GPU with this `uuid`; `None` without CUDA or kernels for it.
pub fn find(uuid: [u8; 16]) -> Option<Ordinal> {
    // SAFETY: the driver's library is what it is named.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    result::init().ok()?;
    let mut version = 0;
    // SAFETY: writes one number.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().ok()?;
    let is_same = |ordinal: &Ordinal| {
        let found = result::device::get(*ordinal).and_then(result::device::get_uuid);
        found.is_ok_and(|found| found.bytes.map(|byte| byte as u8) == uuid)
    };
    let ordinal = (0..result::device::get_count().ok()?).find(is_same)?;
    let device = result::device::get(ordinal).ok()?;
    use sys::CUdevice_attribute::*;
    // SAFETY: the device exists.
    let attribute = |name| unsafe { result::device::get_attribute(device, name) }.ok();
    let capability = [
        attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    ];
    let timelines = attribute(CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED)? == 1;
    (version >= VERSION && capability == CAPABILITY && timelines).then_some(ordinal)
}

/// The context, stream and compiled kernels of a GPU.
pub struct Driver {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    semaphore: sys::CUexternalSemaphore,
    multiprocessors: u32,
    modules: Mutex<HashMap<&'static CStr, Module>>,
}

/// A compiled module.
#[derive(Clone, Copy)]
pub struct Module(sys::CUmodule);

// SAFETY: CUDA's handles may be used by any thread whose context is theirs: see `Driver::enter`.
unsafe impl Send for Driver {}
unsafe impl Sync for Driver {}
unsafe impl Send for Module {}

impl Driver {
    /// Starts CUDA on a GPU; `semaphore` is Vulkan's semaphore.
    pub fn start(ordinal: Ordinal, semaphore: RawFd) -> Result<Driver, String> {
        // SAFETY: the file is ours, and closed where CUDA does not take it.
        let semaphore = unsafe { OwnedFd::from_raw_fd(semaphore) };
        let device = result::device::get(ordinal).map_err(|e| text("device", e))?;
        // SAFETY: the context is released in `drop`.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(|e| text("context", e))?;
        // SAFETY: the context was just retained.
        unsafe { result::ctx::set_current(context) }.map_err(|e| text("context", e))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        let stream = stream.map_err(|e| text("stream", e))?;
        // SAFETY: the device exists.
        let multiprocessors = unsafe {
            let name = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
            result::device::get_attribute(device, name)
        };
        let multiprocessors = multiprocessors.map_err(|e| text("device", e))? as u32;
        let handle = sys::CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC {
            type_:
                sys::CUexternalSemaphoreHandleType::CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD,
            handle: sys::CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC_st__bindgen_ty_1 { fd: semaphore.into_raw_fd() },
            flags: 0,
            reserved: [0; 16],
        };
        let mut semaphore = std::ptr::null_mut();
        // SAFETY: the file is that of a timeline semaphore, and CUDA owns it from now on.
        let imported = unsafe { sys::cuImportExternalSemaphore(&mut semaphore, &handle) }.result();
        imported.map_err(|e| text("semaphore", e))?;
        Ok(Driver { device, context, stream, semaphore, multiprocessors, modules: Mutex::default() })
    }

    /// Waits for everything launched so far.
    pub fn finish(&self) {
        // SAFETY: the stream lives as long as `self`. An error has been reported by the launch that caused it.
        let _ = self.enter().map(|()| unsafe { result::stream::synchronize(self.stream) });
    }

    /// Makes the context current in this thread.
    pub fn enter(&self) -> Result<(), String> {
        // SAFETY: the context lives as long as `self`.
        unsafe { result::ctx::set_current(self.context) }.map_err(|e| text("context", e))
    }

    /// The compiled `module`.
    pub fn module(&self, module: &'static CStr) -> Result<Module, String> {
        self.enter()?;
        let mut modules = self.modules.lock().expect("lock is not poisoned");
        if let Some(module) = modules.get(module) {
            return Ok(*module);
        }
        // SAFETY: PTX text that ends with NUL.
        let loaded = unsafe { result::module::load_data(module.as_ptr().cast()) };
        let loaded = Module(loaded.map_err(|e| text("kernels", e))?);
        modules.insert(module, loaded);
        Ok(loaded)
    }

    /// Lets later launches wait until the semaphore has reached `value`.
    pub fn wait(&self, value: u64) -> Result<(), String> {
        // SAFETY: plain data, for which zero is valid.
        let mut parameters: sys::CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS = unsafe { std::mem::zeroed() };
        parameters.params.fence.value = value;
        // SAFETY: one semaphore, one set of parameters.
        let done =
            unsafe { sys::cuWaitExternalSemaphoresAsync(&self.semaphore, &parameters, 1, self.stream) };
        done.result().map_err(|e| text("wait", e))
    }

    /// Sets the semaphore to `value` after the launches so far.
    pub fn signal(&self, value: u64) -> Result<(), String> {
        // SAFETY: plain data, for which zero is valid.
        let mut parameters: sys::CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS = unsafe { std::mem::zeroed() };
        parameters.params.fence.value = value;
        // SAFETY: one semaphore, one set of parameters.
        let done =
            unsafe { sys::cuSignalExternalSemaphoresAsync(&self.semaphore, &parameters, 1, self.stream) };
        done.result().map_err(|e| text("signal", e))
    }

    /// Launches a kernel with `parameters`, its only argument.
    pub fn launch(
        &self,
        launch: &Launch,
        mut parameters: Vec<u8>,
        timed: bool,
    ) -> Result<Option<Timer>, String> {
        let module = self.module(launch.module)?;
        let failed = |e| text(launch.name, e);
        // SAFETY: the module is loaded in this context; the argument is as long as the kernel's; the addresses are those of buffers.
        unsafe {
            let kernel = result::module::get_function(module.0, launch.entry.to_owned()).map_err(failed)?;
            let shared = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            result::function::set_function_attribute(kernel, shared, launch.shared as i32).map_err(failed)?;
            let timer = timed.then(|| Timer::start(self.stream)).transpose().map_err(failed)?;
            let grid = (launch.blocks.min(self.multiprocessors), 1, 1);
            let arguments: &mut [*mut c_void] = &mut [parameters.as_mut_ptr().cast()];
            let threads = (launch.threads, 1, 1);
            result::launch_kernel(kernel, grid, threads, launch.shared, self.stream, arguments)
                .map_err(failed)?;
            timer.as_ref().map(|timer| timer.stop(self.stream)).transpose().map_err(failed)?;
            Ok(timer)
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: nothing uses these handles any more once the stream is done.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            let _ = result::stream::synchronize(self.stream);
            let _ = sys::cuDestroyExternalSemaphore(self.semaphore);
            for module in self.modules.lock().expect("lock is not poisoned").values() {
                let _ = result::module::unload(module.0);
            }
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

/// The time of one launch.
pub struct Timer([sys::CUevent; 2]);

// SAFETY: as for `Driver`.
unsafe impl Send for Timer {}

impl Timer {
    fn start(stream: sys::CUstream) -> Result<Timer, DriverError> {
        let event = || result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let timer = Timer([event()?, event()?]);
        // SAFETY: the event was just made.
        unsafe { result::event::record(timer.0[0], stream) }?;
        Ok(timer)
    }

    fn stop(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: the event lives.
        unsafe { result::event::record(self.0[1], stream) }
    }

    /// Seconds, once the launch is done; 0 where CUDA failed.
    pub fn seconds(&self) -> f64 {
        // SAFETY: both events were recorded.
        let milliseconds = unsafe {
            let _ = result::event::synchronize(self.0[1]);
            result::event::elapsed(self.0[0], self.0[1])
        };
        f64::from(milliseconds.unwrap_or(0.0)) * 1e-3
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        for event in self.0 {
            // SAFETY: nobody else knows the event.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}

/// CUDA's view of an allocation of Vulkan.
pub struct Mapping {
    driver: Arc<Driver>,
    memory: sys::CUexternalMemory,
    address: u64,
}

// SAFETY: as for `Driver`.
unsafe impl Send for Mapping {}
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the allocation of `bytes` bytes behind `file`.
    pub fn new(driver: Arc<Driver>, file: RawFd, bytes: u64) -> Result<Mapping, String> {
        driver.enter()?;
        // SAFETY: the file is that of an allocation of this size, and CUDA owns it from now on.
        unsafe {
            let memory = result::external_memory::import_external_memory_opaque_fd(file, bytes)
                .map_err(|e| text("memory", e))?;
            let address = result::external_memory::get_mapped_buffer(memory, 0, bytes);
            Ok(Mapping { driver, memory, address: address.map_err(|e| text("memory", e))? })
        }
    }

    /// Its address for kernels.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let _ = self.driver.enter();
        // SAFETY: Vulkan frees the memory next, so nothing uses it.
        unsafe {
            let _ = result::memory_free(self.address);
            let _ = result::external_memory::destroy_external_memory(self.memory);
        }
    }
}

fn text(what: &str, error: DriverError) -> String {
    let name = error.error_string().ok().and_then(|text| text.to_str().ok()).unwrap_or("an unknown error");
    format!("CUDA: {what}: {name}")
}
