//! [`Source`]: a file that is read by ranges of bytes, such as one that a browser's user picked, or one on a server.

use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// What a [`Source`] will have read: the bytes of each range, in their order.
pub type Reading<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<Vec<u8>>>> + 'a>>;

/// A file that need not be in memory.
pub trait Source: Send + Sync {
    /// How many bytes it has.
    fn bytes(&self) -> u64;

    /// Reads `ranges`, each within [`Source::bytes`] and whole, or fails. Many small ones may be asked for at once.
    fn read<'a>(&'a self, ranges: &[Range<u64>]) -> Reading<'a>;
}

/// What `future` gives at once: it reads a file in memory, which never waits.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the base is no file in memory; what reads it must be awaited"),
    }
}
