//! Other programs load the exports, and their results agree with ours.
//!
//! Ignored unless `RULLAMA_CONSUMERS` names a virtual environment with these programs. `tests/consumers/run` creates one and runs
//! the tests.

#[path = "../common/gpu.rs"]
mod gpu;
#[path = "../common/tool_base.rs"]
mod tool_base;

use rullama_train::families;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Failed, Trial};
use pollster::block_on;
use rullama_train::adapter::lora::{Adapter, slots};
use rullama_train::adapter::merge::{self, MergeType};
use rullama_train::adapter::{self, AdapterPath, Format, OtherBase, WriteOptions};
use rullama_train::base::Module;
use rullama_train::base::formats::dequantize;
use rullama_train::base::gguf::value::Value;
use rullama_train::base::gguf::writer::{self, Entry};
use rullama_train::base::{Base, GgmlType, Gguf};
use rullama_train::data::batch::{IGNORE, MicroBatch, Sample};
use rullama_train::data::template::{Conversation, Message, Role, Template, TrainOn, render_prompt};
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::gpu::{Backend, Gpu, KernelSetting};
use rullama_train::model::Model;
use rullama_train::model::plan::{Offload, Recompute};
use rullama_train::talk::sampling::likeliest;
use rullama_train::train::{Capacity, Dropout, Trainer};
use rullama_train::verify::{self, HeldOut};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value as Json, json};

const OPTIONS: WriteOptions = WriteOptions { base_model: "tiny", dropout: 0.0, fingerprint: None };
/// Maximum difference of llama.cpp on the quantized file, where it rounds activations.
const QUANTIZED: f64 = 5e-2;
/// Maximum number of tokens per reply.
const REPLY: usize = 24;

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    gpu::quiet_mesa();
    let venv = std::env::var_os("RULLAMA_CONSUMERS").map(PathBuf::from);
    if venv.is_none() {
        eprintln!(
            "ignored: RULLAMA_CONSUMERS is not set; tests/consumers/run installs the programs and runs this"
        );
    }
    type Check = fn(&Path) -> Result<(), Failed>;
    let trial = |(name, check): (&str, Check)| {
        let venv = venv.clone();
        let test = move || check(&venv.expect("ignored without it"));
        Trial::test(name, test).with_ignored_flag(std::env::var_os("RULLAMA_CONSUMERS").is_none())
    };
    let trials: [(&str, Check); 3] = [
        ("llama.cpp agrees", |venv| {
            check(venv, "check_llama_cpp.py")?;
            // Our speed, to compare with llama.cpp's. It is not checked, as it depends on the machine.
            let bench = ["bench", "tiny", "--decode", "64", "--sequence", "64"];
            Command::new(env!("CARGO_BIN_EXE_rullama-train")).args(bench).status()?;
            Ok(())
        }),
        ("PEFT agrees", |venv| check(venv, "check_peft.py")),
        ("OpenAI's client works with serve", openai_client),
    ];
    libtest_mimic::run(&arguments, trials.map(trial).into()).exit()
}

/// Runs a script on all exports. It prints its results on the terminal.
fn check(venv: &Path, script: &str) -> Result<(), Failed> {
    static FOLDERS: [OnceLock<PathBuf>; 2] = [const { OnceLock::new() }; 2];
    let [tiny, mixture] = &FOLDERS;
    python(venv, script, &[tiny.get_or_init(prepare)])?;
    python(venv, script, &[mixture.get_or_init(prepare_mixture)])
}

/// Runs OpenAI's client against `serve`, with an adapter that calls functions.
fn openai_client(venv: &Path) -> Result<(), Failed> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("openai_client");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)?;
    tool_base::write(&folder);
    let program = Path::new(env!("CARGO_BIN_EXE_rullama-train"));
    let trained = Command::new(program).arg("looks.toml").arg("--quiet").current_dir(&folder).status()?;
    assert!(trained.success(), "training failed");
    python(venv, "check_openai.py", &[program, &folder])
}

fn python(venv: &Path, script: &str, arguments: &[&Path]) -> Result<(), Failed> {
    let python = ["bin/python", "Scripts/python.exe"].map(|p| venv.join(p)).into_iter().find(|p| p.exists());
    let python = python.ok_or_else(|| format!("{} has no python", venv.display()))?;
    let script = Path::new("tests/consumers").join(script);
    let status =
        Command::new(python).arg("-u").arg(&script).args(arguments).env("HF_HUB_OFFLINE", "1").status()?;
    if status.success() { Ok(()) } else { Err(format!("{} gave {status}", script.display()).into()) }
}

