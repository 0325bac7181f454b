//! Converts an adapter to another format and compares the result with the adapter in memory.

use std::path::Path;

use rullama_train::adapter::{self, AdapterPath, Format, OtherBase, WriteOptions};
use rullama_train::model::plan::Recompute;
use rullama_train::train::{Dropout, Trainer};
use rullama_train::verify;

use crate::engine::Stage;
use crate::merge;
use crate::tree;
use crate::types::{FileEntry, Problem};

/// The files of the adapter in the format `to`.
pub async fn export(stage: &Stage<'_>, adapter: Vec<FileEntry>, to: &str) -> Result<Vec<FileEntry>, Problem> {
    let frozen = stage.frozen;
    let out = Path::new("out");
    let config = frozen.base.config();
    tree::fill(Vec::new());
    let path = AdapterPath::whole(tree::adapter(adapter)?);
    let found = adapter::load(&[path], &frozen.base, None, OtherBase::Refuse)?;
    let longest = config.context_length.min(2048);
    let held_out = frozen.questions(longest);
    if to == merge::FORMAT {
        merge::merge(stage, &found.adapter, &held_out, out).await?;
        return Ok(tree::take(out));
    }
    let format: Format = to.parse().map_err(Problem::new)?;
    let options = WriteOptions {
        base_model: found.origin.base_model.as_deref().unwrap_or(frozen.base.name()),
        dropout: found.origin.dropout,
        fingerprint: found.origin.fingerprint.as_deref(),
        vocabulary: found.origin.vocabulary.as_deref(),
    };
    let capacity = held_out.capacity();
    let adapter = &found.adapter;
    let mut trainer =
        Trainer::new(stage.gpu, stage.model, adapter, capacity, Dropout::NONE, Recompute::Always)?;
    let written =
        verify::write_verified_by(&mut trainer, out, &[format], adapter, &options, &held_out).await?;
    for (_, result) in written.formats {
        result?;
    }
    Ok(tree::take(out))
}
