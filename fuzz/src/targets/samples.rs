//! Samples in every form that datasets have.

pub const LINES: &str = r#"{"prompt": "Hi", "completion": "Hello!", "id": 1}
{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
{"input_ids": [2, 5, 9, 7], "labels": [-100, 2047, 9, 0]}
{"text": "To the end."}
{"instruction": "Say it.", "input": "x", "output": "y"}
{"prompt": "Who?", "completion": "Ann.", "context": "Ann did it."}
"#;

/// The samples as JSON objects.
pub fn objects() -> Vec<&'static str> {
    LINES.lines().collect()
}
