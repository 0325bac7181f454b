//! Recipes: values and error messages, and that the shipped recipes load.

use std::path::{Path, PathBuf};

use rullama_train::base::Module;
use rullama_train::recipe::{
    DataFormat, Layers, Recipe, RecipeError, Syntax, TargetModules, TrainOn, split_override,
};
use rullama_train::run::{self, Data, OpenBase, Steps};
use serde_json::Value as Json;

const NONE: [(&str, &str); 0] = [];

/// The three required keys. Text after them starts in line 4.
const REQUIRED: &str = "model.base = 'tiny'\ndata.train = 'a.jsonl'\noutput.dir = 'runs/a'\n";

fn parse(text: &str, overrides: &[(&str, &str)]) -> Result<Recipe, RecipeError> {
    Recipe::parse(text, Syntax::Toml, "r.toml", overrides)
}

/// A valid recipe with `rest` from line 4 on.
fn accept(rest: &str) -> Recipe {
    parse(&format!("{REQUIRED}{rest}"), &NONE)
        .unwrap_or_else(|error| panic!("{rest:?} was rejected: {error}"))
}

#[track_caller]
fn refuse(rest: &str, message: &str) {
    assert_message(parse(&format!("{REQUIRED}{rest}"), &NONE), message);
}

#[track_caller]
fn refuse_override(key: &str, value: &str, message: &str) {
    assert_message(parse(REQUIRED, &[(key, value)]), message);
}

#[track_caller]
fn refuse_json(text: &str, message: &str) {
    assert_message(Recipe::parse(text, Syntax::Json, "r.json", &NONE), message);
}

#[track_caller]
fn assert_message(result: Result<Recipe, RecipeError>, message: &str) {
    match result {
        Ok(_) => panic!("accepted; expected the error\n{message}"),
        Err(error) => assert_eq!(error.to_string(), message),
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Tasks and bases of the shipped recipes: four tasks on four bases, and one for the user's own samples.
const TASKS: [&str; 4] = ["chat", "labels", "stories", "tools"];
/// The recipes that go on from an adapter that a task has trained.
const PREFERENCE: [(&str, &str, &str); 2] =
    [("preference", "tiny", "runs/chat"), ("preference-gemma4-e2b", "gemma4:e2b", "runs/chat-gemma4-e2b")];
/// The recipes for a model and the user's own data.
const MODELS: [&str; 10] = [
    "gemma3-1b",
    "gemma4-e2b",
    "gpt-oss-20b",
    "llama3.1-8b",
    "llama3.2-1b",
    "qwen2.5-7b",
    "qwen3.5-4b",
    "qwen3.5-35b-a3b",
    "qwen3-30b-a3b",
    "qwen3-4b",
];

/// The recipe for a real model and a task of the repository.
const REAL: &str = "smollm2-135m.toml";

const BASES: [(&str, &str); 4] = [
    ("", "tiny"),
    ("-gemma4-31b", "gemma4:31b"),
    ("-gemma4-e2b", "gemma4:e2b"),
    ("-gemma4-e4b", "gemma4:e4b"),
];

#[test]
fn shipped_recipes_load() {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root().join("recipes")).expect("the repository has recipes/") {
        let path = entry.expect("a readable folder").path();
        let recipe = Recipe::read(&path, &NONE).unwrap_or_else(|error| panic!("{error}"));
        let again = parse(&recipe.to_toml(), &NONE).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again, recipe, "{} does not survive to_toml", path.display());
        names.push(path.file_name().expect("a file").to_string_lossy().into_owned());
    }
    names.sort();
    let mut expected = MODELS.map(|name| format!("{name}.toml")).to_vec();
    for task in TASKS {
        expected.extend(BASES.map(|(suffix, _)| format!("{task}{suffix}.toml")));
    }
    expected.extend(PREFERENCE.map(|(name, ..)| format!("{name}.toml")));
    expected.push(REAL.to_owned());
    expected.push("distill.toml".to_owned());
    expected.extend(["grpo.toml", "grpo-smollm2.toml"].map(str::to_owned));
    expected.sort();
    assert_eq!(names, expected);
    assert_eq!(names.len(), 32);
}

/// The recipe with the tiny base instead of one that must be downloaded.
fn on_tiny(mut recipe: Recipe) -> Recipe {
    recipe.model.base = "tiny".into();
    recipe.data.train = recipe.data.train.iter().map(|file| root().join(file)).collect();
    recipe
}

/// Reads the data and plans the steps of a recipe that gives no notices and has at least ten steps.
fn planned_without_notices(recipe: &Recipe, path: &Path) -> (OpenBase, Data, Steps) {
    let frozen = OpenBase::open(recipe).unwrap_or_else(|error| panic!("{error}"));
    let data = Data::read(recipe, &frozen).unwrap_or_else(|error| panic!("{error}"));
    let notices: Vec<String> = data.notices.iter().map(ToString::to_string).collect();
    assert!(notices.is_empty(), "{}: {notices:?}", path.display());
    let steps = Steps::plan_weighted(recipe, &data.train, &data.weights).expect("steps");
    assert!(steps.plans.len() >= 10, "{}: {} steps", path.display(), steps.plans.len());
    (frozen, data, steps)
}

