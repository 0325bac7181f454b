//! The frozen model on the device, and its straight-line forward and backward.

mod activations;
mod backward;
mod coop_products;
pub mod decode;
mod experts;
mod forward;
mod head;
mod inputs;
mod lending;
mod offload;
pub mod plan;
mod products;
mod trainable;

use crate::base::base::Base;
use crate::base::config::Config;
use crate::base::gguf::source::now;
use crate::gpu::{Gpu, GpuError};
use crate::ops::Weight;
use crate::ops::rms_norm::Norm;
use crate::ops::rope::Table;

pub use activations::Activations;
pub use experts::Loads;
pub use head::{Head, Losses};
pub use inputs::Inputs;
pub use plan::Plan;
pub use trainable::Trainable;

/// The frozen weights on the device. The per-layer embedding table stays in the file.
pub struct Model<'b> {
    base: &'b Base,
    token_embd: Weight,
    output: Option<Weight>,
    output_norm: Norm,
    per_layer: Option<PerLayerInput>,
    layers: Vec<Layer>,
    offload: Option<offload::HostExperts<'b>>,
    positions: usize, // in the rotary tables
    chunk: usize,     // tokens that pass through a feed-forward at a time
}

struct PerLayerInput {
    model_proj: Vec<Weight>, // by layer, [P, D]
    proj_norm: Norm,
}

struct Layer {
    attn_norm: Norm,
    attn_q: Weight,
    attn_k: Option<Weight>,
    attn_v: Option<Weight>,
    attn_q_norm: Norm,
    attn_k_norm: Option<Norm>,
    attn_v_norm: Norm,
    attn_output: Weight,
    post_attention_norm: Norm,
    ffn_norm: Norm,
    ffn_gate: Weight,
    ffn_up: Weight,
    ffn_down: Weight,
    post_ffw_norm: Norm,
    experts: Option<experts::Experts>,
    per_layer: Option<PerLayerBranch>,
    output_scale: f32,
    rope: Table,
}

struct PerLayerBranch {
    inp_gate: Weight,
    proj: Weight,
    post_norm: Norm,
}

/// Tokens that pass through a feed-forward at a time, the same whatever is kept, so that no plan changes a sum's order.
const CHUNK: usize = 8192;

impl<'b> Model<'b> {
    /// Uploads a base that is in memory, with rotary tables for `positions` positions.
    pub fn load(gpu: &Gpu, base: &'b Base, positions: usize) -> Result<Model<'b>, GpuError> {
        now(Model::stream(gpu, base, positions, |_| ()))
    }

    /// Uploads any base; `progress` hears how many layers are on the device.
    pub async fn stream(
        gpu: &Gpu,
        base: &'b Base,
        positions: usize,
        progress: impl FnMut(usize),
    ) -> Result<Model<'b>, GpuError> {
        Model::offloading(gpu, base, positions, &[], progress).await
    }

