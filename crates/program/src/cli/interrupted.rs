//! The end of commands that have nothing to save, in the middle of their work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rullama_train::files;
use signal_hook::flag;

use super::bus_error;
use super::train::{STOPPED, signals};

/// Ends the program at Ctrl-C, and after a base that became shorter, as usual, without the temporary files that would stay behind.
pub fn clean_up() -> Result<()> {
    let arrived = Arc::new(AtomicBool::new(false));
    for signal in signals() {
        flag::register(signal, arrived.clone()).context("cannot listen for Ctrl-C")?;
    }
    // A signal handler may not remove files. This thread ends with the program.
    std::thread::spawn(move || {
        let status = loop {
            if bus_error::arrived() {
                break 1;
            }
            if arrived.load(Ordering::Relaxed) {
                break STOPPED.into();
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        files::remove_temporary();
        // Without the work of a normal exit: the device may be busy.
        signal_hook::low_level::exit(status);
    });
    Ok(())
}
