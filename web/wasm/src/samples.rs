//! The picked samples as a table, with a recipe that fits them and the base.

use rullama_train::data::batch::Sample;
use rullama_train::data::compare::Side;
use rullama_train::data::loss_spans::pieces;
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::recipe::{Recipe, SCHEMA_URL};
use rullama_train::run::draft::{self, Fit, Names, Picked};
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
    let Picked { data, objective } = Picked::read(recipe, names.iter().map(Into::into).collect(), frozen)?;
    let Data { train: samples, sources, notices, .. } = data;
    if samples.is_empty() {
        return Err(Problem::new(format!(
            "{} has no samples; pick files with at least one",
            names.join(", ")
        )));
    }
    let fit = Fit::of(&samples, objective, frozen);
    let prompts = draft::questions(&samples, &fit, frozen);
    let train: Vec<&str> = names.iter().map(String::as_str).collect();
    let folder = draft::folder(&train);
    let names = Names {
        base: frozen.base.name(),
        train: &train,
        output: &folder,
        system: frozen.ollama_system.as_deref(),
    };
    let header = format!(
        "#:schema {SCHEMA_URL}\n# {}.\n#\n# recipes/chat.toml of rullama-train documents every key.\n",
        draft::summary(&fit)
    );
    Ok(Samples {
        counts: counts(&samples),
        rows: samples.iter().take(ROWS).map(|sample| row(&frozen.tokenizer, sample)).collect(),
        lengths: samples.iter().map(|sample| sample.ids.len()).collect(),
        files: sources.iter().map(found).collect(),
        warnings: fit.warnings(frozen.base.name(), &notices),
        recipe: header + &draft::text(&fit, &names, &prompts),
        proposal: fit.proposal(),
    })
}

fn row(tokenizer: &Tokenizer, sample: &Sample) -> SampleRow {
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
    }
}

/// The format of a file: `mine.csv: CSV, 24 prompt and completion`.
fn found(source: &SourceFile) -> String {
    let shapes: Vec<String> =
        source.found.shapes.iter().map(|(shape, n)| format!("{n} {}", shape.name())).collect();
    format!("{}: {}, {}", source.path.display(), source.found.container.name(), shapes.join(", "))
}