/// Runs all steps that need no device.
#[test]
fn shipped_recipes_plan_their_steps() {
    let mut planned = 0;
    for task in TASKS {
        for (suffix, base) in BASES {
            let path = root().join(format!("recipes/{task}{suffix}.toml"));
            let recipe = Recipe::read(&path, &NONE).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(recipe.model.base, base, "{}", path.display());
            assert_eq!(recipe.output.dir, Path::new("runs").join(format!("{task}{suffix}")));
            let recipe = on_tiny(recipe);
            recipe.check_files().unwrap_or_else(|error| panic!("{error}"));
            let (frozen, data, _) = planned_without_notices(&recipe, &path);
            assert!(data.validation.len() >= 40, "{}", path.display());
            run::initial_adapter(&recipe, &frozen.base).unwrap_or_else(|error| panic!("{error}"));
            recipe.eval.samples.iter().for_each(|text| assert!(frozen.prompt(text).is_ok(), "{text}"));
            planned += 1;
        }
    }
    assert_eq!(planned, 16);
    for (name, base, adapter) in PREFERENCE {
        let path = root().join(format!("recipes/{name}.toml"));
        let recipe = Recipe::read(&path, &NONE).unwrap_or_else(|error| panic!("{error}"));
        let from: Vec<String> = recipe.lora.init_from.iter().map(ToString::to_string).collect();
        assert_eq!((&recipe.model.base[..], from), (base, vec![adapter.to_string()]), "{}", path.display());
        let (_, data, steps) = planned_without_notices(&on_tiny(recipe), &path);
        for batch in steps.plans.iter().flatten() {
            let together = |pair: &[usize]| pair[1] == pair[0] + 1 && data.train[pair[0]].side.is_good();
            assert!(batch.chunks(2).all(together), "the sides of a pair follow each other in a micro-batch");
        }
    }
}

#[test]
fn rewards_and_grpo_belong_together() {
    let grpo = "train.objective = 'grpo'\n";
    let reward = "[[rewards]]\nname = 'number'\n";
    let recipe = accept(&format!("{grpo}{reward}"));
    let keys = recipe.grpo.expect("the section");
    assert_eq!((recipe.train.batch_size, keys.num_generations, keys.max_completion_length), (8, 8, 512));
    assert_eq!((keys.epsilon, keys.epsilon_high, keys.delta, keys.beta), (0.2, 0.2, None, 0.0));
    refuse(
        grpo,
        "r.toml: `rewards` is missing, expected at least one table [[rewards]] with a name, such as \"number\": train.objective = \"grpo\" learns \
         from them",
    );
    refuse(
        reward,
        "r.toml:4:3: rewards: the objective \"sft\" learns from no rewards; remove them, or set train.objective = \"grpo\"",
    );
    refuse(
        "grpo.beta = 0.1",
        "r.toml:4:13: grpo.beta: the objective \"sft\" draws no completions; remove [grpo], or set train.objective = \"grpo\"",
    );
    refuse(
        &format!("{grpo}train.batch_size = 12\n{reward}"),
        "r.toml:5:20: train.batch_size: a step has train.batch_size · train.gradient_accumulation_steps = 12 completions, but each prompt has \
         grpo.num_generations = 8; choose a multiple of 8",
    );
    refuse(
        &format!("{grpo}data.overlong = 'truncate'\n{reward}"),
        "r.toml:5:17: data.overlong: a prompt without its end is another one; set it to \"drop\" or \"error\"",
    );
}

#[test]
fn the_manual_has_every_key_with_its_default() {
    // In chat.toml, `# default: VALUE` follows each key, also if the key is commented out.
    let manual = std::fs::read_to_string(root().join("recipes/chat.toml")).expect("recipes/chat.toml");
    let (mut section, mut defaults, mut keys) = (String::new(), String::new(), 0);
    for line in manual.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            section = name.0.to_owned();
        }
        if line.starts_with("# [[rewards]]") {
            section = "[rewards]".to_owned();
        }
        let Some((before, after)) = line.split_once("# default: ") else { continue };
        let key = before.trim_start_matches("# ").split(' ').next().expect("a key");
        keys += 1;
        let value = after.split(';').next().expect("a value").trim();
        // A table of a list has defaults only where there is one: tests/rewards.rs.
        if value != "none" && section != "[rewards]" {
            defaults += &format!("{section}.{key} = {value}\n");
        }
    }
    assert_eq!(accept(&defaults), accept(""), "the manual's defaults are not the code's:\n{defaults}");
    assert_eq!(keys, 125, "keys with a documented default");
    assert_eq!(manual.matches("# required; ").count(), 4);
}

#[test]
fn defaults_are_filled_in() {
    let expected = r#"[model]
base = "tiny"

[lora]
rank = 16
alpha = 32.0
rslora = false
dropout = 0.0
target_modules = "all-linear"
allow_other_base = false

[data]
train = ["a.jsonl"]
val_size = 0.05
format = "auto"
template = "auto"
train_on = "assistant"
overlong = "error"
invalid = "error"
packing = true
shuffle = true
cache = true
max_file_size = 0.5

[train]
seed = 42
epochs = 3
batch_size = 1
gradient_accumulation_steps = 1
optimizer = "adamw"
learning_rate = 0.0002
adam_beta1 = 0.9
adam_beta2 = 0.999
adam_epsilon = 0.00000001
lr_scheduler = "cosine"
min_lr_ratio = 0.0
warmup_ratio = 0.05
weight_decay = 0.0
max_grad_norm = 1.0
gradient_checkpointing = "auto"
offload_experts = "auto"
offload_layers = "auto"
offload_inputs = "auto"
max_skipped_steps = 0
stop_if_diverged = true

[eval]
steps = 0
samples = []
max_new_tokens = 64
general = true
best_metric = "loss"
keep_best = true
early_stopping_patience = 0

[output]
dir = "runs/a"
export = ["peft"]
save_steps = 50
save_total_limit = 2

[log]
csv = false

[device]
backend = "auto"
kernels = "auto"
tune = true
"#;
    assert_eq!(accept("").to_toml(), expected);
}

