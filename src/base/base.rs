//! [`Base`]: a frozen Gemma 4 text model whose every tensor has been found and checked.

#[cfg(feature = "native")]
use super::ollama;
use super::tensors::{Inventory, Stored, find};
use super::{Error, Fingerprint, GgmlType, Gguf, Module, Source, TensorInfo, hyperparameters, quant};
use crate::base::config::{Config, Experts};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
#[cfg(feature = "native")]
use std::path::Path;
use std::sync::OnceLock;

use rayon::prelude::*;

/// The model that is part of the program: 5.5 M parameters, every part that gemma4:e2b has.
#[cfg(feature = "native")]
const TINY: &[u8] = include_bytes!("../../models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf");

/// A frozen base model. Tensors stay as the file has them; nothing is copied when it is opened.
#[derive(Debug)]
pub struct Base {
    name: String,
    gguf: Gguf,
    config: Config,
    stored: HashMap<String, Stored>,
    fingerprint: OnceLock<Fingerprint>,
    random: bool,
}

/// A matrix as [`Matrix`], or some of its rows, without its bytes: [`Base::read`] fetches them.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// Name without `.weight`: `blk.3.attn_q`.
    pub name: &'a str,
    /// Format; always one of [`GgmlType::SUPPORTED`].
    pub ty: GgmlType,
    /// Output width.
    pub rows: usize,
    /// Input width: whole blocks, and a multiple of 4.
    pub cols: usize,
    /// Where it lies in the file.
    pub range: Range<u64>,
}

impl Tensor<'_> {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.cols / self.ty.block_len() * self.ty.block_bytes()
    }

    /// Some of the rows. Panics where `range` is not within them.
    pub fn rows(&self, range: Range<usize>) -> Self {
        assert!(range.end <= self.rows, "rows {range:?} of {}, which has {}", self.name, self.rows);
        let at = |row: usize| self.range.start + row as u64 * self.row_bytes() as u64;
        Tensor { rows: range.len(), range: at(range.start)..at(range.end), ..*self }
    }
}

/// A matrix `[rows, cols]`, rows contiguous, in the file's format: `y = W·x` with `x` `[cols]`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Name without `.weight`: `blk.3.attn_q`.
    pub name: &'a str,
    /// Format; always one of [`GgmlType::SUPPORTED`].
    pub ty: GgmlType,
    /// Output width.
    pub rows: usize,
    /// Input width: whole blocks, and a multiple of 4.
    pub cols: usize,
    /// `rows · row_bytes()` bytes, at any address.
    pub data: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.cols / self.ty.block_len() * self.ty.block_bytes()
    }

    /// The matrix of some of the rows. Panics where `range` is not within them.
    pub fn rows(&self, range: Range<usize>) -> Matrix<'a> {
        let data = &self.data[range.start * self.row_bytes()..range.end * self.row_bytes()];
        Matrix { rows: range.len(), data, ..*self }
    }

    /// All values, `[rows, cols]`.
    pub fn dequantize(&self) -> Vec<f32> {
        quant::dequantize(self.ty, self.data)
    }
}

impl Base {
    /// Opens what the user named: `tiny` (part of the program), a GGUF file, or a model in Ollama's store.
    ///
    /// A file is what exists, ends in `.gguf`, or is spelled as a path (`./…`, `~…`, absolute); the rest are
    /// Ollama's names, which may contain `/` too.
    #[cfg(feature = "native")]
    pub fn open(spec: &str) -> Result<Base, Error> {
        if spec == "tiny" {
            return Base::tiny();
        }
        let path = Path::new(spec);
        let spelled_as_path =
            spec.ends_with(".gguf") || spec.starts_with(['.', '~', '/']) || spec.contains('\\');
        if spelled_as_path || path.is_file() {
            return Base::from_gguf(Gguf::open(path)?, spec);
        }
        let blob = ollama::resolve(spec, &ollama::stores())?;
        Base::from_gguf(Gguf::open(&blob)?, spec)
    }

    /// The model that is part of the program.
    #[cfg(feature = "native")]
    pub fn tiny() -> Result<Base, Error> {
        Base::from_gguf(Gguf::from_static(TINY, "tiny")?, "tiny")
    }

    /// Reads the model's shape from the metadata and checks that each tensor it needs is there, has the shape
    /// that follows, and a format with kernels. Tensors of vision and audio towers, and the unused keys and values
    /// of layers that share, are ignored.
    pub fn from_gguf(gguf: Gguf, name: &str) -> Result<Base, Error> {
        let config = hyperparameters::read(&gguf)?;
        let stored = inventory(&gguf, &config)?;
        Ok(Base { name: name.into(), gguf, config, stored, fingerprint: OnceLock::new(), random: false })
    }

