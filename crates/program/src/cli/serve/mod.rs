//! `serve`: OpenAI's chat completions and completions over HTTP. Requests wait in a queue; the GPU answers one at a time, or several.

mod answer;
mod chat;
mod completion;
mod continued;
mod events;
mod fields;
mod http;
mod messages;
mod prompt;
mod request;
mod together;
mod work;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use axum::http::StatusCode;
use clap::Args;
use rullama_train::data::template::Template;
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::model::Model;
use rullama_train::model::decode::Workspace;
use rullama_train::run;
use rullama_train::talk::generate::{Options, Reply};
use rullama_train::talk::scores::Score;
use tokio::sync::mpsc::{Receiver, UnboundedSender, channel};
use tokio::sync::watch;

use super::talk::{Generators, Loaded, ModelArgs, SamplingArgs};
use crate::cli::http::{Access, ApiError, Key};
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
    /// Pages of this origin may use the server, for example http://localhost:3000; `*` allows all. May be repeated.
    #[arg(long = "allow-origin", value_name = "ORIGIN", value_parser = origin)]
    allow_origin: Vec<String>,
    /// Refuse requests without this key. The environment variable RULLAMA_API_KEY does the same, unseen by other users.
    #[arg(long, value_name = "KEY", env = "RULLAMA_API_KEY", hide_env_values = true, value_parser = key)]
    api_key: Option<String>,
    /// Replies that are generated at once, 1 to 64. Each has its own cache of --context tokens.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    parallel: u16,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Checks the value of `--allow-origin`.
fn origin(text: &str) -> Result<String, String> {
    let valid = |rest: &str| !rest.is_empty() && !rest.trim_end_matches('/').contains(['/', ' ']);
    match text.split_once("://") {
        _ if text == "*" => Ok(text.into()),
        Some((_, rest)) if valid(rest) => Ok(text.into()),
        _ => Err("expected * or a scheme and a host, such as http://localhost:3000".into()),
    }
}

/// Checks the value of `--api-key`.
fn key(text: &str) -> Result<String, String> {
    match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(text.into()),
        false => Err("expected letters, digits and signs without spaces".into()),
    }
}

/// A request for replies.
struct Job {
    /// The id of the model.
    model: String,
    /// Whether to reply with the adapters.
    with_adapter: bool,
    prompts: Vec<Prompted>,
    options: Options,
    /// Whether the client also gets the prompts, with their log-probabilities if it wants any.
    echo: bool,
    /// Closed when the client is gone.
    pieces: UnboundedSender<Piece>,
}

/// The tokens of a prompt.
#[derive(Clone)]
struct Prompted {
    ids: Vec<u32>,
    /// Number of tokens at its start that the client did not write.
    added: usize,
}

/// A part of the reply to one of the prompts, by number.
enum Piece {
    /// The prompt is read. The scores of its tokens but the first, if they are wanted.
    Prompt(usize, Vec<Score>),
    /// Text, and the scores of the tokens that begin in it or before.
    Text(usize, String, Vec<Score>),
    Done(usize, Reply),
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

impl Served {
    /// The model named `id`, or the last one, and whether it includes the adapters.
    fn model(&self, id: Option<&str>) -> Result<(&str, bool), ApiError> {
        let found = match id {
            Some(id) => self.models.iter().find(|(name, _)| name == id),
            None => self.models.last(),
        };
        found.map(|(name, with_adapter)| (&name[..], *with_adapter)).ok_or_else(|| {
            let available: Vec<&str> = self.models.iter().map(|(name, _)| &name[..]).collect();
            let id = id.unwrap_or_default();
            let message = format!("model {id:?} does not exist; available: {}", available.join(", "));
            let param = Some("model".into());
            let code = Some("model_not_found");
            ApiError { param, code, ..ApiError::new(StatusCode::NOT_FOUND, message) }
        })
    }
}

/// Serves until Ctrl-C.
pub fn run(args: &ServeArgs) -> Result<()> {
    args.sampling.check()?;
    let address = SocketAddr::new(args.host, args.port);
    // Listen before loading the weights, so that a port in use is reported at once.
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot listen on {address}; choose another --port or --host"))?;
    let address = listener.local_addr()?;
    let loaded = Loaded::open(&args.model)?;
    let defaults = args.sampling.options(&loaded.frozen.base);
    let model = loaded.model()?;
    let workspace = workspace(&loaded, &model, args.parallel.into())?;
    let models = models(&loaded);
    let served = Served {
        tokenizer: Tokenizer::from_gguf(loaded.frozen.base.gguf())?,
        template: run::template(&loaded.template, &loaded.frozen.base)?,
        context: loaded.context(),
        models,
        defaults,
        created: http::now(),
    };
    let key = args.api_key.clone().map_or(Key::Open, Key::Header);
    let access = Access { address: args.host, origins: args.allow_origin.clone(), key };
    loaded.show();
    let names: Vec<&str> = served.models.iter().map(|(name, _)| &name[..]).collect();
    output::line("models", names.join(", "));
    show_parallel(workspace.sequences(), args.parallel.into(), loaded.context());

    let mut worker = Worker::new(&loaded, &workspace)?;
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
        let server = scope.spawn(|| http::serve(listener, served, access, jobs, stopped));
        if !address.ip().is_loopback() {
            output::line("notice", open_to_others(args));
        }
        output::line("serving", format_args!("http://{address}/v1 (Ctrl-C stops the server)"));
        worker.work(&loaded, queue, &stop);
        server.join().expect("the server thread does not panic")
    })?;
    output::line("stopped", "all requests are finished");
    Ok(())
}