/// A recipe with all keys, none at its default.
const FULL: &str = r#"
[model]
base = "gemma4:e2b"
fingerprint = "v1:00112233445566778899aabbccddeeff-ffeeddccbbaa99887766554433221100"
[lora]
rank = 8
alpha = 20
rslora = true
dropout = 0.1
target_modules = ["q_proj", "ffn_down"]
layers = [3, "8-15", "last 2"]
rank_pattern = { q_proj = 4, "blk.3.ffn_down" = 2 }
init_from = ["runs/a=0.7", "runs/b=0.3"]
allow_other_base = true
[data]
train = ["a.jsonl", "b.jsonl"]
valid = "v.jsonl"
val_size = 0
format = "prompt_completion"
template = "chat.jinja"
train_on = "last_assistant"
max_seq_len = 512
overlong = "truncate"
invalid = "drop"
packing = false
shuffle = false
cache = "runs/cache"
max_file_size = 2
fields = { prompt = "q", completion = "a" }
system = "Be brief."
[train]
seed = 7
epochs = 2
max_steps = 10
batch_size = 4
gradient_accumulation_steps = 8
shares = 4
optimizer = "sgd"
learning_rate = 3e-4
adam_beta1 = 0.8
adam_beta2 = 0.98
adam_epsilon = 1e-6
lr_scheduler = "linear"
min_lr_ratio = 0.1
warmup_ratio = 0.0
warmup_steps = 5
weight_decay = 0.01
max_grad_norm = 0
gradient_checkpointing = true
offload_experts = false
offload_layers = 3
offload_inputs = true
max_skipped_steps = 3
stop_if_diverged = false
[eval]
steps = 50
samples = ["Hello!"]
max_new_tokens = 16
general = false
metrics = ["regex", "rouge_l"]
metric_samples = 9
regex = "^a+$"
best_metric = "rouge_l"
keep_best = false
early_stopping_patience = 4
[output]
dir = "runs/b"
export = ["peft"]
base_model_name = "google/gemma-4-E2B-it"
ollama = "me/mine:v2"
save_steps = 10
save_total_limit = 5
[log]
csv = true
hook = "cat"
[device]
backend = "vulkan"
gpu = "RTX"
kernels = "f16"
tune = false
"#;

#[test]
fn toml_and_json_give_equal_recipes_that_survive_to_toml() {
    let recipe = parse(FULL, &NONE).expect("valid");
    let table: toml::Table = FULL.parse().expect("valid TOML");
    let json = serde_json::to_string_pretty(&table).expect("plain values");
    let twin =
        Recipe::parse(&json, Syntax::Json, "r.json", &NONE).unwrap_or_else(|error| panic!("{error}\n{json}"));
    assert_eq!(twin, recipe);
    assert_eq!(parse(&recipe.to_toml(), &NONE).expect("its own output"), recipe);

    let sections: Vec<usize> =
        table.values().map(|section| section.as_table().expect("a section").len()).collect();
    assert_eq!(sections.iter().sum::<usize>(), 71, "FULL lists every key");
    let defaults: toml::Table = accept("").to_toml().parse().expect("valid TOML");
    for (name, section) in &defaults {
        for key in section.as_table().expect("a section").keys() {
            assert!(table[name].get(key).is_some(), "FULL lacks {name}.{key}");
        }
    }
}

#[test]
fn values_are_read() {
    let recipe = parse(FULL, &NONE).expect("valid");
    assert_eq!(recipe.lora.target_modules, TargetModules::Only(vec![Module::AttnQ, Module::FfnDown]));
    assert_eq!(recipe.lora.layers, [Layers::Range(3, 3), Layers::Range(8, 15), Layers::Last(2)]);
    let patterns: Vec<String> =
        recipe.lora.rank_pattern.iter().map(|(pattern, rank)| format!("{pattern}={rank}")).collect();
    assert_eq!(patterns, ["attn_q=4", "blk.3.ffn_down=2"]);
    assert_eq!(accept("lora.layers = 7").lora.layers, [Layers::Range(7, 7)], "one layer");
    assert_eq!(accept("lora.layers = 'all'").lora.layers, []);
    assert_eq!(recipe.lora.alpha, 20.0);
    assert_eq!(recipe.data.train, [PathBuf::from("a.jsonl"), PathBuf::from("b.jsonl")]);
    assert_eq!(recipe.train.learning_rate, 3e-4);
    assert_eq!(accept("train.objective = 'dpo'").train.learning_rate, 1e-5, "preferences take a lower rate");
    assert_eq!(accept("lora.rank = 4").lora.alpha, 8.0, "alpha is 2·rank");
    assert_eq!(accept("lora.rank = 0x1_0").lora.rank, 16, "TOML's other spellings of integers");
    assert_eq!(accept("data.valid = 'v'").data.val_size, 0.0, "nothing is split off beside data.valid");
    assert_eq!(accept("train.warmup_steps = 0").train.warmup_ratio, 0.0, "warmup_steps = 0 is no warm-up");
    assert_eq!(accept("data.val_size = 20").data.val_size, 20.0);
    assert_eq!(TargetModules::AllLinear.modules().len(), 27);
}

