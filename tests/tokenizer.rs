//! The tokenizer against Hugging Face's ids on the tiny vocabulary, and against llama.cpp's own test on the full one.
//!
//! `RULLAMA_TOKENIZER_GGUF` names llama.cpp's `ggml-vocab-gemma-4.gguf`, with its `.inp` and `.out` beside it.
//! `RULLAMA_VOCABULARIES` names the folder of all of these, llama.cpp's `models`.

use std::path::Path;
use std::time::Instant;

use crate::common_families::{by_scores, byte_level, fixture as families, strings};
use crate::common_template::{Case, DAY};
use libtest_mimic::Failed;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rullama_train::base::Gguf;
use rullama_train::data::template::{Jinja, Template, TemplateError, TrainOn};
use rullama_train::data::tokenizer::{DecodeStream, Special, Tokenizer, TokenizerData, TokenizerSpec};
use rullama_train::families::{gemma3, gemma4, llama, qwen3};
use rullama_train::talk::unwritten;
use sha2::{Digest, Sha256};
use tokenizers::Model;
use tokenizers::models::bpe::BPE;

const FULL: &str = "RULLAMA_TOKENIZER_GGUF";
const VOCABULARIES: &str = "RULLAMA_VOCABULARIES";

#[test]
fn decoding_undoes_encoding() -> Result<(), Failed> {
    decode_undoes_encode(&tiny())
}

#[test]
#[ignore = "needs RULLAMA_VOCABULARIES: llama.cpp's folder models"]
fn published_vocabularies() -> Result<(), Failed> {
    published_vocabularies_have_llama_cpp_ids(&path_in(VOCABULARIES)?)
}

#[test]
#[ignore = "needs RULLAMA_TOKENIZER_GGUF: llama.cpp's ggml-vocab-gemma-4.gguf"]
fn full_vocabulary() -> Result<(), Failed> {
    full_vocabulary_has_llama_cpp_ids(&path_in(FULL)?)
}

#[test]
#[ignore = "needs RULLAMA_TOKENIZER_GGUF: llama.cpp's ggml-vocab-gemma-4.gguf"]
fn own_template_of_the_full_vocabulary() -> Result<(), Failed> {
    its_own_template_renders_as_in_transformers(&path_in(FULL)?)
}

fn path_in(variable: &str) -> Result<String, Failed> {
    Ok(std::env::var(variable).map_err(|_| format!("{variable} is not set"))?)
}

fn data() -> TokenizerData {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf");
    TokenizerData::from_gguf(&Gguf::open(Path::new(path)).expect("the tiny model")).expect("its tokenizer")
}

fn tiny() -> Tokenizer {
    Tokenizer::new(data(), &gemma4::TOKENIZER).expect("the tiny model's tokenizer is sound")
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), Failed> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}:\n  found    {found:?}\n  expected {expected:?}").into())
}

/// Pairs of text and ids, written by fixtures/tokenizer/make.py.
fn fixture() -> Vec<(String, Vec<u32>)> {
    let json = include_str!("fixtures/tokenizer/tiny-gemma4.json");
    serde_json::from_str(json).expect("the fixture is JSON")
}

#[test]
fn tiny_vocabulary_has_hugging_face_ids() -> Result<(), Failed> {
    let (tokenizer, rows) = (tiny(), fixture());
    assert!(rows.len() > 40, "the fixture holds {} rows", rows.len());
    for (text, expected) in rows {
        equal(&format!("ids of {text:?}"), tokenizer.encode(&text, Special::Parse), expected)?;
    }
    Ok(())
}

/// Strings of the kinds that go wrong: runs of spaces and newlines, bytes that only fallback can spell, look-alikes of
/// byte and control tokens. Without `▁`, the documented exception.
fn strange_texts() -> Vec<String> {
    let parts = [
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "\r",
        "a",
        "Hello",
        "7",
        "ß",
        "é",
        "e\u{301}",
        "漢",
        "🦙",
        "👩\u{200d}🚀",
        "\0",
        "\u{1b}",
        "\u{85}",
        "\u{a0}",
        "\u{2028}",
        "\u{feff}",
        "\u{10ffff}",
        "<0x41>",
        "<turn|>",
        "<|turn>",
        "<bos>",
        "<",
        "|",
        ">",
    ];
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut pick = |n: usize| rng.next_u64() as usize % n;
    (0..2000).map(|_| (0..pick(12)).map(|_| parts[pick(parts.len())]).collect()).collect()
}

fn decode_undoes_encode(tokenizer: &Tokenizer) -> Result<(), Failed> {
    for text in strange_texts() {
        for special in [Special::Parse, Special::Plain] {
            let ids = tokenizer.encode(&text, special);
            equal(&format!("{special:?} {ids:?}"), tokenizer.decode(&ids), text.clone())?;
        }
    }
    // The one exception: U+2581 and the space are the same symbol in the vocabulary.
    equal("▁", tokenizer.decode(&tokenizer.encode("a▁b", Special::Plain)), "a b".to_owned())
}

