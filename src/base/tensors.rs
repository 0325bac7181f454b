//! Finds a model's tensors in a GGUF file under the names that converters give them, and checks shape and type.

use super::{Error, GgmlType, Gguf, TensorInfo, quant};
use std::collections::HashMap;
use std::ops::Range;

/// `(ours and llama.cpp's, Ollama's)` name of a layer's tensor, behind `blk.N.`.
const ALTERNATIVES: [(&str, &str); 8] = [
    ("post_attention_norm", "attn_post_norm"),
    ("ffn_norm", "ffn_pre_norm"),
    ("post_ffw_norm", "ffn_post_norm"),
    ("layer_output_scale", "layer_scalar"),
    ("ffn_down_exps.scale", "ffn_gate_inp.per_expert_scale"),
    ("post_ffw_norm_1", "ffn_post_norm_1"),
    ("pre_ffw_norm_2", "ffn_pre_norm_2"),
    ("post_ffw_norm_2", "ffn_post_norm_2"),
];

/// The tensor called `name` (without `.weight`), or by an alternative name.
pub(super) fn find<'a>(gguf: &'a Gguf, name: &str) -> Option<&'a TensorInfo> {
    let stored = |name: &str| gguf.tensor(&format!("{name}.weight")).or_else(|| gguf.tensor(name));
    stored(name).or_else(|| {
        let (layer, last) = name.strip_prefix("blk.")?.split_once('.')?;
        let (_, alternative) = ALTERNATIVES.iter().find(|(ours, _)| *ours == last)?;
        stored(&format!("blk.{layer}.{alternative}"))
    })
}

/// Where a matrix `[rows, cols]` (a vector is one row) lies in the file.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub ty: GgmlType,
    pub rows: usize,
    pub cols: usize,
    pub range: Range<u64>,
}

/// The tensors that a model needs, by name without `.weight`, each checked when it is added.
pub(super) struct Inventory<'a> {
    gguf: &'a Gguf,
    pub stored: HashMap<String, Stored>,
}

impl<'a> Inventory<'a> {
    pub fn new(gguf: &'a Gguf) -> Self {
        Inventory { gguf, stored: HashMap::new() }
    }

    /// Adds a matrix `[rows, cols]` that must be there.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<(), Error> {
        let tensor = require(self.gguf, name, &[cols, rows])?;
        check_matrix(self.gguf, tensor, rows, cols)?;
        self.stored.insert(name.into(), Stored { ty: tensor.ty, rows, cols, range: tensor.range.clone() });
        Ok(())
    }

    /// Adds a matrix `[rows, cols]` for each of `experts`, which must be there, as one below each other.
    pub fn experts(&mut self, name: &str, experts: usize, rows: usize, cols: usize) -> Result<(), Error> {
        let tensor = require(self.gguf, name, &[cols, rows, experts])?;
        check_shape(self.gguf, tensor, &[cols, rows, experts])?;
        check_format(self.gguf, tensor, cols)?;
        let rows = rows * experts;
        self.stored.insert(name.into(), Stored { ty: tensor.ty, rows, cols, range: tensor.range.clone() });
        Ok(())
    }

    /// Adds consecutive row ranges of the matrix `name` under names of their own.
    pub fn split(
        &mut self,
        name: &str,
        cols: usize,
        parts: &[(String, usize)],
        used: usize,
    ) -> Result<(), Error> {
        let rows = parts.iter().map(|(_, rows)| rows).sum();
        let tensor = require(self.gguf, name, &[cols, rows])?;
        check_matrix(self.gguf, tensor, rows, cols)?;
        let (row_bytes, mut start) =
            ((tensor.range.end - tensor.range.start) / rows as u64, tensor.range.start);
        for (part, rows) in &parts[..used] {
            let range = start..start + *rows as u64 * row_bytes;
            start = range.end;
            self.stored.insert(part.clone(), Stored { ty: tensor.ty, rows: *rows, cols, range });
        }
        Ok(())
    }

    /// Adds a vector of unquantized values that must be there.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<(), Error> {
        let tensor = require(self.gguf, name, &[len])?;
        check_vector(self.gguf, tensor, len)?;
        self.stored
            .insert(name.into(), Stored { ty: tensor.ty, rows: 1, cols: len, range: tensor.range.clone() });
        Ok(())
    }
}

/// The values of the vector `name`, which must be there.
pub(super) fn read_vector(gguf: &Gguf, name: &str, len: usize) -> Result<Vec<f32>, Error> {
    let tensor = require(gguf, name, &[len])?;
    check_vector(gguf, tensor, len)?;
    Ok(quant::dequantize(tensor.ty, gguf.data(tensor)))
}

/// The tensor called `name`; the error otherwise says which shape it should have.
pub(super) fn require<'a>(gguf: &'a Gguf, name: &str, shape: &[usize]) -> Result<&'a TensorInfo, Error> {
    find(gguf, name).ok_or_else(|| {
        let kind = if name.ends_with(".scale") { "" } else { ".weight" };
        let problem = format!(
            "tensor {name}{kind} is missing, expected it with shape {shape:?} in a `gemma4` text model of these \
             sizes; use another conversion of the model"
        );
        Error::Tensor { file: gguf.file().into(), problem }
    })
}

fn wrong(gguf: &Gguf, tensor: &TensorInfo, found: String, expected: String, next: &str) -> Error {
    let problem = format!("tensor {} has {found}, expected {expected}; {next}", tensor.name);
    Error::Tensor { file: gguf.file().into(), problem }
}

/// Refuses another shape than `expected`; sizes of 1 at the end do not count.
fn check_shape(gguf: &Gguf, tensor: &TensorInfo, expected: &[usize]) -> Result<(), Error> {
    let (head, tail) = tensor.shape.split_at(expected.len().min(tensor.shape.len()));
    if head == expected && tail.iter().all(|&size| size == 1) {
        return Ok(());
    }
    let (found, expected) =
        (format!("shape {:?}", tensor.shape), format!("{expected:?} by the file's metadata"));
    Err(wrong(gguf, tensor, found, expected, "use another conversion of the model"))
}

fn check_matrix(gguf: &Gguf, tensor: &TensorInfo, rows: usize, cols: usize) -> Result<(), Error> {
    check_shape(gguf, tensor, &[cols, rows])?;
    check_format(gguf, tensor, cols)
}

/// Refuses formats without kernels.
fn check_format(gguf: &Gguf, tensor: &TensorInfo, cols: usize) -> Result<(), Error> {
    if !tensor.ty.supported() {
        let (found, expected) = (format!("type {}", tensor.ty.name()), GgmlType::names(&GgmlType::SUPPORTED));
        return Err(wrong(
            gguf,
            tensor,
            found,
            format!("one of {expected}"),
            "use another quantization, such as Q4_K_M",
        ));
    }
    // Kernels read unquantized rows four values at a time; blocks are multiples of 32 anyway.
    if !cols.is_multiple_of(4) {
        let (found, expected) = (format!("rows of {cols} values"), "a multiple of 4".to_string());
        return Err(wrong(gguf, tensor, found, expected, "no kernel reads such a model"));
    }
    Ok(())
}

fn check_vector(gguf: &Gguf, tensor: &TensorInfo, len: usize) -> Result<(), Error> {
    check_shape(gguf, tensor, &[len])?;
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
