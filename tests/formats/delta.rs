//! Adapters of gated delta nets: the value heads stand in each program's order, and every format is read as it was written.

use std::fs;

use rullama_train::adapter::lora::slots;
use rullama_train::adapter::{Format, read_any, write};
use rullama_train::base::{Base, Module};
use rullama_train::run;

use super::safe_file::SafeFile;
use super::{OPTIONS, RANK, adapter, bits, golden};

/// Two layers, the first with a delta net: two key heads and six value heads of 32.
fn base() -> Base {
    Base::open(golden("qwen35/model.gguf").to_str().expect("UTF-8")).expect("the golden model opens")
}

#[test]
fn adapters_of_delta_nets_are_read_as_they_were_written() {
    let base = base();
    let config = base.config();
    let written = adapter(config, &Module::ALL);
    for format in Format::ALL.into_iter().filter(|f| !matches!(f, Format::RullamaV0 | Format::GgufLoraF16)) {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = write(dir.path(), format, &written, config, &OPTIONS);
        let read = read_any(&path.unwrap_or_else(|e| panic!("{format:?}: {e}")), config, None);
        let read = read.unwrap_or_else(|e| panic!("{format:?}: {e}"));
        assert_eq!(bits(&read, |x| x), bits(&written, |x| x), "{format:?}");
    }
}

#[test]
fn value_heads_are_where_transformers_and_mlx_lm_have_them() {
    let base = base();
    let config = base.config();
    let mut written = adapter(config, &[Module::SsmAlpha, Module::SsmOut]);
    for (slot, pair) in &mut written.pairs {
        // Each value is the number of its head in the file.
        let head = |size: usize| move |(i, value): (usize, &mut f32)| *value = (i / size % 6) as f32;
        match slot.module {
            Module::SsmAlpha => pair.b.iter_mut().enumerate().for_each(head(RANK)),
            _ => pair.a.iter_mut().enumerate().for_each(head(32)),
        }
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let values = |format: Format, name: &str| {
        let path = write(dir.path(), format, &written, config, &OPTIONS).expect("written");
        let file = fs::read_dir(&path).expect("a folder").map(|entry| entry.expect("an entry").path());
        let mut file = file.filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
        let file = SafeFile::read(&file.next().expect("its tensors"));
        let tensor = file.tensors.iter().find(|(found, _)| found.ends_with(name));
        let (_, (_, _, bytes)) = tensor.unwrap_or_else(|| panic!("{format:?} has no {name}"));
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("4"))).collect::<Vec<f32>>()
    };
    // Heads 0, 2 and 4 of the file read key head 0, and stand side by side elsewhere.
    let order = [0.0, 2.0, 4.0, 1.0, 3.0, 5.0];
    let in_rows = order.map(|head| [head; RANK]).concat();
    let in_columns = order.map(|head| [head; 32]).concat();
    assert_eq!(values(Format::Peft, "linear_attn.in_proj_a.lora_B.weight"), in_rows);
    assert_eq!(values(Format::Peft, "linear_attn.out_proj.lora_A.weight")[..192], in_columns);
    let mlx_rows: Vec<f32> = (0..RANK).flat_map(|_| order).collect();
    assert_eq!(values(Format::Mlx, "language_model.model.layers.0.linear_attn.in_proj_a.lora_b"), mlx_rows);
    let mlx_columns = order.map(|head| [head; 32 * RANK]).concat();
    assert_eq!(values(Format::Mlx, "linear_attn.out_proj.lora_a"), mlx_columns);
}

#[test]
fn all_linear_is_every_matrix_of_both_kinds_of_layers() {
    let base = base();
    let all = slots(base.config(), Module::ALL_LINEAR);
    let expected = "attn_q, attn_k, attn_v, attn_output, ffn_gate, ffn_up, ffn_down, attn_qkv, attn_gate, ssm_alpha, ssm_beta, ssm_out";
    assert_eq!(run::names(&all), expected);
    let of = |layer: usize| all.iter().filter(|slot| slot.layer == layer).count();
    assert_eq!((of(0), of(1)), (8, 7));
}

#[test]
fn adapters_of_the_other_kind_of_layer_are_refused() {
    let base = base();
    let config = base.config();
    for (from, to, expected) in [
        (
            "layers.1.self_attn.q_proj",
            "layers.0.self_attn.q_proj",
            "layer 0 has a gated delta net in the place of attention and no q_proj",
        ),
        (
            "layers.0.linear_attn.out_proj",
            "layers.1.linear_attn.out_proj",
            "layer 1 has no gated delta net and no out_proj",
        ),
        ("layers.1.self_attn.q_proj", "layers.2.self_attn.q_proj", "the model has 2 layers, numbered from 0"),
    ] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = write(dir.path(), Format::Peft, &adapter(config, &Module::ALL), config, &OPTIONS)
            .expect("written");
        let tensors = path.join("adapter_model.safetensors");
        let mut file = SafeFile::read(&tensors);
        file.tensors =
            file.tensors.into_iter().map(|(name, tensor)| (name.replace(from, to), tensor)).collect();
        fs::write(&tensors, file.bytes()).expect("written");
        let error = read_any(&path, config, None).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }
}
