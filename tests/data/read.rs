//! From a recipe's `[data]` to samples: weighted sources, folders, and the template that `auto` selects.

use std::path::{MAIN_SEPARATOR, Path};

use rullama_train::data::template::Template;
use rullama_train::recipe::{ObjectiveName, Recipe, Syntax};
use rullama_train::run::draft::{Picked, Proposal};
use rullama_train::run::pace::Work;
use rullama_train::run::{Data, OpenBase, Ready, Steps, wording};

fn recipe(data: &str, base: &str) -> Recipe {
    let text = format!(
        "[model]\nbase = '{base}'\n[output]\ndir = 'x'\n[train]\nepochs = 4\n[data]\nmax_seq_len = 128\nval_size = 0\n{data}"
    );
    let none: [(&str, &str); 0] = [];
    Recipe::parse(&text, Syntax::Toml, "r.toml", &none).unwrap_or_else(|error| panic!("{error}"))
}

const TINY_FILE: &str = "models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf";

fn write(folder: &Path, name: &str, questions: std::ops::Range<usize>) {
    let line = |i| format!("{{\"prompt\": \"What is {i} plus 1?\", \"completion\": \"{}.\"}}\n", i + 1);
    std::fs::write(folder.join(name), questions.map(line).collect::<String>()).expect("written");
}

#[test]
fn sources_are_mixed_by_weight() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path();
    std::fs::create_dir(dir.join("often")).expect("made");
    write(dir, "often/a.jsonl", 0..3);
    write(dir, "often/b.jsonl", 3..5);
    write(dir, "seldom.jsonl", 10..18);
    let d = dir.display();
    let recipe = recipe(
        &format!(
            "[[data.sources]]\npath = '{d}/often'\nweight = 2\n[[data.sources]]\npath = '{d}/sel*.jsonl'\nweight = 0.25\n"
        ),
        "tiny",
    );
    let frozen = OpenBase::open(&recipe).expect("the tiny base");
    let data = Data::read(&recipe, &frozen).expect("sound");
    assert_eq!(data.weights, [vec![2.0; 5], vec![0.25; 8]].concat());
    let files: Vec<(String, usize)> = data
        .sources
        .iter()
        .map(|s| (s.path.file_name().expect("a file").to_string_lossy().into_owned(), s.samples))
        .collect();
    assert_eq!(files, [("a.jsonl".into(), 3), ("b.jsonl".into(), 2), ("seldom.jsonl".into(), 8)]);
    let steps = Steps::plan_weighted(&recipe, &data.train, &data.weights).expect("a plan");
    let seen = |i: usize| steps.plans.iter().flatten().flatten().filter(|j| **j == i).count();
    // Four epochs: each of the first five samples twice per epoch, each of the eight once in all.
    assert_eq!((0..13).map(seen).collect::<Vec<_>>(), [vec![8; 5], vec![1; 8]].concat());
    assert!(data.notices.is_empty(), "a weight makes no duplicates: {:?}", data.notices);
    // A validation split leaves each sample its weight.
    let split =
        Recipe::parse(&recipe.to_toml(), Syntax::Toml, "r", &[("data.val_size", "6")]).expect("sound");
    let data = Data::read(&split, &frozen).expect("sound");
    let plus = |text: &str| data.train.iter().filter(|s| s.origin.contains(text)).count();
    assert_eq!(data.weights.iter().filter(|w| **w == 2.0).count(), plus("often"));
    assert_eq!((data.train.len(), data.weights.len(), data.validation.len()), (7, 7, 6));
}

