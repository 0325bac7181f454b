//! Recipes for the built-in model, with their samples.

/// A file of the repository: its path and its text.
pub type Shipped = (&'static str, &'static str);

macro_rules! shipped {
    ($path:literal) => {
        ($path, include_str!(concat!("../../", $path)))
    };
}

/// Recipe and samples of a task: labels, preference, stories, tools, or else chat.
pub fn example(task: &str) -> [Shipped; 2] {
    match task {
        "labels" => [shipped!("recipes/labels.toml"), shipped!("datasets/labels.jsonl")],
        "preference" => [shipped!("recipes/preference.toml"), shipped!("datasets/preference.jsonl")],
        "stories" => [shipped!("recipes/stories.toml"), shipped!("datasets/stories.jsonl")],
        "tools" => [shipped!("recipes/tools.toml"), shipped!("datasets/tools.jsonl")],
        _ => [shipped!("recipes/chat.toml"), shipped!("datasets/pirate.jsonl")],
    }
}