#[test]
fn streaming_gives_the_same_text() -> Result<(), Failed> {
    let tokenizer = tiny();
    for text in strange_texts() {
        let mut stream = DecodeStream::default();
        let ids = tokenizer.encode(&text, Special::Parse);
        let mut streamed: String = ids.iter().map(|&id| stream.push(&tokenizer, id)).collect();
        streamed.push_str(&stream.finish());
        equal(&format!("{ids:?}"), streamed, text)?;
    }
    Ok(())
}

#[test]
fn broken_bytes_become_replacement_characters() -> Result<(), Failed> {
    let tokenizer = tiny();
    let byte = |b: u8| tokenizer.id(&format!("<0x{b:02X}>")).expect("a byte token");
    // F0 9F starts a character that never ends; C3 41 breaks one off; 2^32 - 1 is no token.
    let ids = [byte(0xC3), byte(0x41), byte(0xF0), byte(0x9F), u32::MAX, byte(0xF0), byte(0x9F)];
    let expected = "\u{FFFD}A\u{FFFD}\u{FFFD}\u{FFFD}".to_owned();
    equal("decode", tokenizer.decode(&ids), expected.clone())?;
    let mut stream = DecodeStream::default();
    let streamed: String = ids.iter().map(|&id| stream.push(&tokenizer, id)).collect();
    equal("stream", streamed + &stream.finish(), expected)
}

#[test]
fn plain_text_yields_no_control_token() -> Result<(), Failed> {
    let tokenizer = tiny();
    let control: Vec<u32> = (0..tokenizer.vocab_size() as u32)
        .filter(|&id| tokenizer.find_special(&tokenizer.decode(&[id])).is_some())
        .collect();
    // <pad> <eos> <bos> <unk> <mask> <|turn> <turn|> <|channel> <channel|> <|think|>
    equal("control tokens", control.clone(), (0..10).collect())?;
    for text in strange_texts().into_iter().chain(["<turn|>".into(), "<bos>".into(), "<eos>".into()]) {
        let ids = tokenizer.encode(&text, Special::Plain);
        if let Some(id) = ids.iter().find(|id| control.contains(id)) {
            return Err(format!("{text:?} gave control token {id} in {ids:?}").into());
        }
    }
    Ok(())
}

#[test]
fn newline_runs_are_looked_up_whole() -> Result<(), Failed> {
    // A vocabulary with "\n\n" but no merge that makes it, and a merge across a newline that must never happen.
    let mut data = data();
    data.tokens.extend(["\n\n".to_owned(), "a\n".to_owned()]);
    data.token_types.extend([1, 1]);
    data.merges.push("a \n".to_owned());
    let run = data.tokens.len() as u32 - 2;
    let tokenizer = Tokenizer::new(data, &gemma4::TOKENIZER).map_err(|error| error.to_string())?;
    let id = |token: &str| tokenizer.id(token).expect("a token");
    let (a, newline) = (id("a"), id("\n"));
    equal("run of two", tokenizer.encode("a\n\na", Special::Plain), vec![a, run, a])?;
    equal("one", tokenizer.encode("a\na", Special::Plain), vec![a, newline, a])?;
    equal("run of three", tokenizer.encode("a\n\n\na", Special::Plain), vec![a, newline, newline, newline, a])
}

#[test]
fn ollama_dialect_is_the_same_tokenizer() -> Result<(), Failed> {
    let mut data = data();
    data.model = "llama".to_owned();
    for (token, kind) in data.tokens.iter().zip(&mut data.token_types) {
        *kind = if token.starts_with("<0x") { 1 } else { *kind };
    }
    let (ours, ollama) =
        (tiny(), Tokenizer::new(data, &gemma4::TOKENIZER).map_err(|error| error.to_string())?);
    for text in strange_texts() {
        let ids = ours.encode(&text, Special::Parse);
        equal(&text, ollama.encode(&text, Special::Parse), ids.clone())?;
        equal(&text, ollama.decode(&ids), text.clone())?;
    }
    Ok(())
}

#[test]
fn special_ids_are_found() -> Result<(), Failed> {
    let tokenizer = tiny();
    // Positions in the tiny model's list of special tokens; the file itself names only 6 as end of generation.
    equal("bos", tokenizer.bos(), Some(2))?;
    equal("<turn|>", tokenizer.turn_end(), 6)?;
    equal("eos", tokenizer.eos(), &[1, 6])?;
    equal("V", tokenizer.vocab_size(), 2048)
}

