//! Limits on the work of a rendering: how much text it makes, and how deep its values are nested.
//!
//! Limits are counted, not timed, so that the same template gives the same result on every machine.

use std::cell::Cell;

use minijinja::{Error, ErrorKind, State};
use serde_json::Value as Json;

/// Instructions of a rendering. A message takes some hundreds.
pub(super) const FUEL: u64 = 3_000_000;
/// Bytes of text that a rendering may make, apart from those for its input.
const TEXT: usize = 8 << 20;
/// Bytes of text per byte of input.
const PER_BYTE: usize = 64;
/// Bytes that printing a value costs besides its text.
pub(super) const PER_VALUE: usize = 32;
/// Deepest nesting of lists and mappings.
pub(super) const MAX_DEPTH: usize = 64;

thread_local! {
    /// Bytes that the rendering on this thread may still make.
    static LEFT: Cell<usize> = const { Cell::new(TEXT) };
    /// Instructions that it took.
    static USED: Cell<u64> = const { Cell::new(0) };
    /// The limit that it exceeded.
    static EXCEEDED: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Starts to count for a rendering of `input` bytes on this thread.
pub(super) fn start(input: usize) {
    LEFT.set(TEXT.saturating_add(PER_BYTE.saturating_mul(input)));
    EXCEEDED.set(None);
}

/// Notes the instructions of a rendering on this thread.
pub(super) fn ended(state: &State) {
    USED.set(state.fuel_levels().map_or(FUEL, |(used, _)| used));
}

/// Instructions that the last rendering on this thread took.
pub(super) fn used() -> u64 {
    USED.get()
}

/// The limit that the last rendering on this thread exceeded with `error`.
pub(super) fn exceeded(error: &Error) -> Option<&'static str> {
    match error.kind() {
        ErrorKind::OutOfFuel => Some("it does not come to an end"),
        _ => EXCEEDED.get(),
    }
}

/// An error that says which limit a rendering exceeds.
pub(super) fn exceed(limit: &'static str) -> Error {
    EXCEEDED.set(Some(limit));
    Error::new(ErrorKind::InvalidOperation, limit)
}

/// Counts `bytes` of text. Fails if the rendering has made too much of it.
pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    let left = LEFT.get().checked_sub(bytes);
    LEFT.set(left.unwrap_or_default());
    left.map(drop).ok_or_else(|| exceed("it makes too much text"))
}

/// Fails if values are nested too deeply.
pub(super) fn check_depth(depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH { Err(exceed("its values are nested too deeply")) } else { Ok(()) }
}

/// Number of bytes in a JSON value.
pub(super) fn size(value: &Json) -> usize {
    match value {
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(|item| 1 + size(item)).sum(),
        Json::Object(map) => map.iter().map(|(key, value)| 1 + key.len() + size(value)).sum(),
        Json::Null | Json::Bool(_) | Json::Number(_) => 1,
    }
}

/// Bytes that the rendering on this thread may still make.
pub(super) fn left() -> usize {
    LEFT.get()
}
