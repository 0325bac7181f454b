//! Finds and checks the tensors of a model in a GGUF file.

use std::collections::HashMap;
use std::ops::Range;

use super::config::{Config, DeltaNet, Experts, Gating, Latent, LayerConfig, ShortConv};
use super::{Error, GgmlType, Gguf, Module, TensorInfo, beside, formats};

/// Alternative names of a layer's tensors after `blk.N.`: `(llama.cpp's, Ollama's)`.
const ALTERNATIVES: [(&str, &str); 9] = [
    ("post_attention_norm", "attn_post_norm"),
    ("ffn_norm", "ffn_pre_norm"),
    ("post_ffw_norm", "ffn_post_norm"),
    ("layer_output_scale", "layer_scalar"),
    ("ffn_down_exps.scale", "ffn_gate_inp.per_expert_scale"),
    ("post_ffw_norm_1", "ffn_post_norm_1"),
    ("pre_ffw_norm_2", "ffn_pre_norm_2"),
    ("post_ffw_norm_2", "ffn_post_norm_2"),
    ("ssm_dt.bias", "ssm_dt"),
];

/// The tensor `name` (without `.weight`), or the tensor with its alternative name.
pub(crate) fn find<'a>(gguf: &'a Gguf, name: &str) -> Option<&'a TensorInfo> {
    let stored = |name: &str| gguf.tensor(&format!("{name}.weight")).or_else(|| gguf.tensor(name));
    stored(name).or_else(|| {
        if name == "output_norm" {
            // llama.cpp's name in models with short convolutions.
            return stored("token_embd_norm");
        }
        let (layer, last) = name.strip_prefix("blk.")?.split_once('.')?;
        let of_layer = |last: &str| stored(&format!("blk.{layer}.{last}"));
        let (_, alternative) = ALTERNATIVES.iter().find(|(ours, _)| *ours == last)?;
        // In files without norms behind the blocks, llama.cpp gives the second norm the name that transformers uses.
        let second = || of_layer("post_attention_norm").filter(|_| of_layer("post_ffw_norm").is_none());
        of_layer(alternative).or_else(|| second().filter(|_| last == "ffn_norm"))
    })
}

/// Finds and checks every tensor that a model of shape `config` uses.
pub(super) fn inventory(gguf: &Gguf, config: &Config) -> Result<HashMap<String, Stored>, Error> {
    let (d, p) = (config.width, config.per_layer_width);
    let mut tensors = Inventory { gguf, stored: HashMap::new() };
    tensors.matrix("token_embd", config.vocab, d)?;
    if find(gguf, "output").is_some() {
        tensors.matrix("output", config.vocab, d)?;
    }
    tensors.vector("output_norm", d)?;
    if p > 0 {
        let of_all_layers = config.layers.len() * p;
        tensors.matrix("per_layer_token_embd", config.vocab, of_all_layers)?;
        tensors.matrix("per_layer_model_proj", of_all_layers, d)?;
        tensors.vector("per_layer_proj_norm", p)?;
    }
    for layer in 0..config.layers.len() {
        tensors.norms(config, layer)?;
        if let Some(delta) = &config.layers[layer].delta {
            tensors.delta_net(layer, delta)?;
        }
        if let Some(conv) = &config.layers[layer].short_conv {
            tensors.short_conv(layer, conv)?;
        }
        if let Some(latent) = &config.layers[layer].latent {
            tensors.latent(config, layer, latent)?;
        }
        if let Some(experts) = config.layers[layer].experts {
            tensors.experts(config, layer, experts)?;
        }
        let scale = format!("blk.{layer}.layer_output_scale");
        if find(gguf, &scale).is_some() {
            tensors.vector(&scale, 1)?;
        }
        tensors.projections(config, layer)?;
    }
    // Some models have factors of their own, which are among the tensors that were found.
    let all = &tensors.stored;
    let matrices = all.iter().filter(|(name, s)| s.rows > 1 && !all.contains_key(&format!("{name}.scale")));
    beside::check_factors(gguf, matrices.map(|(name, s)| (&**name, s.ty)))?;
    Ok(tensors.stored)
}

/// Position of a matrix `[rows, cols]` in the file; a vector is one row.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub ty: GgmlType,
    pub rows: usize,
    pub cols: usize,
    pub range: Range<u64>,
}

