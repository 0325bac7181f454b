//! Gradients of the whole model: slopes of the loss along the matrices of every slot, shared keys and values, packing.

use std::cell::Cell;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rullama_train::adapter::lora::{Slot, slots};
use rullama_train::base::Module;
use rullama_train::base::config::{
    Activation, Config, DeltaNet, Experts, Gating, Latent, LayerConfig, LongRope, QueryGrowth, ShortConv,
    Yarn,
};
use rullama_train::data::batch::{IGNORE, MicroBatch, Sample};
use rullama_train::reference::embedding;
use rullama_train::reference::model::{Adapter, Gradients, Model, Pair, Weights};

use super::{RELATIVE, added, dot, norm, values};

fn layer(full: bool, kv_donor: Option<usize>) -> LayerConfig {
    LayerConfig {
        window: (!full).then_some(3),
        heads: 4,
        kv_heads: 2,
        head_size: if full { 8 } else { 6 },
        ffn_width: if kv_donor.is_some() { 24 } else { 12 },
        rope_base: if full { 1e6 } else { 1e4 },
        kv_donor,
        rope_factors: full,
        qk_norm: true,
        v_norm: true,
        post_norms: true,
        ..LayerConfig::default()
    }
}

/// Per-layer embeddings; shared keys and values with a sliding and a full donor (not the first of their kind, and one of them
/// read twice); and a wider feed-forward in the layers that share.
fn like_e2b() -> Config {
    Config {
        architecture: "gemma4",
        width: 16,
        embedding_scale: 16f32.sqrt(),
        vocab: 37,
        per_layer_width: 6,
        per_layer_activation: Activation::Gelu,
        rms_eps: 1e-6,
        softcap: Some(30.0),
        context_length: 64,
        rope_freq_factors: Some(vec![1.0, 1.0, 1e30, 1e30]),
        layers: vec![
            layer(false, None),
            layer(true, None),
            layer(false, None),
            layer(true, None),
            layer(false, Some(2)),
            layer(false, Some(2)),
            layer(true, Some(3)),
        ],
        ..Config::default()
    }
}

/// Full layers with one key/value head and raw keys as values; no per-layer embeddings.
fn like_31b() -> Config {
    let full = LayerConfig { k_eq_v: true, kv_heads: 1, ..layer(true, None) };
    Config {
        per_layer_width: 0,
        softcap: Some(8.0),
        layers: vec![layer(false, None), full.clone(), layer(false, None), full],
        ..like_e2b()
    }
}

/// Sizes that are multiples of nothing, SiLU in the second layer and in the per-layer branch, no softcap, no frequency
/// factors, and an ε large enough to matter.
fn odd_sizes() -> Config {
    let odd = LayerConfig { heads: 3, kv_heads: 1, head_size: 10, ffn_width: 7, ..layer(true, None) };
    Config {
        width: 20,
        embedding_scale: 20f32.sqrt(),
        vocab: 23,
        per_layer_width: 5,
        per_layer_activation: Activation::Silu,
        rms_eps: 0.03,
        softcap: None,
        rope_freq_factors: None,
        layers: vec![
            LayerConfig { window: Some(2), head_size: 4, rope_base: 1e4, ..odd.clone() },
            LayerConfig { activation: Activation::Silu, ..odd },
        ],
        ..like_e2b()
    }
}

/// Experts beside every feed-forward block, many of them shared by several tokens; SiLU in every second layer; raw keys as values.
fn like_26b() -> Config {
    let experts = Some(Experts { count: 5, used: 2, width: 7, ..Experts::default() });
    let like = like_31b();
    let activation = |i| if i % 2 == 0 { Activation::Gelu } else { Activation::Silu };
    let layers = like.layers.iter().enumerate();
    let layers =
        layers.map(|(i, l)| LayerConfig { experts, activation: activation(i), ..l.clone() }).collect();
    Config { layers, ..like }
}

