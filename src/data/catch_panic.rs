//! Panics of crates that read files of strangers, as values.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Whether a panic on this thread is caught.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs code that may panic on a damaged input. Returns `None`, and prints nothing, if it does. Where a panic ends the program, as in a
/// browser, it is printed.
pub(super) fn caught<T>(run: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !CAUGHT.get() || cfg!(panic = "abort") {
                print(panic);
            }
        }));
    });
    let outer = CAUGHT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    CAUGHT.set(outer);
    result.ok()
}
