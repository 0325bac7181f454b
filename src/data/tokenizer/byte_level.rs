//! Byte-level tokenizers: a pre-tokenizer splits a text into words, and the bytes of each word are merged in pairs. In the
//! vocabulary every byte is a printable character, as in GPT-2: `Ġ` is a space.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NFC;
use tokenizers::{Model, NormalizedString, Normalizer};

use super::data::{TokenizerData, TokenizerError};
use super::pre_tokenizer::PreTokenizer;

/// The character of each byte: printable bytes of Latin-1 are themselves, the others follow U+0100 in order.
static CHARS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut next = 0x100;
    std::array::from_fn(|byte| {
        let printable = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
        let code = if printable { byte as u32 } else { next };
        next += u32::from(!printable);
        char::from_u32(code).expect("below U+0180")
    })
});

/// The byte of each character below U+0180, if it has one.
static BYTES: LazyLock<[Option<u8>; 0x180]> = LazyLock::new(|| {
    let mut bytes = [None; 0x180];
    (0..=255u8).for_each(|byte| bytes[CHARS[usize::from(byte)] as usize] = Some(byte));
    bytes
});

pub(super) struct ByteLevel {
    bpe: BPE,
    pre: &'static PreTokenizer,
    /// Bytes that no token spells: SmolLM's vocabularies lack 21.
    missing: BTreeSet<u8>,
}

impl ByteLevel {
    /// The tokenizer, and the number of merges that it leaves out.
    pub fn new(
        data: &TokenizerData,
        pre: &'static PreTokenizer,
    ) -> Result<(ByteLevel, usize), TokenizerError> {
        let (bpe, left_out) = super::bpe(data, |builder| builder.ignore_merges(pre.whole_words))?;
        let spelled =
            |byte: &u8| bpe.token_to_id(CHARS[usize::from(*byte)].encode_utf8(&mut [0; 4])).is_some();
        let missing: BTreeSet<u8> = (0..=255).filter(|byte| !spelled(byte)).collect();
        match missing.len() {
            256 => Err(TokenizerError::NoBytes),
            _ => Ok((ByteLevel { bpe, pre, missing }, left_out)),
        }
    }

    /// The bytes of `text` that no token spells.
    pub fn unwritable(&self, text: &str) -> BTreeSet<u8> {
        if self.missing.is_empty() {
            return BTreeSet::new();
        }
        let text = if self.pre.composes { composed(text) } else { Cow::Borrowed(text) };
        text.bytes().filter(|byte| self.missing.contains(byte)).collect()
    }

    /// Appends the ids of a text without control tokens. Bytes that no token spells are left out, as in Hugging Face's tokenizer.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let text = if self.pre.composes { composed(text) } else { Cow::Borrowed(text) };
        let mut spelled = String::new();
        self.pre.words(&text, &mut |word| {
            spelled.clear();
            spelled.extend(word.bytes().map(|byte| CHARS[usize::from(byte)]));
            let tokens = self.bpe.tokenize(&spelled).expect("it needs no unknown token");
            ids.extend(tokens.iter().map(|token| token.id));
        });
    }
}

/// `text` in composed characters (NFC).
fn composed(text: &str) -> Cow<'_, str> {
    if text.chars().all(|c| c < '\u{300}') {
        return Cow::Borrowed(text);
    }
    let mut normalized = NormalizedString::from(text);
    NFC.normalize(&mut normalized).expect("normalizing cannot fail");
    Cow::Owned(normalized.get().to_owned())
}

/// The bytes that a token spells; `None` if it has a character that stands for no byte.
pub(super) fn bytes_of(token: &str) -> Option<Vec<u8>> {
    token.chars().map(|c| *BYTES.get(c as usize)?).collect()
}
