//! Ctrl-C: the first stops the run after its current step, the second quits the program at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Exit status of an interrupted run, as shells expect it: 128 plus the number of SIGINT.
pub const STATUS: u8 = 130;

/// Whether the user has asked to stop.
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Installs handlers for SIGINT (Ctrl-C) and SIGTERM (service managers).
    pub fn listen() -> Result<Stop> {
        let asked = Arc::new(AtomicBool::new(false));
        // Not SIGHUP: nohup keeps a run alive when its terminal closes, and a handler would undo that.
        for signal in [SIGINT, SIGTERM] {
            // In this order: the second signal finds the flag set and quits the program.
            flag::register_conditional_shutdown(signal, STATUS.into(), asked.clone())
                .and_then(|_| flag::register(signal, asked.clone()))
                .context("cannot listen for Ctrl-C")?;
        }
        let arrived = asked.clone();
        // A signal handler may not print. This thread ends with the program.
        std::thread::spawn(move || {
            while !arrived.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
            }
            eprintln!("\nstopping after this step; press Ctrl-C again to quit at once without saving it");
        });
        Ok(Stop(asked))
    }

    /// Whether a signal has arrived.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