/// The tensors that were found and checked, by name without `.weight`.
struct Inventory<'a> {
    gguf: &'a Gguf,
    stored: HashMap<String, Stored>,
}

impl Inventory<'_> {
    /// Adds the norms of a layer but for those of its experts.
    fn norms(&mut self, config: &Config, layer: usize) -> Result<(), Error> {
        let l = &config.layers[layer];
        let name = |last: &str| format!("blk.{layer}.{last}");
        let [of_queries, of_keys] = l.qk_norm_sizes();
        for (present, norm, len) in [
            (l.pre_norms, "attn_norm", config.width),
            (l.post_norms, "post_attention_norm", config.width),
            (l.pre_norms, "ffn_norm", config.width),
            (l.post_norms, "post_ffw_norm", config.width),
            (l.qk_norm, "attn_q_norm", of_queries),
            (l.qk_norm && l.kv_donor.is_none(), "attn_k_norm", of_keys),
        ] {
            if present {
                self.vector(&name(norm), len)?;
            }
        }
        if config.per_layer_width > 0 {
            self.vector(&name("post_norm"), config.width)?;
        }
        Ok(())
    }

    /// Adds what a delta net has beside its matrices.
    fn delta_net(&mut self, layer: usize, delta: &DeltaNet) -> Result<(), Error> {
        let name = |last: &str| format!("blk.{layer}.{last}");
        for gates in ["ssm_a", "ssm_dt.bias"] {
            self.vector(&name(gates), delta.value_heads)?;
        }
        self.vector(&name("ssm_norm"), delta.head_size)?;
        self.taps(name("ssm_conv1d"), [4, delta.channels()])
    }

    /// Adds the weights of a short convolution.
    fn short_conv(&mut self, layer: usize, conv: &ShortConv) -> Result<(), Error> {
        self.taps(format!("blk.{layer}.shortconv.conv"), [conv.taps, conv.channels])
    }

    /// Adds the norms of latent vectors, and the matrices that make keys and values of those of a layer.
    fn latent(&mut self, config: &Config, layer: usize, latent: &Latent) -> Result<(), Error> {
        let name = |last: &str| format!("blk.{layer}.{last}");
        if let Some(rank) = latent.query_rank {
            self.vector(&name("attn_q_a_norm"), rank)?;
        }
        self.vector(&name("attn_kv_a_norm"), latent.rank)?;
        let Latent { rank, key_size, value_size, .. } = *latent;
        let heads = config.layers[layer].heads;
        if latent.apart {
            self.expert_matrix(&name("attn_k_b"), heads, rank, key_size)?;
            self.expert_matrix(&name("attn_v_b"), heads, value_size, rank)?;
            // Rows of all heads side by side.
            if let Some(keys) = self.stored.get_mut(&name("attn_k_b")) {
                (keys.rows, keys.cols) = (rank, heads * key_size);
            }
            return Ok(());
        }
        let all = name("attn_kv_b");
        self.matrix(&all, heads * (key_size + value_size), rank)?;
        let Some(stored) = self.stored.remove(&all) else { return Ok(()) };
        for (part, size) in [("attn_k_b", key_size), ("attn_v_b", value_size)] {
            self.stored.insert(name(part), Stored { rows: heads * size, ..stored.clone() });
        }
        Ok(())
    }

    /// Adds the weights of a convolution as one vector, those of a channel side by side.
    fn taps(&mut self, name: String, shape: [usize; 2]) -> Result<(), Error> {
        let tensor = require(self.gguf, &name, &shape)?;
        check_shape(self.gguf, tensor, &shape)?;
        check_unquantized(self.gguf, tensor)?;
        let cols = shape[0] * shape[1];
        self.stored.insert(name, Stored { ty: tensor.ty, rows: 1, cols, range: tensor.range.clone() });
        Ok(())
    }

    /// Adds the experts of a layer, the norms around them and the router's scale.
    fn experts(&mut self, config: &Config, layer: usize, experts: Experts) -> Result<(), Error> {
        let Experts { count, width, .. } = experts;
        let d = config.width;
        let name = |last: &str| format!("blk.{layer}.{last}");
        if config.layers[layer].has_expert_norms() {
            for norm in ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2", "ffn_gate_inp.scale"] {
                self.vector(&name(norm), d)?;
            }
        }
        if experts.gating == Gating::Sigmoid {
            self.vector(&name("exp_probs_b.bias"), count)?;
        }
        let split = find(self.gguf, &name("ffn_gate_up_exps")).is_none();
        if split && find(self.gguf, &name("ffn_gate_exps")).is_some() {
            if !width.is_multiple_of(32) {
                let problem = format!(
                    "tensor {}.weight has {width} rows per expert, expected a multiple of 32 where gate and up are two tensors; \
                     use a conversion that stores them as one, ffn_gate_up_exps",
                    name("ffn_gate_exps")
                );
                return Err(Error::Tensor { file: self.gguf.file().into(), problem });
            }
            self.expert_matrix(&name("ffn_gate_exps"), count, width, d)?;
            self.expert_matrix(&name("ffn_up_exps"), count, width, d)?;
        } else {
            self.expert_matrix(&name("ffn_gate_up_exps"), count, 2 * width, d)?;
        }
        self.expert_matrix(&name("ffn_down_exps"), count, d, width)?;
        match config.layers[layer].has_expert_norms() {
            false => Ok(()),
            true => self.vector(&name("ffn_down_exps.scale"), count),
        }
    }

    /// Adds the matrices of a layer but for its experts; queries, keys and values may be one tensor.
    fn projections(&mut self, config: &Config, layer: usize) -> Result<(), Error> {
        let name = |last: &str| format!("blk.{layer}.{last}");
        let fused = config.layers[layer].has_attention()
            && find(self.gguf, &name("attn_q")).is_none()
            && find(self.gguf, &name("attn_qkv")).is_some();
        if fused {
            self.fused_attention(layer, &config.layers[layer], config.width)?;
        }
        let gate_up = config.layers[layer].fused_in_file.contains(&Module::FfnGateUp);
        if gate_up {
            let width = config.layers[layer].ffn_width;
            self.row_parts(&name("ffn_up"), layer, &[("ffn_gate", width), ("ffn_up", width)], config.width)?;
        }
        let fused_by = |module: Module| match module {
            Module::AttnQ | Module::AttnK | Module::AttnV => fused,
            Module::FfnGate | Module::FfnUp => gate_up,
            _ => false,
        };
        let is_own = |m: &Module| !m.of_experts() && !Module::AttnKvB.fused().contains(m);
        for module in Module::ALL.into_iter().filter(is_own) {
            let in_fused = fused_by(module);
            if let Some((rows, cols)) = module.shape(config, layer).filter(|_| !in_fused) {
                self.matrix(&name(module.gguf_name()), rows, cols)?;
            }
        }
        for module in &config.layers[layer].biases {
            self.bias(config, layer, *module)?;
        }
        match config.layers[layer].sinks {
            true => self.vector(&name("attn_sinks"), config.layers[layer].heads),
            false => Ok(()),
        }
    }

    /// Adds the bias of a matrix, or those of every expert's matrix.
    fn bias(&mut self, config: &Config, layer: usize, module: Module) -> Result<(), Error> {
        let name = |last: &str| format!("blk.{layer}.{last}.bias");
        let Some((rows, _)) = module.shape(config, layer) else { return Ok(()) };
        let is_of_attention = matches!(module, Module::AttnQ | Module::AttnK | Module::AttnV);
        if is_of_attention && find(self.gguf, &name(module.gguf_name())).is_none() {
            return self.fused_bias(config, layer, module);
        }
        let Some(experts) = config.layers[layer].experts.filter(|_| module.of_experts()) else {
            return self.vector(&name(module.gguf_name()), rows);
        };
        if module == Module::FfnGateUpExps && config.layers[layer].experts_split {
            self.vectors(&name("ffn_gate_exps"), rows / 2, experts.count)?;
            return self.vectors(&name("ffn_up_exps"), rows / 2, experts.count);
        }
        self.vectors(&name(module.gguf_name()), rows, experts.count)
    }

    /// Adds the part of `attn_qkv.bias` that is the bias of queries, keys or values.
    fn fused_bias(&mut self, config: &Config, layer: usize, module: Module) -> Result<(), Error> {
        let own = format!("blk.{layer}.{}.bias", module.gguf_name());
        let parts = Module::AttnQkv.fused().iter();
        let sizes: Vec<(Module, usize)> =
            parts.filter_map(|part| Some((*part, part.shape(config, layer)?.0))).collect();
        let all = sizes.iter().map(|(_, rows)| rows).sum();
        let before: usize = sizes.iter().take_while(|(part, _)| *part != module).map(|(_, rows)| rows).sum();
        let cols = module.shape(config, layer).map_or(0, |(rows, _)| rows);
        let whole = format!("blk.{layer}.attn_qkv.bias");
        let tensor =
            require(self.gguf, if find(self.gguf, &whole).is_some() { &whole } else { &own }, &[cols])?;
        check_vector(self.gguf, tensor, &[all, 1])?;
        let bytes = (tensor.range.end - tensor.range.start) / all as u64;
        let start = tensor.range.start + before as u64 * bytes;
        let stored = Stored { ty: tensor.ty, rows: 1, cols, range: start..start + cols as u64 * bytes };
        self.stored.insert(own, stored);
        Ok(())
    }

    /// Adds the row ranges of `attn_qkv` under the names of queries, keys and values.
    fn fused_attention(&mut self, layer: usize, l: &LayerConfig, cols: usize) -> Result<(), Error> {
        let (queries, keys) = (l.heads * l.head_size, l.kv_heads * l.head_size);
        let parts = [("attn_q", queries), ("attn_k", keys), ("attn_v", keys)];
        self.row_parts(&format!("blk.{layer}.attn_qkv"), layer, &parts, cols)?;
        if l.kv_donor.is_some() {
            for part in ["attn_k", "attn_v"] {
                self.stored.remove(&format!("blk.{layer}.{part}"));
            }
        }
        Ok(())
    }

    /// Adds the matrices that one tensor of the file has below each other, by their names in the layer and rows.
    fn row_parts(
        &mut self,
        name: &str,
        layer: usize,
        parts: &[(&str, usize)],
        cols: usize,
    ) -> Result<(), Error> {
        let rows = parts.iter().map(|(_, rows)| rows).sum();
        let tensor = require(self.gguf, name, &[cols, rows])?;
        check_matrix(self.gguf, tensor, rows, cols)?;
        let row_bytes = (tensor.range.end - tensor.range.start) / rows as u64;
        let mut start = tensor.range.start;
        for (part, rows) in parts {
            let range = start..start + *rows as u64 * row_bytes;
            start = range.end;
            let stored = Stored { ty: tensor.ty, rows: *rows, cols, range };
            self.stored.insert(format!("blk.{layer}.{part}"), stored);
        }
        Ok(())
    }

    /// Adds the matrix `[rows, cols]`, which must be in the file.
    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<(), Error> {
        let tensor = require(self.gguf, name, &[cols, rows])?;
        check_matrix(self.gguf, tensor, rows, cols)?;
        self.stored.insert(name.into(), Stored { ty: tensor.ty, rows, cols, range: tensor.range.clone() });
        Ok(())
    }

    /// Adds the tensor of a matrix `[rows, cols]` per expert, which must be in the file, as one matrix `[experts·rows, cols]`.
    fn expert_matrix(&mut self, name: &str, experts: usize, rows: usize, cols: usize) -> Result<(), Error> {
        let tensor = require(self.gguf, name, &[cols, rows, experts])?;
        check_shape(self.gguf, tensor, &[cols, rows, experts])?;
        check_format(self.gguf, tensor, cols)?;
        let rows = rows * experts;
        self.stored.insert(name.into(), Stored { ty: tensor.ty, rows, cols, range: tensor.range.clone() });
        Ok(())
    }

    /// Adds a vector of unquantized values, which must be in the file.
    fn vector(&mut self, name: &str, len: usize) -> Result<(), Error> {
        self.vectors(name, len, 1)
    }

    /// Adds `count` vectors of one tensor as one vector.
    fn vectors(&mut self, name: &str, len: usize, count: usize) -> Result<(), Error> {
        let shape = [len, count];
        let tensor = require(self.gguf, name, if count > 1 { &shape } else { &shape[..1] })?;
        check_vector(self.gguf, tensor, &shape)?;
        let stored = Stored { ty: tensor.ty, rows: 1, cols: len * count, range: tensor.range.clone() };
        self.stored.insert(name.into(), stored);
        Ok(())
    }
}

