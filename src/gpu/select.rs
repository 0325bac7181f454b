//! The choice of the device, and its features beyond WebGPU.

use super::backend::{NVIDIA, cuda_adapters, has_nvidia_gpu, interface, is_cuda};
#[cfg(all(feature = "native", any(target_os = "linux", target_os = "windows")))]
use super::bindings::lengthen;
use super::error::IS_STATIC;
use super::{Backend, GpuError, Matrices, lanes};

pub(super) const COOPERATIVE: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::SUBGROUP)
    .union(wgpu::Features::SUBGROUP_BARRIER);

/// The cooperative matrices that the adapter reports, if there are kernels for them. The variants `coop16` need matrices of 16×16,
/// subgroups of 32 lanes, which some drivers have to be asked for, 32 KiB of workgroup memory and 20 storage buffers; the variants `coop8` need 8×8 and subgroups of one known size.
pub(super) fn cooperative_matrices(adapter: &wgpu::Adapter) -> Option<Matrices> {
    let (info, limits) = (adapter.get_info(), adapter.limits());
    let has = |edge: u32| {
        let fits = |p: &wgpu::CooperativeMatrixProperties| {
            [p.m_size, p.n_size, p.k_size] == [edge; 3]
                && p.ab_type == wgpu::CooperativeScalarType::F16
                && p.cr_type == wgpu::CooperativeScalarType::F32
        };
        adapter.features().contains(COOPERATIVE)
            && adapter.cooperative_matrix_properties().iter().any(fits)
            && lanes::supports_matrices(adapter)
    };
    let lanes = match info.backend {
        // wgpu does not know the size on Metal. Apple's GPUs have 32. wgpu reports matrices for AMD and Intel too, which lack them.
        wgpu::Backend::Metal => info.name.starts_with("Apple").then_some(32),
        _ => Some(info.subgroup_min_size).filter(|lanes| *lanes == info.subgroup_max_size),
    };
    let wide = limits.max_compute_workgroup_storage_size >= 32 << 10
        && limits.max_storage_buffers_per_shader_stage >= 20;
    if has(16) && wide && (lanes == Some(32) || lanes::can_be_required(adapter)) {
        return Some(Matrices { edge: 16, lanes: 32 });
    }
    let lanes = lanes.filter(|lanes| has(8) && [4, 8, 16, 32, 64].contains(lanes))?;
    Some(Matrices { edge: 8, lanes })
}

/// Whether the device is a software renderer that runs the variants `software`: subgroups of one known size, nine storage buffers.
pub(super) fn is_simd(adapter: &wgpu::Adapter) -> bool {
    let info = adapter.get_info();
    // wgpu knows no such feature of browsers: the page's worker asks for it where the adapter tells the sizes.
    let subgroups = cfg!(target_arch = "wasm32") || adapter.features().contains(wgpu::Features::SUBGROUP);
    info.device_type == wgpu::DeviceType::Cpu
        && subgroups
        && info.subgroup_min_size == info.subgroup_max_size
        && [4, 8, 16].contains(&info.subgroup_min_size)
        && adapter.limits().max_storage_buffers_per_shader_stage >= 9
}

/// The adapter that a browser considers the fastest; it offers no others.
#[cfg(target_arch = "wasm32")]
async fn adapters(instance: &wgpu::Instance, _backends: wgpu::Backends) -> Vec<wgpu::Adapter> {
    let power_preference = wgpu::PowerPreference::HighPerformance;
    let options = wgpu::RequestAdapterOptions { power_preference, ..Default::default() };
    instance.request_adapter(&options).await.into_iter().collect()
}

#[cfg(not(target_arch = "wasm32"))]
async fn adapters(instance: &wgpu::Instance, backends: wgpu::Backends) -> Vec<wgpu::Adapter> {
    instance.enumerate_adapters(backends).await
}

/// The place of a process among those of its host, each of which takes a device of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number, from 0.
    pub rank: usize,
    /// Processes on the host.
    pub size: usize,
}

impl Default for Place {
    fn default() -> Place {
        Place::ALONE
    }
}

impl Place {
    /// The only process.
    pub const ALONE: Place = Place { rank: 0, size: 1 };

    /// Which of `found` devices it takes. A launcher may show each process one device only.
    fn choose(self, found: usize) -> Option<usize> {
        if found == 1 { Some(0) } else { (found >= self.size).then_some(self.rank) }
    }
}

