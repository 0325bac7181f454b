//! The tools, with the schemas of their arguments.

use rmcp::model::Tool;
use serde_json::{Map, Value, json};

/// A tool: name, description, properties of its arguments, and those that are required.
type Described = (&'static str, &'static str, Value, &'static [&'static str]);

/// All tools.
pub fn all() -> Vec<Tool> {
    described().into_iter().chain(of_runs()).map(tool).collect()
}

fn tool((name, about, properties, required): Described) -> Tool {
    let mut schema = Map::new();
    schema.insert("type".into(), "object".into());
    schema.insert("properties".into(), properties);
    schema.insert("required".into(), json!(required));
    schema.insert("additionalProperties".into(), false.into());
    Tool::new(name, about, schema)
}

fn described() -> Vec<Described> {
    let base = json!({ "type": "string", "description": "A name from list_bases, such as tiny or hf:ORG/REPO:Q4_K_M" });
    let recipe = json!({
        "type": "string",
        "description": "The recipe as TOML, without model.base and output.dir, which are given. Required is data.train: absolute paths of \
                        samples in the chosen folders. recipe_schema has all keys."
    });
    vec![
        (
            "list_bases",
            "Lists the models on this machine, with size, type and whether they can be trained.",
            json!({}),
            &[],
        ),
        ("list_runs", "Lists the runs in the first folder, with their status.", json!({}), &[]),
        (
            "recipe_schema",
            "Gives the JSON schema of recipes, with every key, its default and its effect.",
            json!({}),
            &[],
        ),
        (
            "check_recipe",
            "Checks a recipe without training: steps, tokens, the memory plan, warnings, and the recipe with every default.",
            json!({ "base": base, "recipe": recipe }),
            &["base", "recipe"],
        ),
        (
            "start_training",
            "Starts a run and returns its name at once. One run uses the GPU at a time.",
            json!({ "base": base, "recipe": recipe }),
            &["base", "recipe"],
        ),
    ]
}

/// The tools for a run, and for its adapter.
fn of_runs() -> Vec<Described> {
    let base = json!({ "type": "string", "description": "A name from list_bases, as the run used it" });
    let run = json!({ "type": "string", "description": "Name of a run, from start_training or list_runs" });
    vec![
        (
            "training_events",
            "Gives the events of the run in progress, or of the last one, from a number on; waits for the next one if there are none. The \
             last event of a run is `exit`.",
            json!({
                "from": { "type": "integer", "minimum": 0, "description": "Number of the first event; `next` of the call before" },
                "wait_seconds": { "type": "integer", "minimum": 0, "maximum": 300, "description": "Longest wait, 30 by default" }
            }),
            &[],
        ),
        (
            "control_training",
            "Stops the run in progress with a checkpoint, pauses it, resumes it after a pause, or writes a checkpoint.",
            json!({ "command": { "type": "string", "enum": ["stop", "pause", "resume", "checkpoint"] } }),
            &["command"],
        ),
        (
            "ask",
            "Gets a reply of a base, or of the adapter of a finished run on it.",
            json!({
                "base": base, "run": run, "prompt": { "type": "string" }, "system": { "type": "string" },
                "max_new_tokens": { "type": "integer", "minimum": 1, "maximum": 4096 }, "temperature": { "type": "number", "minimum": 0 }
            }),
            &["base", "prompt"],
        ),
        (
            "export_adapter",
            "Writes the adapter of a finished run for other programs, into its folder, and verifies it.",
            json!({
                "base": base, "run": run,
                "to": { "type": "string", "enum": ["gguf-lora", "mlx", "gguf-merged"], "description": "gguf-merged writes the whole model" }
            }),
            &["base", "run", "to"],
        ),
    ]
}
