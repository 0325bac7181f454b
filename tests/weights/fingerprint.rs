//! Fingerprints of bases: changes that must keep the fingerprint, and changes that must not.

use crate::gguf_writer::GgufWriter;
use rullama_train::base::fingerprint::{Fingerprint, Kinship};
use rullama_train::base::gguf::value::{Array, Value};
use rullama_train::base::{Base, GgmlType, Gguf};

/// A gemma4 with an embedding table of 70 400 bytes, more than is digested of one tensor.
fn model() -> GgufWriter {
    let mut w = GgufWriter::gemma4();
    for name in ["token_embd.weight", "per_layer_token_embd.weight"] {
        w.remove_tensor(name);
    }
    w.random("token_embd.weight", &[32, 2200], GgmlType::Q8_0);
    w.random("per_layer_token_embd.weight", &[16, 2200], GgmlType::F16);
    w
}

fn fingerprint(change: impl FnOnce(&mut GgufWriter)) -> Fingerprint {
    let mut w = model();
    change(&mut w);
    let gguf = Gguf::from_bytes(w.bytes(), "some.gguf").expect("sound");
    Base::from_gguf(gguf, "some").expect("a model").fingerprint()
}

#[test]
fn containers_metadata_and_converters_do_not_matter() {
    let own = fingerprint(|_| {});
    let same = |what: &str, change: &dyn Fn(&mut GgufWriter)| {
        assert_eq!(fingerprint(|w| change(w)), own, "{what}");
    };
    same("metadata", &|w| w.set("tokenizer.chat_template", Value::String("mended".into())));
    same("the order of tensors", &|w| w.tensors.reverse());
    same("the alignment", &|w| {
        w.alignment = 64;
        w.set("general.alignment", Value::U32(64));
    });
    same("a tower", &|w| w.random("v.blk.0.attn_q.weight", &[32, 8], GgmlType::F16));
    same("keys that nobody uses", &|w| w.random("blk.3.attn_k.weight", &[32, 8], GgmlType::Q8_0));
    same("Ollama's names", &|w| {
        for i in 0..4 {
            for (ours, theirs) in
                [("post_attention_norm", "attn_post_norm"), ("layer_output_scale", "layer_scalar")]
            {
                w.tensor(&format!("blk.{i}.{ours}.weight")).name = format!("blk.{i}.{theirs}.weight");
            }
        }
    });
}

#[test]
fn other_weights_and_other_models_have_other_fingerprints() {
    let own = fingerprint(|_| {});
    assert_eq!(own.kinship(&own), Kinship::Same);
    let kinship = |change: &dyn Fn(&mut GgufWriter)| fingerprint(|w| change(w)).kinship(&own);
    let flip = |name: &'static str, at: usize| move |w: &mut GgufWriter| w.tensor(name).data[at] ^= 1;
    // Small tensors are digested completely; of large ones, the first and the last block and two in between.
    assert_eq!(kinship(&flip("blk.1.attn_q.weight", 100)), Kinship::OtherWeights);
    for at in [0, 20_000, 40_000, 74_799] {
        assert_eq!(kinship(&flip("token_embd.weight", at)), Kinship::OtherWeights, "byte {at}");
    }
    let requantize = |w: &mut GgufWriter| {
        w.remove_tensor("blk.1.ffn_up.weight");
        w.random("blk.1.ffn_up.weight", &[32, 8], GgmlType::Q8_0);
    };
    assert_eq!(kinship(&requantize), Kinship::OtherWeights);
    for name in ["blk.2.attn_norm.weight", "output_norm.weight", "blk.0.layer_output_scale.weight"] {
        assert_eq!(kinship(&flip(name, 3)), Kinship::OtherModel, "{name}");
    }
    let tiny = Base::tiny().expect("part of the program").fingerprint();
    assert_eq!(tiny.kinship(&own), Kinship::OtherModel);
}

#[test]
fn norms_count_by_their_values() {
    let half = |w: &mut GgufWriter| {
        let norm = w.tensor("output_norm.weight");
        norm.data = [0.5f32; 32].iter().flat_map(|v| v.to_le_bytes()).collect();
    };
    let half_in_f16 = |w: &mut GgufWriter| {
        let norm = w.tensor("output_norm.weight");
        (norm.ty, norm.data) = (GgmlType::F16 as u32, [0x00, 0x38].repeat(32));
    };
    assert_eq!(fingerprint(half_in_f16).kinship(&fingerprint(half)), Kinship::OtherWeights);
}

#[test]
fn a_fingerprint_is_parsed_from_its_text() {
    let own = fingerprint(|_| {});
    let text = own.to_string();
    assert_eq!(text.len(), 3 + 32 + 1 + 32, "{text}");
    assert_eq!(text.parse(), Ok(own));
    for wrong in ["", "v1:", &text[3..], &text[..60], &text.replace("v1", "v2"), &text.to_uppercase()] {
        let error = wrong.parse::<Fingerprint>().expect_err(wrong);
        assert!(error.contains("is not a fingerprint, expected v1: and two digests"), "{error}");
    }
}

/// The fingerprint must not change between versions of the program.
#[test]
fn the_tiny_model_keeps_its_fingerprint() {
    let tiny = Base::tiny().expect("part of the program").fingerprint();
    assert_eq!(tiny.to_string(), "v1:2bf0f068bc09a69c090e623db298d374-7135c1afdc1912e6fbce7137f33ca6e1");
}

#[test]
fn the_vocabulary_has_a_digest_of_its_own() {
    let digest = |change: &dyn Fn(&mut GgufWriter)| {
        let mut w = model();
        let texts = |texts: &[&str]| {
            Value::Array(Array::String(texts.iter().map(|text| (*text).to_owned()).collect()))
        };
        w.set("tokenizer.ggml.tokens", texts(&["a", "b", "ab", "c"]));
        w.set("tokenizer.ggml.merges", texts(&["a b", "b c"]));
        change(&mut w);
        let base = Base::from_gguf(Gguf::from_bytes(w.bytes(), "some.gguf").expect("sound"), "some");
        base.expect("a model").vocabulary().to_owned()
    };
    let set = |key: &'static str, texts: &'static [&'static str]| {
        move |w: &mut GgufWriter| {
            let texts = texts.iter().map(|text| (*text).to_owned()).collect();
            w.set(key, Value::Array(Array::String(texts)));
        }
    };
    let own = digest(&|_| {});
    assert_eq!(own.len(), 64);
    assert_eq!(digest(&|w| w.tensor("blk.1.attn_q.weight").data[100] ^= 1), own, "weights");
    assert_eq!(digest(&set("tokenizer.chat_template", &["x"])), own, "a template");
    assert_ne!(digest(&set("tokenizer.ggml.tokens", &["b", "a", "ab", "c"])), own, "order");
    assert_ne!(digest(&set("tokenizer.ggml.merges", &["b c", "a b"])), own, "merges");
    assert_ne!(digest(&set("tokenizer.ggml.merges", &["a b"])), own, "fewer merges");
}
