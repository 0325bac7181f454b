//! [`Source`]: a file that is read by ranges of bytes, such as one that a browser's user picked, or one on a server.

use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// A pending [`Source::read`]: it gives the bytes of each range, in the order of the ranges.
pub type Reading<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<Vec<u8>>>> + 'a>>;

/// A file that need not be in memory.
pub trait Source: Send + Sync {
    /// Size of the file in bytes.
    fn bytes(&self) -> u64;

    /// Reads `ranges`, each within [`Source::bytes`], completely or fails. One call may ask for many small ranges.
    fn read<'a>(&'a self, ranges: &[Range<u64>]) -> Reading<'a>;
}

/// The result of a future that is ready at once, such as a read of a file in memory.
///
/// # Panics
/// If the future would wait.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the base is not a file in memory; await the call that reads it"),
    }
}
