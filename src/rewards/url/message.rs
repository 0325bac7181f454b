//! The message to a judge, and the number of its answer.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::super::Completion;
use crate::recipe::JudgeReward;

/// A number, perhaps of so many points.
static POINTS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(-?[0-9]+(?:\.[0-9]+)?)(?:\s*(?:/|out of)\s*([0-9]+(?:\.[0-9]+)?))?").expect("a pattern")
});

/// The rubric with its places filled in; `None` if the row lacks a column or has null there. Places in what is filled in stay as they are.
pub(super) fn of(judge: &JudgeReward, completion: &Completion<'_>) -> Result<Option<String>, String> {
    let rubric = &judge.rubric;
    let (mut text, mut end) = (String::new(), 0);
    for (place, name) in judge.places() {
        text += &rubric[end..place.start];
        end = place.end;
        match (name, completion.row.get(name)) {
            ("completion", _) => text += completion.text,
            ("prompt", _) => text += &in_words(completion.prompt),
            (_, None | Some(Value::Null)) => return Ok(None),
            (_, Some(value)) => text += &in_words(value),
        }
    }
    text += &rubric[end..];
    text += &format!("\n\nEnd your answer with one number from 0 (worst) to {} (best).", judge.max_score);
    Ok(Some(text))
}

/// A value as text: messages as lines with their roles, one message of a user without.
fn in_words(value: &Value) -> String {
    let content = |message: &Value| match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        other => other.to_string(),
    };
    match value {
        Value::String(text) => text.clone(),
        Value::Array(messages)
            if !messages.is_empty() && messages.iter().all(|message| message["role"].is_string()) =>
        {
            match &messages[..] {
                [only] if only["role"] == "user" => content(only),
                _ => {
                    let line = |message: &Value| {
                        format!("{}: {}", message["role"].as_str().unwrap_or_default(), content(message))
                    };
                    messages.iter().map(line).collect::<Vec<_>>().join("\n\n")
                }
            }
        }
        other => other.to_string(),
    }
}

/// The last number of an answer, behind its thoughts; `None` if it is not from 0 to `most`, or of other points than `most`.
pub(super) fn score(reply: &str, most: f64) -> Option<f64> {
    let answer = reply.rsplit("</think>").next().unwrap_or(reply);
    let found = POINTS.captures_iter(answer).last()?;
    let number = |i: usize| found.get(i).map(|text| text.as_str().parse::<f64>());
    if number(2).is_some_and(|points| points != Ok(most)) {
        return None;
    }
    number(1)?.ok().filter(|score| (0.0..=most).contains(score))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::recipe::Reward;

    #[test]
    fn the_last_number_is_the_score() {
        let cases = [
            ("8", Some(8.0)),
            ("Score: 7.5", Some(7.5)),
            ("8/10", Some(8.0)),
            ("8 out of 10.", Some(8.0)),
            ("<think>9? 3?</think>\n4", Some(4.0)),
            ("{\"score\": 0}", Some(0.0)),
            ("**10**", Some(10.0)),
            ("Two of 3 facts hold. 6", Some(6.0)),
            ("4/5", None),
            ("11", None),
            ("-1", None),
            ("none", None),
            ("", None),
            ("9999999999999999999999999999999", None),
        ];
        for (reply, expected) in cases {
            assert_eq!(score(reply, 10.0), expected, "{reply:?}");
        }
    }

    #[test]
    fn places_are_filled_once() {
        let reward =
            "name = 'url', url = 'http://x', model = 'm', rubric = '{prompt}|{completion}|{answer}|{ }|{'";
        let reward = Reward::parse(reward, "test").expect("a reward");
        assert_eq!(reward.columns(), ["answer"]);
        let crate::recipe::RewardKind::Url(judge) = reward.kind else { panic!("it is a judge") };
        let fill = |prompt: Value, row: Value| {
            let Value::Object(row) = row else { panic!("a row is an object") };
            let completion =
                Completion { prompt: &prompt, text: "{answer}", ids: &[], finished: true, row: &row };
            of(&judge, &completion).expect("no problem")
        };
        let end = "\n\nEnd your answer with one number from 0 (worst) to 10 (best).";
        let message = |prompt| fill(prompt, json!({ "answer": 5 }));
        assert_eq!(message(json!("Hi")), Some(format!("Hi|{{answer}}|5|{{ }}|{{{end}")));
        let one = json!([{ "role": "user", "content": "Hi" }]);
        assert_eq!(message(one), Some(format!("Hi|{{answer}}|5|{{ }}|{{{end}")));
        let two = json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": [{ "type": "text", "text": "Hi" }] }]);
        assert_eq!(message(two), Some(format!("system: Be brief.\n\nuser: Hi|{{answer}}|5|{{ }}|{{{end}")));
        assert_eq!(fill(json!("Hi"), json!({ "answer": null })), None);
        assert_eq!(fill(json!("Hi"), json!({})), None);
    }
}
