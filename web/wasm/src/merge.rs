//! Merges an adapter into its base, in memory: a GGUF file and a Modelfile for Ollama.

use std::path::Path;

use rullama_train::adapter::lora::Adapter;
use rullama_train::adapter::merge::{self, MergeType};
use rullama_train::base::{Base, Gguf};
use rullama_train::data::template::InOllama;
use rullama_train::families;
use rullama_train::files;
use rullama_train::model::plan::Offload;
use rullama_train::run::OpenBase;
use rullama_train::verify::{self, HeldOut};
use rullama_train::words;

use crate::engine::Stage;
use crate::types::Problem;

/// Name of the format.
pub const FORMAT: &str = "gguf-merged";
/// Largest base that is merged in memory: base, result and weights on the GPU exist at the same time.
const MOST_BYTES: u64 = 512 << 20;

/// Writes `merged.gguf` and `Modelfile` into the folder `out`, and compares the merged model with base and adapter.
pub async fn merge(
    stage: &Stage<'_>,
    adapter: &Adapter,
    held_out: &HeldOut,
    out: &Path,
) -> Result<(), Problem> {
    let base = &stage.frozen.base;
    let size = base.gguf().file_size();
    if size > MOST_BYTES {
        return Err(Problem::new(format!(
            "{} has {}, but a browser merges bases of up to {}; download the PEFT folder and run `rullama-train merge adapter \
             --base {} --out merged.gguf`",
            base.name(),
            words::bytes(size),
            words::bytes(MOST_BYTES),
            base.name()
        )));
    }
    let bytes = base.gguf().read(std::slice::from_ref(&(0..size))).await.map_err(Problem::new)?.concat();
    let open =
        |bytes| Gguf::from_bytes(bytes, base.name()).and_then(|gguf| Base::from_gguf(gguf, base.name()));
    let whole = open(bytes).map_err(Problem::new)?;
    let path = out.join("merged.gguf");
    let ty = MergeType::Auto;
    merge::write(&path, &whole, adapter, ty, |_| {})?;
    let merged = open(files::read(&path).map_err(Problem::new)?).map_err(Problem::new)?;
    let check = verify::compare_merged(stage.gpu, &whole, adapter, &merged, held_out, Offload::NEVER).await?;
    check.check(ty)?;
    files::write_atomic(&out.join("Modelfile"), modelfile(&whole, stage.frozen).as_bytes())
        .map_err(Problem::new)
}

/// The Modelfile: the chat format, stops and sampling of the family.
fn modelfile(base: &Base, frozen: &OpenBase) -> String {
    let template = match families::template(base.config()).in_ollama {
        InOllama::Code(name) => format!("TEMPLATE {{{{ .Prompt }}}}\nRENDERER {name}\nPARSER {name}"),
        InOllama::Template(template) => format!("TEMPLATE \"\"\"{}\"\"\"", template()),
    };
    let mut lines = vec!["FROM ./merged.gguf".to_string(), template];
    lines.extend(
        families::stops(&frozen.template, &frozen.tokenizer)
            .iter()
            .map(|stop| format!("PARAMETER stop {stop:?}")),
    );
    if let Some(sampling) = families::recommended_sampling(base) {
        lines.push(format!("PARAMETER temperature {}", sampling.temperature));
        lines.push(format!("PARAMETER top_k {}", sampling.top_k));
        lines.push(format!("PARAMETER top_p {}", sampling.top_p));
    }
    lines.join("\n") + "\n"
}
