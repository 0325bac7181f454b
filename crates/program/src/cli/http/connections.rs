//! Open connections. When there are too many, the one that has waited longest without a request gives way.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;

/// Maximum number of open connections.
const MAX: usize = 128;

/// The open connections, oldest first.
#[derive(Clone, Default)]
pub struct Connections(Arc<Mutex<Vec<Arc<State>>>>);

/// State of a connection.
#[derive(Default)]
pub struct State {
    /// Whether a whole request has arrived and its response is not sent.
    busy: AtomicBool,
    close: Notify,
}

/// A connection in [`Connections`] until it is dropped.
pub struct Connection {
    pub state: Arc<State>,
    all: Connections,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<State>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection, in place of one that waits if there are too many. `None` if all of them are busy.
    pub fn open(&self) -> Option<Connection> {
        let full = self.lock().len() >= MAX;
        if full && !self.close_one() {
            return None;
        }
        let state = Arc::new(State::default());
        self.lock().push(state.clone());
        Some(Connection { state, all: self.clone() })
    }

    /// Closes the oldest connection that is not busy.
    pub fn close_one(&self) -> bool {
        let mut open = self.lock();
        let waiting = open.iter().position(|state| !state.busy.load(Ordering::Relaxed));
        waiting.map(|at| open.remove(at).close.notify_one()).is_some()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.lock().retain(|state| !Arc::ptr_eq(state, &self.state));
    }
}

impl State {
    /// Waits until the connection must give way.
    pub async fn closed(&self) {
        self.close.notified().await;
    }

    /// Marks the connection as busy while the result lives.
    pub fn busy(self: &Arc<State>) -> Busy {
        self.busy.store(true, Ordering::Relaxed);
        Busy(self.clone())
    }
}

/// A request that is being answered.
pub struct Busy(Arc<State>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Relaxed);
    }
}

impl Busy {
    /// A body that ends the request when it is sent or dropped.
    pub fn until_sent(self, body: Body) -> Sending {
        Sending { body, _busy: self }
    }
}

/// The body of a response, with its request.
pub struct Sending {
    body: Body,
    _busy: Busy,
}

impl HttpBody for Sending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
