//! Commands on stdin, from the program that started the run: `stop`, `pause`, `resume`, `checkpoint`, one per line.

use std::io::BufRead;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rullama_train::run::{Asked, Phase};

/// Signals are looked for in this interval while a run is paused.
const INTERVAL: Duration = Duration::from_millis(100);

/// Requests of the other program. The end of stdin means that it is gone: the run stops, with a checkpoint.
#[derive(Clone, Default)]
pub struct Commands(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    stopped: bool,
    paused: bool,
    checkpoint: bool,
    /// Whether the run has told that it is paused.
    told: bool,
}

impl Commands {
    /// Reads stdin until its end, on a thread of its own.
    pub fn listen() -> Commands {
        let commands = Commands::default();
        let read = commands.clone();
        std::thread::spawn(move || {
            let lines = std::io::stdin().lock().lines();
            lines.map_while(Result::ok).for_each(|line| read.take(line.trim()));
            read.take("stop");
        });
        commands
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, command: &str) {
        let mut state = self.lock();
        match command {
            "stop" => state.stopped = true,
            "pause" => state.paused = true,
            "resume" => state.paused = false,
            "checkpoint" => state.checkpoint = true,
            other => eprintln!("note: unknown command {other:?}, expected stop, pause, resume or checkpoint"),
        }
        self.0.1.notify_all();
    }

    /// Whether the run is to stop.
    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// The next request, after a pause if there is one. `interrupted` looks for signals; `tell` gets `paused` and `resumed`.
    pub fn next(&self, interrupted: impl Fn() -> bool, tell: impl Fn(&str)) -> Asked {
        let mut state = self.lock();
        loop {
            if state.stopped || interrupted() {
                return Asked::Stop;
            }
            if std::mem::take(&mut state.checkpoint) {
                return Asked::Save;
            }
            let paused = state.paused;
            let told = std::mem::replace(&mut state.told, paused);
            match (paused, told) {
                (true, false) => tell("paused"),
                (false, true) => tell("resumed"),
                _ => {}
            }
            if !paused {
                return Asked::Nothing;
            }
            let waited = self.0.1.wait_timeout(state, INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// When the other program was last told about the progress of a phase.
#[derive(Default)]
pub struct Progress(Option<(Phase, Instant)>);

impl Progress {
    /// Least time between two messages about a phase.
    const PAUSE: Duration = Duration::from_millis(500);

    /// Whether a phase has begun, or some time has passed since the last message.
    pub fn is_due(&mut self, phase: Phase) -> bool {
        let due = self.0.is_none_or(|(last, told)| last != phase || told.elapsed() >= Progress::PAUSE);
        if due {
            self.0 = Some((phase, Instant::now()));
        }
        due
    }

    /// The name of a phase in messages.
    pub fn name(phase: Phase) -> &'static str {
        match phase {
            Phase::Reference => "reference",
            Phase::Completions => "completions",
            Phase::Rewards => "rewards",
            Phase::Validation => "validation",
            Phase::Replies => "replies",
            Phase::Answers => "answers",
            Phase::General => "general",
            Phase::Export => "export",
        }
    }
}
