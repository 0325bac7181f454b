//! CUDA's driver, loaded at run time.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::Unavailable;
use crate::launch::Size;

pub type Address = u64;
pub type Handle = *mut c_void;

/// The newest function is `cuMemAllocAsync`, of CUDA 11.2; the text of kernels needs 11.8.
const OLDEST: (u32, u32) = (11, 8);

/// An error of a call.
pub const INVALID_VALUE: i32 = 1;
/// Memory is used up.
pub const OUT_OF_MEMORY: i32 = 2;
/// Work is not done yet: no error.
pub const NOT_READY: i32 = 600;

/// `CUlaunchConfig`.
#[repr(C)]
pub struct Config {
    /// Blocks along each axis.
    pub grid: [c_uint; 3],
    /// Threads of a block along each axis.
    pub threads: [c_uint; 3],
    /// Bytes of dynamic shared memory.
    pub shared: c_uint,
    pub stream: Handle,
    pub attributes: *const Attribute,
    pub attribute_count: c_uint,
}

/// `CUlaunchAttribute`, whose value is a union of 64 bytes.
#[repr(C)]
pub struct Attribute {
    id: u64,
    value: [c_int; 16],
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`.
#[repr(C)]
pub struct Node {
    function: Handle,
    grid: [c_uint; 3],
    threads: [c_uint; 3],
    shared: c_uint,
    values: *mut *mut c_void,
    extras: *mut *mut c_void,
}

impl Node {
    /// A kernel whose arguments `values` points to.
    pub fn new(function: Handle, size: &Size, values: *mut *mut c_void) -> Node {
        let Size { grid, threads, shared } = *size;
        Node { function, grid, threads, shared, values, extras: std::ptr::null_mut() }
    }
}

/// The kernel may start when all blocks of the one ahead have, and itself waits for its end.
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
pub static OVERLAPS: Attribute = {
    let mut value = [0; 16];
    value[0] = 1;
    Attribute { id: 6, value }
};

macro_rules! driver {
    ($($field:ident = $symbol:literal ($($arg:ty),*);)+) => {
        /// The functions that are used. Each returns 0 or an error.
        pub struct Driver {
            _library: libloading::Library,
            $(pub $field: unsafe extern "C" fn($($arg),*) -> c_int,)+
        }

        impl Driver {
            /// The functions of a library; the name of the first that it lacks.
            fn of(library: libloading::Library) -> Result<Driver, &'static str> {
                // SAFETY: the signatures are those of cuda.h.
                unsafe {
                    Ok(Driver {
                        $($field: *library.get(concat!($symbol, "\0").as_bytes()).map_err(|_| $symbol)?,)+
                        _library: library,
                    })
                }
            }
        }
    };
}

driver! {
    init = "cuInit" (c_uint);
    version = "cuDriverGetVersion" (*mut c_int);
    count = "cuDeviceGetCount" (*mut c_int);
    device = "cuDeviceGet" (*mut c_int, c_int);
    name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    total = "cuDeviceTotalMem_v2" (*mut usize, c_int);
    bus = "cuDeviceGetPCIBusId" (*mut c_char, c_int, c_int);
    retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    release = "cuDevicePrimaryCtxRelease_v2" (c_int);
    set_current = "cuCtxSetCurrent" (Handle);
    pool = "cuDeviceGetDefaultMemPool" (*mut Handle, c_int);
    pool_set = "cuMemPoolSetAttribute" (Handle, c_int, *mut c_void);
    alloc = "cuMemAlloc_v2" (*mut Address, usize);
    free = "cuMemFree_v2" (Address);
    alloc_ordered = "cuMemAllocAsync" (*mut Address, usize, Handle);
    free_ordered = "cuMemFreeAsync" (Address, Handle);
    host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost" (*mut c_void);
    stream = "cuStreamCreate" (*mut Handle, c_uint);
    stream_destroy = "cuStreamDestroy_v2" (Handle);
    synchronize = "cuStreamSynchronize" (Handle);
    load = "cuModuleLoadDataEx" (*mut Handle, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
    unload = "cuModuleUnload" (Handle);
    function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    function_set = "cuFuncSetAttribute" (Handle, c_int, c_int);
    launch = "cuLaunchKernelEx" (*const Config, Handle, *mut *mut c_void, *mut *mut c_void);
    upload = "cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Handle);
    copy = "cuMemcpyAsync" (Address, Address, usize, Handle);
    fill = "cuMemsetD8Async" (Address, u8, usize, Handle);
    capture = "cuStreamBeginCapture_v2" (Handle, c_int);
    captured = "cuStreamEndCapture" (Handle, *mut Handle);
    capture_info = "cuStreamGetCaptureInfo_v2" (Handle, *mut c_int, *mut u64, *mut Handle, *mut *const Handle, *mut usize);
    graph_instantiate = "cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
    graph_set = "cuGraphExecKernelNodeSetParams" (Handle, Handle, *const Node);
    graph_launch = "cuGraphLaunch" (Handle, Handle);
    graph_destroy = "cuGraphDestroy" (Handle);
    graph_exec_destroy = "cuGraphExecDestroy" (Handle);
    event = "cuEventCreate" (*mut Handle, c_uint);
    event_record = "cuEventRecord" (Handle, Handle);
    event_query = "cuEventQuery" (Handle);
    event_wait = "cuEventSynchronize" (Handle);
    stream_wait = "cuStreamWaitEvent" (Handle, Handle, c_uint);
    event_elapsed = "cuEventElapsedTime" (*mut f32, Handle, Handle);
    event_destroy = "cuEventDestroy_v2" (Handle);
    error_name = "cuGetErrorName" (c_int, *mut *const c_char);
    error_string = "cuGetErrorString" (c_int, *mut *const c_char);
}

/// The first of the libraries that is there.
fn library(names: &[&str]) -> Option<libloading::Library> {
    // SAFETY: loading NVIDIA's libraries runs their initializers only.
    names.iter().find_map(|name| unsafe { libloading::Library::new(name) }.ok())
}

/// The driver, or why there is none that can be used.
pub fn driver() -> Result<&'static Driver, Unavailable> {
    static DRIVER: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();
    DRIVER.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Driver, Unavailable> {
    let names = if cfg!(windows) { &["nvcuda.dll"][..] } else { &["libcuda.so.1", "libcuda.so"] };
    let library = library(names).ok_or(Unavailable::NoDriver)?;
    let too_old = |found: (u32, u32)| Unavailable::TooOld { found, needed: OLDEST };
    let driver = Driver::of(library).map_err(|_| too_old((0, 0)))?;
    // SAFETY: the first call.
    let started = unsafe { (driver.init)(0) };
    driver.check(started, "cuInit").map_err(|error| match error.code {
        100 => Unavailable::NoDevice,
        _ => Unavailable::Refused(error),
    })?;
    let found = driver.cuda();
    if found < OLDEST { Err(too_old(found)) } else { Ok(driver) }
}

/// The version of NVIDIA's driver, such as 580.159.04; `None` where its management library is missing.
pub fn version() -> Option<String> {
    static VERSION: OnceLock<Option<String>> = OnceLock::new();
    VERSION.get_or_init(ask_version).clone()
}

fn ask_version() -> Option<String> {
    /// `NVML_INIT_FLAG_NO_GPUS` and `NVML_INIT_FLAG_NO_ATTACH`: the start is quick.
    const FLAGS: c_uint = 3;
    type Init = unsafe extern "C" fn(c_uint) -> c_int;
    type Version = unsafe extern "C" fn(*mut c_char, c_uint) -> c_int;
    let names = if cfg!(windows) { &["nvml.dll"][..] } else { &["libnvidia-ml.so.1"] };
    let library = library(names)?;
    let mut text = [0u8; 96];
    // SAFETY: the signatures are those of nvml.h, and the text has the length that is passed.
    let done = unsafe {
        let init: libloading::Symbol<Init> = library.get(b"nvmlInitWithFlags\0").ok()?;
        let version: libloading::Symbol<Version> = library.get(b"nvmlSystemGetDriverVersion\0").ok()?;
        init(FLAGS) == 0 && version(text.as_mut_ptr().cast(), text.len() as c_uint) == 0
    };
    let text = CStr::from_bytes_until_nul(&text).ok()?.to_string_lossy().into_owned();
    (done && !text.is_empty()).then_some(text)
}

/// An error of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaError {
    /// The driver's number, such as 2 where memory is used up.
    pub code: i32,
    /// The call, and the driver's text.
    pub text: String,
}

impl CudaError {
    /// A use that is not possible, found before any call.
    pub fn misuse(text: impl Into<String>) -> CudaError {
        CudaError { code: INVALID_VALUE, text: text.into() }
    }

    /// Whether the device is gone, or the process can use it no more.
    pub fn is_loss(&self) -> bool {
        // Uncorrectable memory, NVLink and contained errors; faults of kernels; a destroyed context; unknown.
        matches!(self.code, 46 | 101 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 999)
    }
}

impl std::fmt::Display for CudaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for CudaError {}

impl Driver {
    /// The newest CUDA that the driver knows.
    pub fn cuda(&self) -> (u32, u32) {
        let mut version = 0;
        // SAFETY: the driver writes one number.
        unsafe { (self.version)(&mut version) };
        let version = version.unsigned_abs();
        (version / 1000, version % 1000 / 10)
    }

    /// An error, where `code` is one.
    pub fn check(&self, code: c_int, what: &str) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let (mut name, mut text) = (c"unknown".as_ptr(), c"".as_ptr());
        // SAFETY: the driver sets the pointers to texts of its own, or to null.
        unsafe {
            (self.error_name)(code, &mut name);
            (self.error_string)(code, &mut text);
            let text_of = |p: *const c_char| match p.is_null() {
                true => String::new(),
                false => CStr::from_ptr(p).to_string_lossy().into_owned(),
            };
            Err(CudaError { code, text: format!("{what}: {} ({})", text_of(text), text_of(name)) })
        }
    }

    /// Compiles PTX text that ends with NUL. The log is part of the error.
    pub fn module(&self, text: &CStr) -> Result<Handle, CudaError> {
        let mut log = vec![0u8; 8192];
        // CU_JIT_ERROR_LOG_BUFFER and CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES.
        let mut options = [5, 6];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(log.len())];
        let mut module = std::ptr::null_mut();
        // SAFETY: text and log outlive the call.
        let code = unsafe {
            (self.load)(&mut module, text.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
        };
        self.check(code, "cuModuleLoadDataEx").map_err(|e| {
            let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
            let text = if log.is_empty() { e.text } else { format!("{}: {log}", e.text) };
            CudaError { text, ..e }
        })?;
        Ok(module)
    }

    /// A kernel of a module.
    pub fn kernel(&self, module: Handle, name: &CStr) -> Result<Handle, CudaError> {
        let mut function = std::ptr::null_mut();
        // SAFETY: the module lives, and the name outlives the call.
        let code = unsafe { (self.function)(&mut function, module, name.as_ptr()) };
        self.check(code, "cuModuleGetFunction")?;
        Ok(function)
    }
}

/// PTX text for [`Driver::module`].
pub fn with_nul(text: String) -> Result<CString, CudaError> {
    CString::new(text).map_err(|_| CudaError::misuse("a kernel's text has a NUL"))
}
