//! Ctrl-C: the first asks the run to stop after its step, the second ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Exit status of a run that was asked to stop, as shells know it: 128 and the number of the signal.
pub const STATUS: u8 = 130;

/// Whether somebody asked.
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on Ctrl-C, and what service managers send, ask.
    pub fn listen() -> Result<Stop> {
        let asked = Arc::new(AtomicBool::new(false));
        // Not SIGHUP: nohup lets a run go on when its terminal closes, and a handler would take that away.
        for signal in [SIGINT, SIGTERM] {
            // In this order: the second signal finds the flag set, and ends the program.
            flag::register_conditional_shutdown(signal, STATUS.into(), asked.clone())
                .and_then(|_| flag::register(signal, asked.clone()))
                .context("cannot listen for Ctrl-C")?;
        }
        let heard = asked.clone();
        // A handler may not print; this thread ends with the program.
        std::thread::spawn(move || {
            while !heard.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
            }
            eprintln!("\nstopping after this step; Ctrl-C again quits at once, without saving it");
        });
        Ok(Stop(asked))
    }

    /// Whether the run should stop.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
