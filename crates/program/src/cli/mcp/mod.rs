//! `mcp`: a server of the Model Context Protocol on stdin and stdout, over the engine of `ui`. The client starts the program and is the
//! only one that can talk to it. Folders, files and commands are limited as for the page.

mod calls;
mod tools;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;

use anyhow::{Context, Result};
use clap::Args;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use serde_json::{Value, json};

use super::ui::{App, Folders, Job, Uploads, engine};

/// Options of `mcp`.
#[derive(Args)]
pub struct McpArgs {
    /// Folders that the client may use: models and samples are read from all of them; runs are written to the first [default:
    /// rullama-train in your home folder].
    #[arg(value_name = "FOLDER")]
    folders: Vec<PathBuf>,
}

/// Instructions for the client.
const INSTRUCTIONS: &str = "Trains LoRA adapters on the quantized GGUF models of this machine. list_bases names the models; \
     check_recipe says what a recipe would do and whether it fits; start_training trains, training_events tells how it goes, ask \
     compares the adapter with its base, export_adapter writes it for other programs. Samples are files in the folders that were \
     chosen when the server was started, named by absolute path in data.train.";

/// The server.
struct Server {
    app: Arc<App>,
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("rullama-train", env!("CARGO_PKG_VERSION")))
            .with_instructions(format!("{INSTRUCTIONS} The folders are: {}.", self.app.folders.names()))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult { tools: tools::all(), ..ListToolsResult::default() })
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let result = match calls::call(&self.app, &request.name, arguments).await {
            Ok(value) => CallToolResult::structured(value),
            Err(problem) => CallToolResult::structured_error(json!({ "problem": problem })),
        };
        Ok(result.into())
    }
}

/// Serves until the client closes stdin. A run in progress is then stopped, with a checkpoint.
pub fn run(args: &McpArgs) -> Result<()> {
    let folders = Folders::open(&args.folders)?;
    let (jobs, queue) = channel();
    let engine = std::thread::spawn(move || engine::serve(&queue));
    let app = Arc::new(App::new(folders, Uploads::new()?, jobs.clone()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        let service = Server { app: app.clone() }.serve(rmcp::transport::stdio()).await;
        let service = service.context(
            "the client did not begin as the Model Context Protocol does; start `mcp` from a client",
        )?;
        service.waiting().await.context("the connection to the client broke")
    });
    runtime.shutdown_background();
    if let Some(run) = app.run().filter(|run| !run.is_over()) {
        run.end();
    }
    let _ = jobs.send(Job::End);
    let _ = engine.join();
    served.map(drop)
}
