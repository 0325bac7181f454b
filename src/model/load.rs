//! Uploading a model.

use std::cell::RefCell;

use super::upload::Upload;
use super::{
    DeltaLayer, Dense, LatentLayer, Layer, Model, PerLayerBranch, PerLayerInput, ShortConvLayer, experts,
    offload,
};
use crate::base::Base;
use crate::base::config::{Latent, LayerConfig, Rotary};
use crate::base::gguf::source::now;
use crate::gpu::{Gpu, GpuError};
use crate::memory::{CHUNK, OnHost, Saves};
use crate::ops::delta::Frozen;
use crate::ops::rms_norm::Norm;
use crate::ops::rope::Table;
use crate::ops::short_conv::Taps;

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
        Model::offloading(gpu, base, positions, &OnHost::default(), progress).await
    }

    /// Uploads any base, without what is to stay in host memory. That is there in the layout that kernels read, and is copied to the device
    /// before a pass reaches its layer. The results are bit-identical.
    pub async fn offloading(
        gpu: &Gpu,
        base: &'b Base,
        positions: usize,
        on_host: &OnHost,
        mut progress: impl FnMut(usize),
    ) -> Result<Model<'b>, GpuError> {
        let config = base.config();
        let offload = host_weights(gpu, base, on_host)?;
        let upload = Upload { gpu, base, host: offload.map(RefCell::new) };
        let mut tables: Vec<(Rotary, Table)> = Vec::new();
        let mut layers = Vec::with_capacity(config.layers.len());
        let mut sent = None;
        for (i, shape) in config.layers.iter().enumerate() {
            let [queries, keys] = config.rotary(i, positions);
            let rope = match shape.has_attention() {
                false => None,
                true => Some([
                    shared_table(gpu, &mut tables, queries, positions)?,
                    shared_table(gpu, &mut tables, keys, positions)?,
                ]),
            };
            let experts = match &shape.experts {
                None => None,
                Some(_) => Some(experts::Experts::load(&upload, i).await?),
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
        let token_embd = upload.matrix("token_embd").await?;
        let output = upload.optional("output").await?;
        // The head is linear: its factor may as well be one on its input.
        let output_norm = match config.logit_scale {
            1.0 => upload.norm("output_norm", config.rms_eps)?,
            scale => upload.scaled_norm("output_norm", scale.into())?,
        };
        Ok(Model {
            base,
            token_embd,
            output,
            output_norm,
            per_layer,
            layers,
            offload: upload.host.map(RefCell::into_inner),
            on_host: on_host.clone(),
            positions,
            chunk: CHUNK,
            parts: 1,
        })
    }
}

/// Memory on the host for what stays there, where any matrix does.
fn host_weights<'b>(
    gpu: &Gpu,
    base: &'b Base,
    on_host: &OnHost,
) -> Result<Option<offload::HostWeights<'b>>, GpuError> {
    if on_host.saves != Saves::None && !gpu.has_host_buffers() {
        return Err(GpuError::NoHostBuffers { device: gpu.description() });
    }
    match on_host.of_layers().is_empty() {
        true => Ok(None),
        false => offload::HostWeights::new(gpu, base, on_host).map(Some),
    }
}

/// The table of `rotary`, which all that turn alike share.
fn shared_table(
    gpu: &Gpu,
    tables: &mut Vec<(Rotary, Table)>,
    rotary: Rotary,
    positions: usize,
) -> Result<Table, GpuError> {
    if let Some((_, table)) = tables.iter().find(|(of, _)| *of == rotary) {
        return Ok(table.clone());
    }
    let table = Table::scaled(gpu, &rotary.frequencies, |position| rotary.factor(position), positions)?;
    tables.push((rotary, table.clone()));
    Ok(table)
}

