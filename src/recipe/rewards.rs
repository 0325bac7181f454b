//! `[[rewards]]`: functions that judge completions, each with a weight.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};

use super::error::RecipeError;
use super::fields::Section;
use super::keys;
use super::manual::{REWARDS, reward_keys};
use super::source::{Source, Syntax, text_of, toml_string};
use crate::data::dataset::Invalid;

/// One `[[rewards]]` entry.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reward {
    /// The function, with its own keys.
    #[serde(flatten)]
    pub kind: RewardKind,
    /// Factor of its values in the sum over all rewards.
    pub weight: f64,
}

/// A function that judges completions. Text keys are never empty.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum RewardKind {
    /// 1 if a pattern occurs in the text, else 0.
    Regex {
        /// Regular expression of the crate regex.
        pattern: String,
        /// Whether the pattern has to match the whole text, without white space at both ends.
        full_match: bool,
        /// Only the text after its last occurrence is judged.
        #[serde(skip_serializing_if = "Option::is_none")]
        after: Option<String>,
    },
    /// 1 if the text equals a column, as [`Metric::ExactMatch`](crate::talk::metrics::Metric::ExactMatch) compares them, else 0.
    ExactMatch {
        /// Column of the expected text.
        column: String,
        /// Only the text after its last occurrence is judged.
        #[serde(skip_serializing_if = "Option::is_none")]
        after: Option<String>,
    },
    /// 1 if the last number of the text equals that of a column, else 0.
    Number {
        /// Column of the expected number.
        column: String,
        /// Largest difference of numbers that count as equal.
        tolerance: f64,
        /// Only the text after its last occurrence is judged.
        #[serde(skip_serializing_if = "Option::is_none")]
        after: Option<String>,
    },
    /// 1 if the text is JSON, and valid under the schema if there is one, else 0.
    Json {
        /// File of a JSON Schema.
        #[serde(skip_serializing_if = "Option::is_none")]
        schema: Option<PathBuf>,
        /// Whether the JSON may stand in a fenced code block.
        fenced: bool,
        /// Only the text after its last occurrence is judged.
        #[serde(skip_serializing_if = "Option::is_none")]
        after: Option<String>,
    },
    /// 1 if the text begins with one block `<think>…</think>`, else 0: TRL's `think_format_reward`.
    ThinkFormat,
    /// The number of tokens, in one of two forms.
    Length(LengthReward),
    /// `max_penalty` times the share of n-grams of tokens that occurred before: TRL's `get_repetition_penalty_reward`.
    Repetition {
        /// Tokens of an n-gram.
        ngram_size: usize,
        /// The reward of a text whose n-grams are all the same; not above 0.
        max_penalty: f64,
    },
    /// The answer of a program.
    Command {
        /// The program and its arguments; no shell.
        command: Vec<String>,
        /// Seconds for the completions of one step.
        timeout: f64,
    },
    /// The number from a judge behind an OpenAI-compatible API, divided by `max_score`.
    Url(JudgeReward),
}

/// The forms of the reward `length`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum LengthReward {
    /// 0 up to `max_completion_len − soft_punish_cache` tokens, from there down to −1 at `max_completion_len`, and −1 beyond: TRL's
    /// `get_soft_overlong_punishment`.
    Overlong {
        /// Tokens beyond which the reward is −1.
        max_completion_len: usize,
        /// Tokens over which the reward falls.
        soft_punish_cache: usize,
    },
    /// `1 − |tokens − target_len| / target_len`, at least 0.
    Target {
        /// Tokens for which the reward is 1.
        target_len: usize,
    },
}

/// The reward `url`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgeReward {
    /// Address of the API, up to `/v1`.
    pub url: String,
    /// Name of the judging model.
    pub model: String,
    /// The message to the judge, with the places `{prompt}`, `{completion}` and those of columns.
    pub rubric: String,
    /// The best number that the judge may give; the least is 0.
    pub max_score: f64,
    /// Temperature of the judge.
    pub temperature: f64,
    /// The environment variable with the key of the API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// Seconds for one answer.
    pub timeout: f64,
    /// Requests at once.
    pub requests: usize,
    /// The treatment of an answer without a number in range.
    pub invalid: Invalid,
}

/// A place of a rubric.
static PLACE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}").expect("a pattern"));

impl JudgeReward {
    /// The places of the rubric, `{NAME}`: where each is, and its name.
    pub fn places(&self) -> impl Iterator<Item = (Range<usize>, &str)> {
        let place = |found: regex::Captures<'_>| {
            let whole = found.get(0)?.range();
            Some((whole.clone(), whole.start + 1..whole.end - 1))
        };
        PLACE.captures_iter(&self.rubric).filter_map(place).map(|(whole, name)| (whole, &self.rubric[name]))
    }
}

