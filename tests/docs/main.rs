//! The documentation: generated parts are current, links resolve, and the README stays short.
//!
//! `RULLAMA_WRITE_DOCS=1 cargo test --release --test docs` rewrites the generated parts.

mod gpus;
mod keys;
mod links;
mod measured;
mod prose;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the package lies in crates/")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every Markdown page for readers of the repository.
fn pages() -> Vec<PathBuf> {
    let top = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "datasets/README.md"];
    let deep = ["models/tiny-gemma4/README.md", "tests/golden/README.md", "tests/consumers/README.md"];
    let mut pages: Vec<PathBuf> = top.iter().chain(&deep).map(|page| root().join(page)).collect();
    let docs = fs::read_dir(root().join("docs")).expect("the repository has docs/");
    let paths = docs.map(|entry| entry.expect("a readable folder").path());
    pages.extend(paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    pages.sort();
    pages
}

/// Compares a page with its generated content, or writes it if `RULLAMA_WRITE_DOCS` is set.
fn assert_current(page: &str, expected: &str) {
    let path = root().join(page);
    if std::env::var_os("RULLAMA_WRITE_DOCS").is_some() {
        fs::write(&path, expected).unwrap_or_else(|error| panic!("{page}: {error}"));
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    let differs = found.lines().zip(expected.lines()).position(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "{page} is outdated from line {}; run RULLAMA_WRITE_DOCS=1 cargo test --release --test docs",
        1 + differs.unwrap_or(found.lines().count().min(expected.lines().count()))
    );
}

#[test]
fn command_line_is_current() {
    let program = Command::new(env!("CARGO_BIN_EXE_rullama-train")).arg("describe-cli").output();
    let output = program.expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_current("docs/cli.md", &String::from_utf8(output.stdout).expect("UTF-8"));
}

/// Compares the part of a page between `<!-- name: generated -->` and `<!-- end -->` with what is generated, as [`assert_current`].
fn assert_part_is_current(page: &str, name: &str, generated: &str) {
    let text = read(&root().join(page));
    let mark = format!("<!-- {name}: generated -->\n");
    let (before, rest) = text.split_once(&mark).expect("the page marks the place");
    let (_, after) = rest.split_once("<!-- end -->").expect("the page marks the end");
    assert_current(page, &format!("{before}{mark}{generated}<!-- end -->{after}"));
}

#[test]
fn recipe_keys_are_current() {
    let keys = keys::tables(&read(&root().join("recipes/chat.toml")));
    assert_part_is_current("docs/recipes.md", "keys", &keys);
}

// One test, as both parts are in one page.
#[test]
fn families_are_current() {
    assert_part_is_current("docs/models.md", "families", &families());
    assert_part_is_current("docs/models.md", "refused", &refused());
}

// One test, as both parts are in one page.
#[test]
fn sequences_that_fit_are_current() {
    assert_part_is_current("docs/memory.md", "fits", &measured::fits());
    assert_part_is_current("docs/memory.md", "speeds", &measured::speeds());
}

#[test]
fn sequences_that_fit_in_the_readme_are_current() {
    assert_part_is_current("README.md", "fits", &measured::known_fits());
}

#[test]
fn speeds_beside_pytorch_are_current() {
    assert_part_is_current("docs/benchmarks.md", "peers", &measured::peers());
}

#[test]
fn gpus_that_were_tried_are_current() {
    assert_current("docs/gpus.md", &gpus::page());
    let readme = read(&root().join("README.md"));
    let sentence = gpus::sentence();
    // Lines may break anywhere.
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(&readme).contains(&sentence), "README.md: expected the sentence {sentence:?}");
}

/// A row for each family, from its value.
fn families() -> String {
    let mut table =
        "\n| models | `general.architecture` | example | sizes for `bench` |\n|---|---|---|---|\n"
            .to_string();
    for family in rullama_train::families::ALL {
        let sizes: Vec<String> = family.shapes.iter().map(|shape| format!("`{}`", shape.name)).collect();
        table += &format!(
            "| {} | `{}` | `{}` | {} |\n",
            family.title,
            family.name,
            family.example,
            sizes.join(", ")
        );
    }
    table + "\n"
}

