//! The manual: `recipes/chat.toml`, whose comments describe every key.

use std::sync::LazyLock;

/// The recipe whose comments describe every key.
const MANUAL: &str = include_str!("../../recipes/chat.toml");
/// Section of the keys of `[[data.sources]]`.
pub(super) const SOURCES: &str = "data.sources";
/// Section of the keys of `[[rewards]]`.
pub(super) const REWARDS: &str = "rewards";

static COMMENTS: LazyLock<Vec<(String, String)>> = LazyLock::new(described);
static SECTIONS: LazyLock<Vec<(String, Vec<String>)>> = LazyLock::new(|| {
    let mut sections: Vec<(String, Vec<String>)> = Vec::new();
    for (section, key) in comments().filter_map(|(path, _)| path.split_once('.')) {
        match sections.last_mut().filter(|(last, _)| last == section) {
            _ if key.contains('.') || section == REWARDS => {}
            Some((_, keys)) => keys.push(key.into()),
            None => sections.push((section.into(), vec![key.into()])),
        }
    }
    sections
});

/// Every key, as `section.key`, with its comment.
pub(super) fn comments() -> impl Iterator<Item = (&'static str, &'static str)> {
    COMMENTS.iter().map(|(path, comment)| (path.as_str(), comment.as_str()))
}

/// All sections with their keys, in the manual's order, without those that are lists of tables.
pub(super) fn sections() -> &'static [(String, Vec<String>)] {
    &SECTIONS
}

/// Keys of `[[data.sources]]`.
pub(super) fn source_keys() -> Vec<&'static str> {
    comments().filter_map(|(path, _)| path.strip_prefix(SOURCES)?.strip_prefix('.')).collect()
}

/// Keys of `[[rewards]]`.
pub(super) fn reward_keys() -> Vec<&'static str> {
    comments().filter_map(|(path, _)| path.strip_prefix(REWARDS)?.strip_prefix('.')).collect()
}

/// The comment of every key of the manual, by `section.key`. Continued comments are joined.
fn described() -> Vec<(String, String)> {
    let (mut section, mut found) = (String::new(), Vec::<(String, String)>::new());
    for line in MANUAL.lines() {
        let line = line.strip_prefix("# ").unwrap_or(line);
        if let Some(name) = line.strip_prefix("[[").and_then(|rest| rest.split("]]").next()) {
            let comment = line.split_once("# ").map_or("", |(_, comment)| comment);
            found.push((name.into(), comment.trim().into()));
            section = name.into();
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.into();
            continue;
        }
        let Some((code, comment)) = line.split_once("# ").filter(|_| !section.is_empty()) else { continue };
        let key = code.split(" = ").next().unwrap_or_default().trim();
        let is_name =
            !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || "_123456789".contains(c));
        match found.last_mut() {
            Some((_, text)) if key.is_empty() => *text += &format!(" {}", comment.trim()),
            _ if is_name && section == SOURCES => {
                found.push((format!("{section}.{key}"), format!("default: none; {}", comment.trim())));
            }
            _ if is_name => found.push((format!("{section}.{key}"), comment.trim().into())),
            _ => {}
        }
    }
    found
}
