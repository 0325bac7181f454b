//! Lists of tests: why some are ignored, in a line that sums them up, and how long each took.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use libtest_mimic::{Arguments, Failed, Trial};

/// Kind of a test that takes too long on a software renderer.
pub const SLOW: &str = "slow";
/// Kind of a test where there is no device.
pub const NO_DEVICE: &str = "needs a device";

/// Seconds that each test took.
static TIMES: Mutex<Vec<(f64, String)>> = Mutex::new(Vec::new());

/// A test that is ignored for the reason `ignored`, if there is one.
pub fn trial(
    name: impl Into<String>,
    ignored: Option<&str>,
    run: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let name = name.into();
    let timed = name.clone();
    let run = move || {
        let started = Instant::now();
        let result = run();
        TIMES.lock().expect("no test panics here").push((started.elapsed().as_secs_f64(), timed));
        result
    };
    Trial::test(name, run).with_kind(ignored.unwrap_or_default()).with_ignored_flag(ignored.is_some())
}

/// Runs `trials`, and says how many were ignored for which reason. Returns the status of the process.
pub fn run(arguments: &Arguments, trials: Vec<Trial>) -> std::process::ExitCode {
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for trial in trials.iter().filter(|trial| trial.has_ignored_flag() && !arguments.is_filtered_out(trial)) {
        *reasons.entry(trial.kind().to_owned()).or_default() += 1;
    }
    let conclusion = libtest_mimic::run(arguments, trials);
    let run_ignored = arguments.list || arguments.ignored || arguments.include_ignored;
    if !reasons.is_empty() && !run_ignored {
        let mut counts: Vec<(String, usize)> = reasons.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let counts: Vec<String> =
            counts.iter().map(|(reason, count)| format!("{count} [{reason}]")).collect();
        println!("ignored: {}\n", counts.join(", "));
    }
    write_times();
    conclusion.exit_code()
}

/// Leaves the times where `.ci/run` sorts them.
fn write_times() {
    let program = std::env::current_exe().ok();
    let stem =
        program.as_deref().and_then(Path::file_stem).unwrap_or_default().to_string_lossy().into_owned();
    let name = stem.split('-').next().unwrap_or_default();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("times");
    let times = TIMES.lock().expect("no test panics here");
    let lines: String =
        times.iter().map(|(seconds, test)| format!("{seconds:8.1} s  {name}: {test}\n")).collect();
    // They are for people: a test does not fail without them.
    let _ = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(folder.join(name), lines));
}
