//! `merge --ollama` and `output.ollama`, against a stand-in for `ollama` that records and checks the calls.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::{Place, matches, texts};

/// Answers like `ollama` 0.34. `fails` names a command that fails, `models` holds the rows of `ollama list`.
const STAND_IN: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit 9
here=$(pwd)
cd "$OLDPWD" || exit 9
echo "$*" >> "$here/calls"
if [ "$(cat "$here/fails" 2>/dev/null)" = "$1" ]; then
    echo "Error: could not connect to ollama server, run 'ollama serve' to start it" >&2
    exit 1
fi
case "$1" in
list)
    echo "NAME               ID              SIZE      MODIFIED"
    [ ! -e "$here/models" ] || cat "$here/models"
    ;;
create)
    [ $# = 4 ] && [ "$3" = -f ] || { echo "Error: usage" >&2; exit 1; }
    grep -Evq '^(FROM|TEMPLATE|RENDERER|PARSER|PARAMETER (stop|temperature|top_k|top_p)) ' "$4" && { echo "Error: unknown line" >&2; exit 1; }
    file=$(dirname "$4")/$(sed -n 's/^FROM //p' "$4")
    [ "$(head -c 4 "$file")" = GGUF ] || { echo "Error: no model" >&2; exit 1; }
    echo "$2:latest   0123456789ab    4.5 MB    now" >> "$here/models"
    echo "success" >&2
    ;;
*) echo "Error: unknown command" >&2; exit 1 ;;
esac
"#;

/// `place`, with the stand-in in `bin`.
fn install(place: &Place) {
    place.write("bin/ollama", STAND_IN);
    let path = place.dir.join("bin/ollama");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("ours");
}

fn command(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.command(arguments);
    command.env("PATH", format!("{}:/usr/bin:/bin", place.dir.join("bin").display()));
    command
}

/// Runs the program, and returns whether it succeeded and what it printed.
fn run(place: &Place, arguments: &[&str]) -> (bool, String) {
    let output = command(place, arguments).output().expect("the program starts");
    let (stdout, stderr) = texts(&output);
    (output.status.success(), stdout + &stderr)
}

/// The calls since the last time.
fn calls(place: &Place) -> String {
    let path = place.dir.join("bin/calls");
    let calls = std::fs::read_to_string(&path).unwrap_or_default();
    let _ = std::fs::remove_file(path);
    calls
}

fn base_and_adapter() -> [String; 2] {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/ollama");
    [format!("{golden}/model.gguf"), format!("{golden}/adapter")]
}

