//! A conversation on the terminal, or line by line where stdin is none.

use std::io::{BufRead, IsTerminal};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use pollster::block_on;
use rullama_train::model::decode::Workspace;
use rullama_train::talk::conversation::Conversation;
use rullama_train::talk::generate::{Event, Finish, Generator, Options, Reply};
use rustyline::error::ReadlineError;

use super::inference::{Loaded, ModelArgs, SamplingArgs, say, say_cut};
use super::show;

const HELP: &str = "\
/reset           forgets the conversation
/adapter on|off  replies with the adapters, or with the base alone
/help            this
/quit            ends; so does the end of the input";

/// Who talks, and how.
#[derive(Args)]
pub struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A system message before the conversation.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Answer every message twice: the base alone, then with the adapters; each has its own conversation.
    #[arg(long, requires = "adapters")]
    compare: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Tell tokens and speed of every reply on stderr.
    #[arg(long)]
    verbose: bool,
}

/// Talks until the input ends.
pub fn run(args: &ChatArgs) -> Result<()> {
    args.sampling.check()?;
    let loaded = Loaded::open(&args.model)?;
    let options = args.sampling.options(loaded.frozen.base.config());
    let model = loaded.model()?;
    let workspace = loaded.workspace(&model)?;
    let conversation = Conversation::new(args.system.clone());
    let mut chat = Chat {
        loaded: &loaded,
        workspace: &workspace,
        options,
        base: None,
        adapted: None,
        with_adapter: loaded.adapter.is_some(),
        conversation: conversation.clone(),
        compared: args.compare.then_some(conversation),
        stop: Arc::new(AtomicBool::new(false)),
        verbose: args.verbose,
    };
    if !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) {
        for (number, line) in std::io::stdin().lock().lines().enumerate() {
            let line = line.with_context(|| format!("stdin line {}", number + 1))?;
            if chat.hear(&line)?.is_break() {
                break;
            }
        }
        return Ok(());
    }
    loaded.show();
    show::text("\nWrite a message. /help shows the commands; Ctrl-C breaks off a reply, Ctrl-D ends.\n");
    let stop = chat.stop.clone();
    ctrlc::set_handler(move || stop.store(true, Ordering::Relaxed)).context("Ctrl-C cannot be caught")?;
    let mut editor = rustyline::DefaultEditor::new()?;
    loop {
        match editor.readline("> ") {
            Ok(line) => {
                let _ = editor.add_history_entry(&line);
                chat.stop.store(false, Ordering::Relaxed);
                match chat.hear(&line) {
                    Ok(ControlFlow::Continue(())) => {}
                    Ok(ControlFlow::Break(())) => return Ok(()),
                    // What one message met need not end the others.
                    Err(error) => eprintln!("error: {}", super::message(&error)),
                }
            }
            Err(ReadlineError::Interrupted) => show::text("Ctrl-D or /quit ends."),
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

struct Chat<'a> {
    loaded: &'a Loaded,
    workspace: &'a Workspace<'a>,
    options: Options,
    /// Made when first needed: each has a cache.
    base: Option<Generator<'a>>,
    adapted: Option<Generator<'a>>,
    with_adapter: bool,
    conversation: Conversation,
    /// The base's own, where both answer.
    compared: Option<Conversation>,
    stop: Arc<AtomicBool>,
    verbose: bool,
}

impl<'a> Chat<'a> {
    /// Does what a line says; breaks where it is the last.
    fn hear(&mut self, line: &str) -> Result<ControlFlow<()>> {
        let line = line.trim();
        match line.split_once(' ').unwrap_or((line, "")) {
            ("", _) => {}
            ("/quit", "") => return Ok(ControlFlow::Break(())),
            ("/help", "") => show::text(HELP),
            ("/reset", "") => {
                self.conversation.reset();
                self.compared.iter_mut().for_each(Conversation::reset);
                show::text("The conversation is forgotten.");
            }
            ("/adapter", state) => self.switch(state.trim())?,
            _ if line.starts_with('/') => bail!("{line}: unknown command; /help shows the commands"),
            _ => return self.answer(line),
        }
        Ok(ControlFlow::Continue(()))
    }

    fn switch(&mut self, state: &str) -> Result<()> {
        if self.compared.is_some() {
            bail!("/adapter: with --compare both answer");
        }
        if self.loaded.adapter.is_none() {
            bail!("/adapter: there is none; start with --adapter PATH");
        }
        match state {
            "on" => self.with_adapter = true,
            "off" => self.with_adapter = false,
            "" => {}
            _ => bail!("/adapter {state}: expected on or off"),
        }
        show::text(format_args!("The adapter is {}.", if self.with_adapter { "on" } else { "off" }));
        Ok(())
    }

    fn answer(&mut self, message: &str) -> Result<ControlFlow<()>> {
        if let Some(mut conversation) = self.compared.take() {
            let _ = say("[base] ");
            let said = self.say(message, &mut conversation, false);
            self.compared = Some(conversation);
            if said?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let _ = say("[adapter] ");
        }
        let mut conversation = self.conversation.clone();
        let said = self.say(message, &mut conversation, self.with_adapter);
        self.conversation = conversation;
        // Every message has its own draws; where both answer, they have the same.
        self.options.sampling.seed = self.options.sampling.seed.wrapping_add(1);
        said
    }

    /// One reply, word by word, and what it adds to the conversation.
    fn say(
        &mut self,
        message: &str,
        conversation: &mut Conversation,
        with_adapter: bool,
    ) -> Result<ControlFlow<()>> {
        let (tokenizer, stop) = (&self.loaded.frozen.tokenizer, self.stop.clone());
        let turn = conversation.ask(&self.loaded.frozen.template, tokenizer, message)?;
        let options = self.options.clone();
        let mut closed = false;
        let started = Instant::now();
        let mut first = None;
        let hear = |event: Event| {
            if let Event::Text(piece) = event {
                first.get_or_insert_with(|| started.elapsed());
                closed = say(piece).is_break();
            }
            match closed || stop.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let reply = block_on(self.generator(with_adapter)?.reply(&turn.ids, &options, hear))?;
        if closed {
            return Ok(ControlFlow::Break(()));
        }
        self.loaded.gpu.keep_pipelines();
        show::text("");
        say_cut(&reply, self.loaded.context());
        if self.verbose {
            let prompt_seconds = first.unwrap_or_default().as_secs_f64();
            tell(&reply, prompt_seconds, started.elapsed().as_secs_f64());
        }
        if reply.finish != Finish::Cancelled || !reply.ids.is_empty() {
            conversation.push(tokenizer, turn, &reply.ids, &reply.text);
        }
        Ok(ControlFlow::Continue(()))
    }

    fn generator(&mut self, with_adapter: bool) -> Result<&mut Generator<'a>> {
        let adapter = self.loaded.adapter.as_ref().filter(|_| with_adapter);
        let place = if with_adapter { &mut self.adapted } else { &mut self.base };
        if place.is_none() {
            *place = Some(Generator::new(self.workspace, &self.loaded.frozen.tokenizer, adapter)?);
        }
        Ok(place.as_mut().expect("made above"))
    }
}

fn tell(reply: &Reply, prompt_seconds: f64, seconds: f64) {
    let (prompt, cached, tokens) = (reply.prompt_tokens, reply.cached_tokens, reply.ids.len());
    let speed = tokens.saturating_sub(1) as f64 / (seconds - prompt_seconds).max(1e-9);
    eprintln!(
        "note: prompt of {prompt} tokens, {cached} of them cached, {prompt_seconds:.2} s to the first token; {tokens} \
         tokens, {speed:.0} tokens/s"
    );
}
