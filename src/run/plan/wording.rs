//! Wordings that the program and the web page share.

use crate::data::batch::{Capacity, Together};
use crate::data::template::Template;
use crate::families;
use crate::recipe::{LengthReward, Recipe, Reward, RewardKind, Template as Setting};
use crate::words;

/// Describes the chat template in use. `setting`: the recipe's `data.template`.
pub fn template(template: &Template, setting: &Setting) -> String {
    match (template, setting) {
        (Template::BuiltIn(layout), _) => {
            let title = families::named(layout.family).map_or(layout.family, |family| family.title);
            format!("built-in {title} template ({}-model variant)", layout.variant)
        }
        (Template::Jinja(_), Setting::File(path)) => path.display().to_string(),
        (Template::Jinja(_), _) => "the base file's own template".into(),
    }
}

/// The completions of a step in words; `None` for objectives that draw none.
pub fn tries(recipe: &Recipe) -> Option<String> {
    let keys = recipe.grpo.as_ref()?;
    let all = recipe.train.batch_size * recipe.train.gradient_accumulation_steps;
    let prompts = words::counted(all / keys.num_generations, "prompt");
    let tokens = words::counted(keys.max_completion_length, "token");
    let [each, temperature] = [keys.num_generations.to_string(), keys.temperature.to_string()];
    Some(format!(
        "{each} completions for each of {prompts} a step, up to {tokens}, at temperature {temperature}"
    ))
}

/// A reward in a sentence: its name, and when it gives how much.
pub fn reward(reward: &Reward) -> String {
    let value = match &reward.kind {
        RewardKind::Regex { pattern, full_match: true, .. } => {
            format!("1 where {pattern} matches the whole text")
        }
        RewardKind::Regex { pattern, .. } => format!("1 where {pattern} occurs"),
        RewardKind::ExactMatch { column, .. } => {
            format!("1 where the text is that of the column \"{column}\"")
        }
        RewardKind::Number { column, .. } => {
            format!("1 where the last number is that of the column \"{column}\"")
        }
        RewardKind::Json { schema: Some(schema), .. } => {
            format!("1 where the text is JSON as {} asks", schema.display())
        }
        RewardKind::Json { .. } => "1 where the text is JSON".into(),
        RewardKind::ThinkFormat => "1 where the text begins with its only <think>…</think>".into(),
        RewardKind::Length(LengthReward::Target { target_len }) => {
            format!("1 at {}, less the further it is from that", words::counted(*target_len, "token"))
        }
        RewardKind::Length(LengthReward::Overlong { max_completion_len, soft_punish_cache }) => format!(
            "falls from 0 at {} to -1 at {max_completion_len}",
            words::counted(max_completion_len - soft_punish_cache, "token")
        ),
        RewardKind::Repetition { max_penalty, .. } => {
            format!("falls to {max_penalty} where the text repeats itself")
        }
        RewardKind::Command { command, .. } => format!("what {} says", command.join(" ")),
        RewardKind::Url(judge) => format!("what {} at {} says, from 0 to 1", judge.model, judge.url),
    };
    let weight = match reward.weight {
        1.0 => String::new(),
        weight => format!(", times {weight}"),
    };
    format!("{}: {value}{weight}", reward.name())
}

/// The error for a plan that needs `needed` bytes, more than `train.memory_limit`, for passes up to `capacity`.
/// `experts` is appended to "with every layer recomputed".
pub fn over_memory_limit(recipe: &Recipe, capacity: Capacity, needed: u64, experts: &str) -> String {
    let grouped = |tokens: usize| words::grouped(tokens, ' ');
    let (replies, keys) = match (capacity.reply, capacity.sequences) {
        (_, Together { comes_first: true, context: tokens, .. }) => (
            format!(", and a completion that ends within {} tokens,", grouped(tokens)),
            "grpo.max_completion_length or train.batch_size",
        ),
        (0, _) => (String::new(), "data.max_seq_len or train.batch_size"),
        (tokens, _) => (
            format!(", and replies that end within {} tokens,", grouped(tokens)),
            "data.max_seq_len, train.batch_size or eval.max_new_tokens",
        ),
    };
    format!(
        "train.memory_limit is {} GiB, but passes over {} tokens{replies} need {} with every layer recomputed{experts}; lower {keys}, \
         or raise the limit",
        recipe.train.memory_limit.unwrap_or_default(),
        grouped(capacity.tokens),
        words::bytes(needed),
    )
}

/// The error for an option or a recipe key that needs experts, used with a base that has none.
pub fn not_a_mixture(option: &str, base: &str) -> String {
    format!("{option}: {base} is not a mixture of experts; remove this setting")
}
