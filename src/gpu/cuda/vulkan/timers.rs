//! Times of launches, for a profile.

use ash::vk;

use crate::gpu::Launch;

/// Timestamps around the launches of one recording.
pub struct Timers {
    vulkan: ash::Device,
    queries: vk::QueryPool,
    /// Name of each kernel, and the bytes that it reads and writes.
    launches: Vec<(&'static str, u64)>,
}

impl Timers {
    pub fn new(vulkan: &ash::Device, launches: &[&Launch]) -> Result<Timers, String> {
        let info = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            .query_count(2 * launches.len() as u32);
        // SAFETY: `drop` destroys it.
        let queries = unsafe { vulkan.create_query_pool(&info, None) };
        let queries = queries.map_err(|e| format!("no timestamps for CUDA's kernels: {e}"))?;
        let launches = launches.iter().map(|launch| (launch.name, launch.bytes)).collect();
        Ok(Timers { vulkan: vulkan.clone(), queries, launches })
    }

    /// Records that no timestamp is there yet.
    pub unsafe fn reset(&self, commands: vk::CommandBuffer) {
        // SAFETY: the caller records to the command buffer.
        unsafe {
            self.vulkan.cmd_reset_query_pool(commands, self.queries, 0, 2 * self.launches.len() as u32);
        }
    }

    /// Records the time at which everything before is done.
    pub unsafe fn write(&self, commands: vk::CommandBuffer, index: usize) {
        let all = vk::PipelineStageFlags::ALL_COMMANDS;
        // SAFETY: the caller records to the command buffer.
        unsafe { self.vulkan.cmd_write_timestamp(commands, all, self.queries, index as u32) };
    }

    /// Name, bytes and ticks of each launch, once the device has run them; none where it was lost.
    pub fn read(&self) -> Vec<(&'static str, u64, u64)> {
        let mut stamps = vec![[0u64; 2]; self.launches.len()];
        let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
        let (all, stamps) = (&self.launches, stamps.as_flattened_mut());
        // SAFETY: the queries belong to this device.
        match unsafe { self.vulkan.get_query_pool_results(self.queries, 0, stamps, flags) } {
            Ok(()) => all.iter().zip(stamps.chunks(2)).map(|((n, b), s)| (*n, *b, s[1] - s[0])).collect(),
            Err(_) => Vec::new(),
        }
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        // SAFETY: the profile was read, or its submissions are done: a device waits for them before it is dropped.
        unsafe {
            let _ = self.vulkan.device_wait_idle();
            self.vulkan.destroy_query_pool(self.queries, None);
        }
    }
}
