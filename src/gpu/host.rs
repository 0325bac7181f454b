//! Host memory that is available for data that stays off the device.

use std::sync::atomic::Ordering;

use super::Gpu;

/// Marks that the system is asked for its available memory.
pub(super) const ASKED: u64 = u64::MAX;

impl Gpu {
    /// Bytes of host memory that are available now without swapping, within the limit of a container. `None` if the system does not
    /// report it, as in a browser.
    pub fn host_memory(&self) -> Option<u64> {
        match self.host_memory.load(Ordering::Relaxed) {
            ASKED => available(),
            bytes => Some(bytes),
        }
    }

    /// Sets [`Gpu::host_memory`]: for tests on any machine.
    pub fn set_host_memory(&self, bytes: u64) {
        self.host_memory.store(bytes, Ordering::Relaxed);
    }
}

/// Bytes of the largest heap of a device of Vulkan's that is its own.
#[cfg(all(feature = "native", any(target_os = "linux", target_os = "windows")))]
pub(super) fn device_memory(device: &wgpu::Device) -> Option<u64> {
    // SAFETY: the handles are only read while the device lives.
    let hal = unsafe { device.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = hal.shared_instance().raw_instance();
    // SAFETY: the physical device is that of the open device.
    let memory = unsafe { instance.get_physical_device_memory_properties(hal.raw_physical_device()) };
    let heaps = memory.memory_heaps.iter().take(memory.memory_heap_count as usize);
    // 1: VK_MEMORY_HEAP_DEVICE_LOCAL_BIT.
    heaps.filter(|heap| heap.flags.as_raw() & 1 != 0).map(|heap| heap.size).max()
}

#[cfg(not(all(feature = "native", any(target_os = "linux", target_os = "windows"))))]
pub(super) fn device_memory(_: &wgpu::Device) -> Option<u64> {
    None
}

#[cfg(feature = "native")]
fn available() -> Option<u64> {
    if !sysinfo::IS_SUPPORTED_SYSTEM {
        return None;
    }
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    if system.total_memory() == 0 {
        return None;
    }
    // Only memory of the container's processes counts: pages of files, which its usage includes, can be reclaimed.
    let allowed =
        system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory.saturating_sub(limits.rss));
    Some(system.available_memory().min(allowed))
}

#[cfg(not(feature = "native"))]
fn available() -> Option<u64> {
    None
}

#[cfg(all(test, feature = "native"))]
mod tests {
    use super::available;

    #[test]
    fn the_system_reports_its_memory() {
        let bytes = available().expect("Linux, macOS and Windows report it");
        assert!((1 << 20..1 << 50).contains(&bytes), "{bytes} bytes: expected 1 MiB to 1 PiB");
    }
}
