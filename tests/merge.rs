//! Merged files: adapted matrices are the sum, all other bytes are those of the base, and invalid merges are rejected.
//!
//! `tests/golden/ollama` is a file in the form that Ollama writes, with towers and different tensor names.

use std::fs;
use std::path::{Path, PathBuf};

use rullama_train::adapter::lora::{Adapter, Slot, slots};
use rullama_train::adapter::merge::{self, MergeType};
use rullama_train::adapter::read_any;
use rullama_train::base::Module;
use rullama_train::base::gguf::value::Value;
use rullama_train::base::quantize::ENCODED;
use rullama_train::base::{Base, GgmlType, Gguf};
use rullama_train::reference::model::Weights;

use crate::gguf_writer::GgufWriter;
use crate::golden_files::{join_keys_values, split_experts};

const NOTE: &str = "rullama_train.merged";

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn golden_base(name: &str) -> Base {
    Base::open(golden(name).join("model.gguf").to_str().expect("UTF-8")).expect("the golden model opens")
}

fn golden_adapter(name: &str, base: &Base) -> Adapter {
    read_any(&golden(name).join("adapter"), base.config(), None).expect("PEFT wrote it for this model")
}

/// An adapter of every slot, with nonzero A and B.
fn adapter(base: &Base, size: f32) -> Adapter {
    let mut adapter = Adapter::init(&slots(base.config(), &Module::ALL), 2, 3.0, true, 5);
    for pair in adapter.pairs.values_mut() {
        pair.b.iter_mut().enumerate().for_each(|(i, b)| *b = size * (i as f32).sin());
    }
    adapter
}

fn merge(base: &Base, adapter: &Adapter, ty: MergeType) -> (Gguf, Vec<merge::MergedTensor>) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("merged.gguf");
    let tensors = merge::write(&path, base, adapter, ty, |_| {}).expect("merged");
    let bytes = fs::read(&path).expect("written");
    (Gguf::from_bytes(bytes, "merged").expect("sound"), tensors)
}

fn refused(base: &Base, adapter: &Adapter, ty: MergeType, expected: &str) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("merged.gguf");
    fs::write(&path, "what stood there").expect("written");
    let error = merge::write(&path, base, adapter, ty, |_| {}).expect_err(expected).to_string();
    assert!(error.contains(expected), "{error}\nexpected {expected}");
    assert_eq!(fs::read(&path).expect("still there"), b"what stood there");
    assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1, "nothing else is left behind");
}

/// `W + scale·B·A` of every slot in f64, with the name of the matrix.
fn sums(base: &Base, adapter: &Adapter) -> Vec<(String, Vec<f64>)> {
    let sum = |(slot, pair): (&rullama_train::adapter::lora::Slot, &rullama_train::adapter::lora::Pair)| {
        let name = format!("blk.{}.{}", slot.layer, slot.module.gguf_name());
        let w = base.require_matrix(&name).expect("the slot's matrix").dequantize();
        let (cols, rank) = (slot.in_features, adapter.rank);
        let value = |(i, &w): (usize, &f32)| {
            let a = &pair.a[i / cols / slot.out_features * rank * cols..]; // of the expert
            let term = |r: usize| f64::from(pair.b[i / cols * rank + r]) * f64::from(a[r * cols + i % cols]);
            f64::from(w) + adapter.scale() * (0..rank).map(term).sum::<f64>()
        };
        (name, w.iter().enumerate().map(value).collect())
    };
    adapter.pairs.iter().map(sum).collect()
}

/// Norm of the difference relative to the norm of the expected values.
fn relative(found: &[f32], expected: &[f64]) -> f64 {
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(&f, e)| f64::from(f) - e));
    difference / norm(&mut expected.iter().copied())
}

