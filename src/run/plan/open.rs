//! Opening the base that a recipe names.

use super::RunError;
#[cfg(feature = "native")]
use crate::base::ollama;
use crate::base::{Base, Fingerprint};
use crate::data::dataset::Unasked;
use crate::data::template::{BuiltIn, Conversation, Message, Role, Template, TemplateError};
use crate::data::tokenizer::{Special, Tokenizer};
use crate::families;
use crate::recipe::{Recipe, Switch, Template as Setting};
use crate::verify::HeldOut;

/// An open base with its tokenizer and chat template.
pub struct OpenBase {
    /// The model file.
    pub base: Base,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The variant of the built-in chat template that fits the model.
    pub layout: &'static BuiltIn,
    /// The base's fingerprint.
    pub fingerprint: Fingerprint,
    /// The chat template of this run.
    pub template: Template,
    /// The system message that the template writes into conversations without one.
    pub own_system: Option<String>,
    /// The system message that Ollama puts in front of conversations without one.
    pub ollama_system: Option<String>,
}

impl OpenBase {
    /// Opens the base that `recipe` names.
    #[cfg(feature = "native")]
    pub fn open(recipe: &Recipe) -> Result<OpenBase, RunError> {
        let base = OpenBase::named(&recipe.model.base, &recipe.data.template)?;
        base.check(recipe)?;
        Ok(base)
    }

    /// Fails if `recipe` was written for another base, or needs a longer context or experts that this base does not have.
    pub fn check(&self, recipe: &Recipe) -> Result<(), RunError> {
        if let Some(wanted) = recipe.model.fingerprint.as_ref().filter(|wanted| **wanted != self.fingerprint)
        {
            return Err(RunError::Conflict(format!(
                "{} has the fingerprint {}, but model.fingerprint is {wanted}; use the base that the recipe was \
                 written for, or remove that key",
                self.base.name(),
                self.fingerprint
            )));
        }
        if recipe.train.offload_experts == Switch::On {
            if self.base.config().layers.iter().all(|l| l.experts.is_none()) {
                let text = super::wording::not_a_mixture("train.offload_experts", self.base.name());
                return Err(RunError::Conflict(text));
            }
            if cfg!(target_arch = "wasm32") {
                return Err(RunError::Conflict(
                    "train.offload_experts is true, but a browser has too little memory for it; remove that key, or train with \
                     the command-line program"
                        .into(),
                ));
            }
        }
        if cfg!(target_arch = "wasm32") && recipe.distill.is_some() {
            return Err(super::distill::teacher::unsupported());
        }
        let context = self.base.config().context_length;
        if let Some(row) = recipe.data.max_seq_len.filter(|row| *row > context) {
            return Err(RunError::Conflict(format!(
                "data.max_seq_len = {row} is longer than the context of {} ({context} tokens); lower it",
                self.base.name(),
            )));
        }
        Ok(())
    }

    /// Opens the base `spec` as [`Base::open`] does, with a chat template.
    #[cfg(feature = "native")]
    pub fn named(spec: &str, template: &Setting) -> Result<OpenBase, RunError> {
        OpenBase::of(Base::open(spec)?, template)
    }

    /// Adds tokenizer and chat template to `base`. Fails if the tokenizer does not fit the model.
    pub fn of(base: Base, template: &Setting) -> Result<OpenBase, RunError> {
        let fingerprint = base.fingerprint();
        let tokenizer = Tokenizer::from_gguf(base.gguf())?;
        let config = base.config();
        if tokenizer.vocab_size() > config.vocab {
            return Err(RunError::Conflict(format!(
                "{}: the tokenizer has {} tokens, but token_embd.weight has {} rows; the file is damaged, download it again",
                base.name(),
                tokenizer.vocab_size(),
                config.vocab
            )));
        }
        let layout = families::template(config);
        let template = super::template(template, &base)?;
        if let Template::BuiltIn(layout) = template
            && let Some(token) = layout.tokens.iter().find(|token| tokenizer.id(token).is_none())
        {
            return Err(RunError::Conflict(format!(
                "{} has no chat template, and its vocabulary has no {token}, which the built-in template {} writes; \
                 name the model's Jinja template as data.template",
                base.name(),
                layout.variant
            )));
        }
        let own_system = template.own_system(&tokenizer);
        let ollama_system = ollama_system(&base);
        Ok(OpenBase { base, tokenizer, layout, template, fingerprint, own_system, ollama_system })
    }

    /// The system message that conversations without one have in use: Ollama's, or else the template's.
    pub fn unasked(&self) -> Option<Unasked<'_>> {
        let ollama = self.ollama_system.is_some();
        let text = self.ollama_system.as_deref().or(self.own_system.as_deref())?;
        Some(Unasked { ollama, text })
    }

    /// A few everyday questions with answers, in the run's chat template, in pieces of at most `longest` tokens.
    #[must_use]
    pub fn questions(&self, longest: usize) -> HeldOut {
        let vocab = self.base.config().vocab;
        HeldOut::built_in(&self.tokenizer, (&self.template, self.layout), longest, vocab)
    }

    /// Renders a user's message as a prompt for a reply, as token ids.
    pub fn prompt(&self, text: &str) -> Result<Vec<u32>, TemplateError> {
        self.prompt_after(None, text)
    }

    /// Renders a user's message after a system message, if there is one.
    pub fn prompt_after(&self, system: Option<&str>, text: &str) -> Result<Vec<u32>, TemplateError> {
        let system = system.map(|system| Message::new(Role::System, system));
        let messages = system.into_iter().chain([Message::new(Role::User, text)]);
        let conversation = Conversation::new(messages.collect());
        self.template.prompt(&self.tokenizer, &conversation)
    }

    /// A text to continue as it stands, without the chat template, as token ids.
    pub fn continuation(&self, text: &str) -> Vec<u32> {
        let ids = self.tokenizer.encode(text, Special::Parse);
        let bos = self.tokenizer.bos().filter(|bos| ids.first() != Some(bos));
        bos.into_iter().chain(ids).collect()
    }
}

/// The system message of a model in Ollama's store.
fn ollama_system(base: &Base) -> Option<String> {
    #[cfg(feature = "native")]
    if base.is_ollama() {
        let system = ollama::chat(base.name(), &ollama::stores())?.system?;
        return Some(system).filter(|system| !system.trim().is_empty());
    }
    let _ = base;
    None
}
