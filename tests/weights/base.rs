//! Base models: shapes, tensors, and models that are refused.

use super::assert_says;
use crate::gguf_writer::GgufWriter;
use rullama_train::base::config::Experts;
use rullama_train::base::formats::dequantize;
use rullama_train::base::gguf::value::{Array, Value};
use rullama_train::base::{Base, Error, GgmlType, Gguf};

fn open(writer: &GgufWriter) -> Result<Base, Error> {
    Base::from_gguf(Gguf::from_bytes(writer.bytes(), "test.gguf")?, "test")
}

/// The small model with a modification.
fn changed(change: impl FnOnce(&mut GgufWriter)) -> GgufWriter {
    let mut w = GgufWriter::gemma4();
    change(&mut w);
    w
}

#[test]
fn the_embedded_model_has_the_shape_that_it_was_trained_with() {
    // models/tiny-gemma4: 4 layers, 4 heads of 64 (sliding) and 128 (full), one key/value head, window 64.
    let base = Base::open("tiny").expect("part of the program");
    let config = base.config();
    assert_eq!((config.width, config.vocab, config.per_layer_width), (256, 2048, 256));
    assert_eq!((config.rms_eps, config.softcap, config.context_length), (1e-6, Some(30.0), 1024));
    let factors = config.rope_freq_factors.as_ref().expect("it has full layers");
    // Proportional rotary embedding: a quarter of the 64 pairs rotates.
    assert_eq!((factors.len(), &factors[..16], &factors[16..]), (64, &[1.0; 16][..], &[1e30; 48][..]));
    assert_eq!(config.layers.len(), 4);
    for (i, layer) in config.layers.iter().enumerate() {
        let sliding = i % 2 == 0;
        assert_eq!(layer.window, sliding.then_some(64), "layer {i}");
        assert_eq!(layer.head_size, if sliding { 64 } else { 128 }, "layer {i}");
        assert_eq!(layer.rope_base, if sliding { 1e4 } else { 1e6 }, "layer {i}");
        assert_eq!((layer.heads, layer.kv_heads, layer.k_eq_v), (4, 1, false), "layer {i}");
        assert_eq!(layer.ffn_width, if i < 2 { 256 } else { 512 }, "layer {i}: double-wide where shared");
        assert_eq!(layer.kv_donor, [None, None, Some(0), Some(1)][i], "layer {i}");
    }
    let down = base.require_matrix("blk.3.ffn_down").expect("used");
    assert_eq!((down.rows, down.cols, down.ty, down.row_bytes()), (256, 512, GgmlType::Q6_K, 420));
    assert_eq!(base.head().name, "token_embd", "the head is tied");
    assert!(base.matrix("blk.2.attn_k").is_none(), "layer 2 uses layer 0's keys");
    assert_says("unused", base.require_matrix("blk.2.attn_k"), &["blk.2.attn_k"]);
    assert_eq!(base.vector("blk.3.attn_q_norm").len(), 128);
    assert!((0..4).all(|i| base.layer_output_scale(i).is_finite()));
    assert_eq!((base.name(), base.gguf().file()), ("tiny", "tiny"));
}

#[test]
fn matrices_and_rows_are_the_bytes_of_the_file() {
    let w = GgufWriter::gemma4();
    let base = open(&w).expect("sound");
    let stored = &w.tensors.iter().find(|t| t.name == "blk.0.attn_q.weight").expect("written").data;
    let matrix = base.matrix("blk.0.attn_q").expect("used");
    assert_eq!((matrix.rows, matrix.cols, matrix.data), (8, 32, &stored[..]));
    let all = matrix.dequantize();
    assert_eq!(all, dequantize(GgmlType::Q8_0, stored));
    let two = matrix.rows(3..5);
    assert_eq!((two.rows, two.cols, two.dequantize()), (2, 32, all[3 * 32..5 * 32].to_vec()));
    assert_eq!(base.config().softcap, Some(20.0));
    assert_eq!(base.config().layers[3].ffn_width, 32);
}

