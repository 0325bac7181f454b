//! The text that Ollama writes for a model of its store, beside the one that training uses.

use crate::base::{Base, ollama};
use crate::data::template::{
    Comparison, Conversation, Difference, GoTemplate, InOllama, Message, Role, Template,
};
use crate::data::tokenizer::Tokenizer;
use crate::families;

/// Says which text Ollama writes for a model of its store, and which one training uses. `None` if the base is a file, or if
/// Ollama renders it by code that the built-in template follows. `system`: the system message that training adds.
pub fn rendering(
    base: &Base,
    template: &Template,
    tokenizer: &Tokenizer,
    system: Option<&str>,
) -> Option<String> {
    if !base.is_ollama() {
        return None;
    }
    let chat = ollama::chat(base.name(), &ollama::stores())?;
    let followed = families::template(base.config()).follows(chat.renderer.as_deref());
    let prompts = (!followed).then(|| described(&chat, template, tokenizer));
    let ollamas = chat.system.as_deref().map(str::trim).filter(|ollama| !ollama.is_empty());
    let other = ollamas.filter(|ollama| Some(*ollama) != system.map(str::trim)).map(|ollama| {
        let trained = system.map_or("none".into(), |system| format!("{system:?}"));
        format!(
            "Ollama puts the system message {ollama:?} in front of conversations without one, training puts {trained}; set \
             data.system to Ollama's, or change SYSTEM in the model"
        )
    });
    let all: Vec<String> = other.into_iter().chain(prompts).collect();
    (!all.is_empty()).then(|| all.join("; apart from that, "))
}

/// Where the prompts of `template` differ from those of the family's layout, which Ollama's code for the architecture writes.
pub fn differs_from_layout(base: &Base, template: &Template, tokenizer: &Tokenizer) -> Option<Difference> {
    let layout = Template::BuiltIn(families::template(base.config()));
    conversations(None, true).iter().find_map(|conversation| {
        let text = |template: &Template| template.text(tokenizer, conversation, true).ok();
        let (trained, ollamas) = (text(template)?, text(&layout)?);
        (trained != ollamas).then(|| Difference::of(&trained, &ollamas))
    })
}

/// The comparison of a model's Go template with the template that training uses.
fn described(chat: &ollama::Chat, template: &Template, tokenizer: &Tokenizer) -> String {
    const CHOICE: &str = "compare `ollama show --template` with the sample below";
    if let Some(renderer) = &chat.renderer {
        return format!(
            "Ollama renders this model by its own code, {renderer:?}, not by this template; {CHOICE}"
        );
    }
    let Some(source) = &chat.template else {
        return "Ollama's model has no template, so Ollama sends the question alone; give it a TEMPLATE"
            .into();
    };
    let compared = GoTemplate::new(source)
        .and_then(|go| go.compare(template, tokenizer, &conversations(chat.system.as_deref(), go.thinks())));
    match compared {
        Err(error) => {
            format!(
                "Ollama renders with the Go template of its model, which cannot be compared: {error}; {CHOICE}"
            )
        }
        Ok(Comparison { compared: 0, .. }) => {
            format!("Ollama renders with the Go template of its model, which was not compared; {CHOICE}")
        }
        Ok(Comparison { compared, difference: None }) => {
            format!("Ollama writes the same prompts with the Go template of its model ({compared} compared)")
        }
        Ok(Comparison { difference: Some(found), .. }) => format!(
            "Ollama writes other prompts with the Go template of its model: behind {:?}, training has {:?} and Ollama {:?}; to train \
             on Ollama's text, write it as a Jinja file and name that in data.template; to keep training's, change the TEMPLATE of \
             the Modelfile that `merge` writes",
            found.before, found.trained, found.go
        ),
    }
}

