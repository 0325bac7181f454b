//! `export`: an adapter, or the sum of several, in other formats.

use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, Result, bail};
use clap::Args;
use pollster::block_on;
use rullama_train::adapter::{self, AdapterPath, Format, WriteOptions};
use rullama_train::base::Base;
use rullama_train::verify;
use serde_json::json;

use super::publish::Target;
use super::setup::comparison::{Comparison, ComparisonArgs};
use super::{bus_error, interrupted, output};

/// Options of `export`.
#[derive(Args)]
pub struct ExportArgs {
    /// Adapters: PEFT or mlx-lm folders, GGUF LoRA or rullama-lora-v0 files. Several are added up, as in A=0.7 B=0.3.
    #[arg(required = true, value_name = "PATH[=WEIGHT]")]
    adapters: Vec<AdapterPath>,
    /// Format: peft, peft-conditional-generation, gguf-lora, gguf-lora-f16, mlx or rullama-v0; may be repeated.
    #[arg(long, value_name = "FORMAT", required_unless_present = "push")]
    to: Vec<Format>,
    /// Send the exports to this repository of the Hugging Face Hub, with a model card; without --to, the PEFT adapter of the folder. A new
    /// repository is private.
    #[arg(long, value_name = "hf:USER/NAME")]
    push: Option<String>,
    /// With --push, make a new repository public.
    #[arg(long, requires = "push")]
    public: bool,
    /// Base model: "tiny", a name that `models` lists, hf:ORG/REPO:TYPE, or the path of a .gguf file [default: the base that the adapter's files name].
    #[arg(long, add = crate::cli::complete::base())]
    base: Option<String>,
    /// Output folder [default: the adapter's folder]. Required for several adapters.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Accept adapters that were trained on a different base model.
    #[arg(long)]
    allow_other_base: bool,
    /// Overwrite existing adapters.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    held_out: ComparisonArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Loads the adapters and writes their sum in every format.
pub fn run(args: &ExportArgs) -> Result<()> {
    if args.json {
        output::keep();
    }
    exported(args)?;
    let dir = folder(args)?;
    let written = args.to.iter().map(|format| json!({ "format": format.name(), "path": format.place(dir) }));
    let repo = args.push.as_deref().map(|name| name.trim_start_matches("hf:"));
    output::finish(json!({ "exports": written.collect::<Vec<_>>(), "sent_to": repo }));
    Ok(())
}

fn exported(args: &ExportArgs) -> Result<()> {
    let dir = folder(args)?;
    let target = args.push.as_deref().map(|name| Target::check(name, args.public)).transpose()?;
    check_places(args, dir)?;
    let base = open_base(&args.adapters, args.base.as_deref())?;
    bus_error::name(base.gguf().file());
    interrupted::clean_up()?;
    if let (Some(target), []) = (&target, &args.to[..]) {
        return target.send(&base, &[Format::Peft], dir, source(args));
    }
    let found = adapter::load(&args.adapters, &base, None, args.allow_other_base.into())?;
    let adapter = &found.adapter;
    let origin = &found.origin;
    let rank = adapter.rank;
    let scale = adapter.scale();
    let matrices = output::count(adapter.pairs.len(), "matrix pair");
    output::line("adapter", format!("{matrices} for {}, rank {rank}, scale {scale:.4}", base.name()));
    output::notices(&found.notices);
    output::notices(&Format::all_unapplied(&args.to, base.config(), adapter.pairs.keys()));
    let options = WriteOptions {
        base_model: origin.base_model.as_deref().unwrap_or(base.name()),
        dropout: origin.dropout,
        fingerprint: origin.fingerprint.as_deref(),
        vocabulary: origin.vocabulary.as_deref(),
    };
    let Some(comparison) = args.held_out.open(&base)? else {
        for format in &args.to {
            let place = adapter::write(dir, *format, adapter, base.config(), &options)?;
            let place = place.display();
            let name = format.name();
            output::line("exported", format!("{place}: {name}, reloaded; logits were not compared"));
        }
        next_steps(args, &base, dir);
        return target.map_or(Ok(()), |target| target.send(&base, &args.to, dir, source(args)));
    };
    comparison.show();
    let Comparison { gpu, held_out, text, offload } = &comparison;
    let bar = output::spinner("comparing the exports");
    let write = verify::write_verified(gpu, &base, dir, &args.to, adapter, &options, held_out, *offload);
    let written = block_on(write);
    bar.finish_and_clear();
    let result = output::written(written?, text);
    next_steps(args, &base, dir);
    result?;
    target.map_or(Ok(()), |target| target.send(&base, &args.to, dir, source(args)))
}

/// The folder that tells how the first adapter was trained.
fn source(args: &ExportArgs) -> &Path {
    let path = &args.adapters[0].path;
    if path.is_dir() { path } else { path.parent().unwrap_or(path) }
}

/// Prints how to use the exports that were written.
fn next_steps(args: &ExportArgs, base: &Base, dir: &Path) {
    let places = args.to.iter().map(|format| (*format, format.place(dir)));
    for (format, place) in places.filter(|(_, place)| place.exists()) {
        output::next::after_export(base, format, &place);
    }
}

/// Fails if an export would overwrite an input, or without `--force` another file.
fn check_places(args: &ExportArgs, dir: &Path) -> Result<()> {
    for format in &args.to {
        let place = format.place(dir);
        if args.adapters.iter().any(|a| absolute(&a.path).ok() == absolute(&place).ok()) {
            bail!(
                "{} is an input and would be overwritten; choose another folder with --out",
                place.display()
            );
        }
        let taken = match format {
            Format::Peft => place.join("adapter_model.safetensors"),
            _ => place,
        };
        if taken.exists() && !args.force {
            bail!(
                "{} already exists; choose another folder with --out, or overwrite it with --force",
                taken.display()
            );
        }
    }
    Ok(())
}

/// Opens the base `named`, or the one that the first adapter's files name.
fn open_base(adapters: &[AdapterPath], named: Option<&str>) -> Result<Base> {
    if let Some(name) = named {
        super::pull::base(name)?;
        return Ok(Base::open(name)?);
    }
    let path = &adapters[0].path;
    match adapter::origin(path)?.base_model.filter(|name| !name.is_empty()) {
        Some(name) => Base::open(&name).with_context(|| {
            format!("{} was trained on {name:?}; use --base to say where that is", path.display())
        }),
        None => bail!("{} does not name its base; use --base BASE", path.display()),
    }
}

/// The output folder.
fn folder(args: &ExportArgs) -> Result<&Path> {
    match (&args.out, &args.adapters[..]) {
        (Some(out), _) => Ok(out),
        (None, [AdapterPath { path, .. }]) if path.is_dir() => Ok(path),
        (None, [AdapterPath { path, .. }]) => Ok(path.parent().unwrap_or(path)),
        (None, _) => bail!("several adapters need an output folder; use --out DIR"),
    }
}