#[test]
fn files_are_opened_by_path() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model");
    std::fs::write(&path, GgufWriter::gemma4().bytes()).expect("written");
    let spec = path.to_str().expect("UTF-8");
    assert_eq!(Base::open(spec).expect("sound").name(), spec);
    assert_says("missing", Base::open("missing.gguf"), &["missing.gguf", "check the path"]);
}

#[test]
fn missing_keys_have_llama_cpps_defaults() {
    let base = open(&changed(|w| {
        w.remove_key("gemma4.final_logit_softcapping");
        w.remove_tensor("blk.1.layer_output_scale.weight");
    }));
    let base = base.expect("sound");
    assert_eq!(base.config().softcap, Some(30.0), "llama.cpp's default of f_final_logit_softcapping");
    assert_eq!(base.layer_output_scale(1), 1.0);
    let uncapped =
        open(&changed(|w| w.set("gemma4.final_logit_softcapping", Value::F32(0.0)))).expect("sound");
    assert_eq!(uncapped.config().softcap, None);
}

#[test]
fn heads_may_differ_by_layer() {
    // Layer 1 (full) and layer 3, which shares its keys, have two key/value heads.
    let wider = |w: &mut GgufWriter| {
        for name in ["blk.1.attn_k.weight", "blk.1.attn_v.weight"] {
            w.remove_tensor(name);
            w.random(name, &[32, 16], GgmlType::Q4_0);
        }
    };
    let array = changed(|w| {
        wider(w);
        w.set("gemma4.attention.head_count_kv", Value::Array(Array::I32(vec![1, 2, 1, 2])));
    });
    let legacy = changed(|w| {
        wider(w);
        w.set("gemma4.attention.global_head_count_kv", Value::U32(2));
    });
    for w in [array, legacy] {
        let base = open(&w).expect("sound");
        let kv_heads: Vec<usize> = base.config().layers.iter().map(|l| l.kv_heads).collect();
        assert_eq!(kv_heads, [1, 2, 1, 2]);
    }
}

#[test]
fn keys_come_from_the_last_layer_of_the_same_kind() {
    // Sliding, full, sliding, and a sliding layer that shares: it uses the keys of layer 2, not of layer 0.
    let base = open(&changed(|w| {
        w.set("gemma4.attention.shared_kv_layers", Value::U32(1));
        let pattern = Value::Array(Array::Bool(vec![true, false, true, true]));
        w.set("gemma4.attention.sliding_window_pattern", pattern);
        for (last, shape) in [("attn_q_norm", &[4][..]), ("attn_q", &[32, 8]), ("attn_output", &[8, 32])] {
            w.remove_tensor(&format!("blk.3.{last}.weight"));
            w.random(&format!("blk.3.{last}.weight"), shape, GgmlType::F32);
        }
        for (last, shape) in [("attn_k_norm", &[4][..]), ("attn_k", &[32, 4]), ("attn_v", &[32, 4])] {
            w.random(&format!("blk.2.{last}.weight"), shape, GgmlType::F32);
        }
    }));
    let donors: Vec<_> = base.expect("sound").config().layers.iter().map(|l| l.kv_donor).collect();
    assert_eq!(donors, [None, None, None, Some(2)]);
}

