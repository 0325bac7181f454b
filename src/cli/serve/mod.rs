//! `serve`: OpenAI's chat completions over HTTP. Requests wait in a queue; the GPU answers one at a time.

mod answer;
mod error;
mod fields;
mod http;
mod messages;
mod request;

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
use rullama_train::talk::generate::{Event, Finish, Options, Reply};
use tokio::sync::mpsc::{Receiver, UnboundedSender, channel};
use tokio::sync::watch;

use super::talk::{Generators, Loaded, ModelArgs, SamplingArgs};
use crate::cli::output;

/// Maximum number of waiting requests; further requests are refused.
const QUEUE: usize = 64;

/// Options of `serve`.
#[derive(Args)]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Port to listen on; 0 picks a free port.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Address to listen on. Everyone who can reach it can use the model.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// Print a line per request.
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// A request for a reply.
struct Job {
    /// Whether to reply with the adapters.
    with_adapter: bool,
    prompt: Vec<u32>,
    options: Options,
    /// Closed when the client is gone.
    pieces: UnboundedSender<Piece>,
}

/// A part of a reply.
enum Piece {
    Text(String),
    Done(Reply),
    Failed(String),
}

/// The model as the HTTP side sees it.
struct Served {
    tokenizer: Tokenizer,
    template: Template,
    context: usize,
    /// Model ids, and whether the model includes the adapters.
    models: Vec<(String, bool)>,
    /// Options for fields that a request does not set.
    defaults: Options,
    /// Start of the server, in seconds since 1970.
    created: u64,
}

/// Serves until Ctrl-C.
pub fn run(args: &ServeArgs) -> Result<()> {
    args.sampling.check()?;
    let address = SocketAddr::new(args.host, args.port);
    // Listen before loading the weights, so that a port in use is reported at once.
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
    output::line("models", names.join(", "));

    let stop = Arc::new(AtomicBool::new(false));
    let (stopping, stopped) = watch::channel(false);
    let flag = stop.clone();
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130); // second Ctrl-C
        }
        let _ = stopping.send(true);
    })
    .context("cannot handle Ctrl-C")?;
    let (jobs, queue) = channel(QUEUE);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| http::serve(listener, served, jobs, stopped));
        output::line("serving", format_args!("http://{address}/v1 (Ctrl-C stops the server)"));
        let mut generators = Generators::new(&loaded, &workspace);
        work(&loaded, &mut generators, queue, &stop, args.verbose);
        server.join().expect("the server thread does not panic")
    })?;
    output::line("stopped", "all requests are finished");
    Ok(())
}

/// The file name of a path, without the extension of a model file.
fn model_name(name: &str) -> String {
    let last = Path::new(name).file_name().map_or(name.into(), |n| n.to_string_lossy());
    let stem = last.strip_suffix(".gguf").or(last.strip_suffix(".safetensors")).unwrap_or(&last);
    stem.to_string()
}

/// Answers the queued requests until the HTTP side closes the queue.
fn work(
    loaded: &Loaded,
    generators: &mut Generators,
    mut queue: Receiver<Job>,
    stop: &AtomicBool,
    verbose: bool,
) {
    while let Some(job) = queue.blocking_recv() {
        let gone = || job.pieces.is_closed() || stop.load(Ordering::Relaxed);
        if gone() {
            continue; // dropping the channel answers the client
        }
        let on_event = |event: Event| {
            if let Event::Text(piece) = event
                && !piece.is_empty()
            {
                let _ = job.pieces.send(Piece::Text(piece.into()));
            }
            if gone() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let reply = generators
            .get(job.with_adapter)
            .and_then(|generator| Ok(block_on(generator.reply(&job.prompt, &job.options, on_event))?));
        if verbose && let Ok(reply) = &reply {
            let prompt = reply.prompt_tokens;
            let cached = reply.cached_tokens;
            let tokens = reply.ids.len();
            let finish = format!("{:?}", reply.finish).to_lowercase();
            output::line(
                "request",
                format_args!("prompt {prompt} tokens, {cached} cached; reply {tokens} tokens, {finish}"),
            );
        }
        match reply {
            // The client is gone, or the server is stopping.
            Ok(Reply { finish: Finish::Cancelled, .. }) => {}
            Ok(reply) => {
                let _ = job.pieces.send(Piece::Done(reply));
            }
            Err(error) => {
                let _ = job.pieces.send(Piece::Failed(super::message(&error)));
            }
        }
        loaded.gpu.keep_pipelines();
    }
}
