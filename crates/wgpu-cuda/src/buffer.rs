//! Buffers. Storage is device memory, buffers that are mapped are pinned host memory, and uniforms stay in the host's memory.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use wgpu::custom as c;

use crate::driver::{self, Address};
use crate::state::{State, lock};
use crate::uploads::{Bytes, Piece};

/// The memory that holds the content of a buffer.
pub enum Memory {
    /// Memory of the device; 0 where there was none left, of the host neither.
    Device(Address),
    /// Pinned memory of the host, which the device can address.
    Pinned(Piece),
    /// Memory of the host that kernels get by value.
    Value(Mutex<Vec<u8>>),
}

pub struct BufferData {
    pub state: Arc<State>,
    pub memory: Memory,
    pub size: u64,
    /// The last submission that copies from or to it.
    pub used: AtomicU64,
    /// Whether the device copies to and from memory of the host, where it stays.
    pub stays_on_host: bool,
    /// The last copy beside kernels that uses it.
    pub copy: AtomicU64,
    /// Bytes that the host writes before the first unmapping of a buffer that is not mappable.
    initial: Mutex<Option<Box<[u8]>>>,
}

impl std::fmt::Debug for BufferData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "buffer of {} bytes", self.size)
    }
}

impl BufferData {
    pub fn new(state: &Arc<State>, desc: &wgpu::BufferDescriptor<'_>) -> BufferData {
        use wgpu::BufferUsages as U;
        state.current();
        let bytes = desc.size.max(4) as usize;
        let mappable = desc.usage.intersects(U::MAP_READ | U::MAP_WRITE);
        let memory = if mappable {
            state.pinned(bytes).map(Memory::Pinned).unwrap_or_else(|error| {
                state.report(error);
                Memory::Device(0)
            })
        } else if desc.usage.contains(U::UNIFORM) && !desc.usage.intersects(U::STORAGE | U::COPY_SRC) {
            Memory::Value(Mutex::new(vec![0; bytes.next_multiple_of(16)]))
        } else {
            device(state, bytes)
        };
        let is_pinned = matches!(memory, Memory::Pinned(_));
        let initial = (desc.mapped_at_creation && !is_pinned).then(|| vec![0; bytes].into_boxed_slice());
        BufferData {
            state: state.clone(),
            memory,
            size: desc.size,
            used: AtomicU64::new(0),
            stays_on_host: mappable && desc.usage.contains(U::COPY_SRC | U::COPY_DST),
            copy: AtomicU64::new(0),
            initial: Mutex::new(initial),
        }
    }

    /// The address for the device; `None` for uniforms, and where there was no memory left.
    pub fn address(&self) -> Option<Address> {
        match &self.memory {
            Memory::Device(0) => None,
            Memory::Device(address) => Some(*address),
            Memory::Pinned(piece) => Some(piece.start.addr() as u64),
            Memory::Value(_) => None,
        }
    }

    /// Waits until no submission copies from or to it.
    fn settle(&self) {
        // Without a deadline it does not fail.
        let _ = self.state.advance(Some(self.used.load(Ordering::Relaxed)), None);
    }

    /// Writes bytes of the host, behind what was submitted before.
    pub fn write(self: &Arc<Self>, offset: u64, data: &[u8]) {
        assert!(offset + data.len() as u64 <= self.size.max(4), "a write stays within its buffer");
        match &self.memory {
            Memory::Pinned(piece) => {
                self.settle();
                // SAFETY: the bytes lie within the buffer, and no copy uses it.
                unsafe { data.as_ptr().copy_to_nonoverlapping(piece.start.add(offset as usize), data.len()) };
            }
            Memory::Device(0) => {} // that was reported
            Memory::Device(_) => self.state.write(self.clone(), offset, self.state.bytes(data)),
            Memory::Value(_) => self.state.write(self.clone(), offset, Bytes::Usual(data.to_vec())),
        }
    }
}

