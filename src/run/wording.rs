//! Wordings that the program and the web page share.

use crate::data::batch::{Capacity, Together};
use crate::data::template::Template;
use crate::families;
use crate::recipe::{Recipe, Template as Setting};
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
