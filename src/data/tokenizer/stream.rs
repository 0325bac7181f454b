//! [`DecodeStream`]: token ids to text, one id at a time.

use super::Tokenizer;

/// Converts a stream of ids to text. Holds back the bytes of a character until the character is complete.
#[derive(Clone, Debug, Default)]
pub struct DecodeStream {
    pending: Vec<u8>,
}

impl DecodeStream {
    /// Adds an id and returns the text that it completes; empty within a character.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        self.pending.extend_from_slice(&tokenizer.token_bytes(id));
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(rest) => {
                    text.push_str(rest);
                    self.pending.clear();
                    return text;
                }
                Err(error) => {
                    let valid = error.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.pending[..valid]));
                    // Without a length, more bytes may complete the character. With one, these bytes can never become valid.
                    let bad = error.error_len();
                    self.pending.drain(..valid + bad.unwrap_or(0));
                    if bad.is_none() {
                        return text;
                    }
                    text.push('\u{FFFD}');
                }
            }
        }
    }

    /// Returns the rest at the end: U+FFFD for an incomplete character.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}
