//! Files that use each other, directly or over others.
//!
//! A file uses the files whose items it names, in `use` or in a path. Names are followed through `pub use`. A module's own ancestors do not
//! count: a child may use what its parent declares. Tests within files do not count either.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

type Module = Vec<String>;

/// A name that a file brings into its scope, and the path that it stands for.
struct Use {
    name: String,
    path: Vec<String>,
}

/// A file of the library or the program.
struct Source {
    uses: Vec<Use>,
    /// Paths in code, outside of `use`.
    paths: Vec<Vec<String>>,
}

/// All files below `src`, by module.
pub struct Sources(BTreeMap<Module, Source>);

impl Sources {
    /// Reads files with their path below `src` and their text.
    pub fn new<'t>(files: impl IntoIterator<Item = (PathBuf, &'t str)>) -> Sources {
        let source = |(path, text): (PathBuf, &str)| {
            let code = code(text);
            let (uses, rest) = uses(&code);
            Some((module(&path)?, Source { uses, paths: paths(&rest) }))
        };
        Sources(files.into_iter().filter_map(source).collect())
    }

    /// Sets of files that use each other, each in one line.
    pub fn circles(&self) -> Vec<String> {
        let edges: BTreeMap<&Module, BTreeSet<&Module>> =
            self.0.keys().map(|module| (module, self.used_by(module))).collect();
        let reach: BTreeMap<&Module, BTreeSet<&Module>> =
            edges.keys().map(|module| (*module, reachable(module, &edges))).collect();
        let mut found = BTreeSet::new();
        for (module, reached) in &reach {
            if !reached.contains(module) {
                continue;
            }
            let circle: Vec<String> =
                reached.iter().filter(|other| reach[*other].contains(module)).map(|m| m.join("/")).collect();
            found.insert(circle.join(", "));
        }
        found.into_iter().collect()
    }

    /// The files that `module` uses.
    fn used_by(&self, module: &Module) -> BTreeSet<&Module> {
        let source = &self.0[module];
        let named = source.uses.iter().map(|used| &used.path).chain(&source.paths);
        let files = named.filter_map(|path| self.file(&self.absolute(module, path, 0)?, 0));
        files.filter(|used| !module.starts_with(used)).collect()
    }

    /// A path from the root; `None` for names of other crates.
    fn absolute(&self, module: &[String], path: &[String], depth: usize) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" | "rullama_train" => return Some(rest.to_vec()),
            "self" => return Some([module, rest].concat()),
            "super" => {
                let ups = path.iter().take_while(|part| *part == "super").count();
                let parent = &module[..module.len().checked_sub(ups)?];
                return Some([parent, &path[ups..]].concat());
            }
            _ => {}
        }
        let child = [module, &path[..1]].concat();
        if self.0.contains_key(&child) {
            return Some([module, path].concat());
        }
        let used = self.0.get(module)?.uses.iter().find(|used| used.name == *first)?;
        if depth > 8 || used.path[0] == *first {
            return None;
        }
        Some([&self.absolute(module, &used.path, depth + 1)?, rest].concat())
    }

    /// The file that declares what `path` names.
    fn file(&self, path: &[String], depth: usize) -> Option<&Module> {
        let length = (0..=path.len()).rev().find(|&length| self.0.contains_key(&path[..length]))?;
        let (module, source) = self.0.get_key_value(&path[..length])?;
        if let Some(name) = path.get(length).filter(|_| depth < 8)
            && let Some(used) = source.uses.iter().find(|used| used.name == *name)
            && let Some(origin) = self.absolute(module, &used.path, 0)
        {
            return self.file(&[&origin, &path[length + 1..]].concat(), depth + 1);
        }
        Some(module)
    }
}

fn reachable<'m>(
    from: &'m Module,
    edges: &BTreeMap<&'m Module, BTreeSet<&'m Module>>,
) -> BTreeSet<&'m Module> {
    let mut found = BTreeSet::new();
    let mut left: Vec<&Module> = edges[from].iter().copied().collect();
    while let Some(module) = left.pop() {
        if found.insert(module) {
            left.extend(&edges[module]);
        }
    }
    found
}

/// The module of a file below `src`; `None` for the program's own root.
fn module(path: &Path) -> Option<Module> {
    let inside = path.with_extension("");
    let mut parts: Module = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    parts.pop_if(|last| last == "mod" || last == "lib");
    (parts != ["main"]).then_some(parts)
}

/// A file without comments, items under `#[cfg(test)]`, and everything from the module of tests on.
fn code(text: &str) -> String {
    let (mut kept, mut of_tests) = (String::new(), false);
    for line in text.lines() {
        let bare = line.trim();
        let skipped = of_tests;
        let declared = line.trim_start_matches("pub(super) ").trim_start_matches("pub(crate) ");
        if skipped && declared.starts_with("mod ") && line.ends_with('{') {
            break;
        }
        of_tests = bare == "#[cfg(test)]";
        if !skipped && !bare.starts_with("//") {
            kept += line.split(" // ").next().unwrap_or(line);
            kept.push('\n');
        }
    }
    kept
}

/// The names that a file's `use` lines bring into its scope, and the rest of the file.
fn uses(code: &str) -> (Vec<Use>, String) {
    let (mut found, mut rest, mut statement) = (Vec::new(), String::new(), None::<String>);
    for line in code.lines() {
        let bare = line.trim();
        let begins =
            ["use ", "pub use ", "pub(crate) use ", "pub(super) use ", "pub(in crate::adapter) use "]
                .iter()
                .any(|start| bare.starts_with(start));
        if statement.is_none() && !begins {
            rest += line;
            rest.push('\n');
            continue;
        }
        let statement_so_far = statement.get_or_insert_default();
        *statement_so_far += bare;
        statement_so_far.push(' ');
        if bare.ends_with(';') {
            let whole = statement.take().unwrap_or_default();
            let (_, tree) = whole.split_once("use ").expect("it begins so");
            expand(tree.trim_end_matches([';', ' ']), &[], &mut found);
        }
    }
    (found, rest)
}

/// Adds the names of a tree such as `a::{b, c::d as e}`.
fn expand(tree: &str, before: &[String], found: &mut Vec<Use>) {
    let tree = tree.trim();
    if let Some((head, members)) = tree.strip_suffix('}').and_then(|tree| tree.split_once('{')) {
        let head = head.split("::").filter(|part| !part.is_empty()).map(str::to_string);
        let path: Vec<String> = before.iter().cloned().chain(head).collect();
        let (mut depth, mut start) = (0, 0);
        for (at, letter) in members.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    expand(&members[start..at], &path, found);
                    start = at + 1;
                }
                _ => {}
            }
        }
        return expand(&members[start..], &path, found);
    }
    let (path, name) = tree.split_once(" as ").map_or((tree, None), |(path, name)| (path, Some(name)));
    let mut path: Vec<String> = before
        .iter()
        .cloned()
        .chain(path.split("::").map(str::to_string))
        .filter(|p| !p.is_empty())
        .collect();
    path.pop_if(|last| last == "self");
    if let Some(last) = path.last().cloned() {
        found.push(Use { name: name.map_or(last, str::to_string), path });
    }
}

/// The paths of two names or more in code.
fn paths(code: &str) -> Vec<Vec<String>> {
    let letter = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.split(|c: char| !letter(c));
    let path = |word: &str| {
        let parts: Vec<String> = word.split("::").map(|part| part.trim_matches(':').to_string()).collect();
        (parts.len() > 1 && parts.iter().take(2).all(|part| !part.is_empty())).then_some(parts)
    };
    words.filter_map(path).collect()
}