#[test]
fn all_other_bytes_are_unchanged() {
    for name in ["ollama", "dense", "big", "moe"] {
        let base = golden_base(name);
        let adapter = golden_adapter(name, &base);
        for (_, ty) in MergeType::NAMES {
            let (merged, tensors) = merge(&base, &adapter, ty);
            let old = base.gguf();
            assert_eq!(merged.alignment(), old.alignment());
            assert_eq!(merged.tensors().len(), old.tensors().len());
            let mut untouched = 0;
            for (new, old_tensor) in merged.tensors().iter().zip(old.tensors()) {
                assert_eq!((&new.name, &new.shape), (&old_tensor.name, &old_tensor.shape));
                if let Some(touched) = tensors.iter().find(|t| t.name == new.name) {
                    assert_eq!((touched.from, touched.to), (old_tensor.ty, new.ty));
                    assert_eq!(new.ty, ty.of(old_tensor.ty, new.shape[0]), "{}", new.name);
                    continue;
                }
                untouched += 1;
                assert_eq!(new.ty, old_tensor.ty);
                assert!(merged.data(new) == old.data(old_tensor), "{name}, {ty:?}: {} changed", new.name);
            }
            assert_eq!(tensors.len(), adapter.pairs.len(), "one matrix for each pair");
            assert_eq!(untouched, old.tensors().len() - tensors.len());
            if name == "ollama" {
                for tower in ["v.", "a.", "mm."] {
                    assert!(merged.tensors().iter().any(|t| t.name.starts_with(tower)), "{tower} is there");
                }
            }
            let (note, rest) = merged.metadata().split_last().expect("metadata");
            assert_eq!(note.0, NOTE);
            for ((key, value), old) in rest.iter().zip(old.metadata()) {
                assert_eq!(key, &old.0);
                assert!(value == &old.1 || key == "general.file_type", "{key} is {}", value.describe());
            }
            assert_eq!(rest.len(), old.metadata().len());
        }
    }
}

#[test]
fn matrices_of_one_adapter_are_merged_where_they_are() {
    for name in ["phi3", "glm4", "granite4"] {
        let base = golden_base(name);
        let adapter = golden_adapter(name, &base);
        let (merged, tensors) = merge(&base, &adapter, MergeType::from_name("f16").expect("a type"));
        let merged = Base::from_gguf(merged, "merged").expect("a model");
        let is_fused = |slot: &&Slot| slot.parts(base.config()).len() > 1;
        let mut matrices = 0;
        for slot in adapter.pairs.keys().filter(is_fused) {
            let (pair, rank, cols) = (&adapter.pairs[slot], adapter.rank, slot.in_features);
            for (module, rows) in slot.parts(base.config()) {
                let name = format!("blk.{}.{}", slot.layer, module.gguf_name());
                let values = |base: &Base| base.require_matrix(&name).expect("a part").dequantize();
                let (before, found) = (values(&base), values(&merged));
                let value = |(i, w): (usize, &f32)| {
                    let b = &pair.b[(rows.start + i / cols) * rank..][..rank];
                    let a = |r: usize| f64::from(pair.a[r * cols + i % cols]);
                    let sum: f64 = b.iter().enumerate().map(|(r, b)| f64::from(*b) * a(r)).sum();
                    f64::from(*w) + adapter.scale() * sum
                };
                let expected: Vec<f64> = before.iter().enumerate().map(value).collect();
                assert!(relative(&before, &expected) > 0.05, "{name} is adapted");
                let error = relative(&found, &expected);
                assert!(error < 5e-4, "{name}: {error:e}");
                matrices += 1;
            }
        }
        assert_eq!(matrices, if name == "phi3" { 10 } else { 4 }, "{name}");
        // A tensor that holds several is written once.
        let mut names: Vec<&String> = tensors.iter().map(|tensor| &tensor.name).collect();
        names.dedup();
        assert_eq!(names.len(), tensors.len(), "{name}");
    }
}

/// The matrix of a module of latent vectors, in the order of memory.
fn of_latent(weights: &Weights, layer: usize, module: Module) -> Option<&[f64]> {
    let latent = weights.layers[layer].latent.as_ref()?;
    Some(match module {
        Module::AttnQ | Module::AttnQB => &latent.q,
        Module::AttnQA => &latent.q_a.as_ref()?.0,
        Module::AttnKvAMqa => &latent.kv_a,
        Module::AttnKB => &latent.k_b,
        Module::AttnVB => &latent.v_b,
        _ => return None,
    })
}

