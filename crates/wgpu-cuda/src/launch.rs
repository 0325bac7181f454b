//! Kernels of PTX text of their own, among the other commands.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::buffer::{Buffer, BufferData};
use crate::command::{Command, Encoder};
use crate::device::Device;
use crate::driver::{Config, CudaError, OVERLAPS};
use crate::stamps::Queries;
use crate::state::{Raw, State, lock};

/// The instruction by which a kernel waits for the end of the one ahead.
const WAIT: &[u8] = b"griddepcontrol.wait";
/// Shared memory that a kernel gets without asking for more.
const USUAL_SHARED: u32 = 48 << 10;

/// A launch of a kernel of PTX text. Its only parameter is a struct: the addresses of the buffers, then the numbers.
#[derive(Debug)]
pub struct RawLaunch {
    /// The text, which ends with NUL. It is known by its address.
    pub text: &'static [u8],
    /// The entry point.
    pub name: &'static CStr,
    /// Buffers, with the byte at which the part begins that the kernel uses.
    pub buffers: Vec<(wgpu::Buffer, u64)>,
    /// The other members of the parameter.
    pub numbers: Vec<u8>,
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The query set for the times before and after it, and the index of the first.
    pub timer: Option<(wgpu::QuerySet, u32)>,
}

/// Modules by the address of their text, and kernels in them.
#[derive(Default)]
pub struct Known {
    modules: HashMap<usize, Raw>,
    kernels: HashMap<(usize, &'static CStr), Kernel>,
}

#[derive(Clone, Copy)]
pub struct Kernel {
    pub function: Raw,
    /// Bytes of shared memory that it may take.
    allowed: u32,
    /// Whether it waits for the end of the kernel ahead.
    pub waits: bool,
}

/// The work of a kernel.
#[derive(Clone, Copy, PartialEq)]
pub struct Size {
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block along each axis.
    pub threads: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// When a kernel starts, and the next one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Start {
    /// Whether its text waits for the end of the kernel ahead.
    pub waits: bool,
    /// Whether it allows the launch of the next kernel before it ends, and reads nothing that the one ahead stores before that has ended.
    pub early: bool,
}

/// Records a launch behind the commands so far.
///
/// # Panics
/// If the encoder is not of this crate's device.
pub fn launch(encoder: &wgpu::CommandEncoder, launch: RawLaunch) {
    encoder.as_custom::<Encoder>().expect("an encoder of CUDA").push(Command::Launch(launch));
}

/// Compiles a kernel, so that no later launch waits for it.
///
/// # Errors
/// The driver's text, where it refuses the kernel.
///
/// # Panics
/// If the device is not of this crate.
pub fn prepare(device: &wgpu::Device, text: &'static [u8], name: &'static CStr) -> Result<(), String> {
    let device = device.as_custom::<Device>().expect("a device of CUDA");
    device.0.current();
    kernel(&device.0, text, name, 0).map(drop).map_err(|e| e.text)
}

/// A kernel that may take `shared` bytes of dynamic shared memory.
fn kernel(state: &State, text: &'static [u8], name: &'static CStr, shared: u32) -> Result<Kernel, CudaError> {
    let driver = state.driver;
    let mut known = lock(&state.known);
    let at = text.as_ptr().addr(); // comparing texts would take longer than a launch
    let mut kernel = match known.kernels.get(&(at, name)) {
        Some(found) => *found,
        None => {
            let module = match known.modules.get(&at) {
                Some(module) => *module,
                None => {
                    let text = CStr::from_bytes_with_nul(text)
                        .map_err(|_| CudaError::misuse("a kernel's text does not end with NUL"))?;
                    Raw(driver.module(text)?)
                }
            };
            known.modules.insert(at, module);
            let waits = text.windows(WAIT.len()).any(|part| part == WAIT);
            Kernel { function: Raw(driver.kernel(module.0, name)?), allowed: USUAL_SHARED, waits }
        }
    };
    if shared > kernel.allowed {
        // SAFETY: the kernel lives. 8: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
        let code = unsafe { (driver.function_set)(kernel.function.0, 8, shared as i32) };
        driver.check(code, &name.to_string_lossy())?;
        kernel.allowed = shared;
    }
    known.kernels.insert((at, name), kernel);
    Ok(kernel)
}

impl State {
    /// Launches a function, which may start before the one ahead has ended if it waits for that itself. Where that one allows it earlier, its
    /// loads must not move past the wait either.
    ///
    /// # Safety
    /// `values` or `extras` are the arguments of the function, as `cuLaunchKernelEx` takes them.
    pub unsafe fn launch(
        &self,
        stream: Raw,
        function: Raw,
        size: &Size,
        start: Start,
        values: *mut *mut c_void,
        extras: *mut *mut c_void,
    ) -> i32 {
        let ahead_is_early = self.early.swap(start.early, Ordering::Relaxed);
        let overlaps = self.overlaps && start.waits && (start.early || !ahead_is_early);
        let config = Config {
            grid: size.grid,
            threads: size.threads,
            shared: size.shared,
            stream: stream.0,
            attributes: &OVERLAPS,
            attribute_count: overlaps.into(),
        };
        // SAFETY: as the caller says; the configuration is read before the call returns.
        unsafe { (self.driver.launch)(&config, function.0, values, extras) }
    }
}

impl RawLaunch {
    /// Its buffers.
    pub fn buffers(&self) -> impl Iterator<Item = Arc<BufferData>> {
        self.buffers
            .iter()
            .map(|(buffer, _)| buffer.as_custom::<Buffer>().expect("a buffer of CUDA").0.clone())
    }