/// No norm but those before the blocks, SiLU, a scale on the scores, and biases: Llama and Qwen 2.
fn like_llama() -> Config {
    let plain = LayerConfig {
        qk_norm: false,
        v_norm: false,
        post_norms: false,
        score_scale: 8f64.sqrt().recip(),
        activation: Activation::Silu,
        ..layer(true, None)
    };
    let biased = LayerConfig {
        biases: vec![Module::AttnQ, Module::AttnK, Module::AttnV, Module::AttnOutput],
        ..plain.clone()
    };
    Config {
        embedding_scale: 1.0,
        per_layer_width: 0,
        softcap: None,
        layers: vec![plain.clone(), biased, LayerConfig { interleaved: true, ..plain }],
        ..like_e2b()
    }
}

/// Experts in the place of the feed-forward block in every second layer, norms of queries and keys alone, stretched positions.
fn like_qwen3moe() -> Config {
    let like = like_llama();
    let dense = LayerConfig { qk_norm: true, score_scale: 0.7, rope_divisor: 4.0, ..like.layers[0].clone() };
    let experts = Some(Experts { count: 5, used: 2, width: 7, ..Experts::default() });
    let mixture = LayerConfig { experts, ffn_width: 0, ..dense.clone() };
    Config { layers: vec![mixture.clone(), dense, mixture], ..like }
}

/// Sinks, biases of everything, clamped gates, YaRN and windows in every second layer.
fn like_gpt_oss() -> Config {
    let like = like_qwen3moe();
    let mixture = LayerConfig {
        qk_norm: false,
        rope_divisor: 1.0,
        yarn: Some(Yarn {
            factor: 8.0,
            original_context: 16.0,
            beta_fast: 4.0,
            beta_slow: 1.0,
            whole: false,
            scale: Yarn::usual_scale(8.0),
        }),
        sinks: true,
        activation: Activation::SwigluOai,
        biases: Module::ALL.into(),
        ..like.layers[0].clone()
    };
    let sliding = LayerConfig { window: Some(3), experts_split: true, ..mixture.clone() };
    Config { layers: vec![sliding, mixture], ..like }
}

/// A layer without rotary embedding, one whose queries grow with their positions and whose YaRN has a scale of its own, and a factor on
/// the logits: SmolLM3, Mistral 3 and Granite.
fn like_mistral3() -> Config {
    let like = like_llama();
    let still = LayerConfig { turns: false, ..like.layers[0].clone() };
    let yarn = like_gpt_oss().layers[0].yarn.map(|yarn| Yarn { scale: 1.7, ..yarn });
    let grows = LayerConfig {
        yarn,
        query_growth: Some(QueryGrowth { beta: 0.6, original_context: 2 }),
        ..still.clone()
    };
    Config { logit_scale: 0.3, layers: vec![still, LayerConfig { turns: true, ..grows }], ..like }
}

/// A softcap on the scores, in windows and without: Gemma 2.
fn like_gemma2() -> Config {
    let like = like_llama();
    let full = LayerConfig { post_norms: true, score_softcap: Some(0.7), ..like.layers[0].clone() };
    Config { softcap: Some(9.0), layers: vec![LayerConfig { window: Some(3), ..full.clone() }, full], ..like }
}

/// Norms behind the blocks alone, and of whole rows of queries and keys, or of their heads: OLMo 2 and EXAONE 4.
fn like_olmo2() -> Config {
    let like = like_llama();
    let heads = LayerConfig { pre_norms: false, post_norms: true, qk_norm: true, ..like.layers[0].clone() };
    Config { layers: vec![LayerConfig { qk_norm_of_rows: true, ..heads.clone() }, heads], ..like }
}

/// Norms of queries and keys behind the rotary embedding: Hunyuan.
fn like_hunyuan() -> Config {
    let like = like_llama();
    let behind = LayerConfig { qk_norm: true, qk_norm_behind: true, ..like.layers[0].clone() };
    Config { layers: vec![behind.clone(), behind], ..like }
}

