//! Tensors of a file beside those of the text model: factors that nothing applies, and parts that are left out.

use super::{Error, GgmlType, Gguf, TensorInfo, formats};

/// Refuses factors of `matrices`, `NAME.scale`, which llama.cpp multiplies the product with: no kernel here does. Files in NVFP4 that
/// ModelOpt made have them.
pub(super) fn check_factors<'a>(
    gguf: &Gguf,
    matrices: impl Iterator<Item = (&'a str, GgmlType)>,
) -> Result<(), Error> {
    for (name, ty) in matrices {
        let Some(factors) = gguf.tensor(&format!("{name}.scale")).filter(|t| t.ty.supported()) else {
            continue;
        };
        // Vectors are in memory even if their file is not.
        let is_vector = factors.shape.iter().skip(1).all(|&size| size == 1);
        let values = || formats::dequantize(factors.ty, gguf.data(factors));
        if !is_vector || values().iter().any(|value| *value != 1.0) {
            let problem = format!(
                "tensor {} has factors of {name} in {}, expected none, or 1, since no kernel applies them; use another \
                 quantization of the model, such as Q4_K_M",
                factors.name,
                ty.name()
            );
            return Err(Error::Tensor { file: gguf.file().into(), problem });
        }
    }
    Ok(())
}

/// Starts of the names of towers' tensors, in llama.cpp's files and in Ollama's.
const TOWERS: [&str; 7] = ["v.", "a.", "mm.", "vision_tower.", "audio_tower.", "vision.", "audio."];

/// Notices about the parts of a file that are no part of its text model of `layers` layers.
pub(super) fn left_out(gguf: &Gguf, layers: usize) -> Vec<String> {
    let layer = |t: &&TensorInfo| t.name.strip_prefix("blk.")?.split('.').next()?.parse::<usize>().ok();
    let further =
        |t: &&TensorInfo| layer(t).is_some_and(|layer| layer >= layers) || t.name.contains(".nextn.");
    let of_tower = |t: &&TensorInfo| TOWERS.iter().any(|start| t.name.starts_with(start));
    let tensors = |which: &dyn Fn(&&TensorInfo) -> bool, what: &str| {
        let bytes = gguf.tensors().iter().filter(which).map(|t| t.range.end - t.range.start);
        let (count, bytes) = bytes.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
        (count > 0).then(|| {
            format!(
                "{what} ({count} tensors, {:.1} MiB) left out: the text model alone is trained",
                bytes as f64 / 1048576.0
            )
        })
    };
    let tower = tensors(&of_tower, "the file's tower for images or sound is");
    let prediction = tensors(&further, "the file's layers for multi-token prediction are");
    tower.into_iter().chain(prediction).collect()
}
