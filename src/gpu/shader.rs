//! The WGSL sources and the expander of their `#import` and `#for` lines.
//!
//! Cooperative matrices stay in registers only under names of their own, so kernels that use them repeat lines:
//!
//! ```text
//! #for i in 0..4
//! var c{i} = coop_mat16x16<f32, C>();
//! #end
//! ```
//!
//! Loops nest, end at a number or at one of the kernel's sizes, and `{NAME}` stands for a size anywhere. Functions that differ in
//! the buffers that they read are one with a loop around it: `#for (name, a, b) in (first, q, k) (second, dout, v)`.
//!
//! `#import weight` is the reader of the kernel's weight format. A kernel that reads several matrices says `#import weights`:
//! the readers of all its formats, in which everything of the first is called `weight_0`, `weight_rows_0`, `weight4_0` and
//! so on, of the second `weight_1`; `{WEIGHTS}` is how many there are.

use crate::weights::quant::GgmlType;

/// Every shader file, by the name that `#import` and [`super::Kernel`] use.
pub const SOURCES: &[(&str, &str)] = &[
    ("adamw", include_str!("../../shaders/adamw.wgsl")),
    ("argmax", include_str!("../../shaders/argmax.wgsl")),
    ("attention", include_str!("../../shaders/attention.wgsl")),
    ("cached_attention", include_str!("../../shaders/cached_attention.wgsl")),
    ("cross_entropy", include_str!("../../shaders/cross_entropy.wgsl")),
    ("dropout", include_str!("../../shaders/dropout.wgsl")),
    ("embedding", include_str!("../../shaders/embedding.wgsl")),
    ("expert_combine", include_str!("../../shaders/expert_combine.wgsl")),
    ("expert_dropout", include_str!("../../shaders/expert_dropout.wgsl")),
    ("expert_geglu", include_str!("../../shaders/expert_geglu.wgsl")),
    ("expert_groups", include_str!("../../shaders/expert_groups.wgsl")),
    ("expert_linear", include_str!("../../shaders/expert_linear.wgsl")),
    ("expert_lora", include_str!("../../shaders/expert_lora.wgsl")),
    ("expert_matvec", include_str!("../../shaders/expert_matvec.wgsl")),
    ("gated", include_str!("../../shaders/gated.wgsl")),
    ("geglu", include_str!("../../shaders/geglu.wgsl")),
    ("grad_norm", include_str!("../../shaders/grad_norm.wgsl")),
    ("heads", include_str!("../../shaders/heads.wgsl")),
    ("linear", include_str!("../../shaders/linear.wgsl")),
    ("lora", include_str!("../../shaders/lora.wgsl")),
    ("matvec", include_str!("../../shaders/matvec.wgsl")),
    ("partial_sums", include_str!("../../shaders/partial_sums.wgsl")),
    ("per_layer", include_str!("../../shaders/per_layer.wgsl")),
    ("random", include_str!("../../shaders/random.wgsl")),
    ("residual", include_str!("../../shaders/residual.wgsl")),
    ("rms_norm", include_str!("../../shaders/rms_norm.wgsl")),
    ("rope", include_str!("../../shaders/rope.wgsl")),
    ("router", include_str!("../../shaders/router.wgsl")),
    ("scale", include_str!("../../shaders/scale.wgsl")),
    ("update_norm", include_str!("../../shaders/update_norm.wgsl")),
    ("verdict", include_str!("../../shaders/verdict.wgsl")),
    ("attention_rows", include_str!("../../shaders/attention_rows.wgsl")),
    ("ceiling", include_str!("../../shaders/ceiling.wgsl")),
    ("coop_ceiling", include_str!("../../shaders/coop_ceiling.wgsl")),
    ("coop8_attention", include_str!("../../shaders/coop8_attention.wgsl")),
    ("coop8_expert_linear", include_str!("../../shaders/coop8_expert_linear.wgsl")),
    ("coop8_linear", include_str!("../../shaders/coop8_linear.wgsl")),
    ("coop_attention", include_str!("../../shaders/coop_attention.wgsl")),
    ("coop_attention_product", include_str!("../../shaders/coop_attention_product.wgsl")),
    ("coop_attention_scores", include_str!("../../shaders/coop_attention_scores.wgsl")),
    ("coop_heads", include_str!("../../shaders/coop_heads.wgsl")),
    ("coop_heads_backward", include_str!("../../shaders/coop_heads_backward.wgsl")),
    ("coop_cross_entropy", include_str!("../../shaders/coop_cross_entropy.wgsl")),
    ("coop_expert_geglu", include_str!("../../shaders/coop_expert_geglu.wgsl")),
    ("coop_expert_linear", include_str!("../../shaders/coop_expert_linear.wgsl")),
    ("coop_geglu", include_str!("../../shaders/coop_geglu.wgsl")),
    ("coop_linear", include_str!("../../shaders/coop_linear.wgsl")),
    ("coop_lora", include_str!("../../shaders/coop_lora.wgsl")),
    ("coop_norm", include_str!("../../shaders/coop_norm.wgsl")),
    ("coop_residual", include_str!("../../shaders/coop_residual.wgsl")),
    ("coop_thin", include_str!("../../shaders/coop_thin.wgsl")),
    ("expert_pack", include_str!("../../shaders/expert_pack.wgsl")),
    ("pack", include_str!("../../shaders/pack.wgsl")),
    ("row_factors", include_str!("../../shaders/row_factors.wgsl")),
    ("simd_attention", include_str!("../../shaders/simd_attention.wgsl")),
    ("simd_linear", include_str!("../../shaders/simd_linear.wgsl")),
    ("simd_lora", include_str!("../../shaders/simd_lora.wgsl")),
    ("common/attention", include_str!("../../shaders/common/attention.wgsl")),
    ("common/attention_part", include_str!("../../shaders/common/attention_part.wgsl")),
    ("common/coop8", include_str!("../../shaders/common/coop8.wgsl")),
    ("common/expert_mask", include_str!("../../shaders/common/expert_mask.wgsl")),
    ("common/expert_product", include_str!("../../shaders/common/expert_product.wgsl")),
    ("common/gelu", include_str!("../../shaders/common/gelu.wgsl")),
    ("common/matrix_at", include_str!("../../shaders/common/matrix_at.wgsl")),
    ("common/packed", include_str!("../../shaders/common/packed.wgsl")),
    ("common/pcg", include_str!("../../shaders/common/pcg.wgsl")),
    ("common/product", include_str!("../../shaders/common/product.wgsl")),
    ("common/reduce", include_str!("../../shaders/common/reduce.wgsl")),
    ("common/reduce_wide", include_str!("../../shaders/common/reduce_wide.wgsl")),
    ("common/rstd", include_str!("../../shaders/common/rstd.wgsl")),
    ("common/seen", include_str!("../../shaders/common/seen.wgsl")),
    ("common/simd", include_str!("../../shaders/common/simd.wgsl")),
    ("common/tile", include_str!("../../shaders/common/tile.wgsl")),
    ("common/verdict", include_str!("../../shaders/common/verdict.wgsl")),
    ("quant/slice_of_rows", include_str!("../../shaders/quant/slice_of_rows.wgsl")),
    ("quant/nibbles", include_str!("../../shaders/quant/nibbles.wgsl")),
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
    ("quant/half/any", include_str!("../../shaders/quant/half/any.wgsl")),
    ("quant/half/pairs", include_str!("../../shaders/quant/half/pairs.wgsl")),
    ("quant/half/q4_0", include_str!("../../shaders/quant/half/q4_0.wgsl")),
    ("quant/half/q5_0", include_str!("../../shaders/quant/half/q5_0.wgsl")),
    ("quant/half/q4_k", include_str!("../../shaders/quant/half/q4_k.wgsl")),
    ("quant/half/q5_k", include_str!("../../shaders/quant/half/q5_k.wgsl")),
    ("quant/half/q6_k", include_str!("../../shaders/quant/half/q6_k.wgsl")),
];

