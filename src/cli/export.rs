//! An adapter in other formats.

use std::path::{Path, absolute};

use anyhow::{Context, Result, bail};
use rullama_train::export::{self, Format, Options};
use rullama_train::weights::Base;

use super::show;

/// Reads the adapter at `path`, and writes it as each of `formats` into `out`, or beside or into itself.
pub fn run(path: &Path, formats: &[Format], base: Option<&str>, out: Option<&Path>) -> Result<()> {
    let (named, dropout) = export::origin(path)?;
    let opened = match (base, &named) {
        (Some(base), _) => Base::open(base)?,
        (None, Some(named)) => Base::open(named).with_context(|| {
            format!("{} names its base {named:?}; name the base's file with --base", path.display())
        })?,
        (None, None) => bail!("{} does not name its base; name it with --base", path.display()),
    };
    let config = opened.config();
    let adapter = export::read_any(path, config, None)?;
    let own = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    let dir = out.unwrap_or(own);
    let options = Options { base_model: named.as_deref().or(base).unwrap_or_default(), dropout };
    for format in formats {
        if absolute(format.place(dir))? == absolute(path)? {
            bail!("{} would be replaced by itself; choose another folder with --out", path.display());
        }
    }
    let (matrices, rank, scale) = (adapter.pairs.len(), adapter.rank, adapter.scale());
    show::line("adapter", format!("{matrices} matrices of {}, rank {rank}, scale {scale:.4}", opened.name()));
    for format in formats {
        let place = export::write(dir, *format, &adapter, config, &options)?;
        show::line("written", format!("{}: {}, read back and compared", place.display(), format.name()));
    }
    Ok(())
}