/// A row for each architecture of llama.cpp that is not trained.
fn refused() -> String {
    let mut table = "\n| `general.architecture` | models | has | nearest |\n|---|---|---|---|\n".to_string();
    for row in &rullama_train::families::REFUSED {
        let trains = rullama_train::families::named(row.nearest).is_some();
        let nearest = if trains { format!("`{}`", row.nearest) } else { row.nearest.to_owned() };
        table += &format!("| `{}` | {} | {} | {nearest} |\n", row.name, row.models, row.has);
    }
    table + "\n"
}

#[test]
fn schema_is_current() {
    assert_current("docs/recipe.schema.json", &format!("{:#}\n", rullama_train::recipe::schema()));
}

#[test]
fn links_resolve() {
    let broken: Vec<String> = pages().iter().flat_map(|page| links::broken(page)).collect();
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn readme_is_short_and_links_every_page() {
    let readme = read(&root().join("README.md"));
    let lines = readme.lines().count();
    assert!(lines <= 160, "README.md has {lines} lines, expected at most 160; move details to docs/");
    for page in pages() {
        let Ok(name) = page.strip_prefix(root().join("docs")) else { continue };
        let link = format!("(docs/{}", name.display());
        assert!(readme.contains(&link), "README.md does not link docs/{}", name.display());
    }
}

/// The table of architecture.md names every module of the library, in import order.
#[test]
fn architecture_lists_the_modules() {
    let library = read(&root().join("src/lib.rs"));
    let modules: Vec<&str> =
        library.lines().filter_map(|line| line.trim().strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    let page = read(&root().join("docs/architecture.md"));
    let (_, section) = page.split_once("\n## Modules\n").expect("the page has the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let listed: Vec<&str> = rows.map(|(name, _)| name).filter(|name| modules.contains(name)).collect();
    assert_eq!(
        listed, modules,
        "docs/architecture.md, Modules: expected the modules of src/lib.rs in their order"
    );
}

/// Options of other programs that texts of ours name, a hidden one, and a variable of a style sheet.
const OTHER_OPTIONS: [&str; 11] = [
    "--bind-to",
    "--columns",
    "--commands",
    "--cpu-bind",
    "--features",
    "--local-dir",
    "--lora",
    "--merge",
    "--mpi",
    "--release",
    "--version",
];

/// Every option that a text of the library or the program names is an option of the program.
#[test]
fn named_options_exist() {
    let known = read(&root().join("docs/cli.md"));
    let mut found = Vec::new();
    for source in prose::sources() {
        for (number, option) in prose::options(&read(&source)) {
            if !OTHER_OPTIONS.contains(&option.as_str()) && !known.contains(&format!("`{option}")) {
                found.push(format!("{}:{number}: {option}", source.display()));
            }
        }
    }
    assert!(found.is_empty(), "docs/cli.md has no such options:\n{}", found.join("\n"));
}

/// The registry shows these lines for models of every family.
#[test]
fn the_packages_are_described_for_all_families() {
    for package in ["Cargo.toml", "crates/program/Cargo.toml"] {
        let manifest = read(&root().join(package)).to_lowercase();
        let lines =
            manifest.lines().filter(|line| line.starts_with("description") || line.starts_with("keywords"));
        for line in lines {
            for family in rullama_train::families::ALL {
                let name = family.name.trim_end_matches(|c: char| c.is_ascii_digit());
                assert!(!line.contains(name), "{package} names {name} only: {line}");
            }
        }
    }
}

#[test]
fn prose_is_plain() {
    let mut found = Vec::new();
    for page in pages() {
        found.extend(prose::in_page(&page));
    }
    for source in prose::sources() {
        found.extend(prose::in_source(&source));
    }
    assert!(found.is_empty(), "rewrite as CONTRIBUTING.md, Prose, says:\n{}", found.join("\n"));
}
