//! A program that answers lines with lines. Threads write and read, so that full pipes stop nobody.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::super::error::shortened;

/// Longest line of an answer, in bytes.
const LONGEST: u64 = 4096;
/// Lines that may wait to be read before the program has to wait.
const WAITING: usize = 1024;
/// Lines of stderr that an error shows, and their longest.
const WORDS: (usize, usize) = (12, 300);
/// Time for a program to end by itself once its input or output is closed.
const PATIENCE: Duration = Duration::from_millis(500);

/// A running program. It is killed when this is dropped.
pub(super) struct Program {
    child: Child,
    status: Option<ExitStatus>,
    killed: bool,
    /// `None` once its stdin is closed.
    input: Option<Sender<String>>,
    lines: Receiver<Line>,
    words: Arc<Mutex<VecDeque<String>>>,
    listener: JoinHandle<()>,
    /// Whether it has answered nothing yet.
    new: bool,
}

/// Output of a program.
pub(super) enum Line {
    Text(String),
    /// Something that is no line of text, in words.
    Unreadable(&'static str),
    /// It closed its output.
    Ended,
    /// Nothing for the given time.
    None,
}

impl Program {
    /// Starts a program with arguments, without a shell.
    pub fn start(command: &[String]) -> std::io::Result<Program> {
        let mut process = Command::new(&command[0]);
        process.args(&command[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Python would keep its answers until it ends.
        process.env("PYTHONUNBUFFERED", "1");
        // Its own process group: Ctrl-C is for the run, which needs the program up to the end of a step.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut process, 0);
        let mut child = process.spawn()?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (input, waiting) = mpsc::channel();
        let (answers, lines) = mpsc::sync_channel(WAITING);
        let words = Arc::new(Mutex::new(VecDeque::new()));
        let heard = words.clone();
        std::thread::spawn(move || stdin.map(|stdin| write(stdin, &waiting)));
        std::thread::spawn(move || stdout.map(|stdout| read(stdout, &answers)));
        let listener = std::thread::spawn(move || {
            if let Some(stderr) = stderr {
                listen(stderr, &heard);
            }
        });
        let (status, killed, input, new) = (None, false, Some(input), true);
        Ok(Program { child, status, killed, input, lines, words, listener, new })
    }

    /// Hands text to the program. Does nothing if it has ended.
    pub fn send(&self, text: String) {
        if let Some(input) = &self.input {
            let _ = input.send(text);
        }
    }

    /// Whether [`Program::used`] was not called yet.
    pub fn is_new(&self) -> bool {
        self.new
    }

    /// Notes that the program has answered.
    pub fn used(&mut self) {
        self.new = false;
    }

    /// The next line, for which it may take `time`.
    pub fn line(&self, time: Duration) -> Line {
        match self.lines.recv_timeout(time) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => Line::None,
            Err(RecvTimeoutError::Disconnected) => Line::Ended,
        }
    }

    /// The exit status or signal of the program, in words.
    pub fn status(&mut self) -> String {
        let ended = wait_until(PATIENCE, || {
            self.status = self.child.try_wait().ok().flatten();
            self.status.is_some()
        });
        match self.status {
            Some(status) if ended => status.to_string(),
            _ => "it closed its stdout, but runs on".into(),
        }
    }

    /// The last lines of its stderr. Kills the program.
    pub fn last_words(&mut self) -> Vec<String> {
        // A program that has ended is heard to the end.
        let was_over = self.status.is_some();
        self.kill();
        wait_until(if was_over { PATIENCE } else { PATIENCE / 5 }, || self.listener.is_finished());
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        words.iter().filter(|line| !line.trim().is_empty()).map(|line| shortened(line, WORDS.1)).collect()
    }

    /// Kills the program and the programs that it started, and waits for its end.
    fn kill(&mut self) {
        self.input = None;
        // Later its number may be that of another program.
        if std::mem::replace(&mut self.killed, true) {
            return;
        }
        #[cfg(unix)]
        if let Ok(group) = i32::try_from(self.child.id()) {
            // SAFETY: kill has no requirements on memory. The group is the program's own.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
        let _ = self.child.kill();
        if let Ok(status) = self.child.wait() {
            self.status = Some(status);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.status.is_none() {
            // A program that ends with its input may finish its files.
            self.input = None;
            wait_until(PATIENCE, || matches!(self.line(Duration::ZERO), Line::Ended));
        }
        self.kill();
    }
}

/// Whether `holds` becomes true within `time`.
fn wait_until(time: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + time;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn write(mut stdin: impl Write, texts: &Receiver<String>) {
    for text in texts {
        // A program that has ended, or closed its stdin, gets no more. Its missing answers are noticed.
        if stdin.write_all(text.as_bytes()).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

fn read(stdout: impl Read, lines: &SyncSender<Line>) {
    let mut reader = BufReader::new(stdout);
    loop {
        let mut bytes = Vec::new();
        let line = match reader.by_ref().take(LONGEST).read_until(b'\n', &mut bytes) {
            Err(_) | Ok(0) => return,
            Ok(_) if bytes.len() as u64 == LONGEST && !bytes.ends_with(b"\n") => {
                Line::Unreadable("a line of more than 4096 bytes")
            }
            Ok(_) => {
                String::from_utf8(bytes).map_or(Line::Unreadable("a line that is not UTF-8"), Line::Text)
            }
        };
        let is_last = matches!(line, Line::Unreadable(_));
        if lines.send(line).is_err() || is_last {
            return;
        }
    }
}

/// Keeps the last lines.
fn listen(stderr: impl Read, words: &Mutex<VecDeque<String>>) {
    let mut reader = BufReader::new(stderr);
    loop {
        let mut bytes = Vec::new();
        match reader.by_ref().take(LONGEST).read_until(b'\n', &mut bytes) {
            Err(_) | Ok(0) => return,
            Ok(_) => {
                let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
                if words.len() == WORDS.0 {
                    words.pop_front();
                }
                words.push_back(String::from_utf8_lossy(&bytes).trim_end().to_owned());
            }
        }
    }
}
