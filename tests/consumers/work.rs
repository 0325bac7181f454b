//! Writes one model's adapters in every format, with our results.

use std::path::{Path, PathBuf};
use std::process::Command;

use pollster::block_on;
use rullama_train::adapter::lora::{Adapter, slots};
use rullama_train::adapter::merge::{self, MergeType};
use rullama_train::adapter::{self, AdapterPath, Format, OtherBase, WriteOptions};
use rullama_train::base::formats::dequantize;
use rullama_train::base::gguf::value::Value;
use rullama_train::base::gguf::writer::{self, Entry};
use rullama_train::base::{Base, GgmlType, Gguf, Module};
use rullama_train::data::batch::{IGNORE, MicroBatch, Sample};
use rullama_train::data::template::{Conversation, Message, Role, Template, TrainOn, render_prompt};
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::families;
use rullama_train::gpu::Gpu;
use rullama_train::model::Model;
use rullama_train::model::plan::{Offload, Recompute};
use rullama_train::talk::sampling::likeliest;
use rullama_train::train::{Capacity, Dropout, Trainer};
use rullama_train::verify::{self, HeldOut};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value as Json, json};

const OPTIONS: WriteOptions =
    WriteOptions { base_model: "tiny", dropout: 0.0, fingerprint: None, vocabulary: None };
/// Maximum number of tokens per reply.
const REPLY: usize = 24;

/// A model, and the folder for its exports.
pub struct Work {
    pub gpu: Gpu,
    pub base: Base,
    pub folder: PathBuf,
    /// Maximum difference of llama.cpp on the quantized file.
    pub quantized: f64,
}

impl Work {
    pub fn write(&self, name: &str, value: &Json) {
        std::fs::write(self.folder.join(name), value.to_string()).expect("written");
    }

    /// Lets the scripts compare no replies.
    pub fn without_replies(&self, case: &str) {
        self.write("replies.json", &json!({ "case": case, "most": 0, "stop": [], "replies": [] }));
    }

    /// The adapter that PEFT wrote for a golden model, with a copy in `adapter/`.
    pub fn golden_adapter(&self, golden: &Path) -> Adapter {
        let (from, to) = (golden.join("adapter"), self.folder.join("adapter"));
        std::fs::create_dir_all(&to).expect("created");
        for name in ["adapter_config.json", "adapter_model.safetensors"] {
            std::fs::copy(from.join(name), to.join(name)).expect("copied");
        }
        adapter::read_any(&to, self.base.config(), None).expect("PEFT's own")
    }

    /// Writes the base with dequantized weights in F32, and opens it.
    pub fn in_f32(&self) -> Base {
        let gguf = self.base.gguf();
        let entry = |t: &rullama_train::base::TensorInfo| Entry {
            name: t.name.clone(),
            shape: t.shape.clone(),
            ty: GgmlType::F32,
        };
        let entries: Vec<Entry> = gguf.tensors().iter().map(entry).collect();
        let mut metadata = gguf.metadata().to_vec();
        metadata
            .iter_mut()
            .filter(|(key, _)| key == "general.file_type")
            .for_each(|(_, v)| *v = Value::U32(0));
        let mut bytes = Vec::new();
        writer::write(&mut bytes, &metadata, &entries, |i, out| {
            let tensor = &gguf.tensors()[i];
            out.write_all(bytemuck::cast_slice(&dequantize(tensor.ty, gguf.data(tensor))))
        })
        .expect("written");
        let path = self.folder.join("base-f32.gguf");
        std::fs::write(&path, bytes).expect("written");
        Base::from_gguf(Gguf::open(&path).expect("sound"), "tiny in F32").expect("a model")
    }

    /// Trains with recipes/chat.toml and loads the adapter.
    pub fn trained(&self) -> Adapter {
        let run = self.folder.join("run");
        let output = format!("output.dir={}", run.display());
        let program = Command::new(env!("CARGO_BIN_EXE_rullama-train"))
            .args(["recipes/chat.toml", "--set", &output, "--set", "eval.samples=[]"])
            .status();
        assert!(program.expect("the program starts").success(), "training failed");
        let found = adapter::load(&[AdapterPath::whole(run)], &self.base, None, OtherBase::Refuse);
        found.unwrap_or_else(|e| panic!("{e}")).adapter
    }

