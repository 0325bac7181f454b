//! The picked samples as a table, with a recipe that fits them and the base.

use rullama_train::data::batch::Sample;
use rullama_train::data::compare::Side;
use rullama_train::data::loss_spans::pieces;
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::recipe::{Recipe, Reward};
use rullama_train::run::draft::{Picked, Proposal};
use rullama_train::run::{Data, OpenBase, SourceFile};
use serde_json::{Value, json};

use super::problem::Problem;
use super::types::{Counts, Sent};

/// Number of samples in the table.
const ROWS: usize = 1000;
/// Longest text of a sample in the table, in characters.
const LONGEST_TEXT: usize = 2000;
/// Settings for looking at samples while the user's recipe has an error.
pub const ANY_RECIPE: &str = "data.train = \"samples\"";

/// Reads `files` of the folder `folder` with the settings of `recipe`, whatever their length and objective.
pub fn read(recipe: &Recipe, files: &[Sent], folder: &std::path::Path) -> Result<Value, Problem> {
    let frozen = OpenBase::named(&recipe.model.base, &recipe.data.template).map_err(anyhow::Error::from)?;
    let names: Vec<&str> = files.iter().map(|file| &file.path[..]).collect();
    let paths = names.iter().map(|name| folder.join(name)).collect();
    let picked = Picked::read(recipe, paths, &frozen).map_err(anyhow::Error::from)?;
    let Data { train: samples, sources, .. } = &picked.data;
    if samples.is_empty() {
        return Err(Problem::new(format!(
            "{} has no samples; pick files with at least one",
            names.join(", ")
        )));
    }
    let proposal = Proposal::of(&picked, recipe, &names, &frozen);
    let expected: Vec<String> = recipe.rewards.iter().flat_map(Reward::columns).collect();
    let rows = samples.iter().take(ROWS).map(|sample| row(&frozen.tokenizer, sample, &expected));
    Ok(json!({
        "counts": Counts::of(samples),
        "rows": rows.collect::<Vec<_>>(),
        "lengths": samples.iter().map(|sample| sample.ids.len()).collect::<Vec<_>>(),
        "files": sources.iter().map(found).collect::<Vec<_>>(),
        "warnings": proposal.warnings,
        "recipe": proposal.recipe,
        "proposal": proposal.words,
    }))
}

/// A sample as a row of the table. `expected`: the columns that rewards read.
fn row(tokenizer: &Tokenizer, sample: &Sample, expected: &[String]) -> Value {
    let mut room = LONGEST_TEXT;
    let mut shortened = Vec::new();
    for piece in pieces(tokenizer, sample) {
        if room == 0 {
            break;
        }
        let letters = piece.text.chars().count();
        let text: String = match letters <= room {
            true => piece.text,
            false => piece.text.chars().take(room).chain(['…']).collect(),
        };
        room = room.saturating_sub(letters);
        shortened.push(json!({ "text": text, "loss": piece.has_loss }));
    }
    json!({
        "origin": sample.origin,
        "side": (sample.side != Side::Example).then(|| sample.side.name()),
        "tokens": sample.ids.len(),
        "loss_tokens": sample.loss_tokens(),
        "pieces": shortened,
        "expected": sample.row.as_ref().and_then(|row| row.texts(expected)),
    })
}

/// The format of a file: `mine.csv: CSV, 24 prompt and completion`.
fn found(source: &SourceFile) -> String {
    let shapes: Vec<String> =
        source.found.shapes.iter().map(|(shape, n)| format!("{n} {}", shape.name())).collect();
    let name = source.path.file_name().unwrap_or_default().to_string_lossy();
    format!("{name}: {}, {}", source.found.container.name(), shapes.join(", "))
}
