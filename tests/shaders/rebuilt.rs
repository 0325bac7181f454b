//! The PTX of kernels that are written in CUDA, built again where its compiler is installed: its text cannot be reviewed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version of nvcc whose output the repository has.
const RELEASE: &str = "release 13.0";

/// The compiler: `NVCC`, or nvcc in the `PATH`.
fn nvcc() -> String {
    std::env::var("NVCC").unwrap_or_else(|_| "nvcc".into())
}

/// Why this is ignored here, if it is.
pub fn ignored() -> Option<&'static str> {
    let found = Command::new(nvcc()).arg("--version").output();
    let has = found.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(RELEASE));
    (!has).then_some("needs nvcc 13.0")
}

pub fn the_ptx_is_what_nvcc_makes() {
    let shaders = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
    let folders: Vec<PathBuf> = list(&shaders)
        .into_iter()
        .map(|op| op.join("cuda"))
        .filter(|folder| folder.join("build").exists())
        .collect();
    assert!(!folders.is_empty(), "no folder of {} has a script that builds PTX", shaders.display());
    let root = tempfile::tempdir().expect("a folder");
    let copy_of = |folder: &Path| root.path().join(folder.strip_prefix(&shaders).expect("a folder of them"));
    for folder in folders.iter().chain([&shaders.join("common/cuda")]) {
        fs::create_dir_all(copy_of(folder)).expect("a folder");
        for file in list(folder) {
            fs::copy(&file, copy_of(&file)).expect("copied");
        }
    }
    for folder in folders {
        let copy = copy_of(&folder);
        let status = Command::new("sh").arg(copy.join("build")).status().expect("a shell");
        assert!(status.success(), "{}/build gave {status}", folder.display());
        for committed in list(&folder).iter().filter(|file| file.extension().is_some_and(|e| e == "ptx")) {
            let rebuilt = copy.join(committed.file_name().expect("a name"));
            let same = fs::read(committed).expect("a text") == fs::read(rebuilt).expect("a text");
            assert!(
                same,
                "{} is not what {RELEASE} of nvcc makes of its source: run its build",
                committed.display()
            );
        }
    }
}

fn list(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.expect("an entry").path()).collect()
}
