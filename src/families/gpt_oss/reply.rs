//! Channels of harmony, the layout of gpt-oss's replies.
//!
//! ```text
//! <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>words<|return|>
//! <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
//! ```

use serde_json::Value;

use crate::data::digits;
use crate::data::template::{ReplySyntax, ToolCall};

pub(super) static SYNTAX: ReplySyntax = ReplySyntax {
    thought: ("<|channel|>analysis<|message|>", "<|end|>"),
    thought_name: "",
    calls: &[("<|channel|>commentary to=functions.", "<|call|>")],
    headers: &[
        "<|start|>assistant",
        "<|channel|>final<|message|>",
        "<|channel|>commentary<|message|>",
        "<|end|>",
        "<|return|>",
    ],
    // Behind `<|start|>assistant` and a space.
    bare_call: "to=functions.",
    spaced: false,
    parse_calls: |text, _| call(text).into_iter().collect(),
};

/// `NAME … <|message|>{…}`, with what stands in front of the name in a call without marks.
fn call(text: &str) -> Option<ToolCall> {
    let text = text.trim_start().strip_prefix("to=functions.").unwrap_or(text);
    let (header, arguments) = text.split_once("<|message|>")?;
    let name = header.split([' ', '<']).next().filter(|name| !name.is_empty())?;
    let arguments = arguments.strip_suffix("<|call|>").unwrap_or(arguments);
    let Ok(Value::Object(arguments)) = digits::parse(arguments) else { return None };
    Some(ToolCall { id: String::new(), name: name.to_owned(), arguments })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::data::template::Part;
    use crate::families::tool_calls::tests::parts;

    #[test]
    fn long_integers_keep_their_digits() {
        let json = r#"{"id":12345678901234567890123}"#;
        let found = call(&format!("pay <|constrain|>json<|message|>{json}")).expect("a call");
        assert_eq!(found.arguments_json(), json);
    }

    #[test]
    fn replies_are_split_by_their_channels() {
        let Value::Object(arguments) = json!({"city": "Lima"}) else { unreachable!("an object") };
        let call = Part::Call(ToolCall { id: String::new(), name: "weather".into(), arguments });
        let (thought, words) = (Part::Thought("Hm.".into()), Part::Words("Yes.".into()));
        let final_words = "<|channel|>final<|message|>Yes.";
        let analysis = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
        let json = "<|message|>{\"city\": \"Lima\"}";
        for (text, expected) in [
            (final_words.to_owned(), vec![words.clone()]),
            (format!("{final_words}<|return|>"), vec![words.clone()]),
            (format!("{analysis}{final_words}"), vec![thought.clone(), words.clone()]),
            ("<|channel|>analysis<|message|>Hm.".into(), vec![thought.clone()]),
            (format!(" to=functions.weather<|channel|>commentary json{json}"), vec![call.clone()]),
            (
                format!("{analysis} to=functions.weather<|channel|>commentary json{json}<|call|>"),
                vec![thought.clone(), call.clone()],
            ),
            (
                format!("{analysis}<|channel|>commentary to=functions.weather <|constrain|>json{json}"),
                vec![thought.clone(), call.clone()],
            ),
            ("<|channel|>commentary<|message|>Yes.".into(), vec![words.clone()]),
        ] {
            for size in [1, 2, 3, 7, 1000] {
                assert_eq!(parts(&SYNTAX, false, &text, size), expected, "{text:?} in pieces of {size}");
            }
        }
    }
}
