//! Chat layouts that are turns of text alone: for files without a template of their own.

use crate::data::template::{Conversation, Piece, Pieces, Role, TemplateError};
use crate::data::tokenizer::Special;

/// The text around the turns of a conversation.
pub(super) struct Turns {
    /// In front of the conversation.
    pub start: &'static str,
    /// In front of a role's name, and behind it.
    pub header: (&'static str, &'static str),
    /// Behind a turn; the model generates it.
    pub end: &'static str,
    /// Behind that; the model does not generate it.
    pub after: &'static str,
    /// Name of the assistant.
    pub assistant: &'static str,
    /// Whether the system message stands in front of the first question, in the same turn.
    pub system_in_question: bool,
    /// Whether text is trimmed.
    pub trims: bool,
    /// Text around reasoning; `None` if the layout has no place for it.
    pub thought: Option<(&'static str, &'static str)>,
}

impl Turns {
    /// [`check`] for this layout.
    pub fn check(&self, conversation: &Conversation) -> Result<(), TemplateError> {
        check(conversation, self.thought.is_some())
    }

    /// The text of a conversation. Reasoning stands in the answers to the last question.
    pub fn pieces<'a>(&self, conversation: &'a Conversation) -> Vec<Piece<'a>> {
        let messages = &conversation.messages;
        let text = |content: &'a str| if self.trims { content.trim() } else { content };
        let mut out = Pieces::default();
        out.layout(None, self.start);
        let mut system = messages.first().filter(|m| m.role == Role::System && self.system_in_question);
        let last_user = messages.iter().rposition(|m| m.role == Role::User);
        for (index, message) in messages.iter().enumerate().skip(usize::from(system.is_some())) {
            let owner = Some(index);
            let written = message.role == Role::Assistant;
            out.layout(owner, self.header(message.role));
            if let Some(system) = system.take() {
                out.words(owner, text(&system.content), false);
                out.layout(owner, "\n\n");
            }
            let shown = !message.thinking.is_empty() && last_user.is_none_or(|user| index > user);
            if let Some((open, close)) = self.thought.filter(|_| shown) {
                out.thought(owner, format!("{open}{}{close}", message.thinking), written);
            }
            out.words(owner, text(&message.content), written);
            out.push(owner, self.end, Special::Parse, written);
            out.layout(owner, self.after);
        }
        out.into_vec()
    }

    /// The prompt for an answer.
    pub fn answer_prompt(&self) -> Option<Piece<'static>> {
        let text = self.header(Role::Assistant).into();
        Some(Piece { text, special: Special::Parse, owner: None, written: false, thought: false })
    }

    /// Whether the layout skips reasoning: that before the last question.
    pub fn hides_thoughts(conversation: &Conversation) -> bool {
        let messages = &conversation.messages;
        let last_user = messages.iter().rposition(|m| m.role == Role::User).unwrap_or(0);
        messages[..last_user].iter().any(|m| !m.thinking.is_empty())
    }

    /// A Go template that writes the layout, for Ollama. Ollama adds the token that begins a sequence, and thoughts have no place.
    pub fn go(&self) -> String {
        let [open, close] = [self.header.0, self.header.1];
        let name = match self.assistant {
            "assistant" => "{{ .Role }}".to_owned(),
            name => {
                format!("{{{{ if eq .Role \"assistant\" }}}}{name}{{{{ else }}}}{{{{ .Role }}}}{{{{ end }}}}")
            }
        };
        let turn =
            |inside: &str| format!("{open}{name}{close}{inside}{{{{ .Content }}}}{}{}", self.end, self.after);
        let turns = if self.system_in_question {
            let system = "{{ if $system }}{{ $system }}\n\n{{ $system = \"\" }}{{ end }}";
            format!("{{{{ if ne .Role \"system\" }}}}{}{{{{ end }}}}", turn(system))
        } else {
            turn("")
        };
        let start = if self.system_in_question { "{{ $system := .System }}" } else { "" };
        format!("{start}{{{{ range .Messages }}}}{turns}{{{{ end }}}}{}", self.header(Role::Assistant))
    }

    fn header(&self, role: Role) -> String {
        let name = if role == Role::Assistant { self.assistant } else { role.name() };
        [self.header.0, name, self.header.1].concat()
    }
}

/// The rules of layouts of text: no place for functions, and for reasoning only if `has_thoughts`.
pub(super) fn check(conversation: &Conversation, has_thoughts: bool) -> Result<(), TemplateError> {
    let unused = |key: &str| Err(TemplateError::Unused(key.to_owned()));
    if !conversation.tools.is_empty() {
        return unused("tools");
    }
    if let Some(key) = conversation.kwargs.keys().find(|key| *key != "enable_thinking") {
        return unused(key);
    }
    for (index, message) in conversation.messages.iter().enumerate() {
        match message.role {
            Role::System if index > 0 => return Err(TemplateError::SystemNotFirst { number: index + 1 }),
            Role::Tool => return Err(TemplateError::ToolWithoutCall { number: index + 1 }),
            _ if !message.tool_calls.is_empty() => return unused("tool_calls"),
            _ if !message.thinking.is_empty() && !has_thoughts => return unused("reasoning_content"),
            _ => {}
        }
    }
    Ok(())
}

/// A [`crate::data::template::BuiltIn`] of turns.
macro_rules! turns {
    ($family:expr, $variant:expr, $tokens:expr, $turns:expr) => {
        crate::data::template::BuiltIn {
            family: $family,
            variant: $variant,
            version: concat!($variant, " turns 1"),
            tokens: $tokens,
            in_ollama: crate::data::template::InOllama::Template(|| $turns.go()),
            check: |conversation| $turns.check(conversation),
            pieces: |conversation| $turns.pieces(conversation),
            answer_prompt: |_| $turns.answer_prompt(),
            hides_thoughts: crate::families::chat_layout::Turns::hides_thoughts,
            history: None,
        }
    };
}
pub(super) use turns;

/// ChatML, as Qwen writes it: `<|im_start|>ROLE\nCONTENT<|im_end|>\n`.
pub(super) static CHATML: Turns = Turns {
    start: "",
    header: ("<|im_start|>", "\n"),
    end: "<|im_end|>",
    after: "\n",
    assistant: "assistant",
    system_in_question: false,
    trims: false,
    thought: Some(("<think>\n", "\n</think>\n\n")),
};

/// The tokens of [`CHATML`].
pub(super) const CHATML_TOKENS: &[&str] = &["<|im_start|>", "<|im_end|>"];
