//! `merge`: an adapter and its base in one GGUF file.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use pollster::block_on;
use rullama_train::adapter::lora::Adapter;
use rullama_train::adapter::merge::{self, MergeType, MergedTensor};
use rullama_train::adapter::{AdapterPath, Loaded, load};
use rullama_train::base::stores::parts;
use rullama_train::base::{Base, GgmlType, Gguf};
use rullama_train::files;
use rullama_train::recipe::{Recipe, Template};
use rullama_train::verify;
use serde_json::json;

use super::ollama::{Target, modelfile};
use super::recipe_args::quoted;
use super::setup::comparison::{Comparison, ComparisonArgs};
use super::{bus_error, interrupted, output};

/// Options of `merge`.
#[derive(Args)]
pub struct MergeArgs {
    /// Adapters: PEFT or mlx-lm folders, GGUF LoRA or rullama-lora-v0 files. Several are added up, as in A=0.7 B=0.3.
    #[arg(required = true, value_name = "PATH[=WEIGHT]")]
    adapters: Vec<AdapterPath>,
    /// Base model that the adapter was trained on: "tiny", a name that `models` lists, hf:ORG/REPO:TYPE, or the path of a .gguf file.
    #[arg(long, add = crate::cli::complete::base())]
    base: String,
    /// File to write. A Modelfile for Ollama is written next to it [default with --ollama NAME: NAME/NAME.gguf].
    #[arg(long, value_name = "FILE.gguf", required_unless_present = "ollama")]
    out: Option<PathBuf>,
    /// Also create this model in Ollama, with `ollama create`. If `ollama` is not installed, the command is printed.
    #[arg(long, value_name = "NAME")]
    ollama: Option<String>,
    /// Replace an existing file, Modelfile or Ollama model.
    #[arg(long)]
    force: bool,
    /// Format of the merged matrices: auto (Q8_0 if the base is quantized), keep, f32, f16, bf16, q8_0, q6_k, q5_k, q5_1, q5_0,
    /// q4_k, q4_1, q4_0, iq4_nl, iq4_xs, mxfp4, q3_k or q2_k.
    #[arg(long = "type", value_name = "TYPE", default_value = "auto", value_parser = parse_type)]
    ty: MergeType,
    /// Accept adapters that were trained on a different base model.
    #[arg(long)]
    allow_other_base: bool,
    #[command(flatten)]
    held_out: ComparisonArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) fn parse_type(name: &str) -> Result<MergeType, String> {
    MergeType::from_name(name).ok_or_else(|| {
        let names = MergeType::NAMES.map(|(name, _)| name).join(", ");
        format!("expected one of {names}")
    })
}

/// Merges, and creates the model in Ollama if asked to.
pub fn run(args: &MergeArgs) -> Result<()> {
    if args.json {
        output::keep();
    }
    let modelfile = merged(args)?;
    output::finish(json!({ "model": args.out(), "modelfile": modelfile, "ollama": args.ollama }));
    Ok(())
}

/// Merges, and returns the path of the Modelfile.
fn merged(args: &MergeArgs) -> Result<PathBuf> {
    super::pull::base(&args.base)?;
    let base = Base::open(&args.base)?;
    bus_error::name(base.gguf().file());
    interrupted::clean_up()?;
    let Loaded { adapter, notices, .. } = load(&args.adapters, &base, None, args.allow_other_base.into())?;
    let out = args.out();
    if is_same_file(&out, base.gguf().file()) {
        bail!("--out is the base file {}; choose another name", out.display());
    }
    files::check_file(&out)?;
    if out.exists() && !args.force {
        bail!("{} exists; choose another name with --out, or use --force to replace it", out.display());
    }
    modelfile::check(&out, &base, args.force)?;
    let advice = (!args.force).then_some("use --force to replace it");
    let target = args.ollama.as_deref().map(|name| Target::check("--ollama", name, advice)).transpose()?;
    // Open this before the merge, so that mistakes show early.
    let comparison = args.held_out.open(&base)?;
    output::notices(&notices);
    comparison.iter().for_each(Comparison::show);
    let template = Template::Auto;
    let modelfile = write(&base, &adapter, &out, (args.ty, &template), comparison.as_ref(), &output::line)?;
    match target {
        Some(target) => target.create(&modelfile, &output::line)?,
        None => {
            output::command(
                "ollama",
                &format!("ollama create NAME -f {}", quoted(&modelfile.to_string_lossy())),
            );
        }
    }
    Ok(modelfile)
}

/// The end of a run with `output.ollama`: merges the trained adapter into a file of the run's folder and creates the model.
pub fn after_training(
    recipe: &Recipe,
    base: &Base,
    adapter: &Adapter,
    target: &Target,
    say: &output::Say,
) -> Result<()> {
    let out = recipe.output.dir.join(format!("{}.gguf", Target::file_stem(target.name())));
    let comparison = ComparisonArgs::of_recipe(recipe).open(base)?;
    let what = (MergeType::Auto, &recipe.data.template);
    let modelfile = write(base, adapter, &out, what, comparison.as_ref(), say)?;
    target.create(&modelfile, say)
}

