//! The choice of the device, and its features beyond WebGPU.

#[cfg(all(feature = "native", any(target_os = "linux", target_os = "windows")))]
use super::bindings::lengthen;
use super::{Backend, GpuError, Matrices};

pub(super) const COOPERATIVE: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::SUBGROUP)
    .union(wgpu::Features::SUBGROUP_BARRIER);

/// The cooperative matrices that the adapter reports, if there are kernels for them. The variants `coop16` need matrices of 16×16,
/// subgroups of 32, 32 KiB of workgroup memory and 20 storage buffers; the variants `coop8` need 8×8 and subgroups of one known size.
pub(super) fn cooperative_matrices(adapter: &wgpu::Adapter) -> Option<Matrices> {
    let (info, limits) = (adapter.get_info(), adapter.limits());
    let has = |edge: u32| {
        let fits = |p: &wgpu::CooperativeMatrixProperties| {
            [p.m_size, p.n_size, p.k_size] == [edge; 3]
                && p.ab_type == wgpu::CooperativeScalarType::F16
                && p.cr_type == wgpu::CooperativeScalarType::F32
        };
        adapter.features().contains(COOPERATIVE) && adapter.cooperative_matrix_properties().iter().any(fits)
    };
    let lanes = match info.backend {
        // wgpu does not know the size on Metal. Apple's GPUs have 32. wgpu reports matrices for AMD and Intel too, which lack them.
        wgpu::Backend::Metal => info.name.starts_with("Apple").then_some(32),
        _ => Some(info.subgroup_min_size).filter(|lanes| *lanes == info.subgroup_max_size),
    }?;
    let wide = limits.max_compute_workgroup_storage_size >= 32 << 10
        && limits.max_storage_buffers_per_shader_stage >= 20;
    if has(16) && lanes == 32 && wide {
        return Some(Matrices { edge: 16, lanes });
    }
    (has(8) && [4, 8, 16, 32, 64].contains(&lanes)).then_some(Matrices { edge: 8, lanes })
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

impl Place {
    /// The only process.
    pub const ALONE: Place = Place { rank: 0, size: 1 };

    /// Which of `found` devices it takes. A launcher may show each process one device only.
    fn choose(self, found: usize) -> Option<usize> {
        if found == 1 { Some(0) } else { (found >= self.size).then_some(self.rank) }
    }
}

/// The best device, or that of `place` among those of the best kind, in the order of their places on the bus.
pub(super) async fn pick_adapter(
    backend: Backend,
    name: Option<&str>,
    place: Place,
) -> Result<wgpu::Adapter, GpuError> {
    let backends = match backend {
        Backend::Auto => wgpu::Backends::all(),
        Backend::Vulkan => wgpu::Backends::VULKAN,
        Backend::Metal => wgpu::Backends::METAL,
        Backend::Dx12 => wgpu::Backends::DX12,
    };
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let mut adapters = adapters(&instance, backends).await;
    if adapters.is_empty() {
        return Err(GpuError::NoDevice);
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
    Ok(lengthen(&instance, adapters.swap_remove(own)))
}

#[cfg(not(all(feature = "native", any(target_os = "linux", target_os = "windows"))))]
fn lengthen(_: &wgpu::Instance, adapter: wgpu::Adapter) -> wgpu::Adapter {
    adapter
}

#[cfg(test)]
mod tests {
    use super::Place;

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
