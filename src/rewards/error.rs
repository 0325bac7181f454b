//! Errors of rewards.

/// Why rewards cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RewardError {
    /// A key of the reward makes no sense here.
    #[error("rewards.{key} of the reward {reward}: {message}")]
    Key {
        /// Name of the reward.
        reward: String,
        /// The key.
        key: &'static str,
        /// The problem, and the next step.
        message: String,
    },
    /// Rows have no such column, or not what is expected there.
    #[error("the reward {reward}: {message}")]
    Column {
        /// Name of the reward.
        reward: String,
        /// The problem, and the next step.
        message: String,
    },
    /// The program or the judge failed.
    #[error("the reward {reward}: {message}")]
    Failed {
        /// Name of the reward.
        reward: String,
        /// The problem, and the next step.
        message: String,
    },
}

/// The beginning of a text, for messages.
#[cfg(feature = "native")]
pub(super) fn shortened(text: &str, most: usize) -> String {
    let text = text.trim();
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
