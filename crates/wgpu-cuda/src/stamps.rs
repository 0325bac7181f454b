//! Timestamps: events of the driver, between which it tells the time.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use wgpu::custom as c;

use crate::driver::{CudaError, Handle};
use crate::state::State;

/// The events of a query set.
pub struct Stamps {
    state: Arc<State>,
    /// They are made when they are first recorded.
    events: Vec<AtomicPtr<c_void>>,
}

impl Stamps {
    pub fn new(state: &Arc<State>, count: u32) -> Stamps {
        let events = (0..count).map(|_| AtomicPtr::new(null_mut())).collect();
        Stamps { state: state.clone(), events }
    }

    fn event(&self, index: u32) -> Handle {
        let place = &self.events[index as usize];
        let mut event = place.load(Ordering::Relaxed);
        if event.is_null() {
            // SAFETY: the driver writes one pointer. 0: with a time.
            self.state.check(unsafe { (self.state.driver.event)(&mut event, 0) }, "cuEventCreate");
            place.store(event, Ordering::Relaxed);
        }
        event
    }

    /// Records the time at which everything before is done.
    pub fn record(&self, index: u32) -> Result<(), CudaError> {
        let (driver, stream) = (self.state.driver, self.state.stream.0);
        // SAFETY: event and stream are this device's.
        driver.check(unsafe { (driver.event_record)(self.event(index), stream) }, "cuEventRecord")
    }

    /// Nanoseconds between two stamps that are done.
    fn between(&self, from: u32, to: u32) -> u64 {
        let mut milliseconds = 0.0f32;
        // SAFETY: the driver writes one number.
        unsafe { (self.state.driver.event_elapsed)(&mut milliseconds, self.event(from), self.event(to)) };
        (f64::from(milliseconds) * 1e6) as u64
    }

    /// Nanoseconds at stamps that are done. Times are f32: the second of a pair is measured from the first, which is more exact.
    pub fn times(&self, range: Range<u32>) -> Vec<u64> {
        let mut times: Vec<u64> = Vec::new();
        for i in range.clone() {
            let time = match (i % 2, times.last()) {
                (1, Some(first)) => first + self.between(i - 1, i),
                _ => self.between(range.start, i),
            };
            times.push(time);
        }
        times
    }
}

impl std::fmt::Debug for Stamps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("timestamps")
    }
}

impl Drop for Stamps {
    fn drop(&mut self) {
        self.state.current();
        for event in self.events.iter().map(|e| e.load(Ordering::Relaxed)).filter(|e| !e.is_null()) {
            // SAFETY: nothing refers to the event; the driver keeps it until it is done.
            unsafe { (self.state.driver.event_destroy)(event) };
        }
    }
}

#[derive(Debug, Clone)]
pub struct Queries(pub Arc<Stamps>);

impl c::QuerySetInterface for Queries {
    fn destroy(&self) {}
}

/// The timestamps behind wgpu's query set.
pub fn stamps(set: &c::DispatchQuerySet) -> Arc<Stamps> {
    set.as_custom::<Queries>().expect("a query set of CUDA").0.clone()
}
