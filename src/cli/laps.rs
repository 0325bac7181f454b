//! What a start took, part by part.

use std::time::Instant;

use serde_json::{Map, Value};

/// A clock that is read after each part.
pub struct Laps {
    last: Instant,
    parts: Vec<(String, f64)>,
}

impl Laps {
    /// The start begins.
    pub fn start() -> Laps {
        Laps { last: Instant::now(), parts: Vec::new() }
    }

    /// A part ends, and the next one begins.
    pub fn lap(&mut self, part: impl Into<String>) {
        let now = Instant::now();
        self.parts.push((part.into(), (now - self.last).as_secs_f64()));
        self.last = now;
    }

    /// Seconds by part.
    pub fn json(&self) -> Value {
        Value::Object(
            self.parts.iter().map(|(part, seconds)| (part.clone(), (*seconds).into())).collect::<Map<_, _>>(),
        )
    }
}

/// `in 4.2 s: weights 2.1, kernels 1.9, the longest batch 0.2`.
impl std::fmt::Display for Laps {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let total: f64 = self.parts.iter().map(|(_, seconds)| seconds).sum();
        let parts: Vec<String> =
            self.parts.iter().map(|(part, seconds)| format!("{part} {seconds:.1}")).collect();
        write!(f, "in {total:.1} s: {}", parts.join(", "))
    }
}
