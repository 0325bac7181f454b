//! Launches of CUDA's kernels among the commands of a recording.

use std::ffi::CStr;
use std::hash::{Hash, Hasher};

use super::{Gpu, MatrixInstructions};

/// PTX text of a file in `shaders`, whose path the arguments make, with NUL at its end; empty in programs that never run it.
macro_rules! ptx {
    ($($part:expr),+) => {
        if cfg!(has_cuda) {
            concat!(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/", $($part),+)), "\0").as_bytes()
        } else {
            b"\0".as_slice()
        }
    };
}
pub(crate) use ptx;

/// The PTX texts of a kernel, whose paths are those before and behind the name of the instructions.
macro_rules! texts {
    ($before:literal, $behind:literal) => {
        $crate::gpu::Texts {
            mma: $crate::gpu::ptx!($before, "-mma", $behind),
            wgmma: $crate::gpu::ptx!($before, "-wgmma", $behind),
        }
    };
}
pub(crate) use texts;

/// PTX texts of one kernel, by its matrix instructions.
pub struct Texts {
    /// With `mma.sync`.
    pub mma: &'static [u8],
    /// With `wgmma`.
    pub wgmma: &'static [u8],
}

impl Texts {
    /// The kernel `name` with `instructions`.
    pub fn entry(&self, instructions: MatrixInstructions, name: &'static CStr) -> Entry {
        let text = match instructions {
            MatrixInstructions::Mma => self.mma,
            MatrixInstructions::Wgmma => self.wgmma,
        };
        Entry { text, name }
    }
}

/// A kernel of CUDA: PTX text that ends with NUL, and an entry point in it. Its text is known by its address: it is too long to be compared
/// at each launch.
#[derive(Clone, Copy)]
pub struct Entry {
    /// PTX text.
    pub text: &'static [u8],
    /// Name of the entry point.
    pub name: &'static CStr,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        (self.text.as_ptr(), self.name) == (other.text.as_ptr(), other.name)
    }
}

impl Eq for Entry {}

impl Hash for Entry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.text.as_ptr(), self.name).hash(state);
    }
}

/// A launch of a CUDA kernel. Its only parameter is a struct: the addresses of the buffers, then the numbers.
pub struct Launch {
    /// Its name in a profile.
    pub name: &'static str,
    /// The kernel.
    pub entry: Entry,
    /// Buffers, with the byte at which the part begins that the kernel uses.
    pub buffers: Vec<(wgpu::Buffer, u64)>,
    /// The other members of the parameter.
    pub numbers: Vec<u8>,
    /// Blocks along each axis.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// Bytes that it reads and writes, for a profile.
    pub bytes: u64,
}

impl Launch {
    /// A launch that reads or writes each of its buffers as a whole, for a profile, from where its part begins.
    pub fn of_buffers(
        name: &'static str,
        entry: Entry,
        buffers: &[(wgpu::Buffer, u64)],
        numbers: &impl bytemuck::Pod,
        blocks: [u32; 3],
        threads: u32,
    ) -> Launch {
        let bytes = buffers.iter().map(|(buffer, start)| buffer.size() - start).sum();
        let numbers = bytemuck::bytes_of(numbers).to_vec();
        Launch { name, entry, buffers: buffers.to_vec(), numbers, blocks, threads, shared: 0, bytes }
    }
}

impl Gpu {
    /// The instructions of the kernels of CUDA that can run on this device; `None` if it runs none.
    pub fn matrix_instructions(&self) -> Option<MatrixInstructions> {
        self.cuda.as_ref()?.matrix_instructions()
    }

    /// Multiprocessors of the GPU; 1 where it is not CUDA's device.
    pub fn multiprocessors(&self) -> usize {
        self.cuda.as_ref().map_or(1, |cuda| cuda.multiprocessors())
    }

    /// Compiles a kernel of CUDA, so that no later launch waits for it. An error is reported as the device's own.
    pub(super) fn prepare_cuda(&self, entry: Entry) {
        if let Some(Err(error)) = self.cuda.as_ref().map(|cuda| cuda.prepare(entry)) {
            self.report(error);
        }
    }
}
