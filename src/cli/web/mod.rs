//! The page that trains in a browser, served on this machine from inside the program.

#[cfg(feature = "web")]
mod http;
#[cfg(feature = "web")]
mod page;

use anyhow::Result;
use clap::Args;

/// Where to serve the page.
#[derive(Args)]
pub struct WebArgs {
    /// The port; 0 takes a free one.
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Do not open a browser.
    #[arg(long)]
    no_open: bool,
}

/// Says how to get a program with the page inside.
#[cfg(not(feature = "web"))]
pub fn run(_: &WebArgs) -> Result<()> {
    anyhow::bail!(
        "this program was built without its page; `web/build` in the source folder builds the page, and then \
         `cargo build --release --features web` a program that has it"
    )
}

/// Serves the page until Ctrl-C.
#[cfg(feature = "web")]
pub fn run(args: &WebArgs) -> Result<()> {
    use std::net::{Ipv4Addr, TcpListener};

    use anyhow::Context;

    use crate::cli::output;

    // Loopback alone: the page has no secrets, but neither has anybody else any business here.
    let address = (Ipv4Addr::LOCALHOST, args.port);
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot listen on 127.0.0.1:{}; choose another --port", args.port))?;
    // Browsers count localhost among the safe places, where WebGPU and storage are allowed.
    let url = format!("http://localhost:{}/", listener.local_addr()?.port());
    output::line("serving", format_args!("{url}; Ctrl-C ends"));
    if !args.no_open
        && let Err(error) = open::that_detached(&url)
    {
        output::line("notice", format_args!("no browser could be opened ({error}); open {url} yourself"));
    }
    http::serve(listener)
}