#[test]
fn the_files_own_template_and_the_built_in_one_give_the_tiny_model_the_same_samples() {
    let data = "train = 'datasets/pirate.jsonl'\n";
    let read = |data: &str, base: &str| {
        let recipe = recipe(data, base);
        let frozen = OpenBase::open(&recipe).expect("the tiny base");
        let jinja = matches!(frozen.template, Template::Jinja(_));
        (jinja, frozen.prompt("Hi").expect("a prompt"), Data::read(&recipe, &frozen).expect("sound").train)
    };
    let (jinja, prompt, built_in) = read(data, "tiny");
    assert!(!jinja && built_in.len() == 400);
    for (data, base) in [(data.to_owned(), TINY_FILE), (format!("{data}template = 'gguf'\n"), "tiny")] {
        let (jinja, found_prompt, found) = read(&data, base);
        assert!(jinja, "{base}");
        assert_eq!(found_prompt, prompt);
        assert_eq!(found, built_in);
    }
    let (jinja, _, found) = read(&format!("{data}template = 'gemma4'\n"), TINY_FILE);
    assert!(!jinja && found == built_in);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.jinja");
    std::fs::write(&path, "{% for m in messages %}{{ m.content }}").expect("written");
    let recipe = recipe(&format!("{data}template = '{}'\n", path.display()), "tiny");
    let Err(error) = OpenBase::open(&recipe) else { panic!("broken") };
    let error = error.to_string();
    assert!(
        error.starts_with("data.template: the chat template ")
            && error.contains(&format!("{MAIN_SEPARATOR}t.jinja cannot be read: unexpected end of input")),
        "{error}"
    );
}

#[test]
fn validation_samples_in_the_training_data_are_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "train.jsonl", 0..6);
    write(folder.path(), "valid.jsonl", 5..8);
    let d = folder.path().display();
    let text =
        format!("train = '{d}/train.jsonl'\nvalid = '{d}/valid.jsonl'\n").replace("val_size = 0\n", "");
    let recipe = recipe(&text, "tiny");
    let frozen = OpenBase::open(&recipe).expect("the tiny base");
    let data = Data::read(&recipe, &frozen).expect("sound");
    let alone = Data::read_validation(&recipe, &frozen, &recipe.data.valid).expect("sound");
    assert_eq!((alone.train.len(), alone.validation), (0, data.validation));
    assert_eq!(data.validation_counts, [(format!("{d}/valid.jsonl"), 3)]);
    let notices: Vec<String> = data.notices.iter().map(ToString::to_string).collect();
    assert_eq!(
        notices,
        [
            "data.train: there are only 6 samples to train on: expect the model to repeat them word by word; a style takes about 50, \
             a task some hundreds"
                .to_owned(),
            format!(
            "validation: 1 of 3 validation samples are also training samples, so the validation loss is too low; the first, {d}/valid.jsonl \
             line 1, equals {d}/train.jsonl line 6"
        )]
    );
}

/// A copy of the tiny base whose context has `tokens` tokens.
fn tiny_with_context(folder: &Path, tokens: u32) -> String {
    let mut bytes = std::fs::read(TINY_FILE).expect("the tiny base");
    let key = b"gemma4.context_length";
    let at = bytes.windows(key.len()).position(|found| found == key).expect("the key") + key.len();
    assert_eq!(bytes[at..at + 4], 4u32.to_le_bytes(), "a u32");
    bytes[at + 4..at + 8].copy_from_slice(&tokens.to_le_bytes());
    let path = folder.join("tiny.gguf");
    std::fs::write(&path, bytes).expect("written");
    path.display().to_string()
}

/// Program and page open runs by [`Ready`].
#[test]
fn rows_without_a_length_fit_the_longest_sample() {
    let folder = tempfile::tempdir().expect("a folder");
    let long = "one two three four ".repeat(500);
    let path = folder.path().join("long.jsonl");
    std::fs::write(&path, format!("{{\"text\": \"{long}\"}}\n")).expect("written");
    let base = tiny_with_context(folder.path(), 8192);
    let settings = recipe(&format!("train = '{}'\n", path.display()), &base);
    let settings =
        Recipe { data: rullama_train::recipe::Data { max_seq_len: None, ..settings.data }, ..settings };
    let frozen = OpenBase::open(&settings).expect("a base");
    let ready = Ready::read(&settings, &frozen).unwrap_or_else(|error| panic!("{error}"));
    let longest = ready.prepared.data.train[0].ids.len();
    assert!(longest > 2048, "{longest} tokens");
    assert_eq!(ready.recipe.data.max_seq_len, Some(longest.next_multiple_of(256)));
    let notices: Vec<String> = ready.prepared.data.notices.iter().map(ToString::to_string).collect();
    assert!(notices[1].contains("not set; rows have"), "{notices:?}");
}

