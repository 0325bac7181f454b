//! Writing mapped memory without reading it.

use std::mem::MaybeUninit;

/// Lets `fill` write every byte of `place`.
pub(super) fn write_all(mut place: wgpu::WriteOnly<'_, [u8]>, fill: impl FnOnce(&mut [MaybeUninit<u8>])) {
    let (start, len) = (place.as_raw_element_ptr(), place.len());
    // SAFETY: only `place` refers to these bytes, and uninitialized bytes are not read.
    fill(unsafe { std::slice::from_raw_parts_mut(start.as_ptr().cast(), len) });
}
