//! Lists the shaders, `shaders/**/*.wgsl`, so that programs have them inside. The module for browsers has them without their comments.
//! Programs for musl get an unwinder.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = |name: &str| env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    println!("cargo:rustc-check-cfg=cfg(has_cuda)");
    // The targets are those of the dependency wgpu-cuda in Cargo.toml.
    let has_cuda = match target("OS").as_str() {
        "windows" => true,
        "linux" => ["x86_64", "aarch64"].contains(&target("ARCH").as_str()),
        _ => false,
    };
    if has_cuda && env::var_os("CARGO_FEATURE_NATIVE").is_some() {
        println!("cargo:rustc-cfg=has_cuda");
    }
    if target("ENV") == "musl" && !target("FEATURE").split(',').any(|feature| feature == "crt-static") {
        link_unwinder();
    }
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let shaders = root.join("shaders");
    let downloaded = target("ARCH") == "wasm32";
    let text = |name: &str, path: &Path| {
        let name = name.strip_suffix(".wgsl")?;
        if downloaded {
            let text = fs::read_to_string(path).expect("the shaders are part of the package");
            return Some(format!("({name:?}, {:?}),\n", without_comments(&text)));
        }
        Some(format!("({name:?}, include_str!({path:?})),\n"))
    };
    let shaders = list(&shaders, text).expect("the shaders are part of the package");
    fs::write(out.join("shaders.rs"), shaders).expect("the build's own folder can be written");
}

/// Gives the linker Rust's own unwinder as the library `gcc_s`. A program that musl's loader starts would need the shared library of GCC,
/// which small systems lack.
fn link_unwinder() {
    let [rustc, triple, out] =
        ["RUSTC", "TARGET", "OUT_DIR"].map(|name| env::var(name).expect("cargo sets it"));
    let libraries = Command::new(rustc).args(["--print", "target-libdir", "--target", &triple]).output();
    let libraries = libraries.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let unwinder = Path::new(&libraries.unwrap_or_default()).join("self-contained/libunwind.a");
    // A Rust that the system's packages bring has none, and that system has GCC's.
    if fs::copy(unwinder, Path::new(&out).join("libgcc_s.a")).is_ok() {
        println!("cargo:rustc-link-search=native={out}");
    }
}

/// A shader without comments and with less indentation, for a module that is downloaded. Nested lines stay indented: the expander tells
/// them from declarations.
fn without_comments(text: &str) -> String {
    let mut short = String::new();
    for line in text.lines() {
        let code = line.split("//").next().unwrap_or_default().trim_end();
        if code.trim_start().is_empty() {
            continue;
        }
        if code.starts_with(' ') {
            short.push(' ');
        }
        short.push_str(code.trim_start());
        short.push('\n');
    }
    short
}

/// An array of what `entry` makes of every file below `dir`, by name.
fn list(dir: &Path, entry: impl Fn(&str, &Path) -> Option<String>) -> io::Result<String> {
    println!("cargo:rerun-if-changed={}", dir.display());
    let mut files = Vec::new();
    walk(dir, &mut files)?;
    files.sort();
    let entries = files.iter().filter_map(|path| {
        let name = path.strip_prefix(dir).expect("found below").to_string_lossy().replace('\\', "/");
        entry(&name, path)
    });
    Ok(format!("&[\n{}]", entries.collect::<String>()))
}

/// Every file below `dir`.
fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() { walk(&path, files)? } else { files.push(path) }
    }
    Ok(())
}
