//! State that the parts of a device share: the stream, and the work on its way.

use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use wgpu::custom as c;

use crate::buffer::BufferData;
use crate::command::Command;
use crate::copies::Copies;
use crate::driver::{self, CudaError, Driver, Handle};
use crate::launch::Modules;
use crate::replay::Replays;
use crate::uploads::{Bytes, Pool};
use crate::worker::Work;

/// Time between two looks at a submission that is waited for up to a deadline.
const LOOK: Duration = Duration::from_micros(20);

/// A pointer of the driver, which any thread may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Raw(pub Handle);
// SAFETY: the driver's objects belong to no thread; the calls set the context first.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

/// The content of a mutex.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("lock is not poisoned")
}

/// An open device.
pub struct State {
    pub driver: &'static Driver,
    /// The number of its device.
    pub number: i32,
    pub context: Raw,
    pub stream: Raw,
    /// Whether memory is allocated and freed in the order of the stream.
    pub pooled: bool,
    /// Whether every kernel is waited for.
    pub sync: bool,
    pub info: wgpu::AdapterInfo,
    pub features: wgpu::Features,
    pub limits: wgpu::Limits,
    /// Whether a kernel may start when all blocks of the one ahead have: its text waits for the end of that one.
    pub overlaps: bool,
    /// Whether the last kernel that was launched allows the next one's launch before it ends.
    pub early: AtomicBool,
    /// The `.target` of kernels.
    pub target: u32,
    /// Bytes of buffers in device memory.
    pub allocated: AtomicU64,
    /// Submissions that were made.
    pub submitted: AtomicU64,
    pub pending: Mutex<Pending>,
    /// Wakes those who wait for a submission's event.
    pub marked: Condvar,
    /// Work of the thread that talks to the stream, in the order of the calls.
    pub work: Mutex<Sender<Work>>,
    pub handler: Mutex<Option<Arc<dyn wgpu::UncapturedErrorHandler>>>,
    pub lost: Mutex<Option<c::BoxDeviceLostCallback>>,
    /// Modules of kernels of PTX text.
    pub known: Modules,
    /// Copies that run beside kernels.
    pub copies: Mutex<Copies>,
    /// Graphs of kernels that come again.
    pub replays: Mutex<Replays>,
    /// Whether kernels that come again become graphs.
    pub graphs: bool,
    /// Pinned memory for uploads.
    pub uploads: Mutex<Pool>,
    /// Whether the device is lost or destroyed.
    pub gone: AtomicBool,
}

/// Submissions that may not be done.
#[derive(Default)]
pub struct Pending {
    /// Each with an event behind it.
    events: VecDeque<(u64, Raw)>,
    done: u64,
    /// The last submission that has an event.
    marked: u64,
    free: Vec<Raw>,
    /// Callbacks for when a submission is done.
    callbacks: Vec<(u64, Callback)>,
}

type Callback = Box<dyn FnOnce() + Send>;

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CUDA")
    }
}

