//! `make-data`: questions and answers about documents, written by a model, kept with their source, and filtered by rules that it prints.

mod documents;
mod passages;
mod rules;
mod writer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use rullama_train::files::{self, GrowingFile};
use rullama_train::talk::generate::Generator;
use serde_json::{Value, json};

use super::output;
use super::output::progress::Progress;
use super::talk::{Loaded, ModelArgs, SamplingArgs};
use passages::Passage;
use rules::{Reason, Rules};
use writer::{Remote, Writer};

/// Options of `make-data`.
#[derive(Args)]
pub struct MakeDataArgs {
    /// Folder with text, Markdown, HTML and PDF files, or one file.
    documents: PathBuf,
    #[command(flatten)]
    model: ModelArgs,
    /// Ask a server that speaks as OpenAI's does in place of a local model, such as http://127.0.0.1:11434/v1 for Ollama's; BASE is then the
    /// model's name there. The key is that of OPENAI_API_KEY.
    #[arg(long, value_name = "ADDRESS")]
    url: Option<String>,
    /// File of samples to write. Dropped pairs go beside it, into NAME.dropped.jsonl.
    #[arg(long, value_name = "FILE.jsonl", default_value = "made.jsonl")]
    out: PathBuf,
    /// Questions per passage of about 1500 characters.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=20))]
    questions: u64,
    /// Stop after this many passages.
    #[arg(long, value_name = "N")]
    passages: Option<usize>,
    /// Overwrite existing files.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A passage and the file that it is from.
struct Place {
    file: PathBuf,
    passage: Passage,
}

/// Files that grow, and what was counted.
struct Results {
    rules: Rules,
    kept: usize,
    dropped: BTreeMap<Reason, usize>,
    samples: GrowingFile,
    rest: GrowingFile,
}

/// Reads the documents, asks the model, and writes what the rules let through.
pub fn run(args: &MakeDataArgs) -> Result<()> {
    args.sampling.check()?;
    std::fs::metadata(&args.documents).with_context(|| {
        format!("{} cannot be read; name a folder of documents", args.documents.display())
    })?;
    let dropped_path = args.out.with_extension("dropped.jsonl");
    for path in [&args.out, &dropped_path] {
        if path.exists() && !args.force {
            bail!("{} exists; choose another name with --out, or overwrite it with --force", path.display());
        }
        files::check_file(path)?;
    }
    let places = read(args)?;
    let create = |path: &Path| GrowingFile::create(path.to_owned(), b"");
    // Only once the model is there: a command that cannot start leaves files as they are.
    let started = || -> Result<Results> {
        Ok(Results {
            rules: Rules::default(),
            kept: 0,
            dropped: BTreeMap::new(),
            samples: create(&args.out)?,
            rest: create(&dropped_path)?,
        })
    };
    let results = match &args.url {
        Some(url) => {
            let name = &args.model.base;
            let remote = Remote::new(
                url,
                name,
                args.sampling.max_tokens(),
                args.sampling.temperature().unwrap_or(0.3),
            );
            write(args, &places, &mut Writer::Remote(remote), started()?)?
        }
        None => {
            super::pull::base(&args.model.base)?;
            let loaded = Loaded::open(&args.model)?;
            let options = args.sampling.options(&loaded.frozen.base);
            let model = loaded.model()?;
            let workspace = loaded.workspace(&model)?;
            let generator = Generator::new(&workspace, &loaded.frozen.tokenizer, loaded.adapter.as_ref())?;
            let mut writer = Writer::Local { loaded: &loaded, generator: Box::new(generator), options };
            write(args, &places, &mut writer, started()?)?
        }
    };
    report(args, &places, &results, &dropped_path)
}

/// The passages of all documents. Documents that cannot be read, and files that are none, are named.
fn read(args: &MakeDataArgs) -> Result<Vec<Place>> {
    let (paths, others) = documents::find(&args.documents)?;
    if !others.is_empty() {
        let count = output::count(others.len(), "other file");
        notice(
            args,
            &format!("{count} left out: {}", others.iter().take(8).cloned().collect::<Vec<_>>().join(", ")),
        );
    }
    let mut places = Vec::new();
    let mut problems = Vec::new();
    for file in paths {
        match documents::read(&file) {
            Ok(pages) => places.extend(
                passages::cut(&pages).into_iter().map(|passage| Place { file: file.clone(), passage }),
            ),
            Err(error) => problems.push(super::message(&error)),
        }
    }
    problems.iter().for_each(|problem| notice(args, &format!("left out: {problem}")));
    if places.is_empty() {
        bail!(
            "{} has no text of 200 characters or more to ask about; add documents",
            args.documents.display()
        );
    }
    if let Some(most) = args.passages.filter(|most| *most < places.len()) {
        notice(args, &format!("the first {most} of {} passages are read (--passages)", places.len()));
        places.truncate(most);
    }
    Ok(places)
}

fn notice(args: &MakeDataArgs, text: &str) {
    if args.json { eprintln!("note: {text}") } else { output::line("notice", text) }
}

/// Asks for questions and answers of every passage.
fn write(
    args: &MakeDataArgs,
    places: &[Place],
    writer: &mut Writer,
    mut results: Results,
) -> Result<Results> {
    let progress = Progress::new("passages", places.len());
    for (index, place) in places.iter().enumerate() {
        let text = &place.passage.text;
        let count = args.questions;
        let asked = format!(
            "{text}\n\n---\nWrite {count} questions that somebody who has never seen these paragraphs could ask, and that they answer. Name \
             what each question is about. One question per line, no answers."
        );
        let listed = writer.reply(&asked)?.text;
        for question in questions(&listed).into_iter().take(count as usize) {
            results.pair(place, &question, text, writer)?;
        }
        progress.set_position(index + 1);
    }
    progress.finish_and_clear();
    Ok(results)
}

/// A text without the letter of a list before it, as in “A) ” and “(b) ”.
fn unlettered(text: &str) -> &str {
    let letter = text.strip_prefix('(').unwrap_or(text).strip_prefix(|c: char| c.is_ascii_alphabetic());
    letter.and_then(|rest| rest.strip_prefix(") ")).map_or(text, str::trim_start)
}

/// The lines of a list, without numbers, marks and labels; those that ask something first.
fn questions(text: &str) -> Vec<String> {
    let plain = |line: &str| {
        let line = line.trim().trim_start_matches(|c: char| c.is_ascii_digit() || "-*.) #".contains(c));
        let line = unlettered(line);
        let label = line.split_once(": ").filter(|(label, _)| {
            let word = label.trim_end_matches(|c: char| c.is_ascii_digit() || c == ' ');
            word.len() <= 1 || word.eq_ignore_ascii_case("question")
        });
        let line = label.map_or(line, |(_, rest)| rest);
        line.trim().trim_matches(['*', '"']).trim().to_owned()
    };
    let lines = text.lines().map(plain).filter(|line| !line.is_empty());
    let (asking, others): (Vec<String>, Vec<String>) = lines.partition(|line| line.ends_with('?'));
    asking.into_iter().chain(others).collect()
}

impl Results {
    /// Has a question answered, and writes the pair to one of the files.
    fn pair(&mut self, place: &Place, question: &str, text: &str, writer: &mut Writer) -> Result<()> {
        let mut answer = String::new();
        let mut reason = self.rules.question(question, text);
        if reason.is_none() {
            let asked = format!(
                "{text}\n\n---\nAnswer in one or two sentences, from these paragraphs alone. If they do not say it, answer NONE.\n\nQuestion: \
                 {question}"
            );
            let reply = writer.reply(&asked)?;
            let said = reply.text.strip_prefix("Answer:").unwrap_or(&reply.text).trim();
            let said = unlettered(said).to_owned();
            reason = self.rules.answer(question, &said, text, reply.whole);
            answer = said;
        }
        let source = json!({ "file": place.file, "page": place.passage.page, "passage": place.passage.number, "text": text });
        let messages =
            json!([{ "role": "user", "content": question }, { "role": "assistant", "content": answer }]);
        let mut sample = json!({ "messages": messages, "source": source });
        match reason {
            None => {
                self.kept += 1;
                self.samples.append(format!("{sample}\n").as_bytes())?;
            }
            Some(reason) => {
                *self.dropped.entry(reason).or_default() += 1;
                sample["dropped"] = reason.to_string().into();
                self.rest.append(format!("{sample}\n").as_bytes())?;
            }
        }
        Ok(())
    }
}

/// Says what was written, what was dropped by which rule, and that a person should look.
fn report(args: &MakeDataArgs, places: &[Place], results: &Results, dropped_path: &Path) -> Result<()> {
    let dropped: usize = results.dropped.values().sum();
    if args.json {
        let by: BTreeMap<String, Value> = results
            .dropped
            .iter()
            .map(|(reason, count)| (reason.to_string(), json!({ "count": count, "rule": reason.rule() })))
            .collect();
        output::text(json!({
            "samples": args.out, "count": results.kept, "dropped": dropped_path, "dropped_count": dropped, "dropped_by": by,
            "passages": places.len(),
        }));
        return Ok(());
    }
    let of = output::count(places.len(), "passage");
    output::line(
        "written",
        format_args!("{} of {of} to {}", output::count(results.kept, "sample"), args.out.display()),
    );
    output::line("dropped", format_args!("{} to {}", output::count(dropped, "pair"), dropped_path.display()));
    for (reason, count) in &results.dropped {
        output::line("", format_args!("{count} × {reason}: {}", reason.rule()));
    }
    if results.kept == 0 {
        bail!("no pair is left; use a larger model, or look into {}", dropped_path.display());
    }
    output::line(
        "notice",
        "the rules compare words, and know nothing of truth: read the file and mend or remove samples before training",
    );
    output::line("next", format_args!("rullama-train init --data {}", args.out.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_in_any_dress_are_read() {
        let text = "Here are some:\n1. **Who is it?**\n- Q: When was it?\nQuestion 3: Why?\nB) How?\n\n\"Where is it?\"\n";
        let found = ["Who is it?", "When was it?", "Why?", "How?", "Where is it?", "Here are some:"];
        assert_eq!(questions(text), found);
        assert_eq!(unlettered("A. Smith (b) 1873"), "A. Smith (b) 1873");
    }
}