#[test]
fn unknown_keys_suggest_the_most_similar() {
    refuse("lora.rnak = 8", "r.toml:4:6: unknown key `rnak` in [lora]; did you mean `rank`?");
    refuse(
        "[lora]\nrank = 8\n  dropuot = 0.1",
        "r.toml:6:3: unknown key `dropuot` in [lora]; did you mean `dropout`?",
    );
    refuse("[train]\nrank = 8", "r.toml:5:1: unknown key `rank` in [train]; `rank` belongs in [lora]");
    refuse("rank = 8", "r.toml:4:1: unknown key `rank` outside any section; `rank` belongs in [lora]");
    refuse(
        "train.lr = 1",
        "r.toml:4:7: unknown key `lr` in [train]; did you mean `learning_rate` in [train]?",
    );
    refuse(
        "train.beta1 = 1",
        "r.toml:4:7: unknown key `beta1` in [train]; did you mean `adam_beta1` in [train]?",
    );
    refuse(
        "train.maxseqlen = 1",
        "r.toml:4:7: unknown key `maxseqlen` in [train]; did you mean `max_seq_len` in [data]?",
    );
    refuse(
        "[device]\nadapter = 'RTX'",
        "r.toml:5:1: unknown key `adapter` in [device]; `adapter` is now called `gpu`",
    );
    refuse("[loar]\nrank = 8", "r.toml:4:2: unknown section [loar]; did you mean [lora]?");
    refuse(
        "[zzzzzz]\nrank = 8",
        "r.toml:4:2: unknown section [zzzzzz]; the sections are model, lora, data, train, distill, grpo, eval, output, log, device",
    );
    refuse(
        "eval.zzzzzzzz = 8",
        "r.toml:4:6: unknown key `zzzzzzzz` in [eval]; [eval] takes steps, samples, max_new_tokens, general, \
         metrics, metric_samples, regex, best_metric, keep_best, early_stopping_patience",
    );
    refuse_json(
        "{\n  \"lora\": {\"rank\": 8,\n    \"rnak\": 8}}",
        "r.json:3:5: unknown key `rnak` in [lora]; did you mean `rank`?",
    );
    refuse_json(
        "{\"train\":\n {\"rank\": 8}}",
        "r.json:2:3: unknown key `rank` in [train]; `rank` belongs in [lora]",
    );
}

#[test]
fn adapters_and_fingerprints_are_read_from_text() {
    let paths = |rest: &str| accept(rest).lora.init_from.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(paths(""), [""; 0]);
    assert_eq!(paths("lora.init_from = 'runs/old'"), ["runs/old"]);
    assert_eq!(paths("lora.init_from = ['a=0.5', 'b']"), ["a=0.5", "b"]);
    refuse("lora.alpha = 1e39", "r.toml:4:14: lora.alpha = 1e39: expected a number > 0 that f32 can hold");
    refuse("lora.init_from = []", "r.toml:4:18: lora.init_from = []: expected at least one path");
    refuse(
        "lora.init_from = ['a', 7]",
        "r.toml:4:24: lora.init_from: expected the path of an adapter, or a list of them, found the integer 7",
    );
    refuse(
        "lora.init_from = ['a', 'b=0']",
        "r.toml:4:24: lora.init_from: \"b=0\" has the weight 0, expected a finite number other than 0",
    );
    refuse(
        "model.fingerprint = 'sha256:0'",
        "r.toml:4:21: model.fingerprint: \"sha256:0\" is not a fingerprint, expected v1: and two digests of 32 hexadecimal \
         digits",
    );
    refuse(
        "model.digest = 'sha256:0'",
        "r.toml:4:7: unknown key `digest` in [model]; did you mean `fingerprint` in [model]?",
    );
}

#[test]
fn planned_keys_are_not_typos() {
    refuse(
        "lora.alpha_pattern = { q_proj = 4 }",
        "r.toml:4:6: `alpha_pattern` in [lora] is not supported yet; remove it",
    );
    refuse(
        "output.export = ['peft', 'merged-gguf']",
        "r.toml:4:26: output.export = \"merged-gguf\" is not supported yet; remove it",
    );
}

#[test]
fn errors_name_both_types() {
    refuse("lora.rank = '16'", "r.toml:4:13: lora.rank: expected an integer, found the string \"16\"");
    refuse("lora.rank = 16.0", "r.toml:4:13: lora.rank: expected an integer, found the number 16");
    refuse("train.learning_rate = true", "r.toml:4:23: train.learning_rate: expected a number, found true");
    refuse("data.packing = 1", "r.toml:4:16: data.packing: expected true or false, found the integer 1");
    refuse(
        "eval.samples = 'Hi'",
        "r.toml:4:16: eval.samples: expected a list of strings, found the string \"Hi\"",
    );
    refuse(
        "eval.samples = ['Hi', 3]",
        "r.toml:4:23: eval.samples: expected a list of strings, found the integer 3",
    );
    refuse(
        "data.valid = 2026-01-01",
        "r.toml:4:14: data.valid: expected a path or a list of paths, found the date 2026-01-01",
    );
    refuse("lora = 3", "r.toml:4:8: lora: expected a section of keys, found the integer 3");
    refuse(
        "train.gradient_checkpointing = 'yes'",
        "r.toml:4:32: train.gradient_checkpointing: expected \"auto\", true or false, found the string \"yes\"",
    );
    refuse(
        "train.offload_experts = 'host'",
        "r.toml:4:25: train.offload_experts: expected \"auto\", true or false, found the string \"host\"",
    );
    refuse_json(
        "{\"model\": {\"base\": \"tiny\"},\n \"lora\": {\n  \"rank\": null}, \"data\": {\"train\": \"a\"}, \"output\": {\"dir\": \"b\"}}",
        "r.json:3:11: lora.rank: expected an integer, found null",
    );
    refuse_json("[1]", "r.json:1:1: expected an object of sections, found a list");
}

