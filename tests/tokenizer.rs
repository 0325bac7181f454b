//! The tokenizer against Hugging Face's ids on the tiny vocabulary, and against llama.cpp's own test on the full one.
//!
//! `RULLAMA_TOKENIZER_GGUF` names llama.cpp's `ggml-vocab-gemma-4.gguf`, with its `.inp` and `.out` beside it.

use std::path::Path;
use std::time::Instant;

#[path = "common/template.rs"]
mod common_template;

use common_template::{Case, DAY};
use libtest_mimic::{Arguments, Failed, Trial};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rullama_train::base::Gguf;
use rullama_train::data::template::{Jinja, Template, TemplateError, TrainOn};
use rullama_train::data::tokenizer::{DecodeStream, Special, Tokenizer, TokenizerData};
use rullama_train::families::gemma4;
use tokenizers::Model;
use tokenizers::models::bpe::BPE;

const FULL: &str = "RULLAMA_TOKENIZER_GGUF";

fn main() {
    let full = std::env::var(FULL).ok();
    let missing = full.is_none();
    let of_full = |name: &str, test: fn(&str) -> Result<(), Failed>| {
        let path = full.clone().unwrap_or_default();
        let hint = if missing { format!(" (set {FULL} to ggml-vocab-gemma-4.gguf)") } else { String::new() };
        Trial::test(format!("{name}{hint}"), move || test(&path)).with_ignored_flag(missing)
    };
    let trials = vec![
        Trial::test("tiny_vocabulary_has_hugging_face_ids", tiny_vocabulary_has_hugging_face_ids),
        Trial::test("decode_undoes_encode", || decode_undoes_encode(&tiny())),
        Trial::test("streaming_gives_the_same_text", streaming_gives_the_same_text),
        Trial::test("broken_bytes_become_replacement_characters", broken_bytes_become_replacement_characters),
        Trial::test("plain_text_yields_no_control_token", plain_text_yields_no_control_token),
        Trial::test("newline_runs_are_looked_up_whole", newline_runs_are_looked_up_whole),
        Trial::test("ollama_dialect_is_the_same_tokenizer", ollama_dialect_is_the_same_tokenizer),
        Trial::test("special_ids_are_found", special_ids_are_found),
        Trial::test("what_is_not_gemma_4_is_refused", what_is_not_gemma_4_is_refused),
        Trial::test("words_have_the_ids_of_whole_lines", words_have_the_ids_of_whole_lines),
        Trial::test("joints_are_where_a_token_covers_both_sides", joints_are_where_a_token_covers_both_sides),
        of_full("full_vocabulary_has_llama_cpp_ids", full_vocabulary_has_llama_cpp_ids),
        of_full("its_own_template_renders_as_in_transformers", its_own_template_renders_as_in_transformers),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
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

fn special_ids_are_found() -> Result<(), Failed> {
    let tokenizer = tiny();
    // Positions in the tiny model's list of special tokens; the file itself names only 6 as end of generation.
    equal("bos", tokenizer.bos(), 2)?;
    equal("<|turn>", tokenizer.turn_start(), 5)?;
    equal("<turn|>", tokenizer.turn_end(), 6)?;
    equal("eos", tokenizer.eos(), &[1, 6])?;
    equal("V", tokenizer.vocab_size(), 2048)
}

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
    refused(&|d| d.pre = Some("llama-bpe".into()), "tokenizer.ggml.pre is \"llama-bpe\"")?;
    refused(&|d| d.merges.clear(), "tokenizer.ggml.merges is \"\", expected a list")?;
    refused(&|d| d.add_space_prefix = true, "tokenizer.ggml.add_space_prefix is \"true\", expected false")?;
    refused(&|d| d.token_types.truncate(2047), "has 2047 entries for 2048 tokens")?;
    refused(&|d| d.bos = 2048, "tokenizer.ggml.bos_token_id is 2048, but the vocabulary has 2048 tokens")?;
    refused(&|d| d.bos = 3, "tokenizer.ggml.bos_token_id is \"<unk>\", expected the token <bos>")?;
    refused(&|d| d.eos.push(u32::MAX), "tokenizer.ggml.eos_token_id is 4294967295")?;
    refused(&|d| d.tokens[6] = "<end>".into(), "no token \"<turn|>\"")?;
    refused(&|d| d.tokens[10 + 0xAB] = "byte".into(), "no token \"<0xAB>\"")?;
    refused(&|d| d.merges[3] = "ab".into(), "tokenizer.ggml.merges[3] is \"ab\", expected two tokens")?;
    refused(&|d| d.merges[3] = " a".into(), "tokenizer.ggml.merges[3]")?;
    refused(&|d| d.merges[3] = "a b c".into(), "out of vocabulary")?;
    refused(&|d| d.merges[3] = "z <0x00>".into(), "out of vocabulary")?;
    // Longer than every token: the crate's join buffer would overrun.
    refused(&|d| d.merges[3] = format!("{0} {0}", d.tokens[9]), "tokenizer.ggml.merges[3]")?;
    refused(
        &|d| *d = TokenizerData { model: "gemma4".into(), merges: vec!["a b".into()], ..Default::default() },
        "0 tokens",
    )
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