/// The values of the vector `name`, which must be in the file.
pub(crate) fn read_vector(gguf: &Gguf, name: &str, len: usize) -> Result<Vec<f32>, Error> {
    let tensor = require(gguf, name, &[len])?;
    check_vector(gguf, tensor, &[len, 1])?;
    let values = formats::dequantize(tensor.ty, gguf.data(tensor));
    match values.iter().find(|value| !value.is_finite()) {
        None => Ok(values),
        Some(value) => {
            let found = value.to_string();
            Err(wrong(gguf, tensor, found, "finite numbers".into(), "download the file again"))
        }
    }
}

/// The tensor `name`; the error has the expected shape.
pub(crate) fn require<'a>(gguf: &'a Gguf, name: &str, shape: &[usize]) -> Result<&'a TensorInfo, Error> {
    find(gguf, name).ok_or_else(|| {
        let kind = if name.ends_with(".scale") || name.ends_with(".bias") { "" } else { ".weight" };
        let architecture = gguf.get::<&str>("general.architecture").ok().flatten().unwrap_or("unknown");
        let problem = format!(
            "tensor {name}{kind} is missing, expected it with shape {shape:?} in a `{architecture}` text model of these \
             sizes; use another conversion of the model"
        );
        Error::Tensor { file: gguf.file().into(), problem }
    })
}