    /// The same but for the experts of the layers `offloaded`, each of which has some: they stay in host memory, as the kernels
    /// read them, and are copied to the device whenever a pass comes to their layer. The results are the same bits.
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
        let eps = config.rms_eps;
        let mut tables: Vec<(Vec<f64>, Table)> = Vec::new();
        let mut layers = Vec::with_capacity(config.layers.len());
        let mut sent = None;
        for (i, l) in config.layers.iter().enumerate() {
            let name = |last: &str| format!("blk.{i}.{last}");
            let frequencies = config.rope_frequencies(i);
            let rope = match tables.iter().find(|(f, _)| *f == frequencies) {
                Some((_, table)) => table.clone(),
                None => {
                    let table = Table::new(gpu, &frequencies, positions)?;
                    tables.push((frequencies, table.clone()));
                    table
                }
            };
            let per_layer = match config.per_layer_width {
                0 => None,
                _ => Some(PerLayerBranch {
                    inp_gate: upload.matrix(&name("inp_gate")).await?,
                    proj: upload.matrix(&name("proj")).await?,
                    post_norm: upload.norm(&name("post_norm"), eps)?,
                }),
            };
            layers.push(Layer {
                attn_norm: upload.norm(&name("attn_norm"), eps)?,
                attn_q: upload.matrix(&name("attn_q")).await?,
                attn_k: upload.optional(&name("attn_k")).await?,
                attn_v: upload.optional(&name("attn_v")).await?,
                attn_q_norm: upload.norm(&name("attn_q_norm"), eps)?,
                attn_k_norm: match l.kv_donor {
                    None => Some(upload.norm(&name("attn_k_norm"), eps)?),
                    Some(_) => None,
                },
                attn_v_norm: Norm::new(gpu, "attn_v_norm", None, l.head_size, eps)?,
                attn_output: upload.matrix(&name("attn_output")).await?,
                post_attention_norm: upload.norm(&name("post_attention_norm"), eps)?,
                ffn_norm: upload.norm(&name("ffn_norm"), eps)?,
                ffn_gate: upload.matrix(&name("ffn_gate")).await?,
                ffn_up: upload.matrix(&name("ffn_up")).await?,
                ffn_down: upload.matrix(&name("ffn_down")).await?,
                post_ffw_norm: upload.norm(&name("post_ffw_norm"), eps)?,
                experts: match &l.experts {
                    None => None,
                    Some(shape) => {
                        let offload = offload.as_mut().filter(|_| offloaded.contains(&i));
                        Some(experts::Experts::load(&upload, i, shape, eps, offload).await?)
                    }
                },
                per_layer,
                output_scale: base.layer_output_scale(i),
                rope,
            });
            // The next layer is read while this one is on its way.
            sent = Some(gpu.send_uploads(sent)?);
            progress(i + 1);
        }
        let per_layer = match config.per_layer_width {
            0 => None,
            p => Some(PerLayerInput {
                model_proj: upload.row_parts("per_layer_model_proj", p, config.layers.len()).await?,
                proj_norm: upload.norm("per_layer_proj_norm", eps)?,
            }),
        };
        Ok(Model {
            base,
            token_embd: upload.matrix("token_embd").await?,
            output: upload.optional("output").await?,
            output_norm: upload.norm("output_norm", eps)?,
            per_layer,
            layers,
            offload,
            positions,
            chunk: CHUNK,
        })
    }

    /// Lets at most `tokens` tokens, a multiple of 64, pass through a feed-forward at a time: fewer need less memory, as its
    /// rows are the widest, and take longer.
    pub fn set_chunk(&mut self, tokens: usize) {
        assert!(tokens > 0 && tokens.is_multiple_of(64), "{tokens} tokens, expected a multiple of 64");
        self.chunk = tokens;
    }

    /// The model's shape.
    pub fn config(&self) -> &'b Config {
        self.base.config()
    }

    /// Positions that its rotary tables cover: the longest row or conversation.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// The output projection `[V, D]`.
    fn head_matrix(&self) -> &Weight {
        self.output.as_ref().unwrap_or(&self.token_embd)
    }
}

struct Upload<'a, 'b> {
    gpu: &'a Gpu,
    base: &'b Base,
}

impl Upload<'_, '_> {
    async fn matrix(&self, name: &str) -> Result<Weight, GpuError> {
        Ok(self.optional(name).await?.expect("the base checked its tensors when it was opened"))
    }

    async fn optional(&self, name: &str) -> Result<Option<Weight>, GpuError> {
        match self.base.tensor(name) {
            Some(matrix) => Weight::stream(self.gpu, self.base, &matrix).await.map(Some),
            None => Ok(None),
        }
    }

    /// The matrix as `count` matrices of `rows` rows.
    async fn row_parts(&self, name: &str, rows: usize, count: usize) -> Result<Vec<Weight>, GpuError> {
        let whole = self.base.tensor(name).expect("the base checked its tensors when it was opened");
        let mut parts = Vec::with_capacity(count);
        for i in 0..count {
            let part = whole.rows(i * rows..(i + 1) * rows);
            parts.push(Weight::stream(self.gpu, self.base, &part).await?);
        }
        Ok(parts)
    }

    fn norm(&self, name: &str, eps: f32) -> Result<Norm, GpuError> {
        let weight = self.base.vector(name);
        Norm::new(self.gpu, name, Some(&weight), weight.len(), eps)
    }
}