#[test]
fn what_is_not_gemma_4_is_refused() -> Result<(), Failed> {
    let refused = |change: &dyn Fn(&mut TokenizerData), expected: &str| {
        let mut data = data();
        change(&mut data);
        let found = Tokenizer::new(data, &gemma4::TOKENIZER)
            .err()
            .map_or("it was accepted".to_owned(), |error| error.to_string());
        if found.contains(expected) {
            return Ok(());
        }
        Err(Failed::from(format!("found {found:?}, expected {expected:?}")))
    };
    refused(
        &|d| d.model = "gpt2".into(),
        "tokenizer.ggml.model is \"gpt2\", expected \"gemma4\" (llama.cpp)",
    )?;
    refused(&|d| d.merges.clear(), "tokenizer.ggml.merges is \"\", expected a list")?;
    refused(&|d| d.token_types.truncate(2047), "has 2047 entries for 2048 tokens")?;
    refused(&|d| d.tokens[6] = "<end>".into(), "no token \"<turn|>\"")?;
    refused(&|d| d.merges = vec!["ab".into()], "does not fit the vocabulary: none joins two of its tokens")?;
    refused(
        &|d| {
            *d = TokenizerData {
                model: "gemma4".into(),
                merges: vec!["a b".into()],
                bos: Some(2),
                ..Default::default()
            }
        },
        "does not fit the vocabulary",
    )
}

/// Files that llama.cpp loads with a warning.
#[test]
fn odd_vocabularies_are_read_with_a_notice() -> Result<(), Failed> {
    let notice = |data: TokenizerData, spec: &'static TokenizerSpec, expected: &str| {
        let tokenizer = built(data, spec)?;
        let found = tokenizer.notices().join("; ");
        equal("encodes", tokenizer.decode(&tokenizer.encode("Hello", Special::Parse)).trim(), "Hello")?;
        let fits = found.contains(expected).then_some(tokenizer);
        fits.ok_or_else(|| Failed::from(format!("found {found:?}, expected {expected:?}")))
    };
    let gemma = |change: &dyn Fn(&mut TokenizerData), expected: &str| {
        let mut data = data();
        change(&mut data);
        notice(data, &gemma4::TOKENIZER, expected)
    };
    equal("nothing", tiny().notices(), &[])?;
    let other = gemma(&|d| d.pre = Some("llama-bpe".into()), "tokenizer.ggml.pre is \"llama-bpe\", but")?;
    equal("same ids", other.encode("a b\n\nc", Special::Plain), tiny().encode("a b\n\nc", Special::Plain))?;
    let missing = "tokenizer.ggml.bos_token_id is missing; sequences start with <bos>";
    equal("bos", gemma(&|d| d.bos = None, missing)?.bos(), Some(2))?;
    let outside = "tokenizer.ggml.bos_token_id is 2048, but the vocabulary has 2048 tokens; it is left out";
    equal("bos", gemma(&|d| d.bos = Some(2048), outside)?.bos(), Some(2))?;
    let another = "tokenizer.ggml.bos_token_id is \"<unk>\", where models of this family have <bos>";
    equal("bos", gemma(&|d| d.bos = Some(3), another)?.bos(), Some(3))?;
    let end = gemma(&|d| d.eos.push(u32::MAX), "tokenizer.ggml.eos_token_id is 4294967295, but")?;
    equal("eos", end.eos(), &[1, 6])?;
    let longer = "tokenizer.ggml.token_type has 2050 entries for 2048 tokens; the last 2 are left out";
    gemma(&|d| d.token_types.extend([1, 1]), longer)?;
    gemma(
        &|d| (50..52).for_each(|i| d.tokens[i] = format!("\u{FFFD}{i}")),
        "2 tokens of the vocabulary are not UTF-8",
    )?;
    gemma(&|d| d.add_space_prefix = Some(true), "puts no space in front of a text")?;

    let mut scores = by_scores(false);
    scores.scores.push(0.0);
    notice(scores, &gemma3::TOKENIZER, "tokenizer.ggml.scores has 1801 entries for 1800 tokens")?;
    let spaced = TokenizerData { add_space_prefix: Some(true), ..byte_level("qwen2") };
    notice(spaced, &qwen3::TOKENIZER, "add_space_prefix is true, but this kind of tokenizer puts no space")?;
    // Tokens that the family names stay control tokens, others become text.
    for (data, spec) in [(by_scores(false), &gemma3::TOKENIZER), (byte_level("qwen2"), &qwen3::TOKENIZER)] {
        let untyped = TokenizerData { token_types: Vec::new(), ..data.clone() };
        let found = notice(untyped, spec, "tokenizer.ggml.token_type is missing")?;
        equal("turn end", found.turn_end(), built(data, spec)?.turn_end())?;
        equal("control", found.is_special(found.turn_end()), true)?;
    }
    Ok(())
}