#[test]
fn samples_of_any_kind_have_their_objective() {
    for (file, objective) in
        [("pirate", ObjectiveName::Sft), ("preference", ObjectiveName::Dpo), ("stories", ObjectiveName::Sft)]
    {
        let path = format!("datasets/{file}.jsonl");
        for name in [ObjectiveName::Sft, ObjectiveName::Dpo] {
            let mut recipe = recipe(&format!("train = '{path}'\n"), "tiny");
            recipe.train.objective.name = name;
            let frozen = OpenBase::open(&recipe).expect("the tiny base");
            let picked = Picked::read(&recipe, vec![path.clone().into()], &frozen);
            let picked = picked.unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!(picked.objective, objective, "{path}");
            assert!(picked.data.train.len() > 100 && picked.data.validation.is_empty());
        }
    }
}

#[test]
fn prompts_of_plain_text_are_continued_as_they_stand() {
    let prompt = |data: &str| {
        let recipe = recipe(&format!("{data}\n[eval]\nsamples = ['One day']\n"), "tiny");
        let frozen = OpenBase::open(&recipe).expect("the tiny base");
        let ready = Ready::read(&recipe, &frozen).unwrap_or_else(|error| panic!("{error}"));
        frozen.tokenizer.decode(&ready.prepared.prompts[0].1)
    };
    assert_eq!(prompt("train = 'datasets/stories.jsonl'\nformat = 'text'"), "<bos>One day");
    let asked = prompt("train = 'datasets/pirate.jsonl'");
    assert!(asked.starts_with("<bos><|turn>user") && asked.contains("One day"), "{asked}");
}

#[test]
fn prompts_get_a_recipe_for_the_rewards_that_were_named() {
    let text = "[model]\nbase = 'tiny'\n[output]\ndir = 'x'\n[data]\ntrain = 'datasets/sums.jsonl'\n[train]\nobjective = 'grpo'\n\
                [[rewards]]\nname = 'number'\n[[rewards]]\nname = 'length'\ntarget_len = 10\nweight = 0.1\n";
    let parse = |text: &str| {
        let none: [(&str, &str); 0] = [];
        Recipe::parse(text, Syntax::Toml, "r.toml", &none).unwrap_or_else(|error| panic!("{error}\n{text}"))
    };
    let asked = parse(text);
    let frozen = OpenBase::open(&asked).expect("the tiny base");
    let file = "datasets/sums.jsonl";
    let picked = Picked::read(&asked, vec![file.into()], &frozen).expect("prompts");
    assert_eq!(picked.objective, ObjectiveName::Grpo);
    let Proposal { recipe: text, words, .. } = Proposal::of(&picked, &asked, &[file], &frozen);
    let proposed = parse(&text);
    assert_eq!(proposed.rewards, asked.rewards);
    assert_eq!(proposed.train.max_steps, Some(60));
    assert_eq!(proposed.eval.samples.len(), 3, "{text}");
    assert!(words.starts_with("60 steps, each with 8 completions of 4 prompts"), "{words}");
    assert_eq!(
        wording::tries(&proposed).as_deref(),
        Some("8 completions for each of 4 prompts a step, up to 16 tokens, at temperature 1.5")
    );
    let rewards: Vec<String> = proposed.rewards.iter().map(wording::reward).collect();
    assert_eq!(
        rewards,
        [
            "number: 1 where the last number is that of the column \"answer\"",
            "length: 1 at 10 tokens, less the further it is from that, times 0.1"
        ]
    );
    let ready = Ready::read(&proposed, &frozen).unwrap_or_else(|error| panic!("{error}"));
    let work = Work::of(&ready.prepared, 20, 16);
    // Each of 60 steps has 32 completions of 16 tokens, after prompts.
    assert!(work.tokens > 60 * 32 * 16, "{work:?}");
}
