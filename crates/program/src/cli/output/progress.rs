//! Progress of work that may take a while: a bar or a spinner on a terminal; elsewhere a line on stderr after two seconds, and one per
//! minute.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use super::duration;

/// Shorter work is not mentioned without a terminal.
const AFTER: Duration = Duration::from_secs(2);
/// Time between two lines without a terminal.
const EVERY: Duration = Duration::from_secs(60);

/// Whether nothing is shown.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Shows no progress from now on, for `--quiet` and `--json`.
pub fn silence(silent: bool) {
    SILENT.store(silent, Ordering::Relaxed);
}

/// Work under way. Dropping it clears its bar.
pub struct Progress {
    bar: ProgressBar,
    /// The text of each new stage, or of the same stage.
    lines: Option<Sender<(String, Stage)>>,
    length: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    New,
    Same,
}

impl Progress {
    /// Nothing is shown.
    pub fn hidden() -> Progress {
        Progress { bar: ProgressBar::hidden(), lines: None, length: 0 }
    }

    /// Work of `length` units, or of an unknown amount if that is 0.
    pub fn new(name: impl Into<String>, length: usize) -> Progress {
        if SILENT.load(Ordering::Relaxed) {
            return Progress::hidden();
        }
        let name = name.into();
        if !std::io::stderr().is_terminal() {
            let (lines, received) = channel();
            std::thread::spawn(move || print(&received));
            let progress = Progress { bar: ProgressBar::hidden(), lines: Some(lines), length };
            progress.say(&name, Stage::New);
            return Progress { bar: progress.bar.clone().with_message(name), ..progress };
        }
        let template = match length {
            0 => "{spinner:.cyan}          {msg}  {elapsed}",
            _ => "{msg:<10} {bar:20.cyan/black.bright}  {pos}/{len}  {left}",
        };
        let bar = ProgressBar::new(length as u64).with_style(style(template)).with_message(name);
        bar.enable_steady_tick(Duration::from_millis(100));
        Progress { bar, lines: None, length }
    }

    /// Begins the next stage.
    pub fn set_message(&self, name: impl Into<String>) {
        let name = name.into();
        self.say(&name, Stage::New);
        self.bar.set_message(name);
    }

    /// The number of units that are done.
    pub fn set_position(&self, done: usize) {
        self.bar.set_position(done as u64);
        if self.length > 0 {
            self.say(&format!("{} {done}/{}", self.bar.message(), self.length), Stage::Same);
        }
    }

    /// Ends the work and clears the bar.
    pub fn finish_and_clear(self) {
        self.bar.finish_and_clear();
    }

    fn say(&self, text: &str, stage: Stage) {
        if let Some(lines) = &self.lines {
            // The thread ends only after the sender.
            let _ = lines.send((text.to_owned(), stage));
        }
    }
}

/// Prints what takes long, until the sender is gone.
fn print(received: &Receiver<(String, Stage)>) {
    let (mut text, mut began) = (String::new(), Instant::now());
    let mut due = began + AFTER;
    loop {
        match received.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok((new, stage)) => {
                text = new;
                if stage == Stage::New {
                    began = Instant::now();
                    due = began + AFTER;
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                // Work that is still the same says so.
                match began.elapsed() {
                    elapsed if elapsed > EVERY => eprintln!("{text}, {} so far …", duration(elapsed)),
                    _ => eprintln!("{text} …"),
                }
                due = Instant::now() + EVERY;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// A style with the key `left`: the time that is left.
pub fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).expect("templates are tested by running");
    // Nothing is known before the first unit is done.
    let left = |state: &ProgressState, text: &mut dyn std::fmt::Write| {
        if state.pos() > 0 {
            let _ = write!(text, "{} left", duration(state.eta()));
        }
    };
    style.with_key("left", left).progress_chars("━━─")
}