    /// Opens a file that stays where it is: its matrices are read when they are needed ([`Base::read`]), and only the calls
    /// that say so want them in memory. Up to 64 KiB of each are read now, for the fingerprint.
    pub async fn stream(source: Box<dyn Source>, name: &str) -> Result<Base, Error> {
        let base = Base::from_gguf(Gguf::stream(source, name).await?, name)?;
        let fingerprint = Fingerprint::read(&base).await?;
        Ok(Base { fingerprint: fingerprint.into(), ..base })
    }

    /// The same with matrices whose quantized blocks the source leaves out: [`crate::ops::random`] makes them on the device.
    pub(super) async fn random(source: Box<dyn Source>, name: &str) -> Result<Base, Error> {
        Ok(Base { random: true, ..Base::stream(source, name).await? })
    }

    /// Whether its matrices hold random blocks that are made on the device: a [`super::shapes::Shape`].
    pub fn is_random(&self) -> bool {
        self.random
    }

    /// What the base is recognized by.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint.get_or_init(|| Fingerprint::of_memory(self)).clone()
    }

    /// The name that the model was opened by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the model was opened by the path of a file: not from Ollama's store, and not the one that is built in.
    pub fn is_file(&self) -> bool {
        self.name != "tiny" && std::path::Path::new(self.gguf.file()) == std::path::Path::new(&self.name)
    }

    /// A matrix without its bytes, by its name as in [`Base::matrix`].
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let (name, s) = self.stored.get_key_value(name)?;
        Some(Tensor { name, ty: s.ty, rows: s.rows, cols: s.cols, range: s.range.clone() })
    }

    /// Every tensor that the text model uses, vectors as matrices of one row, by name.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        let mut names: Vec<&String> = self.stored.keys().collect();
        names.sort();
        names.into_iter().filter_map(|name| self.tensor(name))
    }

    /// The bytes of a matrix or of some of its rows.
    pub async fn read(&self, tensor: &Tensor<'_>) -> Result<Cow<'_, [u8]>, Error> {
        let mut read = self.gguf.read(std::slice::from_ref(&tensor.range)).await?;
        Ok(read.pop().expect("one for each range"))
    }

    /// Some rows of a matrix, one behind the other.
    pub async fn read_rows(&self, tensor: &Tensor<'_>, rows: &[u32]) -> Result<Vec<u8>, Error> {
        let range = |&row: &u32| tensor.rows(row as usize..row as usize + 1).range;
        let ranges: Vec<Range<u64>> = rows.iter().map(range).collect();
        let read = self.gguf.read(&ranges).await?;
        let mut bytes = vec![0; rows.len() * tensor.row_bytes()];
        // In parallel, because a page of a mapped file may have to be fetched for each.
        let places = bytes.par_chunks_mut(tensor.row_bytes().max(1));
        places.zip(&read).for_each(|(place, row)| place.copy_from_slice(row));
        Ok(bytes)
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The file, for the tokenizer's metadata.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// A matrix by its name without `.weight` (`blk.3.attn_q`); `None` where this model has or uses none.
    ///
    /// Panics where the file is elsewhere ([`Base::stream`]) and this is no vector.
    pub fn matrix(&self, name: &str) -> Option<Matrix<'_>> {
        let Tensor { name, ty, rows, cols, range } = self.tensor(name)?;
        Some(Matrix { name, ty, rows, cols, data: self.gguf.slice(range) })
    }

    /// [`Base::tensors`] with their bytes. Panics where the file is elsewhere ([`Base::stream`]).
    pub fn matrices(&self) -> impl Iterator<Item = Matrix<'_>> {
        self.tensors().filter_map(|tensor| self.matrix(tensor.name))
    }

    /// [`Base::matrix`], an error where this model has or uses none.
    pub fn require_matrix(&self, name: &str) -> Result<Matrix<'_>, Error> {
        self.matrix(name).ok_or_else(|| Error::Tensor {
            file: self.gguf.file().into(),
            problem: format!("matrix {name} is not one that this model uses; choose another target"),
        })
    }

    /// The tensor of the file that holds a matrix, and which of its rows: all of them unless queries, keys and values
    /// are one tensor. `None` as in [`Base::matrix`].
    pub fn location(&self, name: &str) -> Option<(&TensorInfo, Range<usize>)> {
        let matrix = self.tensor(name)?;
        let tensor = self.gguf.tensors().iter().find(|t| t.range.contains(&matrix.range.start))?;
        let first = ((matrix.range.start - tensor.range.start) / matrix.row_bytes() as u64) as usize;
        Some((tensor, first..first + matrix.rows))
    }

    /// The output projection, `[V, D]`: `output` where the file has one, else the embedding (tied).
    pub fn head(&self) -> Matrix<'_> {
        self.matrix("output")
            .or_else(|| self.matrix("token_embd"))
            .expect("checked when the model was opened")
    }

    /// A vector by its name without `.weight` (`blk.3.attn_norm`).
    ///
    /// Panics where a model of this [`Config`] has no such vector: the others were checked when it was opened.
    pub fn vector(&self, name: &str) -> Vec<f32> {
        let vector =
            self.matrix(name).unwrap_or_else(|| panic!("a model of this config has no vector {name}"));
        vector.dequantize()
    }

    /// The factor on the output of layer `layer`; 1 where the file has none.
    pub fn layer_output_scale(&self, layer: usize) -> f32 {
        self.matrix(&format!("blk.{layer}.layer_output_scale")).map_or(1.0, |scale| scale.dequantize()[0])
    }
}

