//! The reward `command`: a program that gets a JSON object per completion on stdin, and writes a number or null per line.

mod program;

use std::time::{Duration, Instant};

use serde_json::json;

use super::error::shortened;
use super::{Completion, Judge, RewardError, Values};
use program::{Line, Program};

/// Time after the first answers in which a line too many is noticed at once. Later it is noticed before the next completions.
const GRACE: Duration = Duration::from_millis(50);

/// The reward `command`.
pub(super) struct Command {
    name: String,
    command: Vec<String>,
    timeout: Duration,
    /// `None` after a failure.
    running: Option<Program>,
}

impl Command {
    /// Starts the program.
    pub fn new(name: &str, command: &[String], timeout: f64) -> Result<Command, RewardError> {
        let (name, command, timeout) = (name.into(), command.to_vec(), Duration::from_secs_f64(timeout));
        let mut reward = Command { name, command, timeout, running: None };
        reward.running = Some(reward.start()?);
        Ok(reward)
    }

    fn start(&self) -> Result<Program, RewardError> {
        Program::start(&self.command).map_err(|error| RewardError::Key {
            reward: self.name.clone(),
            key: "command",
            message: format!("cannot start {:?}: {error}; check its name and path", self.command[0]),
        })
    }

    /// An error that ends with the last words of the program, which is killed.
    fn failed(&self, mut program: Program, problem: &str) -> RewardError {
        let words = program.last_words();
        let words = match words.is_empty() {
            true => "; it wrote nothing to stderr".to_owned(),
            false => format!("; the end of its stderr: {}", words.join(" | ")),
        };
        let message = format!("{} {problem}{words}", self.command.join(" "));
        RewardError::Failed { reward: self.name.clone(), message }
    }

    /// The values of `count` completions that the program was sent, or what went wrong.
    fn answers(&self, program: &mut Program, count: usize) -> Result<Values, String> {
        let end = Instant::now() + self.timeout;
        let mut values = Values::new();
        while values.len() < count {
            let so_far = format!("after {} of {count} lines", values.len());
            match program.line(end.saturating_duration_since(Instant::now())) {
                Line::Text(line) => values.push(value(&line, values.len() + 1)?),
                Line::Ended => return Err(format!("ended {so_far} ({})", program.status())),
                Line::Unreadable(problem) => return Err(format!("wrote {problem} {so_far}")),
                Line::None => {
                    let seconds = self.timeout.as_secs_f64();
                    return Err(format!(
                        "wrote nothing more {so_far}, within {seconds} s; it hangs, does not flush its output after each line, or needs a \
                         higher rewards.timeout"
                    ));
                }
            }
        }
        let patience = if program.is_new() { GRACE } else { Duration::ZERO };
        match program.line(patience) {
            Line::Text(line) => Err(too_many(&line)),
            Line::Unreadable(problem) => {
                Err(format!("wrote {problem} after the {count} lines that were expected"))
            }
            // The end is of interest if there are more completions.
            Line::Ended | Line::None => Ok(values),
        }
    }
}

impl Judge for Command {
    fn score(&mut self, completions: &[Completion<'_>]) -> Result<Values, RewardError> {
        let mut program = match self.running.take() {
            Some(program) => program,
            None => self.start()?,
        };
        // Lines that came since the last call.
        match program.line(Duration::ZERO) {
            Line::Text(line) => return Err(self.failed(program, &too_many(&line))),
            Line::Unreadable(problem) => {
                return Err(self.failed(program, &format!("wrote {problem} between two steps")));
            }
            Line::Ended | Line::None => {}
        }
        program.send(completions.iter().map(|completion| object(completion) + "\n").collect());
        match self.answers(&mut program, completions.len()) {
            Ok(values) => {
                program.used();
                self.running = Some(program);
                Ok(values)
            }
            Err(problem) => Err(self.failed(program, &problem)),
        }
    }
}

/// The line about a completion that the program gets.
fn object(completion: &Completion<'_>) -> String {
    json!({
        "prompt": completion.prompt,
        "completion": completion.text,
        "tokens": completion.ids.len(),
        "finished": completion.finished,
        "row": completion.row,
    })
    .to_string()
}

/// The value of the completion `number`.
fn value(line: &str, number: usize) -> Result<Option<f64>, String> {
    let line = line.trim();
    if line == "null" {
        return Ok(None);
    }
    let value = line.parse().ok().filter(|value: &f64| value.is_finite());
    value.map(Some).ok_or_else(|| {
        let line = shortened(line, 80);
        format!("wrote {line:?} for completion {number}; expected a finite number or null, and nothing else on stdout")
    })
}

fn too_many(line: &str) -> String {
    let line = shortened(line, 80);
    format!("wrote {line:?}, a line too many; expected one line per completion, and nothing else on stdout")
}

#[cfg(all(test, unix))]
mod tests;
