//! Models and data sets in the stores of other programs, and on the Hugging Face Hub, played by a small server.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::describe::has_lines;
use super::hub_server::{COMMIT, Hub, sha256};
use super::{DATA, Place, matches, texts};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf");
const REPO: &str = "models/org/tiny-GGUF/tiny-Q4_K_M.gguf";
const NAME: &str = "hf:org/tiny-GGUF:Q4_K_M";

fn tiny() -> Vec<u8> {
    std::fs::read(TINY).expect("the tiny model")
}

/// A Hub with the tiny model in two types.
fn hub() -> Hub {
    let hub = Hub::start();
    hub.set(|it| {
        it.files.insert(REPO.into(), tiny());
        it.files.insert("models/org/tiny-GGUF/tiny-Q8_0.gguf".into(), vec![0; 100]);
        it.files.insert("models/org/tiny-GGUF/mmproj-F16.gguf".into(), vec![0; 100]);
    });
    hub
}

/// The program with the cache `hub` of the place, and with this Hub.
fn command(place: &Place, hub: &Hub, arguments: &[&str]) -> Command {
    let mut command = place.command(arguments);
    command.env("HF_ENDPOINT", &hub.address).env("HF_HOME", place.dir.join("hf")).env("NO_PROXY", "*");
    command
}

#[track_caller]
fn run(place: &Place, hub: &Hub, arguments: &[&str]) -> String {
    let output = command(place, hub, arguments).output().expect("the program starts");
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{arguments:?}\n{stdout}\n{stderr}");
    stdout
}

#[track_caller]
fn fails(mut command: Command, expected: &str) {
    let output = command.output().expect("the program starts");
    let (stdout, stderr) = texts(&output);
    let error = stderr.strip_prefix("error: ").unwrap_or_default().trim_end();
    assert!(
        !output.status.success() && matches(error, expected),
        "expected {expected}\nfound {stdout}\n{stderr}"
    );
}

/// The snapshot of the Hugging Face cache that `fill` writes.
fn snapshot() -> String {
    format!("hf/hub/models--org--repo/snapshots/{COMMIT}")
}

/// Puts the tiny model into every store, with what a store may have besides.
fn fill(place: &Place) {
    let tiny = tiny();
    place.stored_tiny("gemma4/e2b");
    let snapshot = snapshot();
    place.write("hf/hub/models--org--repo/refs/main", COMMIT);
    place.write(&format!("{snapshot}/a-Q4_K_M.gguf"), &tiny);
    place.write(&format!("{snapshot}/mmproj.gguf"), b"GGUF");
    place.write(&format!("{snapshot}/b-00001-of-00002.gguf"), b"GGUF"); // a part is missing
    place.write(".lmstudio/models/pub/repo/b-Q4_K_M.gguf", &tiny);
    place.write(".local/share/Jan/data/llamacpp/models/org/c/model.gguf", &tiny);
    place.write(
        ".local/share/Jan/data/llamacpp/models/org/c/model.yml",
        "model_path: llamacpp/models/org/c/model.gguf\n",
    );
    place.write("llama/d.gguf", &tiny);
    place.write("own/e/f.gguf", &tiny);
    #[cfg(unix)]
    std::os::unix::fs::symlink(place.dir.join("own/e/f.gguf"), place.dir.join("own/g.gguf")).expect("a link");
}

/// Runs the program where `fill` put the stores.
fn stocked(place: &Place, arguments: &[&str]) -> String {
    let mut command = place.command(arguments);
    command.env("HF_HOME", "hf").env("LLAMA_CACHE", "llama").env("RULLAMA_MODELS", "own");
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", texts(&output).1);
    texts(&output).0
}

const NAMES: [&str; 7] = [
    "tiny",
    "gemma4:e2b",
    "hf:org/repo:Q4_K_M",
    "lmstudio:pub/repo/b-Q4_K_M",
    "jan:org/c",
    "llama.cpp:d",
    "models:e/f",
];