/// The ids of the base and, if there are adapters, of the base with them.
fn models(loaded: &Loaded) -> Vec<(String, bool)> {
    let base = model_name(loaded.frozen.base.name());
    let mut models = vec![(base.clone(), false)];
    if !loaded.adapters.is_empty() {
        let names = loaded.adapters.iter().map(|adapter| model_name(&adapter.path.to_string_lossy()));
        models.push((std::iter::once(base).chain(names).collect::<Vec<_>>().join("+"), true));
    }
    models
}

/// Allocates the buffers of `parallel` replies at once, or of as many as fit.
fn workspace<'a>(loaded: &'a Loaded, model: &'a Model<'a>, parallel: usize) -> Result<Workspace<'a>> {
    if parallel == 1 {
        return loaded.workspace(model);
    }
    // The base alone and with the adapters have caches of their own.
    let times = if loaded.adapters.is_empty() { 1 } else { 2 };
    loaded.workspace_for(model, loaded.context(), [parallel, times])
}

/// Prints how many replies are generated at once, and says so if the memory does not hold as many as were asked for.
fn show_parallel(count: usize, asked: usize, context: usize) {
    if count > 0 {
        output::line("parallel", format_args!("{count} replies at once"));
    }
    if count > 0 && count < asked {
        output::line(
            "notice",
            format_args!(
                "the GPU's memory holds {count} caches of {context} tokens, not the {asked} of --parallel; lower --context"
            ),
        );
    }
}

/// Answers requests, one prompt after the other or several at once.
enum Worker<'a> {
    Single(Box<Generators<'a>>),
    Several(Box<together::Desk<'a>>),
}

impl<'a> Worker<'a> {
    /// Compiles the kernels.
    fn new(loaded: &'a Loaded, workspace: &'a Workspace<'a>) -> Result<Worker<'a>> {
        let count = workspace.sequences();
        if count > 0 {
            let desk = together::Desk::new(loaded, workspace, count)?;
            return Ok(Worker::Several(Box::new(desk)));
        }
        let mut generators = Generators::new(loaded, workspace);
        generators.compile(!loaded.adapters.is_empty())?;
        generators.get(!loaded.adapters.is_empty())?.compile_scores()?;
        loaded.gpu.keep_pipelines();
        Ok(Worker::Single(Box::new(generators)))
    }

    /// Answers the queued requests until the HTTP side closes the queue.
    fn work(&mut self, loaded: &Loaded, queue: Receiver<Job>, stop: &AtomicBool) {
        match self {
            Worker::Single(generators) => work::work(loaded, generators, queue, stop),
            Worker::Several(desk) => desk.work(queue, stop),
        }
    }
}

/// The warning for an address that other machines can reach.
fn open_to_others(args: &ServeArgs) -> String {
    let host = args.host;
    match args.api_key {
        Some(_) => format!(
            "other machines can reach {host}; requests and the API key are not encrypted on their way"
        ),
        None => format!(
            "everyone who can reach {host} can use the model, and tell from its speed what others asked; set --api-key, or leave \
             out --host"
        ),
    }
}

/// The file name of a path, without the extension of a model file.
fn model_name(name: &str) -> String {
    let last = Path::new(name).file_name().map_or(name.into(), |n| n.to_string_lossy());
    let stem = last.strip_suffix(".gguf").or(last.strip_suffix(".safetensors")).unwrap_or(&last);
    stem.to_string()
}