impl State {
    /// Makes the context that of this thread.
    pub fn current(&self) {
        // SAFETY: the context lives as long as this value.
        unsafe { (self.driver.set_current)(self.context.0) };
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Tells the device's user of an error: of the loss, where it is one.
    pub fn report(&self, error: CudaError) {
        if error.is_loss() {
            return self.lose(wgpu::DeviceLostReason::Unknown, error.text);
        }
        if self.is_gone() {
            return; // a consequence
        }
        let description = error.text.clone();
        let error = match error.code {
            driver::OUT_OF_MEMORY => wgpu::Error::OutOfMemory { source: Box::new(error) },
            _ => wgpu::Error::Internal { source: Box::new(error), description },
        };
        let handler = lock(&self.handler).clone();
        match handler {
            Some(handler) => handler(error),
            None => panic!("{error}"), // as wgpu does
        }
    }

    /// Runs no more commands.
    pub fn lose(&self, reason: wgpu::DeviceLostReason, text: String) {
        self.gone.store(true, Ordering::Relaxed);
        let callback = lock(&self.lost).take();
        if let Some(callback) = callback {
            callback(reason, text);
        }
    }

    /// Reports an error, where `code` is one.
    pub fn check(&self, code: i32, what: &str) {
        if let Err(error) = self.driver.check(code, what) {
            self.report(error);
        }
    }

    /// Submits commands. Returns the submission's number.
    pub fn submit(&self, commands: Vec<Command>) -> u64 {
        let work = lock(&self.work);
        let index = self.submitted.fetch_add(1, Ordering::Relaxed) + 1;
        commands.iter().for_each(|command| command.note(index));
        // Without the thread, the device is lost, and nobody waits.
        let _ = work.send(Work::Submit(commands, index));
        index
    }

    /// Writes `bytes` to a buffer, behind what was submitted before.
    pub fn write(&self, to: Arc<BufferData>, offset: u64, mut bytes: Bytes) {
        let work = lock(&self.work);
        bytes.used_before(self.submitted.load(Ordering::Relaxed) + 1);
        let _ = work.send(Work::Write(to, offset, bytes));
    }

    /// Copies bytes to `address` in the order of the stream.
    pub fn send(&self, address: u64, data: &[u8]) {
        // SAFETY: the caller has checked that the bytes lie within a buffer. The driver has read pageable memory when the call returns; pinned
        // memory is kept until the stream is past the copy.
        let code = unsafe { (self.driver.upload)(address, data.as_ptr().cast(), data.len(), self.stream.0) };
        self.check(code, "cuMemcpyHtoDAsync");
    }

    /// The last submission that is done.
    pub fn done(&self) -> u64 {
        self.current();
        if let Some(error) = self.settle_done() {
            self.report(error);
        }
        lock(&self.pending).done
    }

    /// Calls `callback` when submission `index` is done.
    pub fn when_done(&self, index: u64, callback: Callback) {
        lock(&self.pending).callbacks.push((index, callback));
    }

    /// Marks the end of submission `index`.
    pub fn mark(&self, index: u64) {
        let mut pending = lock(&self.pending);
        let mut code = 0;
        if self.is_gone() {
            pending.done = index;
        } else {
            let mut event = pending.free.pop().unwrap_or(Raw(null_mut()));
            // SAFETY: the event is the driver's, and lives as long as this value.
            code = unsafe {
                if event.0.is_null() {
                    (self.driver.event)(&mut event.0, 2); // without a time
                }
                (self.driver.event_record)(event.0, self.stream.0)
            };
            pending.events.push_back((index, event));
        }
        pending.marked = index;
        drop(pending);
        self.marked.notify_all();
        self.check(code, "cuEventRecord");
    }

    /// Waits until submission `index` has an event, or a while where there is a deadline.
    fn wait_for_mark(&self, index: u64, deadline: Option<Instant>) {
        let pending = lock(&self.pending);
        let is_open = |pending: &mut Pending| pending.marked < index;
        match deadline {
            Some(_) => drop(self.marked.wait_timeout_while(pending, LOOK, is_open)),
            None => drop(self.marked.wait_while(pending, is_open)),
        }
    }

    /// Takes note of submissions that are done, and waits for `until`. Returns whether everything is done.
    pub fn advance(&self, until: Option<u64>, deadline: Option<Instant>) -> Result<bool, wgpu::PollError> {
        self.current();
        loop {
            let failed = self.settle_done();
            if let Some(error) = failed {
                self.report(error);
            }
            let submitted = self.submitted.load(Ordering::Relaxed);
            let (ready, next, empty) = lock(&self.pending).take_ready(until, submitted);
            ready.into_iter().for_each(|callback| callback());
            match (next, deadline) {
                (None, _) => return Ok(empty),
                (Some(_), Some(deadline)) if Instant::now() >= deadline => {
                    return Err(wgpu::PollError::Timeout);
                }
                (Some(Next::Mark(index)), _) => self.wait_for_mark(index, deadline),
                (Some(Next::Event(_)), Some(_)) => std::thread::sleep(LOOK),
                // SAFETY: the event is pending, and only this function takes it from there.
                (Some(Next::Event(event)), None) => unsafe {
                    (self.driver.event_wait)(event.0);
                },
            }
        }
    }

    /// Removes events that are over. After a loss all are.
    fn settle_done(&self) -> Option<CudaError> {
        let mut pending = lock(&self.pending);
        while let Some((index, event)) = pending.events.front().copied() {
            let code = match self.is_gone() {
                true => 0,
                // SAFETY: the event is the driver's.
                false => unsafe { (self.driver.event_query)(event.0) },
            };
            if code == driver::NOT_READY {
                break;
            }
            pending.events.pop_front();
            pending.free.push(event);
            pending.done = index;
            if let Err(error) = self.driver.check(code, "the GPU") {
                return Some(error);
            }
        }
        None
    }
}

impl Pending {
    /// Callbacks of what is done, what to wait for until submission `until` is done, and whether all of `submitted` are.
    fn take_ready(&mut self, until: Option<u64>, submitted: u64) -> (Vec<Callback>, Option<Next>, bool) {
        let done = self.done;
        let (ready, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.callbacks).into_iter().partition(|(index, _)| *index <= done);
        self.callbacks = later;
        let next = until.filter(|until| done < *until).map(|until| {
            match self.events.iter().find(|(index, _)| *index >= until) {
                Some((_, event)) => Next::Event(*event),
                None => Next::Mark(until),
            }
        });
        (ready.into_iter().map(|(_, callback)| callback).collect(), next, done >= submitted)
    }
}

/// The next thing to wait for, until a submission is done.
enum Next {
    /// Its event.
    Mark(u64),
    /// The end of its event.
    Event(Raw),
}

impl Drop for State {
    fn drop(&mut self) {
        self.current();
        let mut pending = std::mem::take(&mut *lock(&self.pending));
        let events = pending.events.drain(..).map(|(_, event)| event).chain(pending.free.drain(..));
        // SAFETY: nothing else refers to the stream, and the events are this device's.
        unsafe {
            (self.driver.synchronize)(self.stream.0);
            lock(&self.copies).free(self.driver);
            *lock(&self.replays) = Replays::default();
            self.free_pieces();
            events.for_each(|event| {
                (self.driver.event_destroy)(event.0);
            });
            lock(&self.known).modules().for_each(|module| {
                (self.driver.unload)(module.0);
            });
            (self.driver.stream_destroy)(self.stream.0);
            (self.driver.release)(self.number);
        }
    }
}
