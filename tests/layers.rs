//! Top-level modules of the library import only from modules that src/lib.rs lists before them.

use std::fs;
use std::path::{Path, PathBuf};

/// Imports against the order that still have to be removed: importing module, imported module.
const ALLOWED: [(&str, &str); 2] = [("gpu", "ops"), ("gpu", "reference")];

/// An import of a top-level module.
struct Import {
    file: PathBuf,
    line: usize,
    from: String,
    to: String,
}

#[test]
fn modules_import_only_from_earlier_ones() {
    let order = modules(&fs::read_to_string("src/lib.rs").expect("the library's root"));
    assert!(order.len() > 10, "too few modules in src/lib.rs: {order:?}");
    let position = |module: &str| order.iter().position(|m| m == module);
    let mut imports = Vec::new();
    for file in rust_files(Path::new("src")) {
        imports.extend(imports_of(&file, &order));
    }
    imports.retain(|import| position(&import.to) > position(&import.from));
    let allowed = |import: &&Import| ALLOWED.contains(&(import.from.as_str(), import.to.as_str()));
    let wrong: Vec<String> = imports
        .iter()
        .filter(|import| !allowed(import))
        .map(|i| {
            format!("{}:{}: {} imports from {}, which comes later", i.file.display(), i.line, i.from, i.to)
        })
        .collect();
    assert!(wrong.is_empty(), "imports against the order of src/lib.rs:\n{}", wrong.join("\n"));
    for (from, to) in ALLOWED {
        assert!(
            imports.iter().any(|import| (import.from.as_str(), import.to.as_str()) == (from, to)),
            "{from} no longer imports from {to}; remove the pair from ALLOWED"
        );
    }
}

#[test]
fn imports_are_found_in_every_spelling() {
    let order = ["words", "base", "gpu", "run"].map(String::from);
    let text = "//! See crate::run.\n\
                use crate::base::{self, Base};\n\
                use crate::{gpu::Gpu, words};\n\
                fn f(x: &crate::run::Run) {}\n\
                use super::super::run::Data;\n\
                use super::inner;\n\
                #[cfg(test)]\n\
                use crate::run::Kept;\n\
                #[cfg(test)]\n\
                mod tests {\n\
                use crate::run::Data;\n";
    let found: Vec<(usize, String)> = parse(text, &["base", "gguf"], &order);
    let expected = [(2, "base"), (3, "gpu"), (3, "words"), (4, "run"), (5, "run")];
    assert_eq!(found, expected.map(|(line, module)| (line, module.to_string())));
}

/// The modules that the library's root declares, in their order.
fn modules(root: &str) -> Vec<String> {
    let name = |line: &str| Some(line.strip_prefix("pub mod ")?.strip_suffix(';')?.to_string());
    root.lines().filter_map(name).collect()
}

/// All Rust files below `folder`.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// The imports of other top-level modules in `file`; none if the file is not part of the library.
fn imports_of(file: &Path, order: &[String]) -> Vec<Import> {
    let inside = file.strip_prefix("src").expect("below src").with_extension("");
    let mut path: Vec<&str> = inside.iter().map(|part| part.to_str().expect("ASCII")).collect();
    path.pop_if(|last| *last == "mod");
    let from = path[0].to_string();
    if !order.contains(&from) {
        return Vec::new();
    }
    let text = fs::read_to_string(file).expect("a text");
    let import = |(line, to)| Import { file: file.into(), line, from: from.clone(), to };
    parse(&text, &path, order).into_iter().map(import).collect()
}

/// Lines, from 1, and names of the top-level modules that `text` names. `path` is the module's own path.
///
/// Comments, items under `#[cfg(test)]`, and everything from the module of tests on are skipped.
fn parse(text: &str, path: &[&str], order: &[String]) -> Vec<(usize, String)> {
    let to_root = "super::".repeat(path.len());
    let mut found = Vec::new();
    let mut of_tests = false;
    for (index, line) in text.lines().enumerate() {
        if of_tests && line.starts_with("mod ") {
            break;
        }
        let line = line.trim();
        let skipped = of_tests || line.starts_with("//");
        of_tests = line == "#[cfg(test)]";
        if skipped {
            continue;
        }
        for root in ["crate::", to_root.as_str()] {
            for (start, _) in line.match_indices(root) {
                let before = line[..start].chars().next_back();
                if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                    continue;
                }
                let named = top_names(&line[start + root.len()..]);
                found.extend(named.filter(|name| order.contains(name)).map(|name| (index + 1, name)));
            }
        }
    }
    found
}

/// The first names of the paths that `rest` begins with: one, or one per item of `{…}`.
fn top_names(rest: &str) -> impl Iterator<Item = String> {
    let items: Vec<&str> = match rest.strip_prefix('{') {
        Some(group) => group.split(['{', '}']).step_by(2).flat_map(|part| part.split(',')).collect(),
        None => vec![rest],
    };
    let name = |item: &str| {
        let item = item.trim_start();
        item[..item.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(item.len())].to_string()
    };
    items.into_iter().map(name).collect::<Vec<_>>().into_iter()
}
