//! `merge`: an adapter and its base in one GGUF file.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use pollster::block_on;
use rullama_train::adapter::merge::{self, MergeType, MergedTensor};
use rullama_train::adapter::{AdapterPath, Loaded, load};
use rullama_train::base::{Base, GgmlType, Gguf};
use rullama_train::files;
use rullama_train::verify;

use super::output;
use super::setup::comparison::{Comparison, ComparisonArgs};

/// Options of `merge`.
#[derive(Args)]
pub struct MergeArgs {
    /// Adapters: PEFT or mlx-lm folders, GGUF LoRA or rullama-lora-v0 files. Several are added up, as in A=0.7 B=0.3.
    #[arg(required = true, value_name = "PATH[=WEIGHT]")]
    adapters: Vec<AdapterPath>,
    /// Base model that the adapter was trained on: "tiny", an Ollama tag, or the path of a .gguf file.
    #[arg(long)]
    base: String,
    /// File to write. A Modelfile for Ollama is written next to it.
    #[arg(long, value_name = "FILE.gguf")]
    out: PathBuf,
    /// Format of the merged matrices: auto (Q8_0 if the base is quantized), keep, f32, f16, bf16, q8_0, q6_k, q5_k or q4_k.
    #[arg(long = "type", value_name = "TYPE", default_value = "auto", value_parser = parse_type)]
    ty: MergeType,
    /// Accept adapters that were trained on a different base model.
    #[arg(long)]
    allow_other_base: bool,
    #[command(flatten)]
    held_out: ComparisonArgs,
}

fn parse_type(name: &str) -> Result<MergeType, String> {
    MergeType::from_name(name).ok_or_else(|| {
        let names = MergeType::NAMES.map(|(name, _)| name).join(", ");
        format!("expected one of {names}")
    })
}

/// Merges into a temporary file, compares the result, and then moves the file to its place.
pub fn run(args: &MergeArgs) -> Result<()> {
    let base = Base::open(&args.base)?;
    let Loaded { adapter, notices, .. } = load(&args.adapters, &base, None, args.allow_other_base.into())?;
    let name = args.out.file_name().context("--out is not a file name; use a name like merged.gguf")?;
    if is_same_file(&args.out, base.gguf().file()) {
        bail!("--out is the base file {}; choose another name", args.out.display());
    }
    files::check_file(&args.out)?;
    // Open this before the merge, so that mistakes show early.
    let comparison = args.held_out.open(&base)?;

    output::notices(&notices);
    let staged = files::beside(&args.out)?;
    let file = staged.path().join(name);
    let started = Instant::now();
    // Errors name the final path, not the temporary one.
    let in_place = |e| match e {
        rullama_train::adapter::Error::Write(e) => files::Error { path: args.out.clone(), ..e }.into(),
        e => e,
    };
    let tensors = merge::write(&file, &base, &adapter, args.ty, |_| {}).map_err(in_place)?;
    let seconds = started.elapsed().as_secs_f64();
    let size = std::fs::metadata(&file)?.len();
    output::line("merged", format!("{} matrices, {}", tensors.len(), formats(&tensors)));
    output::line("rounding", rounding(&tensors));

    if let Some(comparison) = comparison {
        comparison.show();
        let Comparison { gpu, held_out, offload } = &comparison;
        let merged = Base::from_gguf(Gguf::open(&file)?, &args.out.display().to_string())?;
        let verdict = block_on(verify::compare_merged(gpu, &base, &adapter, &merged, held_out, *offload))?;
        let divergence = &verdict.divergence;
        output::line("divergence", format!("{divergence}, over {} tokens", divergence.tokens));
        output::line("effect", format!("{} (the adapter's own effect, for comparison)", verdict.effect));
        verdict.check(args.ty)?;
    } else {
        output::line("divergence", "not measured (--unverified)");
    }
    files::replace(&file, &args.out)?;
    output::line("written", format!("{}, {} in {seconds:.1} s", args.out.display(), output::bytes(size)));
    modelfile(&args.out)
}

/// Whether two paths are the same file.
fn is_same_file(out: &Path, base: &str) -> bool {
    match (std::fs::canonicalize(out), std::fs::canonicalize(base)) {
        (Ok(out), Ok(base)) => out == base,
        _ => false,
    }
}

/// The number of matrices per conversion: `20 Q4_K → Q8_0, 3 Q6_K → Q8_0`.
fn formats(tensors: &[MergedTensor]) -> String {
    let mut counts: Vec<((GgmlType, GgmlType), usize)> = Vec::new();
    for t in tensors {
        match counts.iter_mut().find(|(pair, _)| *pair == (t.from, t.to)) {
            Some((_, count)) => *count += 1,
            None => counts.push(((t.from, t.to), 1)),
        }
    }
    let each = counts.iter().map(|((from, to), n)| format!("{n} {} → {}", from.name(), to.name()));
    each.collect::<Vec<_>>().join(", ")
}

/// The norms of the adapter's change and of the rounding error, relative to the matrices.
fn rounding(tensors: &[MergedTensor]) -> String {
    let part = |of: fn(&MergedTensor) -> f64| {
        let total = |f: fn(&MergedTensor) -> f64| tensors.iter().map(f).sum::<f64>();
        100.0 * (total(of) / total(|t| t.base).max(f64::MIN_POSITIVE)).sqrt()
    };
    let change = part(|t| t.change);
    let loss = part(|t| t.loss);
    format!("the adapter changes the matrices by {change:.3} %, rounding to the stored format by {loss:.3} %")
}

/// Writes Ollama's Modelfile next to the file. It only has FROM: Ollama knows the chat templates and stop tokens of the families that this program trains.
fn modelfile(out: &Path) -> Result<()> {
    let path = out.with_file_name("Modelfile");
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    let text = format!("FROM ./{name}\n");
    match std::fs::read_to_string(&path) {
        Ok(found) if found != text => {
            let path = path.display();
            output::line(
                "notice",
                format!("{path} exists and was not changed; for Ollama it must contain FROM ./{name}"),
            );
        }
        _ => {
            files::write_atomic(&path, text.as_bytes())?;
            output::line("ollama", format!("ollama create NAME -f {}", path.display()));
        }
    }
    Ok(())
}
