//! [`Specials`]: tokens that are found in a text before it is merged.

use aho_corasick::{AhoCorasick, MatchKind};

/// A set of tokens, found leftmost first, and longest first where several start at one place.
pub(super) struct Specials {
    finder: Option<AhoCorasick>,
    tokens: Vec<(String, u32)>,
}

impl Specials {
    /// The set of `tokens`; empty texts are left out.
    pub fn new(tokens: impl Iterator<Item = (String, u32)>) -> Specials {
        let tokens: Vec<(String, u32)> = tokens.filter(|(text, _)| !text.is_empty()).collect();
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|(text, _)| text));
        // A vocabulary is far smaller than the crate's limit of 2^31 states.
        let finder = finder.ok().filter(|_| !tokens.is_empty());
        Specials { finder, tokens }
    }

    /// The first token in `text`: its position, text and id.
    pub fn next(&self, text: &str) -> Option<(usize, &str, u32)> {
        let found = self.finder.as_ref()?.find(text)?;
        let (token, id) = &self.tokens[found.pattern().as_usize()];
        Some((found.start(), token, *id))
    }
}