/// One adapter for queries, keys and values, and one for gate and up; a part of each head turns, with a factor on it alone and the
/// divisors of long sequences: Phi 3 and GLM 4.
fn like_phi3() -> Config {
    let like = like_llama();
    let size = like.layers[0].head_size;
    let rotated = size / 4 * 2;
    let fused = LayerConfig {
        fused: vec![Module::AttnQkv, Module::FfnGateUp],
        rotated: Some(rotated),
        rope_factors: true,
        turned_scale: 1.3,
        ..like.layers[0].clone()
    };
    let around = LayerConfig { fused: vec![Module::FfnGateUp], post_norms: true, ..fused.clone() };
    let factors = |factor: f32| (0..rotated / 2).map(|i| factor + i as f32).collect::<Vec<f32>>();
    Config {
        rope_freq_factors: Some(factors(1.5)),
        long_rope: Some(LongRope { factors: factors(2.5), original_context: 3 }),
        layers: vec![fused, around],
        ..like
    }
}

/// Delta nets with value heads that share a key head, and a layer of attention with a gated output and half of each head rotated.
fn like_qwen35() -> Config {
    let like = like_llama();
    let attention = LayerConfig {
        qk_norm: true,
        output_gate: true,
        rotated: Some(4),
        score_scale: 8f64.sqrt().recip(),
        ..like.layers[0].clone()
    };
    let net = DeltaNet { key_heads: 2, value_heads: 4, head_size: 6 };
    let delta = LayerConfig {
        delta: Some(net),
        ffn_width: attention.ffn_width,
        activation: Activation::Silu,
        ..LayerConfig::default()
    };
    Config { layers: vec![delta.clone(), attention, delta], ..like }
}

/// A shared expert with a gate beside the experts of every layer, which is a delta net or has gated attention.
fn like_qwen35moe() -> Config {
    let like = like_qwen35();
    let experts = Some(Experts { count: 5, used: 2, width: 7, shared: true, ..Experts::default() });
    let layers = like.layers.iter().map(|l| LayerConfig { experts, ..l.clone() }).collect();
    Config { layers, ..like }
}

/// Experts whose weights are a softmax over all, beside a shared one: Qwen 1.5 and 2.
fn like_qwen2moe() -> Config {
    let like = like_llama();
    let experts = Some(Experts {
        count: 5,
        used: 2,
        width: 7,
        shared: true,
        gating: Gating::All,
        ..Experts::default()
    });
    let layer = |l: &LayerConfig| LayerConfig { experts, score_scale: 0.7, ..l.clone() };
    let layers = like.layers.iter().map(layer).collect();
    Config { layers, ..like }
}

/// Short convolutions around a layer of attention with norms of heads: LFM2.
fn like_lfm2() -> Config {
    let like = like_llama();
    let attention = LayerConfig { qk_norm: true, score_scale: 0.7, ..like.layers[0].clone() };
    let conv = |taps: usize| LayerConfig {
        short_conv: Some(ShortConv { channels: like.width, taps }),
        ffn_width: attention.ffn_width,
        activation: Activation::Silu,
        ..LayerConfig::default()
    };
    Config { layers: vec![conv(3), attention.clone(), conv(4)], ..like }
}

/// Short convolutions and attention with experts whose weights are sigmoids, behind a dense layer: LFM2's mixtures.
fn like_lfm2moe() -> Config {
    let like = like_lfm2();
    let experts =
        Some(Experts { count: 5, used: 2, width: 7, gating: Gating::Sigmoid, ..Experts::default() });
    let mixture = |l: &LayerConfig| LayerConfig { experts, ffn_width: 0, ..l.clone() };
    let layers = vec![like.layers[0].clone(), mixture(&like.layers[1]), mixture(&like.layers[2])];
    Config { layers, ..like }
}