#[test]
fn other_names_and_layouts_are_accepted() {
    let base = open(&changed(|w| {
        for (ours, theirs) in [
            ("post_attention_norm", "attn_post_norm"),
            ("ffn_norm", "ffn_pre_norm"),
            ("post_ffw_norm", "ffn_post_norm"),
            ("layer_output_scale", "layer_scalar"),
        ] {
            w.tensor(&format!("blk.0.{ours}.weight")).name = format!("blk.0.{theirs}.weight");
        }
        // Queries, keys and values in one tensor: 8, 4 and 4 rows.
        for last in ["q", "k", "v"] {
            w.remove_tensor(&format!("blk.0.attn_{last}.weight"));
        }
        w.random("blk.0.attn_qkv.weight", &[32, 16], GgmlType::Q8_0);
        // Layer 1 has no values: they are its raw keys. There is a separate output matrix, and a tower that is not text.
        w.remove_tensor("blk.1.attn_v.weight");
        w.random("output.weight", &[32, 8], GgmlType::F32);
        w.random("v.blk.0.attn_q.weight", &[256], GgmlType::IQ3_S);
        // Layer 2 shares keys, yet its unused keys are in the file, in a format without kernels.
        w.random("blk.2.attn_k.weight", &[32, 4], GgmlType::Q8_1);
    }));
    let base = base.expect("sound");
    assert_eq!(base.vector("blk.0.ffn_norm").len(), 32);
    let fused = base.gguf().tensor("blk.0.attn_qkv.weight").expect("written");
    let all = dequantize(GgmlType::Q8_0, base.gguf().data(fused));
    for (name, rows) in [("q", 0..8), ("k", 8..12), ("v", 12..16)] {
        let part = base.matrix(&format!("blk.0.attn_{name}")).expect("split");
        assert_eq!(
            (part.rows, part.dequantize()),
            (rows.len(), all[rows.start * 32..rows.end * 32].to_vec()),
            "{name}"
        );
    }
    let k_eq_v: Vec<bool> = base.config().layers.iter().map(|l| l.k_eq_v).collect();
    assert_eq!(k_eq_v, [false, true, false, false]);
    assert_eq!(base.head().name, "output");
    assert!(base.matrix("blk.2.attn_k").is_none());
}

#[test]
fn a_tensor_that_is_needed_cannot_be_missing() {
    let optional = ["attn_v", "layer_output_scale"];
    for i in 0..GgufWriter::gemma4().tensors.len() {
        let mut name = String::new();
        let result = open(&changed(|w| name = w.tensors.remove(i).name));
        if optional.iter().any(|last| name.contains(last)) {
            result.unwrap_or_else(|e| panic!("{name} is optional: {e}"));
        } else {
            assert_says(&name, result, &["test.gguf", &name, "missing"]);
        }
    }
}

#[test]
fn unsupported_models_are_refused_with_the_reason() {
    let refused = |what: &str, change: fn(&mut GgufWriter), parts: &[&str]| {
        assert_says(what, open(&changed(change)), &[&["test.gguf"], parts].concat());
    };
    let text = |s: &str| Value::String(s.into());
    assert_says(
        "mamba",
        open(&changed(|w| w.set("general.architecture", text("mamba")))),
        &["`mamba` (Mamba)", "a state-space recurrence", "use `qwen35` (Qwen 3.5, such as qwen3.5:4b)"],
    );
    assert_says(
        "gpt-oss of Ollama's library",
        open(&changed(|w| w.set("general.architecture", text("gptoss")))),
        &["layout of Ollama's own library", "hf.co/ggml-org/gpt-oss-20b-GGUF"],
    );
    assert_says("adapter", open(&changed(|w| w.set("general.type", text("adapter")))), &["LoRA adapter"]);
    assert_says(
        "yarn",
        open(&changed(|w| w.set("gemma4.rope.scaling.type", text("yarn")))),
        &["yarn", "none"],
    );
    refused(
        "router",
        |w| w.random("blk.0.ffn_gate_inp.weight", &[32, 4], GgmlType::F32),
        &["router blk.0.ffn_gate_inp.weight", "gemma4.expert_count"],
    );
    refused(
        "factors",
        |w| w.random("blk.0.attn_q.scale", &[1], GgmlType::F32),
        &["tensor blk.0.attn_q.scale has factors", "no kernel applies them", "Q4_K_M"],
    );
    refused("split", |w| w.set("split.count", Value::U16(3)), &["3 parts", "--merge"]);
    refused(
        "no architecture",
        |w| w.remove_key("general.architecture"),
        &["general.architecture", "missing"],
    );
}

