//! The self-test of a device at its first use, and what it remembers.

use std::fs;
use std::path::PathBuf;

use pollster::block_on;
use rullama_train::gpu::{Gpu, GpuOptions};
use serde_json::{Value as Json, json};

use super::{Place, texts};

/// A command that opens the device, with its self-test.
fn command(place: &Place, kernels: &str) -> std::process::Command {
    let arguments =
        ["bench", "tiny", "--sequence=8", "--steps=1", "--rank=2", "--json", "--kernels", kernels];
    let mut command = place.command(&arguments);
    command.env_remove("RULLAMA_SELF_TEST");
    command
}

/// The file that remembers the result.
fn remembered(place: &Place) -> PathBuf {
    let folder = place.cache.join("rullama-train/self-test");
    let mut files = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let file = files.next().expect("a file of the device");
    assert_eq!(files.next(), None, "one device, one file");
    file
}

pub fn first_use(place: Place) {
    let place = place.with_own_cache();
    let run = |kernels: &str| {
        let output = command(&place, kernels).output().expect("the program starts");
        let (stdout, stderr) = texts(&output);
        (output.status.code(), stdout, stderr)
    };
    let (status, stdout, stderr) = run("auto");
    assert_eq!((status, stderr.as_str()), (Some(0), ""), "{stdout}");
    let file = remembered(&place);
    let sound = fs::read(&file).expect("read");
    let verdict: Json = serde_json::from_slice(&sound).expect("JSON");
    assert_eq!(verdict["failed"], json!({}), "{verdict}");

    // A variant that failed once is turned off without another test.
    let gpu = block_on(Gpu::open(GpuOptions::default())).expect("a device");
    let all: Vec<String> = gpu.all_kernels().iter().map(ToString::to_string).collect();
    let failing = |count: usize| {
        let failed: serde_json::Map<String, Json> =
            all[..count].iter().map(|name| (name.clone(), json!("attention: planted"))).collect();
        let verdict = json!({ "device": "planted", "failed": failed });
        fs::write(&file, verdict.to_string()).expect("written");
    };
    let name = gpu.device_name();
    if all.len() > 1 {
        failing(1);
        let (status, _, stderr) = run("auto");
        assert_eq!(status, Some(0), "{stderr}");
        let note = format!(
            "note: {} kernels failed the self-test on {name} (attention: planted); using {}\n",
            all[0], all[1]
        );
        assert_eq!(stderr, note);
    }
    failing(all.len());
    let (status, stdout, stderr) = run("auto");
    assert_eq!((status, stdout.as_str()), (Some(1), ""));
    let error = format!(
        "error: {name} computes wrongly even with plain f32 kernels: attention: planted. Update its driver or choose another GPU \
         (device.gpu, --gpu), and please report it with what `rullama-train selftest` prints\n"
    );
    assert_eq!(stderr, error);

    // A damaged file is made again.
    fs::write(&file, "{").expect("written");
    assert_eq!(run("auto").0, Some(0));
    assert_eq!(fs::read(&file).expect("read"), sound);
}
