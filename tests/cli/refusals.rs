//! Errors in recipes, data, models, adapters and paths: their messages, and that they leave no files behind.

use rullama_train::base::gguf::value::Value;

use super::gguf_writer::GgufWriter;
use super::{DATA, Place, RECIPE};

pub fn recipes(place: Place) {
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
    place.refused(&["."], ". is a folder, expected a recipe; `rullama-train init` writes one");
}

pub fn overrides(place: Place) {
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

pub fn datasets(place: Place) {
    let refused = |contents: &str, expected: &str| {
        place.write("data.jsonl", contents);
        place.refused(&["recipe.toml"], &format!("data.jsonl{expected}"));
    };
    let sound = DATA.lines().next().expect("a line");
    refused("", ": the file contains no sample; expected one JSON object per line");
    refused(&format!("{sound}\n\n3\n"), " line 3: expected a JSON object, found a number");
    refused(&format!("{sound}\n{}\n", &sound[..20]), " line 2: broken JSON at column 20: …");
    refused(
        &format!("{sound}\n{{\"words\": \"Ahoy!\"}}\n"),
        " line 2: expected \"messages\", \"prompt\" + \"completion\", \"instruction\" + \"output\", \"conversations\", \"contents\", \
         \"text\" or \"input_ids\", found keys [words]",
    );
    refused(
        r#"{"messages": [{"role": "pirate", "content": "Ahoy!"}]}"#,
        " line 1: message 1: unknown role \"pirate\"; expected \"system\", \"developer\", \"user\", \
         \"assistant\" or \"tool\" (or \"human\", \"model\", \"bot\")",
    );
    refused(
        r#"{"input_ids": [2, 3, 4], "labels": [-100, -100, -100]}"#,
        " line 1: none of the 3 tokens is a loss token; expected at least one label other than -100 after the first",
    );
    let long = format!(r#"{{"input_ids": {0:?}, "labels": {0:?}}}"#, [5; 65]);
    refused(
        &long,
        ": 1 of 1 sample is longer than max_seq_len = 64: line 1 has 65 tokens; raise data.max_seq_len (this base takes up to \
         1024 tokens), or set data.overlong to \"drop\" or \"truncate\"",
    );
    place.write("data.jsonl", sound);
    place.refused(
        &["recipe.toml"],
        "data.train: val_size = 1 cannot be cut from 1 sample; expected a fraction between 0 and 1 or a whole number, \
         with at least one sample on each side",
    );
}

pub fn models(place: Place) {
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
    refused(|w| w.set("general.architecture", Value::String("mamba".into())), "…`mamba`…`qwen35`…");
    refused(|w| w.set("general.architecture", Value::String("unheard".into())), "…`unheard`…`gemma4`…");
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
    // A valid file without a tokenizer.
    place.write("model.gguf", &whole);
    place.refused(&["recipe.toml", "--set", "model.base=model.gguf"], "model.gguf: …tokenizer…");
}

pub fn ollama(place: Place) {
    place.write("store/manifests/registry.ollama.ai/library/gemma4/e4b", "{}");
    place.refused(
        &["recipe.toml", "--set", "model.base=gemma4:e2b"],
        "gemma4:e2b: is no existing file, and Ollama has no such model in store, …; found there: gemma4:e4b; did you mean \
         gemma4:e4b? Otherwise run `ollama pull` with a tag that exists, set OLLAMA_MODELS, or name a .gguf file",
    );
    place.refused(
        &["recipe.toml", "--set", "model.base=gemma4:e4b"],
        "gemma4:e4b: has 0 model layers in …, expected one GGUF; …",
    );
}

pub fn adapters(place: Place) {
    let missing = ["eval", "recipe.toml", "--adapter", "no"];
    place.refused(
        &missing,
        "no: does not exist; give the path of a PEFT or mlx-lm folder, a GGUF LoRA or a rullama-lora-v0 file",
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
    let rank8 = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/chat/adapter");
    place.refused(
        &["recipe.toml", "--set", &format!("lora.init_from={rank8}")],
        &format!(
            "{rank8} has rank = 8, alpha = 16, rslora = false, but the recipe has rank = 4, alpha = 8, rslora = false; make them equal"
        ),
    );
    place.refused(&["eval", "recipe.toml", "--adapter", "old"], "old…adapter_model.safetensors…");
    place.refused(
        &["recipe.toml", "--set", "lora.target_modules=[\"q_projj\"]"],
        "--set lora.target_modules=[\"q_projj\"]: lora.target_modules = \"q_projj\": expected the name of a module; did you mean \"q_proj\"?",
    );
}

pub fn places(place: Place) {
    let folder = "it is a file, expected a folder; remove it or choose another name";
    for dir in ["data.jsonl", "data.jsonl/inside"] {
        let expected = format!("cannot write {dir}: not a directory; {folder}");
        let set = format!("output.dir={dir}");
        place.refused(&["recipe.toml", "--set", &set], &expected);
        place.refused(&["check", "recipe.toml", "--set", &set], &expected);
    }
    // Not even root can write there: no permission, or a read-only file system.
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
        "cannot write .: is a directory; it is a folder, expected a file; choose another name",
    );
    // Before the test, which takes minutes.
    place.refused(
        &["selftest", "--report", "data.jsonl/inside"],
        &format!("cannot write data.jsonl/inside: not a directory; {folder}"),
    );
}

pub fn no_validation(place: Place) {
    place.refused(
        &["eval", "recipe.toml", "--set", "data.val_size=0"],
        "there are no validation samples: data.valid is not set and data.val_size is 0; set one of them, or use --data FILE",
    );
}

pub fn no_device(place: Place) {
    place.refused(
        &["check", "recipe.toml", "--set", "eval.samples=[\"Hi\"]", "--set", "eval.max_new_tokens=1020"],
        "the longest of eval.samples needs … tokens with its reply, but tiny has a context of 1024; shorten it or lower eval.max_new_tokens",
    );
    let next = "Install a Vulkan driver (Debian and Ubuntu: `apt-get install mesa-vulkan-drivers` …";
    // Files of an earlier run stay.
    place.write("run/metrics.jsonl", "{}");
    let refused = |set: &str, expected: &str| {
        for verb in [&[][..], &["check"], &["eval"]] {
            place.refused(&[verb, &["recipe.toml", "--set", set]].concat(), expected);
        }
    };
    // On other systems the driver is part of the system and cannot be hidden.
    if cfg!(target_os = "linux") {
        refused("train.seed=1", &format!("no GPU found: no driver answered. {next}"));
    }
}

pub fn web(place: Place) {
    if cfg!(feature = "web") {
        return; // the command would serve the page; web/tests/whole/served.spec.ts tests that
    }
    place.refused(
        &["web", "--no-open"],
        "this program was built without the web page; run `web/build` in the source folder to build the page, then `cargo build \
         --release --features web`",
    );
}

/// Words that are neither a command nor a recipe, and files that are something else.
pub fn commands(place: Place) {
    place.refused(
        &["chekc", "recipe.toml"],
        "`chekc` is neither a command nor a recipe; did you mean `check`?",
    );
    place.refused(
        &["xyzzy"],
        "`xyzzy` is neither a command nor a recipe; the commands are train, check, bench, …",
    );
    place.refused(
        &["data.jsonl"],
        "data.jsonl holds samples, not a recipe; `rullama-train init --data data.jsonl` writes a recipe for them",
    );
    place.write("list.json", "\n [{}]");
    place.refused(&["check", "list.json"], "list.json holds samples, not a recipe; …");
    place.write("model.gguf", "GGUF");
    place.refused(&["train", "model.gguf"], "model.gguf is a model or an adapter, not a recipe; …");
    place.write("a/adapter.safetensors", "");
    place.refused(
        &["a/adapter.safetensors"],
        "a/adapter.safetensors is an adapter, not a recipe; `rullama-train inspect …",
    );
    place.refused(&["a"], "a is a folder, expected a recipe; `rullama-train init` writes one");
    place.refused(
        &["missing.toml"],
        "cannot read the recipe …missing.toml: No such file or directory (os error 2)…",
    );
    assert!(place.run(&["help", "train"]).contains("--continue-with-changes"));
    let refused = |setting: &str, expected: &str| place.refused(&["recipe.toml", "--set", setting], expected);
    refused(
        "train.max_steps=4294967295",
        "train.max_steps = 4294967295: a run has at most 1 000 000 steps; lower it",
    );
    refused(
        "train.adam_epsilon=1e-300",
        "…train.adam_epsilon = 1e-300: expected a number >= 1e-30, which f32 holds, and <= 1",
    );
    place.refused(
        &["recipe.toml", "--set", "eval.keep_best=true", "--set", "data.val_size=0"],
        "…eval.keep_best: it compares validation losses, but there are no validation samples; set data.valid or …",
    );
}
