//! An adapter and its base become one GGUF file.

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

use super::held_out::{Comparison, HeldOutArgs};
use super::show;

/// What to merge, and where to.
#[derive(Args)]
pub struct MergeArgs {
    /// PEFT or mlx-lm folders, GGUF LoRAs or rullama-lora-v0 files; several are added up, as in A=0.7 B=0.3.
    #[arg(required = true, value_name = "PATH[=WEIGHT]")]
    adapters: Vec<AdapterPath>,
    /// What the adapter was trained on: "tiny", an Ollama tag, or a .gguf file.
    #[arg(long)]
    base: String,
    /// File to write; a Modelfile for Ollama is put beside it.
    #[arg(long, value_name = "FILE.gguf")]
    out: PathBuf,
    /// Format of the merged matrices: auto (Q8_0 where the base is quantized), keep, f32, f16, bf16, q8_0, q6_k, q5_k, q4_k.
    #[arg(long = "type", value_name = "TYPE", default_value = "auto", value_parser = parse_type)]
    ty: MergeType,
    /// Take adapters that were trained on another model than the base.
    #[arg(long)]
    allow_other_base: bool,
    #[command(flatten)]
    held_out: HeldOutArgs,
}

fn parse_type(name: &str) -> Result<MergeType, String> {
    MergeType::from_name(name).ok_or_else(|| {
        let names = MergeType::NAMES.map(|(name, _)| name).join(", ");
        format!("expected one of {names}")
    })
}

/// Merges, measures where samples are given, and only then puts the file in its place.
pub fn run(args: &MergeArgs) -> Result<()> {
    let base = Base::open(&args.base)?;
    let Loaded { adapter, notices, .. } = load(&args.adapters, &base, None, args.allow_other_base.into())?;
    let name = args.out.file_name().context("--out names no file; end it with a name such as merged.gguf")?;
    if is_same_file(&args.out, base.gguf().file()) {
        bail!("--out is the base itself, {}; choose another name", args.out.display());
    }
    files::check_file(&args.out)?;
    // Read before the long part, so that a mistake in it costs no time.
    let comparison = args.held_out.open(&base)?;

    show::notices(&notices);
    let staged = files::beside(&args.out)?;
    let file = staged.path().join(name);
    let started = Instant::now();
    // The user knows the file by its own name.
    let in_place = |e| match e {
        rullama_train::adapter::Error::Write(e) => files::Error { path: args.out.clone(), ..e }.into(),
        e => e,
    };
    let tensors = merge::write(&file, &base, &adapter, args.ty, |_| {}).map_err(in_place)?;
    let seconds = started.elapsed().as_secs_f64();
    let size = std::fs::metadata(&file)?.len();
    show::line("merged", format!("{} matrices, {}", tensors.len(), formats(&tensors)));
    show::line("rounding", rounding(&tensors));

    if let Some(comparison) = comparison {
        comparison.show();
        let Comparison { gpu, held_out, offload } = &comparison;
        let merged = Base::from_gguf(Gguf::open(&file)?, &args.out.display().to_string())?;
        let verdict = block_on(verify::compare_merged(gpu, &base, &adapter, &merged, held_out, *offload))?;
        show::line("drift", format!("{}, over {} tokens", verdict.divergence, verdict.divergence.tokens));
        show::line("effect", format!("{}: what the adapter itself does", verdict.effect));
        verdict.check(args.ty)?;
    } else {
        show::line("drift", "not measured, as was asked for");
    }
    files::replace(&file, &args.out)?;
    show::line("written", format!("{}, {} in {seconds:.1} s", args.out.display(), show::bytes(size)));
    modelfile(&args.out)
}

/// Whether two paths lead to one file.
fn is_same_file(out: &Path, base: &str) -> bool {
    match (std::fs::canonicalize(out), std::fs::canonicalize(base)) {
        (Ok(out), Ok(base)) => out == base,
        _ => false,
    }
}

/// How many matrices went from which format to which.
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

/// How large the adapter and the rounding are beside the matrices.
fn rounding(tensors: &[MergedTensor]) -> String {
    let part = |of: fn(&MergedTensor) -> f64| {
        let total = |f: fn(&MergedTensor) -> f64| tensors.iter().map(f).sum::<f64>();
        100.0 * (total(of) / total(|t| t.base).max(f64::MIN_POSITIVE)).sqrt()
    };
    let (change, loss) = (part(|t| t.change), part(|t| t.loss));
    format!("the adapter changes the matrices by {change:.3} %, storing them by {loss:.3} %")
}

/// Puts Ollama's Modelfile beside the file. Nothing but FROM: Ollama knows Gemma 4's chat layout and where a reply stops.
fn modelfile(out: &Path) -> Result<()> {
    let path = out.with_file_name("Modelfile");
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    let text = format!("FROM ./{name}\n");
    match std::fs::read_to_string(&path) {
        Ok(found) if found != text => {
            let path = path.display();
            show::line(
                "notice",
                format!("{path} is there already and stays; for Ollama it must say FROM ./{name}"),
            );
        }
        _ => {
            files::write_atomic(&path, text.as_bytes())?;
            show::line("ollama", format!("ollama create NAME -f {}", path.display()));
        }
    }
    Ok(())
}
