//! [`Base`]: a frozen text model, every tensor of which was found and checked.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use rayon::prelude::*;

use super::config::Config;
use super::gguf::source::now;
use super::tensors::{self, Stored};
use super::{Error, Fingerprint, Gguf, Matrix, Module, Tensor, TensorInfo, beside, fingerprint};

/// A frozen base model. Opening it copies nothing: tensors stay in the file's format, where the file is.
#[derive(Debug)]
pub struct Base {
    name: String,
    gguf: Gguf,
    config: Config,
    stored: HashMap<String, Stored>,
    fingerprint: OnceLock<Fingerprint>,
    vocabulary: OnceLock<String>,
    random: bool,
    ollama: bool,
}

impl Base {
    /// The model of shape `config` in `gguf`. Messages call it `name`.
    ///
    /// Fails where a tensor that such a model needs is missing, has another shape, or has a format without kernels. Ignores
    /// the tensors of vision and audio towers, and the unused keys and values of layers with a donor.
    pub(crate) fn new(gguf: Gguf, name: &str, config: Config) -> Result<Base, Error> {
        let stored = tensors::inventory(&gguf, &config)?;
        let (fingerprint, vocabulary) = (OnceLock::new(), OnceLock::new());
        Ok(Base {
            name: name.into(),
            gguf,
            config,
            stored,
            fingerprint,
            vocabulary,
            random: false,
            ollama: false,
        })
    }

    /// Reads the fingerprint of a base that is not in memory: at most 64 KiB of each tensor.
    pub(crate) async fn with_fingerprint(self) -> Result<Base, Error> {
        let fingerprint = self.read_fingerprint().await?;
        Ok(Base { fingerprint: fingerprint.into(), ..self })
    }

    /// The base with random blocks in place of its quantized matrices: [`crate::ops::random`] makes them on the device.
    pub(crate) fn with_random_blocks(self) -> Base {
        Base { random: true, ..self }
    }

    /// Whether its matrices hold random blocks that are made on the device, for benchmarks without a model file.
    pub fn is_random(&self) -> bool {
        self.random
    }

    /// The digests that identify the base. They are computed once.
    pub fn fingerprint(&self) -> Fingerprint {
        let read = || now(self.read_fingerprint()).expect("reads from memory succeed");
        self.fingerprint.get_or_init(read).clone()
    }

    async fn read_fingerprint(&self) -> Result<Fingerprint, Error> {
        let tensors: Vec<Tensor> = self.tensors().collect();
        Fingerprint::read(&self.gguf, &tensors, |name| self.vector(name)).await
    }

    /// The digest of its tokens and merges. Bases with equal ones have the same ids for the same pieces of text.
    pub fn vocabulary(&self) -> &str {
        self.vocabulary.get_or_init(|| fingerprint::vocabulary(&self.gguf))
    }

    /// The name under which the model was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The base under its name in Ollama's store.
    #[cfg(feature = "native")]
    pub(crate) fn of_ollama(self) -> Base {
        Base { ollama: true, ..self }
    }

    /// Whether the model is a file of its own: neither from Ollama's store nor part of the program.
    pub fn is_file(&self) -> bool {
        self.name != "tiny" && !self.ollama
    }

    /// Whether the model was opened by its name in Ollama's store.
    pub fn is_ollama(&self) -> bool {
        self.ollama
    }

    /// Notices about what the file has beside the text model: a tower, or layers for multi-token prediction.
    pub fn left_out(&self) -> Vec<String> {
        beside::left_out(&self.gguf, self.config.layers.len())
    }

