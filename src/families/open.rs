//! Opens a base or a tokenizer: the file's architecture chooses the family, and the family reads the file.

#[cfg(feature = "native")]
use std::path::Path;

use super::{ALL, Family, named, refused};
use crate::base::{Base, Error, Gguf, Source};
#[cfg(feature = "native")]
use crate::base::{ollama, stores};
use crate::data::tokenizer::{Tokenizer, TokenizerData};

impl Base {
    /// Opens the model that the user names: `tiny` (part of the program), a GGUF file, or a model that `rullama-train models` lists.
    ///
    /// `spec` is a file where the file exists. A name with the prefix of a store, such as `hf:`, is a model there. Otherwise it is
    /// a file where it ends in `.gguf` or looks like a path (`./…`, `~…`, absolute). Everything else is an Ollama name, which may
    /// contain `/` too, or else the name of a repository in the Hugging Face cache.
    #[cfg(feature = "native")]
    pub fn open(spec: &str) -> Result<Base, Error> {
        if spec == "tiny" {
            return Base::tiny();
        }
        let path = Path::new(spec);
        let of_file = |path: &Path| Base::from_gguf(Gguf::open(path)?, spec);
        if path.is_file() {
            return of_file(path);
        }
        if let Some(stored) = stores::resolve(spec) {
            return of_file(&stored?);
        }
        if spec.ends_with(".gguf") || spec.starts_with(['.', '~', '/']) || spec.contains('\\') {
            return of_file(path);
        }
        match ollama::resolve(spec, &ollama::stores()) {
            Ok(blob) => Ok(of_file(&blob)?.of_ollama()),
            Err(error) => match stores::resolve(&format!("hf:{spec}")) {
                Some(Ok(cached)) => of_file(&cached),
                _ => Err(error),
            },
        }
    }

    /// The model that is part of the program.
    #[cfg(feature = "native")]
    pub fn tiny() -> Result<Base, Error> {
        Base::from_gguf(Gguf::from_static(super::gemma4::TINY, "tiny")?, "tiny")
    }

    /// The text model in a GGUF file. Messages call it `name`.
    ///
    /// Fails where the architecture is not supported, where the metadata make no sense, and where a tensor that the model needs
    /// is missing, has another shape, or has a format without kernels.
    pub fn from_gguf(gguf: Gguf, name: &str) -> Result<Base, Error> {
        let config = (of_file(&gguf)?.config)(&gguf)?;
        Base::new(gguf, name, config)
    }

    /// Opens a file without loading it: matrices are read when they are needed ([`Base::read`]). Calls that document a panic
    /// need a file in memory. Reads up to 64 KiB of each tensor now, for the fingerprint.
    pub async fn stream(source: Box<dyn Source>, name: &str) -> Result<Base, Error> {
        let gguf = Gguf::stream(source, name).await?;
        Base::from_gguf(gguf, name)?.with_fingerprint().await
    }
}

impl Tokenizer {
    /// The tokenizer of a model file. Errors have the file's name.
    pub fn from_gguf(gguf: &Gguf) -> Result<Tokenizer, Error> {
        let data = TokenizerData::from_gguf(gguf)?;
        Tokenizer::new(data, of_file(gguf)?.tokenizer)
            .map_err(|error| Error::Metadata { file: gguf.file().to_owned(), problem: error.to_string() })
    }
}

/// The family of a model file. Fails on adapters, parts of split files, and other architectures.
fn of_file(gguf: &Gguf) -> Result<&'static Family, Error> {
    let unsupported = |problem| Err(Error::Unsupported { file: gguf.file().into(), problem });
    if gguf.get::<&str>("general.type")? == Some("adapter") {
        return unsupported(
            "is a LoRA adapter, expected a base model; name the model that it was trained on".into(),
        );
    }
    if let Some(parts @ 2..) = gguf.get::<u32>("split.count")? {
        return unsupported(format!(
            "is one of {parts} parts of a split file, expected all of them in one folder with the names that llama-gguf-split gives \
             (NAME-00001-of-{parts:05}.gguf); rename them, or join them with `llama-gguf-split --merge`"
        ));
    }
    let architecture: &str = gguf.require("general.architecture")?;
    if architecture == "gptoss" {
        return unsupported(
            "is gpt-oss in the layout of Ollama's own library, supported is llama.cpp's; use hf.co/ggml-org/gpt-oss-20b-GGUF, \
             which `ollama pull` downloads and Ollama runs"
                .into(),
        );
    }
    if let Some(row) = refused(architecture) {
        return unsupported(format!(
            "is a model of architecture `{architecture}` ({}), which is not trained: it has {}; use {}",
            row.models,
            row.has,
            row.instead()
        ));
    }
    let Some(family) = named(architecture) else {
        let supported = ALL.map(|f| format!("`{}` ({}, such as {})", f.name, f.title, f.example)).join(", ");
        return unsupported(format!(
            "is a model of architecture `{architecture}`, supported are {supported}; use a GGUF of a supported model"
        ));
    };
    Ok(family)
}
