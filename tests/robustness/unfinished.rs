//! Temporary files and folders that a killed process left, and errors about them.

use std::fs;
use std::path::Path;

use rullama_train::files::faults::{self, Fault};
use rullama_train::files::{self, check_folder};

#[test]
fn files_and_folders_of_killed_processes_are_removed_and_those_of_others_stay() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let place = |name: &str| dir.path().join(name);
    let live = files::near(dir.path()).expect("created");
    // Nobody holds the lock of a killed process.
    let left = |name: &str| place(&format!(".unfinished-rullama-train-{name}"));
    for name in ["a.lock", "b.lock", "c.lock", "file"] {
        fs::write(left(name), "").expect("written");
    }
    for folder in [left("a"), left("b"), left("c"), place(".unfinished-novel"), place("d")] {
        fs::create_dir(&folder).expect("created");
        fs::write(folder.join("file"), "x").expect("written");
    }
    // Two files of a folder were being exchanged, and one of another was.
    for (path, contents) in [
        (left("b").join("earlier-weights"), "earlier"),
        (left("b").join("earlier-config"), "earlier"),
        (left("c").join("earlier-tokens"), "earlier"),
        (place("weights"), "new"),
        (place("tokens"), "new"),
    ] {
        fs::write(path, contents).expect("written");
    }
    let next = files::beside(&place("merged.gguf")).expect("created");
    for name in ["a", "a.lock", "b", "b.lock", "c", "c.lock", "file"] {
        assert!(!left(name).exists(), "{name}");
    }
    for (name, contents) in [("weights", "earlier"), ("config", "earlier"), ("tokens", "new")] {
        assert_eq!(fs::read_to_string(place(name)).expect("there"), contents, "{name}");
    }
    for path in [live.path(), next.path(), &place(".unfinished-novel"), &place("d")] {
        assert!(path.exists(), "{}", path.display());
    }
    let place = next.path().to_owned();
    drop(next);
    assert!(live.path().exists() && !place.exists());
}

#[test]
fn a_folder_that_cannot_be_written_is_named_with_the_cause() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    faults::set(Some(Fault::Once(1)));
    let error = check_folder(dir.path()).expect_err("a fault").to_string();
    faults::set(None);
    let name = dir.path().display();
    assert_eq!(error, format!("cannot write {name}: a fault of the disk; check the disk and try again"));
    if cfg!(target_os = "linux") {
        let error = check_folder(Path::new("/proc/run")).expect_err("no folder for files").to_string();
        let cause = "No such file or directory (os error 2)";
        assert_eq!(error, format!("cannot write /proc/run: {cause}; check the disk and try again"));
    }
}
