//! Copies between memory of the device and buffers that stay in host memory, in a stream of their own: they run while kernels do.
//!
//! Each such copy starts after all commands before it. A later command waits for it if it uses one of the two buffers.

use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::buffer::{BufferData, Memory};
use crate::command::Command;
use crate::driver::{CudaError, Driver};
use crate::state::{Raw, State, lock};

/// Events that are kept of copies that nothing waited for: beyond, a command waits for a later copy than it needs.
const EVENTS: usize = 1024;

/// The stream of the copies, and the events that order it and the stream of all other commands.
pub struct Copies {
    stream: Raw,
    /// The event that the copies wait for.
    fork: Raw,
    /// Whether there were other commands since the fork.
    is_behind: bool,
    /// The number of the last copy, and of the last that other commands wait for.
    last: u64,
    joined: u64,
    /// An event behind each copy that nothing has waited for, by its number.
    events: VecDeque<(u64, Raw)>,
    free: Vec<Raw>,
}

impl Copies {
    /// Creates the stream. The context is that of this thread.
    pub fn new(driver: &Driver) -> Result<Copies, CudaError> {
        let (mut stream, mut fork) = (null_mut(), null_mut());
        // SAFETY: the driver writes one pointer each. 1: no order with the default stream; 2: without a time.
        unsafe {
            driver.check((driver.stream)(&mut stream, 1), "cuStreamCreate")?;
            driver.check((driver.event)(&mut fork, 2), "cuEventCreate")?;
        }
        Ok(Copies {
            stream: Raw(stream),
            fork: Raw(fork),
            is_behind: true,
            last: 0,
            joined: 0,
            events: VecDeque::new(),
            free: Vec::new(),
        })
    }

    /// Lets the next copy start after all that other commands do now.
    pub fn wait_for_others(&mut self) {
        self.is_behind = true;
    }

    /// Waits for all copies, and frees the stream and its events.
    ///
    /// # Safety
    /// Nothing uses them afterwards.
    pub unsafe fn free(&mut self, driver: &Driver) {
        let events = self.events.drain(..).map(|(_, event)| event).chain(self.free.drain(..));
        // SAFETY: as the caller says.
        unsafe {
            (driver.synchronize)(self.stream.0);
            for event in events.chain([self.fork]) {
                (driver.event_destroy)(event.0);
            }
            (driver.stream_destroy)(self.stream.0);
        }
    }
}

/// Whether a copy runs beside kernels: one buffer stays in host memory, and the other is the device's.
pub fn is_beside(from: &BufferData, to: &BufferData) -> bool {
    let is_device = |buffer: &BufferData| matches!(buffer.memory, Memory::Device(_));
    (from.stays_on_host && is_device(to)) || (is_device(from) && to.stays_on_host)
}

impl State {
    /// Copies bytes of `from` to `to`, whose addresses are given, in the stream of copies.
    pub fn copy_beside(
        &self,
        [from, to]: [&Arc<BufferData>; 2],
        [source, target]: [u64; 2],
        bytes: u64,
    ) -> Result<(), CudaError> {
        let driver = self.driver;
        let mut copies = lock(&self.copies);
        let mut event = match copies.events.len() {
            EVENTS => copies.events.pop_front().map(|(_, event)| event),
            _ => copies.free.pop(),
        }
        .unwrap_or(Raw(null_mut()));
        // SAFETY: the parts lie within their buffers, which live until a command that waits for the copy is over: see `BufferData`.
        unsafe {
            if copies.is_behind {
                driver.check((driver.event_record)(copies.fork.0, self.stream.0), "cuEventRecord")?;
                let wait = (driver.stream_wait)(copies.stream.0, copies.fork.0, 0);
                driver.check(wait, "cuStreamWaitEvent")?;
                copies.is_behind = false;
            }
            let copy = (driver.copy)(target, source, bytes as usize, copies.stream.0);
            driver.check(copy, "cuMemcpyAsync")?;
            if event.0.is_null() {
                driver.check((driver.event)(&mut event.0, 2), "cuEventCreate")?;
            }
            driver.check((driver.event_record)(event.0, copies.stream.0), "cuEventRecord")?;
        }
        copies.last += 1;
        let number = copies.last;
        copies.events.push_back((number, event));
        from.copy.store(number, Ordering::Relaxed);
        to.copy.store(number, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the stream waits for every copy. The next one starts after all commands so far.
    pub fn copies_are_joined(&self) -> bool {
        let mut copies = lock(&self.copies);
        copies.wait_for_others();
        copies.joined == copies.last
    }

    /// Lets the stream wait for the copies of the buffers that `command` uses.
    pub fn join_copies_of(&self, command: &Command) -> Result<(), CudaError> {
        self.join_copies(|joined, last| command.last_copy(joined, last))
    }

    /// Lets the stream wait for the copies of `buffer`.
    pub fn join_copies_with(&self, buffer: &BufferData) -> Result<(), CudaError> {
        self.join_copies(|_, _| buffer.copy.load(Ordering::Relaxed))
    }

    /// Lets the stream wait for the copy whose number `needed` gives, if it does not yet. `needed` gets the last copy that is waited for, and
    /// the last of all.
    fn join_copies(&self, needed: impl Fn(u64, u64) -> u64) -> Result<(), CudaError> {
        let mut copies = lock(&self.copies);
        copies.wait_for_others();
        if copies.joined == copies.last {
            return Ok(());
        }
        let number = needed(copies.joined, copies.last);
        if number <= copies.joined {
            return Ok(());
        }
        while let Some((found, event)) = copies.events.pop_front() {
            copies.free.push(event);
            if found >= number {
                copies.joined = found;
                // SAFETY: the event is this device's.
                let wait = unsafe { (self.driver.stream_wait)(self.stream.0, event.0, 0) };
                return self.driver.check(wait, "cuStreamWaitEvent");
            }
        }
        Ok(())
    }

    /// Waits for all copies, before memory that they may use is freed.
    pub fn settle_copies(&self) {
        let stream = lock(&self.copies).stream;
        // SAFETY: the stream is this device's.
        unsafe { (self.driver.synchronize)(stream.0) };
    }
}
