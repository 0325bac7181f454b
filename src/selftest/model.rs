//! Two small models, made from a seed: loss, gradients and steps on the device against the f64 reference.

use std::collections::BTreeMap;

use crate::adapter::lora::{Adapter, Pair, Slot, slots};
use crate::base::gguf::value::{Array, Value};
use crate::base::gguf::writer::{self, Entry};
use crate::base::quantize::quantize;
use crate::base::{Base, GgmlType, Gguf, Module};
use crate::cases::inputs::{values, wide};
use crate::data::batch::{IGNORE, MicroBatch, Sample, Step};
use crate::gpu::{Gpu, Tier};
use crate::model::Model;
use crate::model::plan::Recompute;
use crate::ops::adamw::AdamW;
use crate::reference::{self, model as truth};
use crate::train::{Capacity, Dropout, Optimizer, Trainer};

/// Width: one block of a K-quant.
const WIDTH: usize = 256;
const FFN: usize = 96;
const HEADS: usize = 4;
/// Head sizes of layers with a window and without.
const HEAD_SIZES: [usize; 2] = [32, 64];
const WINDOW: usize = 9;
const VOCAB: usize = 131;
/// Width of the dense model's per-layer inputs.
const PER_LAYER: usize = 32;
/// Experts of the mixture, how many a token uses, and their width.
const EXPERTS: [usize; 3] = [8, 2, 32];
/// Tokens of the two samples.
const LENGTHS: [usize; 2] = [23, 14];
const RANK: usize = 3;
const RATE: f64 = 2e-3;
const ADAM: AdamW = AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };

/// Largest relative errors of loss, gradients, and losses after steps.
struct Tolerances {
    loss: f64,
    gradient: f64,
    steps: f64,
}

impl Tolerances {
    fn of(gpu: &Gpu) -> Tolerances {
        match gpu.kernels().tier() {
            Tier::F32 => Tolerances { loss: 2e-5, gradient: 2e-4, steps: 2e-4 },
            _ => Tolerances { loss: 5e-3, gradient: 5e-2, steps: 3e-2 },
        }
    }
}

/// The form of a small model.
#[derive(Clone, Copy)]
struct Form {
    layers: usize,
    mixture: bool,
    /// Whether matrices have all kinds of formats; f32 otherwise.
    formats: bool,
}

/// A small model with an adapter and two samples, on the host.
pub struct Golden {
    base: Base,
    weights: truth::Weights,
    adapter: Adapter,
    samples: Vec<Sample>,
}

impl Golden {
    /// Two layers of matrices in f32, for the short form: few kernels.
    pub fn small() -> Golden {
        Golden::new(Form { layers: 2, mixture: false, formats: false })
    }

    /// Layers with a window and without, keys and values shared by the last two, per-layer inputs; every kind of weight format.
    pub fn dense() -> Golden {
        Golden::new(Form { layers: 4, mixture: false, formats: true })
    }

    /// Experts beside every feed-forward block; keys as values in layers without a window.
    pub fn mixture() -> Golden {
        Golden::new(Form { layers: 2, mixture: true, formats: true })
    }

    fn new(form: Form) -> Golden {
        let gguf = Gguf::from_bytes(file(form), "self-test").expect("a sound file");
        let base = Base::from_gguf(gguf, "self-test").expect("a supported model");
        let config = base.config();
        let tensor = |name: &str| Some(wide(&base.matrix(name)?.dequantize()));
        let weights = truth::Weights::from_tensors(config, tensor).expect("a whole model");
        let mut adapter = Adapter::init(&slots(config, &Module::ALL), RANK, 6.0, false, 7);
        for (seed, pair) in (200..).zip(adapter.pairs.values_mut()) {
            pair.b = values(seed, pair.b.len()).iter().map(|x| 0.05 * x).collect();
        }
        let mut golden = Golden { weights, adapter, samples: Vec::new(), base };
        golden.samples = golden.widest();
        golden
    }

