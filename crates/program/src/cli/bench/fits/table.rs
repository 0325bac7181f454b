//! The file of `bench --fits --out`: a row for each base and size, of which a later run measures only the missing bases.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use rullama_train::files;

use super::Fit;

/// Names of the columns.
const COLUMNS: &str = "model\tgigabytes\ttokens\ttimed_tokens\ttokens_per_second\thost_bytes";

/// A file with rows of values between tabs.
pub struct Table {
    path: PathBuf,
    /// Header and rows.
    lines: Vec<String>,
}

impl Table {
    /// Opens the file at `path`, which is empty, missing, or has rows that were measured `under` the same conditions.
    pub fn open(path: &Path, under: String) -> Result<Table> {
        files::check_file(path)?;
        let header = format!("# {under}");
        let text = if path.exists() { files::read_to_string(path)? } else { String::new() };
        let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
        if lines.is_empty() {
            lines = vec![header, COLUMNS.into()];
        } else if lines[0] != header {
            bail!(
                "{}: its rows were measured on {:?}, this run would add rows of {:?}; remove it or name another --out",
                path.display(),
                lines[0].trim_start_matches("# "),
                under,
            );
        }
        Ok(Table { path: path.into(), lines })
    }

    /// Whether the base `name` has rows.
    pub fn has(&self, name: &str) -> bool {
        self.lines.iter().any(|line| line.split('\t').next() == Some(name))
    }

    /// Adds the rows of a base, and writes the file.
    pub fn add(&mut self, name: &str, found: &[(u64, Option<Fit>)]) -> Result<()> {
        self.lines.extend(found.iter().map(|(size, fit)| row(name, *size, fit.as_ref())));
        files::write_atomic(&self.path, (self.lines.join("\n") + "\n").as_bytes())?;
        Ok(())
    }
}

/// The values of a row. Those that do not exist are empty.
fn row(name: &str, size: u64, fit: Option<&Fit>) -> String {
    let speed = fit.and_then(|fit| fit.speed.as_ref());
    let values = [
        fit.map(|fit| fit.tokens.to_string()),
        speed.map(|speed| speed.tokens.to_string()),
        speed.map(|speed| format!("{:.0}", speed.per_second())),
        fit.map(|fit| fit.plan.offloaded.bytes.to_string()),
    ];
    format!("{name}\t{size}\t{}", values.map(Option::unwrap_or_default).join("\t"))
}
