//! Runs on a disk that fails at the n-th call, and on a device that is lost at the n-th submission. Each ends with one error, and the
//! same command resumes to the same bytes.

use super::{Place, texts};

const ARGUMENTS: [&str; 7] = [
    "recipe.toml",
    "--set",
    "train.max_steps=3",
    "--set",
    "output.save_steps=1",
    "--set",
    "output.export=[\"gguf-lora\", \"mlx\"]",
];
/// Files that must have the same bytes whatever failed before.
const SAME: [&str; 5] = [
    "adapter.gguf",
    "mlx/adapters.safetensors",
    "metrics.jsonl",
    "recipe.resolved.toml",
    "checkpoint-3/optimizer.safetensors",
];

/// In the suite: one call of each stretch of a run.
pub fn disk(place: Place) {
    let place = place.with_own_cache();
    for (fault, cause) in [
        ("once:1", "a fault of the disk"),
        ("once:9", "a fault of the disk"),
        ("once:58", "a fault of the disk"),
        ("full:75", "no storage space; free some space, or choose another disk"),
        ("gone:110", "the disk is gone"),
        ("once:150", "a fault of the disk"),
    ] {
        assert!(survives(&place, ("RULLAMA_DISK_FAULT", fault), cause), "{fault} was not reached");
    }
}

/// Run by hand, as it takes minutes: every call.
pub fn disk_every(place: Place) {
    let place = place.with_own_cache();
    for (kind, cause) in
        [("once", "a fault of the disk"), ("full", "no storage space"), ("gone", "the disk is gone")]
    {
        let mut call = 1;
        while survives(&place, ("RULLAMA_DISK_FAULT", &format!("{kind}:{call}")), cause) {
            call += 1;
        }
        println!("{kind}: {} calls", call - 1);
        assert!(call > 100, "{kind}: {call} calls");
    }
}

const LOST: &str =
    "the GPU was lost: the driver gave no reason; open it again and resume from the last checkpoint";

/// In the suite: one submission of each stretch of a run.
pub fn device(place: Place) {
    let place = place.with_own_cache();
    for submission in ["2", "23", "35", "52"] {
        let fault = ("RULLAMA_DEVICE_FAULT", submission);
        assert!(survives(&place, fault, LOST), "{submission} was not reached");
    }
}

/// Run by hand, as it takes minutes: every submission.
pub fn device_every(place: Place) {
    let place = place.with_own_cache();
    let mut submission = 1;
    while survives(&place, ("RULLAMA_DEVICE_FAULT", &submission.to_string()), LOST) {
        submission += 1;
    }
    println!("{} submissions", submission - 1);
    assert!(submission > 40, "{submission} submissions");
}

/// Runs with the fault and then without. Returns false if the fault was not reached.
fn survives(place: &Place, (variable, fault): (&str, &str), cause: &str) -> bool {
    if !place.dir.join("whole").exists() {
        place.run(&ARGUMENTS);
        std::fs::rename(place.dir.join("run"), place.dir.join("whole")).expect("renamed");
    }
    let output = place.command(&ARGUMENTS).env(variable, fault).output().expect("the program starts");
    let (stdout, stderr) = texts(&output);
    let failed = !output.status.success();
    let errors: Vec<&str> = stderr.lines().filter(|line| !line.starts_with("note: ")).collect();
    if failed {
        let is_clear = errors.len() == 1 && errors[0].starts_with("error: ") && errors[0].contains(cause);
        assert!(
            is_clear && output.status.code() == Some(1),
            "{fault}: {}\n{stdout}\n{stderr}",
            output.status
        );
        assert!(!stderr.contains(".unfinished"), "{fault}: a temporary file is named: {stderr}");
    }
    let resumed = place.run(&ARGUMENTS);
    assert!(!resumed.contains("damaged"), "{fault}: {resumed}");
    for file in SAME {
        let [whole, run] = ["whole", "run"].map(|dir| place.read(&format!("{dir}/{file}")));
        assert!(whole == run, "{fault}: {file} differs");
    }
    let leftover = place.names("run").into_iter().find(|name| name.contains(".unfinished"));
    assert_eq!(leftover, None, "{fault}");
    std::fs::remove_dir_all(place.dir.join("run")).expect("removed");
    failed
}