/// llama.cpp's `tests/test-tokenizer-0.cpp`: texts in `.inp`, their ids in `.out`, made with Hugging Face's tokenizer.
/// Ids of plain text whose every line is merged whole.
fn by_lines(data: &TokenizerData, texts: &[String]) -> Vec<Vec<u32>> {
    let vocab = data.tokens.iter().enumerate().map(|(id, token)| (token.clone(), id as u32)).collect();
    let merges = data.merges.iter().map(|merge| {
        let (a, b) = merge.split_once(' ').expect("two tokens");
        (a.to_owned(), b.to_owned())
    });
    let bpe = BPE::builder()
        .vocab_and_merges::<tokenizers::models::bpe::Vocab>(vocab, merges.collect())
        .byte_fallback(true);
    let bpe = bpe.build().expect("sound");
    let line = |line: &str| -> Vec<u32> {
        bpe.tokenize(&line.replace(' ', "▁")).expect("every byte has a token").iter().map(|t| t.id).collect()
    };
    texts.iter().map(|text| line(text)).collect()
}

fn check_words(data: TokenizerData) -> Result<(), Failed> {
    let texts: Vec<String> = strange_texts()
        .into_iter()
        .flat_map(|text| [text.replace('\n', ""), text.replace('\n', " </b> a> ").replace('|', "> ")])
        .collect();
    let expected = by_lines(&data, &texts);
    let tokenizer = Tokenizer::new(data, &gemma4::TOKENIZER).map_err(|error| error.to_string())?;
    for (text, expected) in texts.iter().zip(expected) {
        equal(&format!("ids of {text:?}"), tokenizer.encode(text, Special::Plain), expected)?;
    }
    Ok(())
}

#[test]
fn words_have_the_ids_of_whole_lines() -> Result<(), Failed> {
    check_words(data())?;
    // Two tokens that reach over a space, one inside the other; the first merges before all others.
    let mut crossing = data();
    crossing.tokens.extend([">▁".to_owned(), ">▁<".to_owned()]);
    crossing.token_types.extend([1, 1]);
    crossing.merges.insert(0, "> ▁".to_owned());
    crossing.merges.insert(1, ">▁ <".to_owned());
    check_words(crossing)?;
    // So many of them that lines are merged whole.
    let mut many = data();
    let tokens = (0..100).map(|i| format!("{}▁x", char::from_u32(0x4e00 + i).expect("a character")));
    many.tokens.extend(tokens);
    many.token_types.resize(many.tokens.len(), 1);
    check_words(many)
}

fn built(data: TokenizerData, spec: &'static TokenizerSpec) -> Result<Tokenizer, Failed> {
    Tokenizer::new(data, spec).map_err(|error| error.to_string().into())
}