/// Device memory with zeros, as WebGPU's buffers begin.
fn device(state: &State, bytes: usize) -> Memory {
    let mut address = 0;
    // SAFETY: the driver writes one address; the buffer is filled in the order of the stream that it is allocated in.
    let mut alloc = || unsafe {
        match state.pooled {
            true => (state.driver.alloc_ordered)(&mut address, bytes, state.stream.0),
            false => (state.driver.alloc)(&mut address, bytes),
        }
    };
    let mut code = alloc();
    if code == driver::OUT_OF_MEMORY {
        // Commands that wait for the stream may hold the last reference to a buffer. Without a deadline it does not fail.
        let _ = state.advance(Some(state.submitted.load(Ordering::Relaxed)), None);
        code = alloc();
    }
    if code != 0 {
        state.check(code, "cuMemAllocAsync");
        return Memory::Device(0);
    }
    state.allocated.fetch_add(bytes as u64, Ordering::Relaxed);
    // SAFETY: the memory was just allocated.
    state.check(unsafe { (state.driver.fill)(address, 0, bytes, state.stream.0) }, "cuMemsetD8Async");
    // Only now: a copy of other buffers may have started meanwhile.
    lock(&state.copies).wait_for_others();
    Memory::Device(address)
}

impl Drop for BufferData {
    fn drop(&mut self) {
        let state = self.state.clone();
        state.current();
        if self.copy.load(Ordering::Relaxed) > 0 {
            state.settle_copies();
        }
        match std::mem::replace(&mut self.memory, Memory::Device(0)) {
            Memory::Device(address) if address != 0 => {
                // SAFETY: nothing refers to the buffer. In the stream, what was submitted before is done by then; elsewhere the call waits.
                unsafe {
                    match state.pooled {
                        true => (state.driver.free_ordered)(address, state.stream.0),
                        false => (state.driver.free)(address),
                    };
                }
                state.allocated.fetch_sub(self.size.max(4), Ordering::Relaxed);
            }
            // Pinned memory has no order: it stays until its last use is over.
            Memory::Pinned(piece) => state.keep(piece, self.used.load(Ordering::Relaxed)),
            _ => {}
        }
    }
}

#[derive(Debug, Clone)]
pub struct Buffer(pub Arc<BufferData>);

/// The buffer behind wgpu's.
pub fn buffer(b: &c::DispatchBuffer) -> Arc<BufferData> {
    b.as_custom::<Buffer>().expect("a buffer of CUDA").0.clone()
}

impl c::BufferInterface for Buffer {
    fn map_async(&self, _: wgpu::MapMode, _: Range<u64>, callback: c::BufferMapCallback) {
        let state = self.0.state.clone();
        let map = move || callback(if state.is_gone() { Err(wgpu::BufferAsyncError) } else { Ok(()) });
        self.0.state.when_done(self.0.used.load(Ordering::Relaxed), Box::new(map));
    }

    fn get_mapped_range(
        &self,
        range: Range<u64>,
    ) -> Result<c::DispatchBufferMappedRange, wgpu::MapRangeError> {
        let start = match (&self.0.memory, lock(&self.0.initial).as_mut()) {
            (Memory::Pinned(piece), _) => NonNull::new(piece.start),
            (_, Some(bytes)) => NonNull::new(bytes.as_mut_ptr()),
            _ => None,
        };
        // wgpu makes no error for it: its own devices panic too.
        let start = start.expect("the buffer is mapped");
        // SAFETY: wgpu checks that the range lies within the buffer.
        let part = unsafe { start.add(range.start as usize) };
        let part = NonNull::slice_from_raw_parts(part, (range.end - range.start) as usize);
        Ok(c::DispatchBufferMappedRange::custom(Mapped(part)))
    }

    fn unmap(&self) {
        let initial = lock(&self.0.initial).take();
        if let Some(bytes) = initial {
            self.0.write(0, &bytes);
        }
    }

    fn destroy(&self) {} // memory is freed when the last reference is dropped
}

/// A mapped range, within which wgpu lets no two parts overlap.
#[derive(Debug)]
struct Mapped(NonNull<[u8]>);
// SAFETY: it is memory of the host, and wgpu hands out one view of it at a time.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl c::BufferMappedRangeInterface for Mapped {
    fn len(&self) -> usize {
        self.0.len()
    }

    unsafe fn read_slice(&self) -> &[u8] {
        // SAFETY: the buffer is mapped while its views live.
        unsafe { self.0.as_ref() }
    }

    unsafe fn write_slice(&mut self) -> wgpu::WriteOnly<'_, [u8]> {
        // SAFETY: as above, and this is the only view.
        unsafe { wgpu::WriteOnly::new(self.0) }
    }
}