/// A model in several files is read as the one that it was.
#[cfg(unix)]
#[test]
fn parts_are_one_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = GgufWriter::gemma4();
    let at = |number: usize| folder.path().join(format!("a-{number:05}-of-00003.gguf"));
    let third = whole.tensors.len() / 3;
    for number in 1..=3 {
        let mut part = GgufWriter::gemma4();
        let end = if number == 3 { whole.tensors.len() } else { number * third };
        part.tensors = part.tensors.drain((number - 1) * third..end).collect();
        part.set("split.count", Value::U16(3));
        part.set("split.no", Value::U16(number as u16 - 1));
        std::fs::write(at(number), part.bytes()).expect("written");
    }
    let one = folder.path().join("one.gguf");
    std::fs::write(&one, whole.bytes()).expect("written");
    let open = |path: &std::path::Path| Base::open(&path.display().to_string());
    let (one, parts) = (open(&one).expect("sound"), open(&at(1)).expect("sound"));
    assert_eq!(one.fingerprint(), parts.fingerprint());
    for matrix in one.matrices() {
        assert_eq!(parts.matrix(matrix.name).expect("there").data, matrix.data, "{}", matrix.name);
    }
    assert!(parts.gguf().metadata().iter().all(|(key, _)| !key.starts_with("split.")));
    for other in [2, 3] {
        let parts = open(&at(other)).expect("whichever part is named");
        assert_eq!(one.fingerprint(), parts.fingerprint());
    }
    // Parts under each other's names.
    let (second, third) = (std::fs::read(at(2)).expect("there"), std::fs::read(at(3)).expect("there"));
    std::fs::write(at(2), &third).expect("written");
    assert_says("exchanged", open(&at(1)), &["a-00002-of-00003.gguf", "is part 3", "expected part 2"]);
    std::fs::write(at(2), second).expect("written");
    let renamed = folder.path().join("b.gguf");
    for number in [1, 2] {
        std::fs::copy(at(number), &renamed).expect("copied");
        assert_says("renamed", open(&renamed), &["one of 3 parts", "rename", "NAME-00001-of-00003.gguf"]);
    }
    std::fs::write(at(2), b"GGUF").expect("written");
    assert_says("damaged", open(&at(1)), &["a-00002-of-00003.gguf"]);
    std::fs::remove_file(at(2)).expect("there");
    for number in [1, 3] {
        let expected = ["one of 3 parts", "a-00002-of-00003.gguf is missing", "--merge"];
        assert_says("missing", open(&at(number)), &expected);
    }
}

#[test]
fn invalid_keys_are_reported() {
    let mut keys: Vec<(&str, Value, &[&str])> = vec![
        ("block_count", Value::U32(0), &["1 to"]),
        ("block_count", Value::U32(u32::MAX), &["4294967295", "1 to"]),
        ("block_count", Value::U32(3), &["sliding_window_pattern", "3 bools"]),
        ("embedding_length", Value::U32(u32::MAX), &["1 to"]),
        ("embedding_length", Value::U32(64), &["token_embd.weight", "[32, 8]", "[64, 8]"]),
        ("attention.head_count", Value::U32(3), &["blk.0.attn_q.weight", "[32, 8]", "[32, 12]"]),
        ("attention.head_count", Value::I32(-2), &["-2"]),
        ("attention.head_count_kv", Value::U32(0), &["1 to"]),
        ("attention.head_count_kv", Value::U32(3), &["divisor", "2 query heads"]),
        ("attention.head_count_kv", Value::Array(Array::I32(vec![1, 1, 2, 1])), &["layer 2", "layer 0"]),
        ("attention.head_count_kv", Value::Array(Array::I32(vec![1, 1])), &["array of 2", "array of 4"]),
        ("attention.value_length", Value::U32(4), &["attention.key_length"]),
        ("attention.key_length_swa", Value::U32(3), &["even"]),
        ("attention.shared_kv_layers", Value::U32(4), &["at most 3"]),
        ("attention.shared_kv_layers", Value::U32(3), &["full-attention layer", "layer 1"]),
        ("attention.sliding_window", Value::U32(0), &["1 to"]),
        ("attention.layer_norm_rms_epsilon", Value::F32(f32::NAN), &["above 0"]),
        ("rope.freq_base", Value::F32(0.0), &["above 0"]),
        ("rope.dimension_count", Value::U32(4), &["expected 8", "attention.key_length"]),
        ("final_logit_softcapping", Value::F32(-1.0), &["above 0"]),
        ("feed_forward_length", Value::U32(8), &["blk.2.ffn_gate.weight", "[32, 32]", "[32, 8]"]),
    ];
    for (name, value, parts) in keys.drain(..) {
        let what = format!("{name} = {value:?}");
        assert_says(&what, open(&changed(|w| w.set(&format!("gemma4.{name}"), value))), parts);
    }
    for name in
        ["block_count", "context_length", "attention.key_length_swa", "rope.freq_base", "feed_forward_length"]
    {
        let key = format!("gemma4.{name}");
        assert_says(name, open(&changed(|w| w.remove_key(&key))), &[&key, "missing"]);
    }
}

