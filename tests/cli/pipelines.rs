//! The cache of compiled kernels: every command uses it, and unusable files are reported.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use serde_json::Value as Json;

use super::{Place, serve, talk, texts};

impl Place {
    fn pipelines(&self) -> PathBuf {
        self.cache.join("rullama-train/pipelines")
    }

    /// The file of the GPU. Expects that there is only one.
    #[track_caller]
    fn pipelines_file(&self) -> PathBuf {
        let mut files =
            fs::read_dir(self.pipelines()).expect("a folder").map(|e| e.expect("an entry").path());
        let file = files.next().expect("a file of the GPU");
        assert_eq!(files.next(), None, "no other file");
        file
    }

    /// The modification time of that file.
    #[track_caller]
    fn pipelines_written(&self) -> SystemTime {
        fs::metadata(self.pipelines_file()).and_then(|m| m.modified()).expect("its time")
    }
}

pub fn damaged(place: Place) {
    let place = place.with_own_cache();
    let run = || {
        let bench = ["bench", "tiny", "--sequence=8", "--steps=1", "--rank=2", "--json"];
        let output = place.command(&bench).output().expect("the program starts");
        let (stdout, stderr) = texts(&output);
        assert!(output.status.success(), "{stdout}{stderr}");
        let found: Json = serde_json::from_str(&stdout).expect("JSON");
        (found["first_loss"].to_string(), stderr)
    };
    let (loss, notes) = run();
    assert_eq!(notes, "");
    let file = place.pipelines_file();
    let whole = fs::read(&file).expect("read");
    assert_eq!(run(), (loss.clone(), String::new()));

    let mut damaged = whole.clone();
    *damaged.last_mut().expect("not empty") ^= 1;
    let mut foreign = whole.clone();
    foreign[10] ^= 1; // in the digest of driver and shaders
    for (bytes, problem) in [
        (damaged, "is damaged"),
        (foreign, "was written by another driver or another version of this program"),
    ] {
        fs::write(&file, &bytes).expect("written");
        let note = format!("note: {} {problem}; the kernels are compiled again\n", file.display());
        assert_eq!(run(), (loss.clone(), note));
        let now = fs::read(&file).expect("read");
        assert!(now != bytes && now[..40] == whole[..40], "the file was rebuilt");
        assert_eq!(place.pipelines_file(), file);
    }

    let folder = place.pipelines();
    fs::remove_dir_all(&folder).expect("removed");
    fs::write(&folder, "in the way").expect("written");
    let (found, notes) = run();
    assert_eq!(found, loss);
    assert!(notes.contains("note: compiled kernels cannot be cached: cannot write"), "{notes}");
}

pub fn everywhere(place: Place) {
    let place = place.with_own_cache();
    place.run(&["recipe.toml"]);
    fs::remove_dir_all(place.pipelines()).expect("training caches what it compiles");
    let run = |arguments: &[&str]| {
        let output = place.command(arguments).output().expect("the program starts");
        let (stdout, stderr) = texts(&output);
        assert!(output.status.success(), "{arguments:?}\n{stdout}{stderr}");
        stderr
    };
    let prompts = ["--prompt=Hello!", "--temperature=0"];
    let generate = || run(&[&["generate", "tiny", "--adapter=run"][..], &prompts].concat());
    let commands: [(&str, &dyn Fn() -> String); 5] = [
        ("train", &|| run(&["recipe.toml", "--fresh", "--quiet"])),
        ("eval", &|| run(&["eval", "recipe.toml", "--adapter=run"])),
        ("export", &|| run(&["export", "run", "--to=gguf-lora", "--out=exported", "--force"])),
        ("generate", &generate),
        ("chat", &|| talk::chat(&place, &[], "Hello!\n").1),
    ];
    for (name, command) in commands {
        assert_eq!(command(), "", "{name}");
        let written = place.pipelines_written();
        assert_eq!(command(), "", "{name}");
        assert_eq!(place.pipelines_written(), written, "{name} compiled kernels that were cached");
        fs::remove_dir_all(place.pipelines()).expect("removed");
    }
    // A server that is killed has cached the kernels of its first reply.
    serve::one_reply(&place);
    let written = place.pipelines_written();
    serve::one_reply(&place);
    assert_eq!(place.pipelines_written(), written, "serve compiled kernels that were cached");
}