    /// An adapter in which every matrix has an effect.
    pub fn random(&self, modules: &[Module], rank: usize, alpha: f64, seed: u64) -> Adapter {
        let mut adapter = Adapter::init(&slots(self.base.config(), modules), rank, alpha, false, seed);
        let values = adapter.pairs.values_mut().flat_map(|pair| &mut pair.b).enumerate();
        values.for_each(|(i, b)| *b = 0.3 * ((i * i) as f32 * 0.7).sin());
        adapter
    }

    /// Writes a PEFT folder with rank and alpha patterns, and loads it.
    pub fn patterns(&self) -> (Adapter, Json) {
        let folder = self.folder.join("patterns");
        let whole = self.random(&[Module::AttnQ, Module::FfnDown, Module::InpGate], 4, 8.0, 3);
        adapter::write(&folder, Format::Peft, &whole, self.base.config(), &OPTIONS).expect("written");
        let edit = |name: &str, change: &dyn Fn(Vec<u8>) -> Vec<u8>| {
            let path = folder.join(name);
            std::fs::write(&path, change(std::fs::read(&path).expect("there"))).expect("written");
        };
        edit("adapter_config.json", &|bytes| {
            let mut config: Json = serde_json::from_slice(&bytes).expect("JSON");
            config["rank_pattern"] = json!({r"layers\.[13]\.mlp\.down_proj": 2});
            config["alpha_pattern"] = json!({"per_layer_input_gate": 3, "layers.0.self_attn.q_proj": 20});
            config.to_string().into_bytes()
        });
        // Rank 2: the first two rows of A and columns of B.
        edit("adapter_model.safetensors", &|bytes| {
            let file = safetensors::SafeTensors::deserialize(&bytes).expect("sound");
            let cut = |(name, view): (&str, TensorView)| {
                let (shape, data) = (view.shape().to_vec(), view.data());
                let small =
                    name.contains("down_proj") && (name.contains("layers.1.") || name.contains("layers.3."));
                match (small, shape[0] == 4) {
                    (false, _) => (name.to_string(), shape, data.to_vec()),
                    (true, true) => (name.to_string(), vec![2, shape[1]], data[..data.len() / 2].to_vec()),
                    (true, false) => {
                        let rows = data.chunks_exact(16).flat_map(|row| &row[..8]).copied();
                        (name.to_string(), vec![shape[0], 2], rows.collect())
                    }
                }
            };
            let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = file.iter().map(cut).collect();
            let views = tensors.iter().map(|(name, shape, data)| {
                (name, TensorView::new(Dtype::F32, shape.clone(), data).expect("cut right"))
            });
            safetensors::serialize(views, Some([("format".into(), "pt".into())].into())).expect("sound")
        });
        let found = adapter::load(&[AdapterPath::whole(&folder)], &self.base, None, OtherBase::Refuse);
        (found.unwrap_or_else(|e| panic!("{e}")).adapter, json!("patterns"))
    }

    /// Writes every export of an adapter, and our logits: `tokens` [T], `base` and `adapted` [T - 1, V].
    pub fn case(
        &self,
        in_f32: &Base,
        name: &str,
        adapter: &Adapter,
        ids: &[u32],
        original: Json,
        parts: Json,
    ) -> Json {
        let dir = self.folder.join("cases").join(name);
        let formats = Format::ALL.into_iter().filter(|format| *format != Format::RullamaV0);
        for format in formats {
            adapter::write(&dir, format, adapter, self.base.config(), &OPTIONS)
                .unwrap_or_else(|e| panic!("{e}"));
        }
        let merge = |base: &Base, file: &str, ty: &str| {
            let ty = MergeType::from_name(ty).expect("a type");
            merge::write(&dir.join(file), base, adapter, ty, |_| {}).unwrap_or_else(|e| panic!("{e}"))
        };
        merge(in_f32, "merged.gguf", "f32");
        merge(&self.base, "merged-q8_0.gguf", "q8_0");

        let labels = ids.iter().map(|&id| id as i32).collect();
        let sample =
            Sample { ids: ids.to_vec(), labels, origin: "a conversation".into(), ..Sample::default() };
        let vocab = self.base.config().vocab;
        let held_out = HeldOut::of_samples(&[sample], vocab).expect("every token has loss");
        let found = block_on(verify::logits(
            &self.gpu,
            &self.base,
            &[None, Some(adapter)],
            &held_out,
            Offload::NEVER,
        ));
        let [base, adapted] = &found.expect("it runs")[..] else { panic!("two were asked for") };
        let tokens: Vec<i64> = ids.iter().map(|&id| i64::from(id)).collect();
        let rows = |values: &'_ [f32]| vec![values.len() / vocab, vocab];
        let view = |ty, shape, bytes| TensorView::new(ty, shape, bytes).expect("sizes that fit");
        let tensors = [
            ("tokens", view(Dtype::I64, vec![tokens.len()], bytemuck::cast_slice(&tokens))),
            ("base", view(Dtype::F32, rows(base.values()), bytemuck::cast_slice(base.values()))),
            ("adapted", view(Dtype::F32, rows(adapted.values()), bytemuck::cast_slice(adapted.values()))),
        ];
        let bytes = safetensors::serialize(tensors, None).expect("sound");
        std::fs::write(dir.join("ours.safetensors"), bytes).expect("written");
        let applied = Format::GgufLora.unapplied(self.base.config(), adapter.pairs.keys()).is_none();
        json!({ "name": name, "original": original, "parts": parts, "quantized": self.quantized, "applied": applied })
    }

