//! Commands for a running job: pause, resume, stop, write a checkpoint.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures_channel::oneshot;
use wasm_bindgen::prelude::*;

/// Shared by JavaScript and the job.
#[wasm_bindgen]
#[derive(Clone, Default)]
pub struct Control(Rc<State>);

#[derive(Default)]
struct State {
    paused: Cell<bool>,
    stopped: Cell<bool>,
    /// Whether a checkpoint was requested since the last call of `wants_checkpoint`.
    checkpoint: Cell<bool>,
    waiting: RefCell<Option<oneshot::Sender<()>>>,
}

#[wasm_bindgen]
impl Control {
    /// Creates the control of a running job.
    #[wasm_bindgen(constructor)]
    pub fn new() -> Control {
        Control::default()
    }

    /// Pauses after the current step.
    pub fn pause(&self) {
        self.0.paused.set(true);
    }

    /// Resumes.
    pub fn resume(&self) {
        self.0.paused.set(false);
        self.wake();
    }

    /// Stops after the current step.
    pub fn stop(&self) {
        self.0.stopped.set(true);
        self.wake();
    }

    /// Requests a checkpoint event after the current step.
    pub fn checkpoint(&self) {
        self.0.checkpoint.set(true);
        self.wake();
    }
}

impl Control {
    /// Whether the run is to wait.
    pub fn is_paused(&self) -> bool {
        self.0.paused.get() && !self.is_stopped()
    }

    /// Whether the run is to stop.
    pub fn is_stopped(&self) -> bool {
        self.0.stopped.get()
    }

    /// Whether a checkpoint was requested since the last call.
    pub fn wants_checkpoint(&self) -> bool {
        self.0.checkpoint.take()
    }

    /// Waits for the next command.
    pub async fn changed(&self) {
        let (sender, receiver) = oneshot::channel();
        *self.0.waiting.borrow_mut() = Some(sender);
        let _ = receiver.await;
    }

    fn wake(&self) {
        drop(self.0.waiting.take());
    }
}