#[test]
fn tensors_of_the_wrong_shape_are_reported() {
    let replaced = |name: &str, shape: &[usize], ty| {
        open(&changed(|w| {
            w.remove_tensor(name);
            w.random(name, shape, ty);
        }))
    };
    let name = "blk.0.ffn_up.weight";
    assert_says("shape", replaced(name, &[32, 9], GgmlType::Q8_0), &[name, "[32, 9]", "[32, 8]"]);
    assert_says("3-D", replaced(name, &[32, 8, 2], GgmlType::Q8_0), &[name, "[32, 8, 2]"]);
    assert_says("type", replaced(name, &[32, 8], GgmlType::Q8_1), &[name, "Q8_1", "Q4_K, Q5_K, Q6_K"]);
    replaced(name, &[32, 8, 1], GgmlType::F32).expect("sizes of 1 at the end mean nothing");
    let norm = "blk.0.attn_norm.weight";
    assert_says("norm", replaced(norm, &[32], GgmlType::Q8_0), &[norm, "Q8_0", "F32"]);
    assert_says(
        "factors",
        replaced("rope_freqs.weight", &[8], GgmlType::F32),
        &["rope_freqs.weight", "[8]", "[4]"],
    );
    let zero = open(&changed(|w| w.tensor("rope_freqs.weight").data.fill(0)));
    assert_says("factors", zero, &["rope_freqs.weight", "above 0"]);
    // P = 2 gives `proj` rows of 2 values.
    let narrow = open(&changed(|w| {
        w.set("gemma4.embedding_length_per_layer_input", Value::U32(2));
        for (name, shape) in [("token_embd", vec![8, 8]), ("model_proj", vec![32, 8]), ("proj_norm", vec![2])]
        {
            w.remove_tensor(&format!("per_layer_{name}.weight"));
            w.random(&format!("per_layer_{name}.weight"), &shape, GgmlType::F32);
        }
        for (name, shape) in [("inp_gate", [32, 2]), ("proj", [2, 32])] {
            w.remove_tensor(&format!("blk.0.{name}.weight"));
            w.random(&format!("blk.0.{name}.weight"), &shape, GgmlType::F32);
        }
    }));
    assert_says("columns", narrow, &["blk.0.proj.weight", "rows of 2", "multiple of 4"]);
}

