//! The files of a release that install the program, rendered from one list, the install script run over archives on this disk, and the
//! completion that bash gets.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value as Json;

use super::hub_server::sha256;
use super::{Place, matches, texts};

const DIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist");

/// The target that the script chooses here.
const NATIVE: &str =
    if cfg!(target_arch = "aarch64") { "aarch64-unknown-linux-gnu" } else { "x86_64-unknown-linux-gnu" };

fn folder(target: &str) -> String {
    format!("rullama-train-v0.1.0-{target}")
}

fn archive() -> String {
    format!("{}.tar.gz", folder(NATIVE))
}

fn render(place: &Place, sums: &str, out: &str) -> Output {
    let command = Command::new("bash")
        .current_dir(&place.dir)
        .args([&format!("{DIST}/render"), "0.1.0", sums, out])
        .output();
    command.expect("bash")
}

/// Makes a release whose program for this system is the shell script `program`.
fn release(place: &Place, program: &str) {
    place.write(&format!("{}/rullama-train", folder(NATIVE)), program);
    let packed =
        Command::new("tar").current_dir(&place.dir).args(["czf", &archive(), &folder(NATIVE)]).status();
    assert!(packed.expect("tar").success());
    let list = std::fs::read(format!("{DIST}/targets.json")).expect("the list");
    let targets: Json = serde_json::from_slice(&list).expect("JSON");
    let line = |entry: &Json| {
        let text = |key: &str| entry[key].as_str().expect("a name").to_owned();
        let sum = if text("target") == NATIVE { sha256(&place.read(&archive())) } else { "0".repeat(64) };
        format!("{sum}  {}.{}\n", folder(&text("target")), text("archive"))
    };
    place.write("SUMS", targets.as_array().expect("a list").iter().map(line).collect::<String>());
    let output = render(place, "SUMS", "rendered");
    assert!(output.status.success(), "{output:?}");
}

/// Runs the script on the release, with programs of the folder `tools` before those of the system.
fn install(place: &Place) -> Output {
    let path = format!("{}:{}", place.dir.join("tools").display(), std::env::var("PATH").expect("set"));
    let mut command = Command::new("sh");
    command.arg("rendered/install.sh").current_dir(&place.dir).env("PATH", path);
    command.env("RULLAMA_DOWNLOADS", format!("file://{}", place.dir.display()));
    command.env("RULLAMA_INSTALL_DIR", place.dir.join("bin")).output().expect("sh")
}

/// The script installs the archive whose digest it has, and nothing else.
pub fn script(place: Place) {
    release(&place, "#!/bin/sh\necho rullama-train 0.1.0\n");
    for name in ["install.ps1", "rullama-train.rb", "winget/rullama.rullama-train.installer.yaml"] {
        let text = String::from_utf8(place.read(&format!("rendered/{name}"))).expect("UTF-8");
        assert!(
            text.contains("0.1.0") && !text.contains("@SHA256") && !text.contains("@VERSION"),
            "{name}: {text}"
        );
    }
    place.write("few", "");
    assert!(
        texts(&render(&place, "few", "other"))
            .1
            .contains("few has no checksum of rullama-train-v0.1.0-x86_64-unknown-linux-gnu.tar.gz")
    );
    if Command::new("curl").arg("--version").output().is_err() {
        return;
    }
    let bin = place.dir.join("bin");
    let refused = |expected: &str| {
        let output = install(&place);
        assert!(!output.status.success() && matches(&texts(&output).1, expected), "{expected}: {output:?}");
    };
    let output = install(&place);
    let installed = format!("installed rullama-train 0.1.0 in {}\n…", bin.display());
    assert!(matches(&texts(&output).0, &installed), "{output:?}");
    // A program that another C library is missing for does not replace the one that works.
    release(&place, "#!/bin/sh\necho GLIBC_2.28 not found >&2\nexit 1\n");
    refused(
        "install.sh: the program does not start here (GLIBC_2.28 not found); on Linux it needs glibc 2.28 or musl 1.2; …",
    );
    assert_eq!(std::fs::read_dir(&bin).expect("a folder").count(), 1);
    assert!(Command::new(bin.join("rullama-train")).status().expect("it starts").success());
    // Another file under the same name.
    std::fs::remove_dir_all(&bin).expect("it is there");
    place.write(&archive(), b"something else");
    refused("…has the SHA-256…");
    assert!(!bin.exists());
    // The system's own library decides, not the loaders that it has besides.
    place.write("tools/ldd", "#!/bin/sh\necho 'musl libc (x86_64)' >&2\nexit 1\n");
    let made = Command::new("chmod").current_dir(&place.dir).args(["+x", "tools/ldd"]).status();
    assert!(made.expect("chmod").success());
    refused("…install.sh: cannot download …-unknown-linux-musl.tar.gz; check the network\n");
}

/// In bash, which splits words at colons, names of models are completed before, at and behind one.
pub fn completed(place: Place) {
    place.stored_tiny("gemma4/e2b");
    let program = place.command(&[]);
    let complete = |words: &str, current: &str| {
        let script = format!(
            "source <(rullama-train completions bash); COMP_LINE='rullama-train {words}' COMP_WORDS=(rullama-train {})
            COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _rullama_train rullama-train '{current}' '' 2>/dev/null; echo \"${{COMPREPLY[*]}}\"",
            words.replace(':', " : ").replace('=', " = "),
        );
        let mut command = Command::new("bash");
        command.current_dir(&place.dir).args(["-c", &script]);
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let folder = Path::new(program.get_program()).parent().expect("a folder").display();
        command.env("PATH", format!("{folder}:{}", std::env::var("PATH").expect("set")));
        let (stdout, stderr) = texts(&command.output().expect("bash"));
        assert!(stderr.is_empty(), "{words}: {stderr}");
        stdout.trim_end().to_owned()
    };
    assert_eq!(complete("chat gem", "gem"), "gemma4:e2b");
    assert_eq!(complete("chat gemma4:", ""), "e2b");
    assert_eq!(complete("chat gemma4:e", "e"), "e2b");
    assert_eq!(complete("merge x --base=gemma4:e", "e"), "e2b");
    assert_eq!(complete("merge x --base=ti", "ti"), "tiny");
    assert_eq!(complete("insp", "insp"), "inspect");
}
