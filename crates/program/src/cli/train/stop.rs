//! Ctrl-C: the first stops the run after its current step, a later one quits the program at once.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::run_file;

/// Exit status of an interrupted run, as shells expect it: 128 plus the number of SIGINT.
pub const STATUS: u8 = 130;

/// Signals within this time count as one: `timeout` and batch systems send theirs to the process and to its group.
const ONE_SIGNAL: Duration = Duration::from_secs(1);

/// Whether the user has asked to stop.
pub struct Stop {
    arrived: Arc<AtomicBool>,
    /// Whether SIGUSR1 has arrived.
    warned: Arc<AtomicBool>,
    asked: Arc<AtomicBool>,
}

impl Stop {
    /// Listens for Ctrl-C (SIGINT), service managers (SIGTERM), launchers and batch systems (SIGUSR1) and, unless it is ignored, a closed
    /// terminal (SIGHUP). `dir`: folder of the run.
    pub fn listen(dir: PathBuf) -> Result<Stop> {
        let stop = Stop::listen_quietly()?;
        let (arrived, warned, asked) = (stop.arrived.clone(), stop.warned.clone(), stop.asked.clone());
        // A signal handler may neither print nor write files. This thread ends with the program.
        std::thread::spawn(move || wait(&arrived, &warned, &asked, dir));
        Ok(stop)
    }

    /// [`Stop::listen`] without messages: for processes of a run that write no files.
    pub fn listen_quietly() -> Result<Stop> {
        let [arrived, warned, asked] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        for signal in signals() {
            flag::register(signal, arrived.clone()).context("cannot listen for Ctrl-C")?;
        }
        #[cfg(unix)]
        flag::register(signal_hook::consts::SIGUSR1, warned.clone()).context("cannot listen for SIGUSR1")?;
        Ok(Stop { arrived, warned, asked })
    }

    /// Whether a signal has arrived.
    pub fn asked(&self) -> bool {
        [&self.arrived, &self.warned, &self.asked].iter().any(|flag| flag.load(Ordering::Relaxed))
    }
}

fn wait(arrived: &AtomicBool, warned: &AtomicBool, asked: &AtomicBool, dir: PathBuf) {
    let mut first: Option<Instant> = None;
    let mut told = false;
    // The terminal may be gone.
    let tell = |text: &str| drop(writeln!(std::io::stderr(), "\n{text}"));
    loop {
        std::thread::sleep(Duration::from_millis(50));
        // Batch systems send SIGUSR1 several times: it never quits.
        if warned.load(Ordering::Relaxed) && !told {
            told = true;
            tell("stopping after this step, as asked by SIGUSR1");
        }
        if !arrived.load(Ordering::Relaxed) {
            continue;
        }
        // In this order, so that `Stop::asked` never turns false again.
        asked.store(true, Ordering::Relaxed);
        arrived.store(false, Ordering::Relaxed);
        match first {
            None => {
                first = Some(Instant::now());
                tell("stopping after this step; press Ctrl-C again to quit at once without saving it");
            }
            Some(first) if first.elapsed() < ONE_SIGNAL => {}
            Some(_) => {
                run_file::interrupt(&dir);
                // Without the work of a normal exit: the device may be busy.
                signal_hook::low_level::exit(STATUS.into());
            }
        }
    }
}

/// Signals that ask the program to end.
#[cfg(unix)]
pub fn signals() -> Vec<i32> {
    let mut signals = vec![SIGINT, SIGTERM];
    // nohup ignores SIGHUP to keep a run alive when its terminal closes; a handler would undo that.
    if !is_ignored(signal_hook::consts::SIGHUP) {
        signals.push(signal_hook::consts::SIGHUP);
    }
    signals
}

/// Signals that ask the program to end.
#[cfg(not(unix))]
pub fn signals() -> Vec<i32> {
    vec![SIGINT, SIGTERM]
}

/// Whether the signal is ignored, as the parent process may have arranged.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let mut found = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call only fills `found`, which is valid as zeros too.
    let found = unsafe {
        libc::sigaction(signal, std::ptr::null(), found.as_mut_ptr());
        found.assume_init()
    };
    found.sa_sigaction == libc::SIG_IGN
}