    /// Samples whose routers decide the most clearly, so that rounding cannot choose other experts.
    fn widest(&self) -> Vec<Sample> {
        let tries = if self.base.config().layers[0].experts.is_some() { 12 } else { 1 };
        let adapter = self.reference_adapter(&self.adapter.pairs);
        let margin = |samples: &Vec<Sample>| {
            let batch = MicroBatch::pack(samples);
            let acts = self.truth(&adapter).forward(&batch);
            let layers = acts.layers.iter().filter_map(|layer| layer.experts.as_ref());
            let margins = layers.flat_map(|experts| {
                experts.routing.probabilities.chunks(EXPERTS[0]).map(|probabilities| {
                    let mut sorted = probabilities.to_vec();
                    sorted.sort_by(|a, b| b.total_cmp(a));
                    sorted[EXPERTS[1] - 1] / sorted[EXPERTS[1]].max(1e-30)
                })
            });
            margins.fold(f64::INFINITY, f64::min)
        };
        let tried = (0..tries).map(samples);
        tried.max_by(|a, b| margin(a).total_cmp(&margin(b))).expect("at least one")
    }

    fn truth<'a>(&'a self, adapter: &'a truth::Adapter) -> truth::Model<'a> {
        truth::Model { config: self.base.config(), weights: &self.weights, adapter }
    }

    fn reference_adapter(&self, pairs: &BTreeMap<Slot, Pair>) -> truth::Adapter {
        let pair = |pair: &Pair| truth::Pair { a: wide(&pair.a), b: wide(&pair.b) };
        truth::Adapter {
            rank: RANK,
            scale: self.adapter.scale(),
            pairs: pairs.iter().map(|(slot, own)| (*slot, pair(own))).collect(),
            masks: BTreeMap::new(),
        }
    }

    /// Loss, every gradient, and the losses of `steps` AdamW steps.
    ///
    /// # Errors
    /// The difference in words, or the device's error.
    pub async fn check(&self, gpu: &Gpu, steps: u64) -> Result<(), String> {
        let words = |error: &dyn std::fmt::Display| error.to_string();
        let allowed = Tolerances::of(gpu);
        let step = Step::new(&self.samples, &[vec![0, 1]]);
        let mut capacity = Capacity::default();
        capacity.include(&step);
        let model = Model::load(gpu, &self.base, 64).map_err(|error| words(&error))?;
        let trainer = Trainer::new(gpu, &model, &self.adapter, capacity, Dropout::NONE, Recompute::Never);
        let trainer = trainer.map_err(|error| words(&error))?;

        let batch = MicroBatch::pack(&self.samples);
        let factor = 1.0 / step.loss_tokens as f64;
        let mut adapter = self.reference_adapter(&self.adapter.pairs);
        let acts = self.truth(&adapter).forward(&batch);
        let mut loss = self.truth(&adapter).loss(&batch, &acts, factor);
        let mut gradients = self.truth(&adapter).backward(&batch, &acts, factor).pairs;

        let optimizer = Optimizer { adam: Some(ADAM), weight_decay: 0.0, max_grad_norm: 0.0 };
        trainer.compile(&step.micro_batches, &optimizer).await.map_err(|error| words(&error))?;
        let (found, found_gradients) = trainer.gradients(&step, 1).await.map_err(|error| words(&error))?;
        near("loss", (found - loss).abs() / loss, allowed.loss)?;
        same_gradients(&found_gradients, &gradients, allowed.gradient)?;
        let mut moments = BTreeMap::new();
        for number in 1..=steps {
            let taken = trainer.step(&step, number, &optimizer, RATE).await;
            let found = taken.map_err(|error| words(&error))?.loss;
            near(&format!("loss before step {number}"), (found - loss).abs() / loss, allowed.steps)?;
            update(&mut adapter, &gradients, &mut moments, number);
            let acts = self.truth(&adapter).forward(&batch);
            loss = self.truth(&adapter).loss(&batch, &acts, factor);
            if number < steps {
                gradients = self.truth(&adapter).backward(&batch, &acts, factor).pairs;
            }
        }
        if steps > 0 {
            let (found, _) = trainer.gradients(&step, 1).await.map_err(|error| words(&error))?;
            near(&format!("loss after {steps} steps"), (found - loss).abs() / loss, allowed.steps)?;
        }
        Ok(())
    }
}

