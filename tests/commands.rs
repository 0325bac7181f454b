//! Exports and merges by the program, as far as they need no device. Their logits are compared in `tests/cli`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rullama_train::adapter::lora::Adapter;
use rullama_train::adapter::{Format, read_any};
use rullama_train::base::{Base, GgmlType};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

fn rullama(arguments: &[&str], folder: &Path) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rullama-train"));
    // The loss of merging is measured in tests/verify.rs and tests/cli. This test needs no device.
    let output = command.args(arguments).arg("--unverified").current_dir(folder).output().expect("it starts");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    (output.status.success(), if cfg!(windows) { text.replace('\\', "/") } else { text.into() })
}

#[test]
fn the_command_writes_the_file_and_a_modelfile() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let place = dir.path();
    fs::copy(golden("ollama/model.gguf"), place.join("base.gguf")).expect("copied");
    let adapter = golden("ollama/adapter").display().to_string();
    let merge = ["merge", &adapter, "--base", "base.gguf", "--out", "out/merged.gguf"];
    let (success, text) = rullama(&merge, place);
    assert!(success, "{text}");
    assert_eq!(
        fs::read_to_string(place.join("out/Modelfile")).expect("there"),
        "FROM ./merged.gguf\nTEMPLATE {{ .Prompt }}\nRENDERER gemma4\nPARSER gemma4\nPARAMETER stop \"<turn|>\"\n\
         PARAMETER temperature 1\nPARAMETER top_k 64\nPARAMETER top_p 0.95\n"
    );
    let merged = Base::open(place.join("out/merged.gguf").to_str().expect("UTF-8")).expect("a model");
    let types: Vec<GgmlType> = merged.gguf().tensors().iter().map(|t| t.ty).collect();
    assert!(types.contains(&GgmlType::Q8_0), "{types:?}");
    assert_eq!(fs::read_dir(place.join("out")).expect("readable").count(), 2, "nothing else is left behind");

    // Files that exist are replaced with --force only.
    let before = fs::read(place.join("out/merged.gguf")).expect("there");
    let (success, text) = rullama(&[&merge[..], &["--type", "f16"]].concat(), place);
    assert!(
        !success && text.contains("out/merged.gguf exists; choose another name with --out, or use"),
        "{text}"
    );
    fs::write(place.join("out/Modelfile"), "FROM ./merged.gguf\nSYSTEM mine\n").expect("written");
    fs::remove_file(place.join("out/merged.gguf")).expect("there");
    let (success, text) = rullama(&merge, place);
    assert!(
        !success && text.contains("out/Modelfile exists with other contents; choose another folder"),
        "{text}"
    );
    assert_eq!(fs::read_dir(place.join("out")).expect("readable").count(), 1, "nothing is written");
    let (success, text) = rullama(&[&merge[..], &["--force"]].concat(), place);
    assert!(success, "{text}");
    assert_eq!(fs::read(place.join("out/merged.gguf")).expect("there"), before);
    assert!(!fs::read_to_string(place.join("out/Modelfile")).expect("there").contains("mine"));

    for (arguments, expected) in [
        (
            vec!["merge", &adapter, "--base", "base.gguf", "--out", "./base.gguf"],
            "--out is the base file ./base.gguf; choose another name",
        ),
        (
            vec!["merge", &adapter, "--base", "base.gguf", "--out", "a.gguf", "--type", "iq3_s"],
            "expected one of auto, keep",
        ),
        (vec!["merge", &adapter, "--base", "tiny", "--out", "a.gguf"], "adapter_model.safetensors"),
        (vec!["merge", "nowhere", "--base", "tiny", "--out", "a.gguf"], "nowhere"),
        (vec!["merge", &adapter, "--base", "base.gguf", "--out", "out"], "it is a folder, expected a file"),
    ] {
        let (success, text) = rullama(&arguments, place);
        assert!(!success && text.contains(expected), "{arguments:?}: {text}");
        assert_eq!(text.matches("rror").count(), 1, "one error: {text}");
    }
    assert_eq!(
        fs::read(place.join("base.gguf")).expect("there"),
        fs::read(golden("ollama/model.gguf")).expect("there")
    );
}

#[test]
fn the_program_exports_and_compares() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let export = |adapter: &Path, arguments: &[&str]| {
        let program = env!("CARGO_BIN_EXE_rullama-train");
        // Logits are compared in tests/cli. This test needs no device.
        let output =
            Command::new(program).arg("export").arg(adapter).args(arguments).arg("--unverified").output();
        let output = output.expect("it starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    };
    let (source, base) = (golden("dense/adapter"), golden("dense/model.gguf"));
    let (base, out) = (base.to_str().expect("UTF-8"), dir.path().to_str().expect("UTF-8"));
    let all: Vec<&str> = Format::ALL[..5]
        .iter()
        .flat_map(|f| ["--to", f.name()])
        .chain(["--base", base, "--out", out])
        .collect();
    let shown = export(&source, &all).expect("exported");
    assert!(shown.contains("66 matrix pairs for ") && shown.contains("rank 4, scale 2.0000"), "{shown}");
    assert_eq!(shown.matches("reloaded; logits were not compared").count(), 5, "{shown}");
    // Exporting a folder of PEFT gives the tensors of PEFT, through any intermediate format.
    let tensors = |folder: &Path| fs::read(folder.join("adapter_model.safetensors")).expect("there");
    for format in [Format::PeftConditionalGeneration, Format::GgufLora, Format::Mlx] {
        let (through, again) = (format.place(dir.path()), dir.path().join("again").join(format.name()));
        let again_text = again.to_str().expect("UTF-8");
        export(&through, &["--to", "peft", "--base", base, "--out", again_text]).expect("exported");
        assert!(tensors(&again) == tensors(&source), "PEFT, {format:?}, PEFT changed a tensor");
    }

    // The sum of two halves is one adapter of twice the rank.
    let half = |path: &Path| format!("{}=0.5", path.display());
    let halves = [half(&source), half(&source)];
    let sum = dir.path().join("sum");
    let [first, second] = &halves;
    let arguments = [second, "--to", "gguf-lora", "--base", base, "--out", sum.to_str().expect("UTF-8")];
    let shown = export(first.as_ref(), &arguments).expect("exported");
    assert!(shown.contains("66 matrix pairs for ") && shown.contains("rank 8, scale 1.0000"), "{shown}");
    let dense = Base::open(base).expect("the golden model opens").config().clone();
    let one = read_any(&source, &dense, None).expect("sound");
    let read = read_any(&sum.join("adapter.gguf"), &dense, None).expect("sound");
    assert_eq!(read.pairs, Adapter::combine(&[(&one, 0.5), (&one, 0.5)]).expect("they fit").pairs);

    let cases: [(&Path, &[&str], &str); 6] = [
        (
            first.as_ref(),
            &[second, "--to", "mlx", "--base", base],
            "several adapters need an output folder; use --out DIR",
        ),
        (&source, &["--to", "rullama-v0", "--base", base, "--out", out], "cannot hold inp_gate and proj"),
        (&source, &["--to", "peft", "--base", base], "is an input and would be overwritten"),
        (&source, &["--to", "mlx", "--base", "tiny", "--out", out, "--force"], "does not fit tiny"),
        (&source, &["--to", "mlx", "--out", out, "--force"], "use --base to say where that is"),
        (&source, &["--to", "onnx", "--base", base], "unknown format \"onnx\", expected one of peft, "),
    ];
    for (adapter, arguments, expected) in cases {
        let error = export(adapter, arguments).expect_err(expected);
        assert!(error.contains(expected), "{error}, expected {expected}");
    }
}