/// Compares the ids of all texts with those in the fixture under `name`.
fn compare(tokenizer: &Tokenizer, name: &str) -> Result<(), Failed> {
    let fixture = families();
    let (texts, expected) = (strings(&fixture["texts"]), strings(&fixture["ids"][name]));
    equal("texts", (texts.len(), expected.len()), (500, 500))?;
    for (text, expected) in texts.iter().zip(expected).filter(|(_, expected)| !expected.is_empty()) {
        let ids = tokenizer.encode(text, Special::Parse);
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let digest: String = Sha256::digest(bytes)[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        let tokens: Vec<String> = ids.iter().map(|&id| tokenizer.decode(&[id])).collect();
        equal(&format!("{name}: ids of {text:?}, {ids:?}, {tokens:?}"), digest, expected)?;
    }
    Ok(())
}

#[test]
fn byte_level_ids_are_hugging_faces() -> Result<(), Failed> {
    let names = [
        "qwen2",
        "deepseek-r1-qwen",
        "qwen35",
        "llama-bpe",
        "gpt-4o",
        "tekken",
        "smollm",
        "gpt-2",
        "default",
    ];
    names.into_iter().try_for_each(|name| compare(&built(byte_level(name), &llama::TOKENIZER)?, name))
}

/// One digest of all ids for each pre-tokenizer, in the order of the texts.
#[test]
fn ids_of_further_pre_tokenizers_are_hugging_faces() -> Result<(), Failed> {
    let fixture = families();
    let texts = strings(&fixture["texts"]);
    let further = fixture["further"].as_object().expect("an object");
    assert!(further.len() >= 10, "{} pre-tokenizers", further.len());
    let mut wrong = Vec::new();
    for (name, expected) in further {
        let tokenizer = built(byte_level(name), &llama::TOKENIZER)?;
        let mut hash = Sha256::new();
        for text in &texts {
            let ids = tokenizer.encode(text, Special::Parse);
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            hash.update(Sha256::digest(bytes));
        }
        let found: String = hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        if Some(&*found) != expected.as_str() {
            wrong.push(name.clone());
        }
    }
    equal("pre-tokenizers with other ids", wrong, Vec::new())
}

#[test]
fn ids_by_scores_are_sentencepieces() -> Result<(), Failed> {
    compare(&built(by_scores(false), &gemma3::TOKENIZER)?, "scores")?;
    // As llama.cpp does it, a space also stands in front of text behind a control token.
    let tokenizer = built(by_scores(true), &llama::TOKENIZER)?;
    compare(&tokenizer, "scores with a space in front")?;
    let id = |token: &str| tokenizer.id(token).expect("a token");
    let ids = tokenizer.encode("<start_of_turn>a<end_of_turn>", Special::Parse);
    equal("behind a control token", ids, vec![id("<start_of_turn>"), id("▁a"), id("<end_of_turn>")])?;
    let mut ids = tokenizer.encode("a", Special::Parse);
    tokenizer.append("a", Special::Parse, &mut ids);
    equal("further text", ids, vec![id("▁a"), id("a")])
}

#[test]
fn byte_level_text_and_joints() -> Result<(), Failed> {
    let data =
        [byte_level("deepseek-r1-qwen"), byte_level("llama-bpe"), byte_level("gpt-2"), by_scores(false)];
    for data in data {
        let tokenizer = built(data, &llama::TOKENIZER)?;
        let (mut joined, mut compared) = (0, 0);
        for text in strange_texts().iter().map(|text| text.replace("<turn|>", "<|im_end|>")).take(250) {
            for special in [Special::Parse, Special::Plain] {
                let ids = tokenizer.encode(&text, special);
                equal(&format!("{special:?} {ids:?}"), tokenizer.decode(&ids), text.clone())?;
                let control =
                    ids.iter().filter(|&&id| tokenizer.find_control(&tokenizer.decode(&[id])).is_some());
                equal("control tokens", special == Special::Plain && control.count() > 0, false)?;
            }
            let whole = tokenizer.encode(&text, Special::Parse);
            for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
                let mut halves = tokenizer.encode(&text[..at], Special::Parse);
                tokenizer.append(&text[at..], Special::Parse, &mut halves);
                equal(&format!("{text:?} at {at}"), tokenizer.joins_at(&text, at), halves != whole)?;
                joined += usize::from(halves != whole);
                compared += 1;
            }
        }
        assert!(joined > 30 && joined < compared, "{joined} joints of {compared}");
    }
    Ok(())
}

/// SmolLM's vocabularies have no token for these bytes; 13 of them are in no UTF-8.
const NOT_IN_SMOLLM: [u8; 21] = [
    0x04, 0x06, 0x13, 0x14, 0x16, 0x1d, 0xc0, 0xc1, 0xf1, 0xf2, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa, 0xfb,
    0xfc, 0xfd, 0xfe, 0xff,
];

/// How GPT-2 spells the bytes of [`NOT_IN_SMOLLM`].
fn gpt2_spelling(byte: u8) -> String {
    let code = if byte < 0x21 { 0x100 + u32::from(byte) } else { u32::from(byte) };
    char::from_u32(code).expect("a character").to_string()
}

