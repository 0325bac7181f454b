//! Launches of CUDA's kernels among the commands of a recording.

use std::ffi::CStr;

use super::Gpu;

/// A launch of a CUDA kernel. Its only parameter is a struct: the addresses of the buffers, then the numbers.
pub struct Launch {
    /// Its name in a profile.
    pub name: &'static str,
    /// PTX text.
    pub module: &'static CStr,
    /// Entry point of the module.
    pub entry: &'static CStr,
    /// Buffers, with the byte at which the part begins that the kernel uses.
    pub buffers: Vec<(wgpu::Buffer, u64)>,
    /// The other members of the parameter.
    pub numbers: Vec<u8>,
    /// Blocks that have work. At most as many run as the GPU has multiprocessors.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory of a block.
    pub shared: u32,
    /// Bytes that it reads and writes, for a profile.
    pub bytes: u64,
}

impl Gpu {
    /// Whether CUDA's kernels can run on this device.
    pub fn has_cuda(&self) -> bool {
        self.cuda.is_some()
    }

    /// Starts CUDA and compiles `module`, so that no later launch waits for it. An error is reported as the device's own.
    pub(super) fn prepare_cuda(&self, module: &'static CStr) {
        if let Some(Err(error)) = self.cuda.as_ref().map(|cuda| cuda.prepare(module)) {
            self.report(error);
        }
    }

    /// Runs `launches` after everything submitted so far. An error is reported as the device's own.
    pub(super) fn launch(&self, launches: &[&Launch]) {
        let cuda = self.cuda.as_ref().expect("kernels for CUDA were chosen where there is CUDA");
        let alone = self.submitting.lock().expect("lock is not poisoned");
        let done = cuda.run(&self.queue, launches, self.profile.is_on());
        drop(alone);
        match done {
            Ok(timers) => self.profile.keep_timers(launches, timers),
            Err(error) => self.report(error),
        }
    }
}
