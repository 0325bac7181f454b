//! The picked samples as a table, with a recipe that fits them and the base.

use rullama_train::data::batch::Sample;
use rullama_train::data::compare::Side;
use rullama_train::data::loss_spans::pieces;
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::recipe::{Recipe, Reward};
use rullama_train::run::draft::{Picked, Proposal};
use rullama_train::run::{Data, OpenBase, SourceFile};

use crate::train::counts;
use crate::tree;
use crate::types::{FileEntry, Problem, SamplePiece, SampleRow, Samples};

/// Number of samples in the table.
const ROWS: usize = 1000;
/// Longest text of a sample in the table, in characters.
const LONGEST_TEXT: usize = 2000;

/// Reads `files` with the settings of `recipe`, whatever their length and objective.
pub fn read(frozen: &OpenBase, recipe: &Recipe, files: Vec<FileEntry>) -> Result<Samples, Problem> {
    let names: Vec<String> = files.iter().map(|file| file.path.clone()).collect();
    tree::fill(files);
    let picked = Picked::read(recipe, names.iter().map(Into::into).collect(), frozen)?;
    let Data { train: samples, sources, .. } = &picked.data;
    if samples.is_empty() {
        return Err(Problem::new(format!(
            "{} has no samples; pick files with at least one",
            names.join(", ")
        )));
    }
    let train: Vec<&str> = names.iter().map(String::as_str).collect();
    let proposal = Proposal::of(&picked, recipe, &train, frozen);
    let expected: Vec<String> = recipe.rewards.iter().flat_map(Reward::columns).collect();
    Ok(Samples {
        counts: counts(samples),
        rows: samples.iter().take(ROWS).map(|sample| row(&frozen.tokenizer, sample, &expected)).collect(),
        lengths: samples.iter().map(|sample| sample.ids.len()).collect(),
        files: sources.iter().map(found).collect(),
        warnings: proposal.warnings,
        recipe: proposal.recipe,
        proposal: proposal.words,
    })
}

/// A sample as a row of the table. `expected`: the columns that rewards read.
fn row(tokenizer: &Tokenizer, sample: &Sample, expected: &[String]) -> SampleRow {
    let mut room = LONGEST_TEXT;
    let mut shortened = Vec::new();
    for piece in pieces(tokenizer, sample) {
        if room == 0 {
            break;
        }
        let letters = piece.text.chars().count();
        let text =
            if letters <= room { piece.text } else { piece.text.chars().take(room).chain(['…']).collect() };
        room = room.saturating_sub(letters);
        shortened.push(SamplePiece { text, loss: piece.has_loss });
    }
    SampleRow {
        origin: sample.origin.clone(),
        side: (sample.side != Side::Example).then(|| sample.side.name().into()),
        tokens: sample.ids.len(),
        loss_tokens: sample.loss_tokens(),
        pieces: shortened,
        expected: sample.row.as_ref().and_then(|row| row.texts(expected)),
    }
}

/// The format of a file: `mine.csv: CSV, 24 prompt and completion`.
fn found(source: &SourceFile) -> String {
    let shapes: Vec<String> =
        source.found.shapes.iter().map(|(shape, n)| format!("{n} {}", shape.name())).collect();
    format!("{}: {}, {}", source.path.display(), source.found.container.name(), shapes.join(", "))
}
