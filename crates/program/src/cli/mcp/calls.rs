//! The work of the tools.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rullama_train::adapter::Format;
use rullama_train::recipe::schema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::timeout;

use crate::cli::train::run_file;
use crate::cli::ui::{
    App, Chat, Job, Message, Piece, Problem, Running, Sampling, Start, Task, Word, blocking, tools,
};

/// Events that one call returns at most.
const EVENTS: usize = 500;
/// Default of the longest wait for an event, in seconds.
const WAIT: u64 = 30;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Recipe {
    base: String,
    recipe: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Events {
    #[serde(default)]
    from: usize,
    wait_seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Control {
    command: Word,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ask {
    base: String,
    run: Option<String>,
    prompt: String,
    system: Option<String>,
    max_new_tokens: Option<usize>,
    temperature: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Export {
    base: String,
    run: String,
    to: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// Calls a tool. The result is an object.
pub async fn call(app: &Arc<App>, name: &str, arguments: Value) -> Result<Value, Problem> {
    match name {
        "list_bases" => {
            let Nothing {} = read(arguments)?;
            bases(app.clone()).await
        }
        "list_runs" => {
            let Nothing {} = read(arguments)?;
            runs(app.clone()).await
        }
        "recipe_schema" => {
            let Nothing {} = read(arguments)?;
            Ok(schema())
        }
        "check_recipe" => {
            let check = app.clone().check(task(read(arguments)?)).await?;
            Ok(json!(check))
        }
        "start_training" => {
            let start = Start { task: task(read(arguments)?), resume: None, checkpoint: Vec::new() };
            let run = app.clone().train(start).await?;
            Ok(json!({ "run": run.name, "folder": run.dir }))
        }
        "training_events" => events(&*app.last_run()?, read(arguments)?).await,
        "control_training" => {
            let Control { command } = read(arguments)?;
            app.last_run()?.command(command);
            Ok(json!({ "sent": true }))
        }
        "ask" => ask(app, read(arguments)?).await,
        "export_adapter" => export(app.clone(), read(arguments)?).await,
        other => Err(Problem::missing(format!("there is no tool {other}"))),
    }
}

fn read<T: DeserializeOwned>(arguments: Value) -> Result<T, Problem> {
    serde_json::from_value(arguments).map_err(|error| Problem::new(format!("the arguments: {error}")))
}

/// A task whose files are named by absolute paths.
fn task(Recipe { base, recipe }: Recipe) -> Task {
    Task { base, recipe, files: Vec::new() }
}

async fn bases(app: Arc<App>) -> Result<Value, Problem> {
    blocking(move || Ok(json!({ "models": app.bases() }))).await
}

async fn runs(app: Arc<App>) -> Result<Value, Problem> {
    blocking(move || {
        let entries = std::fs::read_dir(app.folders.runs()).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| app.folders.run(name).is_some()).collect();
        names.sort();
        let described = |name: &String| {
            let dir = app.folders.runs().join(name);
            let run = run_file::read_settled(&dir);
            json!({ "run": name, "folder": dir, "base": run["base"], "status": run["status"], "result": run["result"] })
        };
        Ok(json!({ "runs": names.iter().map(described).collect::<Vec<_>>() }))
    })
    .await
}

/// Events that are there, or the next one.
async fn events(run: &Running, Events { from, wait_seconds }: Events) -> Result<Value, Problem> {
    let mut receiver = run.read(from);
    let mut lines = Vec::new();
    let wait = Duration::from_secs(wait_seconds.unwrap_or(WAIT).min(300));
    if let Ok(Some(line)) = timeout(wait, receiver.recv()).await {
        lines.push(line);
    }
    while let (true, Ok(line)) = (lines.len() < EVENTS, receiver.try_recv()) {
        lines.push(line);
    }
    let parsed: Vec<Value> = lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let over =
        parsed.last().is_some_and(|event| event["event"] == "exit") || (lines.is_empty() && run.is_over());
    Ok(json!({ "run": run.name, "events": parsed, "next": from + lines.len(), "over": over }))
}

/// The folder with the adapter of a finished run.
fn adapter(app: &App, run: &str) -> Result<PathBuf, Problem> {
    let missing = || {
        Problem::missing(format!(
            "there is no run {run} in {}; list_runs names them",
            app.folders.runs().display()
        ))
    };
    let place = Format::Peft.place(&app.folders.run(run).ok_or_else(missing)?);
    match place.join("adapter_config.json").is_file() {
        true => Ok(place),
        false => Err(Problem::new(format!("the run {run} has no adapter yet; wait for its last event"))),
    }
}

async fn ask(app: &Arc<App>, asked: Ask) -> Result<Value, Problem> {
    app.check_free()?;
    let Ask { base, run, prompt, system, max_new_tokens, temperature } = asked;
    let shared = app.clone();
    let (base, adapter) = blocking(move || {
        let adapter = run.map(|run| adapter(&shared, &run)).transpose()?;
        Ok((shared.folders.base(&base)?, adapter))
    })
    .await?;
    let message = |role: &str, content: String| Message { role: role.into(), content };
    let messages =
        system.map(|text| message("system", text)).into_iter().chain([message("user", prompt)]).collect();
    let sampling = Sampling { max_new_tokens, temperature, ..Sampling::default() };
    let (pieces, mut receiver) = unbounded_channel();
    let adapter = adapter.map(|path| (None, path));
    let job = Job::Chat(Box::new(Chat { base, adapter, messages, sampling, pieces }));
    app.jobs.send(job).map_err(|_| Problem::new("the program is ending"))?;
    let mut reply = String::new();
    while let Some(piece) = receiver.recv().await {
        match piece {
            Piece::Text(text) => reply += &text,
            Piece::Failed(problem) => return Err(problem),
            Piece::Done => break,
        }
    }
    Ok(json!({ "reply": reply }))
}

async fn export(app: Arc<App>, Export { base, run, to }: Export) -> Result<Value, Problem> {
    app.check_free()?;
    blocking(move || {
        let base = app.folders.base(&base)?;
        let path = adapter(&app, &run)?;
        let folder = app.folders.runs().join(&run).join("exports");
        let words = match &*to {
            "gguf-merged" => tools::merge(&base, &path, &folder.join("merged.gguf"), None),
            to => tools::export(&base, &path, to, &folder),
        };
        let printed = tools::run(&words, app.folders.first())?;
        Ok(json!({ "folder": folder, "files": tools::files(&folder), "printed": printed }))
    })
    .await
}
