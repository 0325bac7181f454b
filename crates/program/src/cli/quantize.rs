//! `quantize`: a model with the matrices of its layers in another format.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use rullama_train::adapter::merge::{self, MergeType};
use rullama_train::base::Base;
use rullama_train::files;
use serde_json::json;

use super::merge::{formats, is_same_file, parse_type};
use super::{bus_error, interrupted, output};

/// Options of `quantize`.
#[derive(Args)]
pub struct QuantizeArgs {
    /// The model: "tiny", a name that `models` lists, hf:ORG/REPO:TYPE, or the path of a .gguf file.
    #[arg(value_name = "BASE", add = crate::cli::complete::base())]
    base: String,
    /// Format of the layers' matrices: f32, f16, bf16, q8_0, q6_k, q5_k, q5_1, q5_0, q4_k, q4_1, q4_0, iq4_nl, iq4_xs, mxfp4, q3_k or q2_k.
    /// Embedding and output projection stay as they are.
    #[arg(long = "type", value_name = "TYPE", value_parser = parse_type)]
    ty: MergeType,
    /// File to write.
    #[arg(long, value_name = "FILE.gguf")]
    out: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Writes the file.
pub fn run(args: &QuantizeArgs) -> Result<()> {
    args.json.then(output::keep);
    if !matches!(args.ty, MergeType::To(_)) {
        bail!("--type auto and keep are for merge; name a format such as q4_k or q2_k");
    }
    super::pull::base(&args.base)?;
    let base = Base::open(&args.base)?;
    bus_error::name(base.gguf().file());
    interrupted::clean_up()?;
    let out = &args.out;
    if is_same_file(out, base.gguf().file()) {
        bail!("--out is the model's own file {}; choose another name", out.display());
    }
    files::check_file(out)?;
    if out.exists() && !args.force {
        bail!("{} exists; choose another name with --out, or use --force to replace it", out.display());
    }
    let started = Instant::now();
    let bar = output::spinner("quantizing");
    let tensors = merge::quantize(out, &base, args.ty, |_| {})?;
    bar.finish_and_clear();
    let bytes = std::fs::metadata(out)?.len();
    output::line("matrices", format!("{}, {}", tensors.len(), formats(&tensors)));
    let sum = |of: fn(&merge::MergedTensor) -> f64| tensors.iter().map(of).sum::<f64>();
    let noise = 100.0 * (sum(|t| t.loss) / sum(|t| t.base).max(f64::MIN_POSITIVE)).sqrt();
    output::line("rounding", format!("adds noise of {noise:.2} % of the matrices"));
    let seconds = started.elapsed().as_secs_f64();
    output::line("written", format!("{}, {} in {seconds:.1} s", out.display(), output::bytes(bytes)));
    output::finish(
        json!({ "model": out, "bytes": bytes, "matrices": tensors.len(), "noise": noise / 100.0 }),
    );
    Ok(())
}
