//! OpenAI's chat completions over HTTP: requests wait in a queue, the device answers one at a time.

mod answer;
mod api;
mod http;
mod messages;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clap::Args;
use pollster::block_on;
use rullama_train::data::template::Template;
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::run;
use rullama_train::talk::generate::{Event, Finish, Generator, Options, Reply};
use tokio::sync::mpsc::{Receiver, UnboundedSender, channel};
use tokio::sync::watch;

use super::inference::{Loaded, ModelArgs, SamplingArgs};
use super::show;

/// Requests that may wait; the next one is refused.
const QUEUE: usize = 64;

/// What to serve, and where.
#[derive(Args)]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The port; 0 takes a free one.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// The address to listen on; whoever reaches it may use the model.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// Tell every request on stdout.
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// One request on its way to the device.
struct Job {
    /// Whether the adapters reply too.
    with_adapter: bool,
    prompt: Vec<u32>,
    options: Options,
    /// Closed where nobody waits any more.
    pieces: UnboundedSender<Piece>,
}

/// What comes back.
enum Piece {
    Text(String),
    Done(Reply),
    Failed(String),
}

/// What the HTTP side knows.
struct Served {
    tokenizer: Tokenizer,
    template: Template,
    context: usize,
    /// Ids of the models, and whether the adapters reply.
    models: Vec<(String, bool)>,
    /// What a request leaves open.
    defaults: Options,
    /// Seconds since 1970 when the server began.
    created: u64,
}

/// Serves until Ctrl-C.
pub fn run(args: &ServeArgs) -> Result<()> {
    args.sampling.check()?;
    let address = SocketAddr::new(args.host, args.port);
    // Before the weights are read: a port that is taken should show at once.
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot listen on {address}; choose another --port or --host"))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let loaded = Loaded::open(&args.model)?;
    let defaults = args.sampling.options(loaded.frozen.base.config());
    let model = loaded.model()?;
    let workspace = loaded.workspace(&model)?;
    let base = model_name(loaded.frozen.base.name());
    let mut models = vec![(base.clone(), false)];
    if !loaded.adapters.is_empty() {
        let names = loaded.adapters.iter().map(|adapter| model_name(&adapter.path.to_string_lossy()));
        models.push((std::iter::once(base).chain(names).collect::<Vec<_>>().join("+"), true));
    }
    let served = Served {
        tokenizer: Tokenizer::from_gguf(loaded.frozen.base.gguf())?,
        template: run::template(&loaded.template, &loaded.frozen.base)?,
        context: loaded.context(),
        models,
        defaults,
        created: http::now(),
    };
    loaded.show();
    let names: Vec<&str> = served.models.iter().map(|(name, _)| &name[..]).collect();
    show::line("models", names.join(", "));

    let stop = Arc::new(AtomicBool::new(false));
    let (stopping, stopped) = watch::channel(false);
    let flag = stop.clone();
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130); // asked twice
        }
        let _ = stopping.send(true);
    })
    .context("Ctrl-C cannot be caught")?;
    let (jobs, queue) = channel(QUEUE);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| http::serve(listener, served, jobs, stopped));
        show::line("serving", format_args!("http://{address}/v1; Ctrl-C ends"));
        let mut voices = Voices { loaded: &loaded, workspace: &workspace, made: BTreeMap::new() };
        work(&mut voices, queue, &stop, args.verbose);
        server.join().expect("the server does not panic")
    })?;
    show::line("ended", "no request is left");
    Ok(())
}

/// The last part of a path or a name without what kind of file it is.
fn model_name(name: &str) -> String {
    let last = Path::new(name).file_name().map_or(name.into(), |n| n.to_string_lossy());
    let stem = last.strip_suffix(".gguf").or(last.strip_suffix(".safetensors")).unwrap_or(&last);
    stem.to_string()
}

/// The base's cache and the adapters', each made when first asked.
struct Voices<'a> {
    loaded: &'a Loaded,
    workspace: &'a rullama_train::model::decode::Workspace<'a>,
    made: BTreeMap<bool, Generator<'a>>,
}

impl<'a> Voices<'a> {
    fn get(&mut self, with_adapter: bool) -> Result<&mut Generator<'a>> {
        if !self.made.contains_key(&with_adapter) {
            let adapter = self.loaded.adapter.as_ref().filter(|_| with_adapter);
            let made = Generator::new(self.workspace, &self.loaded.frozen.tokenizer, adapter)?;
            self.made.insert(with_adapter, made);
        }
        Ok(self.made.get_mut(&with_adapter).expect("made above"))
    }
}

/// Answers what waits, until the HTTP side is gone.
fn work(voices: &mut Voices, mut queue: Receiver<Job>, stop: &AtomicBool, verbose: bool) {
    while let Some(job) = queue.blocking_recv() {
        let gone = || job.pieces.is_closed() || stop.load(Ordering::Relaxed);
        if gone() {
            continue; // dropping its channel answers whoever waits
        }
        let hear = |event: Event| {
            if let Event::Text(piece) = event
                && !piece.is_empty()
            {
                let _ = job.pieces.send(Piece::Text(piece.into()));
            }
            if gone() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let reply = voices
            .get(job.with_adapter)
            .and_then(|voice| Ok(block_on(voice.reply(&job.prompt, &job.options, hear))?));
        if verbose && let Ok(reply) = &reply {
            let (prompt, cached, tokens) = (reply.prompt_tokens, reply.cached_tokens, reply.ids.len());
            let finish = format!("{:?}", reply.finish).to_lowercase();
            show::line("request", format_args!("prompt {prompt}, {cached} cached; reply {tokens}, {finish}"));
        }
        match reply {
            // Nobody waits, or the server ends.
            Ok(Reply { finish: Finish::Cancelled, .. }) => {}
            Ok(reply) => {
                let _ = job.pieces.send(Piece::Done(reply));
            }
            Err(error) => {
                let _ = job.pieces.send(Piece::Failed(super::message(&error)));
            }
        }
        voices.loaded.gpu.keep_pipelines();
    }
}