    /// A few turns in the model's chat template, longer than the window of its sliding-window layers.
    pub fn conversation(&self) -> Vec<u32> {
        let messages = [
            (Role::User, "What is the capital of Peru?"),
            (Role::Assistant, "The capital of Peru is Lima. Aye, matey!"),
            (Role::User, "Tell me a tiny story about a dog and a boat."),
            (
                Role::Assistant,
                "Once there was a dog who found a boat. It sailed away and came home for supper. Arrr!",
            ),
        ];
        let messages = messages.map(|(role, text)| Message::new(role, text)).to_vec();
        let tokenizer = Tokenizer::from_gguf(self.base.gguf()).expect("it has one");
        let template = Template::BuiltIn(families::template(self.base.config()));
        let rendered = template.render(&tokenizer, &Conversation::new(messages), TrainOn::All);
        let ids = rendered.expect("sound").ids;
        assert!(ids.len() > 80, "{} tokens", ids.len());
        ids
    }

    /// Greedy replies to the first twenty questions of datasets/pirate.jsonl.
    pub fn replies(&self, case: &str, adapter: &Adapter) -> Json {
        let tokenizer = Tokenizer::from_gguf(self.base.gguf()).expect("it has one");
        let text = std::fs::read_to_string("datasets/pirate.jsonl").expect("part of the repository");
        let question = |line: &str| {
            let sample: Json = serde_json::from_str(line).expect("JSON");
            let question = sample["messages"][0]["content"].as_str().expect("a question");
            let messages = [Message::new(Role::User, question)];
            render_prompt(&tokenizer, families::template(self.base.config()), &messages).expect("sound")
        };
        let prompts: Vec<Vec<u32>> = text.lines().take(20).map(question).collect();
        let longest = prompts.iter().map(Vec::len).max().expect("twenty") + REPLY;
        let stop: Vec<u32> = tokenizer.eos().iter().copied().chain([tokenizer.turn_end()]).collect();
        let model = Model::load(&self.gpu, &self.base, longest).expect("it fits");
        let capacity = Capacity { tokens: longest, longest, ..Capacity::LEAST };
        let trainer = Trainer::new(&self.gpu, &model, adapter, capacity, Dropout::NONE, Recompute::Always)
            .expect("it fits");
        let reply = |prompt: &Vec<u32>| {
            let mut ids = prompt.clone();
            while ids.len() < prompt.len() + REPLY {
                let sample = Sample {
                    labels: vec![IGNORE; ids.len()],
                    ids,
                    origin: String::new(),
                    ..Sample::default()
                };
                let (batch, last) = (MicroBatch::pack([&sample]), [sample.ids.len() as u32 - 1]);
                let logits = block_on(trainer.logits(&batch, &last)).expect("it runs");
                ids = sample.ids;
                let next = likeliest(&logits) as u32;
                if stop.contains(&next) {
                    break;
                }
                ids.push(next);
            }
            json!({ "prompt": prompt, "reply": ids[prompt.len()..] })
        };
        let replies: Vec<Json> = prompts.iter().map(reply).collect();
        json!({ "case": case, "most": REPLY, "stop": stop, "replies": replies })
    }
}
