//! Tensors of adapter files that a text model has no use for.

/// Parts of names of the modules for pictures and sound.
const TOWERS: [&str; 8] = [
    ".vision_tower.",
    ".vision_model.",
    ".visual.",
    ".multi_modal_projector.",
    ".audio_tower.",
    ".audio_model.",
    ".embed_vision.",
    ".embed_audio.",
];

/// The reason why a tensor is left out: matrices of vision and audio towers, and norms, which llama.cpp leaves out too.
pub(in crate::adapter) fn reason(name: &str) -> Option<&'static str> {
    if TOWERS.iter().any(|tower| name.contains(tower) || name.starts_with(&tower[1..])) {
        return Some("vision and audio towers");
    }
    name.ends_with("_norm.weight").then_some("norms, which llama.cpp leaves out too")
}
