//! The keys of a recipe as Markdown tables, from the comments of `recipes/chat.toml`.

/// A key with its comment.
struct Key {
    name: String,
    comment: String,
}

/// One table per section. Panics on a comment that states neither `required` nor a default.
pub fn tables(recipe: &str) -> String {
    let mut text = String::new();
    for (section, keys) in sections(recipe) {
        text += &format!("\n### `[{section}]`\n\n| key | default | effect |\n|---|---|---|\n");
        for Key { name, comment } in keys {
            let (default, effect) = split(&name, &comment);
            text += &format!("| `{name}` | {default} | {effect} |\n");
        }
    }
    text + "\n"
}

/// Splits `default: X; effect` and `required; effect`.
fn split(name: &str, comment: &str) -> (String, String) {
    let (head, effect) = comment.split_once("; ").unwrap_or((comment, ""));
    let effect = effect.replace('|', "\\|");
    let default = match head.strip_prefix("default: ") {
        Some("none") => "–".into(),
        Some(value) => format!("`{value}`"),
        None if head == "required" => "required".into(),
        None => panic!("recipes/chat.toml: the comment of {name} states no default: {comment:?}"),
    };
    (default, capitalized(&effect))
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    // A quoted value keeps its case.
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn sections(recipe: &str) -> Vec<(String, Vec<Key>)> {
    let mut sections: Vec<(String, Vec<Key>)> = Vec::new();
    for line in recipe.lines() {
        // A section may be commented out as a whole.
        let header = line.strip_prefix("# ").unwrap_or(line);
        if let Some(name) = header.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            sections.push((name.into(), Vec::new()));
            continue;
        }
        // A list of tables; those within a section are keys of it.
        if let Some((name, _)) = header.strip_prefix("[[").and_then(|rest| rest.split_once("]]"))
            && !name.contains('.')
        {
            sections.push((format!("[{name}]"), Vec::new()));
            continue;
        }
        let Some((_, keys)) = sections.last_mut() else { continue };
        // An optional key is commented out as a whole.
        let line = line.strip_prefix("# ").unwrap_or(line);
        let Some((code, comment)) = line.split_once("# ") else { continue };
        let name = code.split('=').next().unwrap_or_default().trim();
        let part_of_last = name.is_empty() || comment.starts_with("  ");
        match keys.last_mut().filter(|_| part_of_last) {
            Some(last) if name.is_empty() => last.comment += &format!(" {}", comment.trim()),
            Some(last) => last.comment += &format!("; `{name}`: {}", comment.trim()),
            None => keys.push(Key { name: name.into(), comment: comment.trim().into() }),
        }
    }
    sections
}
