//! The WGSL sources and the expander of their `#import` lines.

use crate::weights::quant::GgmlType;

/// Every shader file, by the name that `#import` and [`super::Kernel`] use.
pub const SOURCES: &[(&str, &str)] = &[
    ("adamw", include_str!("../../shaders/adamw.wgsl")),
    ("attention", include_str!("../../shaders/attention.wgsl")),
    ("cross_entropy", include_str!("../../shaders/cross_entropy.wgsl")),
    ("dropout", include_str!("../../shaders/dropout.wgsl")),
    ("embedding", include_str!("../../shaders/embedding.wgsl")),
    ("geglu", include_str!("../../shaders/geglu.wgsl")),
    ("grad_norm", include_str!("../../shaders/grad_norm.wgsl")),
    ("linear", include_str!("../../shaders/linear.wgsl")),
    ("lora", include_str!("../../shaders/lora.wgsl")),
    ("partial_sums", include_str!("../../shaders/partial_sums.wgsl")),
    ("rms_norm", include_str!("../../shaders/rms_norm.wgsl")),
    ("rope", include_str!("../../shaders/rope.wgsl")),
    ("scale", include_str!("../../shaders/scale.wgsl")),
    ("update_norm", include_str!("../../shaders/update_norm.wgsl")),
    ("verdict", include_str!("../../shaders/verdict.wgsl")),
    ("common/gelu", include_str!("../../shaders/common/gelu.wgsl")),
    ("common/reduce", include_str!("../../shaders/common/reduce.wgsl")),
    ("common/tile", include_str!("../../shaders/common/tile.wgsl")),
    ("quant/k_scales", include_str!("../../shaders/quant/k_scales.wgsl")),
    ("quant/f32", include_str!("../../shaders/quant/f32.wgsl")),
    ("quant/f16", include_str!("../../shaders/quant/f16.wgsl")),
    ("quant/bf16", include_str!("../../shaders/quant/bf16.wgsl")),
    ("quant/q4_0", include_str!("../../shaders/quant/q4_0.wgsl")),
    ("quant/q5_0", include_str!("../../shaders/quant/q5_0.wgsl")),
    ("quant/q8_0", include_str!("../../shaders/quant/q8_0.wgsl")),
    ("quant/q4_k", include_str!("../../shaders/quant/q4_k.wgsl")),
    ("quant/q5_k", include_str!("../../shaders/quant/q5_k.wgsl")),
    ("quant/q6_k", include_str!("../../shaders/quant/q6_k.wgsl")),
];

/// The text of shader `name` with every `#import` replaced, each file once; `#import weight` is the reader of `format`.
///
/// # Panics
/// On a name that is not in [`SOURCES`], with the chain of files: a mistake in this crate, found by `tests/shaders.rs`.
pub fn expand(name: &str, format: Option<GgmlType>) -> String {
    let (mut text, mut seen) = (String::new(), Vec::new());
    include(name, format, &mut seen, &mut text);
    text
}

fn include(name: &str, format: Option<GgmlType>, seen: &mut Vec<String>, text: &mut String) {
    if seen.iter().any(|s| s == name) {
        return;
    }
    seen.push(name.to_string());
    let source = SOURCES.iter().find(|(n, _)| *n == name).map(|(_, source)| *source);
    let source =
        source.unwrap_or_else(|| panic!("no shader named {name}; imported through {}", seen.join(" → ")));
    for line in source.lines() {
        match line.strip_prefix("#import ").map(str::trim) {
            Some("weight") => {
                let format =
                    format.unwrap_or_else(|| panic!("{name} imports a weight format, none was given"));
                include(&format!("quant/{}", format.name().to_lowercase()), None, seen, text);
            }
            Some(other) => include(other, format, seen, text),
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
}
