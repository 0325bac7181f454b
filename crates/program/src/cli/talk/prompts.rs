//! The prompts of `generate`: from options, text files and files of samples.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use rullama_train::data::compare::Supervision;
use rullama_train::data::dataset::{self, Invalid, Overlong};
use rullama_train::talk::conversation::Conversation;
use serde_json::{Map, Value, json};

use super::{Loaded, note_unwritten};

/// Options that name prompts.
#[derive(Args)]
pub struct PromptArgs {
    /// Prompt; may be repeated.
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,
    /// File that contains a prompt, or - for stdin; may be repeated.
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Treat every line of the files as a separate prompt.
    #[arg(long)]
    lines: bool,
    /// File, folder or pattern of samples with a "prompt", text or messages, and any other columns, which rewards see; in the formats of
    /// training data; may be repeated.
    #[arg(long, value_name = "FILE")]
    samples: Vec<PathBuf>,
    /// Continue the prompt as plain text, without the chat template: only <bos> is added, and control tokens in the prompt are parsed.
    #[arg(long, conflicts_with_all = ["system", "samples"])]
    pub raw: bool,
    /// System message before each prompt that has none.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
}

/// A prompt.
pub struct Prompt {
    /// As it is in its sample: text or messages.
    pub value: Value,
    /// With the chat template around it.
    pub ids: Vec<u32>,
    /// All columns of its sample.
    pub row: Map<String, Value>,
}

/// Keys of a sample that are parts of its prompt.
const BESIDE: [&str; 3] = ["system", "tools", "chat_template_kwargs"];

impl PromptArgs {
    /// The prompts that are given as text. Fails if there is none of any kind.
    pub fn texts(&self) -> Result<Vec<String>> {
        let mut prompts = self.prompt.clone();
        for path in &self.file {
            let text = match path.to_str() {
                Some("-") => std::io::read_to_string(std::io::stdin()).context("stdin")?,
                _ => std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read {}", path.display()))?,
            };
            match self.lines {
                true => prompts.extend(text.lines().filter(|l| !l.trim().is_empty()).map(str::to_owned)),
                false => prompts.push(text),
            }
        }
        if let Some(missing) =
            self.samples.iter().find(|path| !path.exists() && !dataset::files::is_pattern(path))
        {
            bail!("--samples: {} does not exist", missing.display());
        }
        if prompts.is_empty() && self.samples.is_empty() {
            bail!("no prompt given; use --prompt TEXT, --file FILE or --samples FILE");
        }
        Ok(prompts)
    }

    /// The texts as prompts of the model, then those of the samples. Each leaves room for a reply, which may end where the context does.
    pub fn encoded(&self, texts: &[String], loaded: &Loaded) -> Result<Vec<Prompt>> {
        let mut prompts = Vec::new();
        for text in texts {
            note_unwritten(loaded, self.system.iter().chain([text]).map(String::as_str));
            let ids = self.encode(loaded, text)?;
            prompts.push(Prompt { value: text.as_str().into(), ids, row: Map::new() });
        }
        let frozen = &loaded.frozen;
        let options = dataset::Options {
            supervision: Supervision::Prompts,
            system: self.system.as_deref(),
            max_seq_len: loaded.context(),
            overlong: Overlong::Error,
            invalid: Invalid::Error,
            completion: 1,
            ..dataset::Options::new(&frozen.template)
        };
        for path in &self.samples {
            let (files, notice) = dataset::files::expand(path)?;
            let mut notices: Vec<_> = notice.into_iter().collect();
            for file in files {
                let read = dataset::files::read(&file, &frozen.tokenizer, &options, None)?;
                notices.extend(read.notices);
                prompts.extend(read.samples.into_iter().map(|sample| {
                    let row = sample.row.expect("samples of prompts have their rows");
                    Prompt { value: row.prompt.clone(), ids: sample.ids, row: row.columns.clone() }
                }));
            }
            // Named as the option, not as the key of a recipe.
            let named = |notice: &dataset::Notice| notice.to_string().replace("data.system", "--system");
            notices.iter().for_each(|notice| eprintln!("note: {}", named(notice)));
        }
        Ok(prompts)
    }

    fn encode(&self, loaded: &Loaded, prompt: &str) -> Result<Vec<u32>> {
        let frozen = &loaded.frozen;
        if self.raw {
            return Ok(frozen.continuation(prompt));
        }
        let conversation = Conversation::new(self.system.clone());
        Ok(conversation
            .ask(&frozen.template, &frozen.tokenizer, prompt)
            .with_context(|| format!("prompt {prompt:?}"))?
            .ids)
    }

    /// The part of a sample that has the prompt, with what belongs to it.
    pub fn sample(&self, prompt: &Prompt) -> Map<String, Value> {
        let mut sample = Map::new();
        sample.insert("prompt".into(), prompt.value.clone());
        for key in BESIDE {
            sample.extend(
                prompt.row.get(key).filter(|value| !value.is_null()).map(|value| (key.into(), value.clone())),
            );
        }
        let has_system = prompt
            .value
            .as_array()
            .and_then(|messages| messages.first())
            .is_some_and(|first| first["role"] == "system");
        if let Some(system) = self.system.as_ref().filter(|_| !has_system && !sample.contains_key("system")) {
            sample.insert("system".into(), json!(system));
        }
        sample
    }
}