/// The text of shader `name` with every `#import` replaced, each file once, and every `#for` repeated; `formats` and `sizes`
/// are the kernel's.
///
/// # Panics
/// On a name that is not in [`SOURCES`], with the chain of files, and on a `#for` without bounds or `#end`: mistakes in
/// this crate, found by `tests/shaders.rs`.
pub fn expand(name: &str, formats: &[GgmlType], sizes: &[(&str, u32)]) -> String {
    let (mut text, mut seen) = (String::new(), Vec::new());
    include(name, formats, &mut seen, &mut text);
    for (size, value) in [sizes, &[("WEIGHTS", formats.len() as u32)]].concat() {
        text = text.replace(&format!("{{{size}}}"), &value.to_string());
    }
    let mut lines = text.lines();
    let mut repeated = String::new();
    repeat(&mut lines, false, &mut repeated);
    repeated
}

/// Copies lines up to the `#end` of the loop that they are in, or to the last.
fn repeat<'a>(lines: &mut impl Iterator<Item = &'a str>, inside: bool, text: &mut String) {
    while let Some(line) = lines.next() {
        if line.trim() == "#end" {
            assert!(inside, "an #end without #for");
            return;
        }
        let Some(head) = line.trim().strip_prefix("#for ") else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        let mut body = String::new();
        repeat(lines, true, &mut body);
        for round in
            rounds(head).unwrap_or_else(|| panic!("no bounds, number or size of the kernel in {line:?}"))
        {
            let named =
                |text: String, (name, value): &(&str, String)| text.replace(&format!("{{{name}}}"), value);
            text.push_str(&round.iter().fold(body.clone(), named));
        }
    }
    assert!(!inside, "a #for without #end");
}