/// Writes the files for the scripts to a folder in the build folder.
fn prepare() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("consumers");
    let _ = std::fs::remove_dir_all(&folder);
    let gpu = block_on(Gpu::open(Backend::Auto, None, false)).expect("a device");
    let gpu = gpu.running(KernelSetting::F32).expect("every device supports f32");
    let work = Work { gpu, base: Base::tiny().expect("part of the program"), folder, quantized: QUANTIZED };
    std::fs::create_dir_all(&work.folder).expect("created");
    std::fs::copy("models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf", work.folder.join("base.gguf"))
        .expect("copied");
    let in_f32 = work.in_f32();

    let trained = work.trained();
    let rslora = Adapter { rslora: true, ..work.random(&Module::ALL, 5, 6.0, 1) };
    let qv = work.random(&[Module::AttnQ, Module::AttnV, Module::Proj], 3, 4.0, 2);
    let sum = Adapter::combine(&[(&trained, 0.7), (&qv, 0.3)]).expect("one model's");
    let (patterns, original) = work.patterns();
    let ids = work.conversation();
    let cases = [
        work.case(&in_f32, "trained", &trained, &ids, json!(null), json!([])),
        work.case(&in_f32, "rslora", &rslora, &ids, json!(null), json!([])),
        work.case(&in_f32, "some-modules", &qv, &ids, json!(null), json!([])),
        work.case(&in_f32, "patterns", &patterns, &ids, original, json!([])),
        work.case(&in_f32, "sum", &sum, &ids, json!(null), json!([["trained", 0.7], ["some-modules", 0.3]])),
    ];
    work.write("cases.json", &json!(cases));
    work.write("replies.json", &work.replies("trained", &trained));
    work.folder
}

/// Like [`prepare`], for a mixture of experts with adapters of the experts' matrices.
fn prepare_mixture() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("consumers-mixture");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("created");
    let gpu = block_on(Gpu::open(Backend::Auto, None, false)).expect("a device");
    let gpu = gpu.running(KernelSetting::F32).expect("every device supports f32");
    let golden = Path::new("tests/golden/moe");
    std::fs::copy(golden.join("model.gguf"), folder.join("base.gguf")).expect("copied");
    let base =
        Base::from_gguf(Gguf::open(&folder.join("base.gguf")).expect("sound"), "moe").expect("a model");
    // llama.cpp rounds activations, so that its router sometimes chooses another expert.
    let work = Work { gpu, base, folder, quantized: 0.5 };
    let in_f32 = work.in_f32();
    let every = adapter::read_any(&golden.join("adapter"), work.base.config(), None).expect("PEFT's own");
    let alone = work.random(&[Module::FfnGateUpExps, Module::FfnDownExps], 2, 3.0, 4);
    let gate_up = Adapter { rslora: true, ..work.random(&[Module::FfnGateUpExps], 5, 2.0, 5) };
    let down = work.random(&[Module::FfnDownExps, Module::AttnQ], 1, 1.0, 6);
    let ids: Vec<u32> = (0..90).map(|i| 267 + i * i * 7 % 245).collect();
    let cases = [
        work.case(&in_f32, "every-matrix", &every, &ids, json!(null), json!([])),
        work.case(&in_f32, "experts-alone", &alone, &ids, json!(null), json!([])),
        work.case(&in_f32, "gate-and-up", &gate_up, &ids, json!(null), json!([])),
        work.case(&in_f32, "down", &down, &ids, json!(null), json!([])),
    ];
    work.write("cases.json", &json!(cases));
    work.write("replies.json", &json!({ "case": "every-matrix", "most": 0, "stop": [], "replies": [] }));
    work.folder
}

struct Work {
    gpu: Gpu,
    base: Base,
    folder: PathBuf,
    /// Maximum difference of llama.cpp on the quantized file.
    quantized: f64,
}

impl Work {
    fn write(&self, name: &str, value: &Json) {
        std::fs::write(self.folder.join(name), value.to_string()).expect("written");
    }

    /// Writes the base with dequantized weights in F32, and opens it.
    fn in_f32(&self) -> Base {
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
    fn trained(&self) -> Adapter {
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
    fn random(&self, modules: &[Module], rank: usize, alpha: f64, seed: u64) -> Adapter {
        let mut adapter = Adapter::init(&slots(self.base.config(), modules), rank, alpha, false, seed);
        let values = adapter.pairs.values_mut().flat_map(|pair| &mut pair.b).enumerate();
        values.for_each(|(i, b)| *b = 0.3 * ((i * i) as f32 * 0.7).sin());
        adapter
    }

    /// Writes a PEFT folder with rank and alpha patterns, and loads it.
    fn patterns(&self) -> (Adapter, Json) {
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
    fn case(
        &self,
        in_f32: &Base,
        name: &str,
        adapter: &Adapter,
        ids: &[u32],
        original: Json,
        parts: Json,
    ) -> Json {
        let dir = self.folder.join("cases").join(name);
        for format in [Format::Peft, Format::PeftConditionalGeneration, Format::GgufLora, Format::GgufLoraF16]
        {
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
        let sample = Sample { ids: ids.to_vec(), labels, origin: "a conversation".into() };
        let vocab = self.base.config().vocab;
        let held_out = HeldOut::of_samples(&[sample], vocab).expect("every token has loss");
        let found = block_on(verify::logits(
            &self.gpu,
            &self.base,
            &[None, Some(adapter)],
            &held_out,
            Offload::Never,
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
        json!({ "name": name, "original": original, "parts": parts, "quantized": self.quantized })
    }

    /// A few turns in the model's chat template, longer than the window of its sliding-window layers.
    fn conversation(&self) -> Vec<u32> {
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
    fn replies(&self, case: &str, adapter: &Adapter) -> Json {
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
        let capacity = Capacity { tokens: longest, longest, loss_tokens: 1, step_loss_tokens: 1 };
        let trainer = Trainer::new(&self.gpu, &model, adapter, capacity, Dropout::NONE, Recompute::Always)
            .expect("it fits");
        let reply = |prompt: &Vec<u32>| {
            let mut ids = prompt.clone();
            while ids.len() < prompt.len() + REPLY {
                let sample = Sample { labels: vec![IGNORE; ids.len()], ids, origin: String::new() };
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