    /// A matrix without its bytes, by its name as in [`Base::matrix`].
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let (name, s) = self.stored.get_key_value(name)?;
        let (order, side_by_side) = (self.config.row_order(name), self.config.side_by_side(name));
        let range = s.range.clone();
        Some(Tensor { name, ty: s.ty, rows: s.rows, cols: s.cols, range, order, side_by_side })
    }

    /// Every tensor that the text model uses, sorted by name; vectors are matrices of one row.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        let mut names: Vec<&String> = self.stored.keys().collect();
        names.sort();
        names.into_iter().filter_map(|name| self.tensor(name))
    }

    /// The bytes of a matrix or of some of its rows.
    pub async fn read(&self, tensor: &Tensor<'_>) -> Result<Cow<'_, [u8]>, Error> {
        let mut read = self.gguf.read(std::slice::from_ref(&tensor.range)).await?;
        Ok(read.pop().expect("one result per range"))
    }

    /// The bytes of the rows `rows` of a matrix, in the order that memory has them.
    pub async fn read_in_order(
        &self,
        tensor: &Tensor<'_>,
        rows: Range<usize>,
    ) -> Result<Cow<'_, [u8]>, Error> {
        if tensor.side_by_side > 1 {
            let (heads, all) = (tensor.side_by_side, tensor.rows);
            let stored: Vec<u32> =
                rows.flat_map(|row| (0..heads).map(move |head| (head * all + row) as u32)).collect();
            return self.read_pieces(tensor, &stored, tensor.row_bytes() / heads).await.map(Cow::Owned);
        }
        let Some(order) = tensor.order else { return self.read(&tensor.rows(rows)).await };
        let stored: Vec<u32> = rows.map(|row| order.stored(row) as u32).collect();
        self.read_pieces(tensor, &stored, tensor.row_bytes()).await.map(Cow::Owned)
    }

    /// The bytes of some rows of a matrix, concatenated.
    pub async fn read_rows(&self, tensor: &Tensor<'_>, rows: &[u32]) -> Result<Vec<u8>, Error> {
        self.read_pieces(tensor, rows, tensor.row_bytes()).await
    }

    /// Some pieces of `len` bytes of a matrix's bytes, by their numbers, concatenated.
    async fn read_pieces(&self, tensor: &Tensor<'_>, pieces: &[u32], len: usize) -> Result<Vec<u8>, Error> {
        let at = |piece: u64| tensor.range.start + piece * len as u64;
        let range = |&piece: &u32| at(piece.into())..at(u64::from(piece) + 1);
        let ranges: Vec<Range<u64>> = pieces.iter().map(range).collect();
        let inside = ranges.iter().all(|range| range.end <= tensor.range.end);
        assert!(
            inside,
            "pieces of {}, which has {} bytes",
            tensor.name,
            tensor.range.end - tensor.range.start
        );
        let read = self.gguf.read(&ranges).await?;
        let mut bytes = vec![0; pieces.len() * len];
        // In parallel, because each row of a mapped file may cause a page fault.
        let places = bytes.par_chunks_mut(len.max(1));
        places.zip(&read).for_each(|(place, row)| place.copy_from_slice(row));
        Ok(bytes)
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The GGUF file.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// A matrix by its name without `.weight` (`blk.3.attn_q`); `None` where this model has no such matrix or does not use it.
    ///
    /// # Panics
    /// If the file is not in memory ([`Base::stream`]) and the tensor is not a vector.
    pub fn matrix(&self, name: &str) -> Option<Matrix<'_>> {
        let Tensor { name, ty, rows, cols, range, .. } = self.tensor(name)?;
        Some(Matrix { name, ty, rows, cols, data: self.gguf.slice(range) })
    }

    /// [`Base::tensors`] with their bytes.
    ///
    /// # Panics
    /// If the file is not in memory ([`Base::stream`]).
    pub fn matrices(&self) -> impl Iterator<Item = Matrix<'_>> {
        self.tensors().filter_map(|tensor| self.matrix(tensor.name))
    }

    /// [`Base::matrix`]; an error where this model has no such matrix or does not use it.
    pub fn require_matrix(&self, name: &str) -> Result<Matrix<'_>, Error> {
        self.matrix(name).ok_or_else(|| Error::Tensor {
            file: self.gguf.file().into(),
            problem: format!("matrix {name} is not one that this model uses; choose another target"),
        })
    }

    /// The tensor of the file that holds a matrix, and the rows of the matrix in it: all rows, unless one tensor holds queries,
    /// keys and values. `None` as in [`Base::matrix`].
    pub fn location(&self, name: &str) -> Option<(&TensorInfo, Range<usize>)> {
        let matrix = self.tensor(name)?;
        let tensor = self.gguf.tensors().iter().find(|t| t.range.contains(&matrix.range.start))?;
        let first = ((matrix.range.start - tensor.range.start) / matrix.row_bytes() as u64) as usize;
        Some((tensor, first..first + matrix.rows))
    }

    /// The output projection, `[V, D]`: `output` where the file has it, else the tied embedding.
    pub fn head(&self) -> Matrix<'_> {
        let head = self.matrix("output").or_else(|| self.matrix("token_embd"));
        head.expect("the embedding was checked when the base was opened")
    }

    /// A vector by its name without `.weight` (`blk.3.attn_norm`).
    ///
    /// # Panics
    /// If a model of this [`Config`] has no such vector.
    pub fn vector(&self, name: &str) -> Vec<f32> {
        let vector =
            self.matrix(name).unwrap_or_else(|| panic!("a model of this config has no vector {name}"));
        vector.dequantize()
    }

    /// The frozen bias `[rows]` of a matrix by the name of that, `blk.3.attn_q`; `None` where it has none.
    pub fn bias(&self, name: &str) -> Option<Vec<f32>> {
        let bias = self.matrix(&format!("{name}.bias"))?.dequantize();
        let Some(order) = self.config.row_order(name) else { return Some(bias) };
        Some((0..bias.len()).map(|row| bias[order.stored(row)]).collect())
    }

    /// The frozen biases `[E, out]` of every expert's matrix in layer `layer`; `None` where it has none.
    pub fn expert_biases(&self, layer: usize, module: Module) -> Option<Vec<f32>> {
        let bias = |last: &str| self.bias(&format!("blk.{layer}.{last}"));
        if module != Module::FfnGateUpExps {
            return bias(module.gguf_name());
        }
        let (Some(gate), Some(up)) = (bias("ffn_gate_exps"), bias("ffn_up_exps")) else {
            return bias(module.gguf_name());
        };
        let width = self.config.layers[layer].experts?.width;
        let experts = gate.chunks_exact(width).zip(up.chunks_exact(width));
        Some(experts.flat_map(|(gate, up)| [gate, up].concat()).collect())
    }

    /// The factor on the output of layer `layer`; 1 where the file has none.
    pub fn layer_output_scale(&self, layer: usize) -> f32 {
        self.matrix(&format!("blk.{layer}.layer_output_scale")).map_or(1.0, |scale| scale.dequantize()[0])
    }
}