/// Latent vectors with narrower values behind a dense layer, and with one for queries too before experts with a factor and a shared one without
/// a gate: DeepSeek V2 Lite and GLM 4.7 Flash.
fn like_deepseek2() -> Config {
    let like = like_llama();
    let plain = &like.layers[0];
    let latent = Latent {
        rank: 5,
        query_rank: None,
        turned: 4,
        key_size: plain.head_size - 4,
        value_size: 6,
        apart: true,
    };
    let yarn = like_gpt_oss().layers[0].yarn.map(|yarn| Yarn { scale: 1.0, ..yarn });
    let dense = LayerConfig {
        kv_heads: plain.heads,
        rotated: Some(4),
        rope_factors: false,
        yarn,
        fused: vec![Module::AttnKvB],
        latent: Some(latent),
        ..plain.clone()
    };
    let experts = Experts {
        count: 5,
        used: 2,
        width: 7,
        shared: true,
        ungated: true,
        gating: Gating::Sigmoid,
        scale: 1.8,
    };
    let latent = Latent { query_rank: Some(7), value_size: plain.head_size, ..latent };
    let mixture = LayerConfig { latent: Some(latent), experts: Some(experts), ..dense.clone() };
    let all = LayerConfig { experts: Some(Experts { gating: Gating::All, ..experts }), ..mixture.clone() };
    Config { layers: vec![dense, mixture, all], ..like }
}

