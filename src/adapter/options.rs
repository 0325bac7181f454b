//! Settings of written adapters.

use std::collections::HashMap;

use super::{FINGERPRINT, VOCABULARY};

/// Information about the adapter that is written into its files.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions<'a> {
    /// Name or path of the base for programs that load the adapter: PEFT's `base_model_name_or_path`.
    pub base_model: &'a str,
    /// `lora_dropout` of the training run.
    pub dropout: f64,
    /// [`Fingerprint`](crate::base::Fingerprint) of the base it was trained on, as text, if known.
    pub fingerprint: Option<&'a str>,
    /// Digest of that base's vocabulary ([`Base::vocabulary`](crate::base::Base::vocabulary)), if known.
    pub vocabulary: Option<&'a str>,
}

impl<'a> WriteOptions<'a> {
    /// Metadata of a safetensors file.
    pub(super) fn metadata(&self) -> HashMap<String, String> {
        self.digests().map(|(key, text)| (key.to_string(), text.to_string())).collect()
    }

    /// The base's digests that are known, under their keys of metadata.
    pub(super) fn digests(&self) -> impl Iterator<Item = (&'static str, &'a str)> {
        let digests = [(FINGERPRINT, self.fingerprint), (VOCABULARY, self.vocabulary)];
        digests.into_iter().filter_map(|(key, text)| Some((key, text?)))
    }
}
