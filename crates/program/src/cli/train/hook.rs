//! `log.hook`: a command that gets every event of a run on its stdin, one JSON object per line.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Time for the command to end after the last line.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running command. It never delays a step: lines wait for it in memory.
pub struct Hook {
    lines: Sender<String>,
    worker: JoinHandle<Option<String>>,
}

impl Hook {
    /// Starts `command` in a shell. Its environment has the output folder `dir` as `RULLAMA_RUN`.
    pub fn start(command: &str, dir: &Path) -> Result<Hook> {
        let mut shell = shell(command);
        shell.env("RULLAMA_RUN", dir).stdin(Stdio::piped()).stdout(Stdio::null());
        let child = shell.spawn().with_context(|| format!("log.hook: cannot start {command:?}"))?;
        let (lines, waiting) = mpsc::channel();
        let worker = std::thread::spawn(move || pass_on(child, waiting));
        Ok(Hook { lines, worker })
    }

    /// Hands a line to the command. Does nothing if the command has ended.
    pub fn send(&self, line: String) {
        let _ = self.lines.send(line);
    }

    /// Closes the command's stdin and waits for its end. Returns a problem to report.
    pub fn finish(self) -> Option<String> {
        drop(self.lines);
        let began = Instant::now();
        while !self.worker.is_finished() {
            if began.elapsed() > PATIENCE {
                return Some("log.hook is still running; it has all lines".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.worker.join().unwrap_or_default()
    }
}

#[cfg(unix)]
fn shell(command: &str) -> Command {
    use std::os::unix::process::CommandExt;
    let mut shell = Command::new("sh");
    // Its own process group: Ctrl-C is for the run, which then has more to tell.
    shell.args(["-c", command]).process_group(0);
    shell
}

#[cfg(not(unix))]
fn shell(command: &str) -> Command {
    let mut shell = Command::new("cmd");
    shell.args(["/C", command]);
    shell
}

/// Writes the lines to the command, then waits for its end.
fn pass_on(mut child: Child, lines: Receiver<String>) -> Option<String> {
    let mut stdin = child.stdin.take()?;
    let mut refused = false;
    for line in lines {
        // A command that has ended, or closed its stdin, gets no more lines.
        refused = refused || stdin.write_all((line + "\n").as_bytes()).is_err();
    }
    drop(stdin);
    match child.wait() {
        Ok(status) if !status.success() => {
            Some(format!("log.hook failed: {status}; the run is not affected"))
        }
        Ok(_) if refused => Some("log.hook ended before the run, so it has not seen all lines".into()),
        Ok(_) => None,
        Err(error) => Some(format!("log.hook: {error}")),
    }
}
