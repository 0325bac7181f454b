//! Loss, logits and gradients of one sample, for comparing devices.

use std::collections::HashMap;

use rullama_train::adapter::formats::peft;
use rullama_train::adapter::{AdapterPath, OtherBase, load};
use rullama_train::base::Base;
use rullama_train::data::batch::{MicroBatch, Sample, Step};
use rullama_train::gpu::Gpu;
use rullama_train::model::Model;
use rullama_train::model::plan::Recompute;
use rullama_train::train::{Capacity, Dropout, Trainer};

use crate::source::{ByteSource, Ranges};
use crate::tree;
use crate::types::{FileEntry, Measured, Problem};

/// Runs one sample forward and backward.
pub async fn measure(
    gpu: &Gpu,
    source: ByteSource,
    adapter: Vec<FileEntry>,
    ids: Vec<u32>,
    labels: Vec<i32>,
) -> Result<Measured, Problem> {
    let name = source.name();
    let base = &Base::stream(Box::new(Ranges::new(source)), &name).await.map_err(Problem::new)?;
    if ids.is_empty() || ids.len() != labels.len() || ids.iter().any(|&id| id as usize >= base.config().vocab)
    {
        return Err(Problem::new("expected token ids of the vocabulary and one label per token"));
    }
    tree::fill(Vec::new());
    let path = AdapterPath::whole(tree::adapter(adapter)?);
    let adapter = load(&[path], base, None, OtherBase::Refuse)?.adapter;
    let samples = [Sample { ids, labels, origin: "the sample".into(), ..Sample::default() }];
    let step = Step::new(&samples, &[vec![0]]);
    let batch = MicroBatch::pack(&samples);
    let rows: Vec<u32> = (0..batch.len() as u32).collect();
    let mut capacity = Capacity { loss_tokens: rows.len(), step_loss_tokens: rows.len(), ..Capacity::LEAST };
    capacity.include(&step);
    let model = Model::stream(gpu, base, batch.len(), |_| ()).await?;
    let trainer = Trainer::new(gpu, &model, &adapter, capacity, Dropout::NONE, Recompute::Never)?;
    let (loss, gradients) = trainer.gradients(&step, 1).await?;
    let logits = trainer.logits(&batch, &rows).await?;
    let naming = peft::Naming::causal_lm(base.config());
    let gradients = peft::serialize_pairs(&gradients, adapter.rank, naming, HashMap::new())?;
    let logits = logits.into_iter().flat_map(f32::to_le_bytes).collect();
    Ok(Measured { loss, logits, gradients })
}
