//! With the feature `web`: lists the built page, `web/dist`, so that the program has it inside.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_WEB").is_none() {
        return;
    }
    let variable = |name| PathBuf::from(env::var_os(name).expect("cargo sets it"));
    let page = variable("CARGO_MANIFEST_DIR").join("web/dist");
    println!("cargo:rerun-if-changed={}", page.display());
    let mut files = Vec::new();
    if let Err(error) = walk(&page, &mut files) {
        panic!(
            "the feature `web` needs the built page, {}: {error}; build it first: web/build",
            page.display()
        );
    }
    files.sort();
    let entry = |path: &PathBuf| {
        let name = path.strip_prefix(&page).expect("found below").to_string_lossy().replace('\\', "/");
        format!("({name:?}, include_bytes!({path:?})),\n")
    };
    let list = format!("&[\n{}]", files.iter().map(entry).collect::<String>());
    fs::write(variable("OUT_DIR").join("page.rs"), list).expect("the build's own folder can be written");
}

/// Every file below `dir`.
fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() { walk(&path, files)? } else { files.push(path) }
    }
    Ok(())
}
