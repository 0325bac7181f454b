//! `inspect --ids` and `inspect --text`: the ids of samples and of any text.

use anyhow::Result;
use rullama_train::base::Base;
use rullama_train::data::batch::{IGNORE, Sample};
use rullama_train::data::tokenizer::{Special, Tokenizer};
use serde_json::{Value, json};

use crate::cli::output;
use crate::cli::talk::tokens;

/// Prints the ids of `text` with special tokens and without, by the tokenizer of `base`, or of tiny.
pub fn describe(text: &str, base: Option<&str>, as_json: bool) -> Result<()> {
    let name = base.unwrap_or("tiny");
    let base = Base::open(name)?;
    let tokenizer = Tokenizer::from_gguf(base.gguf())?;
    let parsed = tokenizer.encode(text, Special::Parse);
    let bos = tokenizer.bos().filter(|bos| parsed.first() != Some(bos));
    let special: Vec<u32> = bos.into_iter().chain(parsed).collect();
    let plain = tokenizer.encode(text, Special::Plain);
    if as_json {
        let of = |ids: &[u32]| json!({ "ids": ids, "tokens": texts(&tokenizer, ids) });
        output::text(json!({ "base": name, "text": text, "special": of(&special), "plain": of(&plain) }));
        return Ok(());
    }
    let count = |ids: &[u32]| output::count(ids.len(), "token");
    output::line(
        "special",
        format_args!("{}, as a prompt without a template has them: {special:?}", count(&special)),
    );
    output::line("plain", format_args!("{}, as the content of a message has them: {plain:?}", count(&plain)));
    table(&tokenizer, &special, None);
    if plain != special[special.len() - plain.len().min(special.len())..] {
        table(&tokenizer, &plain, None);
    }
    Ok(())
}

/// Prints a line for each token of a sample: its id, whether it has loss, and its text.
pub fn of_sample(tokenizer: &Tokenizer, sample: &Sample) {
    table(tokenizer, &sample.ids, Some(&loss(sample)));
}

/// A sample as JSON: lists with one item per token.
pub fn json_of(tokenizer: &Tokenizer, sample: &Sample) -> Value {
    json!({
        "origin": sample.origin, "side": sample.side.name(),
        "ids": sample.ids, "tokens": texts(tokenizer, &sample.ids), "loss": loss(sample),
    })
}

/// Whether each token has loss. The first one never has.
fn loss(sample: &Sample) -> Vec<bool> {
    sample.labels.iter().enumerate().map(|(place, label)| place > 0 && *label != IGNORE).collect()
}

fn texts(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| tokens::text(tokenizer, id, "")).collect()
}

fn table(tokenizer: &Tokenizer, ids: &[u32], loss: Option<&[bool]>) {
    let middle = |flag: &str| if loss.is_some() { format!("  {flag:<4}") } else { String::new() };
    output::text(format_args!("\n{:>8}{}  token", "id", middle("loss")));
    for (place, &id) in ids.iter().enumerate() {
        let flag = if loss.is_some_and(|loss| loss[place]) { "yes" } else { "" };
        let text = match std::str::from_utf8(&tokenizer.token_bytes(id)) {
            // Quoted, so that spaces and line ends are seen.
            Ok(text) => Value::from(text).to_string(),
            Err(_) => tokens::text(tokenizer, id, ""),
        };
        output::text(format_args!("{id:>8}{}  {text}", middle(flag)));
    }
}