/// One step of AdamW in f64.
fn update(
    adapter: &mut truth::Adapter,
    gradients: &BTreeMap<Slot, truth::Pair>,
    moments: &mut BTreeMap<Slot, [Vec<f64>; 4]>,
    number: u64,
) {
    let AdamW { beta1, beta2, epsilon, weight_decay } = ADAM;
    for (slot, pair) in &mut adapter.pairs {
        let sizes = [pair.a.len(), pair.a.len(), pair.b.len(), pair.b.len()];
        let [ma, va, mb, vb] = moments.entry(*slot).or_insert_with(|| sizes.map(|len| vec![0.0; len]));
        let of = &gradients[slot];
        for (x, dx, m, v) in [(&mut pair.a, &of.a, ma, va), (&mut pair.b, &of.b, mb, vb)] {
            reference::adamw::adamw(x, dx, m, v, number, RATE, beta1, beta2, epsilon, weight_decay);
        }
    }
}

fn near(what: &str, error: f64, allowed: f64) -> Result<(), String> {
    // Written so that NaN fails.
    if error <= allowed {
        return Ok(());
    }
    Err(format!("{what} is off by {error:.1e} of its size, expected at most {allowed:.0e}"))
}

/// Compares by norm. A slot's gradient counts as at least a twentieth of the largest: small differences of large terms round more.
fn same_gradients(
    found: &BTreeMap<Slot, Pair>,
    expected: &BTreeMap<Slot, truth::Pair>,
    allowed: f64,
) -> Result<(), String> {
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let halves = |pair: &truth::Pair| [norm(&pair.a), norm(&pair.b)];
    let largest =
        expected.values().map(halves).fold([0f64; 2], |most, x| [most[0].max(x[0]), most[1].max(x[1])]);
    for (slot, expected) in expected {
        let found = found.get(slot).ok_or_else(|| format!("{} has no gradient", slot.name()))?;
        let halves = [("A", &found.a, &expected.a, largest[0]), ("B", &found.b, &expected.b, largest[1])];
        for (half, found, expected, largest) in halves {
            let difference: Vec<f64> = wide(found).iter().zip(expected).map(|(f, e)| f - e).collect();
            let error = norm(&difference) / norm(expected).max(largest / 20.0);
            near(&format!("the gradient of {half} of {}", slot.name()), error, allowed)?;
        }
    }
    Ok(())
}

/// Two samples of random tokens, the first with a prompt.
fn samples(seed: u64) -> Vec<Sample> {
    let sample = |(i, length): (usize, usize)| {
        let ids = values(900 + 10 * seed + i as u64, length);
        let ids: Vec<u32> =
            ids.iter().map(|x| ((x + 1.0) / 2.0 * VOCAB as f32) as u32 % VOCAB as u32).collect();
        let prompt = if i == 0 { 5 } else { 0 };
        let label = |(t, id): (usize, &u32)| if t < prompt { IGNORE } else { *id as i32 };
        let labels = ids.iter().enumerate().map(label).collect();
        Sample { ids, labels, origin: "self-test".into(), ..Sample::default() }
    };
    LENGTHS.into_iter().enumerate().map(sample).collect()
}

fn is_full(layer: usize) -> bool {
    layer % 2 == 1
}