    /// Its kernel.
    pub fn kernel(&self, state: &State) -> Result<Kernel, CudaError> {
        kernel(state, self.text, self.name, self.shared)
    }

    /// Its parameter.
    pub fn parameter(&self) -> Result<Vec<u8>, CudaError> {
        let mut parameter = Vec::with_capacity(8 * self.buffers.len() + self.numbers.len());
        for (buffer, start) in &self.buffers {
            let data = &buffer.as_custom::<Buffer>().expect("a buffer of CUDA").0;
            let address = data.address().ok_or_else(|| {
                CudaError::misuse(format!("{}: a buffer has no address", self.name.to_string_lossy()))
            })?;
            parameter.extend((address + start).to_le_bytes());
        }
        parameter.extend(&self.numbers);
        Ok(parameter)
    }

    /// Its blocks and their memory.
    pub fn size(&self) -> Size {
        Size { grid: self.grid, threads: [self.threads, 1, 1], shared: self.shared }
    }
}

/// Launches a kernel in a stream.
pub fn run(state: &State, stream: Raw, launch: &RawLaunch) -> Result<(), CudaError> {
    let driver = state.driver;
    let kernel = launch.kernel(state)?;
    let mut parameter = launch.parameter()?;
    let mut size = parameter.len();
    // CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END.
    let mut extras: [*mut c_void; 5] = [
        std::ptr::without_provenance_mut(1),
        parameter.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(2),
        std::ptr::from_mut(&mut size).cast(),
        null_mut(),
    ];
    let stamp = |i: u32| match &launch.timer {
        Some((set, first)) => set.as_custom::<Queries>().expect("a query set of CUDA").0.record(first + i),
        None => Ok(()),
    };
    stamp(0)?;
    let size = launch.size();
    // SAFETY: the parameter has the kernel's size, which its caller knows, and is read before the call returns.
    let code = unsafe {
        let start = Start { waits: kernel.waits, early: false };
        state.launch(stream, kernel.function, &size, start, null_mut(), extras.as_mut_ptr())
    };
    driver.check(code, &launch.name.to_string_lossy())?;
    stamp(1)
}

/// Modules of texts, which live as long as the device.
pub type Modules = Mutex<Known>;

impl Known {
    /// All modules.
    pub fn modules(&self) -> impl Iterator<Item = Raw> {
        self.modules.values().copied()
    }
}
