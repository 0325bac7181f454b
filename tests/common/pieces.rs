//! A file that is read in ranges, and whose reads yield once, as a browser's do.

use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use rullama_train::base::Source;
use rullama_train::base::gguf::source::Reading;

/// The file, and counts of the bytes that were read from it.
#[derive(Clone)]
pub struct Pieces {
    bytes: Arc<Vec<u8>>,
    read: Arc<AtomicU64>,
    largest: Arc<AtomicU64>,
    /// Reads that touch one of these bytes fail.
    broken: Arc<Mutex<Range<u64>>>,
}

#[allow(dead_code, reason = "each test uses a part")]
impl Pieces {
    pub fn of(bytes: Vec<u8>) -> Pieces {
        Pieces {
            bytes: Arc::new(bytes),
            read: Arc::default(),
            largest: Arc::default(),
            broken: Arc::new(Mutex::new(0..0)),
        }
    }

    /// Number of bytes read since the last call, and the largest single read.
    pub fn take_read(&self) -> (u64, u64) {
        (self.read.swap(0, Ordering::Relaxed), self.largest.swap(0, Ordering::Relaxed))
    }

    pub fn break_bytes(&self, range: Range<u64>) {
        *self.broken.lock().expect("one test") = range;
    }
}

impl Source for Pieces {
    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read<'a>(&'a self, ranges: &[Range<u64>]) -> Reading<'a> {
        let ranges = ranges.to_vec();
        let mut waited = false;
        Box::pin(poll_fn(move |context| {
            if !std::mem::replace(&mut waited, true) {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let broken = self.broken.lock().expect("one test").clone();
            if ranges.iter().any(|range| range.start < broken.end && broken.start < range.end) {
                return Poll::Ready(Err(io::Error::other("the cable was pulled")));
            }
            let piece = |range: &Range<u64>| {
                let length = range.end - range.start;
                self.read.fetch_add(length, Ordering::Relaxed);
                self.largest.fetch_max(length, Ordering::Relaxed);
                self.bytes[range.start as usize..range.end as usize].to_vec()
            };
            Poll::Ready(Ok(ranges.iter().map(piece).collect()))
        }))
    }
}
