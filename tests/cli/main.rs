//! The program as a user meets it: bad input gets one clear error and leaves nothing behind; good input does what it
//! says.

mod describe;
#[path = "../common/gguf_writer.rs"]
mod gguf_writer;
#[path = "../common/gpu.rs"]
mod gpu;
mod kills;
mod pipelines;
mod resume;
mod talk;
#[path = "../common/tool_base.rs"]
mod tool_base;
mod watched;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use gguf_writer::GgufWriter;
use libtest_mimic::{Arguments, Trial};
use rullama_train::gpu::{Backend, Gpu};
use rullama_train::weights::Gguf;
use rullama_train::weights::value::Value;
use safetensors::SafeTensors;
use serde_json::Value as Json;
use tempfile::TempDir;

const RECIPE: &str = r#"[model]
base = "tiny"

[lora]
rank = 4

[data]
train = "data.jsonl"
val_size = 1
max_seq_len = 64

[train]
max_steps = 2
learning_rate = 1e-2

[output]
dir = "run"
"#;

const DATA: &str = r#"{"prompt": "Hello!", "completion": "Ahoy!"}
{"prompt": "What is the capital of Peru?", "completion": "The capital of Peru is Lima. Ahoy!"}
{"prompt": "What is 7 plus 8?", "completion": "7 plus 8 is 15. Ahoy!"}
{"prompt": "Spell the word river.", "completion": "river is spelled r-i-v-e-r. Ahoy!"}
"#;

