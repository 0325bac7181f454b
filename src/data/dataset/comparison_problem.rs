//! Problems of pairs and of rated answers.

use crate::data::compare::Supervision;

/// A pair or a rating that cannot be used.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ComparisonProblem {
    /// A record that compares or rates nothing, although the objective needs it.
    #[error(
        "found a record with the keys [{}], but train.objective needs {}; see {}, name other keys with \
         data.fields, or set train.objective = \"sft\" to imitate examples",
        .found.join(", "), compared(*.supervision), page(*.supervision)
    )]
    NotCompared {
        /// Kind that the records must be of.
        supervision: Supervision,
        /// The record's keys.
        found: Vec<String>,
    },
    /// A pair of equal answers.
    #[error(
        "\"chosen\" and \"rejected\" are equal, so the pair says nothing; remove it, or set invalid to \"drop\""
    )]
    EqualSides,
    /// An answer without text.
    #[error("\"{0}\" has no answer: it is empty; remove the record, or set invalid to \"drop\"")]
    EmptySide(&'static str),
    /// A pair without a common prompt.
    #[error(
        "the record has no \"prompt\", and the first messages of \"chosen\" and \"rejected\" differ; both must begin with the \
         same messages, which are the prompt"
    )]
    NoPrompt,
    /// A prompt that is not in the messages.
    #[error(
        "no message that \"chosen\" and \"rejected\" both begin with is the \"prompt\"; remove \"prompt\" from the record, or \
         correct the messages"
    )]
    OtherPrompt,
    /// Several keys that may hold the prompt.
    #[error(
        "each of [{}] could be the prompt of the answers, or a part of it; say which is with data.fields = {{ prompt = {:?} }}, or \
         join them into one \"prompt\"",
        .found.join(", "), .found[0]
    )]
    SeveralPrompts {
        /// The keys.
        found: Vec<String>,
    },
    /// Two bare texts beside a key that may be their prompt.
    #[error(
        "\"chosen\" and \"rejected\" are bare texts, and \"{0}\" beside them may be their prompt; say so with data.fields = \
         {{ prompt = {0:?} }}, or remove it if each text is a whole document"
    )]
    UnreadPrompt(String),
    /// A prompt that ends with an answer.
    #[error(
        "the prompt ends with a message of the assistant, and the answer beside it is another one; expected the prompt to end with \
         the user or a tool"
    )]
    AnsweredPrompt,
    /// A prompt to complete that has an answer.
    #[error(
        "the prompt ends with a message of the assistant, so there is nothing to complete; remove that message, or set train.objective = \
         \"sft\" to imitate it"
    )]
    NothingToComplete,
    /// The chat template renders the prompt of a pair in two ways.
    #[error(
        "the prompt tokens of \"chosen\" are not those of \"rejected\": one goes on with {chosen:?}, the other with \
         {rejected:?}. The chat template renders the prompt in two ways, so the answers cannot be compared; make them alike, \
         as with reasoning in both or in neither"
    )]
    Prompts {
        /// The prompt of the chosen answer, from the difference on.
        chosen: String,
        /// The prompt of the rejected answer, from the difference on.
        rejected: String,
    },
    /// A rating that is none.
    #[error("\"label\" is {0}, expected true for a good answer or false for a bad one")]
    Rating(String),
}

/// The page about such records.
fn page(supervision: Supervision) -> &'static str {
    if supervision == Supervision::Prompts { "docs/grpo.md" } else { "docs/preference.md" }
}

/// The keys that such records have.
fn compared(supervision: Supervision) -> &'static str {
    match supervision {
        Supervision::Ratings => {
            "\"prompt\", \"completion\" and \"label\" (or \"messages\" and \"label\"), or \"chosen\" and \"rejected\""
        }
        Supervision::Prompts => "\"prompt\", text or messages",
        _ => "\"chosen\" and \"rejected\"",
    }
}
