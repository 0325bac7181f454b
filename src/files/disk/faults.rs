//! Faults of the disk, for tests: calls that change files are counted, and fail on request.

use std::cell::Cell;
use std::io::{self, ErrorKind, Write};
use std::str::FromStr;

use super::ending::wait_if_ending;

/// A fault of the disk. Calls are numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// One call fails.
    Once(usize),
    /// The disk is full: from this call on, all calls that need space fail.
    Full(usize),
    /// The disk is gone: from this call on, all calls fail.
    Gone(usize),
}

impl FromStr for Fault {
    type Err = String;

    /// Parses `once:7`, `full:7` or `gone:7`.
    fn from_str(text: &str) -> Result<Fault, String> {
        let expected = || format!("{text:?} is no fault, expected once:N, full:N or gone:N");
        let (kind, call) = text.split_once(':').ok_or_else(expected)?;
        let call = call.parse().map_err(|_| expected())?;
        match kind {
            "once" => Ok(Fault::Once(call)),
            "full" => Ok(Fault::Full(call)),
            "gone" => Ok(Fault::Gone(call)),
            _ => Err(expected()),
        }
    }
}

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Call {
    /// It needs space on the disk: creating, writing, flushing.
    Allocate,
    /// It moves, removes or asks.
    Other,
}

thread_local! {
    /// The fault of this thread, and the number of calls since it was set.
    static FAULT: Cell<(Option<Fault>, usize)> = const { Cell::new((None, 0)) };
}

/// Sets the fault of this thread, and counts its calls from the beginning.
pub fn set(fault: Option<Fault>) {
    FAULT.set((fault, 0));
}

/// Number of calls of this thread since [`set`].
pub fn calls() -> usize {
    FAULT.get().1
}

/// Counts a call. Fails if the fault says so, and waits for the end of a process that is ending.
pub(super) fn pass(call: Call) -> io::Result<()> {
    wait_if_ending();
    let (fault, earlier) = FAULT.get();
    let number = earlier + 1;
    FAULT.set((fault, number));
    match fault {
        Some(Fault::Once(n)) if number == n => Err(io::Error::other("a fault of the disk")),
        Some(Fault::Gone(n)) if number >= n => Err(io::Error::other("the disk is gone")),
        Some(Fault::Full(n)) if number >= n && call == Call::Allocate => Err(ErrorKind::StorageFull.into()),
        _ => Ok(()),
    }
}

/// A writer that can fail, after half of the bytes.
pub(super) struct Faulty<W>(pub W);

impl<W: Write> Write for Faulty<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(fault) = pass(Call::Allocate) {
            self.0.write_all(&bytes[..bytes.len() / 2])?;
            return Err(fault);
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