/// Every store's model is listed once, by a name that other commands take.
pub fn stores(place: Place) {
    fill(&place);
    let with = |arguments: &[&str]| stocked(&place, arguments);
    let json: Json = serde_json::from_str(&with(&["models", "--json"])).expect("JSON");
    let models = json["models"].as_array().expect("a list");
    let names: Vec<&str> = models.iter().filter_map(|model| model["model"].as_str()).collect();
    if cfg!(target_os = "linux") {
        assert_eq!(names, NAMES);
        assert!(
            models.iter().all(|model| model["architecture"] == "gemma4" && model["type"] == "Q4_K_M"),
            "{json}"
        );
        has_lines(
            &with(&["models"]),
            &["Hugging Face, hf/hub", "hf:org/repo:Q4_K_M … gemma4 Q4_K_M, trains…: 4 layers, …"],
        );
    }
    for name in &names {
        has_lines(&with(&["inspect", name]), &[&format!("model      {name}"), "training   possible on …"]);
    }
    has_lines(&with(&["inspect", "org/repo:Q4_K_M"]), &["model      org/repo:Q4_K_M"]);
    let output =
        place.command(&["inspect", "models:x"]).env("RULLAMA_MODELS", "own").output().expect("it starts");
    let expected =
        "error: models:x: RULLAMA_MODELS has no such model in own, but 2 others; did you mean models:…? …\n";
    assert!(matches(&texts(&output).1, expected), "{}", texts(&output).1);
    assert_eq!(
        place.names(&snapshot()),
        ["a-Q4_K_M.gguf", "b-00001-of-00002.gguf", "mmproj.gguf"],
        "nothing is copied"
    );
}

/// A model of every store is trained by its name, where it lies.
#[cfg(target_os = "linux")]
pub fn trained_by_name(place: Place) {
    fill(&place);
    let models =
        || place.contents().into_keys().filter(|path| path.extension().is_some_and(|e| e == "gguf")).count();
    let before = models();
    let adapter = |name: &str| {
        let base = format!("model.base={name}");
        stocked(&place, &["recipe.toml", "--fresh", "--set", &base]);
        place.read("run/adapter_model.safetensors")
    };
    let expected = adapter(NAMES[0]);
    for name in &NAMES[1..] {
        assert_eq!(adapter(name), expected, "{name}");
    }
    assert_eq!(models(), before, "nothing is copied");
}

/// A model is downloaded when it is named, and never again.
pub fn model(place: Place) {
    let hub = hub();
    let digest = sha256(&tiny());
    place.refused(&["inspect", NAME, "--ids"], "--ids and --first are for samples; leave them out");
    let text = run(&place, &hub, &["pull", NAME]);
    has_lines(
        &text,
        &[
            &format!("revision   {COMMIT}"),
            "file       …/tiny-Q4_K_M.gguf",
            "next       rullama-train init --base hf:…",
        ],
    );
    let folder = "hf/hub/models--org--tiny-GGUF";
    assert_eq!(place.read(&format!("{folder}/refs/main")), COMMIT.as_bytes());
    assert_eq!(place.read(&format!("{folder}/snapshots/{COMMIT}/tiny-Q4_K_M.gguf")), tiny());
    assert_eq!(place.read(&format!("{folder}/blobs/{digest}")), tiny());
    assert_eq!(hub.requests().len(), 3, "the list, the file, and its other address");
    // From now on without the Hub.
    for name in
        [NAME, "hf:org/tiny-GGUF", &format!("hf:org/tiny-GGUF@{COMMIT}:q4_k_m"), "-hf org/tiny-GGUF:Q4_K_M"]
    {
        has_lines(&run(&place, &hub, &["inspect", "--", name]), &["training   possible on …"]);
    }
    assert_eq!(hub.requests(), Vec::<String>::new());
    let json: Json = serde_json::from_str(&run(&place, &hub, &["pull", NAME, "--json"])).expect("JSON");
    assert_eq!((&json["revision"], &json["files"][0]["sha256"]), (&COMMIT.into(), &digest.into()));
    assert_eq!(hub.requests().len(), 1, "the list alone");
    let mut offline = command(&place, &hub, &["pull", NAME]);
    let output = offline.env("HF_HUB_OFFLINE", "1").output().expect("it starts");
    has_lines(&texts(&output).0, &["notice     HF_HUB_OFFLINE is set, …; the cached files are used"]);
    assert_eq!(hub.requests(), Vec::<String>::new());
    // Mistakes.
    fails(
        command(&place, &hub, &["pull", "hf:org/tiny-GGUF:Q2_K"]),
        "hf:org/tiny-GGUF:Q2_K has no model of type Q2_K; it has tiny-Q4_K_M.gguf, tiny-Q8_0.gguf",
    );
    fails(
        command(&place, &hub, &["inspect", "hf:org/none:Q4_K_M"]),
        "hf:org/none:Q4_K_M: org/none does not exist; check its name on …",
    );
    fails(
        command(&place, &hub, &["pull", "hf:org/tiny-GGUF@v9:Q8_0"]),
        "org/tiny-GGUF has no such revision; look at …",
    );
    fails(
        command(&place, &hub, &["pull", "hf:org"]),
        "hf:org is not a name of the Hugging Face Hub; write hf:ORG/REPO:TYPE …",
    );
}