#[test]
fn matrices_of_latent_vectors_are_merged_in_either_form_of_file() {
    for (name, of_layer) in [("deepseek2", 4), ("glm4moelite", 5)] {
        let apart = golden_base(name);
        let joined = Gguf::from_bytes(join_keys_values(&apart), "joined").expect("sound");
        let joined = Base::from_gguf(joined, "joined").expect("a model");
        for base in [apart, joined] {
            let adapter = golden_adapter(name, &base);
            let (merged, _) = merge(&base, &adapter, MergeType::from_name("f32").expect("a type"));
            let merged = Base::from_gguf(merged, "merged").expect("a model");
            let weights = |base: &Base| {
                let values =
                    |name: &str| Some(base.matrix(name)?.dequantize().into_iter().map(f64::from).collect());
                Weights::from_tensors(base.config(), values).expect("a whole model")
            };
            let (before, after) = (weights(&base), weights(&merged));
            let mut matrices = 0;
            for (slot, pair) in &adapter.pairs {
                let (rank, cols) = (adapter.rank, slot.in_features);
                for (module, rows) in slot.parts(base.config()) {
                    let Some(before) = of_latent(&before, slot.layer, module) else { continue };
                    let found = of_latent(&after, slot.layer, module).expect("as before");
                    let value = |(i, w): (usize, &f64)| {
                        let b = &pair.b[(rows.start + i / cols) * rank..][..rank];
                        let a = |r: usize| f64::from(pair.a[r * cols + i % cols]);
                        w + adapter.scale() * (0..rank).map(|r| f64::from(b[r]) * a(r)).sum::<f64>()
                    };
                    let expected: Vec<f64> = before.iter().enumerate().map(value).collect();
                    let narrow = |values: &[f64]| values.iter().map(|x| *x as f32).collect::<Vec<f32>>();
                    let what = format!("{name}: {} of layer {}", module.gguf_name(), slot.layer);
                    assert!(relative(&narrow(before), &expected) > 0.05, "{what} is adapted");
                    let error = relative(&narrow(found), &expected);
                    assert!(error < 1e-6, "{what}: {error:e}");
                    matrices += 1;
                }
            }
            assert_eq!(matrices, 3 * of_layer, "{name}");
        }
    }
}

#[test]
fn the_file_type_follows_most_matrices() {
    let base = Base::tiny().expect("part of the program");
    let adapter = adapter(&base, 0.1);
    let types = [("q8_0", 7), ("q6_k", 18), ("f16", 1), ("keep", 15), ("q4_k", 15), ("auto", 7)];
    for (name, expected) in types {
        let (merged, _) = merge(&base, &adapter, MergeType::from_name(name).expect("a type"));
        assert_eq!(merged.value("general.file_type"), Some(&Value::U32(expected)), "{name}");
    }
    // Merging again replaces the description of the merge.
    let (merged, _) = merge(&base, &adapter, MergeType::Keep);
    let again = Base::from_gguf(merged, "merged").expect("a model");
    let (merged, _) = merge(&again, &adapter, MergeType::Keep);
    assert_eq!(merged.metadata().iter().filter(|(key, _)| key == NOTE).count(), 1);
}

#[test]
fn adapted_matrices_are_the_sum() {
    // Largest loss of each type on normally distributed values; see tests/golden/quantize.json.
    let types = [
        ("f32", 4e-8),
        ("f16", 3e-4),
        ("bf16", 2e-3),
        ("q8_0", 6e-3),
        ("q6_k", 0.025),
        ("q5_k", 0.05),
        ("q4_k", 0.1),
    ];
    for name in ["ollama", "dense", "big", "moe"] {
        let base = golden_base(name);
        let adapter = golden_adapter(name, &base);
        let expected = sums(&base, &adapter);
        for (ty, tolerance) in types {
            let (merged, tensors) = merge(&base, &adapter, MergeType::from_name(ty).expect("a type"));
            let merged = Base::from_gguf(merged, "merged").expect("a model");
            for (matrix, expected) in &expected {
                let found = merged.require_matrix(matrix).expect("the matrix").dequantize();
                let relative = relative(&found, expected);
                assert!(
                    relative <= tolerance,
                    "{name}, {ty}: {matrix} is off by {relative:e}, allowed {tolerance:e}"
                );
            }
            for t in &tensors {
                assert!(t.changed && t.change > 0.0 && t.base > 0.0, "{t:?}");
                assert!((t.loss / (t.base + t.change)).sqrt() <= 1.5 * tolerance, "{t:?}");
            }
        }
    }
}

/// The vector that scores a shared expert is merged as a matrix of one row, and keeps its type as other vectors do.
#[test]
fn the_score_of_a_shared_expert_stays_in_f32() {
    let base = golden_base("qwen35moe");
    let mut adapter = golden_adapter("qwen35moe", &base);
    let of_shared = [Module::FfnUpShexp, Module::FfnDownShexp, Module::FfnGateInpShexp];
    adapter.pairs.retain(|slot, _| of_shared.contains(&slot.module));
    let expected = sums(&base, &adapter);
    assert_eq!(expected.len(), 6, "three matrices of two layers");
    for ty in ["auto", "q8_0", "f16"] {
        let (merged, _) = merge(&base, &adapter, MergeType::from_name(ty).expect("a type"));
        let merged = Base::from_gguf(merged, "merged").expect("a model");
        for (name, expected) in &expected {
            let matrix = merged.require_matrix(name).expect("the matrix");
            let is_score = name.ends_with("ffn_gate_inp_shexp");
            assert_eq!(matrix.ty == GgmlType::F32, is_score, "{ty}: {name}");
            let (found, tolerance) = (matrix.dequantize(), if is_score { 4e-8 } else { 6e-3 });
            assert!(relative(&found, expected) <= tolerance, "{ty}: {name}");
        }
    }
}

