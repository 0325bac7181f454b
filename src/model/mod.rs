//! The frozen model on the device, and its straight-line forward and backward.

mod activations;
mod backward;
mod coop_products;
pub mod decode;
mod experts;
mod forward;
mod head;
mod inputs;
pub mod plan;
mod products;
mod trainable;

use crate::config::Config;
use crate::gpu::{Gpu, GpuError};
use crate::ops::Weight;
use crate::ops::rms_norm::Norm;
use crate::ops::rope::Table;
use crate::weights::base::Base;

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
    /// Uploads `base`, with rotary tables for `positions` positions.
    pub fn load(gpu: &Gpu, base: &'b Base, positions: usize) -> Result<Model<'b>, GpuError> {
        let config = base.config();
        let upload = Upload { gpu, base };
        let eps = config.rms_eps;
        let mut tables: Vec<(Vec<f64>, Table)> = Vec::new();
        let mut layers = Vec::with_capacity(config.layers.len());
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
                    inp_gate: upload.matrix(&name("inp_gate"))?,
                    proj: upload.matrix(&name("proj"))?,
                    post_norm: upload.norm(&name("post_norm"), eps)?,
                }),
            };
            layers.push(Layer {
                attn_norm: upload.norm(&name("attn_norm"), eps)?,
                attn_q: upload.matrix(&name("attn_q"))?,
                attn_k: upload.optional(&name("attn_k"))?,
                attn_v: upload.optional(&name("attn_v"))?,
                attn_q_norm: upload.norm(&name("attn_q_norm"), eps)?,
                attn_k_norm: match l.kv_donor {
                    None => Some(upload.norm(&name("attn_k_norm"), eps)?),
                    Some(_) => None,
                },
                attn_v_norm: Norm::new(gpu, "attn_v_norm", None, l.head_size, eps)?,
                attn_output: upload.matrix(&name("attn_output"))?,
                post_attention_norm: upload.norm(&name("post_attention_norm"), eps)?,
                ffn_norm: upload.norm(&name("ffn_norm"), eps)?,
                ffn_gate: upload.matrix(&name("ffn_gate"))?,
                ffn_up: upload.matrix(&name("ffn_up"))?,
                ffn_down: upload.matrix(&name("ffn_down"))?,
                post_ffw_norm: upload.norm(&name("post_ffw_norm"), eps)?,
                experts: match &l.experts {
                    None => None,
                    Some(shape) => Some(experts::Experts::load(&upload, i, shape, eps)?),
                },
                per_layer,
                output_scale: base.layer_output_scale(i),
                rope,
            });
            gpu.finish_uploads()?;
        }
        let per_layer = match config.per_layer_width {
            0 => None,
            p => Some(PerLayerInput {
                model_proj: upload.row_parts("per_layer_model_proj", p, config.layers.len())?,
                proj_norm: upload.norm("per_layer_proj_norm", eps)?,
            }),
        };
        Ok(Model {
            base,
            token_embd: upload.matrix("token_embd")?,
            output: upload.optional("output")?,
            output_norm: upload.norm("output_norm", eps)?,
            per_layer,
            layers,
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

    /// The output projection `[V, D]`.
    fn head_matrix(&self) -> &Weight {
        self.output.as_ref().unwrap_or(&self.token_embd)
    }
}

struct Upload<'a> {
    gpu: &'a Gpu,
    base: &'a Base,
}

impl Upload<'_> {
    fn matrix(&self, name: &str) -> Result<Weight, GpuError> {
        Ok(self.optional(name)?.expect("the base checked its tensors when it was opened"))
    }

    fn optional(&self, name: &str) -> Result<Option<Weight>, GpuError> {
        let upload =
            |m: crate::weights::base::Matrix| Weight::upload(self.gpu, name, m.ty, m.rows, m.cols, m.data);
        self.base.matrix(name).map(upload).transpose()
    }

    /// The matrix as `count` matrices of `rows` rows.
    fn row_parts(&self, name: &str, rows: usize, count: usize) -> Result<Vec<Weight>, GpuError> {
        let whole = self.base.matrix(name).expect("the base checked its tensors when it was opened");
        let part = |i: usize| {
            let m = whole.rows(i * rows..(i + 1) * rows);
            Weight::upload(self.gpu, name, m.ty, m.rows, m.cols, m.data)
        };
        (0..count).map(part).collect()
    }

    fn norm(&self, name: &str, eps: f32) -> Result<Norm, GpuError> {
        let weight = self.base.vector(name);
        Norm::new(self.gpu, name, Some(&weight), weight.len(), eps)
    }
}