#[test]
fn out_of_range_errors_name_the_range() {
    refuse("train.learning_rate = -1", "r.toml:4:23: train.learning_rate = -1: expected a number > 0");
    refuse("train.learning_rate = nan", "r.toml:4:23: train.learning_rate = NaN: expected a number > 0");
    refuse("lora.alpha = inf", "r.toml:4:14: lora.alpha = inf: expected a number > 0 that f32 can hold");
    refuse("lora.rank = 0", "r.toml:4:13: lora.rank = 0: expected an integer >= 1");
    refuse("train.epochs = -3", "r.toml:4:16: train.epochs = -3: expected an integer >= 1");
    refuse(
        "lora.rank = 4294967296",
        "r.toml:4:13: lora.rank = 4294967296: expected an integer <= 4294967295",
    );
    refuse("lora.dropout = 1", "r.toml:4:16: lora.dropout = 1: expected a number from 0 to below 1");
    refuse(
        "train.warmup_ratio = 1.5",
        "r.toml:4:22: train.warmup_ratio = 1.5: expected a number from 0 to 1",
    );
    refuse(
        "train.adam_beta2 = 1.0",
        "r.toml:4:20: train.adam_beta2 = 1: expected a number from 0 to below 1",
    );
    refuse(
        "data.val_size = 1.5",
        "r.toml:4:17: data.val_size = 1.5: expected 0 (none), a fraction below 1, or a whole count",
    );
    refuse("train.optimizer = 'adam'", "r.toml:4:19: train.optimizer = \"adam\": expected `adamw` or `sgd`");
    refuse("data.valid = []", "r.toml:4:14: data.valid = []: expected at least one path");
    refuse("data.valid = ''", "r.toml:4:14: data.valid = \"\": expected a non-empty string");
    refuse(
        "lora.target_modules = ['q_prj']",
        "r.toml:4:24: lora.target_modules = \"q_prj\": expected the name of a module; did you mean \"q_proj\"?",
    );
    refuse(
        "lora.target_modules = ['nextn.eh_proj']",
        "r.toml:4:24: lora.target_modules = \"nextn.eh_proj\": expected a module that replies use; layers for multi-token prediction are \
         not trained",
    );
    refuse(
        "lora.target_modules = ['q_proj', 'attn_q']",
        "r.toml:4:34: lora.target_modules = \"attn_q\": expected each module once",
    );
    refuse(
        "lora.target_modules = 'all'",
        "r.toml:4:23: lora.target_modules = \"all\": expected \"all-linear\" or a list of module names",
    );
    let layers = "\"all\", numbers from 0 such as 3, ranges such as \"8-15\", \"last 8\", or a list of these";
    for (text, found) in
        [("'0..4'", "\"0..4\""), ("[]", "[]"), ("'9-8'", "\"9-8\""), ("-1", "-1"), ("'last 0'", "\"last 0\"")]
    {
        refuse(
            &format!("lora.layers = {text}"),
            &format!("r.toml:4:15: lora.layers = {found}: expected {layers}"),
        );
    }
    refuse("lora.layers = true", &format!("r.toml:4:15: lora.layers: expected {layers}, found true"));
    refuse(
        "lora.rank_pattern = { q_prj = 4 }",
        "r.toml:4:23: unknown module `q_prj` in lora.rank_pattern; did you mean \"q_proj\"?",
    );
    refuse(
        "lora.rank_pattern = { q_proj = 0 }",
        "r.toml:4:32: lora.rank_pattern = 0: expected a rank of 1 or more",
    );
    refuse(
        "lora.rank_pattern = { q_proj = 4, attn_q = 8 }",
        "r.toml:4:21: lora.rank_pattern: `attn_q` is named twice; remove one of the two",
    );
    refuse_json(
        "{\"model\": {\"base\": \"tiny\"},\n \"lora\": {\"alpha\": 1e999}, \"data\": {\"train\": \"a\"}, \"output\": {\"dir\": \"b\"}}",
        "r.json:2:20: lora.alpha = inf: expected a number > 0 that f32 can hold",
    );
}

#[test]
fn contradictions_are_rejected() {
    refuse(
        "data.valid = 'v.jsonl'\ndata.val_size = 0.1",
        "r.toml:5:17: data.val_size: `valid` already names the validation samples; remove one of the two",
    );
    refuse(
        "train.warmup_steps = 5\ntrain.warmup_ratio = 0.1",
        "r.toml:5:22: train.warmup_ratio: `warmup_steps` already sets the warm-up; remove one of the two",
    );
    refuse(
        "train.gradient_checkpointing = true\ntrain.memory_limit = 6",
        "r.toml:5:22: train.memory_limit: `gradient_checkpointing` already decides what is kept; remove one of the two",
    );
    refuse("train.memory_limit = 0", "r.toml:4:22: train.memory_limit = 0: expected a number > 0");
    refuse(
        "eval.early_stopping_patience = 3",
        "r.toml:4:32: eval.early_stopping_patience: it counts evaluations, but eval.steps is 0; set eval.steps, or remove this key",
    );
    refuse(
        "eval.metrics = ['regex']",
        "r.toml:4:16: eval.metrics: \"regex\" needs a pattern: set eval.regex, such as '^(yes|no)$'",
    );
    refuse(
        "eval.regex = 'a'",
        "r.toml:4:14: eval.regex: it is the pattern of the metric \"regex\": add that to eval.metrics, or remove this key",
    );
    refuse(
        "eval.metrics = ['regex']\neval.regex = '(a'",
        "r.toml:5:14: eval.regex: \"(a\" is not a regular expression: error: unclosed group",
    );
    refuse(
        "eval.metric_samples = 5",
        "r.toml:4:23: eval.metric_samples: there are no eval.metrics; set them, or remove this key",
    );
    refuse(
        "eval.metrics = ['json']\neval.best_metric = 'rouge_l'",
        "r.toml:5:20: eval.best_metric: eval.metrics does not have it; add \"rouge_l\" there",
    );
    refuse(
        "eval.metrics = ['bleu']",
        "r.toml:4:17: eval.metrics = \"bleu\": expected one of `exact_match`, `regex`, `json`, `rouge_l`",
    );
    refuse(
        "output.ollama = 'a b'",
        "r.toml:4:17: output.ollama: \"a b\" is not a name in Ollama's form [host/][namespace/]model[:tag]; use letters, digits, \
         `.`, `_` and `-`",
    );
}

