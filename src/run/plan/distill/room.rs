//! The size of what a teacher says.

use std::sync::Arc;

use crate::data::teacher::TeacherRows;
use crate::recipe::Recipe;

/// Tokens that are kept for each loss token, and whether they are all of a vocabulary of `vocab` tokens. `count`: those of the teacher.
pub fn kept(top_k: usize, count: usize, vocab: usize) -> (usize, bool) {
    let top = if top_k == 0 { count } else { top_k.min(count) };
    (top, top == vocab)
}

/// Room for the distributions of a teacher whose vocabulary is that of the base, `vocab` tokens; `None` if the recipe has no teacher.
pub fn room(recipe: &Recipe, vocab: usize) -> Option<Arc<TeacherRows>> {
    let keys = recipe.distill.as_ref()?;
    let (top, whole) = kept(keys.top_k, vocab, vocab);
    Some(Arc::new(TeacherRows::unknown(top, whole)))
}
