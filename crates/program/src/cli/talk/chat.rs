//! `chat`: a conversation on the terminal, or one message per line if stdin is not a terminal.

use std::io::{BufRead, IsTerminal};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use pollster::block_on;
use rullama_train::talk::conversation::Conversation;
use rullama_train::talk::generate::{Event, Finish, Options, Reply};
use rullama_train::talk::sampling::Sampling;
use rustyline::error::ReadlineError;

use super::{Generators, Loaded, ModelArgs, SamplingArgs, note_if_cut, note_unwritten, print_piece};
use crate::cli::output;

const HELP: &str = "\
/reset           start a new conversation
/adapter on|off  reply with or without the adapters
/help            show this help
/quit            quit (as does Ctrl-D)";

/// Options of `chat`.
#[derive(Args)]
pub struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// System message before the conversation.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Answer every message twice, without and with the adapters. Each side keeps its own conversation.
    #[arg(long, requires = "adapters")]
    compare: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Print tokens and speed of every reply on stderr.
    #[arg(long)]
    verbose: bool,
}

/// Answers messages until the input ends.
pub fn run(args: &ChatArgs) -> Result<()> {
    args.sampling.check()?;
    let loaded = Loaded::open(&args.model)?;
    let options = args.sampling.options(&loaded.frozen.base);
    let model = loaded.model()?;
    let workspace = loaded.workspace(&model)?;
    let conversation = Conversation::new(args.system.clone());
    note_unwritten(&loaded, args.system.as_deref());
    let chat = Chat {
        loaded: &loaded,
        generators: Generators::new(&loaded, &workspace),
        options,
        with_adapter: loaded.adapter.is_some(),
        conversation: conversation.clone(),
        compared: args.compare.then_some(conversation),
        stop: Arc::new(AtomicBool::new(false)),
        verbose: args.verbose,
    };
    match std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        true => chat.run_on_terminal(),
        false => chat.run_on_lines(),
    }
}

/// Describes how tokens are chosen. A run's report shows greedy replies, so the difference is explained.
fn sampling(sampling: &Sampling) -> String {
    if sampling.temperature == 0.0 {
        return "greedy, as in a run's report".into();
    }
    let top_k = if sampling.top_k > 0 { format!(", top-k {}", sampling.top_k) } else { String::new() };
    let top_p = if sampling.top_p < 1.0 { format!(", top-p {}", sampling.top_p) } else { String::new() };
    let temperature = sampling.temperature;
    format!(
        "temperature {temperature}{top_k}{top_p}; a run's report shows greedy replies, as --temperature 0 gives"
    )
}

struct Chat<'a> {
    loaded: &'a Loaded,
    generators: Generators<'a>,
    options: Options,
    with_adapter: bool,
    conversation: Conversation,
    /// The conversation with the base alone, for `--compare`.
    compared: Option<Conversation>,
    stop: Arc<AtomicBool>,
    verbose: bool,
}