/// Separate gate and up tensors get one half of every expert's `B` each.
#[test]
fn separate_and_joint_experts_are_merged_alike() {
    let base = golden_base("moe");
    let adapter = golden_adapter("moe", &base);
    let bytes = split_experts(base.gguf());
    let split = Base::from_gguf(Gguf::from_bytes(bytes, "split").expect("sound"), "split").expect("a model");
    let ty = MergeType::To(GgmlType::F32);
    let ((together, _), (apart, _)) = (merge(&base, &adapter, ty), merge(&split, &adapter, ty));
    let expected = split_experts(&together);
    let expected = Gguf::from_bytes(expected, "split").expect("sound");
    assert_eq!(apart.tensors().len(), expected.tensors().len());
    for tensor in expected.tensors() {
        let found = apart.tensor(&tensor.name).expect("there");
        assert!(apart.data(found) == expected.data(tensor), "{}", tensor.name);
    }
}

#[test]
fn fused_and_renamed_tensors_are_merged_in_the_right_rows() {
    let mut writer = GgufWriter::gemma4();
    for last in ["attn_q", "attn_k", "attn_v"] {
        writer.remove_tensor(&format!("blk.0.{last}.weight"));
    }
    // 8 rows of queries, 4 of keys, 4 of values; the head sizes are 4 in layer 0.
    writer.random("blk.0.attn_qkv.weight", &[32, 16], GgmlType::Q8_0);
    // A layer that shares keys still has its own in the file, which must not change.
    writer.remove_tensor("blk.2.attn_q.weight");
    writer.random("blk.2.attn_qkv.weight", &[32, 16], GgmlType::F32);
    let tensor = writer.tensor("blk.1.attn_output.weight");
    tensor.name = "blk.1.attn_output".into();
    let base =
        Base::from_gguf(Gguf::from_bytes(writer.bytes(), "made").expect("sound"), "made").expect("a model");
    let adapter = adapter(&base, 0.5);
    let (merged, tensors) = merge(&base, &adapter, MergeType::To(GgmlType::F32));
    assert!(tensors.iter().any(|t| t.name == "blk.1.attn_output"));
    assert_eq!(tensors.iter().filter(|t| t.name.contains("qkv")).count(), 2);
    let merged = Base::from_gguf(merged, "merged").expect("a model");
    let expected = sums(&base, &adapter);
    assert_eq!(expected.iter().filter(|(name, _)| name.starts_with("blk.0.attn_")).count(), 4);
    for (matrix, expected) in expected {
        let found = merged.require_matrix(&matrix).expect("the matrix").dequantize();
        assert!(relative(&found, &expected) < 4e-8, "{matrix}");
    }
    let shared = |base: &Base| {
        let gguf = base.gguf();
        gguf.data(gguf.tensor("blk.2.attn_qkv.weight").expect("there"))[8 * 32 * 4..].to_vec()
    };
    assert!(shared(&merged) == shared(&base), "keys and values that nothing uses have changed");
    // Only the keys are adapted: with the fused tensor's own type, the other rows keep their bytes.
    let mut keys = adapter.clone();
    keys.pairs.retain(|slot, _| slot.module == Module::AttnK && slot.layer == 0);
    let (merged, _) = merge(&base, &keys, MergeType::Keep);
    let rows = |gguf: &Gguf| gguf.data(gguf.tensor("blk.0.attn_qkv.weight").expect("there")).to_vec();
    let (old, new) = (rows(base.gguf()), rows(&merged));
    assert_eq!((&old[..8 * 34], &old[12 * 34..]), (&new[..8 * 34], &new[12 * 34..]));
    assert_ne!(old[8 * 34..12 * 34], new[8 * 34..12 * 34]);
}

