//! Pinned memory of the host, which is used again: to allocate it takes milliseconds. The driver copies from it while the host and the GPU go on.
//! From other memory, it waits for all work before the copy.

use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex};

use wgpu::custom as c;

use crate::driver::CudaError;
use crate::state::{State, lock};

/// Up to so many bytes, the driver copies them itself before its call returns.
const SMALL: usize = 64 << 10;
/// Most bytes of pinned memory of uploads, and of what nobody refers to. Beyond, writes wait.
const MOST: usize = 512 << 20;

/// A piece of pinned memory.
#[derive(Debug)]
pub struct Piece {
    pub start: *mut u8,
    size: usize,
    /// The submission after which nothing reads it.
    used: u64,
}
// SAFETY: the memory belongs to whoever has the piece.
unsafe impl Send for Piece {}
// SAFETY: a shared piece is that of a buffer, written only through mapped ranges, whose order wgpu keeps, and by the device.
unsafe impl Sync for Piece {}

/// Pieces that nobody refers to, and their bytes with those of uploads.
#[derive(Debug, Default)]
pub struct Pool {
    idle: Vec<Piece>,
    bytes: usize,
}

impl Pool {
    /// A piece of at least `bytes`, and at most twice as many, that no submission after `done` reads or writes.
    fn take(&mut self, bytes: usize, done: u64) -> Option<Piece> {
        let fits = |piece: &Piece| piece.used <= done && (bytes..=2 * bytes).contains(&piece.size);
        let found = self.idle.iter().position(fits)?;
        Some(self.idle.swap_remove(found))
    }
}

impl State {
    /// Pinned memory for `bytes`; `None` where there is no room for it, or it is not worth it.
    pub fn piece(&self, bytes: usize) -> Option<Piece> {
        if bytes <= SMALL {
            return None;
        }
        let done = self.done();
        let mut pool = lock(&self.uploads);
        if let Some(piece) = pool.take(bytes, done) {
            return Some(piece);
        }
        let size = bytes.next_multiple_of((bytes.next_power_of_two() / 8).max(SMALL));
        self.shrink(&mut pool, done, MOST.checked_sub(size)?);
        if pool.bytes + size > MOST {
            return None;
        }
        let piece = self.allocate(size).ok()?;
        pool.bytes += size;
        Some(piece)
    }

    /// Pinned memory with zeros for a buffer of `bytes`, however much there is.
    pub fn pinned(&self, bytes: usize) -> Result<Piece, CudaError> {
        let done = self.done();
        let mut pool = lock(&self.uploads);
        let piece = match pool.take(bytes, done) {
            Some(piece) => {
                pool.bytes -= piece.size;
                piece
            }
            None => self.allocate(bytes)?,
        };
        // SAFETY: the piece has so many bytes, and nothing else refers to it.
        unsafe { piece.start.write_bytes(0, bytes) };
        Ok(piece)
    }

    fn allocate(&self, size: usize) -> Result<Piece, CudaError> {
        let mut start = null_mut();
        self.current();
        // SAFETY: the driver writes one pointer. 1: for every context.
        self.driver.check(unsafe { (self.driver.host_alloc)(&mut start, size, 1) }, "cuMemHostAlloc")?;
        Ok(Piece { start: start.cast(), size, used: 0 })
    }

    /// Frees pieces that no submission after `done` reads or writes, until `most` bytes are left.
    fn shrink(&self, pool: &mut Pool, done: u64, most: usize) {
        while pool.bytes > most {
            let Some(found) = pool.idle.iter().position(|piece| piece.used <= done) else { return };
            let piece = pool.idle.swap_remove(found);
            pool.bytes -= piece.size;
            // SAFETY: nothing refers to the piece.
            unsafe { (self.driver.host_free)(piece.start.cast()) };
        }
    }

    /// A copy of `data`.
    pub fn bytes(&self, data: &[u8]) -> Bytes {
        match self.piece(data.len()) {
            Some(piece) => {
                assert!(data.len() <= piece.size, "the piece has room");
                // SAFETY: the piece has room, and nothing else refers to it.
                unsafe { data.as_ptr().copy_to_nonoverlapping(piece.start, data.len()) };
                Bytes::Pinned(piece, data.len())
            }
            None => Bytes::Usual(data.to_vec()),
        }
    }

    /// Takes bytes back whose copy is in the stream.
    pub fn give_back(&self, bytes: Bytes) {
        if let Bytes::Pinned(piece, _) = bytes {
            lock(&self.uploads).idle.push(piece);
        }
    }

    /// Takes the memory of a buffer back: submission `used` may still read or write it.
    pub fn keep(&self, piece: Piece, used: u64) {
        let done = self.done();
        let mut pool = lock(&self.uploads);
        pool.bytes += piece.size;
        pool.idle.push(Piece { used, ..piece });
        self.shrink(&mut pool, done, MOST);
    }

    /// Frees all pieces, after all work is done.
    pub fn free_pieces(&self) {
        for piece in std::mem::take(&mut *lock(&self.uploads)).idle {
            // SAFETY: nothing reads the piece.
            unsafe { (self.driver.host_free)(piece.start.cast()) };
        }
    }
}

/// Bytes on their way to a buffer.
#[derive(Debug)]
pub enum Bytes {
    /// So many bytes of pinned memory.
    Pinned(Piece, usize),
    /// Other memory of the host.
    Usual(Vec<u8>),
}

impl Bytes {
    pub fn len(&self) -> usize {
        match self {
            Bytes::Pinned(_, len) => *len,
            Bytes::Usual(bytes) => bytes.len(),
        }
    }

    pub fn as_slice(&self) -> &[u8] {
        match self {
            // SAFETY: the piece has so many bytes, which were written.
            Bytes::Pinned(piece, len) => unsafe { std::slice::from_raw_parts(piece.start, *len) },
            Bytes::Usual(bytes) => bytes,
        }
    }

    /// Names the submission after which the stream has read them.
    pub fn used_before(&mut self, index: u64) {
        if let Bytes::Pinned(piece, _) = self {
            piece.used = index;
        }
    }
}

/// Memory for bytes that wgpu's user writes before they are copied to a buffer.
#[derive(Debug)]
pub struct Staged {
    state: Arc<State>,
    size: usize,
    bytes: Mutex<Option<Bytes>>,
}

impl Staged {
    pub fn new(state: &Arc<State>, size: usize) -> Staged {
        let bytes = match state.piece(size) {
            Some(piece) => Bytes::Pinned(piece, size),
            None => Bytes::Usual(vec![0; size]),
        };
        Staged { state: state.clone(), size, bytes: Mutex::new(Some(bytes)) }
    }

    /// The bytes, once they are written.
    pub fn take(&self) -> Bytes {
        lock(&self.bytes).take().expect("staging memory is sent once")
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(bytes) = lock(&self.bytes).take() {
            self.state.give_back(bytes);
        }
    }
}

impl c::QueueWriteBufferInterface for Staged {
    fn len(&self) -> usize {
        self.size
    }

    unsafe fn write_slice(&mut self) -> wgpu::WriteOnly<'_, [u8]> {
        let bytes = self.bytes.get_mut().expect("lock is not poisoned").as_mut();
        let start = match bytes.expect("it is sent when nobody writes it") {
            Bytes::Pinned(piece, _) => piece.start,
            Bytes::Usual(bytes) => bytes.as_mut_ptr(),
        };
        let start = NonNull::new(start).expect("memory has an address");
        // SAFETY: the memory has so many bytes, and this is its only view.
        unsafe { wgpu::WriteOnly::new(NonNull::slice_from_raw_parts(start, self.size)) }
    }
}