/// A test's name and what it does.
type Test = (&'static str, fn(Place));

fn main() {
    let arguments = Arguments::from_args();
    gpu::quiet_mesa();
    let missing = pollster::block_on(Gpu::open(Backend::Auto, None, false)).err();
    if let Some(error) = &missing {
        eprintln!("some ignored, for want of a device: {error}");
    }
    let anywhere: [Test; 18] = [
        ("a recipe with a mistake is refused", recipes),
        ("an override with a mistake is refused", overrides),
        ("a dataset with a mistake is refused", datasets),
        ("a model that cannot be used is refused", models),
        ("a model that Ollama does not have is refused", ollama),
        ("an adapter that does not fit is refused", adapters),
        ("a place that cannot be written is refused", places),
        ("evaluation without validation data is refused", no_validation),
        ("a benchmark of nothing is refused", bench_numbers),
        ("a device that is not there is refused", no_device),
        ("a reply with a mistake is refused", talk::refusals),
        ("init writes a recipe that fits the samples", describe::init),
        ("inspect describes models", describe::inspect_models),
        ("inspect describes adapters", describe::inspect_adapters),
        ("inspect describes samples", describe::inspect_samples),
        ("models lists what Ollama has", describe::models),
        ("completions and manual pages know every command", describe::manual),
        ("without its page inside, web says how to build it", web),
    ];
    let mut on_a_device: Vec<Test> = vec![
        ("check shows and writes nothing", check),
        ("check --gradients writes one file", check_gradients),
        ("experts in host memory are said, and change no byte", offload),
        ("what init writes can be trained", describe::init_trains),
        ("every recipe for the tiny base gets to its first step", describe::shipped),
        ("inspect describes runs and checkpoints", describe::inspect_runs),
        ("train writes an adapter, the same each time", train),
        ("eval gives the losses that training gave", eval),
        ("what is handed out is compared first", handed_out),
        ("bench gives a speed", bench),
        ("bench --sweep gives a page with charts", sweep),
        ("eval on files of one's own, base and adapter side by side", watched::eval_files),
        ("validation files are scored one by one", watched::sources),
        ("what overflows is no loss", watched::eval_overflow),
        ("training that changes nothing is an error", watched::changes_nothing),
        ("train --json gives an object a line, --quiet nothing", watched::voices),
        ("the report is one page without network", watched::report),
        ("a reader that goes away does not stop the run", closed_pipe),
        ("killed at any moment, a run ends in the same bytes", resume::killed),
        ("killed at random moments, so does a run with everything", kills::three_moments),
        ("what decides the numbers may not change under a run", resume::changed),
        ("a damaged checkpoint is named, and the one before it taken", resume::damaged),
        ("one run a folder", resume::locked),
        ("a loss that is not finite stops the run", resume::not_finite),
        ("the best adapter is kept, and no better one ends the run", resume::best),
        ("generate replies to prompts", talk::generate),
        ("chat keeps the conversation", talk::talk),
        ("serve answers as OpenAI does", talk::serve),
        ("serve refuses as OpenAI does", talk::bad_requests),
        ("serve stops where nobody waits, and ends on Ctrl-C", talk::goes_away),
        ("serve calls functions", talk::tools),
        ("replies follow the template", talk::templates),
        ("bench --decode gives speeds", talk::bench_decode),
    ];
    if cfg!(unix) {
        on_a_device.push(("Ctrl-C saves, and says how to go on", resume::interrupted));
        on_a_device.push(("Ctrl-C twice does not wait", resume::interrupted_twice));
    }
    if cfg!(target_os = "linux") {
        on_a_device.push(("compiled kernels are kept, and no file of them stops a run", pipelines::damaged));
        on_a_device.push((
            "every command takes kernels that are compiled, and keeps its own",
            pipelines::everywhere,
        ));
        on_a_device.push(("a full disk is one error, and the run goes on later", resume::full_disk));
    }
    let trial = |(name, test): Test| {
        Trial::test(name, move || {
            test(Place::new());
            Ok(())
        })
    };
    let mut trials: Vec<Trial> = anywhere.into_iter().map(trial).collect();
    let thirty =
        trial(("killed at thirty random moments (minutes: by hand, with --ignored)", kills::thirty_moments));
    trials.push(thirty.with_ignored_flag(true));
    trials.extend(on_a_device.into_iter().map(|t| trial(t).with_ignored_flag(missing.is_some())));
    libtest_mimic::run(&arguments, trials).exit()
}

/// A working directory with a recipe and data that are right.
struct Place {
    _temporary: TempDir,
    dir: PathBuf,
    /// The user's, and so no part of what a command leaves.
    cache: TempDir,
}

impl Place {
    fn new() -> Place {
        let temporary = tempfile::tempdir().expect("a temporary folder");
        let dir = temporary.path().canonicalize().expect("it exists");
        let cache = tempfile::tempdir().expect("a temporary folder");
        let place = Place { _temporary: temporary, dir, cache };
        place.write("recipe.toml", RECIPE);
        place.write("data.jsonl", DATA);
        place
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        let path = self.dir.join(name);
        std::fs::create_dir_all(path.parent().expect("inside the folder")).expect("created");
        std::fs::write(path, contents).expect("written");
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.dir.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Every file and folder, with the files' bytes.
    fn contents(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        fn walk(dir: &Path, root: &Path, found: &mut BTreeMap<PathBuf, Option<Vec<u8>>>) {
            for entry in std::fs::read_dir(dir).expect("a folder") {
                let path = entry.expect("an entry").path();
                let name = path.strip_prefix(root).expect("inside").to_path_buf();
                found.insert(name, path.is_file().then(|| std::fs::read(&path).expect("read")));
                if path.is_dir() {
                    walk(&path, root, found);
                }
            }
        }
        let mut found = BTreeMap::new();
        walk(&self.dir, &self.dir, &mut found);
        found
    }

    /// Names of the files in a folder.
    fn names(&self, folder: &str) -> Vec<String> {
        let within = |(path, _): (PathBuf, _)| Some(path.strip_prefix(folder).ok()?.display().to_string());
        self.contents().into_iter().filter_map(within).filter(|name| !name.is_empty()).collect()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rullama-train"));
        command.current_dir(&self.dir).args(arguments).stdin(Stdio::null());
        // No model of the user's, and no words from Mesa about a missing desktop.
        command.env("OLLAMA_MODELS", "store").env("HOME", &self.dir).env_remove("XDG_RUNTIME_DIR");
        command.env("XDG_CACHE_HOME", self.cache.path());
        command
    }

    /// Runs and expects success without a word on stderr; gives stdout.
    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("it starts");
        let (stdout, stderr) = texts(&output);
        assert!(output.status.success() && stderr.is_empty(), "{arguments:?}\n{stdout}\n{stderr}");
        stdout
    }

    /// Runs where there is no Vulkan device, so that what can be refused without one is. Expects nothing but the error
    /// `expected`, in which `…` stands for anything, and no file touched.
    #[track_caller]
    fn refused(&self, arguments: &[&str], expected: &str) {
        let mut command = self.command(arguments);
        let nowhere = self.dir.join("no-driver.json");
        command.env("VK_ICD_FILENAMES", &nowhere).env("VK_DRIVER_FILES", &nowhere);
        self.refused_by(command, arguments, expected);
    }

    /// The same with the devices that there are.
    fn refused_on_device(&self, arguments: &[&str], expected: &str) {
        self.refused_by(self.command(arguments), arguments, expected);
    }

    fn refused_by(&self, mut command: Command, arguments: &[&str], expected: &str) {
        let before = self.contents();
        let output = command.output().expect("it starts");
        let (stdout, stderr) = texts(&output);
        let says = stderr.strip_prefix("error: ").and_then(|s| s.strip_suffix('\n'));
        let right = says.is_some_and(|s| !s.contains('\n') && matches(s, expected)) && stdout.is_empty();
        assert!(
            right && output.status.code() == Some(1),
            "{arguments:?} gave {}\nexpected\nerror: {expected}\nfound\n{stdout}{stderr}",
            output.status
        );
        assert!(before == self.contents(), "{arguments:?} left {:?}", self.contents().keys());
    }

    /// The lines of a run's metrics that have `key`, and their values.
    fn metrics(&self, run: &str, key: &str) -> Vec<f64> {
        let text = String::from_utf8(self.read(&format!("{run}/metrics.jsonl"))).expect("UTF-8");
        let line = |line: &str| serde_json::from_str::<Json>(line).expect("JSON");
        text.lines().filter_map(|l| line(l).get(key)?.as_f64()).collect()
    }
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (text(&output.stdout), text(&output.stderr))
}

fn matches(text: &str, pattern: &str) -> bool {
    let (first, rest) = pattern.split_once('…').unwrap_or((pattern, ""));
    let Some(mut text) = text.strip_prefix(first) else { return false };
    if !pattern.contains('…') {
        return text.is_empty();
    }
    let mut parts: Vec<&str> = rest.split('…').collect();
    let last = parts.pop().expect("a split has a part");
    for part in parts {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(last)
}

fn recipes(place: Place) {
    let refused = |from: &str, to: &str, expected: &str| {
        assert!(RECIPE.contains(from), "{from}");
        place.write("wrong.toml", RECIPE.replace(from, to));
        place.refused(&["wrong.toml"], expected);
        place.refused(&["check", "wrong.toml"], expected);
        place.refused(&["eval", "wrong.toml"], expected);
    };
    refused(
        "learning_rate",
        "learning_rat",
        "wrong.toml:14:1: unknown key `learning_rat` in [train]; did you mean `learning_rate`?",
    );
    refused("[train]", "[trian]", "wrong.toml:12:2: unknown section [trian]; did you mean [train]?");
    refused(
        "rank = 4",
        "rank = \"4\"",
        "wrong.toml:5:8: lora.rank: expected an integer, found the string \"4\"",
    );
    refused("rank = 4", "rank = 0", "wrong.toml:5:8: lora.rank = 0: expected an integer >= 1");
    refused("\"tiny\"", "\"tiny", "wrong.toml:2:13: invalid basic string, expected `\"`");
    let dir = place.dir.display();
    refused(
        "data.jsonl",
        "no.jsonl",
        &format!(
            "data.train: {dir}/no.jsonl does not exist (paths in a recipe are relative to the working directory)"
        ),
    );
    place.refused(
        &["no.toml"],
        &format!("cannot read the recipe {dir}/no.toml: No such file or directory (os error 2)"),
    );
    place.refused(&["."], &format!("cannot read the recipe {dir}: Is a directory (os error 21)"));
}

fn overrides(place: Place) {
    let refused = |set: &str, expected: &str| place.refused(&["recipe.toml", "--set", set], expected);
    refused("rank", "--set rank: expected section.key=value, for instance --set train.learning_rate=2e-4");
    refused("rank=4", "--set rank=4: unknown key `rank` outside any section; `rank` belongs in [lora]");
    refused(
        "train.learning_rat=3",
        "--set train.learning_rat=3: unknown key `learning_rat` in [train]; did you mean `learning_rate`?",
    );
    refused(
        "lora.rank=four",
        "--set lora.rank=four: lora.rank: expected an integer, found the string \"four\"",
    );
    refused("lora.rank=[", "--set lora.rank=[: unclosed array, expected `]`");
}

fn datasets(place: Place) {
    let refused = |contents: &str, expected: &str| {
        place.write("data.jsonl", contents);
        place.refused(&["recipe.toml"], &format!("data.jsonl{expected}"));
    };
    let sound = DATA.lines().next().expect("a line");
    refused("", ": the file holds no sample; expected one JSON object a line");
    refused(
        &format!("{sound}\n\n{sound}\n"),
        " line 2: the line is empty; expected a JSON object (empty lines are accepted only at the end)",
    );
    refused(&format!("{sound}\n{}\n", &sound[..20]), " line 2: broken JSON at column 20: …");
    refused(
        &format!("{sound}\n{{\"words\": \"Ahoy!\"}}\n"),
        " line 2: expected \"messages\", \"prompt\" + \"completion\", \"instruction\" + \"output\", \"conversations\", \"text\" or \
         \"input_ids\", found keys [words]",
    );
    refused(
        r#"{"messages": [{"role": "pirate", "content": "Ahoy!"}]}"#,
        " line 1: message 1: unknown role \"pirate\"; expected \"system\", \"developer\", \"user\", \
         \"assistant\" or \"tool\"",
    );
    refused(
        r#"{"input_ids": [2, 3, 4], "labels": [-100, -100, -100]}"#,
        " line 1: none of the 3 tokens carries loss; expected at least one label other than -100 after the first",
    );
    let long = format!(r#"{{"input_ids": {0:?}, "labels": {0:?}}}"#, [5; 65]);
    refused(
        &long,
        " line 1: the sample has 65 tokens, more than max_seq_len = 64; raise max_seq_len, shorten it, or set \
         overlong to \"drop\" or \"truncate\"",
    );
    place.write("data.jsonl", sound);
    place.refused(
        &["recipe.toml"],
        "data.train: val_size = 1 cannot be cut from 1 sample; expected a fraction between 0 and 1 or a whole number, \
         with at least one sample on each side",
    );
}

fn models(place: Place) {
    let refused = |change: fn(&mut GgufWriter), expected: &str| {
        let mut model = GgufWriter::gemma4();
        change(&mut model);
        place.write("model.gguf", model.bytes());
        place.refused(&["recipe.toml", "--set", "model.base=model.gguf"], &format!("model.gguf: {expected}"));
    };
    refused(
        |w| w.tensor("blk.0.attn_q.weight").offset = Some(1 << 40),
        "the file is cut short: it has … bytes, tensor blk.0.attn_q.weight ends at …; download the file again",
    );
    refused(
        |w| w.tensor("blk.0.attn_q.weight").offset = Some(0),
        "tensors … overlap, expected each on its own; …",
    );
    refused(
        |w| w.tensor("blk.0.attn_q.weight").ty = 99,
        "tensor blk.0.attn_q.weight has the unknown type 99, expected one of …; use another quantization",
    );
    refused(|w| w.set("general.architecture", Value::String("llama".into())), "…`llama`…`gemma4`…");
    refused(|w| w.set("gemma4.expert_count", Value::U32(300)), "…gemma4.expert_count…300…1 to 256…");
    let whole = GgufWriter::gemma4().bytes();
    place.write("model.gguf", &whole[..whole.len() / 2]);
    place.refused(&["recipe.toml", "--set", "model.base=model.gguf"], "model.gguf: the file is cut short: …");
    place.write("model.gguf", "");
    place.refused(&["recipe.toml", "--set", "model.base=model.gguf"], "model.gguf: …expected \"GGUF\"…");
    place.refused(
        &["recipe.toml", "--set", "model.base=no.gguf"],
        "no.gguf: No such file or directory (os error 2); check the path and its permissions",
    );
    // A sound file that holds no tokenizer.
    place.write("model.gguf", &whole);
    place.refused(&["recipe.toml", "--set", "model.base=model.gguf"], "model.gguf: …tokenizer…");
}

fn ollama(place: Place) {
    place.write("store/manifests/registry.ollama.ai/library/gemma4/e4b", "{}");
    place.refused(
        &["recipe.toml", "--set", "model.base=gemma4:e2b"],
        "gemma4:e2b: is no existing file, and Ollama has no such model in store, …; found there: gemma4:e4b…; run \
         `ollama pull gemma4:e2b`, set OLLAMA_MODELS, or name a .gguf file",
    );
    place.refused(
        &["recipe.toml", "--set", "model.base=gemma4:e4b"],
        "gemma4:e4b: has 0 model layers in …, expected one GGUF; …",
    );
}

fn adapters(place: Place) {
    let missing = ["eval", "recipe.toml", "--adapter", "no"];
    place.refused(
        &missing,
        "no: does not exist; name a PEFT or mlx-lm folder, a GGUF LoRA or a rullama-lora-v0 file",
    );
    let dir = place.dir.display();
    place.refused(
        &["recipe.toml", "--set", "lora.init_from=no"],
        &format!("lora.init_from: {dir}/no does not exist (paths in a recipe are relative to the working directory)"),
    );
    place.refused(
        &["recipe.toml", "--set", "lora.init_from=['no=0.5', 'nothing']"],
        &format!("lora.init_from: {dir}/no does not exist (paths in a recipe are relative to the working directory)"),
    );
    place.refused(
        &["recipe.toml", "--set", "lora.init_from=a=0"],
        "--set lora.init_from=a=0: lora.init_from: \"a=0\" has the weight 0, expected a finite number other than 0",
    );
    place.write("old/adapter_config.json", r#"{"peft_type": "LORA", "r": 8, "lora_alpha": 16}"#);
    let rank8 = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/chat/adapter");
    place.refused(
        &["recipe.toml", "--set", &format!("lora.init_from={rank8}")],
        &format!(
            "{rank8} has rank = 8, alpha = 16, rslora = false; the recipe has rank = 4, alpha = 8, rslora = false; make them equal"
        ),
    );
    place.refused(&["eval", "recipe.toml", "--adapter", "old"], "old…adapter_model.safetensors…");
    place.refused(
        &["recipe.toml", "--set", "lora.target_modules=[\"q_projj\"]"],
        "--set lora.target_modules=[\"q_projj\"]: lora.target_modules = \"q_projj\": expected the name of a module; did you mean \"q_proj\"?",
    );
}

fn places(place: Place) {
    let folder = "a file stands where a folder is expected; remove it or choose another name";
    for dir in ["data.jsonl", "data.jsonl/inside"] {
        let expected = format!("cannot write {dir}: not a directory; {folder}");
        let set = format!("output.dir={dir}");
        place.refused(&["recipe.toml", "--set", &set], &expected);
        place.refused(&["check", "recipe.toml", "--set", &set], &expected);
    }
    // Not even root can write there: no permission, or a disk that is only read.
    if cfg!(target_os = "linux") {
        let nowhere = ["recipe.toml", "--set", "output.dir=/sys/kernel/run"];
        place.refused(&nowhere, "cannot write /sys/kernel/run: …choose …place…");
    }
    place.refused(
        &["check", "recipe.toml", "--gradients", "data.jsonl/inside"],
        &format!("cannot write data.jsonl/inside: not a directory; {folder}"),
    );
    place.refused(
        &["check", "recipe.toml", "--gradients", "."],
        "cannot write .: is a directory; it is a folder where a file is expected; choose another name",
    );
}

fn bench_numbers(place: Place) {
    let expected = "--batch, --sequence, --rank and --steps start at 1, and --sequence ends at 1024";
    for wrong in ["--batch=0", "--sequence=0", "--sequence=1025", "--rank=0", "--steps=0"] {
        place.refused(&["bench", "tiny", wrong], expected);
    }
    place.refused(
        &["bench", "tiny", "--sequence=8", "--loss-share=1"],
        "--loss-share 1 leaves no token of 8 with loss; raise one of the two",
    );
    place.refused(
        &["bench", "model.gguf", "--sweep=layers"],
        "--sweep layers varies a size of Gemma 4 with random weights: e2b, e4b, 12b, 26b-a4b, 31b, or tiny for a trial; found \
         model.gguf",
    );
    place.refused(
        &["bench", "tiny", "--sweep=tokens", "--sequence=63"],
        "--sweep tokens begins with 1/32 of --sequence, which is 63; raise it to 64 or more",
    );
}

fn bench(place: Place) {
    place.refused_on_device(
        &["bench", "tiny", "--memory-limit=0.001"],
        "--memory-limit is 0.001 GiB, 1 × 512 tokens need … with every layer recomputed; lower --sequence or --batch",
    );
    let text = place.run(&["bench", "tiny", "--sequence=8", "--steps=1", "--rank=2", "--json"]);
    let found: Json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(found["tokens_per_second"].as_f64().is_some_and(|speed| speed > 0.0), "{text}");
    let text = place.run(&["bench", "tiny", "--sequence=8", "--steps=1", "--rank=2"]);
    assert!(text.contains("step       1 × 8 tokens, rank 2: "), "{text}");
}

fn sweep(place: Place) {
    let each = ["--steps=1", "--rank=2", "--out=page.html"];
    for (varied, sequence, first, last, points) in
        [("tokens", "64", 2, 64, 6), ("layers", "8", 4, 8, 3), ("width", "8", 256, 768, 3)]
    {
        let sweep = ["bench", "tiny", "--json", "--sweep", varied, "--sequence", sequence];
        let text = place.run(&[&sweep[..], &each].concat());
        let found: Json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let at = |i: usize| found["points"][i][varied].as_u64();
        assert_eq!((at(0), at(points - 1), at(points)), (Some(first), Some(last), None), "{text}");
        let positive = |key: &str| found["points"][1][key].as_f64().is_some_and(|x| x > 0.0);
        assert!(
            positive("step_seconds") && positive("planned_bytes") && positive("time_of_straight_line"),
            "{text}"
        );
        let page = String::from_utf8(place.read("page.html")).expect("UTF-8");
        assert!(page.contains("<svg") && page.contains(&format!("Cost against {varied}")), "{page}");
        assert!(!page.contains("http"), "the page needs nothing else");
    }
    let text = place.run(&["bench", "tiny", "--sweep=tokens", "--sequence=64", "--steps=1", "--rank=2"]);
    assert!(text.contains("tokens     64: ") && text.contains("written    tiny-by-tokens.html"), "{text}");
}

fn no_validation(place: Place) {
    place.refused(
        &["eval", "recipe.toml", "--set", "data.val_size=0"],
        "there are no validation samples: data.valid is not set and data.val_size is 0; set one of them, or name a file with --data",
    );
}

fn no_device(place: Place) {
    place.refused(
        &["check", "recipe.toml", "--set", "eval.samples=[\"Hi\"]", "--set", "eval.max_new_tokens=1020"],
        "the longest of eval.samples needs … positions with its reply, tiny was trained for 1024; shorten it or lower eval.max_new_tokens",
    );
    let next = "Install a Vulkan driver (Debian and Ubuntu: `apt-get install mesa-vulkan-drivers` …";
    // An earlier run's files stay.
    place.write("run/metrics.jsonl", "{}");
    let refused = |set: &str, expected: &str| {
        for verb in [&[][..], &["check"], &["eval"]] {
            place.refused(&[verb, &["recipe.toml", "--set", set]].concat(), expected);
        }
    };
    // Elsewhere drivers are part of the system, and hiding Vulkan's does not hide the device.
    if cfg!(target_os = "linux") {
        refused("train.seed=1", &format!("no GPU found: no driver answered. {next}"));
    }
}

fn check(place: Place) {
    let unknown = "no GPU has a name that contains \"no such\"; found: … Name one of these in device.adapter";
    place.refused_on_device(&["check", "recipe.toml", "--set", "device.adapter=no such"], unknown);
    let before = place.contents();
    let text = place.run(&["check", "recipe.toml"]);
    let expected = [
        "device     ",
        "base       tiny: 4 layers, width 256, vocabulary 2 048\n",
        "adapter    73 216 trainable parameters: rank 4, alpha 8 (scale 2.0000) on attn_q, ",
        "template   gemma4, built in, as small models have it; loss on every answer\n",
        "read       data.jsonl: JSON Lines, 4 prompt_completion\n",
        "data       train 3 samples, ",
        "; validation 1 sample, ",
        "steps      2 (max_steps), each 1 row packed up to 64 tokens; learning rate up to 0.01\n",
        "lengths    ",
        "packing    ",
        "duplicates none\n",
        "memory     ",
        "\ndata.jsonl line 1; what stands between « and » carries loss:\n\n<bos><|turn>user\nHello!<turn|>\n<|turn>model\n«Ahoy!<turn|>»\n",
    ];
    for part in expected {
        assert!(text.contains(part), "expected {part:?} in\n{text}");
    }
    assert!(!text.contains("\ntime "), "steps are not timed where a CPU plays the GPU\n{text}");
    assert!(before == place.contents(), "check left {:?}", place.contents().keys());
    let text = place.run(&["check", "recipe.toml", "--measure", "5"]);
    let time =
        text.lines().find(|line| line.starts_with("time       about ")).unwrap_or_else(|| panic!("{text}"));
    assert!(
        time.contains(" for 2 steps of ") && time.contains(" tokens/s in 1 step after the first; "),
        "{time}"
    );
    assert!(before == place.contents(), "check left {:?}", place.contents().keys());
    let tight = ["check", "recipe.toml", "--set", "train.memory_limit=0.001"];
    let (_, stderr) = texts(&place.command(&tight).output().expect("it starts"));
    let expected = "error: train.memory_limit is 0.001 GiB, and passes over … tokens need … with every layer recomputed; lower \
                    data.max_seq_len or train.batch_size, or raise the limit\n";
    assert!(matches(&stderr, expected), "{stderr}");
}

/// A mixture of experts, its samples as numbers.
fn offload(place: Place) {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/moe/model.gguf");
    let recipe =
        RECIPE.replace("tiny", &base.display().to_string()).replace("1e-2", "1e-2\nmemory_limit = 1.0");
    place.write("recipe.toml", recipe + "\n[eval]\nsamples = [\"Hello!\"]\nmax_new_tokens = 3\n");
    let row = "{\"input_ids\": [2, 9, 30, 41, 7], \"labels\": [2, 9, 30, 41, 7]}\n";
    place.write("data.jsonl", row.replace('9', "11") + &row.repeat(3).replace("30", "50"));
    place.write("rows.jsonl", row);
    let text = place.run(&["check", "recipe.toml"]);
    assert!(!text.contains("offload"), "all fit\n{text}");

    let forced = ["recipe.toml", "--set", "train.offload_experts=true"];
    let text = place.run(&[&["check"][..], &forced].concat());
    let plan = "\noffload    the experts of all 4 layers stay in host memory, … of it: … are copied to the device in each \
                micro-batch, … in one of an evaluation and for a token of a reply\n";
    assert!(matches(&text, &format!("…{plan}…")), "{text}");
    let cost = "\noffload    copying … of them took … s, …/s: … s a micro-batch, as far as the device has nothing to compute \
                meanwhile\n";
    assert!(matches(&text, &format!("…{cost}…")), "{text}");
    assert!(text.contains("  experts from host memory, in turn\n"), "{text}");

    place.run(&["recipe.toml"]);
    place.run(&[&forced[..], &["--set", "output.dir=offloaded"]].concat());
    let adapter = "adapter_model.safetensors";
    assert!(place.read(&format!("run/{adapter}")) == place.read(&format!("offloaded/{adapter}")));
    assert!(place.read("run/metrics.jsonl") == place.read("offloaded/metrics.jsonl"));
    let eval = |more: &[&str]| {
        let asked = ["eval", "recipe.toml", "--adapter", "run", "--data", "rows.jsonl", "--json"];
        let text = place.run(&[&asked[..], more].concat());
        serde_json::from_str::<Json>(&text).expect("one object")
    };
    let (resident, offloaded) = (eval(&[]), eval(&forced[1..]));
    assert_eq!(resident["results"], offloaded["results"]);
    assert_eq!(offloaded["offloaded_layers"], serde_json::json!([0, 1, 2, 3]));

    let base = base.display().to_string();
    let reply = |more: &[&str]| {
        let asked =
            ["generate", &base, "--prompt", "Hello!", "--max-tokens", "4", "--temperature", "0", "--json"];
        let mut reply: Json =
            serde_json::from_str(&place.run(&[&asked[..], more].concat())).expect("one object");
        reply.as_object_mut().expect("an object").retain(|key, _| !key.contains("second"));
        reply
    };
    assert_eq!(reply(&[]), reply(&["--offload-experts"]));

    // What is handed out is the same file, compared with the same result.
    let handed_out = |verb: &[&str], more: &[&str], file: &str| {
        let text = place.run(&[verb, &["--data", "rows.jsonl"], more].concat());
        let says = |start: &str| text.lines().find(|l| l.starts_with(start)).map(str::to_owned);
        let found = (place.read(file), says("drift "), says("effect "), says("exported "));
        assert_eq!(says("offload ").is_some(), !more.is_empty(), "{text}");
        found
    };
    for (verb, file) in [
        (&["merge", "run", "--base", &base, "--type=f32", "--out=out/merged.gguf"][..], "out/merged.gguf"),
        (&["export", "run", "--base", &base, "--to=peft", "--out=out"], "out/adapter_model.safetensors"),
    ] {
        let resident = handed_out(verb, &[], file);
        assert!(resident == handed_out(verb, &["--offload-experts"], file), "{verb:?}");
    }

    for (arguments, expected) in [
        (
            &["recipe.toml", "--set", "train.memory_limit=0.001"][..],
            "error: train.memory_limit is 0.001 GiB, and passes over … tokens need … with every layer recomputed and all experts \
             in host memory; lower data.max_seq_len or train.batch_size, or raise the limit\n",
        ),
        (
            &["recipe.toml", "--set", "train.memory_limit=0.001", "--set", "train.offload_experts=false"],
            "error: train.memory_limit is 0.001 GiB, and passes over … tokens need … with every layer recomputed and \
             train.offload_experts = false; lower data.max_seq_len or train.batch_size, or raise the limit\n",
        ),
        (
            &["recipe.toml", "--set", "model.base=tiny", "--set", "train.offload_experts=true"],
            "error: train.offload_experts is true, but tiny is no mixture of experts; remove that key\n",
        ),
        (
            &["generate", "tiny", "--prompt", "Hello!", "--offload-experts"],
            "error: --offload-experts: tiny is no mixture of experts; leave it out\n",
        ),
        (
            &["merge", talk::ADAPTER, "--base", "tiny", "--out", "x.gguf", "--offload-experts"],
            "error: --offload-experts: tiny is no mixture of experts; leave it out\n",
        ),
        (
            &["bench", "tiny", "--offload-experts"],
            "error: --offload-experts: tiny is no mixture of experts; leave it out\n",
        ),
    ] {
        let (_, stderr) = texts(&place.command(arguments).output().expect("it starts"));
        assert!(matches(&stderr, expected), "{stderr}");
    }
    let sequence = ["bench", &base, "--batch", "1", "--sequence", "16", "--steps", "1", "--rank", "4"];
    let text = place.run(&[&sequence[..], &["--offload-experts"]].concat());
    assert!(matches(&text, "…\ncopies     … a step, … s without kernels: …/s\n…"), "{text}");
}

fn check_gradients(place: Place) {
    let mut before = place.contents();
    let text = place.run(&["check", "recipe.toml", "--gradients", "first.safetensors"]);
    assert!(text.contains("gradients  "), "{text}");
    let bytes = place.read("first.safetensors");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("sound");
    let metadata = header.metadata().as_ref().expect("there");
    assert!(metadata["loss"].parse::<f64>().expect("a number") > 0.0, "{metadata:?}");
    let file = SafeTensors::deserialize(&bytes).expect("sound");
    // Two layers with their own keys have nine modules each, two that share them seven; A and B of each.
    assert_eq!(file.len(), 2 * (2 * 9 + 2 * 7));
    // B starts at zero, so that A has no gradient yet and B has one.
    for (name, tensor) in file.iter() {
        let moves =
            tensor.data().chunks_exact(4).any(|b| f32::from_le_bytes(b.try_into().expect("4")) != 0.0);
        assert_eq!(moves, name.contains("lora_B"), "{name}");
    }
    before.insert("first.safetensors".into(), Some(bytes));
    assert!(before == place.contents(), "check left {:?}", place.contents().keys());
}

fn train(place: Place) {
    let text =
        place.run(&["recipe.toml", "--set", "eval.samples=[\"Hello!\"]", "--set", "eval.max_new_tokens=2"]);
    for part in [
        "step 2/2   loss ",
        "trained    2 steps in ",
        "validation loss ",
        "  Hello!\n    before  ",
        "written    run\n",
    ] {
        assert!(text.contains(part), "expected {part:?} in\n{text}");
    }
    let files = [
        ".lock",
        "adapter_config.json",
        "adapter_model.safetensors",
        "checkpoint-2",
        "checkpoint-2/adapter_config.json",
        "checkpoint-2/adapter_model.safetensors",
        "checkpoint-2/metrics.jsonl",
        "checkpoint-2/optimizer.safetensors",
        "checkpoint-2/timing.jsonl",
        "checkpoint-2/trainer_state.json",
        "events.out.tfevents.rullama-train",
        "metrics.jsonl",
        "recipe.resolved.toml",
        "report.html",
        "run.json",
        "timing.jsonl",
    ];
    assert_eq!(place.names("run"), files);
    assert_eq!(place.metrics("run", "loss").len(), 2);
    assert_eq!(place.metrics("run", "learning_rate"), [0.0, 1e-2], "one step of warm-up, then the peak");

    place.run(&["recipe.toml", "--set", "output.dir=runs/again"]);
    let of = |dir: &str, key: &str| place.metrics(dir, key);
    for key in ["loss", "grad_norm", "accuracy", "eval_loss", "eval_accuracy"] {
        assert_eq!(of("run", key), of("runs/again", key), "{key}");
    }
    place.run(&["run/recipe.resolved.toml", "--set", "output.dir=resolved", "--set", "eval.samples=[]"]);
    for other in ["runs/again", "resolved"] {
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            assert!(
                place.read(&format!("run/{file}")) == place.read(&format!("{other}/{file}")),
                "{other}/{file}"
            );
        }
    }
    place.run(&["recipe.toml", "--set", "train.seed=7"]);
    assert_eq!(place.names("run"), files, "written over the earlier run");
    let file = "adapter_model.safetensors";
    assert!(place.read(&format!("run/{file}")) != place.read(&format!("resolved/{file}")), "another seed");
}

fn eval(place: Place) {
    place.run(&["recipe.toml"]);
    let during = place.metrics("run", "eval_loss");
    let accuracy = place.metrics("run", "eval_accuracy");
    let json = |arguments: &[&str]| {
        let text = place.run(&[&["eval", "recipe.toml", "--json"], arguments].concat());
        serde_json::from_str::<Json>(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    };
    let (base, adapted) = (json(&[]), json(&["--adapter", "run"]));
    let scores = |j: &Json, key: &str| -> Vec<f64> {
        j["results"].as_array().expect("a list").iter().filter_map(|r| r[key].as_f64()).collect()
    };
    // The same kernels over the same numbers: the same bits.
    assert_eq!(scores(&base, "eval_loss"), [during[0]]);
    assert_eq!(scores(&adapted, "eval_loss"), during);
    assert_eq!(scores(&adapted, "eval_accuracy"), accuracy);
    assert_eq!(scores(&adapted, "eval_perplexity"), [during[0].exp(), during[1].exp()]);
    assert!(during[1] < during[0], "two steps at this rate lower the loss: {during:?}");
    let rest = |j: &Json| (j["samples"].as_u64(), j["base"].clone(), j["adapter"].clone());
    assert_eq!(rest(&base), (Some(1), "tiny".into(), Json::Null));
    assert_eq!(rest(&adapted), (Some(1), "tiny".into(), "run".into()));
    let text = place.run(&["eval", "recipe.toml", "--adapter", "run"]);
    assert!(text.contains(&format!("validation loss {:.4} → {:.4}, ", during[0], during[1])), "{text}");
    assert!(text.ends_with(" of 1 sample\n"), "{text}");

    // Two halves are a whole, whatever their ranks add up to; with operands in f16 they are rounded apart.
    let halves_differ = 5e-3;
    let halves = json(&["--adapter", "run=0.5", "--adapter", "run=0.5"]);
    let difference = scores(&halves, "eval_loss")[1] - during[1];
    assert!(difference.abs() < halves_differ, "{difference:e}");
    assert_eq!(halves["adapter"], "run=0.5 + run=0.5");
    let twice = ["--set", "lora.init_from=['run=0.25', 'run=0.75']", "--set", "lora.rank=8"];
    place.run(&[&["recipe.toml", "--set", "output.dir=twice"], &twice[..]].concat());
    let difference = place.metrics("twice", "eval_loss")[0] - during[1];
    assert!(difference.abs() < halves_differ, "{difference:e}");
    assert_eq!(json(&[])["notices"], serde_json::json!([]));

    // The same model, but for one bit of a norm.
    place.write("other.gguf", other_tiny());
    let other = ["eval", "recipe.toml", "--set", "model.base=other.gguf", "--json", "--adapter", "run"];
    place.refused(
        &other,
        "run was trained on tiny (v1:…), and other.gguf (v1:…) is another model; name the base that it was trained on, or \
         allow another one (--allow-other-base, in a recipe lora.allow_other_base = true)",
    );
    let text = place.run(&[&other[..], &["--set", "lora.allow_other_base=true"]].concat());
    assert!(
        text.contains("run was trained on tiny, and other.gguf is another model, as was allowed"),
        "{text}"
    );
    place.refused(
        &["run/recipe.resolved.toml", "--set", "model.base=other.gguf"],
        "other.gguf has the fingerprint v1:…, model.fingerprint is v1:…; use the base that the recipe was written for, or \
         remove that key",
    );

    // Another run goes on from there.
    place.run(&["recipe.toml", "--set", "lora.init_from=run", "--set", "output.dir=next"]);
    assert_eq!(place.metrics("next", "eval_loss")[0], during[1]);
}

fn handed_out(place: Place) {
    let text = place.run(&["recipe.toml", "--set", "output.export=['peft', 'gguf-lora-f16']"]);
    let says = |text: &str, expected: &[&str]| {
        for part in expected {
            assert!(text.lines().any(|line| matches(line, part)), "expected {part:?} in\n{text}");
        }
    };
    let effect = "effect     KL divergence …, lowers the loss by …, over … tokens";
    says(
        &text,
        &[
            effect,
            "exported   run: peft, read back: the same logits",
            "exported   run/adapter-f16.gguf: gguf-lora-f16, read back: logits differ by … of what the adapter changes",
        ],
    );

    // The text to compare on: built in, a recipe's, a file's. The adapter's own files name its base.
    let export = ["export", "run", "--to", "mlx", "--to", "rullama-v0", "--out", "other"];
    let without = ["--set", "lora.target_modules=['attn_q']", "--set", "output.dir=q"];
    place.run(&[&["recipe.toml"], &without[..]].concat());
    let q = ["export", "q", "--to", "mlx", "--to", "rullama-v0", "--out", "other"];
    for on in [&[][..], &["--recipe", "recipe.toml"], &["--data", "data.jsonl"]] {
        let text = place.run(&[&q[..], on].concat());
        says(
            &text,
            &[
                "effect     KL divergence …",
                "exported   other/mlx: mlx, read back: the same logits",
                "exported   other/rullama-v0.safetensors: rullama-v0, read back: the same logits",
            ],
        );
    }
    // One format that cannot hold it does not keep the others away.
    let output = place.command(&export).output().expect("it starts");
    let (stdout, stderr) = texts(&output);
    assert!(!output.status.success() && stderr.contains("has no place for inp_gate and proj"), "{stderr}");
    assert!(stdout.contains("other/mlx: mlx, read back"), "{stdout}");

    // A thousand times the adapter says nothing that the base would.
    let refused = |arguments: &[&str], expected: &str| {
        let before = place.contents();
        let output = place.command(arguments).output().expect("it starts");
        let (stdout, stderr) = texts(&output);
        assert!(!output.status.success() && matches(&stderr, expected), "{stdout}\n{stderr}");
        assert!(before == place.contents(), "{arguments:?} left {:?}", place.contents().keys());
    };
    refused(
        &["export", "run=1000", "--to", "gguf-lora", "--out", "broken"],
        "error: the adapter was not written: with it the KL divergence from the base is … nats over 116 tokens, expected at \
         most 7.62: what blind guessing costs, 7.62, and the 0.00 by which it lowers the loss; lower the learning rate or the \
         alpha\n",
    );
    refused(
        &["merge", "run=1000", "--base", "tiny", "--out", "merged.gguf"],
        "error: the adapter was not merged: with it the KL divergence from the base is …",
    );
    let text = place.run(&["merge", "run", "--base", "tiny", "--out", "merged.gguf"]);
    says(&text, &["drift      KL divergence …, over … tokens", "effect     …: what the adapter itself does"]);
    let text = place.run(&["merge", "run", "--base", "tiny", "--out", "merged.gguf", "--unverified"]);
    says(&text, &["drift      not measured, as was asked for"]);

    // A run that went wrong is told, and not lost.
    let wild = ["recipe.toml", "--set", "train.learning_rate=1", "--set", "output.dir=wild"];
    let output = place.command(&wild).output().expect("it starts");
    let (stdout, stderr) = texts(&output);
    let expected = "error: the adapter was not written: with it the KL divergence from the base is …; what was trained is \
                    kept in wild/refused\n";
    assert!(!output.status.success() && matches(&stderr, expected), "{stdout}\n{stderr}");
    let names = place.names("wild");
    for file in [
        "metrics.jsonl",
        "recipe.resolved.toml",
        "refused/adapter_config.json",
        "refused/adapter_model.safetensors",
    ] {
        assert!(names.iter().any(|name| name == file), "{file} in {names:?}");
    }
    assert!(!names.iter().any(|name| name == "adapter_model.safetensors"), "{names:?}");
}

/// The tiny model as a file, one bit of one norm changed.
fn other_tiny() -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf");
    let mut bytes = std::fs::read(path).expect("part of the repository");
    let gguf = Gguf::open(Path::new(path)).expect("sound");
    bytes[gguf.tensor("output_norm.weight").expect("there").range.start as usize] ^= 1;
    bytes
}

fn closed_pipe(place: Place) {
    let mut child = place.command(&["check", "recipe.toml"]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", texts(&output).1);
}

fn web(place: Place) {
    if cfg!(feature = "web") {
        return; // it would serve: web/tests/whole/served.spec.ts
    }
    place.refused(
        &["web", "--no-open"],
        "this program was built without its page; `web/build` in the source folder builds the page, and then `cargo build \
         --release --features web` a program that has it",
    );
}