/// What the names of a loop stand for, round by round.
fn rounds(head: &str) -> Option<Vec<Vec<(&str, String)>>> {
    let (names, values) = head.split_once(" in ")?;
    if let Some(count) = values.strip_prefix("0..") {
        let count: u32 = count.parse().ok()?;
        return Some((0..count).map(|i| vec![(names, i.to_string())]).collect());
    }
    let list = |text: &'_ str| -> Vec<String> { text.split(", ").map(str::to_string).collect() };
    let names: Vec<&str> = names.strip_prefix('(')?.strip_suffix(')')?.split(", ").collect();
    let values = values.strip_prefix('(')?.strip_suffix(')')?.split(") (").map(list);
    values.map(|v| (v.len() == names.len()).then(|| names.iter().copied().zip(v).collect())).collect()
}

fn include(name: &str, formats: &[GgmlType], seen: &mut Vec<String>, text: &mut String) {
    if seen.iter().any(|s| s == name) {
        return;
    }
    seen.push(name.to_string());
    let source = SOURCES.iter().find(|(n, _)| *n == name).map(|(_, source)| *source);
    let source =
        source.unwrap_or_else(|| panic!("no shader named {name}; imported through {}", seen.join(" → ")));
    let reader = |format: &GgmlType| format!("quant/{}", format.name().to_lowercase());
    for line in source.lines() {
        match line.strip_prefix("#import ").map(str::trim) {
            Some("weight") => {
                let [format] = formats else {
                    panic!("{name} imports a weight format, given are {formats:?}")
                };
                include(&reader(format), &[], seen, text);
            }
            // The same values in f16, for kernels that import the format before.
            Some("weight_half") => {
                let mut own = formats.iter().map(|f| format!("quant/half/{}", f.name().to_lowercase()));
                let own = own.find(|own| SOURCES.iter().any(|(n, _)| n == own));
                include(own.as_deref().unwrap_or("quant/half/any"), &[], seen, text);
            }
            Some("weights") => {
                for (i, format) in formats.iter().enumerate() {
                    let mut own = String::new();
                    include(&reader(format), &[], &mut Vec::new(), &mut own);
                    text.push_str(&numbered(&own, i));
                }
            }
            Some(other) => include(other, formats, seen, text),
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
}

/// A reader with `_i` behind the names that it declares, and behind those of its matrix.
fn numbered(reader: &str, i: usize) -> String {
    let declared = reader.lines().filter_map(|line| {
        let rest = line.strip_prefix("fn ").or(line.strip_prefix("struct "))?;
        rest.split(|c: char| !in_name(c)).next()
    });
    let names: Vec<&str> = declared.chain(["weight", "weight_rows"]).collect();
    let mut text = String::new();
    let mut rest = reader;
    while let Some(start) = rest.find(in_name) {
        let end = rest[start..].find(|c| !in_name(c)).map_or(rest.len(), |n| start + n);
        text.push_str(&rest[..end]);
        if names.contains(&&rest[start..end]) {
            text.push_str(&format!("_{i}"));
        }
        rest = &rest[end..];
    }
    text + rest
}

fn in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}
