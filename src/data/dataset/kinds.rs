//! Shapes of records, and containers of files.

/// Shape of a record.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Each record's shape is detected by its keys; shapes may be mixed.
    #[default]
    Auto,
    /// `{"messages": [{"role", "content"}, …]}`.
    Messages,
    /// `{"prompt", "completion"}`: two strings, rendered as one user and one assistant turn, or two message lists.
    PromptCompletion,
    /// `{"instruction", "input", "output"}`.
    Alpaca,
    /// `{"conversations": [{"from", "value"}, …]}`.
    Sharegpt,
    /// `{"contents": [{"role", "parts"}, …]}`: Gemini's.
    Gemini,
    /// `{"text"}`: a document.
    Text,
    /// `{"input_ids": […], "labels": […]}`, used unchanged.
    InputIds,
    /// `{"prompt", "chosen", "rejected"}`: a pair of answers.
    Preference,
    /// `{"prompt", "completion", "label"}`: a rated answer.
    Rated,
    /// `{"prompt"}`, with any other columns: to be completed.
    Prompt,
}

impl Format {
    /// Every shape of an example to imitate.
    pub const SHAPES: [Format; 7] = [
        Format::Messages,
        Format::PromptCompletion,
        Format::Alpaca,
        Format::Sharegpt,
        Format::Gemini,
        Format::Text,
        Format::InputIds,
    ];

    /// The name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            Format::Auto => "auto",
            Format::Messages => "messages",
            Format::PromptCompletion => "prompt_completion",
            Format::Alpaca => "alpaca",
            Format::Sharegpt => "sharegpt",
            Format::Gemini => "gemini",
            Format::Text => "text",
            Format::InputIds => "input_ids",
            Format::Preference => "preference",
            Format::Rated => "rated",
            Format::Prompt => "prompt",
        }
    }

    /// Whether it is a conversation.
    pub(super) fn is_conversation(self) -> bool {
        !matches!(self, Format::Text | Format::InputIds)
    }

    /// The keys that identify it.
    pub(super) fn keys(self) -> &'static [&'static str] {
        match self {
            Format::Auto => &[],
            Format::Messages => &["messages"],
            Format::PromptCompletion => &["prompt", "completion"],
            Format::Alpaca => &["instruction", "output"],
            Format::Sharegpt => &["conversations"],
            Format::Gemini => &["contents"],
            Format::Text => &["text"],
            Format::InputIds => &["input_ids"],
            Format::Preference => &["chosen", "rejected"],
            Format::Rated => &["prompt", "completion", "label"],
            Format::Prompt => &["prompt"],
        }
    }
}

/// Whether keys include all those of a shape.
pub(super) fn identifies(keys: &[&str]) -> bool {
    Format::SHAPES.iter().any(|shape| shape.keys().iter().all(|key| keys.contains(key)))
}

/// Container of a file's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Container {
    /// One JSON object per line.
    Lines,
    /// One JSON array of objects, on its own or as the only list of an object.
    Array,
    /// JSON objects one after another, each over any number of lines.
    Objects,
    /// Rows below a header, separated by commas, semicolons or tabs.
    Table,
    /// One text.
    Text,
    /// Rows of a Parquet file.
    Parquet,
}

impl Container {
    /// The name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Container::Lines => "JSON Lines",
            Container::Array => "JSON array",
            Container::Objects => "JSON objects",
            Container::Table => "table",
            Container::Text => "plain text",
            Container::Parquet => "Parquet",
        }
    }

    /// The word for one of its records in messages. Records count from 1; lines of JSON Lines include empty ones.
    pub fn unit(self) -> &'static str {
        match self {
            Container::Lines => "line",
            Container::Array | Container::Objects => "item",
            Container::Table | Container::Parquet => "row",
            Container::Text => "part",
        }
    }
}
