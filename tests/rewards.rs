//! Rewards: their keys in recipes, and what they make of completions.

use rullama_train::recipe::{Recipe, Reward, RewardKind, Syntax, schema};
use rullama_train::rewards::{Completion, Rewards, totals};
use serde_json::{Map, Value as Json, json};

const REQUIRED: &str =
    "model.base = 'tiny'\ndata.train = 'a.jsonl'\noutput.dir = 'runs/a'\ntrain.objective = 'grpo'\n";

/// All rewards, with every key that they need.
const ALL: &str = r#"[[rewards]]
name = "regex"
pattern = '^\d+$'
full_match = true
after = "</think>"
[[rewards]]
name = "exact_match"
column = "label"
weight = -1
[[rewards]]
name = "number"
tolerance = 0.5
[[rewards]]
name = "json"
fenced = true
[[rewards]]
name = "think_format"
[[rewards]]
name = "length"
max_completion_len = 100
soft_punish_cache = 20
[[rewards]]
name = "length"
target_len = 10
[[rewards]]
name = "repetition"
ngram_size = 2
max_penalty = -0.5
[[rewards]]
name = "command"
command = ["sh", "-c", "cat"]
[[rewards]]
name = "url"
url = "http://localhost:1/v1"
model = "judge"
rubric = "{prompt} {completion} {label}"
"#;

fn parse(text: &str, overrides: &[(&str, &str)]) -> Result<Recipe, String> {
    Recipe::parse(&format!("{REQUIRED}{text}"), Syntax::Toml, "r.toml", overrides).map_err(|e| e.to_string())
}

#[track_caller]
fn refuse(text: &str, message: &str) {
    assert_eq!(parse(text, &[]).expect_err("refused"), message);
}

#[test]
fn rewards_are_tables_in_toml_and_json() {
    let recipe = parse(ALL, &[]).expect("a recipe");
    let names: Vec<&str> = recipe.rewards.iter().map(Reward::name).collect();
    let expected = [
        "regex",
        "exact_match",
        "number",
        "json",
        "think_format",
        "length",
        "length",
        "repetition",
        "command",
        "url",
    ];
    assert_eq!(names, expected);
    assert_eq!(recipe.rewards[1].weight, -1.0);
    assert_eq!(recipe.rewards[2].columns(), ["answer"]);
    assert_eq!(recipe.rewards[9].columns(), ["label"]);
    let text = recipe.to_toml();
    let again = Recipe::parse::<&str>(&text, Syntax::Toml, "resolved", &[]).expect("what was written");
    assert_eq!(again, recipe, "{text}");
    let json = json!({
        "model": { "base": "tiny" }, "data": { "train": "a.jsonl" }, "output": { "dir": "runs/a" }, "train": { "objective": "grpo" },
        "rewards": [{ "name": "command", "command": ["a", "b"], "weight": 2 }],
    });
    let recipe = Recipe::parse::<&str>(&json.to_string(), Syntax::Json, "r.json", &[]).expect("a recipe");
    let kind = RewardKind::Command { command: vec!["a".into(), "b".into()], timeout: 300.0 };
    assert_eq!(recipe.rewards, [Reward { kind, weight: 2.0 }]);
}

#[test]
fn mistakes_in_rewards_have_their_place() {
    let line = |key: &str| format!("[[rewards]]\nname = 'number'\n{key}\n");
    refuse(
        "rewards = 'number'",
        "r.toml:5:11: rewards: expected tables [[rewards]], found the string \"number\"",
    );
    refuse("[rewards]\nname = 'number'", "r.toml:5:1: rewards: expected tables [[rewards]], found a table");
    refuse("rewards = []", "r.toml:5:11: rewards = []: expected at least one of tables [[rewards]]");
    refuse(
        "rewards = ['number']",
        "r.toml:5:12: rewards: expected tables [[rewards]], found the string \"number\"",
    );
    refuse(
        "[[rewards]]\nweight = 1",
        "r.toml: `rewards.name` is missing, expected the name of a reward, such as \"number\"",
    );
    refuse(&line("wieght = 2"), "r.toml:7:1: unknown key `wieght` in [[rewards]]; did you mean `weight`?");
    refuse(&line("weight = inf"), "r.toml:7:10: rewards.weight = inf: expected a finite number");
    refuse(
        &line("pattern = 'x'"),
        "r.toml:7:11: rewards.pattern: the reward \"number\" has no such key; it takes column, tolerance, after, weight",
    );
    refuse(
        "[[rewards]]\nname = 'command'\ncommand = []",
        "r.toml: `rewards.command` is missing, expected a program and its arguments, such as [\"python3\", \"reward.py\"]",
    );
    refuse(
        "[[rewards]]\nname = 'command'\ncommand = 'python3 r.py'",
        "r.toml:7:11: rewards.command: expected a list of strings, found the string \"python3 r.py\"",
    );
    refuse(
        "[[rewards]]\nname = 'length'\nmax_completion_len = 5",
        "r.toml: `rewards.soft_punish_cache` is missing, expected the number of tokens before max_completion_len over which the reward falls to -1",
    );
    refuse(
        "[[rewards]]\nname = 'length'\nmax_completion_len = 5\nsoft_punish_cache = 6",
        "r.toml:8:21: rewards.soft_punish_cache: expected at most max_completion_len",
    );
    refuse(
        "[[rewards]]\nname = 'url'\nurl = 'localhost'\nmodel = 'm'\nrubric = '{completion}'",
        "r.toml:7:7: rewards.url: \"localhost\" does not begin with http:// or https://",
    );
    refuse(
        "[[rewards]]\nname = 'url'\nurl = 'http://x'\nmodel = 'm'\nrubric = 'Good?'",
        "r.toml:9:10: rewards.rubric: expected {completion} in it, the place of the text to judge",
    );
    refuse("[[reward]]\nname = 'number'", "r.toml:5:3: unknown list [[reward]]; did you mean [[rewards]]?");
}

