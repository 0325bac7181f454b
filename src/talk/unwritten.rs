//! Bytes of a prompt that the vocabulary cannot write: SmolLM's lacks 21.

use std::collections::BTreeSet;

use crate::data::template::Conversation;
use crate::data::tokenizer::Tokenizer;

/// A notice if the vocabulary cannot write some bytes of `texts`.
pub fn notice<'a>(tokenizer: &Tokenizer, texts: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let bytes: BTreeSet<u8> = texts.into_iter().flat_map(|text| tokenizer.unwritable(text)).collect();
    let names: Vec<String> = bytes.iter().map(|byte| format!("0x{byte:02X}")).collect();
    (!bytes.is_empty()).then(|| {
        format!(
            "the vocabulary cannot write these bytes of the prompt: {}; they become its unknown token, or are left out if it has none",
            names.join(", ")
        )
    })
}

/// The texts of a conversation.
pub fn texts(conversation: &Conversation) -> impl Iterator<Item = &str> {
    conversation.messages.iter().flat_map(|message| [&*message.content, &*message.thinking])
}