/// Merges into a temporary file, compares the result, moves the file to its place, and writes the Modelfile. Returns the path of
/// the Modelfile.
fn write(
    base: &Base,
    adapter: &Adapter,
    out: &Path,
    (ty, template): (MergeType, &Template),
    comparison: Option<&Comparison>,
    say: &output::Say,
) -> Result<PathBuf> {
    let name = out.file_name().context("--out is not a file name; use a name like merged.gguf")?;
    let staged = files::beside(out)?;
    let file = staged.path().join(name);
    let started = Instant::now();
    // Errors name the final path, not the temporary one.
    let in_place = |e| match e {
        rullama_train::adapter::Error::Write(e) => match bus_error::cause(&e.source) {
            Some(cause) => anyhow!(cause),
            None => files::Error { path: out.into(), ..e }.into(),
        },
        e => e.into(),
    };
    let bar = output::spinner("merging");
    let tensors = merge::write(&file, base, adapter, ty, |_| {}).map_err(in_place)?;
    bar.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    let size = std::fs::metadata(&file)?.len();
    say("merged", format!("{} matrices, {}", tensors.len(), formats(&tensors)));
    if let Some(notice) = not_kept(ty, &tensors) {
        say("notice", notice);
    }
    say("rounding", rounding(&tensors));

    if let Some(Comparison { gpu, held_out, text, offload }) = comparison {
        let merged = Base::from_gguf(Gguf::open(&file)?, &out.display().to_string())?;
        let bar = output::spinner("comparing the merged model with base and adapter");
        let verdict = block_on(verify::compare_merged(gpu, base, adapter, &merged, held_out, *offload))?;
        bar.finish_and_clear();
        let lost = output::places(&verdict.divergence, text);
        say(
            "compared",
            format!("the merged model has another most likely token than base and adapter at {lost}"),
        );
        say("effect", format!("the adapter {}", output::effect(&verdict.effect, text)));
        verdict.check(ty)?;
    } else {
        say("compared", "no: the quality of the merged model is unknown (--unverified)".into());
    }
    files::replace(&file, out)?;
    say("written", format!("{}, {} in {seconds:.1} s", out.display(), output::bytes(size)));
    let (modelfile, warning) = modelfile::write(out, base, template)?;
    warning.into_iter().for_each(|warning| say("notice", warning));
    Ok(modelfile)
}

impl MergeArgs {
    /// The file to write.
    fn out(&self) -> PathBuf {
        let in_folder = |name: &String| {
            let stem = Target::file_stem(name);
            Path::new(&stem).join(format!("{stem}.gguf"))
        };
        let named = self.ollama.as_ref().map(in_folder);
        self.out.clone().or(named).expect("clap requires --out or --ollama")
    }
}

/// Whether a path is the base's file, or one of its parts.
pub(super) fn is_same_file(out: &Path, base: &str) -> bool {
    let Ok(out) = std::fs::canonicalize(out) else { return false };
    let files = if base.to_ascii_lowercase().ends_with(".gguf") { parts(base) } else { vec![base.into()] };
    files.iter().any(|file| std::fs::canonicalize(file).is_ok_and(|file| file == out))
}

/// The number of matrices per conversion: `20 Q4_K → Q8_0, 3 Q6_K → Q8_0`.
pub(super) fn formats(tensors: &[MergedTensor]) -> String {
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

/// Says which matrices could not keep their type, and why.
fn not_kept(ty: MergeType, tensors: &[MergedTensor]) -> Option<String> {
    let mut types: Vec<GgmlType> = Vec::new();
    for t in tensors.iter().filter(|t| ty == MergeType::Keep && merge::encoded(t.from) != t.from) {
        if !types.contains(&t.from) {
            types.push(t.from);
        }
    }
    let each = types.iter().map(|&from| format!("{} becomes {}", from.name(), merge::encoded(from).name()));
    let each = each.collect::<Vec<_>>().join(", ");
    (!types.is_empty()).then(|| {
        format!(
            "nothing here writes {}, so merged matrices take the nearest type that has an encoder: {each}; \
             all others keep theirs; --type q8_0 preserves more of the adapter",
            GgmlType::names(&types)
        )
    })
}

/// The part of the adapter's change that is left in the stored matrices, and the sizes of change and rounding beside the matrices.
fn rounding(tensors: &[MergedTensor]) -> String {
    let total = |of: fn(&MergedTensor) -> f64| tensors.iter().map(of).sum::<f64>();
    let part = |of| 100.0 * (total(of) / total(|t| t.base).max(f64::MIN_POSITIVE)).sqrt();
    let kept = 100.0 * total(|t| t.kept) / total(|t| t.change).max(f64::MIN_POSITIVE);
    format!(
        "keeps {kept:.1} % of the adapter's change, which is {:.3} % of the matrices; rounding to the stored format adds noise of {:.3} %",
        part(|t| t.change),
        part(|t| t.loss)
    )
}
