//! The chat template of a run.

use super::RunError;
use crate::base::Base;
#[cfg(feature = "native")]
use crate::base::ollama;
use crate::data::dataset::{DatasetError, Problem};
use crate::data::template::{Date, Jinja, Template};
use crate::{families, files, recipe};

/// The chat template that the recipe's `data.template` selects for a base.
pub fn template(setting: &recipe::Template, base: &Base) -> Result<Template, RunError> {
    let own = base.gguf().get::<&str>("tokenizer.chat_template")?;
    let jinja = |name: &str, source: &str| {
        Ok(Template::Jinja(Box::new(Jinja::named(name, source, today()).map_err(RunError::Template)?)))
    };
    let functions = base.gguf().get::<&str>("tokenizer.chat_template.tool_use")?;
    // The file's templates: its first one, and one for conversations with functions.
    let of_file = |name: &str, source: &str| {
        let named = |source| Jinja::named(name, source, today()).map_err(RunError::Template);
        let first = named(source)?;
        let template = match functions {
            Some(functions) => first.with_functions(named(functions)?),
            None => first,
        };
        Ok(Template::Jinja(Box::new(template)))
    };
    let inside = format!("in {}", base.name());
    let layout = families::template(base.config());
    let built_in = Template::BuiltIn(layout);
    match setting {
        recipe::Template::BuiltIn(family) if *family == base.config().architecture => Ok(built_in),
        recipe::Template::BuiltIn(family) => Err(RunError::Conflict(format!(
            "data.template = \"{family}\" is the layout of other models: {} is one of architecture {}; choose {}, or name a Jinja file \
             with the layout that the samples need",
            base.name(),
            base.config().architecture,
            match own {
                Some(_) => "\"auto\" for the template in its file".into(),
                None => format!("{:?}", base.config().architecture),
            }
        ))),
        // For some families, Ollama ignores the template in its file and renders with its own code; the built-in model comes
        // with this program.
        recipe::Template::Auto if base.is_file() || !layout.follows(renderer(base).as_deref()) => match own {
            Some(source) => of_file(&inside, source),
            None => Ok(built_in),
        },
        recipe::Template::Auto => Ok(built_in),
        recipe::Template::Gguf => match own {
            Some(source) => of_file(&inside, source),
            None => Err(RunError::Conflict(format!(
                "data.template = \"gguf\", but {} has no tokenizer.chat_template; choose \"{}\", or name a Jinja file with the model's \
                 own layout",
                base.name(),
                base.config().architecture
            ))),
        },
        recipe::Template::File(path) => match files::read_to_string(path) {
            Ok(source) => jinja(&path.display().to_string(), &source),
            Err(error) => Err(DatasetError {
                place: path.display().to_string(),
                problem: Problem::Read(error.to_string()),
            }
            .into()),
        },
    }
}

/// The code of Ollama that a model of its store names.
fn renderer(base: &Base) -> Option<String> {
    #[cfg(feature = "native")]
    if base.is_ollama() {
        return ollama::chat(base.name(), &ollama::stores())?.renderer;
    }
    let _ = base;
    None
}

/// The current date in UTC.
fn today() -> Date {
    let now = web_time::SystemTime::now().duration_since(web_time::UNIX_EPOCH);
    Date(now.map_or(0, |now| (now.as_secs() / 86_400) as i64))
}
