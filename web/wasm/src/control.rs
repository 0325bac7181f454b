//! Pause, resume, stop, and a look at the state: what a run is told while it works.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures_channel::oneshot;
use wasm_bindgen::prelude::*;

/// Held by JavaScript and by the job.
#[wasm_bindgen]
#[derive(Clone, Default)]
pub struct Control(Rc<State>);

#[derive(Default)]
struct State {
    paused: Cell<bool>,
    stopped: Cell<bool>,
    /// Wanted since the last look.
    checkpoint: Cell<bool>,
    waiting: RefCell<Option<oneshot::Sender<()>>>,
}

#[wasm_bindgen]
impl Control {
    /// Nothing is asked yet.
    #[wasm_bindgen(constructor)]
    pub fn new() -> Control {
        Control::default()
    }

    /// After the step that is being taken.
    pub fn pause(&self) {
        self.0.paused.set(true);
    }

    /// Goes on.
    pub fn resume(&self) {
        self.0.paused.set(false);
        self.wake();
    }

    /// After the step that is being taken.
    pub fn stop(&self) {
        self.0.stopped.set(true);
        self.wake();
    }

    /// Wants a checkpoint event after the step that is being taken.
    pub fn checkpoint(&self) {
        self.0.checkpoint.set(true);
        self.wake();
    }
}

impl Control {
    /// Whether to take no further step for now.
    pub fn is_paused(&self) -> bool {
        self.0.paused.get() && !self.is_stopped()
    }

    /// Whether to take no further step at all.
    pub fn is_stopped(&self) -> bool {
        self.0.stopped.get()
    }

    /// Whether a checkpoint was asked for since the last call.
    pub fn wants_checkpoint(&self) -> bool {
        self.0.checkpoint.take()
    }

    /// Waits until something is asked.
    pub async fn changed(&self) {
        let (sender, receiver) = oneshot::channel();
        *self.0.waiting.borrow_mut() = Some(sender);
        let _ = receiver.await;
    }

    fn wake(&self) {
        drop(self.0.waiting.take());
    }
}
