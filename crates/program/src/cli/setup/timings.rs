//! Durations of the parts of the startup.

use std::time::Instant;

use serde_json::{Map, Value};

/// A stopwatch with one entry per part.
pub struct Timings {
    last: Instant,
    parts: Vec<(String, f64)>,
}

impl Timings {
    /// Starts the first part.
    pub fn start() -> Timings {
        Timings { last: Instant::now(), parts: Vec::new() }
    }

    /// Ends the current part, names it, and starts the next one.
    pub fn record(&mut self, part: impl Into<String>) {
        let now = Instant::now();
        self.parts.push((part.into(), (now - self.last).as_secs_f64()));
        self.last = now;
    }

    /// Seconds per part.
    pub fn json(&self) -> Value {
        Value::Object(
            self.parts.iter().map(|(part, seconds)| (part.clone(), (*seconds).into())).collect::<Map<_, _>>(),
        )
    }
}

/// `4.2 s: weights 2.1, 90 kernels 1.9, longest batch 0.2`.
impl std::fmt::Display for Timings {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let total: f64 = self.parts.iter().map(|(_, seconds)| seconds).sum();
        let parts: Vec<String> =
            self.parts.iter().map(|(part, seconds)| format!("{part} {seconds:.1}")).collect();
        write!(f, "{total:.1} s: {}", parts.join(", "))
    }
}