#[test]
fn bytes_without_a_token_are_left_out() -> Result<(), Failed> {
    let mut smollm = byte_level("smollm");
    for token in NOT_IN_SMOLLM.map(gpt2_spelling) {
        let at = smollm.tokens.iter().position(|other| *other == token).expect("every byte is a token");
        smollm.tokens[at] = format!("unused {at}");
    }
    let (whole, lacking) =
        (built(byte_level("smollm"), &llama::TOKENIZER)?, built(smollm, &llama::TOKENIZER)?);
    equal("notices", lacking.notices().len(), 0)?;
    // As transformers: `tokenizer("\x04\x06\x13")` is empty, and the characters around such a byte merge.
    for (text, left, bytes) in [
        ("Hello, world 7!\n", "Hello, world 7!\n", vec![]),
        ("\u{4}\u{6}\u{13}", "", vec![0x04, 0x06, 0x13]),
        ("He\u{4}llo", "Hello", vec![0x04]),
        ("a\u{40000}b", "a\u{40000}b", vec![0xf1]),
    ] {
        equal(text, lacking.unwritable(text).into_iter().collect::<Vec<u8>>(), bytes)?;
        equal(&format!("{text:?}, whole vocabulary"), whole.unwritable(text).len(), 0)?;
        if !text.contains('\u{40000}') {
            let ids = lacking.encode(text, Special::Parse);
            equal(&format!("{text:?}"), lacking.decode(&ids), left.to_owned())?;
        }
    }
    // Prompts of chat, generate, serve and eval.samples.
    let notice = unwritten::notice(&lacking, ["You are terse.", "He\u{4}llo \u{13}"]).unwrap_or_default();
    assert!(notice.contains("these bytes of the prompt: 0x04, 0x13; they become"), "{notice}");
    equal("sound prompts", unwritten::notice(&lacking, ["Hello"]), None)?;
    equal("whole vocabulary", unwritten::notice(&whole, ["He\u{4}llo"]), None)?;
    equal(
        "other bytes",
        lacking.decode(&lacking.encode("a\u{40000}b", Special::Parse)),
        "a\u{FFFD}\u{FFFD}\u{FFFD}b".into(),
    )?;
    // SentencePiece and Gemma 4: characters that no token and no byte writes are the unknown token, once for a run of them.
    let without = |mut data: TokenizerData, unknown: bool| {
        data.tokens
            .iter_mut()
            .filter(|token| token.starts_with("<0x"))
            .for_each(|token| *token = format!("-{token}"));
        data.token_types.iter_mut().filter(|kind| **kind == 2).for_each(|kind| *kind = 1);
        data.unknown = unknown.then_some(3);
        data
    };
    for (data, spec) in [(by_scores(false), &gemma3::TOKENIZER), (data(), &gemma4::TOKENIZER)] {
        let unknown = built(without(data.clone(), true), spec)?;
        let id = unknown.id("<unk>").expect("it has one");
        let ids = unknown.encode("a\u{e1234}\u{e5678}a", Special::Parse);
        equal("in a row", ids.iter().filter(|other| **other == id).count(), 1)?;
        equal("bytes", unknown.unwritable("a\u{e1234}").len(), 4)?;
        let silent = built(without(data, false), spec)?;
        equal("left out", silent.encode("a\u{e1234}", Special::Parse), silent.encode("a", Special::Parse))?;
    }
    Ok(())
}

#[test]
fn lists_that_other_programs_do_without_may_be_missing() -> Result<(), Failed> {
    let notice = |data: TokenizerData, spec: &'static TokenizerSpec, expected: &str| {
        let tokenizer = built(data, spec)?;
        let found = tokenizer.notices().join("; ");
        equal("encodes", tokenizer.decode(&tokenizer.encode("Hello", Special::Parse)).trim(), "Hello")?;
        let fits = found.contains(expected).then_some(());
        fits.ok_or_else(|| Failed::from(format!("found {found:?}, expected {expected:?}")))
    };
    for merge in ["ab", " a", "a b c", "z <0x00>"] {
        let mut tiny = data();
        tiny.merges[3] = merge.into();
        notice(tiny, &gemma4::TOKENIZER, "1 of ")?;
    }
    // Longer than every token: the crate's join buffer would overrun.
    let mut tiny = data();
    tiny.merges[3] = format!("{0} {0}", tiny.tokens[9]);
    notice(
        tiny,
        &gemma4::TOKENIZER,
        "tokenizer.ggml.merges are not two tokens that join to a third, and are left out",
    )?;
    let changed = TokenizerData { pre: None, ..byte_level("qwen2") };
    notice(
        changed,
        &qwen3::TOKENIZER,
        "tokenizer.ggml.pre is missing, so texts are split as by \"default\"",
    )?;
    let changed = TokenizerData { scores: Vec::new(), ..by_scores(false) };
    notice(
        changed,
        &gemma3::TOKENIZER,
        "tokenizer.ggml.scores is missing, so texts are merged from the left",
    )?;
    Ok(())
}

#[test]
fn families_refuse_other_tokenizers() -> Result<(), Failed> {
    let refused = |data: TokenizerData, spec: &'static TokenizerSpec, expected: &str| {
        let found = Tokenizer::new(data, spec).err().map_or("no error".to_owned(), |error| error.to_string());
        let fits = found.contains(expected).then_some(());
        fits.ok_or_else(|| Failed::from(format!("found {found:?}, expected {expected:?}")))
    };
    let known = "\"qwen9\", expected one of qwen2, deepseek-r1-qwen, kormo, ";
    refused(byte_level("qwen9"), &qwen3::TOKENIZER, known)?;
    let near =
        "\"tiny_aya\", expected a name of the models that are trained, nearest \"gpt-4o\": one of qwen2, ";
    refused(byte_level("tiny_aya"), &qwen3::TOKENIZER, near)?;
    refused(by_scores(false), &qwen3::TOKENIZER, "tokenizer.ggml.model is \"llama\", expected \"gpt2\"")?;
    refused(byte_level("qwen2"), &gemma3::TOKENIZER, "tokenizer.ggml.model is \"gpt2\", expected \"llama\"")?;
    let (tokens, kinds) = (vec!["yes".into(), "no".into(), "yesno".into()], vec![1; 3]);
    let data =
        TokenizerData { tokens, token_types: kinds, merges: vec!["yes no".into()], ..byte_level("qwen2") };
    let data = TokenizerData { bos: None, eos: vec![0], eos_token: Some(0), ..data };
    refused(data, &qwen3::TOKENIZER, "no token of the vocabulary is a byte as GPT-2 spells it")?;
    let mut data = by_scores(false);
    data.scores.pop();
    refused(data, &gemma3::TOKENIZER, "tokenizer.ggml.scores has 1799 entries for 1800 tokens")?;
    let data = TokenizerData { bos: None, add_bos: Some(true), ..byte_level("llama-bpe") };
    refused(data, &llama::TOKENIZER, "tokenizer.ggml.bos_token_id is missing")?;
    let mut data = byte_level("llama-bpe");
    (data.eos, data.eos_token) = (Vec::new(), None);
    data.tokens.iter_mut().filter(|token| *token == "<|im_end|>").for_each(|token| *token = "<|x|>".into());
    refused(data, &llama::TOKENIZER, "no token that ends a turn")
}