/// Names of the rewards, as recipes have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Name {
    Regex,
    ExactMatch,
    Number,
    Json,
    ThinkFormat,
    Length,
    Repetition,
    Command,
    Url,
}

impl Name {
    /// Its own keys.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Name::Regex => &["pattern", "full_match", "after"],
            Name::ExactMatch => &["column", "after"],
            Name::Number => &["column", "tolerance", "after"],
            Name::Json => &["schema", "fenced", "after"],
            Name::ThinkFormat => &[],
            Name::Length => &["max_completion_len", "soft_punish_cache", "target_len"],
            Name::Repetition => &["ngram_size", "max_penalty"],
            Name::Command => &["command", "timeout"],
            Name::Url => &[
                "url",
                "model",
                "rubric",
                "max_score",
                "temperature",
                "api_key_env",
                "timeout",
                "requests",
                "invalid",
            ],
        }
    }
}

impl Reward {
    /// The name in recipes.
    pub fn name(&self) -> &'static str {
        match &self.kind {
            RewardKind::Regex { .. } => "regex",
            RewardKind::ExactMatch { .. } => "exact_match",
            RewardKind::Number { .. } => "number",
            RewardKind::Json { .. } => "json",
            RewardKind::ThinkFormat => "think_format",
            RewardKind::Length(_) => "length",
            RewardKind::Repetition { .. } => "repetition",
            RewardKind::Command { .. } => "command",
            RewardKind::Url(_) => "url",
        }
    }

    /// The columns that it reads from rows.
    pub fn columns(&self) -> Vec<String> {
        match &self.kind {
            RewardKind::ExactMatch { column, .. } | RewardKind::Number { column, .. } => vec![column.clone()],
            RewardKind::Url(judge) => {
                let own = ["prompt", "completion"];
                judge
                    .places()
                    .map(|(_, name)| name.to_owned())
                    .filter(|name| !own.contains(&&**name))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// Parses a name, or a TOML table of the keys of `[[rewards]]` with or without braces. Messages call it `option` with the text.
    pub fn parse(text: &str, option: &str) -> Result<Reward, RecipeError> {
        let is_name = !text.contains(['=', '{']);
        let table = match text.trim() {
            word if is_name => format!("name = {}", toml_string(word)),
            table => match table.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
                Some(keys) => keys.to_owned(),
                None => table.to_owned(),
            },
        };
        let name = format!("{option} {text}");
        let text = format!("{REWARDS} = [{{ {table} }}]");
        let parse = || Ok(read(&Source::parse::<&str>(&text, Syntax::Toml, &name, &[])?)?.remove(0));
        parse().map_err(RecipeError::unplaced)
    }

    /// The rewards of a recipe, whose other sections may be missing.
    pub fn of_recipe(path: &Path) -> Result<Vec<Reward>, RecipeError> {
        let (text, syntax) = text_of(path)?;
        let name = path.display().to_string();
        let source = Source::parse::<&str>(&text, syntax, &name, &[])?;
        keys::check(&source)?;
        read(&source)
    }
}

/// Reads all entries.
pub(super) fn read(source: &Source) -> Result<Vec<Reward>, RecipeError> {
    source.tables(REWARDS, &reward_keys(), entry)
}

/// Reads one entry.
fn entry(section: &Section) -> Result<Reward, RecipeError> {
    // A change of these is one of later steps: the samples so far do not depend on it.
    let section = &section.continuable();
    let expected = "the name of a reward, such as \"number\"";
    if !section.has("name") {
        // Also noted for the schema.
        section.choice("name", Name::Number)?;
        return Err(section.missing("name", expected));
    }
    let name = section.choice("name", Name::Number)?;
    let read = Keys { section, name }.read()?;
    let weight = section.number("weight", 1.0, "a finite number", |_| true)?;
    let own = name.keys();
    let known = |key: &str| key == "name" || key == "weight" || own.contains(&key);
    if let Some(entry) = section.entries.iter().find(|entry| !known(&entry.key)) {
        let title = serde_json::to_string(&name).unwrap_or_default();
        let keys: Vec<&str> = own.iter().copied().chain(["weight"]).collect();
        let text = format!("the reward {title} has no such key; it takes {}", keys.join(", "));
        return Err(section.conflict(&entry.key, &text));
    }
    Ok(Reward { kind: read, weight })
}

/// The keys of an entry. Every key is looked up, whatever the name: the schema lists them.
struct Keys<'a> {
    section: &'a Section<'a>,
    name: Name,
}