/// Finds and checks every tensor that a model of this shape uses.
fn inventory(gguf: &Gguf, config: &Config) -> Result<HashMap<String, Stored>, Error> {
    let (d, p, vocab, layers) = (config.width, config.per_layer_width, config.vocab, config.layers.len());
    let mut tensors = Inventory::new(gguf);
    tensors.matrix("token_embd", vocab, d)?;
    if find(gguf, "output").is_some() {
        tensors.matrix("output", vocab, d)?;
    }
    tensors.vector("output_norm", d)?;
    if p > 0 {
        tensors.matrix("per_layer_token_embd", vocab, layers * p)?;
        tensors.matrix("per_layer_model_proj", layers * p, d)?;
        tensors.vector("per_layer_proj_norm", p)?;
    }
    for (i, layer) in config.layers.iter().enumerate() {
        let name = |last: &str| format!("blk.{i}.{last}");
        for norm in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
            tensors.vector(&name(norm), d)?;
        }
        tensors.vector(&name("attn_q_norm"), layer.head_size)?;
        if layer.kv_donor.is_none() {
            tensors.vector(&name("attn_k_norm"), layer.head_size)?;
        }
        if p > 0 {
            tensors.vector(&name("post_norm"), d)?;
        }
        if let Some(Experts { count, width, .. }) = layer.experts {
            for norm in ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"] {
                tensors.vector(&name(norm), d)?;
            }
            tensors.vector(&name("ffn_gate_inp.scale"), d)?;
            if find(gguf, &name("ffn_gate_up_exps")).is_none() && find(gguf, &name("ffn_gate_exps")).is_some()
            {
                if !width.is_multiple_of(32) {
                    let problem = format!(
                        "tensor {}.weight has {width} rows an expert, expected a multiple of 32 where gate and up are apart; \
                         use a conversion that has them together, as ffn_gate_up_exps",
                        name("ffn_gate_exps")
                    );
                    return Err(Error::Tensor { file: gguf.file().into(), problem });
                }
                tensors.experts(&name("ffn_gate_exps"), count, width, d)?;
                tensors.experts(&name("ffn_up_exps"), count, width, d)?;
            } else {
                tensors.experts(&name("ffn_gate_up_exps"), count, 2 * width, d)?;
            }
            tensors.experts(&name("ffn_down_exps"), count, d, width)?;
            tensors.vector(&name("ffn_down_exps.scale"), count)?;
        }
        if find(gguf, &name("layer_output_scale")).is_some() {
            tensors.vector(&name("layer_output_scale"), 1)?;
        }
        let fused = find(gguf, &name("attn_q")).is_none() && find(gguf, &name("attn_qkv")).is_some();
        if fused {
            let (queries, keys) = (layer.heads * layer.head_size, layer.kv_heads * layer.head_size);
            let parts = [(name("attn_q"), queries), (name("attn_k"), keys), (name("attn_v"), keys)];
            tensors.split(&name("attn_qkv"), d, &parts, if layer.kv_donor.is_none() { 3 } else { 1 })?;
        }
        for module in Module::ALL.into_iter().filter(|m| !m.of_experts()) {
            let in_fused = fused && matches!(module, Module::AttnQ | Module::AttnK | Module::AttnV);
            if let Some((rows, cols)) = module.shape(config, i).filter(|_| !in_fused) {
                tensors.matrix(&name(module.gguf_name()), rows, cols)?;
            }
        }
    }
    Ok(tensors.stored)
}