/// For the experts' tensors of such a model: missing ones and wrong counts or shapes are reported.
#[test]
fn mixtures_of_experts() {
    let mixture = |change: &dyn Fn(&mut GgufWriter)| {
        let mut w = GgufWriter::mixture();
        change(&mut w);
        open(&w)
    };
    let base = mixture(&|_| {}).expect("sound");
    assert_eq!(
        base.config().layers[3].experts,
        Some(Experts { count: 4, used: 2, width: 32, ..Experts::default() })
    );
    let down = base.matrix("blk.1.ffn_down_exps").expect("there");
    assert_eq!((down.rows, down.cols), (4 * 32, 32));

    let added = GgufWriter::mixture().tensors.split_off(GgufWriter::gemma4().tensors.len());
    assert_eq!(added.len(), 4 * 8);
    for tensor in added {
        let what = tensor.name.clone();
        assert_says(&what, mixture(&|w| w.remove_tensor(&what)), &["test.gguf", &what, "missing"]);
        // Another number of experts, or of values: the last dimension is one larger.
        let mut shape: Vec<usize> = tensor.shape.iter().map(|&n| n as usize).collect();
        let other = shape.len() - 1;
        shape[other] += if other == 0 { 32 } else { 1 };
        let ty = if what.contains("exps.weight") { GgmlType::Q8_0 } else { GgmlType::F32 };
        let replaced = mixture(&|w| {
            w.remove_tensor(&what);
            w.random(&what, &shape, ty);
        });
        assert_says(&what, replaced, &[&what, &format!("{shape:?}"), &format!("{:?}", tensor.shape)]);
    }
    let nan = mixture(&|w| {
        let scale = w.tensors.iter_mut().find(|tensor| tensor.name == "blk.1.ffn_down_exps.scale");
        scale.expect("there").data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    assert_says("NaN", nan, &["blk.1.ffn_down_exps.scale has NaN", "expected finite numbers", "download"]);
    let set = |key: &str, n: u32| mixture(&|w| w.set(&format!("gemma4.{key}"), Value::U32(n)));
    assert_says("count", set("expert_count", 300), &["gemma4.expert_count", "300", "1 to 256"]);
    assert_says("count", set("expert_count", 8), &["ffn_down_exps.scale", "[4]", "[8]"]);
    assert_says("count", set("expert_count", 6), &["gemma4.expert_count", "multiple of 4"]);
    assert_says("used", set("expert_used_count", 5), &["gemma4.expert_used_count", "1 to 4"]);
    assert_says("used", set("expert_used_count", 0), &["gemma4.expert_used_count", "1 to 4"]);
    assert_says(
        "width",
        set("expert_feed_forward_length", 8),
        &["blk.0.ffn_gate_up_exps.weight", "[32, 16, 4]"],
    );
    for key in ["expert_used_count", "expert_feed_forward_length"] {
        let key = format!("gemma4.{key}");
        assert_says(&key, mixture(&|w| w.remove_key(&key)), &[&key, "missing"]);
    }
    let q8_1 = mixture(&|w| {
        w.remove_tensor("blk.2.ffn_down_exps.weight");
        w.random("blk.2.ffn_down_exps.weight", &[32, 32, 4], GgmlType::Q8_1);
    });
    assert_says("type", q8_1, &["blk.2.ffn_down_exps.weight", "Q8_1", "Q4_K, Q5_K, Q6_K"]);
}

/// Formats without kernels: those that llama-quantize writes below Q2_K, and others.
#[test]
fn formats_without_kernels_are_refused_by_name() {
    use GgmlType::*;
    // Those of activations and of numbers: llama.cpp has no weights in them.
    let without = [Q8_1, Q8_K, I8, I16, I32, I64, F64];
    assert!(GgmlType::ALL.into_iter().all(|ty| ty.supported() != without.contains(&ty)));
    for ty in without.into_iter().filter(|ty| ty.block_len() <= 32) {
        let mut w = GgufWriter::gemma4();
        let tensor = w.tensor("blk.0.ffn_up.weight");
        let values = tensor.shape.iter().product::<u64>() as usize;
        (tensor.ty, tensor.data) = (ty as u32, vec![0; values / ty.block_len() * ty.block_bytes()]);
        let expected = ["blk.0.ffn_up.weight", &*ty.name(), "such as Q4_K_M, or IQ2_M if memory is short"];
        assert_says(&ty.name(), open(&w), &expected);
    }
}

/// Gate and up as two tensors, and the tensor names of Ollama's converter.
#[test]
fn mixtures_in_other_layouts() {
    let mut w = GgufWriter::mixture();
    for i in 0..4 {
        w.remove_tensor(&format!("blk.{i}.ffn_gate_up_exps.weight"));
        for part in ["gate", "up"] {
            w.random(&format!("blk.{i}.ffn_{part}_exps.weight"), &[32, 32, 4], GgmlType::Q4_0);
        }
        for (ours, theirs) in [
            ("ffn_down_exps.scale", "ffn_gate_inp.per_expert_scale"),
            ("post_ffw_norm_1.weight", "ffn_post_norm_1.weight"),
            ("pre_ffw_norm_2.weight", "ffn_pre_norm_2.weight"),
            ("post_ffw_norm_2.weight", "ffn_post_norm_2.weight"),
        ] {
            w.tensor(&format!("blk.{i}.{ours}")).name = format!("blk.{i}.{theirs}");
        }
    }
    let base = open(&w).expect("sound");
    assert!(base.matrix("blk.0.ffn_gate_up_exps").is_none());
    for part in ["gate", "up"] {
        assert_eq!(base.matrix(&format!("blk.3.ffn_{part}_exps")).expect("there").rows, 4 * 32);
    }
    assert_eq!(base.vector("blk.2.ffn_down_exps.scale").len(), 4);
    w.remove_tensor("blk.1.ffn_up_exps.weight");
    assert_says("half", open(&w), &["blk.1.ffn_up_exps.weight", "missing", "[32, 32, 4]"]);
}

/// A mixture with a shared expert: the vector that scores it may have one or two sizes, layers for multi-token prediction stay out,
/// and keys that are missing are named.
#[test]
fn mixtures_with_a_shared_expert() {
    let gguf = Gguf::open(std::path::Path::new("tests/golden/qwen35moe/model.gguf")).expect("sound");
    let plain = Base::from_gguf(gguf, "test").expect("sound");
    let expected = Experts { count: 4, used: 2, width: 64, shared: true, ..Experts::default() };
    assert_eq!(plain.config().layers[1].experts, Some(expected));
    assert_eq!(plain.config().layers[1].ffn_width, 96);

    for shape in [vec![256], vec![256, 1]] {
        let mut w = GgufWriter::of(plain.gguf());
        w.tensor("blk.0.ffn_gate_inp_shexp.weight").shape = shape;
        let base = open(&w).expect("the same model");
        assert_eq!(base.config(), plain.config());
        let score = base.matrix("blk.0.ffn_gate_inp_shexp").expect("there");
        assert_eq!((score.rows, score.cols), (1, 256));
    }

    let mut with_mtp = GgufWriter::of(plain.gguf());
    with_mtp.set("qwen35moe.block_count", Value::U32(3));
    with_mtp.set("qwen35moe.nextn_predict_layers", Value::U32(1));
    with_mtp.set("qwen35moe.attention.recurrent_layers", Value::Array(Array::Bool(vec![true, false, false])));
    with_mtp.random("blk.2.nextn.eh_proj.weight", &[512, 256], GgmlType::Q8_0);
    let base = open(&with_mtp).expect("sound");
    assert_eq!(base.config(), plain.config());
    let notices = base.left_out();
    assert!(notices.len() == 1 && notices[0].contains("multi-token prediction"), "{notices:?}");
    assert!(plain.left_out().is_empty());

    for key in ["qwen35moe.expert_count", "qwen35moe.expert_used_count"] {
        let mut w = GgufWriter::of(plain.gguf());
        w.remove_key(key);
        assert_says(key, open(&w), &[key]);
    }
    for name in ["ffn_gate_inp_shexp", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "ffn_up_exps"] {
        let mut w = GgufWriter::of(plain.gguf());
        let name = format!("blk.1.{name}.weight");
        w.remove_tensor(&name);
        assert_says(&name, open(&w), &[&name, "missing"]);
    }
}

/// The small Qwen 3.5 as Ollama's library has it: heads of keys per layer, another name of the decay's bias, vision and
/// multi-token prediction beside the text model.
#[test]
fn ollamas_conversion_of_qwen35_is_the_same_model() {
    let gguf = Gguf::open(std::path::Path::new("tests/golden/qwen35/model.gguf")).expect("sound");
    let mut w = GgufWriter::of(&gguf);
    let plain = Base::from_gguf(gguf, "test").expect("sound");
    w.remove_key("qwen35.attention.recurrent_layers");
    w.remove_key("qwen35.full_attention_interval");
    w.set("qwen35.attention.head_count_kv", Value::Array(Array::U32(vec![0, 2])));
    w.set("qwen35.ssm.v_head_reordered", Value::Bool(true));
    w.set("qwen35.vision.block_count", Value::U32(1));
    w.tensor("blk.0.ssm_dt.bias").name = "blk.0.ssm_dt".into();
    for other in ["v.blk.0.attn_q.weight", "mm.0.weight", "mtp.layers.0.self_attn.q_proj.weight"] {
        w.random(other, &[32, 8], GgmlType::Q8_0);
    }
    let ollama = open(&w).expect("the same model");
    assert_eq!(ollama.config(), plain.config());
    assert_eq!(ollama.vector("blk.0.ssm_dt.bias"), plain.vector("blk.0.ssm_dt.bias"));
    assert!(ollama.matrix("v.blk.0.attn_q").is_none(), "the vision tower is no part of the text model");
    let notices = ollama.left_out();
    assert!(notices.len() == 1 && notices[0].contains("tower for images or sound"), "{notices:?}");

    // llama.cpp's files have the layers for multi-token prediction behind the others.
    let mut with_mtp = GgufWriter::of(plain.gguf());
    with_mtp.set("qwen35.block_count", Value::U32(3));
    with_mtp.set("qwen35.nextn_predict_layers", Value::U32(1));
    with_mtp.set("qwen35.attention.recurrent_layers", Value::Array(Array::Bool(vec![true, false, false])));
    with_mtp.random("blk.2.nextn.eh_proj.weight", &[512, 256], GgmlType::Q8_0);
    let base = open(&with_mtp).expect("sound");
    assert_eq!(base.config(), plain.config());
    let notices = base.left_out();
    assert!(notices.len() == 1 && notices[0].contains("multi-token prediction"), "{notices:?}");
    assert!(plain.left_out().is_empty());

    for (heads, expected) in [(vec![0, 0], "0 in layers without attention"), (vec![2], "an array of 2")] {
        w.set("qwen35.attention.head_count_kv", Value::Array(Array::U32(heads)));
        assert_says("heads", open(&w), &["qwen35.attention.head_count_kv", expected]);
    }
    // Qwen 3.8 27B has the architecture of Qwen 3.5; Qwen 3.8 Flash-Next has its own.
    let mut next = GgufWriter::of(plain.gguf());
    next.set("general.architecture", Value::String("qwen4exp".into()));
    assert_says(
        "another architecture",
        open(&next),
        &[
            "`qwen4exp` (Qwen 3.8 Flash-Next), which is not trained: it has hyper-",
            "use `qwen35moe` (Qwen 3.5 mix",
        ],
    );
    next.set("general.architecture", Value::String("qwen9".into()));
    assert_says(
        "a later one",
        open(&next),
        &["`qwen9`", "supported are", "`qwen35` (Qwen 3.5", "`qwen35moe`"],
    );
    let mut unordered = GgufWriter::of(plain.gguf());
    unordered.set("qwen35.ssm.v_head_reordered", Value::Bool(false));
    assert_says("order", open(&unordered), &["ssm.v_head_reordered", "a newer conversion"]);
}

#[test]
fn yarn_is_read_in_every_family_of_uniform_layers() {
    for family in ["qwen2", "qwen3", "qwen3moe", "llama", "gemma3", "qwen35"] {
        let path = format!("{}/tests/golden/{family}/model.gguf", env!("CARGO_MANIFEST_DIR"));
        let good = GgufWriter::of(&Gguf::open(path.as_ref()).expect("a golden model"));
        let open = |kind: &str| {
            let mut w = good.clone();
            let key = |name: &str| format!("{family}.rope.scaling.{name}");
            w.set(&key("type"), Value::String(kind.into()));
            w.set(&key("factor"), Value::F32(4.0));
            w.set(&key("original_context_length"), Value::U32(64));
            Base::from_gguf(Gguf::from_bytes(w.bytes(), "yarn.gguf").expect("sound"), "yarn")
        };
        let base = open("yarn").unwrap_or_else(|error| panic!("{family}: {error}"));
        let found: Vec<_> = base.config().layers.iter().filter_map(|layer| layer.yarn).collect();
        assert!(!found.is_empty(), "{family}");
        assert!(
            found.iter().all(|yarn| yarn.whole && yarn.factor == 4.0 && yarn.original_context == 64.0),
            "{family}: {found:?}"
        );
        assert!(base.config().layers.iter().all(|layer| layer.rope_divisor == 1.0));
        assert_says("another kind", open("longrope"), &["stretches its context", "longrope", "yarn, linear"]);
    }
}