impl Keys<'_> {
    fn read(&self) -> Result<RewardKind, RecipeError> {
        let section = self.section;
        let regex = self.regex();
        let column = section.text("column")?.unwrap_or_else(|| "answer".into());
        let tolerance = section.not_negative("tolerance", 0.0)?;
        let schema = section.text("schema")?.map(PathBuf::from);
        let fenced = section.boolean("fenced", false)?;
        let after = section.text("after")?;
        let length = self.length();
        let ngram_size = section.count("ngram_size", 3, 1)?;
        let max_penalty = section.number("max_penalty", -1.0, "a number <= 0", |x| x <= 0.0)?;
        let command = section.texts("command")?.unwrap_or_default();
        let timeout =
            section.harmless().number("timeout", 300.0, "a number > 0, at most 86400 (seconds)", |x| {
                x > 0.0 && x <= 86400.0
            })?;
        let judge = self.judge(timeout);
        Ok(match self.name {
            Name::Regex => RewardKind::Regex {
                pattern: regex?,
                full_match: section.boolean("full_match", false)?,
                after,
            },
            Name::ExactMatch => RewardKind::ExactMatch { column, after },
            Name::Number => RewardKind::Number { column, tolerance, after },
            Name::Json => RewardKind::Json { schema, fenced, after },
            Name::ThinkFormat => RewardKind::ThinkFormat,
            Name::Length => RewardKind::Length(length?),
            Name::Repetition => RewardKind::Repetition { ngram_size, max_penalty },
            Name::Command if command.is_empty() => {
                let expected = "a program and its arguments, such as [\"python3\", \"reward.py\"]";
                return Err(section.missing("command", expected));
            }
            Name::Command => RewardKind::Command { command, timeout },
            Name::Url => RewardKind::Url(judge?),
        })
    }

    fn regex(&self) -> Result<String, RecipeError> {
        let section = self.section;
        section.boolean("full_match", false)?;
        let pattern = section.text("pattern")?;
        let pattern = pattern.ok_or_else(|| section.missing("pattern", "a regular expression"))?;
        match Regex::new(&pattern) {
            Ok(_) => Ok(pattern),
            Err(error) => {
                // The syntax error ends with the reason; before it, the pattern is drawn over several lines.
                let error = error.to_string();
                let reason = error.lines().last().unwrap_or_default();
                let text = format!("{pattern:?} is not a regular expression: {reason}");
                Err(section.conflict("pattern", &text))
            }
        }
    }

    fn length(&self) -> Result<LengthReward, RecipeError> {
        let section = self.section;
        let longest = section.optional_count("max_completion_len", 1)?;
        let cache = section.optional_count("soft_punish_cache", 0)?;
        let target = section.optional_count("target_len", 1)?;
        match (longest, cache, target) {
            (Some(max_completion_len), Some(soft_punish_cache), None) => {
                if soft_punish_cache > max_completion_len {
                    let text = "expected at most max_completion_len";
                    return Err(section.conflict("soft_punish_cache", text));
                }
                Ok(LengthReward::Overlong { max_completion_len, soft_punish_cache })
            }
            (None, None, Some(target_len)) => Ok(LengthReward::Target { target_len }),
            (_, _, Some(_)) => {
                let text =
                    "it is another form than max_completion_len and soft_punish_cache; remove one of the two";
                Err(section.conflict("target_len", text))
            }
            (Some(_), None, None) => Err(section.missing(
                "soft_punish_cache",
                "the number of tokens before max_completion_len over which the reward falls to -1",
            )),
            (None, ..) => Err(section.missing(
                "max_completion_len",
                "a number of tokens, with soft_punish_cache; or target_len alone",
            )),
        }
    }

    fn judge(&self, timeout: f64) -> Result<JudgeReward, RecipeError> {
        let section = self.section;
        let harmless = section.harmless();
        let url = harmless.text("url")?;
        let model = section.text("model")?;
        let rubric = section.text("rubric")?;
        let max_score = section.positive("max_score", 10.0)?;
        let temperature = section.not_negative("temperature", 0.0)?;
        let api_key_env = harmless.text("api_key_env")?;
        let requests = harmless.count("requests", 4, 1)?;
        let invalid = section.choice("invalid", Invalid::Error)?;
        let url = url.ok_or_else(|| {
            section.missing(
                "url",
                "the address of an OpenAI-compatible API, such as \"http://localhost:8080/v1\"",
            )
        })?;
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(section.conflict("url", &format!("{url:?} does not begin with http:// or https://")));
        }
        let model = model.ok_or_else(|| section.missing("model", "the name of the judging model"))?;
        let expected =
            "what to judge, with {completion} in it, and {prompt} or columns such as {answer} if needed";
        let rubric = rubric.ok_or_else(|| section.missing("rubric", expected))?;
        if !rubric.contains("{completion}") {
            return Err(
                section.conflict("rubric", "expected {completion} in it, the place of the text to judge")
            );
        }
        Ok(JudgeReward {
            url,
            model,
            rubric,
            max_score,
            temperature,
            api_key_env,
            timeout,
            requests,
            invalid,
        })
    }
}
