//! `ui`: the page with this program as its backend, for the person at this machine. The browser page is the front end; this process trains.

mod app;
pub mod engine;
mod folders;
mod job;
mod kept;
mod page;
mod problem;
mod recipe;
mod routes;
mod run;
mod samples;
mod stream;
mod talk;
pub mod tools;
mod types;
mod uploads;

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use anyhow::{Context, Result, bail};
use clap::Args;
use tokio::sync::watch;

use super::http::{self, Access, Key};
use super::{output, web};
pub use app::{App, blocking};
pub use folders::Folders;
pub use job::{Chat, Job, Piece};
pub use problem::Problem;
pub use run::Running;
pub use types::{Message, Sampling, Start, Task, Word};
pub use uploads::Uploads;

/// Maximum size of a request. Files arrive in parts.
const BODY_BYTES: usize = 8 << 20;

/// Options of `ui`.
#[derive(Args)]
pub struct UiArgs {
    /// Folders that the page may use: models and samples are read from all of them; runs and merged models are written to the first
    /// [default: rullama-train in your home folder].
    #[arg(value_name = "FOLDER")]
    folders: Vec<PathBuf>,
    /// Port to listen on; 0 picks a free port. The browser keeps the page's settings per port.
    #[arg(long, default_value_t = 8410)]
    port: u16,
    /// Do not open a browser.
    #[arg(long)]
    no_open: bool,
    /// Serve the API alone, where the program was built without the page.
    #[arg(long, hide = true)]
    no_page: bool,
}

/// Serves the page until Ctrl-C. A run in progress is then stopped, with a checkpoint.
pub fn run(args: &UiArgs) -> Result<()> {
    if !cfg!(feature = "web") && !args.no_page {
        bail!(web::NOT_BUILT);
    }
    let folders = Folders::open(&args.folders)?;
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let listener = TcpListener::bind((address, args.port)).with_context(|| {
        let port = args.port;
        format!(
            "cannot listen on 127.0.0.1:{port}; `rullama-train ui` may run already, or choose another --port"
        )
    })?;
    let key = format!("{:032x}", rand::random::<u128>());
    let url = format!("http://127.0.0.1:{}/{key}/", listener.local_addr()?.port());
    let (jobs, queue) = channel();
    let engine = std::thread::spawn(move || engine::serve(&queue));
    output::line("folder", folders.names());
    let app = Arc::new(App::new(folders, Uploads::new()?, jobs.clone()));
    let (stopping, stopped) = watch::channel(false);
    stop_on_signal(app.clone(), stopping)?;
    output::line("serving", format_args!("{url} (Ctrl-C ends it)"));
    if !args.no_open && !args.no_page {
        web::open(&url);
    }
    let access = Access { address, origins: Vec::new(), key: Key::Path(key) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(http::serve(listener, routes::router(app), access, BODY_BYTES, stopped));
    runtime.shutdown_background();
    let _ = jobs.send(Job::End);
    let _ = engine.join();
    output::line("stopped", "the page's address is no longer valid");
    served
}

/// The first Ctrl-C stops the run in progress with a checkpoint, and then the server; the second ends both at once.
fn stop_on_signal(app: Arc<App>, stopping: watch::Sender<bool>) -> Result<()> {
    let asked = AtomicBool::new(false);
    let stopping = Arc::new(stopping);
    let handler = move || {
        let run = app.run().filter(|run| !run.is_over());
        if asked.swap(true, Ordering::Relaxed) {
            run.iter().for_each(|run| run.kill());
            std::process::exit(130);
        }
        let stopping = stopping.clone();
        // The handler returns at once, so that it sees the second Ctrl-C.
        std::thread::spawn(move || {
            if let Some(run) = run {
                let text = "after this step, with a checkpoint; press Ctrl-C again to quit at once";
                output::line("stopping", format_args!("{}: {text}", run.name));
                run.end();
            }
            let _ = stopping.send(true);
        });
    };
    ctrlc::set_handler(handler).context("cannot handle Ctrl-C")
}
