//! The row length of a recipe that sets none.

use super::{OpenBase, RunError};
use crate::data::dataset::{DatasetError, Notice, Problem, What};
use crate::recipe::{Recipe, USUAL_ROW};

/// Longest row that a run takes without being asked: the activations of longer rows do not fit most GPUs.
const LONGEST_ROW: usize = 8192;
/// Rows that are longer than usual have a multiple of these tokens.
const STEP: usize = 256;

/// Calls `read` with a recipe whose rows have the base's context or `USUAL_ROW` tokens, whichever is less, and with longer rows
/// where a sample needs them. Returns that recipe too. A recipe that sets `data.max_seq_len` stays as it is.
pub fn fitted<T>(
    recipe: &Recipe,
    base: &OpenBase,
    read: impl Fn(&Recipe) -> Result<T, RunError>,
) -> Result<(Recipe, T), RunError> {
    let mut fitted = recipe.clone();
    if recipe.data.max_seq_len.is_some() {
        return Ok((fitted, read(recipe)?));
    }
    let context = base.base.config().context_length;
    fitted.data.max_seq_len = Some(USUAL_ROW.min(context));
    loop {
        match read(&fitted) {
            // Each file reports its own longest sample, so the rows grow until all files are read.
            Err(RunError::Dataset(DatasetError { problem: Problem::Overlong { longest, .. }, .. }))
                if longest <= context.min(LONGEST_ROW) =>
            {
                fitted.data.max_seq_len = Some(longest.next_multiple_of(STEP).min(context));
            }
            result => return Ok((fitted, result?)),
        }
    }
}

/// Tells the row length that [`fitted`] has chosen, unless it is the usual one.
pub(super) fn row_notice(recipe: &Recipe, fitted: &Recipe) -> Option<Notice> {
    let tokens =
        fitted.data.max_seq_len.filter(|row| recipe.data.max_seq_len.is_none() && *row != USUAL_ROW)?;
    Some(Notice { place: "data.max_seq_len".into(), what: What::Row(tokens) })
}