/// Connections that break, limits, tokens, servers that send something else, and disks that are full.
pub fn trouble(place: Place) {
    let hub = hub();
    let blob = format!("hf/hub/models--org--tiny-GGUF/blobs/{}", sha256(&tiny()));
    let part = format!("{blob}.incomplete");
    let again = || std::fs::remove_dir_all(place.dir.join("hf")).expect("it was there");
    // Three connections break, and the fourth has the rest.
    hub.set(|it| it.breaks_after = Some(tiny().len() / 3 - 1));
    run(&place, &hub, &["pull", NAME]);
    assert_eq!(place.read(&blob), tiny());
    assert_eq!(hub.requests().iter().filter(|request| request.contains("/cdn/")).count(), 4);
    again();
    // Ranges are not understood: every attempt starts again, and none ends.
    hub.set(|it| it.no_ranges = true);
    hub.set(|it| it.breaks_after = None);
    place.write(&part, &tiny()[..1000]);
    run(&place, &hub, &["pull", NAME]);
    assert_eq!(place.read(&blob), tiny());
    hub.set(|it| it.no_ranges = false);
    again();
    // What an earlier program left is no part of this file.
    place.write(&part, vec![7; 1000]);
    fails(
        command(&place, &hub, &["pull", NAME]),
        "tiny-Q4_K_M.gguf of org/tiny-GGUF arrived with the SHA-256 …; it was removed, download it again",
    );
    run(&place, &hub, &["pull", NAME]);
    assert_eq!(place.read(&blob), tiny());
    again();
    hub.set(|it| it.changed = true);
    fails(
        command(&place, &hub, &["pull", NAME]),
        "tiny-Q4_K_M.gguf of org/tiny-GGUF arrived with the SHA-256 …",
    );
    assert!(!place.dir.join(&blob).exists());
    hub.set(|it| it.changed = false);
    // A limit that ends, and one that does not.
    hub.set(|it| it.limited = 2);
    run(&place, &hub, &["pull", NAME]);
    hub.set(|it| (it.limited, it.wait) = (1, 9999));
    let output = command(&place, &hub, &["pull", NAME]).output().expect("it starts");
    has_lines(
        &texts(&output).0,
        &["notice     … limits requests (429); try again in 9999 s, …; the cached files are used"],
    );
    again();
    hub.set(|it| (it.limited, it.wait) = (1, 9999));
    fails(
        command(&place, &hub, &["pull", NAME]),
        "hf:org/tiny-GGUF:Q4_K_M: … limits requests (429); try again in 9999 s, or set HF_TOKEN, …",
    );
    hub.set(|it| (it.limited, it.wait) = (0, 0));
    // A gated repository.
    hub.set(|it| it.token = Some("secret".into()));
    fails(
        command(&place, &hub, &["pull", NAME]),
        "org/tiny-GGUF is gated; ask for access on …/org/tiny-GGUF, then set HF_TOKEN …",
    );
    let mut wrong = command(&place, &hub, &["pull", NAME]);
    wrong.env("HF_TOKEN", "other");
    fails(wrong, "org/tiny-GGUF is gated, and the token may not read it; …");
    place.write("hf/token", "secret\n");
    run(&place, &hub, &["pull", NAME]);
    again();
    hub.set(|it| it.token = None);
    // A full disk.
    let mut full = command(&place, &hub, &["pull", NAME]);
    full.env("RULLAMA_DISK_FAULT", "full:8");
    fails(full, "cannot write …: no storage space; free some space, or choose another disk");
    run(&place, &hub, &["pull", NAME]);
    assert_eq!(place.read(&blob), tiny());
    again();
    // Nobody there.
    let nowhere = Hub { address: "http://127.0.0.1:1".into(), behaviour: Default::default() };
    let mut offline = command(&place, &nowhere, &["inspect", NAME]);
    offline.env("HF_HUB_OFFLINE", "1");
    fails(
        offline,
        "hf:org/tiny-GGUF:Q4_K_M: … HF_HUB_OFFLINE is set, so nothing is downloaded; unset it to connect",
    );
}