#[test]
fn rows_that_are_not_a_multiple_of_the_block_fall_back() {
    use GgmlType::*;
    let cases = [
        (Q4_K, 704, Q5_0),
        (Q5_K, 704, Q5_1),
        (Q2_K, 704, Q4_0),
        (Q3_K, 704, Q4_0),
        (IQ4_XS, 704, IQ4_NL),
        (MXFP4, 704, MXFP4),
        (Q3_K, 36, F16),
        (Q6_K, 2112, Q8_0),
        (Q8_0, 2112, Q8_0),
        (Q4_K, 2816, Q4_K),
        (Q4_K, 36, F16),
        (Q8_0, 4, F16),
        (BF16, 4, BF16),
    ];
    for (wanted, cols, expected) in cases {
        assert_eq!(MergeType::To(wanted).of(Q4_K, cols), expected, "{wanted:?} in rows of {cols}");
    }
    let own = |ty| [MergeType::Auto.of(ty, 256), MergeType::Keep.of(ty, 256)];
    assert_eq!(own(Q4_K), [Q8_0, Q4_K]);
    assert_eq!(own(Q5_0), [Q8_0, Q5_0]);
    assert_eq!([own(F32), own(F16), own(BF16)], [[F32; 2], [F16; 2], [BF16; 2]]);
    // Types that nothing here writes: the nearest one that is.
    let written = [(IQ2_XXS, Q2_K), (IQ1_M, Q2_K), (Q1_0, Q2_K), (IQ3_S, Q3_K), (NVFP4, Q4_K)];
    for (ty, expected) in written {
        assert_eq!(own(ty), [Q8_0, expected], "{ty:?}");
    }
    assert_eq!(MergeType::Keep.of(Q2_0, 704), Q4_0);
    for ty in GgmlType::SUPPORTED {
        let merged = MergeType::Keep.of(ty, 256);
        assert!(ENCODED.contains(&merged), "{ty:?} becomes {merged:?}");
        let bits = |ty: GgmlType| ty.block_bytes() as f64 / ty.block_len() as f64;
        assert!(bits(merged) >= bits(ty), "{ty:?} becomes the smaller {merged:?}");
    }
}

#[test]
fn merges_without_effect_are_rejected() {
    let base = Base::tiny().expect("part of the program");
    for (_, ty) in MergeType::NAMES {
        refused(&base, &adapter(&base, 0.0), ty, "every product scale·B·A is zero");
    }
    // Far below half a quantization step.
    for ty in ["keep", "auto", "q4_k", "q6_k"] {
        let ty = MergeType::from_name(ty).expect("a type");
        refused(&base, &adapter(&base, 1e-12), ty, "no byte of 32 matrices changes; choose a finer type");
    }
}

#[test]
fn adapters_and_values_that_do_not_fit_are_refused() {
    let (dense, big) = (golden_base("dense"), golden_base("big"));
    let mut other = golden_adapter("dense", &dense);
    refused(&big, &other, MergeType::Auto, "use the base that it was trained on");
    other.pairs.clear();
    refused(&dense, &other, MergeType::Auto, "it has no matrices");
    let mut large = golden_adapter("dense", &dense);
    large.alpha = 1e9;
    refused(&dense, &large, MergeType::Auto, "beyond the limit 65504 of Q8_0; choose f32");
    refused(&dense, &large, MergeType::To(GgmlType::F16), "row 0, column ");
    large.alpha = 1e300;
    refused(&dense, &large, MergeType::To(GgmlType::F32), "expected a finite number");
}

#[test]
fn damaged_adapters_are_refused() {
    let base = golden_base("ollama");
    let dir = tempfile::tempdir().expect("a temporary folder");
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(golden("ollama/adapter").join(file), dir.path().join(file)).expect("copied");
    }
    let tensors = dir.path().join("adapter_model.safetensors");
    let whole = fs::read(&tensors).expect("there");
    for (length, expected) in
        [(0, "not a complete safetensors file"), (whole.len() - 1, "not a complete safetensors file")]
    {
        fs::write(&tensors, &whole[..length]).expect("written");
        let error = read_any(dir.path(), base.config(), None).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
    fs::write(&tensors, &whole).expect("written");
    read_any(dir.path(), base.config(), None).expect("whole again");
    let error =
        read_any(dir.path(), golden_base("big").config(), None).expect_err("another model").to_string();
    assert!(error.contains("adapter_model.safetensors"), "{error}");
}

#[test]
fn places_that_cannot_be_written_give_one_clear_error() {
    let base = Base::tiny().expect("part of the program");
    let adapter = adapter(&base, 0.1);
    let dir = tempfile::tempdir().expect("a temporary folder");
    fs::write(dir.path().join("file"), "x").expect("written");
    let mut cases = vec![
        (dir.path().to_path_buf(), "it is a folder, expected a file"),
        (dir.path().join("file/merged.gguf"), "it is a file, expected a folder"),
    ];
    if cfg!(target_os = "linux") {
        cases.push(("/proc/merged.gguf".into(), "cannot write /proc/merged.gguf"));
    }
    for (path, expected) in cases {
        let error = merge::write(&path, &base, &adapter, MergeType::Auto, |_| {}).expect_err(expected);
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1, "nothing is left behind");
}
