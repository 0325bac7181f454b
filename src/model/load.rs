//! Uploading a model.

use super::{Layer, Model, PerLayerBranch, PerLayerInput, experts, offload};
use crate::base::Base;
use crate::base::gguf::source::now;
use crate::gpu::{Gpu, GpuError};
use crate::memory::CHUNK;
use crate::ops::Weight;
use crate::ops::rms_norm::Norm;
use crate::ops::rope::Table;

impl<'b> Model<'b> {
    /// Uploads a base that is in memory, with rotary tables for `positions` positions.
    pub fn load(gpu: &Gpu, base: &'b Base, positions: usize) -> Result<Model<'b>, GpuError> {
        now(Model::stream(gpu, base, positions, |_| ()))
    }

    /// Uploads any base; `progress` is called with the number of layers on the device.
    pub async fn stream(
        gpu: &Gpu,
        base: &'b Base,
        positions: usize,
        progress: impl FnMut(usize),
    ) -> Result<Model<'b>, GpuError> {
        Model::offloading(gpu, base, positions, &[], progress).await
    }

    /// Uploads any base, without the experts of the layers `offloaded`, each of which has some. They stay in host memory, in the
    /// layout that kernels read, and are copied to the device whenever a pass reaches their layer. The results are bit-identical.
    pub async fn offloading(
        gpu: &Gpu,
        base: &'b Base,
        positions: usize,
        offloaded: &[usize],
        mut progress: impl FnMut(usize),
    ) -> Result<Model<'b>, GpuError> {
        let config = base.config();
        let mut offload = match offloaded {
            [] => None,
            layers => Some(offload::HostExperts::new(gpu, base, layers)?),
        };
        let upload = Upload { gpu, base };
        let mut tables: Vec<(Vec<f64>, Table)> = Vec::new();
        let mut layers = Vec::with_capacity(config.layers.len());
        let mut sent = None;
        for (i, shape) in config.layers.iter().enumerate() {
            let rope = shared_table(gpu, &mut tables, config.rope_frequencies(i), positions)?;
            let experts = match &shape.experts {
                None => None,
                Some(shape) => {
                    let offload = offload.as_mut().filter(|_| offloaded.contains(&i));
                    Some(experts::Experts::load(&upload, i, shape, config.rms_eps, offload).await?)
                }
            };
            layers.push(upload.layer(i, experts, rope).await?);
            // The next layer is read while this one is on its way.
            sent = Some(gpu.send_uploads(sent)?);
            progress(i + 1);
        }
        let per_layer = match config.per_layer_width {
            0 => None,
            p => Some(PerLayerInput {
                model_proj: upload.row_parts("per_layer_model_proj", p, config.layers.len()).await?,
                proj_norm: upload.norm("per_layer_proj_norm", config.rms_eps)?,
            }),
        };
        Ok(Model {
            base,
            token_embd: upload.matrix("token_embd").await?,
            output: upload.optional("output").await?,
            output_norm: upload.norm("output_norm", config.rms_eps)?,
            per_layer,
            layers,
            offload,
            positions,
            chunk: CHUNK,
        })
    }
}

/// The rotary table of `frequencies`, which layers with the same frequencies share.
fn shared_table(
    gpu: &Gpu,
    tables: &mut Vec<(Vec<f64>, Table)>,
    frequencies: Vec<f64>,
    positions: usize,
) -> Result<Table, GpuError> {
    if let Some((_, table)) = tables.iter().find(|(of, _)| *of == frequencies) {
        return Ok(table.clone());
    }
    let table = Table::new(gpu, &frequencies, positions)?;
    tables.push((frequencies, table.clone()));
    Ok(table)
}

/// Uploads tensors of a base by name.
pub(super) struct Upload<'a, 'b> {
    pub gpu: &'a Gpu,
    pub base: &'b Base,
}

impl Upload<'_, '_> {
    /// Layer `layer`, with experts and rotary table that are there already.
    async fn layer(
        &self,
        layer: usize,
        experts: Option<experts::Experts>,
        rope: Table,
    ) -> Result<Layer, GpuError> {
        let config = self.base.config();
        let shape = &config.layers[layer];
        let eps = config.rms_eps;
        let name = |last: &str| format!("blk.{layer}.{last}");
        let per_layer = match config.per_layer_width {
            0 => None,
            _ => Some(PerLayerBranch {
                inp_gate: self.matrix(&name("inp_gate")).await?,
                proj: self.matrix(&name("proj")).await?,
                post_norm: self.norm(&name("post_norm"), eps)?,
            }),
        };
        Ok(Layer {
            attn_norm: self.norm(&name("attn_norm"), eps)?,
            attn_q: self.matrix(&name("attn_q")).await?,
            attn_k: self.optional(&name("attn_k")).await?,
            attn_v: self.optional(&name("attn_v")).await?,
            attn_q_norm: self.norm(&name("attn_q_norm"), eps)?,
            attn_k_norm: match shape.kv_donor {
                None => Some(self.norm(&name("attn_k_norm"), eps)?),
                Some(_) => None,
            },
            attn_v_norm: Norm::new(self.gpu, "attn_v_norm", None, shape.head_size, eps)?,
            attn_output: self.matrix(&name("attn_output")).await?,
            post_attention_norm: self.norm(&name("post_attention_norm"), eps)?,
            ffn_norm: self.norm(&name("ffn_norm"), eps)?,
            ffn_gate: self.matrix(&name("ffn_gate")).await?,
            ffn_up: self.matrix(&name("ffn_up")).await?,
            ffn_down: self.matrix(&name("ffn_down")).await?,
            post_ffw_norm: self.norm(&name("post_ffw_norm"), eps)?,
            experts,
            per_layer,
            output_scale: self.base.layer_output_scale(layer),
            rope,
        })
    }

    pub async fn matrix(&self, name: &str) -> Result<Weight, GpuError> {
        Ok(self.optional(name).await?.expect("the base checked its tensors when it was opened"))
    }

    pub async fn optional(&self, name: &str) -> Result<Option<Weight>, GpuError> {
        match self.base.tensor(name) {
            Some(matrix) => Weight::stream(self.gpu, self.base, &matrix).await.map(Some),
            None => Ok(None),
        }
    }

    /// The matrix as `count` matrices of `rows` rows.
    pub async fn row_parts(&self, name: &str, rows: usize, count: usize) -> Result<Vec<Weight>, GpuError> {
        let whole = self.base.tensor(name).expect("the base checked its tensors when it was opened");
        let mut parts = Vec::with_capacity(count);
        for i in 0..count {
            let part = whole.rows(i * rows..(i + 1) * rows);
            parts.push(Weight::stream(self.gpu, self.base, &part).await?);
        }
        Ok(parts)
    }

    pub fn norm(&self, name: &str, eps: f32) -> Result<Norm, GpuError> {
        let weight = self.base.vector(name);
        Norm::new(self.gpu, name, Some(&weight), weight.len(), eps)
    }
}
