//! Top-level modules of the library import only from modules that src/lib.rs lists before them, and no files of the library or the program
//! use each other. Functions are short and take few arguments. The library shows the listed items alone.

mod circles;
mod facade;
mod functions;

use std::fs;
use std::path::{Path, PathBuf};

/// Sources of the library and of the program.
const SOURCES: [&str; 2] = ["src", "crates/program/src"];

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
    let wrong: Vec<String> = imports
        .iter()
        .map(|i| {
            format!("{}:{}: {} imports from {}, which comes later", i.file.display(), i.line, i.from, i.to)
        })
        .collect();
    assert!(wrong.is_empty(), "imports against the order of src/lib.rs:\n{}", wrong.join("\n"));
}

/// `run::plan` is everything before the first step, `run::drive` the loop.
#[test]
fn the_plan_of_a_run_does_not_know_its_loop() {
    let root = fs::read_to_string("src/run/mod.rs").expect("the module");
    let (_, exports) = root.split_once("pub use drive::{").expect("it re-exports the loop's items");
    let mut names: Vec<String> = exports[..exports.find("};").expect("a list")]
        .split(',')
        .map(|name| name.trim().to_owned())
        .collect();
    names.retain(|name| !name.is_empty());
    assert!(names.contains(&"Host".to_owned()), "too few items of the loop: {names:?}");
    names.push("drive".into());
    let mut wrong = Vec::new();
    for file in rust_files(Path::new("src/run/plan")) {
        // As if `run` were the crate.
        let text = fs::read_to_string(&file).expect("a text");
        let text = text.replace("crate::run::", "the_run::").replace("crate::", "other::");
        let text = text.replace("the_run::", "crate::");
        let inside = file.strip_prefix("src/run").expect("below it").with_extension("");
        let mut path: Vec<&str> = inside.iter().map(|part| part.to_str().expect("ASCII")).collect();
        path.pop_if(|last| *last == "mod");
        let found = parse(&text, &path, &names).into_iter();
        wrong.extend(found.map(|(line, name)| format!("{}:{line}: {name}", file.display())));
    }
    assert!(wrong.is_empty(), "run/plan imports from run/drive:\n{}", wrong.join("\n"));
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

/// Files that still use each other, with the reason.
const CIRCLES: [(&str, &str); 3] = [
    ("gpu/bind_groups, gpu/recorder", "both know a binding"),
    ("gpu/error, gpu/kernels", "an error names the kernels of a tier"),
    ("ops/attention/coop16, ops/attention/cuda", "operands in tiles are also those of CUDA"),
];

#[test]
fn no_files_use_each_other() {
    for root in SOURCES.map(Path::new) {
        let files: Vec<(PathBuf, String)> = rust_files(root)
            .into_iter()
            .map(|path| {
                (
                    path.strip_prefix(root).expect("below it").into(),
                    fs::read_to_string(&path).expect("a text"),
                )
            })
            .collect();
        assert!(files.len() > 50, "too few files in {}", root.display());
        let sources = circles::Sources::new(files.iter().map(|(path, text)| (path.clone(), text.as_str())));
        let found = sources.circles();
        let known = |circle: &str| CIRCLES.iter().any(|(start, _)| circle.starts_with(start));
        let new: Vec<&String> = found.iter().filter(|circle| !known(circle)).collect();
        let root = root.display();
        assert!(
            new.is_empty(),
            "files of {root} that use each other; move what both need into a third: {new:#?}"
        );
    }
}

#[test]
fn circles_are_found() {
    let circles = |files: &[(&str, &'static str)]| {
        circles::Sources::new(files.iter().map(|(path, text)| (PathBuf::from(path), *text))).circles()
    };
    let files = [
        ("a/mod.rs", "mod one;\nmod two;\npub use one::First;\nuse crate::b;\n"),
        ("a/one.rs", "use super::{\n    two,\n};\npub struct First(two::Second);\n"),
        ("a/two.rs", "pub struct Second;\nfn f(_: super::First) {}\n"),
        ("b.rs", "// use crate::a;\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n"),
    ];
    assert_eq!(circles(&files), ["a/one, a/two"], "through a name that the parent passes on");
    let mut cut = files;
    cut[2].1 = "pub struct Second;\nfn f() { super::helper() }\n";
    assert_eq!(circles(&cut), [""; 0], "a child uses its parent");
    let three = [
        ("x.rs", "use crate::y;\n"),
        ("y.rs", "fn f() { crate::z::g() }\n"),
        ("z.rs", "use crate::{x as w};\nfn g() {}\n"),
    ];
    assert_eq!(circles(&three), ["x, y, z"]);
}

/// Most lines of a function, and most arguments.
const MOST: [usize; 2] = [60, 8];

/// Functions that have more, by file. A table or a list that is one expression may be long.
const LONGER: &[(&str, &str)] = &[
    ("crates/program/src/cli/bench/steps.rs", "run"),
    ("crates/program/src/cli/eval.rs", "run"),
    ("crates/program/src/cli/train/mod.rs", "train"),
    ("src/adapter/merge/mod.rs", "convert"),
    ("src/cases/attention.rs", "both_ways"),
    ("src/cases/delta.rs", "both_ways"),
    ("src/data/dataset/messages.rs", "message"),
    ("src/data/dataset/notice_words.rs", "reading"),
    ("src/data/template/go/parse.rs", "commands"),
    ("src/data/template/reply.rs", "step"),
    ("src/data/tokenizer/mod.rs", "new"),
    ("src/families/uniform/mod.rs", "config"),
    ("src/memory/arena.rs", "new"),
    ("src/model/load.rs", "layer"),
    ("src/model/trainable.rs", "new"),
    ("src/ops/attention/coop16_backward.rs", "backward"),
    ("src/ops/cached_attention/mod.rs", "forward"),
    ("src/ops/linear/cuda/grouped.rs", "forward"),
    ("src/ops/linear/cuda/grouped.rs", "backward"),
    ("src/ops/linear/cuda/grouped.rs", "run"),
    ("src/ops/linear/cuda/grouped.rs", "launch"),
    ("src/ops/linear/grouped.rs", "backward"),
    ("src/ops/linear/grouped.rs", "dispatch"),
    ("src/ops/linear/grouped_coop16.rs", "backward"),
    ("src/ops/linear/grouped_coop16.rs", "dispatch"),
    ("src/ops/linear/tiled.rs", "dispatch"),
    ("src/ops/lora/grouped.rs", "gradient"),
    ("src/ops/matvec/mod.rs", "forward"),
    ("src/ops/matvec/mod.rs", "product"),
    ("src/reference/adamw.rs", "adamw"),
    ("src/reference/attention.rs", "backward"),
    ("src/reference/attention.rs", "backward_capped"),
    ("src/reference/lora.rs", "backward"),
    ("src/reference/model/backward.rs", "attention_backward"),
    ("src/reference/model/tensors.rs", "from_tensors"),
    ("src/run/drive/checkpoint/mod.rs", "damage_is_reported"),
    ("src/run/plan/draft/mod.rs", "settings"),
];

#[test]
fn functions_are_short() {
    let (mut found, mut seen) = (Vec::new(), Vec::new());
    for file in SOURCES.iter().flat_map(|root| rust_files(Path::new(root))) {
        let path = file.display().to_string().replace('\\', "/");
        for function in functions::functions(&fs::read_to_string(&file).expect("a text")) {
            if function.lines <= MOST[0] && function.arguments <= MOST[1] {
                continue;
            }
            let known = LONGER.iter().find(|(known, name)| path == *known && function.name == *name);
            seen.extend(known);
            if known.is_none() {
                let functions::Function { name, line, lines, arguments } = function;
                found.push(format!("{path}:{line}: {name} has {lines} lines and {arguments} arguments"));
            }
        }
    }
    assert!(found.is_empty(), "expected at most {MOST:?}; take them apart:\n{}", found.join("\n"));
    let gone: Vec<_> = LONGER.iter().filter(|known| !seen.contains(known)).collect();
    assert!(gone.is_empty(), "these are short by now; remove them from LONGER: {gone:?}");
}

#[test]
fn lengths_and_arguments_are_counted() {
    let text = "pub fn one(a: (u32, u32), b: impl Fn(u8, u8) -> u8) -> u32 {\n    a.0\n}\n\
                impl X {\n    async fn two<T: Fn(u8) -> u8>(\n        &self,\n        x: Map<u8, [u8; 2]>,\n    ) {\n    }\n}\n\
                fn three() {}\n// fn four(\n";
    let found = functions::functions(text);
    let of = |f: &functions::Function| (f.name.clone(), f.line, f.lines, f.arguments);
    let expected = [("one", 1, 3, 2), ("two", 5, 5, 2), ("three", 11, 1, 0)];
    assert_eq!(
        found.iter().map(of).collect::<Vec<_>>(),
        expected.map(|(n, l, c, a)| (n.to_string(), l, c, a))
    );
}

/// Items that docs.rs shows: those that the examples need, with their errors and settings.
const SHOWN: [&str; 55] = [
    "Adapter",
    "AdapterError",
    "AdapterPath",
    "Backend",
    "Base",
    "BaseError",
    "Capacity",
    "Data",
    "DatasetError",
    "Device",
    "Dropout",
    "Eval",
    "Exported",
    "FinetuneError",
    "Format",
    "GenerateError",
    "Gguf",
    "Gpu",
    "GpuError",
    "GpuOptions",
    "HeldOut",
    "IGNORE",
    "Loaded",
    "Lora",
    "MergeType",
    "MicroBatch",
    "Model",
    "Model",
    "Offload",
    "OpenBase",
    "OtherBase",
    "Output",
    "Progress",
    "Recipe",
    "RecipeError",
    "Recompute",
    "RunError",
    "Sample",
    "StepMetrics",
    "Tokenizer",
    "Train",
    "TrainError",
    "Trainer",
    "VerifyError",
    "WriteOptions",
    "compare_merged",
    "finetune",
    "generate",
    "load_adapters",
    "merge",
    "samples",
    "sections",
    "write_adapter",
    "write_options",
    "write_verified",
];

#[test]
fn the_library_shows_few_items() {
    let root = fs::read_to_string("src/lib.rs").expect("the library's root");
    assert_eq!(
        facade::unhidden(&root),
        [""; 0],
        "modules of src/lib.rs are hidden; re-export what others need"
    );
    assert_eq!(facade::shown(&root), SHOWN, "a new item is a promise to others: list it, or keep it hidden");
}

#[test]
fn shown_items_are_found_in_every_spelling() {
    let root = "#[doc(hidden)]\npub mod a;\npub mod b;\n#[doc(hidden)]\n#[cfg(x)]\npub mod c;\n// pub use no::No;\n\
                pub use a::One;\npub use a::{Two, three as four,\n    five::Six};\n\
                /// Text.\npub mod inner {\n    pub use crate::b::Seven;\n}\n";
    assert_eq!(facade::shown(root), ["One", "Seven", "Six", "Two", "four", "inner"]);
    assert_eq!(facade::unhidden(root), ["b"]);
}
