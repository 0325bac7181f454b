//! The base's repository on the Hugging Face Hub, which PEFT needs to load the base behind an adapter.

use crate::base::Gguf;
use crate::recipe::toml_string;

/// The repository that a GGUF file was made from, as far as its metadata says.
#[derive(Clone, Debug, PartialEq)]
pub enum Hub {
    /// The repository.
    Known(String),
    /// Only its organization and the model's title: a repository guessed from these could be another model's.
    Organization {
        /// The organization.
        organization: String,
        /// The title.
        title: String,
    },
}

/// Keys with the address of the repository that a file was converted from.
const ADDRESSES: [&str; 3] = ["general.source.repo_url", "general.source.url", "general.repo_url"];

impl Hub {
    /// The repository of `gguf`; `None` if it says nothing.
    pub fn of(gguf: &Gguf) -> Option<Hub> {
        Hub::from_metadata(|key| gguf.get::<&str>(key).ok().flatten())
    }

    fn from_metadata<'a>(text: impl Fn(&str) -> Option<&'a str>) -> Option<Hub> {
        let text = |key: &str| {
            text(key).map(str::trim).filter(|text| !text.is_empty() && !text.contains(['\n', '\r']))
        };
        if let Some(name) = ADDRESSES.iter().filter_map(|key| text(key)).find_map(repository) {
            return Some(Hub::Known(name));
        }
        let organization = text("general.organization").filter(|name| is_name(name))?.to_owned();
        let title = text("general.name").or_else(|| text("general.basename")).unwrap_or("unnamed").to_owned();
        Some(Hub::Organization { organization, title })
    }

    /// The line of the recipe: key, value and comment. A line that has to be completed is a comment.
    pub fn line(self) -> (&'static str, String, String) {
        match self {
            Hub::Known(name) => (
                "output.base_model_name",
                toml_string(&name),
                "the base that PEFT loads, from the file's metadata".into(),
            ),
            Hub::Organization { organization, title } => (
                "output.# base_model_name",
                toml_string(&format!("{organization}/…")),
                format!("the base that PEFT loads; the file calls itself “{title}”"),
            ),
        }
    }
}

/// The repository `org/name` of its address on the Hub.
fn repository(address: &str) -> Option<String> {
    let path = address.split_once("huggingface.co/")?.1.trim_end_matches('/');
    let (organization, name) = path.split_once('/')?;
    (is_name(organization) && is_name(name)).then(|| path.to_owned())
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(metadata: &[(&str, &'static str)]) -> Option<Hub> {
        Hub::from_metadata(|key| metadata.iter().find(|(name, _)| *name == key).map(|(_, text)| *text))
    }

    #[test]
    fn an_address_names_the_repository() {
        let known = |name: &str| Some(Hub::Known(name.into()));
        let address = "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct";
        assert_eq!(of(&[("general.source.repo_url", address)]), known("HuggingFaceTB/SmolLM2-135M-Instruct"));
        assert_eq!(of(&[("general.repo_url", "https://huggingface.co/unsloth")]), None, "an organization");
        assert_eq!(of(&[("general.source.url", "https://example.com/a/b")]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_repository_is_not_guessed() {
        let of_smollm = of(&[("general.organization", "HuggingFaceTB"), ("general.name", "Smollm2 135M")]);
        let (key, value, comment) = of_smollm.expect("it has an organization").line();
        assert_eq!((key, &*value), ("output.# base_model_name", "\"HuggingFaceTB/…\""));
        assert!(comment.ends_with("“Smollm2 135M”"), "{comment}");
    }
}