#[test]
fn changes_that_affect_the_result_are_listed() {
    let (earlier, later) = (accept(""), parse(FULL, &NONE).expect("valid"));
    assert_eq!(earlier.changes_since(&earlier), []);
    let keys: Vec<String> = later.changes_since(&earlier).into_iter().map(|c| c.key).collect();
    let expected = "lora.rank lora.alpha lora.rslora lora.dropout lora.target_modules lora.layers \
                    lora.rank_pattern lora.init_from data.val_size data.system \
                    data.max_seq_len data.packing data.shuffle train.seed train.epochs train.max_steps train.batch_size \
                    train.gradient_accumulation_steps train.shares train.optimizer train.learning_rate train.adam_beta1 \
                    train.adam_beta2 train.adam_epsilon train.lr_scheduler train.min_lr_ratio train.warmup_ratio \
                    train.warmup_steps train.weight_decay train.max_grad_norm";
    assert_eq!(keys.join(" "), expected);
    let said = |rest: &str, before: &str| {
        let changes = accept(rest).changes_since(&accept(before));
        changes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(
        said("train.seed = 7\ntrain.max_steps = 9", ""),
        "train.seed was 42 and is 7; train.max_steps was not set and is 9"
    );
    assert_eq!(said("", "train.warmup_steps = 3").lines().count(), 1);
    assert_eq!(
        said("", "train.warmup_steps = 3"),
        "train.warmup_ratio was 0.0 and is 0.05; train.warmup_steps was 3 and is not set"
    );
    assert_eq!(
        said("lora.target_modules = ['q_proj']", ""),
        "lora.target_modules was \"all-linear\" and is [\"attn_q\"]"
    );
}

#[test]
fn errors_name_a_newer_version() {
    let recipe = accept("");
    let resolved = recipe.to_resolved_toml();
    let own = env!("CARGO_PKG_VERSION");
    assert!(resolved.starts_with(&format!("# rullama-train {own}: ")), "{resolved}");
    assert_eq!(parse(&resolved, &NONE).expect("its own output"), recipe);
    let written_by = |version: &str, rest: &str| {
        let text = resolved.replacen(own, version, 1) + rest;
        parse(&text, &NONE).map_err(|error| error.to_string())
    };
    assert_eq!(written_by("9.10.0", "").expect("nothing new in it"), recipe);
    let line = resolved.lines().count() + 1;
    let unknown = format!(
        "r.toml:{line}:1: unknown key `flux` in [device]; [device] takes backend, gpu, kernels, tune"
    );
    assert_eq!(
        written_by("9.10.0", "flux = 1\n").expect_err("unknown"),
        format!(
            "{unknown}. The recipe was written by rullama-train 9.10.0, and this is version {own}: update the program"
        )
    );
    for old in [own, "0.0.9", "nonsense"] {
        assert_eq!(written_by(old, "flux = 1\n").expect_err("unknown"), unknown, "{old}");
    }
}

#[test]
fn errors_of_missing_keys_name_accepted_values() {
    let text = "data.train = 'a'\noutput.dir = 'b'";
    assert_message(
        parse(text, &NONE),
        "r.toml: `model.base` is missing, expected \"tiny\", a name that `rullama-train models` lists such as \"gemma4:e2b\", hf:ORG/REPO:TYPE, or the path of a .gguf file",
    );
    let text = "model.base = 'tiny'\noutput.dir = 'b'";
    assert_message(
        parse(text, &NONE),
        "r.toml: `data.train` is missing, expected a file of samples, a folder or a pattern such as \"data/*.jsonl\", or a list \
         of them",
    );
    let text = "model.base = 'tiny'\ndata.train = 'a'";
    assert_message(
        parse(text, &NONE),
        "r.toml: `output.dir` is missing, expected the folder for the files of the run",
    );
}

#[test]
fn overrides_win_and_are_named_in_errors() {
    let overrides = [
        ("train.learning_rate", "2e-4"),
        ("model.base", "gemma4:e2b"),
        ("lora.target_modules", "['q_proj']"),
        ("output.dir", "2026-01-01"),
        ("train.epochs", "5"),
        ("train.epochs", "6"),
    ];
    let recipe = parse(&format!("{REQUIRED}train.epochs = 4"), &overrides).expect("valid");
    assert_eq!(recipe.train.learning_rate, 2e-4);
    assert_eq!(recipe.model.base, "gemma4:e2b");
    assert_eq!(recipe.lora.target_modules, TargetModules::Only(vec![Module::AttnQ]));
    assert_eq!(recipe.output.dir, PathBuf::from("2026-01-01"), "a date is the bare string");
    assert_eq!(recipe.train.epochs, 6, "the last one wins");

    refuse_override(
        "lora.rnak",
        "8",
        "--set lora.rnak=8: unknown key `rnak` in [lora]; did you mean `rank`?",
    );
    refuse_override(
        "lora.rank",
        "eight",
        "--set lora.rank=eight: lora.rank: expected an integer, found the string \"eight\"",
    );
    refuse_override("lora.rank", "0", "--set lora.rank=0: lora.rank = 0: expected an integer >= 1");
    refuse_override("loar.rank", "8", "--set loar.rank=8: unknown section [loar]; did you mean [lora]?");
    refuse_override(
        "rank",
        "8",
        "--set rank=8: unknown key `rank` outside any section; `rank` belongs in [lora]",
    );
    refuse_override(
        "lora.rank",
        "1\nalpha = 2",
        "--set lora.rank=1\nalpha = 2: lora.rank: expected an integer, found the string \"1\\nalpha = 2\"",
    );

    assert_eq!(split_override("data.train = a=b").expect("valid"), ("data.train", "a=b"));
    let error = split_override("lora.rank").expect_err("no value").to_string();
    assert_eq!(
        error,
        "--set lora.rank: expected section.key=value, for instance --set train.learning_rate=2e-4"
    );
}

#[test]
fn syntax_errors_give_the_line() {
    refuse("lora.rank 8", "r.toml:4:11: key with no value, expected `=`");
    refuse("lora.rank = 8\nlora.rank = 9", "r.toml:5:6: duplicate key");
    refuse_json("{\n \"lora\": {\"rank\": 8,}\n}", "r.json:2:21: key must be a string");
    refuse_json("{\"lora\": {\"rank\": 8,\n \"rank\": 9}}", "r.json:2:2: duplicate key `rank`");
    refuse_json("", "r.json:1:1: EOF while parsing a value");
}

#[test]
fn hostile_files_are_errors() {
    let deep = format!("{{\"lora\": {{\"rank\": {}1{}}}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(Recipe::parse(&deep, Syntax::Json, "r.json", &NONE).is_err());
    let deep = format!("{REQUIRED}lora.rank = {}1{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(parse(&deep, &NONE).is_err());
    // Truncated anywhere, a recipe is read or rejected without a panic.
    for end in (0..FULL.len()).filter(|&end| FULL.is_char_boundary(end)) {
        let _ = parse(&FULL[..end], &NONE);
    }
}

#[test]
fn missing_files_are_named_by_absolute_path() {
    let recipe = accept("");
    let expected = std::env::current_dir().expect("a working directory").join("a.jsonl");
    assert_eq!(
        recipe.check_files().expect_err("no such file").to_string(),
        format!(
            "data.train: {} does not exist (paths in a recipe are relative to the working directory)",
            expected.display()
        )
    );
    let error = Recipe::read(Path::new("no/such.toml"), &NONE).expect_err("no such file").to_string();
    let absolute = std::env::current_dir().expect("a working directory").join("no").join("such.toml");
    assert!(error.starts_with(&format!("cannot read the recipe {}: ", absolute.display())), "{error}");
}

#[test]
fn sources_have_their_own_weight_and_format() {
    let text = "model.base = 'tiny'\noutput.dir = 'runs/a'\n[data]\nformat = 'messages'\n";
    let with = |sources: &str| parse(&format!("{text}{sources}"), &NONE);
    let recipe = with(
        "[[data.sources]]\npath = 'a'\n[[data.sources]]\npath = 'b/*.gz'\nweight = 0.5\nformat = 'text'\ntrain_on = 'all'\n",
    )
    .expect("sound");
    let sources = recipe.data.training();
    assert_eq!(sources.len(), 2);
    assert_eq!((sources[0].weight, sources[0].format), (1.0, DataFormat::Messages));
    assert_eq!(
        (sources[1].weight, sources[1].format, sources[1].train_on),
        (0.5, DataFormat::Text, TrainOn::All)
    );
    assert_eq!(parse(&recipe.to_toml(), &NONE).expect("sound"), recipe);
    // `train` is a source of weight 1.
    let plain = accept("data.train_on = 'all'");
    assert_eq!((plain.data.training()[0].weight, plain.data.training()[0].train_on), (1.0, TrainOn::All));

    let refuse = |sources: &str, message: &str| assert_message(with(sources), message);
    refuse(
        "",
        "r.toml: `data.train` is missing, expected a file of samples, a folder or a pattern such as \"data/*.jsonl\", or a list of them",
    );
    refuse(
        "train = 'c'\n[[data.sources]]\npath = 'a'\n",
        "r.toml:6:1: data.sources: `train` already names the samples; remove one of the two",
    );
    refuse(
        "[[data.sources]]\nweight = 2\n",
        "r.toml: `data.sources.path` is missing, expected a file, a folder or a pattern such as \"data/*.jsonl\"",
    );
    refuse(
        "[[data.sources]]\npath = 'a'\nwieght = 2\n",
        "r.toml:7:1: unknown key `wieght` in [[data.sources]]; did you mean `weight`?",
    );
    refuse(
        "[[data.sources]]\npath = 'a'\nweight = 0\n",
        "r.toml:7:10: data.sources.weight = 0: expected a number > 0, at most 1000",
    );
    refuse(
        "sources = 'a'",
        "r.toml:5:11: data.sources: expected tables [[data.sources]], found the string \"a\"",
    );
    refuse(
        "sources = []",
        "r.toml:5:11: data.sources = []: expected at least one of tables [[data.sources]]",
    );
    refuse(
        "sources = [1]",
        "r.toml:5:12: data.sources: expected tables [[data.sources]], found the integer 1",
    );
}

#[test]
fn templates_and_caches_are_names_or_paths() {
    use rullama_train::recipe::{Cache, Template};
    let template = |value: &str| accept(&format!("data.template = '{value}'")).data.template;
    assert_eq!(template("auto"), Template::Auto);
    assert_eq!(template("gguf"), Template::Gguf);
    assert_eq!(template("gemma4"), Template::BuiltIn("gemma4"));
    assert_eq!(template("my/chat.jinja"), Template::File("my/chat.jinja".into()));
    let cache = |value: &str| accept(&format!("data.cache = {value}")).data.cache;
    assert_eq!(cache("true"), Cache::User);
    assert_eq!(cache("false"), Cache::Off);
    assert_eq!(cache("'runs/cache'"), Cache::Folder("runs/cache".into()));
    refuse(
        "data.cache = 1",
        "r.toml:4:14: data.cache: expected true, false or a folder, found the integer 1",
    );
    refuse(
        "data.chat_template = 'x'",
        "r.toml:4:6: unknown key `chat_template` in [data]; did you mean `template` in [data]?",
    );
    refuse(
        "data.train_on = 'user'",
        "r.toml:4:17: data.train_on = \"user\": expected one of `assistant`, `answers`, `last_assistant`, `all`",
    );
}

#[test]
fn samples_have_other_names_of_keys() {
    let text = "data.fields = { prompt = 'q', completion = 'a' }\ndata.system = 'Be brief.'";
    let recipe = accept(text);
    assert_eq!(recipe.data.fields, [("completion".into(), "a".into()), ("prompt".into(), "q".into())]);
    assert_eq!(recipe.data.training()[0].fields, recipe.data.fields);
    let again =
        parse(&recipe.to_toml(), &NONE).unwrap_or_else(|error| panic!("{error}\n{}", recipe.to_toml()));
    assert_eq!(again.data.system, recipe.data.system);
    refuse(
        "data.fields = 'q'",
        "r.toml:4:15: data.fields: expected a table such as { prompt = \"question\", completion = \"answer\" }, found the string \"q\"",
    );
    refuse(
        "data.fields = { promt = 'q' }",
        "r.toml:4:17: unknown key `promt` in data.fields; did you mean `prompt`?",
    );
    refuse(
        "data.fields = { prompt = 'q', completion = 'q' }",
        "r.toml:4:44: data.fields = \"q\": expected each key or column once",
    );
    let own = "model.base = 'tiny'\noutput.dir = 'o'\n[data]\nfields = { text = 'b' }\n[[data.sources]]\npath = 'a'\n\
               [[data.sources]]\npath = 'c'\nfields = { text = 'd' }\n";
    let sources = parse(own, &NONE).expect("sound").data.sources;
    assert_eq!(sources.iter().map(|s| s.fields[0].1.as_str()).collect::<Vec<_>>(), ["b", "d"]);
}

/// Problems of a value under the part of JSON Schema that the recipe's schema uses.
fn problems(schema: &Json, value: &Json, path: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut fail = |problem: &str| found.push(format!("{path}: {problem}: {value}"));
    if let Some(ty) = schema["type"].as_str() {
        let fits = match ty {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            other => panic!("type {other}"),
        };
        if !fits {
            fail(ty);
        }
    }
    if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
        fail("enum");
    }
    if schema.get("const").is_some_and(|only| only != value) {
        fail("const");
    }
    if schema["anyOf"].as_array().is_some_and(|any| any.iter().all(|s| !problems(s, value, path).is_empty()))
    {
        fail("anyOf");
    }
    if schema["minimum"].as_u64().zip(value.as_u64()).is_some_and(|(least, value)| value < least) {
        fail("minimum");
    }
    for key in schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str) {
        if value.get(key).is_none() {
            fail(&format!("required {key}"));
        }
    }
    for (key, inside) in value.as_object().into_iter().flatten() {
        match schema["properties"].get(key) {
            Some(schema) => found.extend(problems(schema, inside, &format!("{path}.{key}"))),
            None if schema["additionalProperties"] == false => found.push(format!("{path}: unknown {key}")),
            None => {}
        }
    }
    for item in value.as_array().into_iter().flatten().filter(|_| schema["items"].is_object()) {
        found.extend(problems(&schema["items"], item, path));
    }
    found
}

#[test]
fn the_schema_accepts_every_recipe_and_describes_every_key() {
    let schema = rullama_train::recipe::schema();
    let check = |text: &str| {
        let table: toml::Table = toml::from_str(text).expect("TOML");
        problems(&schema, &serde_json::to_value(table).expect("JSON"), "")
    };
    for entry in std::fs::read_dir(root().join("recipes")).expect("the repository has recipes/") {
        let path = entry.expect("a readable folder").path();
        let text = std::fs::read_to_string(&path).expect("a recipe");
        assert_eq!(check(&text), [""; 0], "{}", path.display());
        // With every default filled in.
        let recipe = Recipe::read(&path, &NONE).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(check(&recipe.to_toml()), [""; 0], "{}", path.display());
    }
    for (section, keys) in schema["properties"].as_object().expect("sections") {
        for (key, described) in keys["properties"].as_object().into_iter().flatten() {
            let has_type = ["type", "enum", "anyOf"].iter().any(|word| described.get(word).is_some());
            let text = described["description"].as_str().unwrap_or_default();
            assert!(has_type && !text.is_empty(), "{section}.{key}: {described}");
        }
    }
    let data = &schema["properties"]["data"]["properties"];
    assert_eq!(data["max_seq_len"]["minimum"], 2);
    assert_eq!(data["overlong"]["enum"], serde_json::json!(["error", "drop", "truncate"]));
    assert_eq!(data["sources"]["items"]["required"], serde_json::json!(["path"]));
    let refused = |rest: &str, expected: &str| {
        let found = check(&format!("{REQUIRED}{rest}"));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{rest}: {found:?}");
    };
    refused("lora.rnak = 1", ".lora: unknown rnak");
    refused("lora.rank = 0", ".lora.rank: minimum");
    refused("data.format = 'csv'", ".data.format: enum");
    refused("output.export = ['gguf']", ".output.export: enum");
    refused("train.epochs = 'many'", ".train.epochs: integer");
    refused("[[data.sources]]\nweight = 2", ".data.sources: required path");
    // Editors find the schema of a JSON recipe under a key of its own.
    let json =
        r#"{"$schema": "x", "model": {"base": "tiny"}, "data": {"train": "a"}, "output": {"dir": "o"}}"#;
    assert!(Recipe::parse(json, Syntax::Json, "r.json", &NONE).is_ok());
}

#[test]
fn common_slips_get_a_hint() {
    refuse(
        "output.export = 'gguf'",
        "r.toml:4:17: output.export: expected a list of strings such as [\"gguf-lora\"], found the string \"gguf\"",
    );
    for path in ["C:\\new\\my.csv", "C:\\Users\\my.csv"] {
        let error = parse(&format!("data.train = \"{path}\""), &NONE).expect_err("an escape").to_string();
        assert!(error.ends_with("; write a path with \\ in 'single quotes', or with / instead"), "{error}");
    }
}