fn configs() -> [(&'static str, Config); 18] {
    [
        ("like e2b", like_e2b()),
        ("like 31b", like_31b()),
        ("like 26b", like_26b()),
        ("odd sizes", odd_sizes()),
        ("like llama", like_llama()),
        ("like qwen3moe", like_qwen3moe()),
        ("like gpt-oss", like_gpt_oss()),
        ("like mistral3", like_mistral3()),
        ("like gemma2", like_gemma2()),
        ("like olmo2", like_olmo2()),
        ("like phi3", like_phi3()),
        ("like hunyuan", like_hunyuan()),
        ("like qwen35", like_qwen35()),
        ("like qwen35moe", like_qwen35moe()),
        ("like qwen2moe", like_qwen2moe()),
        ("like lfm2", like_lfm2()),
        ("like lfm2moe", like_lfm2moe()),
        ("like deepseek2", like_deepseek2()),
    ]
}

/// Three samples, 11 tokens in all: one longer than the windows, with a prompt without loss; one of a single token, which has
/// no loss either; and one without a prompt.
fn samples(vocab: usize) -> Vec<Sample> {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let lengths = [(6, 2), (1, 0), (4, 0)];
    lengths
        .map(|(length, prompt)| {
            let ids: Vec<u32> = (0..length).map(|_| rng.random_range(0..vocab as u32)).collect();
            let labels = ids.iter().enumerate().map(|(t, &id)| if t < prompt { IGNORE } else { id as i32 });
            Sample { labels: labels.collect(), ids, origin: String::new(), ..Sample::default() }
        })
        .to_vec()
}

struct Case {
    config: Config,
    weights: Weights,
    adapter: Adapter,
    batch: MicroBatch,
    factor: f64,
    chosen: Vec<Vec<usize>>, // by the router, which no step may change
}

impl Case {
    fn new(config: Config) -> Case {
        let adapter = Adapter::random(&slots(&config, &Module::ALL), 2, 1.5, 0.3, 11);
        let batch = MicroBatch::pack(&samples(config.vocab));
        let factor = 1.0 / batch.loss_rows.len() as f64;
        let weights = Weights::random(&config, 3);
        let mut case = Case { weights, config, adapter, batch, factor, chosen: Vec::new() };
        case.choose();
        case
    }

    fn choose(&mut self) {
        let acts = self.model(&self.adapter).forward(&self.batch);
        self.chosen =
            acts.layers.into_iter().map(|l| l.experts.map_or_else(Vec::new, |e| e.routing.experts)).collect();
    }

    fn model<'a>(&'a self, adapter: &'a Adapter) -> Model<'a> {
        Model { config: &self.config, weights: &self.weights, adapter }
    }

    fn loss(&self, adapter: &Adapter) -> f64 {
        let model = self.model(adapter);
        model.loss(&self.batch, &model.forward_routed(&self.batch, &self.chosen), self.factor)
    }

    fn gradients(&self) -> Gradients {
        let model = self.model(&self.adapter);
        model.backward(&self.batch, &model.forward(&self.batch), self.factor)
    }

    /// The slope of the loss along a random direction in the matrices that `chosen` selects, by finite differences and by the
    /// gradients.
    fn assert_slope(&self, name: &str, gradients: &Gradients, chosen: impl Fn(&Slot, &str) -> bool) -> f64 {
        let seed = Cell::new(100);
        let direction = |slot: &Slot, part: &str, len: usize| {
            seed.set(seed.get() + 1);
            if chosen(slot, part) { values(seed.get(), len) } else { vec![0.0; len] }
        };
        let mut directions = self.adapter.pairs.clone();
        for (slot, pair) in &mut directions {
            *pair = Pair { a: direction(slot, "A", pair.a.len()), b: direction(slot, "B", pair.b.len()) };
        }
        let mut found = 0.0;
        for (slot, direction) in &directions {
            let gradient = &gradients.pairs[slot];
            found += dot(&gradient.a, &direction.a) + dot(&gradient.b, &direction.b);
        }
        let moved = |step: f64| {
            let mut adapter = self.adapter.clone();
            for (slot, pair) in &mut adapter.pairs {
                for (x, d) in pair.a.iter_mut().zip(&directions[slot].a) {
                    *x += step * d;
                }
                for (x, d) in pair.b.iter_mut().zip(&directions[slot].b) {
                    *x += step * d;
                }
            }
            self.loss(&adapter)
        };
        let expected = slope(moved);
        assert_slopes(name, found, expected);
        found
    }
}

/// Derivative of `f` at 0 by central differences of fourth order. The slope along a single matrix can be small relative to the
/// loss, which requires a larger step than [`STEP`].
fn slope(f: impl Fn(f64) -> f64) -> f64 {
    let h = 1e-4;
    (8.0 * (f(h) - f(-h)) - (f(2.0 * h) - f(-2.0 * h))) / (12.0 * h)
}

fn assert_slopes(name: &str, found: f64, expected: f64) {
    assert!(expected.abs() > 1e-3, "{name}: the slope vanishes ({expected:e}), nothing was tested");
    let error = (found - expected).abs();
    assert!(
        error <= RELATIVE * expected.abs(),
        "{name}: slope by differences {expected:e}, by the gradient {found:e}, relative error {:.1e}",
        error / expected.abs()
    );
}

#[test]
fn model_every_slot() {
    for (name, config) in configs() {
        let case = Case::new(config);
        let gradients = case.gradients();
        for slot in case.adapter.pairs.keys() {
            for part in ["A", "B"] {
                let name = format!("{name}: layer {} {} {part}", slot.layer, slot.module.gguf_name());
                case.assert_slope(&name, &gradients, |s, p| s == slot && p == part);
            }
        }
    }
}

#[test]
fn model_every_kind_and_all_together() {
    for (name, config) in configs() {
        let case = Case::new(config);
        let gradients = case.gradients();
        for module in Module::ALL.iter().filter(|m| case.adapter.pairs.keys().any(|slot| slot.module == **m))
        {
            let name = format!("{name}: all {}", module.gguf_name());
            case.assert_slope(&name, &gradients, |slot, _| slot.module == *module);
        }
        case.assert_slope(&format!("{name}: everything"), &gradients, |_, _| true);
    }
}

#[test]
fn model_with_dropout() {
    for config in [like_e2b(), like_26b(), like_qwen35moe()] {
        let mut case = Case::new(config.clone());
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        for slot in case.adapter.pairs.keys() {
            let of_experts = config.layers[slot.layer].experts.filter(|_| slot.module.of_experts());
            let rows = case.batch.len() * of_experts.map_or(1, |experts| experts.used);
            let mask = (0..rows * slot.in_features).map(|_| if rng.random::<bool>() { 2.0 } else { 0.0 });
            case.adapter.masks.insert(*slot, mask.collect());
        }
        case.choose();
        let without = Case::new(config);
        assert_ne!(case.loss(&case.adapter), without.loss(&without.adapter), "the masks have no effect");
        let gradients = case.gradients();
        for module in Module::ALL.iter().filter(|m| case.adapter.pairs.keys().any(|slot| slot.module == **m))
        {
            let name = format!("dropout: all {}", module.gguf_name());
            case.assert_slope(&name, &gradients, |slot, _| slot.module == *module);
        }
    }
}

/// A donor whose own attention output is cut off still trains its keys and values, through the layers that share them.
#[test]
fn model_shared_keys_and_values() {
    let mut case = Case::new(like_e2b());
    for donor in [2, 3] {
        case.weights.layers[donor].attn_output.fill(0.0);
        case.adapter.pairs.retain(|slot, _| slot.layer != donor || slot.module != Module::AttnOutput);
    }
    let gradients = case.gradients();
    for donor in [2, 3] {
        for module in [Module::AttnK, Module::AttnV] {
            let name = format!("layer {donor} {}, seen by later layers only", module.gguf_name());
            case.assert_slope(&name, &gradients, |slot, _| slot.layer == donor && slot.module == module);
        }
    }
}

/// The gradient of the residual stream at the bottom. It equals the gradient of the embedding rows if these have no other path
/// to the loss (separate output matrix, no per-layer inputs).
#[test]
fn model_gradient_of_the_embeddings() {
    let mut case = Case::new(like_31b());
    case.weights.output = Some(values(21, case.config.vocab * case.config.width));
    let width = case.config.width;
    let direction = values(22, case.config.vocab * width);
    let scaled = embedding::forward(&case.batch.tokens, &direction, width, (width as f64).sqrt());
    let found = dot(&case.gradients().hidden[0], &scaled);
    let expected = slope(|step| {
        let mut weights = case.weights.clone();
        for (x, d) in weights.token_embd.iter_mut().zip(&direction) {
            *x += 0.1 * step * d;
        }
        let model = Model { weights: &weights, ..case.model(&case.adapter) };
        model.loss(&case.batch, &model.forward(&case.batch), case.factor)
    });
    assert_slopes("embeddings", 0.1 * found, expected);
}

/// Packed samples do not attend to each other: losses and gradients are the sums over the individual samples.
#[test]
fn model_packing_changes_nothing() {
    for (name, config) in configs() {
        let mut case = Case::new(config);
        let (loss, packed) = (case.loss(&case.adapter), case.gradients());
        let (mut loss_sum, mut sum) = (0.0, packed.pairs.clone());
        for pair in sum.values_mut() {
            pair.a.fill(0.0);
            pair.b.fill(0.0);
        }
        case.chosen.clear();
        for sample in samples(case.config.vocab) {
            case.batch = MicroBatch::pack([&sample]);
            loss_sum += case.loss(&case.adapter);
            for (slot, pair) in case.gradients().pairs {
                let total = sum.get_mut(&slot).expect("the same slots");
                total.a.iter_mut().zip(pair.a).for_each(|(sum, x)| *sum += x);
                total.b.iter_mut().zip(pair.b).for_each(|(sum, x)| *sum += x);
            }
        }
        assert!((loss - loss_sum).abs() <= 1e-12 * loss, "{name}: packed {loss}, one by one {loss_sum}");
        for (slot, pair) in &packed.pairs {
            for (found, expected) in [(&pair.a, &sum[slot].a), (&pair.b, &sum[slot].b)] {
                let error = norm(&added(found, expected)) / norm(expected);
                assert!(error <= 1e-12, "{name}: {}: packed and alone differ by {error:.1e}", slot.name());
            }
        }
    }
}

/// A micro-batch without loss tokens is valid and has zero gradients.
#[test]
fn model_without_loss_rows() {
    let mut case = Case::new(like_e2b());
    case.batch.loss_rows.clear();
    case.batch.targets.clear();
    assert_eq!(case.loss(&case.adapter), 0.0);
    for (slot, pair) in case.gradients().pairs {
        assert!(pair.a.iter().chain(&pair.b).all(|&g| g == 0.0), "{}", slot.name());
    }
}
