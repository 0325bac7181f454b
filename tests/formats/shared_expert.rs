//! Adapters of a shared expert beside routed ones, with gated delta nets: names, round trips and refusals.

use std::fs;

use rullama_train::adapter::lora::slots;
use rullama_train::adapter::{Format, read_any, write};
use rullama_train::base::{Base, Module};
use rullama_train::run;

use super::safe_file::SafeFile;
use super::{OPTIONS, adapter, bits, golden};

/// Two layers, the first with a delta net; a shared expert of width 96 beside four experts of width 64.
fn base() -> Base {
    Base::open(golden("qwen35moe/model.gguf").to_str().expect("UTF-8")).expect("the golden model opens")
}

#[test]
fn adapters_of_shared_experts_are_read_as_they_were_written() {
    let base = base();
    let config = base.config();
    for modules in [&Module::ALL[..], Module::ALL_LINEAR, &[Module::FfnGateInpShexp]] {
        let written = adapter(config, modules);
        for format in
            Format::ALL.into_iter().filter(|f| !matches!(f, Format::RullamaV0 | Format::GgufLoraF16))
        {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let path = write(dir.path(), format, &written, config, &OPTIONS);
            let read = read_any(&path.unwrap_or_else(|e| panic!("{format:?}: {e}")), config, None);
            let read = read.unwrap_or_else(|e| panic!("{format:?}: {e}"));
            assert_eq!(bits(&read, |x| x), bits(&written, |x| x), "{format:?}");
        }
    }
}

#[test]
fn all_linear_has_the_shared_expert_and_its_gate() {
    let base = base();
    let all = slots(base.config(), Module::ALL_LINEAR);
    let expected = "attn_q, attn_k, attn_v, attn_output, attn_qkv, attn_gate, ssm_alpha, ssm_beta, ssm_out, ffn_gate_shexp, \
                    ffn_up_shexp, ffn_down_shexp, ffn_gate_inp_shexp";
    assert_eq!(run::names(&all), expected);
    let gate = all.iter().find(|slot| slot.module == Module::FfnGateInpShexp).expect("there");
    assert_eq!((gate.out_features, gate.in_features), (1, 256));
}

#[test]
fn names_are_those_of_transformers_mlx_lm_and_llama_cpp() {
    let base = base();
    let config = base.config();
    let written = adapter(config, &[Module::FfnUpShexp, Module::FfnGateInpShexp]);
    let names = |format: Format| {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = write(dir.path(), format, &written, config, &OPTIONS).expect("written");
        let files = fs::read_dir(&path).expect("a folder").map(|entry| entry.expect("an entry").path());
        let mut files = files.filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
        let file = SafeFile::read(&files.next().expect("its tensors"));
        file.tensors.iter().map(|(name, (_, shape, _))| format!("{name} {shape:?}")).collect::<Vec<_>>()
    };
    let peft = names(Format::Peft);
    for expected in [
        "base_model.model.model.layers.0.mlp.shared_expert.up_proj.lora_B.weight [96, ",
        "base_model.model.model.layers.1.mlp.shared_expert_gate.lora_B.weight [1, ",
    ] {
        assert!(peft.iter().any(|name| name.starts_with(expected)), "{expected} in {peft:?}");
    }
    let mlx = names(Format::Mlx);
    let expected = "language_model.model.layers.1.mlp.shared_expert_gate.lora_a [256, ";
    assert!(mlx.iter().any(|name| name.starts_with(expected)), "{expected} in {mlx:?}");
}

#[test]
fn adapters_of_dense_blocks_are_refused() {
    let base = base();
    let config = base.config();
    let dir = tempfile::tempdir().expect("a temporary folder");
    let written = adapter(config, &[Module::FfnUpShexp]);
    let path = write(dir.path(), Format::Peft, &written, config, &OPTIONS).expect("written");
    let tensors = path.join("adapter_model.safetensors");
    let mut file = SafeFile::read(&tensors);
    let renamed = |name: String| name.replace("mlp.shared_expert.up_proj", "mlp.up_proj");
    file.tensors = file.tensors.into_iter().map(|(name, tensor)| (renamed(name), tensor)).collect();
    fs::write(&tensors, file.bytes()).expect("written");
    let error = read_any(&path, config, None).expect_err("refused").to_string();
    let expected = "layer 0 has experts in the place of a dense feed-forward block and no up_proj";
    assert!(error.contains(expected), "{error}");
}