#[test]
fn sequences_start_and_end_as_the_file_says() -> Result<(), Failed> {
    let bos = |data: TokenizerData| built(data, &llama::TOKENIZER).map(|tokenizer| tokenizer.bos().is_some());
    equal("llama-bpe", bos(byte_level("llama-bpe"))?, true)?;
    equal("llama-bpe, off", bos(TokenizerData { add_bos: Some(false), ..byte_level("llama-bpe") })?, false)?;
    equal("qwen2", bos(byte_level("qwen2"))?, false)?;
    equal("qwen2, on", bos(TokenizerData { add_bos: Some(true), ..byte_level("qwen2") })?, true)?;
    equal("scores", bos(by_scores(true))?, true)?;
    let tokenizer = built(byte_level("qwen2"), &qwen3::TOKENIZER)?;
    let (end, texts) = (tokenizer.id("<|im_end|>"), (tokenizer.bos_token(), tokenizer.eos_token()));
    equal(
        "turn end",
        (Some(tokenizer.turn_end()), tokenizer.eos().to_vec()),
        (end, end.into_iter().collect()),
    )?;
    equal("texts", texts, (Some("<|begin|>"), Some("<|im_end|>")))?;
    // A base model's file names the end of a text; its chats end as those of the instruction-tuned model.
    let mut data = byte_level("llama-bpe");
    let text_end = data.tokens.len() as u32;
    data.tokens.push("<|end_of_text|>".into());
    data.token_types.push(3);
    (data.eos, data.eos_token) = (vec![text_end], Some(text_end));
    let tokenizer = built(data, &llama::TOKENIZER)?;
    equal("base model", (Some(tokenizer.turn_end()), tokenizer.end_of_text()), (end, text_end))?;
    equal("both end generation", tokenizer.eos().len(), 2)
}

/// llama.cpp's own vocabularies, with texts in `.inp` and ids of Hugging Face's tokenizers in `.out`.
fn published_vocabularies_have_llama_cpp_ids(folder: &str) -> Result<(), Failed> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{folder}: {error}"))?;
    let mut paths: Vec<String> =
        entries.flatten().map(|entry| entry.path().to_string_lossy().into_owned()).collect();
    paths.retain(|path| path.ends_with(".gguf") && Path::new(&format!("{path}.inp")).exists());
    paths.sort();
    let mut compared = 0;
    for path in paths {
        let name =
            path.rsplit("ggml-vocab-").next().and_then(|name| name.strip_suffix(".gguf")).unwrap_or(&path);
        let spec = match name {
            "gemma-4" => continue, // of the tests of the full vocabulary
            _ if name.starts_with("qwen") => &qwen3::TOKENIZER,
            _ => &llama::TOKENIZER,
        };
        let gguf = Gguf::open(Path::new(&path)).map_err(|error| error.to_string())?;
        let start = Instant::now();
        let data = TokenizerData::from_gguf(&gguf).map_err(|error| error.to_string())?;
        if !spec.models.iter().any(|(model, ..)| *model == data.model) {
            continue; // BERT's
        }
        let tokenizer = built(data, spec).map_err(|error| format!("{name}: {error:?}"))?;
        println!("{name}: {} tokens in {:?}", tokenizer.vocab_size(), start.elapsed());
        let read = |extension: &str| std::fs::read_to_string(format!("{path}.{extension}"));
        let inputs = read("inp").map_err(|error| error.to_string())?;
        let outputs = read("out").map_err(|error| error.to_string())?;
        let texts: Vec<&str> = inputs.split_terminator("\n__ggml_vocab_test__\n").collect();
        let lines: Vec<&str> = outputs.split_terminator('\n').collect();
        equal("texts in .inp and lines in .out", texts.len(), lines.len())?;
        for (text, line) in texts.iter().zip(lines) {
            if name == "qwen35" && text.chars().any(|c| ('\u{300}'..'\u{370}').contains(&c)) {
                continue; // Hugging Face's tokenizer composes characters, llama.cpp's does not
            }
            let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().expect("an id")).collect();
            equal(&format!("{name}: ids of {text:?}"), tokenizer.encode(text, Special::Plain), expected)?;
        }
        compared += 1;
    }
    assert!(compared >= 12, "only {compared} vocabularies with texts in {folder}");
    Ok(())
}

