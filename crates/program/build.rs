//! With the feature `web`, lists the built page, `web/dist`, so that the program has it inside.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_WEB").is_none() {
        return;
    }
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let page = package.join("../../web/dist");
    println!("cargo:rerun-if-changed={}", page.display());
    let mut files = Vec::new();
    walk(&page, &mut files).unwrap_or_else(|error| {
        panic!(
            "the feature `web` needs the built page, {}: {error}; build it first: web/build",
            page.display()
        )
    });
    files.sort();
    let entry = |path: &PathBuf| {
        let name = path.strip_prefix(&page).expect("found below").to_string_lossy().replace('\\', "/");
        format!("({name:?}, include_bytes!({path:?})),\n")
    };
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let list = format!("&[\n{}]", files.iter().map(entry).collect::<String>());
    fs::write(out.join("page.rs"), list).expect("the build's own folder can be written");
}

/// Every file below `dir`.
fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() { walk(&path, files)? } else { files.push(path) }
    }
    Ok(())
}