impl Chat<'_> {
    /// Answers each line of stdin. The first error ends the program.
    fn run_on_lines(mut self) -> Result<()> {
        for (number, line) in std::io::stdin().lock().lines().enumerate() {
            let line = line.with_context(|| format!("stdin line {}", number + 1))?;
            if self.handle(&line)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Answers what the user types. Errors are printed, and the conversation continues.
    fn run_on_terminal(mut self) -> Result<()> {
        self.loaded.show();
        output::line("sampling", sampling(&self.options.sampling));
        output::text(
            "\nType a message. /help lists the commands.\nCtrl-C interrupts a reply, Ctrl-D quits.\n",
        );
        let stop = self.stop.clone();
        ctrlc::set_handler(move || stop.store(true, Ordering::Relaxed)).context("cannot handle Ctrl-C")?;
        let mut editor = rustyline::DefaultEditor::new()?;
        loop {
            match editor.readline("> ") {
                Ok(line) => {
                    let _ = editor.add_history_entry(&line);
                    self.stop.store(false, Ordering::Relaxed);
                    match self.handle(&line) {
                        Ok(ControlFlow::Continue(())) => {}
                        Ok(ControlFlow::Break(())) => return Ok(()),
                        Err(error) => output::error(crate::cli::message(&error)),
                    }
                }
                Err(ReadlineError::Interrupted) => output::text("Press Ctrl-D or type /quit to quit."),
                Err(ReadlineError::Eof) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Executes a command or answers a message. Breaks on `/quit`, or if stdout is closed.
    fn handle(&mut self, line: &str) -> Result<ControlFlow<()>> {
        let line = line.trim();
        match line.split_once(' ').unwrap_or((line, "")) {
            ("", _) => {}
            ("/quit", "") => return Ok(ControlFlow::Break(())),
            ("/help", "") => output::text(HELP),
            ("/reset", "") => {
                self.conversation.reset();
                self.compared.iter_mut().for_each(Conversation::reset);
                output::text("Started a new conversation.");
            }
            ("/adapter", state) => self.switch(state.trim())?,
            _ if line.starts_with('/') => bail!("{line}: unknown command; /help lists the commands"),
            _ => return self.answer(line),
        }
        Ok(ControlFlow::Continue(()))
    }

    fn switch(&mut self, state: &str) -> Result<()> {
        if self.compared.is_some() {
            bail!("/adapter: not available with --compare, which always shows both replies");
        }
        if self.loaded.adapter.is_none() {
            bail!("/adapter: no adapter is loaded; start with --adapter PATH");
        }
        match state {
            "on" => self.with_adapter = true,
            "off" => self.with_adapter = false,
            "" => {}
            _ => bail!("/adapter {state}: expected on or off"),
        }
        output::text(format_args!("The adapter is {}.", if self.with_adapter { "on" } else { "off" }));
        Ok(())
    }

    fn answer(&mut self, message: &str) -> Result<ControlFlow<()>> {
        if let Some(mut conversation) = self.compared.take() {
            let _ = print_piece("[base] ");
            let result = self.reply(message, &mut conversation, false);
            self.compared = Some(conversation);
            if result?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let _ = print_piece("[adapter] ");
        }
        let mut conversation = self.conversation.clone();
        let result = self.reply(message, &mut conversation, self.with_adapter);
        self.conversation = conversation;
        // Every message gets its own seed; with --compare, both replies to a message share it.
        self.options.sampling.seed = self.options.sampling.seed.wrapping_add(1);
        result
    }

    /// Streams one reply to stdout and adds it to the conversation.
    fn reply(
        &mut self,
        message: &str,
        conversation: &mut Conversation,
        with_adapter: bool,
    ) -> Result<ControlFlow<()>> {
        let tokenizer = &self.loaded.frozen.tokenizer;
        let stop = self.stop.clone();
        let turn = conversation.ask(&self.loaded.frozen.template, tokenizer, message)?;
        note_unwritten(self.loaded, [message]);
        let options = self.options.clone();
        let mut closed = false;
        let started = Instant::now();
        let mut first = None;
        let on_event = |event: Event| {
            if let Event::Text(piece) = event {
                first.get_or_insert_with(|| started.elapsed());
                closed = print_piece(piece).is_break();
            }
            match closed || stop.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let reply = block_on(self.generators.get(with_adapter)?.reply(&turn.ids, &options, on_event))?;
        if closed {
            return Ok(ControlFlow::Break(()));
        }
        self.loaded.gpu.keep_pipelines();
        output::text("");
        note_if_cut(&reply, self.loaded.context());
        if self.verbose {
            let prompt_seconds = first.unwrap_or_default().as_secs_f64();
            print_speed(&reply, prompt_seconds, started.elapsed().as_secs_f64());
        }
        if reply.finish != Finish::Cancelled || !reply.ids.is_empty() {
            conversation.push(tokenizer, turn, &reply.ids, &reply.text);
        }
        Ok(ControlFlow::Continue(()))
    }
}

fn print_speed(reply: &Reply, prompt_seconds: f64, seconds: f64) {
    let prompt = reply.prompt_tokens;
    let cached = reply.cached_tokens;
    let tokens = reply.ids.len();
    let speed = tokens.saturating_sub(1) as f64 / (seconds - prompt_seconds).max(1e-9);
    eprintln!(
        "note: prompt of {prompt} tokens, {cached} cached, {prompt_seconds:.2} s to the first token; reply of {tokens} tokens, \
         {speed:.0} tokens/s"
    );
}
