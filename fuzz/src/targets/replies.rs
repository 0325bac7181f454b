//! Chat templates, and the replies of models.

use rullama_train::data::template::{
    Conversation, Date, GoTemplate, Jinja, Message, Part, ReplyParts, Role, Template, TemplateError,
    ToolCall, TrainOn,
};
use serde_json::json;

use super::{Outcome, accepted_if, refused, tokenizer};

pub fn templates() -> Vec<Vec<u8>> {
    const SIMPLE: &str = "{{ bos_token }}{% for m in messages %}<|turn>{{ m.role }}\n{% if m['role'] == 'assistant' %}\
        {% generation %}{{ m.content | trim }}<turn|>{% endgeneration %}{% else %}{{ m.content }}<turn|>{% endif %}\n{% endfor %}\
        {% if add_generation_prompt %}<|turn>model\n{% endif %}";
    vec![SIMPLE.into()]
}

fn conversation() -> Conversation {
    Conversation::new(vec![
        Message::new(Role::System, "Be brief."),
        Message::new(Role::User, "Hello! "),
        Message::new(Role::Assistant, "Ahoy!"),
    ])
}

/// Reasoning, a function call and its result.
fn calls() -> Conversation {
    let mut call = Message::new(Role::Assistant, "Let me see.");
    let arguments = json!({ "city": "Lima", "days": [1, 2.5, null] });
    let arguments = arguments.as_object().expect("an object").clone();
    call.tool_calls.push(ToolCall { id: "1".into(), name: "weather".into(), arguments });
    let result =
        Message { name: "weather".into(), tool_call_id: "1".into(), ..Message::new(Role::Tool, "rain") };
    let messages = vec![
        Message::new(Role::System, "Be brief."),
        Message::new(Role::User, "Hello! "),
        Message { thinking: "Hm.".into(), ..Message::new(Role::Assistant, "Ahoy!") },
        Message::new(Role::User, "The weather?"),
        call,
        result,
        Message::new(Role::Assistant, "Rain."),
    ];
    let tools = vec![json!({ "type": "function", "function": { "name": "weather" } })];
    Conversation { tools, ..Conversation::new(messages) }
}

/// A rendering ends, and has a label per token.
pub fn template(input: &[u8]) -> Outcome {
    let Ok(source) = std::str::from_utf8(input) else { return Outcome::Refused("not UTF-8".into()) };
    let template = match Jinja::new(source, Date(20_000)) {
        Ok(jinja) => Template::Jinja(Box::new(jinja)),
        Err(error) => return refused(error),
    };
    for mut conversation in [calls(), conversation()] {
        let rendered = template.render(tokenizer(), &conversation, TrainOn::Assistant);
        // A template that works too much does so every time.
        if let Err(error @ TemplateError::Stopped { .. }) = rendered {
            return refused(error);
        }
        conversation.messages.pop();
        let prompt = template.prompt(tokenizer(), &conversation).map_or_else(refused, |_| Outcome::Accepted);
        let rendered = match rendered {
            Ok(found) => {
                accepted_if(found.ids.len() == found.labels.len(), || "tokens without labels".into())
            }
            Err(error) => refused(error),
        };
        let last = conversation.tools.is_empty();
        match [rendered, prompt] {
            [Outcome::Wrong(problem), _] | [_, Outcome::Wrong(problem)] => return Outcome::Wrong(problem),
            [rendered, _] if last => return rendered,
            _ => {}
        }
    }
    unreachable!("the last conversation has no tools")
}

pub fn go_templates() -> Vec<Vec<u8>> {
    let thoughts = include_bytes!("../../../tests/fixtures/template/go/thoughts.gotmpl");
    let rounds = include_bytes!("../../../tests/fixtures/template/go/rounds.gotmpl");
    vec![thoughts.to_vec(), rounds.to_vec()]
}

/// A rendering ends.
pub fn go_template(input: &[u8]) -> Outcome {
    let Ok(source) = std::str::from_utf8(input) else { return Outcome::Refused("not UTF-8".into()) };
    let mut conversation = conversation();
    conversation.messages.pop();
    match GoTemplate::new(source).and_then(|template| template.prompt(&conversation, Date(0))) {
        Ok(_) => Outcome::Accepted,
        Err(error) => refused(error),
    }
}

pub fn replies() -> Vec<Vec<u8>> {
    [
        "Hello < you <|",
        "<|channel>thought\nHm.\nWell.\n\n<channel|>I look.<|tool_call>call:f{city:<|\"|>Lima<|\"|>,days:3}<tool_call|> Done.",
        "<|tool_call>call:f{a:[1,{b:true}],c:{d:null}}<tool_call|><|tool_call>call:{}<tool_call|>",
    ]
    .map(|text| text.into())
    .to_vec()
}

/// A reply in pieces of any size gives the same parts.
pub fn reply(input: &[u8]) -> Outcome {
    let text = String::from_utf8_lossy(input);
    let whole = parts(std::iter::once(&*text));
    let letters = parts(text.split_inclusive(|_: char| true));
    let words = parts(text.split_inclusive(['<', ' ', '\n']));
    accepted_if(whole == letters && whole == words, || {
        format!("whole: {whole:?}; by letter: {letters:?}; by word: {words:?}")
    })
}

/// The joined parts of a reply.
fn parts<'a>(pieces: impl Iterator<Item = &'a str>) -> Vec<Part> {
    let mut parser = ReplyParts::to(&[], tokenizer());
    let mut found: Vec<Part> = pieces.flat_map(|piece| parser.push(piece)).collect();
    found.extend(parser.finish());
    Part::join(found)
}