#[test]
fn joints_are_where_a_token_covers_both_sides() -> Result<(), Failed> {
    let tokenizer = tiny();
    let mut joined = 0;
    for text in strange_texts().iter().take(400) {
        for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
            let halves =
                [&text[..at], &text[at..]].map(|half| tokenizer.encode(half, Special::Parse)).concat();
            let differ = halves != tokenizer.encode(text, Special::Parse);
            equal(&format!("{text:?} at {at}"), tokenizer.joins_at(text, at), differ)?;
            joined += usize::from(differ);
        }
    }
    assert!(joined > 100, "{joined} joints");
    Ok(())
}

fn its_own_template_renders_as_in_transformers(path: &str) -> Result<(), Failed> {
    let gguf = Gguf::open(Path::new(path)).map_err(|error| error.to_string())?;
    let tokenizer = Tokenizer::from_gguf(&gguf).map_err(|error| error.to_string())?;
    let source = gguf.require::<&str>("tokenizer.chat_template").map_err(|error| error.to_string())?;
    let template = Template::Jinja(Box::new(Jinja::new(source, DAY).map_err(|error| error.to_string())?));
    let (large, mut compared, mut plain, mut masked) = (Template::BuiltIn(&gemma4::template::LARGE), 0, 0, 0);
    for case in Case::all() {
        let of = |template: &Template| template.render(&tokenizer, &case.conversation, TrainOn::Assistant);
        if case.thinks() {
            // transformers leaves thoughts out; this template has no place for them.
            equal(&case.name, of(&template).err(), Some(TemplateError::Unused("reasoning_content".into())))?;
            case.without_thoughts().compare(&tokenizer, &template, "gguf")?;
            compared += 1;
            continue;
        }
        case.compare(&tokenizer, &template, "gguf")?;
        compared += 1;
        let rendered = of(&template).map_err(|error| format!("{}: {error}", case.name))?;
        masked += 1;
        let text = tokenizer.decode(&rendered.ids);
        equal(&case.name, &tokenizer.encode(&text, Special::Parse), &rendered.ids)?;
        let differs =
            ["developer", "control characters", "thinking, asked for"].contains(&case.name.as_str());
        if case.conversation.tools.is_empty() && !differs {
            equal(&case.name, Ok(rendered), of(&large))?;
            plain += 1;
        }
    }
    equal("conversations compared", compared, 40)?;
    equal("conversations masked, and equal to the built-in layout", (masked, plain), (34, 15))
}

fn full_vocabulary_has_llama_cpp_ids(path: &str) -> Result<(), Failed> {
    let read = |extension: &str| {
        let path = format!("{path}.{extension}");
        std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))
    };
    let (inputs, outputs) = (read("inp")?, read("out")?);
    let start = Instant::now();
    let gguf = Gguf::open(Path::new(path)).map_err(|error| error.to_string())?;
    let opened = start.elapsed();
    let tokenizer = Tokenizer::from_gguf(&gguf).map_err(|error| error.to_string())?;
    println!(
        "file opened in {opened:?}, {} tokens built in {:?}",
        tokenizer.vocab_size(),
        start.elapsed() - opened
    );

    let texts: Vec<&str> = inputs.split("\n__ggml_vocab_test__\n").collect();
    let lines: Vec<&str> = outputs.trim_end_matches('\n').split('\n').collect();
    equal("texts in .inp and lines in .out", texts.len(), lines.len())?;
    for (text, line) in texts.iter().zip(lines) {
        let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().expect("an id")).collect();
        equal(&format!("ids of {text:?}"), tokenizer.encode(text, Special::Plain), expected)?;
    }
    // Ids of Google's tokenizer for one exchange.
    let chat = "<|turn>user\nHi<turn|>\n<|turn>model\n";
    let expected = vec![105, 2364, 107, 10979, 106, 107, 105, 4368, 107];
    equal(chat, tokenizer.encode(chat, Special::Parse), expected)?;
    equal("eos", tokenizer.eos(), &[1, 50, 106])?;
    check_words(TokenizerData::from_gguf(&gguf).map_err(|error| error.to_string())?)?;
    decode_undoes_encode(&tokenizer)
}