/// The devices that were chosen.
pub(super) struct Picked {
    /// The device to open, and behind it those to open in its place where its driver refuses: none unless the choice is the program's.
    pub adapters: Vec<wgpu::Adapter>,
    /// Why the first is not the device that one would expect.
    pub note: Option<String>,
}

/// The best devices, or that of `place` among those of the best kind, in the order of their places on the bus.
pub(super) async fn pick_adapters(
    backend: Backend,
    name: Option<&str>,
    place: Place,
) -> Result<Picked, GpuError> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let others = adapters(&instance, backend.of_wgpu()).await;
    let (mut adapters, no_cuda) = with_cuda(backend, others)?;
    if adapters.is_empty() {
        return Err(no_cuda.map_or(GpuError::NoDevice, |reason| GpuError::NoDeviceNorCuda { reason }));
    }
    if let Some(wanted) = name {
        let names: Vec<String> = adapters.iter().map(|a| a.get_info().name).collect();
        adapters.retain(|a| a.get_info().name.to_lowercase().contains(&wanted.to_lowercase()));
        if adapters.is_empty() {
            return Err(GpuError::NotNamed { wanted: wanted.into(), found: names.join(", ") });
        }
    }
    let kind = |a: &wgpu::Adapter| match a.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    };
    adapters.sort_by_key(kind);
    if place.size > 1 {
        // One interface: another lists the same devices again.
        let best = |a: &wgpu::Adapter| (kind(a), a.get_info().backend);
        let wanted = best(&adapters[0]);
        adapters.retain(|a| best(a) == wanted);
        adapters.sort_by_key(|a| a.get_info().device_pci_bus_id);
    }
    let found = adapters.len();
    let Some(own) = place.choose(found) else {
        return Err(GpuError::TooFew { found, processes: place.size });
    };
    adapters.drain(..own);
    if place.size > 1 || backend != Backend::Auto {
        adapters.truncate(1);
    }
    let info = adapters[0].get_info();
    // A GPU of another vendor is what one expects.
    let replaces = info.device_type == wgpu::DeviceType::Cpu || info.vendor == NVIDIA;
    let note = no_cuda.filter(|_| replaces && !is_cuda(&info));
    let note = note.map(|reason| format!("{} is used, not CUDA: {reason}", interface(&info)));
    let lengthened = |a: wgpu::Adapter| if is_cuda(&a.get_info()) { a } else { lengthen(&instance, a) };
    Ok(Picked { adapters: adapters.into_iter().map(lengthened).collect(), note })
}

/// The first of `adapters`, which are not empty, that `open` opens, with what it gave, and `note` with each that refused.
pub(super) async fn open_first<A, T>(
    adapters: Vec<A>,
    mut note: Option<String>,
    name: impl Fn(&A) -> String,
    open: impl AsyncFn(&A) -> Result<T, GpuError>,
) -> Result<(A, T, Option<String>), GpuError> {
    let mut left = adapters.into_iter().peekable();
    loop {
        let adapter = left.next().ok_or(GpuError::NoDevice)?;
        let refused = match open(&adapter).await {
            Ok(opened) => return Ok((adapter, opened, note)),
            Err(refused) => refused,
        };
        let Some(next) = left.peek() else { return Err(refused) };
        note = noted(note, Some(format!("{} is used: {refused}", name(next))));
    }
}

/// Both notes as one.
pub(super) fn noted(first: Option<String>, second: Option<String>) -> Option<String> {
    match (first, second) {
        (Some(first), Some(second)) => Some(format!("{first}; {second}")),
        (first, second) => first.or(second),
    }
}

/// Adds CUDA's devices to those of the other interfaces, in place of their twins, as `backend` says. With the reason why there are none, where
/// one could expect some.
fn with_cuda(
    backend: Backend,
    others: Vec<wgpu::Adapter>,
) -> Result<(Vec<wgpu::Adapter>, Option<String>), GpuError> {
    match backend {
        Backend::Cuda => {
            let cuda = cuda_adapters().map_err(|reason| GpuError::NoCuda { reason })?;
            return Ok((cuda, None));
        }
        Backend::Auto if cfg!(has_cuda) => {}
        _ => return Ok((others, None)),
    }
    let cuda = match cuda_adapters() {
        Ok(cuda) => cuda,
        // A static program finds no driver of anybody's.
        Err(reason) => return Ok((others, (!IS_STATIC && has_nvidia_gpu()).then_some(reason))),
    };
    let of_cuda: Vec<wgpu::AdapterInfo> = cuda.iter().map(wgpu::Adapter::get_info).collect();
    let others = others.into_iter().filter(|other| !has_twin(&of_cuda, &other.get_info()));
    Ok((cuda.into_iter().chain(others).collect(), None))
}

