//! Other programs load the exports, and their results agree with ours.
//!
//! Ignored unless `RULLAMA_CONSUMERS` names a virtual environment with these programs. `tests/consumers/run` creates one and runs
//! the tests.

mod base_file;
mod cases;
#[path = "../common/golden.rs"]
mod golden;
#[path = "../common/gpu.rs"]
mod gpu;
#[path = "../common/tool_base.rs"]
mod tool_base;
mod work;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;

use gpu::trials;
use libtest_mimic::{Arguments, Failed};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the package lies in crates/");
    std::env::set_current_dir(root).expect("the repository");
    arguments.test_threads = Some(1);
    gpu::quiet_mesa();
    let venv = std::env::var_os("RULLAMA_CONSUMERS").map(PathBuf::from);
    type Check = fn(&Path) -> Result<(), Failed>;
    let trial = |(name, check): (&str, Check)| {
        let venv = venv.clone();
        let test = move || check(&venv.expect("ignored without it"));
        let ignored = std::env::var_os("RULLAMA_CONSUMERS").is_none().then_some("needs RULLAMA_CONSUMERS");
        trials::trial(name, ignored, test)
    };
    let trials: [(&str, Check); 4] = [
        ("llama.cpp agrees", |venv| {
            check(venv, "check_llama_cpp.py")?;
            // Our speed, to compare with llama.cpp's. It is not checked, as it depends on the machine.
            let bench = ["bench", "tiny", "--decode", "64", "--sequence", "64"];
            Command::new(env!("CARGO_BIN_EXE_rullama-train")).args(bench).status()?;
            Ok(())
        }),
        ("PEFT agrees", |venv| check(venv, "check_peft.py")),
        ("mlx-lm agrees", |venv| check(venv, "check_mlx.py")),
        ("OpenAI's client works with serve", openai_client),
    ];
    trials::run(&arguments, trials.map(trial).into())
}

/// Runs a script on all exports, also after one that it finds wrong. It prints its results on the terminal.
fn check(venv: &Path, script: &str) -> Result<(), Failed> {
    static FOLDERS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let wrong: Vec<String> = FOLDERS
        .get_or_init(cases::prepare)
        .iter()
        .filter_map(|folder| python(venv, script, &[folder]).err())
        .map(|failed| failed.message().unwrap_or("no reason is given").to_string())
        .collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

/// Runs OpenAI's client against `serve`, with an adapter that calls functions.
fn openai_client(venv: &Path) -> Result<(), Failed> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("openai_client");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)?;
    tool_base::write(&folder);
    let program = Path::new(env!("CARGO_BIN_EXE_rullama-train"));
    let trained = Command::new(program).arg("looks.toml").arg("--quiet").current_dir(&folder).status()?;
    assert!(trained.success(), "training failed");
    python(venv, "check_openai.py", &[program, &folder])
}

fn python(venv: &Path, script: &str, arguments: &[&Path]) -> Result<(), Failed> {
    let python = ["bin/python", "Scripts/python.exe"].map(|p| venv.join(p)).into_iter().find(|p| p.exists());
    let python = python.ok_or_else(|| format!("{} has no python", venv.display()))?;
    let script = Path::new("tests/consumers").join(script);
    let status =
        Command::new(python).arg("-u").arg(&script).args(arguments).env("HF_HUB_OFFLINE", "1").status()?;
    let last = arguments.last().map_or_else(String::new, |path| path.display().to_string());
    if status.success() { Ok(()) } else { Err(format!("{} {last}: {status}", script.display()).into()) }
}
