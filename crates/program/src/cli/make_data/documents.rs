//! Documents as plain text: text, Markdown, HTML and PDF files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A part of a document whose place can be named.
pub struct Page {
    /// Number of the page in a PDF file.
    pub number: Option<usize>,
    pub text: String,
}

/// Endings of documents that are read.
const ENDINGS: [&str; 8] = ["txt", "text", "md", "markdown", "html", "htm", "xhtml", "pdf"];
/// Largest document, in bytes.
const LARGEST: u64 = 64 << 20;
/// Columns that paragraphs of HTML are broken at: none in practice.
const COLUMNS: usize = 100_000;

fn ending(path: &Path) -> String {
    path.extension().unwrap_or_default().to_string_lossy().to_lowercase()
}

/// Documents in a folder and its subfolders, sorted, or the one document; and the names of other files.
pub fn find(path: &Path) -> Result<(Vec<PathBuf>, Vec<String>)> {
    let (mut found, mut others) = (Vec::new(), Vec::new());
    if path.is_file() {
        return Ok((vec![path.to_owned()], others));
    }
    walk(path, &mut found, &mut others).with_context(|| format!("cannot read {}", path.display()))?;
    if found.is_empty() {
        let endings = ENDINGS.map(|ending| format!(".{ending}")).join(", ");
        bail!("{} has no documents; expected files that end in {endings}", path.display());
    }
    Ok((found, others))
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>, others: &mut Vec<String>) -> std::io::Result<()> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            walk(&path, found, others)?;
        } else if ENDINGS.contains(&&*ending(&path)) {
            found.push(path);
        } else {
            others.push(name);
        }
    }
    Ok(())
}

/// The text of a document.
pub fn read(path: &Path) -> Result<Vec<Page>> {
    let bytes = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    if bytes > LARGEST {
        bail!("{} is larger than 64 MiB; split it", path.display());
    }
    let content = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    match &*ending(path) {
        "pdf" => pdf(&content, path),
        "html" | "htm" | "xhtml" => Ok(vec![Page { number: None, text: html(&content, path)? }]),
        _ => {
            let text = String::from_utf8(content);
            let text = text.map_err(|_| anyhow::anyhow!("{} is not UTF-8; convert it", path.display()))?;
            Ok(vec![Page { number: None, text }])
        }
    }
}

#[cfg(feature = "documents")]
fn html(content: &[u8], path: &Path) -> Result<String> {
    let config = html2text::config::plain_no_decorate().no_table_borders().link_footnotes(false);
    let text = config.string_from_read(content, COLUMNS);
    text.with_context(|| format!("{} cannot be read as HTML", path.display()))
}

/// The pages of a PDF file. The reader gives up on some damaged files by a panic.
#[cfg(feature = "documents")]
fn pdf(content: &[u8], path: &Path) -> Result<Vec<Page>> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let read = std::panic::catch_unwind(|| pdf_extract::extract_text_from_mem_by_pages(content));
    std::panic::set_hook(hook);
    let name = path.display();
    let pages = match read {
        Ok(Ok(pages)) => pages,
        Ok(Err(error)) => {
            bail!("{name} cannot be read as PDF ({error}); convert it to text, with `pdftotext` for example")
        }
        Err(_) => bail!("{name} cannot be read as PDF; convert it to text, with `pdftotext` for example"),
    };
    if pages.iter().all(|page| page.trim().is_empty()) {
        bail!("{name} has no text; if it is scanned, recognize its text first, with `ocrmypdf` for example");
    }
    let page = |(index, text): (usize, String)| Page { number: Some(index + 1), text };
    Ok(pages.into_iter().enumerate().map(page).collect())
}

#[cfg(not(feature = "documents"))]
fn html(_: &[u8], path: &Path) -> Result<String> {
    bail!("{} is HTML, which this build does not read; build with --features documents", path.display())
}

#[cfg(not(feature = "documents"))]
fn pdf(_: &[u8], path: &Path) -> Result<Vec<Page>> {
    bail!("{} is a PDF file, which this build does not read; build with --features documents", path.display())
}