/// Whether one of CUDA's devices is the GPU `other` of another interface.
fn has_twin(cuda: &[wgpu::AdapterInfo], other: &wgpu::AdapterInfo) -> bool {
    let is_nvidia = other.vendor == NVIDIA && other.device_type != wgpu::DeviceType::Cpu;
    let same = |one: &wgpu::AdapterInfo| {
        let (bus, other_bus) = (&one.device_pci_bus_id, &other.device_pci_bus_id);
        // A driver may not tell the bus.
        let told = !bus.is_empty() && !other_bus.is_empty();
        if told { bus == other_bus } else { one.name == other.name }
    };
    is_nvidia && cuda.iter().any(same)
}

#[cfg(not(all(feature = "native", any(target_os = "linux", target_os = "windows"))))]
fn lengthen(_: &wgpu::Instance, adapter: wgpu::Adapter) -> wgpu::Adapter {
    adapter
}

#[cfg(test)]
mod tests {
    use super::{GpuError, NVIDIA, Place, has_twin, noted, open_first};

    #[test]
    fn a_device_that_refuses_is_told_and_the_next_one_is_taken() {
        let open = async |name: &&str| match *name {
            "bad" => Err(GpuError::NotNamed { wanted: "bad".into(), found: "nothing".into() }),
            _ => Ok(()),
        };
        let first = |names: Vec<&'static str>, note: Option<&str>| {
            pollster::block_on(open_first(names, note.map(String::from), |name| name.to_string(), open))
        };
        assert_eq!(
            first(vec!["good", "bad"], Some("a note")).expect("opens"),
            ("good", (), Some("a note".into()))
        );
        let (taken, (), note) = first(vec!["bad", "good"], Some("a note")).expect("opens");
        let note = note.expect("one device refused");
        assert!(taken == "good" && note.starts_with("a note; good is used: no GPU has a name"), "{note}");
        assert!(matches!(first(vec!["bad", "bad"], None), Err(GpuError::NotNamed { .. })));
        let both = noted(Some(note), Some("no matrices".into())).expect("two notes");
        assert!(both.starts_with("a note; ") && both.ends_with("; no matrices"), "{both}");
    }

    #[test]
    fn a_gpu_that_two_interfaces_reach_is_there_once() {
        let info = |backend, kind, vendor, name: &str, bus: &str| {
            let mut info = wgpu::AdapterInfo::new(kind, backend);
            (info.vendor, info.name, info.device_pci_bus_id) = (vendor, name.into(), bus.into());
            info
        };
        let gpu = wgpu::DeviceType::DiscreteGpu;
        let cuda = ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"];
        let cuda = cuda.map(|bus| info(wgpu::Backend::Noop, gpu, NVIDIA, "H100", bus));
        let others = [
            info(wgpu::Backend::Vulkan, gpu, NVIDIA, "H100", "0000:02:00.0"),
            info(wgpu::Backend::Vulkan, gpu, 0x1002, "MI300X", "0000:03:00.0"),
            info(wgpu::Backend::Vulkan, wgpu::DeviceType::Cpu, 0x10005, "llvmpipe", ""),
        ];
        assert_eq!(others.map(|other| has_twin(&cuda, &other)), [true, false, false]);
        // A driver that does not tell the bus: by name.
        let silent = [info(wgpu::Backend::Dx12, gpu, NVIDIA, "H100", "")];
        assert_eq!(silent.map(|other| has_twin(&cuda, &other)), [true]);
    }

    #[test]
    fn each_process_takes_a_device() {
        let chosen = |size: usize, found: usize| -> Vec<Option<usize>> {
            (0..size).map(|rank| Place { rank, size }.choose(found)).collect()
        };
        assert_eq!(chosen(1, 4), [Some(0)]);
        assert_eq!(chosen(2, 2), [Some(0), Some(1)]);
        assert_eq!(chosen(2, 8), [Some(0), Some(1)]);
        assert_eq!(chosen(4, 2), [None; 4]);
        // Slurm shows each process its own device.
        assert_eq!(chosen(2, 1), [Some(0), Some(0)]);
    }
}
