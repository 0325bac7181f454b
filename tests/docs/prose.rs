//! Habits that the prose rules of CONTRIBUTING.md exclude.

use std::fs;
use std::path::{Path, PathBuf};

use super::{read, root};

/// Beginnings of doc comments that make no sense when read alone.
const HEADLESS: [&str; 3] = ["Of ", "The same", "What "];

/// Wordings with a standard term, and that term.
const WORDINGS: [(&str, &str); 8] = [
    ("a CPU plays", "software renderer"),
    ("carries loss", "loss tokens, or is trained"),
    ("goes on where", "resumes"),
    ("is made anew", "is rebuilt"),
    ("is named and", "is reported and"),
    ("is said", "is reported"),
    ("is told", "is reported"),
    ("with a word about it", "with a warning"),
];

/// Every Rust file of the library and the program that is checked.
pub fn sources() -> Vec<PathBuf> {
    let mut sources = Vec::new();
    for folder in ["src", "crates/program/src"] {
        collect(&root().join(folder), &mut sources);
    }
    sources
}

fn collect(folder: &Path, sources: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the repository") {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            collect(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(path);
        }
    }
}

/// Doc comments of a Rust file that begin headless.
pub fn in_source(path: &Path) -> Vec<String> {
    let text = read(path);
    let mut found = Vec::new();
    let mut before = "";
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let first = line.strip_prefix("/// ").filter(|_| !before.starts_with("///"));
        if first.is_some_and(|doc| HEADLESS.iter().any(|start| doc.starts_with(start))) {
            found.push(place(path, number, line));
        }
        before = line;
    }
    found
}

/// Options, such as `--kernels`, in the code of a Rust file, with the number of their line.
pub fn options(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        // Comments may give examples, and `refuse_renamed` has names that are gone.
        if line.trim_start().starts_with("//") || line.contains("refuse_renamed") {
            continue;
        }
        for (at, _) in line.match_indices("--") {
            let before = line[..at].chars().next_back();
            let name: String =
                line[at + 2..].chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
            if name.len() > 1
                && !name.starts_with('-')
                && before.is_none_or(|c| !c.is_alphanumeric() && c != '-')
            {
                found.push((number + 1, format!("--{name}")));
            }
        }
    }
    found
}

/// Lines of a page with a wording that has a standard term.
pub fn in_page(path: &Path) -> Vec<String> {
    let text = read(path);
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (wording, term) in WORDINGS {
            if line.contains(wording) {
                found.push(place(path, number, &format!("{wording:?}; write {term}")));
            }
        }
    }
    found
}

fn place(path: &Path, number: usize, text: &str) -> String {
    let path = path.strip_prefix(root()).expect("a file of the repository");
    format!("{}:{}: {text}", path.display(), number + 1)
}
