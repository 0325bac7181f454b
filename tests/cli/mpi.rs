//! Training under an MPI launcher. The tests that start `mpirun` are ignored where it is not installed.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::{Place, texts};

/// A step of four micro-batches, whose shares one, two or four processes compute; the last step of an epoch is short.
const SETTINGS: [&str; 16] = [
    "--set",
    "train.gradient_accumulation_steps=4",
    "--set",
    "train.shares=4",
    "--set",
    "train.max_steps=5",
    "--set",
    "data.packing=false",
    "--set",
    "lora.dropout=0.1",
    "--set",
    "eval.steps=2",
    "--set",
    "output.save_steps=1",
    "--set",
    "data.val_size=3",
];
/// Files that must have the same bytes on any number of processes.
const SAME: [&str; 4] = [
    "adapter_model.safetensors",
    "metrics.jsonl",
    "checkpoint-5/optimizer.safetensors",
    "checkpoint-5/adapter_model.safetensors",
];

/// Whether `mpirun` starts programs here.
pub fn is_installed() -> bool {
    let mut command = Command::new("mpirun");
    launcher_settings(&mut command).args(["-np", "1", "true"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn launcher_settings(command: &mut Command) -> &mut Command {
    for variable in
        ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_mpi_yield_when_idle"]
    {
        command.env(variable, "1");
    }
    // Ranks share cores here, and run on any; without a network.
    command
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
    command
        .env("OMPI_MCA_hwloc_base_binding_policy", "none")
        .env("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
}

/// The program on the ranks of `each`, with the arguments of each.
fn mpirun(place: &Place, each: &[&[&str]]) -> Command {
    let program = place.command(&[]);
    let mut command = Command::new("mpirun");
    command.current_dir(&place.dir).stdin(Stdio::null());
    for (key, value) in program.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    // A launcher may give each process a terminal of its own.
    command.env("NO_COLOR", "1");
    launcher_settings(&mut command);
    for (rank, arguments) in each.iter().enumerate() {
        if rank > 0 {
            command.arg(":");
        }
        command.args(["-np", "1"]).arg(program.get_program()).args(*arguments);
    }
    command
}

fn samples() -> String {
    let sample = |i: usize| {
        let words = ["river", "stone", "cloud", "bread"].repeat(3)[..2 + i % 9].join(" ");
        format!("{{\"prompt\": \"Say {i}: {words}.\", \"completion\": \"{words}, {i}. Ahoy!\"}}\n")
    };
    (0..13).map(sample).collect()
}

fn arguments(more: &[&'static str]) -> Vec<&'static str> {
    [&["recipe.toml"][..], &SETTINGS, more].concat()
}

#[track_caller]
fn assert_same(place: &Place, when: &str) {
    for file in SAME {
        let [one, run] = ["one", "run"].map(|dir| place.read(&format!("{dir}/{file}")));
        assert!(one == run, "{when}: {file} differs");
    }
}

/// Waits until rank 0, which mpirun leaves behind, has ended: it holds the lock of the folder.
fn wait_for_rank_0(place: &Place) {
    let pid = String::from_utf8(place.read("run/.lock")).expect("a number");
    let runs = || {
        let kill = Command::new("kill").args(["-0", &pid]).stderr(Stdio::null()).status();
        kill.expect("kill is there").success()
    };
    let started = Instant::now();
    while runs() {
        assert!(started.elapsed() < Duration::from_secs(120), "rank 0 does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Two processes give the bytes of one. One of them is killed at several moments, and the run is resumed on one and on two.
pub fn two_processes(place: Place) {
    place.write("data.jsonl", samples());
    let all = arguments(&[]);
    place.run(&all);
    std::fs::rename(place.dir.join("run"), place.dir.join("one")).expect("renamed");

    let output = mpirun(&place, &[&all, &all]).output().expect("mpirun starts");
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert_eq!(stdout.lines().filter(|line| line.starts_with("device ")).count(), 1, "one voice: {stdout}");
    assert!(stdout.contains("\nrank 0 ") && stdout.contains("\nrank 1 "), "{stdout}");
    assert_same(&place, "two processes");
    let run: serde_json::Value = serde_json::from_slice(&place.read("run/run.json")).expect("JSON");
    assert_eq!(run["ranks"].as_array().map(Vec::len), Some(2), "{run}");
    assert!(
        run["ranks"][1]["compute_seconds_per_step"].as_f64().is_some_and(|seconds| seconds > 0.0),
        "{run}"
    );
    std::fs::remove_dir_all(place.dir.join("run")).expect("removed");

    for (steps, resumed_on) in [(1, 1), (3, 2)] {
        kill_a_rank(&place, &all, steps);
        wait_for_rank_0(&place);
        match resumed_on {
            1 => drop(place.run(&all)),
            _ => {
                let output = mpirun(&place, &[&all, &all]).output().expect("mpirun starts");
                assert!(output.status.success(), "{:?}", texts(&output));
            }
        }
        assert_same(&place, &format!("killed after step {steps}, resumed on {resumed_on}"));
        std::fs::remove_dir_all(place.dir.join("run")).expect("removed");
    }
}

/// With a teacher: the first process runs it, and two give the bytes of one.
pub fn taught(place: Place) {
    super::distill::prepare(&place);
    let shared = ["train.batch_size=2", "train.gradient_accumulation_steps=2", "train.shares=2"]
        .map(|set| ["--set", set]);
    let all = [&["recipe.toml"][..], &shared.concat()].concat();
    place.run(&all);
    std::fs::rename(place.dir.join("run"), place.dir.join("one")).expect("renamed");
    let output = mpirun(&place, &[&all, &all]).output().expect("mpirun starts");
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert_eq!(
        stdout.matches("before the base is loaded").count(),
        1,
        "one process runs the teacher: {stdout}"
    );
    for file in
        ["teacher.bin", "adapter_model.safetensors", "metrics.jsonl", "checkpoint-3/optimizer.safetensors"]
    {
        assert_eq!(place.read(&format!("run/{file}")), place.read(&format!("one/{file}")), "{file}");
    }
}

/// Kills rank 1 once the run has taken `steps` steps. The other one must end too.
fn kill_a_rank(place: &Place, arguments: &[&str], steps: usize) {
    let mut child = mpirun(place, &[arguments, arguments])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("mpirun starts");
    let began = Instant::now();
    while super::resume::lines(&place.dir.join("run"), "\"event\":\"step\"") < steps {
        assert!(began.elapsed() < Duration::from_secs(300), "no step in five minutes");
        assert!(child.try_wait().expect("a child").is_none(), "it ended before it was killed");
        std::thread::sleep(Duration::from_millis(5));
    }
    let ranks = Command::new("pgrep").args(["-P", &child.id().to_string()]).output().expect("pgrep runs");
    let ranks = String::from_utf8_lossy(&ranks.stdout).into_owned();
    let last = ranks.lines().last().expect("a rank").to_string();
    Command::new("kill").args(["-KILL", &last]).status().expect("killed");
    let killed = Instant::now();
    let status = child.wait().expect("it is gone");
    assert!(!status.success(), "a killed rank is a failure");
    assert!(killed.elapsed() < Duration::from_secs(60), "the others ended after {:?}", killed.elapsed());
}

/// The error of a run that must fail, without what the launcher adds.
#[track_caller]
fn error_of(output: &Output) -> String {
    let (stdout, stderr) = texts(output);
    let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(!output.status.success() && errors.len() == 1, "{stdout}\n{stderr}");
    errors[0].into()
}

/// Ranks that cannot train together are refused, with one message that names a rank and its host.
pub fn refusals(place: Place) {
    place.write("data.jsonl", samples());
    let usual = arguments(&[]);
    let fails = |other: &[&str], expected: &str| {
        let output = mpirun(&place, &[&usual, other]).output().expect("mpirun starts");
        let error = error_of(&output);
        assert!(error.contains(expected) && error.contains("rank "), "{error}\nexpected {expected}");
        assert!(!place.dir.join("run/run.json").exists(), "{expected}: the run has started");
    };
    fails(&arguments(&["--set", "train.seed=7"]), "have different recipes: train.seed is 42 and 7");
    fails(&["elsewhere.toml"], "elsewhere.toml");
    let three = [&usual[..], &usual, &usual];
    let error = error_of(&mpirun(&place, &three).output().expect("mpirun starts"));
    assert!(
        error.contains("have 4 shares (train.shares), which 3 does not divide; start 1, 2 or 4 processes"),
        "{error}"
    );
    let short = ["recipe.toml"];
    let error = error_of(&mpirun(&place, &[&short, &short]).output().expect("mpirun starts"));
    assert!(
        error.contains("2 processes were started, but a step has train.gradient_accumulation_steps = 1"),
        "{error}"
    );
}

/// Without a library that can be used, and with commands that take one process. No launcher is needed to see it.
pub fn libraries(place: Place) {
    let fails = |arguments: &[&str], variables: &[(&str, &str)], expected: &str| {
        let mut command = place.command(arguments);
        command.envs(variables.iter().copied());
        let error = error_of(&command.output().expect("the program starts"));
        assert!(error.contains(expected), "{error}\nexpected {expected}");
    };
    let started = ("OMPI_COMM_WORLD_SIZE", "2");
    fails(
        &["recipe.toml"],
        &[started, ("RULLAMA_MPI", "/nowhere/libmpi.so")],
        "RULLAMA_MPI names /nowhere/libmpi.so, which cannot be loaded",
    );
    if cfg!(target_os = "linux") {
        let other = "libm.so.6 is neither Open MPI 4 or 5 nor a library with the standard ABI of MPI 5.0";
        fails(&["recipe.toml"], &[started, ("RULLAMA_MPI", "libm.so.6")], other);
    }
    fails(&["check", "recipe.toml"], &[started], "`check` runs in one process, but a launcher started 2");
    fails(&["recipe.toml"], &[("SLURM_STEP_NUM_TASKS", "4")], "srun started 4 tasks without MPI");
}
