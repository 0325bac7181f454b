//! [`PreTokenizer`]: splits a text into the words within which a byte-level tokenizer merges.
//!
//! Patterns are those of the published tokenizer.json files; llama.cpp has the same in src/llama-vocab.cpp. Each ends in
//! `\s+(?!\S)|\s+`. Here that is `\s+`, and [`Pattern::next`] leaves the last of several spaces to the following word, so the
//! patterns need no look-ahead and match in linear time.

use std::sync::LazyLock;

use regex::Regex;

/// A value of `tokenizer.ggml.pre`.
pub(super) struct PreTokenizer {
    /// The values in files that have this meaning.
    names: &'static [&'static str],
    /// The patterns, each applied to the pieces of the one before.
    pub patterns: LazyLock<Vec<Pattern>>,
    /// Whether a text is normalized to composed characters (NFC), as Qwen's published tokenizers do.
    pub composes: bool,
    /// Whether a word that is a token becomes that token before any merge.
    pub whole_words: bool,
    /// Whether a sequence starts with the token `bos` unless the file says otherwise.
    pub adds_bos: bool,
}

/// One pattern.
pub(super) struct Pattern {
    regex: Regex,
    /// Whether whitespace up to a newline matches before other whitespace.
    lines: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";

macro_rules! patterns {
    ($($source:expr),+) => {
        LazyLock::new(|| vec![$(Pattern::new($source)),+])
    };
}

static ALL: [PreTokenizer; 9] = [
    PreTokenizer {
        names: &["qwen2"],
        patterns: patterns!(QWEN2),
        composes: true,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["deepseek-r1-qwen"],
        patterns: patterns!(QWEN2),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["qwen35"],
        patterns: patterns!(QWEN35),
        composes: true,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3"],
        patterns: patterns!(LLAMA3),
        composes: false,
        whole_words: true,
        adds_bos: true,
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4"],
        patterns: patterns!(GPT4O),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["tekken"],
        patterns: patterns!(TEKKEN),
        composes: false,
        whole_words: true,
        adds_bos: true,
    },
    PreTokenizer {
        names: &["smollm"],
        patterns: patterns!(r"\p{N}", GPT2),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["gpt-2"],
        patterns: patterns!(GPT2),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["default"],
        patterns: patterns!(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
];

impl PreTokenizer {
    /// The pre-tokenizer that a file calls `name`.
    pub fn named(name: &str) -> Option<&'static PreTokenizer> {
        ALL.iter().find(|pre| pre.names.contains(&name))
    }

    /// Every name.
    pub fn names() -> Vec<&'static str> {
        ALL.iter().flat_map(|pre| pre.names).copied().collect()
    }

    /// Calls `each` for every word of `text`, in order.
    pub fn words<'a>(&self, text: &'a str, each: &mut dyn FnMut(&'a str)) {
        split(&self.patterns, text, each);
    }
}

/// Splits `text` by the first pattern into matches and the text between them, and each of these by the rest.
fn split<'a>(patterns: &[Pattern], text: &'a str, each: &mut dyn FnMut(&'a str)) {
    let Some((first, rest)) = patterns.split_first() else {
        return each(text);
    };
    let mut done = 0;
    while let Some((start, end)) = first.next(text, done) {
        if start > done {
            split(rest, &text[done..start], each);
        }
        split(rest, &text[start..end], each);
        done = end;
    }
    if done < text.len() {
        split(rest, &text[done..], each);
    }
}

impl Pattern {
    fn new(source: &str) -> Pattern {
        let regex = Regex::new(source).expect("the patterns above are valid");
        Pattern { regex, lines: source.contains(r"\s*[\r\n]+") }
    }

    /// The first match at or after byte `from`.
    fn next(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let found = self.regex.find_at(text, from)?;
        let (start, end) = (found.start(), found.end());
        let mut chars = found.as_str().chars();
        let last = chars.next_back()?;
        // `\s+(?!\S)`: of several spaces before a word, all but the last.
        let spaces = !chars.as_str().is_empty() && last.is_whitespace() && chars.all(char::is_whitespace);
        let ends_line = self.lines && matches!(last, '\r' | '\n');
        let word_follows = text[end..].chars().next().is_some_and(|next| !next.is_whitespace());
        Some((start, if spaces && !ends_line && word_follows { end - last.len_utf8() } else { end }))
    }
}