impl<'b> Upload<'_, 'b> {
    /// Layer `layer`, with experts and rotary table that are there already.
    async fn layer(
        &self,
        layer: usize,
        experts: Option<experts::Experts>,
        rope: Option<[Table; 2]>,
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
            attn_norm: self.pre_norm(shape.pre_norms, &name("attn_norm"))?,
            attn_q: match shape.latent {
                None => self.optional(&name("attn_q")).await?,
                Some(_) => None,
            },
            attn_k: self.optional(&name("attn_k")).await?,
            attn_v: self.optional(&name("attn_v")).await?,
            attn_q_norm: match shape.rotated {
                Some(_) if shape.qk_norm => self.scaled_norm(&name("attn_q_norm"), shape.score_scale)?,
                Some(_) => Norm::passing(self.gpu, "attn_q_norm", shape.head_size, shape.score_scale as f32)?,
                None => self.norm_of_heads(shape, &name("attn_q_norm"))?,
            },
            attn_k_norm: match (shape.kv_donor, shape.rotated) {
                (Some(_), _) => None,
                // Kernels treat keys as queries.
                (None, Some(_)) if !shape.qk_norm => {
                    Some(Norm::passing(self.gpu, "attn_k_norm", shape.head_size, 1.0)?)
                }
                (None, _) => Some(self.norm_of_heads(shape, &name("attn_k_norm"))?),
            },
            attn_v_norm: match shape.v_norm {
                true => Norm::new(self.gpu, "attn_v_norm", None, shape.head_size, eps)?,
                false => Norm::identity(shape.head_size),
            },
            attn_output: self.optional(&name("attn_output")).await?,
            delta: match shape.delta {
                None => None,
                Some(_) => Some(self.delta(layer).await?),
            },
            short_conv: match &shape.short_conv {
                None => None,
                Some(conv) => Some(ShortConvLayer {
                    in_proj: self.matrix(&name("shortconv.in_proj")).await?,
                    taps: Taps::new(self.gpu, conv, &self.base.vector(&name("shortconv.conv")))?,
                    out_proj: self.matrix(&name("shortconv.out_proj")).await?,
                }),
            },
            latent: match &shape.latent {
                None => None,
                Some(latent) => Some(self.latent(layer, latent).await?),
            },
            sinks: match shape.sinks {
                true => Some(self.gpu.upload("attn_sinks", &self.base.vector(&name("attn_sinks")))?),
                false => None,
            },
            post_attention_norm: self.norm_if(
                shape.post_norms,
                &name("post_attention_norm"),
                config.width,
            )?,
            ffn_norm: self.pre_norm(shape.pre_norms, &name("ffn_norm"))?,
            dense: match shape.ffn_width {
                0 => None,
                _ => Some(self.dense(layer).await?),
            },
            post_ffw_norm: self.norm_if(shape.post_norms, &name("post_ffw_norm"), config.width)?,
            experts,
            per_layer,
            output_scale: self.base.layer_output_scale(layer),
            rope,
        })
    }

    /// The norm `name` of the heads of queries or of keys, or the identity where the layer has none.
    fn norm_of_heads(&self, shape: &LayerConfig, name: &str) -> Result<Norm, GpuError> {
        let norm = self.norm_if(shape.qk_norm, name, shape.head_size)?;
        let of_rows = shape.qk_norm && shape.qk_norm_of_rows;
        Ok(Norm { behind_rotation: shape.qk_norm_behind, of_rows, ..norm })
    }

    async fn delta(&self, layer: usize) -> Result<DeltaLayer, GpuError> {
        let name = |last: &str| format!("blk.{layer}.{last}");
        let vector = |last: &str| self.base.vector(&name(last));
        Ok(DeltaLayer {
            qkv: self.matrix(&name("attn_qkv")).await?,
            gate: self.matrix(&name("attn_gate")).await?,
            alpha: self.matrix(&name("ssm_alpha")).await?,
            beta: self.matrix(&name("ssm_beta")).await?,
            frozen: Frozen::new(self.gpu, &vector("ssm_conv1d"), &vector("ssm_a"), &vector("ssm_dt.bias"))?,
            norm: self.norm(&name("ssm_norm"), self.base.config().rms_eps)?,
            out: self.matrix(&name("ssm_out")).await?,
        })
    }

    async fn latent(&self, layer: usize, latent: &Latent) -> Result<LatentLayer, GpuError> {
        let eps = self.base.config().rms_eps;
        let name = |last: &str| format!("blk.{layer}.{last}");
        let q_a = match latent.query_rank {
            None => None,
            Some(_) => Some((self.matrix(&name("attn_q_a")).await?, self.norm(&name("attn_q_a_norm"), eps)?)),
        };
        Ok(LatentLayer {
            q: self.matrix(&name(if q_a.is_some() { "attn_q_b" } else { "attn_q" })).await?,
            q_a,
            kv_a: self.matrix(&name("attn_kv_a_mqa")).await?,
            kv_norm: self.norm(&name("attn_kv_a_norm"), eps)?,
            k_b: self.matrix(&name("attn_k_b")).await?,
            v_b: self.matrix(&name("attn_v_b")).await?,
        })
    }

    async fn dense(&self, layer: usize) -> Result<Dense, GpuError> {
        let modules = self.base.config().layers[layer].dense_modules();
        let [gate, up, down] = modules.map(|module| format!("blk.{layer}.{}", module.gguf_name()));
        Ok(Dense {
            modules,
            gate: self.matrix(&gate).await?,
            up: self.matrix(&up).await?,
            down: self.matrix(&down).await?,
        })
    }
}
