//! An adapter in other formats, and several as one.

use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, Result, bail};
use clap::Args;
use pollster::block_on;
use rullama_train::adapter::{self, AdapterPath, Format, WriteOptions};
use rullama_train::base::Base;
use rullama_train::verify;

use super::held_out::{Comparison, HeldOutArgs};
use super::show;

/// What to export, and as what.
#[derive(Args)]
pub struct ExportArgs {
    /// PEFT or mlx-lm folders, GGUF LoRAs or rullama-lora-v0 files; several are added up, as in A=0.7 B=0.3.
    #[arg(required = true, value_name = "PATH[=WEIGHT]")]
    adapters: Vec<AdapterPath>,
    /// peft, peft-conditional-generation, gguf-lora, gguf-lora-f16, mlx or rullama-v0; may be given several times.
    #[arg(long, value_name = "FORMAT", required = true)]
    to: Vec<Format>,
    /// The adapter's base, as in a recipe; unset, it is the one that the adapter's files name.
    #[arg(long)]
    base: Option<String>,
    /// The folder to write into; unset, it is the adapter's own. Needed where there are several.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Take adapters that were trained on another model than the base.
    #[arg(long)]
    allow_other_base: bool,
    #[command(flatten)]
    held_out: HeldOutArgs,
}

/// Reads the adapters, and writes their sum as each of the formats.
pub fn run(args: &ExportArgs) -> Result<()> {
    let base = open_base(&args.adapters, args.base.as_deref())?;
    let found = adapter::load(&args.adapters, &base, None, args.allow_other_base.into())?;
    let dir = folder(args)?;
    for format in &args.to {
        let place = format.place(dir);
        if args.adapters.iter().any(|a| absolute(&a.path).ok() == absolute(&place).ok()) {
            bail!("{} would be replaced by itself; choose another folder with --out", place.display());
        }
    }
    let (adapter, origin) = (&found.adapter, &found.origin);
    let (matrices, rank, scale) = (adapter.pairs.len(), adapter.rank, adapter.scale());
    show::line("adapter", format!("{matrices} matrices of {}, rank {rank}, scale {scale:.4}", base.name()));
    show::notices(&found.notices);
    let options = WriteOptions {
        base_model: origin.base_model.as_deref().unwrap_or(base.name()),
        dropout: origin.dropout,
        fingerprint: origin.fingerprint.as_deref(),
    };
    let Some(comparison) = args.held_out.open(&base)? else {
        for format in &args.to {
            let place = adapter::write(dir, *format, adapter, base.config(), &options)?;
            let (place, name) = (place.display(), format.name());
            show::line("exported", format!("{place}: {name}, read back; logits were not compared"));
        }
        return Ok(());
    };
    comparison.show();
    let Comparison { gpu, held_out, offload } = &comparison;
    let write = verify::write_verified(gpu, &base, dir, &args.to, adapter, &options, held_out, *offload);
    show::written(block_on(write)?)
}

/// The base that is named, or the one that the adapter itself names.
fn open_base(adapters: &[AdapterPath], named: Option<&str>) -> Result<Base> {
    if let Some(name) = named {
        return Ok(Base::open(name)?);
    }
    let path = &adapters[0].path;
    match adapter::origin(path)?.base_model.filter(|name| !name.is_empty()) {
        Some(name) => Base::open(&name).with_context(|| {
            format!("{} names its base {name:?}; name the base's file with --base", path.display())
        }),
        None => bail!("{} does not name its base; name it with --base", path.display()),
    }
}

/// Where to write.
fn folder(args: &ExportArgs) -> Result<&Path> {
    match (&args.out, &args.adapters[..]) {
        (Some(out), _) => Ok(out),
        (None, [AdapterPath { path, .. }]) if path.is_dir() => Ok(path),
        (None, [AdapterPath { path, .. }]) => Ok(path.parent().unwrap_or(path)),
        (None, _) => bail!("the sum of several adapters has no folder of its own; name one with --out"),
    }
}