pub fn merge(place: Place) {
    install(&place);
    let [base, adapter] = base_and_adapter();
    let merge = ["merge", &adapter, "--base", &base, "--unverified"];
    let with = |more: &[&'static str]| [&merge[..], more].concat();

    let (success, text) = run(&place, &with(&["--ollama", "me/pirate:v2"]));
    assert!(
        success && text.contains("ollama     created me/pirate:v2\nnext       ollama run me/pirate:v2\n"),
        "{text}"
    );
    assert_eq!(calls(&place), "list\ncreate me/pirate:v2 -f pirate-v2/Modelfile\n");
    assert_eq!(place.names("pirate-v2"), ["Modelfile", "pirate-v2.gguf"]);

    // Everything that cannot work is refused before anything is written or created.
    place.write("bin/models", "Library/Pirate:latest   0123456789ab    4.5 MB    now\n");
    let refused = |arguments: &[&'static str], expected: &str, expected_calls: &str| {
        let before = place.contents();
        let (success, text) = run(&place, &with(arguments));
        assert!(!success && matches(&text, expected), "{arguments:?}: {text}");
        assert_eq!(calls(&place), expected_calls, "{arguments:?}");
        assert!(before == place.contents(), "{arguments:?} left {:?}", place.contents().keys());
    };
    refused(
        &["--ollama", "pirate", "--out", "a/a.gguf"],
        "error: --ollama pirate: Ollama already has this model; choose another name, or use --force to replace it\n",
        "list\n",
    );
    refused(
        &["--ollama", "my pirate", "--out", "a/a.gguf"],
        "error: --ollama \"my pirate\" is not a name in Ollama's form [host/][namespace/]model[:tag]; use …\n",
        "",
    );
    refused(
        &["--ollama", "me/pirate:v2"],
        "error: pirate-v2/pirate-v2.gguf exists; choose another name with --out, or use --force to replace it\n",
        "",
    );
    place.write("bin/fails", "list");
    refused(
        &["--ollama", "new", "--out", "a/a.gguf"],
        "error: --ollama new: Ollama's server does not answer (could not connect to ollama server, run 'ollama serve' to \
         start it); start it with `ollama serve` or from its app, or remove --ollama\n",
        "list\n",
    );

    // A failure of the last step leaves the merged file and says how to repeat the step.
    place.write("bin/fails", "create");
    let (success, text) = run(&place, &with(&["--ollama", "pirate", "--out", "a b/a.gguf", "--force"]));
    assert!(!success, "{text}");
    let error = "error: `ollama create pirate -f 'a b/Modelfile'` failed: could not connect to ollama server, …; the merged \
                 file and its Modelfile are written, …\n";
    assert!(text.lines().any(|line| matches(&format!("{line}\n"), error)), "{text}");
    assert_eq!(place.names("a b"), ["Modelfile", "a.gguf"]);
    assert_eq!(calls(&place), "list\ncreate pirate -f a b/Modelfile\n");

    place.write("bin/fails", "");
    let (success, text) = run(&place, &with(&["--ollama", "pirate", "--out", "a b/a.gguf", "--force"]));
    assert!(success && text.contains("created pirate"), "{text}");
}

/// From a table of questions and answers to a model in Ollama, by the commands that each step prints.
pub fn evening(place: Place) {
    install(&place);
    place.stored_tiny("gemma4/e2b");
    let rows: Vec<String> =
        (1..=12).map(|n| format!("What is {n} plus {n}?;{n} plus {n} is {}. Ahoy!", 2 * n)).collect();
    place.write("sums.csv", format!("\u{feff}question;answer\r\n{}\r\n", rows.join("\r\n")));
    let (success, text) = run(&place, &["init", "sums.toml", "--base", "gemma4:e2b", "--data", "sums.csv"]);
    assert!(success && text.contains("table, 12 prompt_completion"), "{text}");
    let commands = |text: &str, label: &str| -> Vec<Vec<String>> {
        let from = text.lines().skip_while(|line| !line.starts_with(label));
        from.map(|line| line[11..].split(' ').map(String::from).collect()).collect()
    };
    let next = commands(&text, "next");
    assert_eq!(next.last().expect("commands").join(" "), "ollama run sums");
    for command in next.iter().filter(|command| command[0] == "rullama-train") {
        let mut arguments: Vec<&str> = command[1..].iter().map(String::as_str).collect();
        if arguments == ["sums.toml"] {
            arguments.extend(["--set", "train.max_steps=2"]);
        }
        let (success, text) = run(&place, &arguments);
        assert!(success, "{command:?}\n{text}");
        // The same commands as at the start, with what they need.
        let merge = "rullama-train merge runs/sums --base gemma4:e2b --ollama sums";
        assert!(arguments[0] != "sums.toml" || text.contains(merge), "{text}");
    }
    assert_eq!(calls(&place), "list\ncreate sums -f sums/Modelfile\n");
}

/// The Modelfile of a model in Ollama's store keeps its template, system message and parameters. That of a file has a template
/// that writes what the file's own writes.
pub fn modelfile(place: Place) {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/qwen3");
    let (file, adapter) = (format!("{golden}/model.gguf"), format!("{golden}/adapter"));
    let template = "{{ range .Messages }}{{ .Role }}: {{ .Content }}\n{{ end }}";
    let layers = [
        ("model", std::fs::read(&file).expect("the golden model")),
        ("template", template.into()),
        ("system", "Be brief.".into()),
        ("params", r#"{"stop": ["<|im_start|>", "<|im_end|>"], "temperature": 0.5, "num_ctx": 4096}"#.into()),
    ];
    let described = layers.iter().zip(1..).map(|((kind, bytes), number)| {
        let digest = number.to_string().repeat(64);
        place.write(&format!("store/blobs/sha256-{digest}"), bytes);
        let kind = format!("application/vnd.ollama.image.{kind}");
        serde_json::json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes.len() })
    });
    let manifest = serde_json::json!({ "layers": described.collect::<Vec<_>>() });
    place.write("store/manifests/registry.ollama.ai/library/small/latest", manifest.to_string());

    place.run(&["merge", &adapter, "--base", "small", "--unverified", "--out", "a/a.gguf"]);
    let expected = format!(
        "FROM ./a.gguf\nTEMPLATE \"\"\"{template}\"\"\"\nSYSTEM \"\"\"Be brief.\"\"\"\nPARAMETER stop \"<|im_start|>\"\n\
         PARAMETER stop \"<|im_end|>\"\nPARAMETER temperature 0.5\nPARAMETER num_ctx 4096\n"
    );
    assert_eq!(String::from_utf8_lossy(&place.read("a/Modelfile")), expected);

    place.run(&["merge", &adapter, "--base", &file, "--unverified", "--out", "b/b.gguf"]);
    let expected = "FROM ./b.gguf\nTEMPLATE \"\"\"{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}\
                    <|im_start|>assistant\n\"\"\"\nPARAMETER stop \"<|im_end|>\"\nPARAMETER temperature 0.6\nPARAMETER top_k 20\n\
                    PARAMETER top_p 0.95\n";
    assert_eq!(String::from_utf8_lossy(&place.read("b/Modelfile")), expected);
}

pub fn not_installed(place: Place) {
    let [base, adapter] = base_and_adapter();
    let mut command =
        place.command(&["merge", &adapter, "--base", &base, "--unverified", "--ollama", "pirate"]);
    let output = command.env("PATH", place.dir.join("bin")).output().expect("the program starts");
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{stderr}");
    let expected =
        "ollama     not installed here; where it is, run: ollama create pirate -f pirate/Modelfile\n";
    assert!(stdout.ends_with(expected), "{stdout}");
}

pub fn after_training(place: Place) {
    install(&place);
    let named = ["recipe.toml", "--set", "output.ollama=pirate"];
    let (success, text) = run(&place, &named);
    assert!(success && text.ends_with("created pirate\nnext       ollama run pirate\n"), "{text}");
    assert_eq!(calls(&place), "list\ncreate pirate -f run/Modelfile\n");
    assert!(place.names("run").contains(&"pirate.gguf".into()));

    // Before the first step, and with nothing lost.
    let before = place.contents();
    let (success, text) = run(&place, &[&named[..], &["--fresh", "--set", "output.dir=other"]].concat());
    let error = "error: output.ollama pirate: Ollama already has this model; choose another name, or remove it with \
                 `ollama rm pirate`\n";
    assert!(!success && text.ends_with(error), "{text}");
    assert_eq!(calls(&place), "list\n");
    let after = place.contents();
    assert!(before == after, "{:?}", after.keys());
    let mistake = ["recipe.toml", "--set", "output.ollama='my pirate'"];
    place.refused(
        &mistake,
        "--set output.ollama='my pirate': output.ollama: \"my pirate\" is not a name in Ollama's form …",
    );
}