/// A Go template for a base without one, and where its prompts differ from those of `template`: one that writes the same if there
/// is any, otherwise that of the family's layout. `None` if Ollama renders the family by its own code.
pub fn go_template(
    base: &Base,
    template: &Template,
    tokenizer: &Tokenizer,
) -> Option<(String, Option<Difference>)> {
    let InOllama::Template(own) = families::template(base.config()).in_ollama else { return None };
    let compared = |source: &str| {
        let go = GoTemplate::new(source).expect("ours are sound");
        go.compare(template, tokenizer, &conversations(None, go.thinks())).expect("ours are sound")
    };
    let own = own();
    let equal = |source: &&str| matches!(compared(source), Comparison { compared: 1.., difference: None });
    let found = std::iter::once(&*own).chain(families::ollama_templates::LAYOUTS).find(equal);
    let difference = if found.is_some() { None } else { compared(&own).difference };
    Some((found.unwrap_or(&own).to_owned(), difference))
}

/// Short conversations: a question, one with a system message, and a second question; without and with thinking where the template
/// knows it. `system` is the message that Ollama puts in front of conversations without one.
fn conversations(system: Option<&str>, thinks: bool) -> Vec<Conversation> {
    let message = |(role, text): (Role, &str)| Message::new(role, text);
    let talks: [&[(Role, &str)]; 3] = [
        &[(Role::User, "Hello")],
        &[(Role::System, "Be brief."), (Role::User, "Hello")],
        &[(Role::User, "Hello"), (Role::Assistant, "Hi!"), (Role::User, "How are you?")],
    ];
    let mut found = Vec::new();
    for thinking in [false, true].into_iter().take(1 + usize::from(thinks)) {
        for talk in talks {
            let mut messages: Vec<Message> = talk.iter().copied().map(message).collect();
            if messages[0].role != Role::System
                && let Some(system) = system
            {
                messages.insert(0, Message::new(Role::System, system));
            }
            let mut conversation = Conversation::new(messages);
            conversation.kwargs.insert("enable_thinking".into(), thinking.into());
            found.push(conversation);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::OpenBase;

    /// The small Qwen 3, whose Jinja template is plain ChatML.
    fn qwen3() -> OpenBase {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/qwen3/model.gguf");
        OpenBase::named(path, &crate::recipe::Template::Auto).expect("a model")
    }

    fn of(chat: &ollama::Chat) -> String {
        let OpenBase { template, tokenizer, .. } = qwen3();
        described(chat, &template, &tokenizer)
    }

    fn go(template: &str) -> ollama::Chat {
        ollama::Chat { template: Some(template.into()), ..ollama::Chat::default() }
    }

    #[test]
    fn both_texts_are_compared() {
        let source = "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n";
        let same = "Ollama writes the same prompts with the Go template of its model (3 compared)";
        assert_eq!(of(&go(source)), same);
        assert_eq!(of(&ollama::Chat { system: Some("Be brief.".into()), ..go(source) }), same);
        let other = of(&go(&source.replace("<|im_end|>", "<|end|>")));
        let parts = "behind \"<|im_start|>user\\nHello<|\", training has \"im_end|>\\n<|im_start|>assistant\\n\" and Ollama \"end|>\\n";
        assert!(other.contains(parts), "{other}");
        assert!(other.contains("name that in data.template"), "{other}");
    }

    #[test]
    fn what_cannot_be_compared_is_named() {
        for (chat, expected) in [
            (
                go("{{ template \"x\" }}"),
                "cannot be compared: it uses {{ template }}, which is not supported here",
            ),
            (ollama::Chat::default(), "Ollama's model has no template"),
            (
                ollama::Chat { renderer: Some("qwen3-coder".into()), ..ollama::Chat::default() },
                "by its own code, \"qwen3-coder\"",
            ),
        ] {
            let found = of(&chat);
            assert!(found.contains(expected), "{found}");
        }
    }

    #[test]
    fn a_base_without_a_go_template_gets_one() {
        let OpenBase { base, template, tokenizer, .. } = qwen3();
        let (go, difference) = go_template(&base, &template, &tokenizer).expect("no code of Ollama");
        assert!(go.starts_with("{{ range .Messages }}<|im_start|>{{ .Role }}"), "{go}");
        assert_eq!(difference, None);
    }
}
