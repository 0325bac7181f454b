//! The phases of a run besides its steps.

/// A phase of a run besides its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Computing the log-probabilities under the reference.
    Reference,
    /// Drawing the completions of a step.
    Completions,
    /// Computing the rewards of completions.
    Rewards,
    /// Scoring the validation batches, or completing the validation prompts.
    Validation,
    /// Generating the replies to `eval.samples`.
    Replies,
    /// Generating answers for `eval.metrics`.
    Answers,
    /// Asking general questions.
    General,
    /// Writing the exports and comparing them with the adapter in memory.
    Export,
}