/// A GGUF file of the family that everything is tested with.
fn file(Form { layers, mixture, formats }: Form) -> Vec<u8> {
    let mut tensors = Tensors { formats, ..Tensors::default() };
    tensors.matrix("token_embd", &[WIDTH, VOCAB], GgmlType::Q6_K);
    tensors.vector("output_norm", WIDTH, 5.0, true);
    tensors.frequencies(HEAD_SIZES[1] / 2);
    if !mixture {
        tensors.matrix("per_layer_token_embd", &[PER_LAYER * layers, VOCAB], GgmlType::BF16);
        tensors.matrix("per_layer_model_proj", &[WIDTH, PER_LAYER * layers], GgmlType::Q8_0);
        tensors.vector("per_layer_proj_norm", PER_LAYER, 1.0, false);
    }
    (0..layers).for_each(|layer| add_layer(&mut tensors, layer, mixture));
    let Tensors { entries, data, .. } = tensors;
    let mut bytes = Vec::new();
    let written =
        writer::write(&mut bytes, &metadata(layers, mixture), &entries, |i, out| out.write_all(&data[i]));
    written.expect("memory takes every write");
    bytes
}

fn metadata(layers: usize, mixture: bool) -> Vec<(String, Value)> {
    let per_layer = |of: &dyn Fn(usize) -> u32| Value::Array(Array::U32((0..layers).map(of).collect()));
    let [sliding, full] = HEAD_SIZES.map(|size| size as u32);
    let shared = if mixture { 0 } else { layers as u32 - 2 };
    let mut keys: Vec<(&str, Value)> = [
        ("block_count", layers as u32),
        ("embedding_length", WIDTH as u32),
        ("context_length", 64),
        ("attention.head_count", HEADS as u32),
        ("attention.sliding_window", WINDOW as u32),
        ("attention.shared_kv_layers", shared),
        ("embedding_length_per_layer_input", if mixture { 0 } else { PER_LAYER as u32 }),
        ("attention.key_length", full),
        ("attention.key_length_swa", sliding),
        ("attention.value_length", full),
        ("attention.value_length_swa", sliding),
        ("rope.dimension_count", full),
        ("rope.dimension_count_swa", sliding),
    ]
    .map(|(key, value)| (key, Value::U32(value)))
    .into();
    keys.extend([
        ("attention.layer_norm_rms_epsilon", Value::F32(1e-6)),
        ("rope.freq_base", Value::F32(1e6)),
        ("rope.freq_base_swa", Value::F32(1e4)),
        ("final_logit_softcapping", Value::F32(30.0)),
        ("feed_forward_length", per_layer(&|_| FFN as u32)),
        ("attention.head_count_kv", per_layer(&|layer| kv_heads(layer) as u32)),
        (
            "attention.sliding_window_pattern",
            Value::Array(Array::Bool((0..layers).map(|layer| !is_full(layer)).collect())),
        ),
    ]);
    if mixture {
        let names = ["expert_count", "expert_used_count", "expert_feed_forward_length"];
        keys.extend(names.into_iter().zip(EXPERTS.map(|size| Value::U32(size as u32))));
    }
    let architecture = ("general.architecture".to_string(), Value::String("gemma4".into()));
    let keys = keys.into_iter().map(|(key, value)| (format!("gemma4.{key}"), value));
    std::iter::once(architecture).chain(keys).collect()
}

fn kv_heads(layer: usize) -> usize {
    if is_full(layer) { 1 } else { 2 }
}