#[test]
fn overrides_set_the_whole_list() {
    let recipe = parse(ALL, &[("rewards", "[{ name = 'number', weight = 3 }]")]).expect("a recipe");
    assert_eq!((recipe.rewards.len(), recipe.rewards[0].weight), (1, 3.0));
    let error = parse(ALL, &[("rewards.weight", "2")]).expect_err("refused");
    let expected = "--set rewards.weight=2: rewards.weight: [[rewards]] is a list; set it as a whole: --set rewards='[{ … }]'";
    assert_eq!(error, expected);
}

#[test]
fn changes_of_rewards_are_seen() {
    let recipe = parse(ALL, &[]).expect("a recipe");
    let changed = |from: &str, to: &str| {
        let other = parse(&ALL.replacen(from, to, 1), &[]).expect("a recipe");
        let found = other.changes_since(&recipe).into_iter();
        found.map(|change| (change.to_string(), change.may_continue())).collect::<Vec<_>>()
    };
    assert_eq!(
        changed("weight = -1", "weight = 1"),
        [("rewards.2.weight was -1.0 and is 1.0".to_owned(), true)]
    );
    assert_eq!(changed("command = [", "timeout = 5\ncommand = ["), []);
    assert_eq!(changed("localhost:1", "localhost:2"), [], "the same judge at another address");
    assert_eq!(changed("[\"sh\", \"-c\", \"cat\"]", "[\"sh\"]").len(), 1);
    let added = changed("[[rewards]]\nname = \"think_format\"\n", "");
    assert!(added.iter().all(|(_, may)| *may) && !added.is_empty(), "{added:?}");
}

#[test]
fn the_schema_has_every_key_of_rewards() {
    let schema = &schema()["properties"]["rewards"];
    assert_eq!(schema["type"], "array");
    let items = &schema["items"];
    assert_eq!((&items["required"], &items["additionalProperties"]), (&json!(["name"]), &json!(false)));
    assert_eq!(items["properties"]["name"]["enum"].as_array().map(Vec::len), Some(9));
    for (key, described) in items["properties"].as_object().expect("keys") {
        let has_type = described.get("type").is_some() || described.get("enum").is_some();
        assert!(
            has_type && described["description"].as_str().is_some_and(|text| !text.is_empty()),
            "{key}: {described}"
        );
    }
    assert!(!schema["description"].as_str().expect("text").starts_with("default"), "{schema}");
}

/// The defaults of `recipes/chat.toml`, which the schema has, are those of the code.
#[test]
fn defaults_are_those_of_the_manual() {
    let needed = [
        "name = 'regex', pattern = 'x'",
        "name = 'exact_match'",
        "name = 'number'",
        "name = 'json'",
        "name = 'repetition'",
        "name = 'command', command = ['x']",
        "name = 'url', url = 'http://x', model = 'x', rubric = '{completion}'",
    ];
    let schema = schema();
    let keys = schema["properties"]["rewards"]["items"]["properties"].as_object().expect("keys");
    let mut checked = std::collections::BTreeSet::new();
    for keys_of_reward in needed {
        let reward = Reward::parse(keys_of_reward, "test").expect("a reward");
        for (key, default) in
            keys.iter().filter_map(|(key, described)| Some((key, described.get("default")?)))
        {
            match Reward::parse(&format!("{keys_of_reward}, {key} = {default}"), "test") {
                Ok(with) => {
                    assert_eq!(with, reward, "{key}");
                    checked.insert(key);
                }
                Err(error) => assert!(error.to_string().contains("has no such key"), "{error}"),
            }
        }
    }
    assert_eq!(checked.len(), 12, "{checked:?}");
}

