//! The files of the page, compiled into the program.

/// Paths below `web/dist` and contents, sorted by path.
static FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// A file of the page.
#[derive(Clone, Copy)]
pub struct File {
    /// Path below `web/dist`.
    pub path: &'static str,
    /// Contents.
    pub bytes: &'static [u8],
}

/// The file at a URL's path; `/` is `index.html`.
pub fn find(url_path: &str) -> Option<File> {
    let path = url_path.trim_start_matches('/');
    let path = if path.is_empty() { "index.html" } else { path };
    let at = FILES.binary_search_by_key(&path, |(path, _)| path).ok()?;
    Some(File { path: FILES[at].0, bytes: FILES[at].1 })
}

impl File {
    /// The `Content-Type`.
    pub fn mime_type(self) -> &'static str {
        match self.path.rsplit('.').next().unwrap_or_default() {
            "html" => "text/html; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "json" => "application/json",
            "svg" => "image/svg+xml",
            "wasm" => "application/wasm", // browsers compile while downloading only with this type
            "jsonl" | "toml" => "text/plain; charset=utf-8",
            _ => "application/octet-stream",
        }
    }

    /// Whether the file name contains a digest of the contents, so that the file never changes.
    pub fn is_named_by_digest(self) -> bool {
        self.path.starts_with("assets/")
    }
}
