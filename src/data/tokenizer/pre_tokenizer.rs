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
    /// Whether a match is split into groups of three characters, counted from its end, which stand for the lookahead
    /// `(?=(\d{3})+(?!\d))`.
    thirds: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";

const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"##;
const SEED_CODER: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+";
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
// `\s*[\r\n]` ends at the last newline of a run, as `\s*[\r\n]+` does.
const BAILING: &str =
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]+|\s+";
const YOUTU_SCRIPTS: &str =
    r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const CJK: &str = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+";
const HAN: &str = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+";
const CASED: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const MARKS: &str = r"\s?[!-/:-~！-／：-～‘-‟　-。]+";

macro_rules! patterns {
    ($($source:expr),+) => {
        LazyLock::new(|| vec![$(Pattern::new($source)),+])
    };
}

/// Names and meanings as in llama.cpp's src/llama-vocab.cpp.
static ALL: [PreTokenizer; 25] = [
    PreTokenizer {
        names: &["qwen2"],
        patterns: patterns!(QWEN2),
        composes: true,
        whole_words: false,
        adds_bos: false,
    },
    // Published without NFC, or unknown: as in llama.cpp, which never composes.
    PreTokenizer {
        names: &[
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
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
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        patterns: patterns!(LLAMA3),
        composes: false,
        whole_words: true,
        adds_bos: true,
    },
    PreTokenizer {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe"],
        patterns: patterns!(LLAMA3),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["glm4", "glm5"],
        patterns: patterns!(LLAMA3),
        composes: false,
        whole_words: true,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["minicpm5"],
        patterns: patterns!(r"\p{N}{1,3}", LLAMA3),
        composes: false,
        whole_words: true,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
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
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        patterns: patterns!(r"\p{N}", GPT2),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
        ],
        patterns: patterns!(GPT2),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["falcon"],
        patterns: patterns!(r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["deepseek-llm"],
        patterns: patterns!(r"[\r\n]", CASED, MARKS, r"\s+$", CJK, r"\p{N}+"),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        patterns: patterns!(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        patterns: patterns!(r"\p{N}{1,3}", HAN, DEEPSEEK3),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    // Words may cross spaces; digits are grouped in threes from the right.
    PreTokenizer {
        names: &["superbpe"],
        patterns: LazyLock::new(|| vec![Pattern::new(r"\p{N}+"), Pattern::thirds()]),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        patterns: patterns!(BAILING),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["exaone-moe"],
        patterns: patterns!(EXAONE_MOE),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["youtu"],
        patterns: patterns!(YOUTU_SCRIPTS, YOUTU),
        composes: false,
        whole_words: true,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["laguna"],
        patterns: patterns!(r"[^\n]+|\n+", QWEN2),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["seed-coder"],
        patterns: patterns!(SEED_CODER),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["poro-chat", "bloom", "gpt3-finnish"],
        patterns: patterns!(BLOOM),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["viking"],
        patterns: patterns!(BLOOM, r"\p{N}"),
        composes: false,
        whole_words: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["ufakzeka"],
        patterns: patterns!(UFAKZEKA),
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

/// Names that llama.cpp knows and that are not read here, because no architecture that is trained has files with them: each with
/// the name that splits most like it.
const ELSEWHERE: [(&str, &str); 15] = [
    ("afmoe", "deepseek-v3"),
    ("chameleon", "smollm"),
    ("cohere2moe", "gpt-4o"),
    ("gemma4", "llama-bpe"),
    ("granite-embed-multi-311m", "llama-bpe"),
    ("granite-embed-multi-97m", "gpt-4o"),
    ("jais-2", "llama-bpe"),
    ("jina-v1-en", "gpt-2"),
    ("jina-v2-code", "gpt-2"),
    ("kimi-k2", "gpt-4o"),
    ("roberta-bpe", "gpt-2"),
    ("sarvam-moe", "llama-bpe"),
    ("spark2_5", "deepseek-v3"),
    ("tiny_aya", "gpt-4o"),
    ("whitespace", "gpt-2"),
];

impl PreTokenizer {
    /// The values expected in the place of an unknown `name`: the nearest known name where there is one, and every known name.
    pub fn expected_for(name: &str) -> String {
        let all = format!("one of {}", PreTokenizer::names().join(", "));
        match ELSEWHERE.iter().find(|(known, _)| *known == name) {
            Some((_, near)) => format!("a name of the models that are trained, nearest {near:?}: {all}"),
            None => all,
        }
    }

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
        Pattern { regex, lines: source.contains(r"\s*[\r\n]+") || source.ends_with(r"\n+"), thirds: false }
    }

    /// Splits runs of decimal digits into groups of three, counted from the right.
    fn thirds() -> Pattern {
        Pattern { thirds: true, ..Pattern::new(r"\d+") }
    }

    /// The text from byte `from` to the next place that whole groups of three digits follow, up to the end of their run.
    fn next_third(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        self.regex.find_iter(&text[from..]).find_map(|run| {
            let digits = run.as_str().chars().count();
            // Groups start behind so many digits; the place at `from` is split already.
            let mut places = (digits % 3..digits).step_by(3);
            let at = places.find(|n| run.start() > 0 || *n > 0)?;
            let (bytes, _) = run.as_str().char_indices().nth(at)?;
            Some((from, from + run.start() + bytes))
        })
    }

    /// The first match at or after byte `from`.
    fn next(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        if self.thirds {
            return self.next_third(text, from);
        }
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

#[cfg(test)]
mod tests {
    use super::PreTokenizer;

    fn words<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        let mut found = Vec::new();
        let pre = PreTokenizer::named(name).unwrap_or_else(|| panic!("{name} is unknown"));
        pre.words(text, &mut |word| found.push(word));
        found
    }

    /// llama.cpp's ids of such texts were compared for every name (tests/tokenizer.rs, `published_vocabularies_have_llama_cpp_ids`).
    #[test]
    fn texts_are_split_as_in_llama_cpp() {
        let text = "Ab12345 c'd,\n\n x";
        for (name, expected) in [
            ("gpt-2", vec!["Ab", "12345", " c", "'d", ",", "\n\n", " x"]),
            ("command-r", vec!["Ab", "1", "2", "3", "4", "5", " c", "'d", ",", "\n\n", " x"]),
            ("falcon", vec!["Ab", "123", "45", " c", "'", "d", ",", "\n\n", " x"]),
            ("deepseek-llm", vec!["Ab", "12345", " c", "'", "d", ",", "\n", "\n", " x"]),
            ("deepseek-coder", vec!["Ab", "1", "2", "3", "4", "5", " c", "'", "d", ",", "\n", "\n", " x"]),
            ("deepseek-v3", vec!["Ab", "123", "45", " c", "'d", ",\n\n", " x"]),
            ("minicpm5", vec!["Ab", "123", "45", " c", "'d", ",\n\n", " x"]),
            ("seed-coder", vec!["Ab", "1", "2", "3", "4", "5", " c", "'d", ",", "\n\n", " x"]),
            ("ufakzeka", vec!["Ab", "1", "2", "3", "4", "5", " c", "'d", ",\n\n", " x"]),
            ("bloom", vec!["Ab12345", " c'd", ",\n\n", " x"]),
            ("superbpe", vec!["Ab", "12", "345", " c'd,\n\n x"]),
            ("bailingmoe", vec!["Ab", "1", "2", "3", "4", "5", " c", "'d", ",\n\n", " x"]),
            ("exaone-moe", vec!["Ab", "1", "2", "3", "4", "5", " c", "'d", ",\n", "\n", " x"]),
            ("laguna", vec!["Ab", "1", "2", "3", "4", "5", " c", "'d", ",", "\n\n", " x"]),
            ("viking", vec!["Ab", "1", "2", "3", "4", "5", " c'd", ",\n\n", " x"]),
        ] {
            assert_eq!(words(name, text), expected, "{name}");
        }
    }

    #[test]
    fn names_of_one_meaning_split_alike() {
        let text = "It's 2024: naïve ½ 12,345.67 (汉字)\t  x\r\n\r\nGoOD'S !!\n ";
        let alike = [
            ("llama-bpe", "falcon3 falcon-h1 pixtral midm-2.0 lfm2"),
            ("qwen2", "deepseek-r1-qwen kormo megrez stablelm2 hunyuan"),
            ("gpt-2", "phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais"),
            ("gpt-4o", "llama4 kanana2 talkie minimax-m2"),
            ("smollm", "starcoder refact command-r codeshell exaone minerva-7b mellum2"),
        ];
        for (name, others) in alike {
            for other in others.split(' ') {
                assert_eq!(words(other, text), words(name, text), "{other} and {name}");
            }
        }
    }
}