fn row(row: Json) -> Map<String, Json> {
    let Json::Object(row) = row else { panic!("a row is an object") };
    row
}

fn open(rewards: &[&str]) -> Rewards {
    let keys: Vec<Reward> =
        rewards.iter().map(|text| Reward::parse(text, "test").expect("a reward")).collect();
    Rewards::open(&keys).expect("they open")
}

#[test]
fn several_rewards_judge_several_completions() {
    let mut rewards = open(&[
        "number",
        "name = 'exact_match', weight = 0.5",
        "name = 'number', column = 'other'",
        "{ name = 'length', target_len = 2 }",
    ]);
    assert_eq!(rewards.names(), ["number", "exact_match", "number_2", "length"]);
    assert_eq!(rewards.weights(), [1.0, 0.5, 1.0, 1.0]);
    let prompt = json!("1 + 1?");
    let rows = [
        row(json!({ "answer": "2" })),
        row(json!({ "answer": ["two", 2] })),
        row(json!({ "answer": null, "other": 3 })),
    ];
    let completion = |text, ids, row| Completion { prompt: &prompt, text, ids, finished: true, row };
    let completions = [
        completion(" 2\n", &[1, 2][..], &rows[0]),
        completion("2.0", &[1, 2, 3][..], &rows[1]),
        completion("3", &[][..], &rows[2]),
    ];
    let scores = rewards.score(&completions).expect("scores");
    assert_eq!(scores[0], [Some(1.0), Some(1.0), None]);
    assert_eq!(scores[1], [Some(1.0), Some(0.0), None]);
    assert_eq!(scores[2], [None, None, Some(1.0)]);
    assert_eq!(scores[3], [Some(1.0), Some(0.5), Some(0.0)]);
    assert_eq!(totals(&scores, &rewards.weights()), [Some(2.5), Some(1.5), Some(1.0)]);
    assert_eq!(totals(&scores[2..3], &[2.0]), [None, None, Some(2.0)]);
    assert_eq!(rewards.score(&[]).expect("nothing"), vec![Vec::<Option<f64>>::new(); 4]);
    assert!(rewards.check_columns(rows.iter()).is_ok());
    let error = rewards.check_columns(rows[..2].iter()).expect_err("a column is missing").to_string();
    assert_eq!(
        error,
        "the reward number_2: no row has the column \"other\"; the first row has answer; name one of the columns"
    );
    let object = row(json!({ "answer": { "a": 1 } }));
    let error = rewards.score(&[completion("2", &[], &object)]).expect_err("an object").to_string();
    assert!(
        error.starts_with("the reward number: the column \"answer\" has an object; expected text, a number"),
        "{error}"
    );
}

/// Any text and any row give finite values.
#[test]
fn no_completion_panics() {
    let mut rewards = open(&[
        "number",
        "exact_match",
        "name = 'regex', pattern = '(?s)^.*a', after = '</think>'",
        "name = 'json', fenced = true",
        "think_format",
        "name = 'length', max_completion_len = 3, soft_punish_cache = 0",
        "name = 'length', target_len = 1",
        "name = 'repetition', ngram_size = 4294967295",
        "repetition",
    ]);
    let pieces = [
        "<think>", "</think>", "```", "\n", "{", "}", "[", "]", "\"", ":", "1", ",", "-", "\\frac",
        "\\boxed", "é", "\u{0}", "\u{FEFF}", "a", " ", "####", "%", ".", "e9", "^", "ß", "𝟙", "٣",
    ];
    let mut state = 7_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let prompt = json!(null);
    for _ in 0..20_000 {
        let (words, tokens) = (next(24), next(9));
        let text: String = (0..words).map(|_| pieces[next(pieces.len())]).collect();
        let gold: String = (0..next(9)).map(|_| pieces[next(pieces.len())]).collect();
        let ids: Vec<u32> = (0..tokens).map(|_| next(3) as u32).collect();
        let row = row(json!({ "answer": gold }));
        let completion = Completion { prompt: &prompt, text: &text, ids: &ids, finished: false, row: &row };
        let scores = rewards.score(&[completion]).expect("scores");
        assert!(
            scores.iter().flatten().flatten().all(|score| score.is_finite()),
            "{text:?} {gold:?} {ids:?}"
        );
    }
}
