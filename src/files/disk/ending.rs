//! The end of the process, while other threads may still write.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process is about to end.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Lets every later [`wait_if_ending`] wait for ever.
pub(super) fn begin() {
    ENDING.store(true, Ordering::SeqCst);
}

/// Never returns after [`super::remove_temporary`], as the process is about to end: the missing files are no error.
pub fn wait_if_ending() {
    while ENDING.load(Ordering::SeqCst) {
        std::thread::park();
    }
}