fn add_layer(tensors: &mut Tensors, layer: usize, mixture: bool) {
    let full = is_full(layer);
    let size = HEAD_SIZES[usize::from(full)];
    let (queries, keys) = (HEADS * size, kv_heads(layer) * size);
    let name = |last: &str| format!("blk.{layer}.{last}");
    tensors.matrix(&name("attn_q"), &[WIDTH, queries], GgmlType::Q4_K);
    tensors.matrix(&name("attn_k"), &[WIDTH, keys], GgmlType::Q8_0);
    if !(mixture && full) {
        tensors.matrix(&name("attn_v"), &[WIDTH, keys], GgmlType::Q6_K);
    }
    tensors.matrix(&name("attn_output"), &[queries, WIDTH], GgmlType::Q5_0);
    tensors.matrix(&name("ffn_gate"), &[WIDTH, FFN], GgmlType::Q5_K);
    tensors.matrix(&name("ffn_up"), &[WIDTH, FFN], GgmlType::F16);
    tensors.matrix(&name("ffn_down"), &[FFN, WIDTH], GgmlType::Q4_1);
    for (norm, size, mean) in [
        ("attn_norm", WIDTH, 1.0),
        ("post_attention_norm", WIDTH, 0.35),
        ("ffn_norm", WIDTH, 1.0),
        ("post_ffw_norm", WIDTH, 0.35),
        ("attn_q_norm", size, 0.9),
        ("attn_k_norm", size, 1.7 / (size as f32).sqrt()),
        ("layer_output_scale", 1, 0.8),
    ] {
        tensors.vector(&name(norm), size, mean, false);
    }
    if !mixture {
        tensors.matrix(&name("inp_gate"), &[WIDTH, PER_LAYER], GgmlType::Q4_0);
        tensors.matrix(&name("proj"), &[PER_LAYER, WIDTH], GgmlType::F32);
        tensors.vector(&name("post_norm"), WIDTH, 0.35, false);
        return;
    }
    let [count, _, width] = EXPERTS;
    tensors.matrix(&name("ffn_gate_inp"), &[WIDTH, count], GgmlType::F32);
    tensors.matrix(&name("ffn_gate_up_exps"), &[WIDTH, 2 * width, count], GgmlType::Q4_K);
    tensors.matrix(&name("ffn_down_exps"), &[width, WIDTH, count], GgmlType::Q5_0);
    for norm in ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"] {
        tensors.vector(&name(norm), WIDTH, 1.0, false);
    }
    tensors.vector(&name("ffn_gate_inp.scale"), WIDTH, 2.5 * (WIDTH as f32).sqrt(), false);
    tensors.vector(&name("ffn_down_exps.scale"), count, 1.0, false);
}

/// Tensors of a file with their bytes; the number of a tensor is the seed of its values.
#[derive(Default)]
struct Tensors {
    formats: bool,
    entries: Vec<Entry>,
    data: Vec<Vec<u8>>,
}

impl Tensors {
    /// Uniform values that keep the size of what they multiply. `shape` is columns first.
    fn matrix(&mut self, name: &str, shape: &[usize], ty: GgmlType) {
        let size = (3.0 / shape[0] as f32).sqrt();
        let ty = if self.formats { ty } else { GgmlType::F32 };
        let values = values(self.data.len() as u64, shape.iter().product());
        self.add(name, shape, ty, &values.iter().map(|x| size * x).collect::<Vec<_>>());
    }

    /// Values within a fifth of `mean`, of either sign where `signs`.
    fn vector(&mut self, name: &str, len: usize, mean: f32, signs: bool) {
        let sign = |i: usize| if signs && i.is_multiple_of(3) { -1.0 } else { 1.0 };
        let values = values(self.data.len() as u64, len);
        let values: Vec<f32> =
            values.iter().enumerate().map(|(i, x)| sign(i) * mean * (1.0 + 0.2 * x)).collect();
        self.add(name, &[len], GgmlType::F32, &values);
    }

    /// Divisors of rotary frequencies: the last three quarters are not rotated.
    fn frequencies(&mut self, len: usize) {
        let values: Vec<f32> = (0..len).map(|i| if i < len / 4 { 1.0 } else { 1e30 }).collect();
        self.add("rope_freqs", &[len], GgmlType::F32, &values);
    }

    fn add(&mut self, name: &str, shape: &[usize], ty: GgmlType, values: &[f32]) {
        let name = if name.ends_with(".scale") { name.into() } else { format!("{name}.weight") };
        self.entries.push(Entry { name, shape: shape.into(), ty });
        self.data.push(quantize(ty, values).expect("finite values"));
    }
}