/// A download that is killed at ten moments is continued, and ends with the right bytes.
pub fn killed(place: Place) {
    let (hub, whole) = (hub(), tiny());
    let blob = format!("hf/hub/models--org--tiny-GGUF/blobs/{}", sha256(&whole));
    let part = place.dir.join(format!("{blob}.incomplete"));
    for moment in 1..=10 {
        let at = whole.len() * moment / 11;
        hub.set(|it| it.stalls_at = Some(at));
        let mut child = command(&place, &hub, &["pull", NAME]).spawn().expect("it starts");
        let begin = Instant::now();
        while part.metadata().map_or(0, |part| part.len()) < at as u64 {
            assert!(begin.elapsed() < Duration::from_secs(60), "moment {moment}");
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }
    hub.set(|it| it.stalls_at = None);
    hub.requests();
    run(&place, &hub, &["pull", NAME]);
    assert_eq!(place.read(&blob), whole);
    let last = hub.requests().pop().expect("a request");
    assert!(last.ends_with(&format!(" {}", whole.len() * 10 / 11)), "{last}");
}

/// A data set is found by its split or its files.
pub fn samples(place: Place) {
    let hub = hub();
    let parquet =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/dataset/messages.parquet"))
            .expect("a fixture");
    hub.set(|it| {
        it.files.insert("datasets/org/chat/default/train/0000.parquet".into(), parquet.clone());
        it.files.insert("datasets/org/chat/default/test/0000.parquet".into(), parquet.clone());
        it.files.insert("datasets/org/chat/data/a.jsonl".into(), DATA.into());
    });
    let text = run(&place, &hub, &["pull", "--dataset", "hf:org/chat"]);
    has_lines(
        &text,
        &["file       …/default/train/0000.parquet", "next       data.train = \"hf:org/chat\" in a recipe"],
    );
    hub.requests();
    let text = run(&place, &hub, &["inspect", "hf:org/chat", "--base", "tiny"]);
    has_lines(&text, &["read       …0000.parquet: Parquet…"]);
    assert_eq!(hub.requests(), Vec::<String>::new(), "what is in the cache needs no connection");
    let text = run(
        &place,
        &hub,
        &["init", "a.toml", "--base", "tiny", "--data", "hf:org/chat/data/*.jsonl", "--prompt", "Hi"],
    );
    has_lines(&text, &["read       …/data/a.jsonl: JSON Lines, 4 prompt_completion"]);
    assert!(String::from_utf8_lossy(&place.read("a.toml")).contains("train = \"hf:org/chat/data/*.jsonl\""));
    fails(
        command(&place, &hub, &["init", "b.toml", "--base", "tiny", "--data", "hf:org/chat:dev"]),
        "hf:org/chat:dev: hf:org/chat:dev has no split dev; name one behind a colon, such as hf:org/chat:train; it has test, train",
    );
}

/// A run on a base and samples of the Hub records what they were.
pub fn train(place: Place) {
    let hub = hub();
    hub.set(|it| {
        it.files.insert("datasets/org/chat/data/a.jsonl".into(), DATA.into());
    });
    let named =
        ["--set", "model.base=hf:org/tiny-GGUF:Q4_K_M", "--set", "data.train=hf:org/chat/data/a.jsonl"];
    run(&place, &hub, &[&["recipe.toml"], &named[..]].concat());
    let json: Json = serde_json::from_slice(&place.read("run/run.json")).expect("JSON");
    assert_eq!(json["hub"][0]["revision"], COMMIT);
    assert_eq!(json["hub"][0]["files"][0]["sha256"], sha256(&tiny()));
    assert_eq!(json["hub"][1]["files"][0]["sha256"], sha256(DATA.as_bytes()));
    let resolved = String::from_utf8(place.read("run/recipe.resolved.toml")).expect("UTF-8");
    assert!(resolved.contains(&format!("base = \"hf:org/tiny-GGUF@{COMMIT}:Q4_K_M\"")), "{resolved}");
    assert!(resolved.contains(&format!("hf:org/chat@{COMMIT}/data/a.jsonl")), "{resolved}");
    hub.requests();
    let text = run(&place, &hub, &["run/recipe.resolved.toml", "--set", "output.dir=again"]);
    assert!(matches(&text, "…report     again/report.html…"), "{text}");
    assert_eq!(hub.requests(), Vec::<String>::new());
    assert_eq!(place.read("run/adapter_model.safetensors"), place.read("again/adapter_model.safetensors"));
}

/// An adapter is sent with its model card, and never without a token.
pub fn push(place: Place) {
    let hub = Hub::start();
    let adapter = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/chat/adapter");
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        place.write(&format!("run/{name}"), std::fs::read(format!("{adapter}/{name}")).expect("it is there"));
    }
    place.write("run/recipe.resolved.toml", "# the recipe\n");
    let losses = "{\"event\":\"evaluation\",\"step\":0,\"eval_loss\":2.5,\"eval_perplexity\":12.2,\"eval_accuracy\":0.5,\"eval_tokens\":9}\n";
    place.write("run/metrics.jsonl", losses);
    let push = ["export", "run", "--base", "tiny", "--push", "hf:me/pirate"];
    fails(
        command(&place, &hub, &push),
        "the exports are written, but not sent: no token to write to me/pirate; set HF_TOKEN …",
    );
    assert_eq!(hub.requests(), Vec::<String>::new());
    place.refused(&["export", "run", "--push", "me"], "--push me: expected hf:USER/NAME, …");
    hub.set(|it| it.token = Some("secret".into()));
    let send = |more: &[&str]| {
        let mut command = command(&place, &hub, &[&push, more].concat());
        let output = command.env("HF_TOKEN", "secret").output().expect("it starts");
        assert!(output.status.success(), "{}", texts(&output).1);
        texts(&output).0
    };
    has_lines(&send(&[]), &["sent       4 files to …/me/pirate (private, if it is new)"]);
    hub.set(|it| {
        assert_eq!(it.created[0]["private"], true);
        let card = String::from_utf8(it.uploaded["me/pirate/README.md"].clone()).expect("UTF-8");
        for part in [
            "library_name: peft",
            "# pirate",
            "fingerprint of the base",
            "PeftModel.from_pretrained(model, \"me/pirate\")",
            "# the recipe",
        ] {
            assert!(card.contains(part), "no {part} in\n{card}");
        }
        assert_eq!(
            it.uploaded["me/pirate/adapter_model.safetensors"],
            place.read("run/adapter_model.safetensors")
        );
        assert_eq!(it.uploaded["me/pirate/recipe.resolved.toml"], b"# the recipe\n");
    });
    let text = send(&["--to", "gguf-lora", "--unverified", "--public"]);
    has_lines(&text, &["exported   …adapter.gguf…", "sent       3 files to …/me/pirate (public)"]);
    hub.set(|it| {
        assert_eq!(it.created[1]["private"], false);
        let card = String::from_utf8(it.uploaded["me/pirate/README.md"].clone()).expect("UTF-8");
        assert!(card.contains("llama-cli -m BASE.gguf --lora adapter.gguf"), "{card}");
        assert!(it.uploaded.contains_key("me/pirate/adapter.gguf"));
    });
    let mut wrong = command(&place, &hub, &push);
    wrong.env("HF_TOKEN", "other");
    fails(
        wrong,
        "the exports are written, but not sent: me/pirate is gated, and the token may not read it; …",
    );
}
