//! One micro-batch on the device.

use super::Model;
use crate::data::batch::MicroBatch;
use crate::gpu::{Gpu, GpuError};
use crate::ops::Weight;

/// Everything about a micro-batch that the kernels read.
pub struct Inputs {
    /// Tokens `T`.
    pub tokens: usize,
    /// Loss rows `N`.
    pub loss_tokens: usize,
    pub(super) longest: usize,          // tokens of the longest sample
    pub(super) ids: wgpu::Buffer,       // [T]
    pub(super) positions: wgpu::Buffer, // [T]
    pub(super) bounds: wgpu::Buffer,    // [T, 2]
    pub(super) loss_rows: wgpu::Buffer, // [N]
    pub(super) targets: wgpu::Buffer,   // [N]
    pub(super) per_layer: Option<PerLayerRows>,
    pub(super) teacher: Option<Teacher>,
}

/// The teacher's distributions of the loss rows: see [`crate::ops::distill::Lesson`].
pub(super) struct Teacher {
    pub top: usize,
    pub ids: wgpu::Buffer,
    pub values: wgpu::Buffer,
}

/// The rows of the per-layer embedding table that this micro-batch needs, in the file's format.
pub(super) struct PerLayerRows {
    pub table: Weight,     // [distinct tokens, L·P]
    pub ids: wgpu::Buffer, // [T], rows of `table`
}

impl Inputs {
    /// Uploads a micro-batch, and fetches its per-layer embedding rows from the file.
    pub async fn upload(gpu: &Gpu, model: &Model<'_>, batch: &MicroBatch) -> Result<Inputs, GpuError> {
        let bounds: Vec<[u32; 2]> = batch.starts.iter().zip(&batch.ends).map(|(&s, &e)| [s, e]).collect();
        Ok(Inputs {
            tokens: batch.len(),
            loss_tokens: batch.loss_rows.len(),
            longest: batch.longest(),
            ids: gpu.upload("token ids", &batch.tokens)?,
            positions: gpu.upload("positions", &batch.positions)?,
            bounds: gpu.upload("sample bounds", &bounds)?,
            loss_rows: gpu.upload("loss rows", &non_empty(&batch.loss_rows))?,
            targets: gpu.upload("targets", &non_empty(&batch.targets))?,
            per_layer: per_layer_rows(gpu, model, batch).await?,
            teacher: teacher(gpu, batch)?,
        })
    }

    /// Their memory, which lasts for one micro-batch.
    pub fn buffers(&self) -> Vec<&wgpu::Buffer> {
        let rows = self.per_layer.iter();
        let rows = rows.flat_map(|rows| rows.table.tiles.iter().map(|tile| &tile.buffer).chain([&rows.ids]));
        let own = [&self.ids, &self.positions, &self.bounds, &self.loss_rows, &self.targets];
        let teacher = self.teacher.iter().flat_map(|teacher| [&teacher.ids, &teacher.values]);
        own.into_iter().chain(rows).chain(teacher).collect()
    }
}

fn teacher(gpu: &Gpu, batch: &MicroBatch) -> Result<Option<Teacher>, GpuError> {
    let Some(rows) = batch.teacher.as_ref().filter(|_| !batch.loss_rows.is_empty()) else { return Ok(None) };
    let rows = rows.known(batch.loss_rows.len());
    Ok(Some(Teacher {
        top: rows.top,
        ids: gpu.upload("the teacher's tokens", &rows.ids)?,
        values: gpu.upload("the teacher's log-probabilities", &rows.values)?,
    }))
}

async fn per_layer_rows(
    gpu: &Gpu,
    model: &Model<'_>,
    batch: &MicroBatch,
) -> Result<Option<PerLayerRows>, GpuError> {
    let Some(table) = model.base.tensor("per_layer_token_embd") else { return Ok(None) };
    let mut distinct = batch.tokens.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let rows = model.base.read_rows(&table, &distinct).await.map_err(GpuError::read)?;
    let row_of =
        |id: &u32| distinct.binary_search(id).expect("every token is among the distinct ones") as u32;
    let ids: Vec<u32> = batch.tokens.iter().map(row_of).collect();
    Ok(Some(PerLayerRows {
        table: Weight::upload(gpu, "per-layer embedding rows", table.ty, distinct.len(), table.cols, &rows)?,
        ids: gpu.upload("per-layer embedding ids", &ids)?,
    }))
}

/// A binding cannot be empty; no kernel runs over a micro-batch without loss.
fn non_empty(values: &[u32]) -> Vec<u32> {
    if values.is_empty() { vec![0] } else { values.to_vec() }
}
