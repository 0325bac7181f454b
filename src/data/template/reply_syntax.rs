//! The layout of a family's replies.

use serde_json::Value;

use super::ToolCall;

/// Marks of reasoning and function calls in the replies of a family's models.
#[derive(Debug)]
pub struct ReplySyntax {
    /// Marks around reasoning.
    pub thought: (&'static str, &'static str),
    /// Text between the opening mark and the reasoning; a reply may lack it.
    pub thought_name: &'static str,
    /// Marks around function calls. Without a closing mark, calls end with the reply.
    pub calls: &'static [(&'static str, &'static str)],
    /// Marks that say what follows, and are in no part.
    pub headers: &'static [&'static str],
    /// Beginning of a reply that is a call without marks; empty if there are none.
    pub bare_call: &'static str,
    /// Whether newlines around reasoning and calls belong to the layout.
    pub spaced: bool,
    /// Parses the text between the marks, with the declared functions; empty if it is not a valid call.
    pub parse_calls: fn(&str, &[Value]) -> Vec<ToolCall>,
}
