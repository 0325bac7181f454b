//! Adapters: the GPUs that the driver finds.

use std::ffi::{CStr, c_char};
use std::future::ready;
use std::pin::Pin;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};

use wgpu::custom as c;

use crate::Unavailable;
use crate::copies::Copies;
use crate::device::Device;
use crate::driver::{self, CudaError, Driver};
use crate::queue::Queue;
use crate::state::{Raw, State};
use crate::stubs::absent;
use crate::worker::{self, Work};

/// NVIDIA's number as a vendor.
const NVIDIA: u32 = 0x10de;

/// The least compute capability: that of the matrix instructions of Turing.
const LEAST: (u32, u32) = (7, 5);

/// Bytes of all arguments of a kernel, less room for addresses.
const UNIFORM_BYTES: u64 = 4096 - 256;

/// Every kernel is waited for.
const SYNC: &str = "WGPU_CUDA_SYNC";
/// No kernel starts before the one ahead of it has ended.
const SERIAL: &str = "WGPU_CUDA_SERIAL";
/// Kernels that come again become graphs, unless it is 0.
const GRAPHS: &str = "WGPU_CUDA_GRAPHS";

/// The compute capability that newer GPUs act as.
const CAPABILITY: &str = "WGPU_CUDA_CAPABILITY";

#[derive(Debug, Clone)]
pub struct Adapter {
    number: i32,
    info: wgpu::AdapterInfo,
    /// Bytes of shared memory of a block.
    shared: u32,
    capability: (u32, u32),
    multiprocessors: usize,
    /// Bytes of memory.
    total: u64,
    /// Whether there are memory pools.
    pooled: bool,
}

/// CUDA's devices of compute capability 7.5 and above, as adapters of wgpu: at least one.
///
/// # Errors
/// [`Unavailable`] where there is none, with the reason.
pub fn adapters() -> Result<Vec<wgpu::Adapter>, Unavailable> {
    let driver = driver::driver()?;
    let mut count = 0;
    // SAFETY: the driver writes one number.
    let counted = unsafe { (driver.count)(&mut count) };
    driver.check(counted, "cuDeviceGetCount").map_err(Unavailable::Refused)?;
    let all: Vec<Adapter> = (0..count).filter_map(|number| Adapter::new(driver, number)).collect();
    let known: Vec<&Adapter> = all.iter().filter(|a| a.capability >= LEAST).collect();
    match (known.is_empty(), all.first()) {
        (false, _) => Ok(known.into_iter().cloned().map(wgpu::Adapter::from_custom).collect()),
        (true, None) => Err(Unavailable::NoDevice),
        (true, Some(old)) => {
            Err(Unavailable::TooWeak { name: old.info.name.clone(), found: old.capability, needed: LEAST })
        }
    }
}

/// The multiprocessors of an adapter; `None` where it is not one of CUDA's.
pub fn multiprocessors(adapter: &wgpu::Adapter) -> Option<usize> {
    adapter.as_custom::<Adapter>().map(|a| a.multiprocessors)
}

/// The compute capability of an adapter, such as (9, 0); `None` where it is not one of CUDA's.
pub fn capability(adapter: &wgpu::Adapter) -> Option<(u32, u32)> {
    adapter.as_custom::<Adapter>().map(|a| a.capability)
}