fn wrong(gguf: &Gguf, tensor: &TensorInfo, found: String, expected: String, next: &str) -> Error {
    let problem = format!("tensor {} has {found}, expected {expected}; {next}", tensor.name);
    Error::Tensor { file: gguf.file().into(), problem }
}

/// Refuses a shape other than `expected`; trailing sizes of 1 do not count.
fn check_shape(gguf: &Gguf, tensor: &TensorInfo, expected: &[usize]) -> Result<(), Error> {
    let sizes = |shape: &[usize]| shape.iter().rposition(|&size| size != 1).map_or(0, |last| last + 1);
    if tensor.shape[..sizes(&tensor.shape)] == expected[..sizes(expected)] {
        return Ok(());
    }
    let found = format!("shape {:?}", tensor.shape);
    let expected = format!("{expected:?} by the file's metadata");
    Err(wrong(gguf, tensor, found, expected, "use another conversion of the model"))
}

fn check_matrix(gguf: &Gguf, tensor: &TensorInfo, rows: usize, cols: usize) -> Result<(), Error> {
    check_shape(gguf, tensor, &[cols, rows])?;
    check_format(gguf, tensor, cols)
}

/// Refuses formats without kernels.
fn check_format(gguf: &Gguf, tensor: &TensorInfo, cols: usize) -> Result<(), Error> {
    if !tensor.ty.supported() {
        let found = format!("type {}", tensor.ty.name());
        let expected = format!("one of {}", GgmlType::names(&GgmlType::SUPPORTED));
        return Err(wrong(
            gguf,
            tensor,
            found,
            expected,
            "use another quantization of the model, such as Q4_K_M, or IQ2_M if memory is short",
        ));
    }
    // Kernels read unquantized rows four values at a time; blocks are multiples of 32 anyway.
    if !cols.is_multiple_of(4) {
        let found = format!("rows of {cols} values");
        return Err(wrong(gguf, tensor, found, "a multiple of 4".into(), "no kernel reads such a model"));
    }
    Ok(())
}

/// Refuses other shapes than `[len, count]`, and quantized values.
fn check_vector(gguf: &Gguf, tensor: &TensorInfo, [len, count]: &[usize; 2]) -> Result<(), Error> {
    match count {
        1 => check_shape(gguf, tensor, &[*len])?,
        _ => check_shape(gguf, tensor, &[*len, *count])?,
    }
    check_unquantized(gguf, tensor)
}

fn check_unquantized(gguf: &Gguf, tensor: &TensorInfo) -> Result<(), Error> {
    if !matches!(tensor.ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) {
        let found = format!("type {}", tensor.ty.name());
        return Err(wrong(
            gguf,
            tensor,
            found,
            "F32, F16 or BF16".into(),
            "use another conversion of the model",
        ));
    }
    Ok(())
}
