//! `web`: serves the page that trains in a browser. The page is part of the program.

#[cfg(feature = "web")]
mod http;
#[cfg(feature = "web")]
mod page;

use anyhow::Result;
use clap::Args;

/// Options of `web`.
#[derive(Args)]
pub struct WebArgs {
    /// Port to listen on; 0 picks a free port.
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Do not open a browser.
    #[arg(long)]
    no_open: bool,
}

#[cfg(feature = "web")]
pub use http::respond_native;

/// The error of a program without the page.
pub const NOT_BUILT: &str = "this program was built without the web page; run `web/build` in the source folder to build the page, then \
                             `cargo build --release --features web`";

/// Explains how to build the program with the page.
#[cfg(not(feature = "web"))]
pub fn run(_: &WebArgs) -> Result<()> {
    anyhow::bail!(NOT_BUILT)
}

/// Opens a URL in the browser, or says that the user has to.
#[cfg(feature = "web")]
pub fn open(url: &str) {
    if let Err(error) = ::open::that_detached(url) {
        crate::cli::output::line(
            "notice",
            format_args!("cannot open a browser ({error}); open {url} yourself"),
        );
    }
}

/// Does nothing: without the page there is nothing to open.
#[cfg(not(feature = "web"))]
pub fn open(_: &str) {}

/// Serves the page until Ctrl-C.
#[cfg(feature = "web")]
pub fn run(args: &WebArgs) -> Result<()> {
    use std::net::{Ipv4Addr, TcpListener};

    use anyhow::Context;

    use crate::cli::output;

    // Loopback only: other machines have no use for the page.
    let address = (Ipv4Addr::LOCALHOST, args.port);
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot listen on 127.0.0.1:{}; choose another --port", args.port))?;
    // Browsers treat localhost as a secure context, which WebGPU and storage need.
    let url = format!("http://localhost:{}/", listener.local_addr()?.port());
    output::line("serving", format_args!("{url} (Ctrl-C stops the server)"));
    if !args.no_open {
        open(&url);
    }
    http::serve(listener)
}