/// The compute capability of a text such as "8.0".
fn capability_of(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

impl Adapter {
    fn new(driver: &Driver, number: i32) -> Option<Adapter> {
        let mut device = 0;
        // SAFETY: the driver writes one number.
        if unsafe { (driver.device)(&mut device, number) } != 0 {
            return None;
        }
        // CUdevice_attribute.
        let attribute = |which: i32| -> u32 {
            let mut value = 0;
            // SAFETY: the driver writes one number.
            unsafe { (driver.attribute)(&mut value, which, device) };
            value.unsigned_abs()
        };
        let text = |call: unsafe extern "C" fn(*mut c_char, i32, i32) -> i32| {
            let mut bytes = [0u8; 256];
            // SAFETY: the driver writes at most so many bytes, and NUL behind them.
            unsafe { call(bytes.as_mut_ptr().cast(), 256, device) };
            CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned()
        };
        let mut total = 0;
        // SAFETY: the driver writes one number.
        unsafe { (driver.total)(&mut total, device) };
        let kind = match attribute(18) {
            0 => wgpu::DeviceType::DiscreteGpu,
            _ => wgpu::DeviceType::IntegratedGpu,
        };
        // wgpu has no name for CUDA.
        let mut info = wgpu::AdapterInfo::new(kind, wgpu::Backend::Noop);
        info.name = text(driver.name);
        info.vendor = NVIDIA;
        info.device_pci_bus_id = bus_id(&text(driver.bus));
        (info.driver, info.driver_info) = match driver::version() {
            Some(version) => ("NVIDIA".into(), version),
            None => ("CUDA".into(), format!("{}.{}", driver.cuda().0, driver.cuda().1)),
        };
        let own = (attribute(75), attribute(76));
        let acts_as =
            std::env::var(CAPABILITY).ok().and_then(|text| capability_of(&text)).filter(|other| *other < own);
        if let Some((major, minor)) = acts_as {
            info.driver_info += &format!(", as {major}.{minor}");
        }
        info.subgroup_min_size = 32;
        info.subgroup_max_size = 32;
        Some(Adapter {
            number: device,
            info,
            shared: attribute(8),
            capability: acts_as.unwrap_or(own),
            multiprocessors: attribute(16) as usize,
            total: total as u64,
            pooled: attribute(115) != 0,
        })
    }

    fn open(&self, desc: &wgpu::DeviceDescriptor<'_>, work: Sender<Work>) -> Result<State, CudaError> {
        let driver = driver::driver().map_err(|reason| CudaError::misuse(reason.to_string()))?;
        let (mut context, mut stream) = (null_mut(), null_mut());
        // SAFETY: the driver writes to what is passed; the device was found.
        unsafe {
            driver.check((driver.retain)(&mut context, self.number), "cuDevicePrimaryCtxRetain")?;
            driver.check((driver.set_current)(context), "cuCtxSetCurrent")?;
            // 1: without an order between it and the default stream.
            driver.check((driver.stream)(&mut stream, 1), "cuStreamCreate")?;
        }
        if self.pooled {
            let (mut pool, mut all) = (null_mut(), u64::MAX);
            // SAFETY: as above. 4: how much freed memory the pool keeps.
            unsafe {
                driver.check((driver.pool)(&mut pool, self.number), "cuDeviceGetDefaultMemPool")?;
                let set = (driver.pool_set)(pool, 4, std::ptr::from_mut(&mut all).cast());
                driver.check(set, "cuMemPoolSetAttribute")?;
            }
        }
        // Graphs take such launches from CUDA 12.3 on.
        let overlaps =
            self.capability >= (9, 0) && driver.cuda() >= (12, 3) && std::env::var_os(SERIAL).is_none();
        let sync = std::env::var_os(SYNC).is_some();
        Ok(State {
            driver,
            number: self.number,
            context: Raw(context),
            stream: Raw(stream),
            pooled: self.pooled,
            sync,
            info: self.info.clone(),
            features: desc.required_features,
            limits: desc.required_limits.clone(),
            overlaps,
            early: AtomicBool::new(false),
            // Texts run on everything newer.
            target: if overlaps { 90 } else { 80.min(self.capability.0 * 10 + self.capability.1) },
            allocated: AtomicU64::new(0),
            submitted: AtomicU64::new(0),
            pending: Mutex::default(),
            marked: Condvar::new(),
            work: Mutex::new(work),
            handler: Mutex::default(),
            lost: Mutex::default(),
            known: Mutex::default(),
            copies: Mutex::new(Copies::new(driver)?),
            replays: Mutex::default(),
            graphs: !sync && std::env::var(GRAPHS).as_deref() != Ok("0"),
            uploads: Mutex::default(),
            gone: AtomicBool::new(false),
        })
    }
}

/// A place on the bus as wgpu writes it, such as 0000:1b:00.0: the driver may write a longer domain, and capitals.
fn bus_id(text: &str) -> String {
    let text = text.to_lowercase();
    match text.split_once(':') {
        Some((domain, rest)) => format!("{:0>4}:{rest}", domain.trim_start_matches('0')),
        None => text,
    }
}

impl c::AdapterInterface for Adapter {
    fn request_device(&self, desc: &wgpu::DeviceDescriptor<'_>) -> Pin<Box<dyn c::RequestDeviceFuture>> {
        let (sender, work) = channel();
        let opened = self.open(desc, sender).and_then(|state| {
            let state = Arc::new(state);
            worker::start(&state, work)
                .map_err(|e| CudaError::misuse(format!("no thread for the stream: {e}")))?;
            let queue = Queue::new(state.clone());
            Ok((c::DispatchDevice::custom(Device(state)), c::DispatchQueue::custom(queue)))
        });
        Box::pin(ready(opened.map_err(|e| wgpu::RequestDeviceError::from_message(e.text))))
    }

    fn is_surface_supported(&self, _: &c::DispatchSurface) -> bool {
        false
    }

    fn features(&self) -> wgpu::Features {
        use wgpu::Features as F;
        F::TIMESTAMP_QUERY
            | F::SHADER_F16
            | F::SUBGROUP
            | F::SUBGROUP_BARRIER
            | F::EXPERIMENTAL_COOPERATIVE_MATRIX
            | F::MAPPABLE_PRIMARY_BUFFERS
    }

    fn limits(&self) -> wgpu::Limits {
        wgpu::Limits {
            max_buffer_size: self.total,
            // Bytes of a binding are a number of 32 bits.
            max_storage_buffer_binding_size: self.total.min(u64::from(u32::MAX)) & !255,
            max_storage_buffers_per_shader_stage: 32,
            max_compute_workgroup_storage_size: self.shared,
            max_compute_invocations_per_workgroup: 1024,
            max_compute_workgroup_size_x: 1024,
            max_compute_workgroup_size_y: 1024,
            max_compute_workgroup_size_z: 64,
            max_compute_workgroups_per_dimension: 65535,
            max_uniform_buffer_binding_size: UNIFORM_BYTES,
            min_storage_buffer_offset_alignment: 32,
            min_uniform_buffer_offset_alignment: 16,
            ..Default::default()
        }
    }

    fn downlevel_capabilities(&self) -> wgpu::DownlevelCapabilities {
        Default::default()
    }

    fn get_info(&self) -> wgpu::AdapterInfo {
        self.info.clone()
    }

    fn get_presentation_timestamp(&self) -> wgpu::PresentationTimestamp {
        wgpu::PresentationTimestamp::INVALID_TIMESTAMP
    }

    fn cooperative_matrix_properties(&self) -> Vec<wgpu::wgt::CooperativeMatrixProperties> {
        vec![wgpu::wgt::CooperativeMatrixProperties {
            m_size: 16,
            n_size: 16,
            k_size: 16,
            ab_type: wgpu::CooperativeScalarType::F16,
            cr_type: wgpu::CooperativeScalarType::F32,
            saturating_accumulation: false,
        }]
    }

    absent! {
        "textures": fn get_texture_format_features(&self, _: wgpu::TextureFormat) -> wgpu::TextureFormatFeatures;
    }
}

#[cfg(test)]
mod tests {
    use super::{bus_id, capability_of};

    #[test]
    fn bus_ids_are_those_of_wgpu() {
        assert_eq!(bus_id("00000000:1B:00.0"), "0000:1b:00.0");
        assert_eq!(bus_id("0000:06:00.0"), "0000:06:00.0");
        assert_eq!(bus_id("00010000:06:00.0"), "10000:06:00.0");
    }

    #[test]
    fn capabilities_are_two_numbers() {
        assert_eq!(capability_of("8.0"), Some((8, 0)));
        assert_eq!(capability_of("12.0"), Some((12, 0)));
        assert_eq!(capability_of("8"), None);
    }
}
