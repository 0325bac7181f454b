//! Sending a request again that had no answer.

use std::time::Duration;

/// Longest time that a server may ask to wait, in seconds.
const LONGEST_WAIT: u64 = 300;

/// A request that was sent.
pub(crate) enum Sent<T, E> {
    /// There is a result.
    Over(Result<T, E>),
    /// There is none, for this reason. The server may have asked to wait so many seconds.
    Again(E, Option<u64>),
}

/// Sends a request until there is a result, up to `retries` times more, and waits as long as the server asks for, or 1, 2, 4, … seconds.
pub(crate) fn persist<T, E>(retries: u32, mut send: impl FnMut() -> Sent<T, E>) -> Result<T, E> {
    let mut failures = 0;
    loop {
        let (problem, wait) = match send() {
            Sent::Over(result) => return result,
            Sent::Again(problem, wait) => (problem, wait.unwrap_or(1 << failures)),
        };
        failures += 1;
        if failures > retries || wait > LONGEST_WAIT {
            return Err(problem);
        }
        std::thread::sleep(Duration::from_secs(wait));
    }
}
