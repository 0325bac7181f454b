//! The items that the library shows to others.

/// Names that the library's root re-exports, and the modules that are written there, sorted.
pub fn shown(root: &str) -> Vec<String> {
    let lines = root.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    let code = lines.collect::<Vec<_>>().join(" ");
    let mut names = Vec::new();
    for module in code.split("pub mod ").skip(1) {
        let end = module.find([';', '{']).unwrap_or(module.len());
        if module[end..].starts_with('{') {
            names.push(module[..end].trim().to_owned());
        }
    }
    for import in code.split("pub use ").skip(1) {
        let path = import.split(';').next().unwrap_or_default();
        let items = path.split_once('{').map_or(path, |(_, items)| items.trim_end_matches('}'));
        for item in items.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let name = item.rsplit([' ', ':']).next().unwrap_or(item);
            names.push(name.to_owned());
        }
    }
    names.sort();
    names
}

/// Modules of the root that are files and not hidden.
pub fn unhidden(root: &str) -> Vec<&str> {
    let lines: Vec<&str> = root.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(name) = line.strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(';')) else {
            continue;
        };
        let mut attributes = lines[..index].iter().rev().take_while(|line| line.starts_with("#["));
        if !attributes.any(|line| *line == "#[doc(hidden)]") {
            found.push(name);
        }
    }
    found
}
