//! General questions that a run's model answers after the last step.

use super::OpenBase;
use crate::recipe::Recipe;
use crate::verify::BUILT_IN;

/// The questions among [`BUILT_IN`] that are also answered: of facts, numbers and words.
const ANSWERED: [usize; 3] = [0, 1, 3];
/// Most tokens of these answers: they are short, and a loop shows within so many.
const MAX_NEW_TOKENS: usize = 24;

/// The general questions that a run's model answers, as text and as token ids. There are none without `eval.samples`: replies need kernels
/// and memory of their own.
pub(super) fn questions(recipe: &Recipe, base: &OpenBase) -> Vec<(String, Vec<u32>)> {
    if !recipe.eval.general || recipe.eval.samples.is_empty() {
        return Vec::new();
    }
    let context = base.base.config().context_length;
    let rendered = ANSWERED.iter().filter_map(|&i| {
        let text = BUILT_IN[i][0];
        Some((text.to_owned(), base.prompt(text).ok()?))
    });
    rendered.filter(|(_, ids)| ids.len() + longest(recipe) <= context).collect()
}

/// Most tokens of an answer to a general question.
pub(in crate::run) fn longest(recipe: &Recipe) -> usize {
    recipe.eval.max_new_tokens.min(MAX_NEW_TOKENS)
}
