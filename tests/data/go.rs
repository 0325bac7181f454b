//! Go templates, with which Ollama renders: the prompts for forty conversations equal those of Go's own `text/template`
//! (fixtures/template/go.go), and every template that cannot be rendered is an error.

use rullama_train::data::template::{
    Comparison, Conversation, Difference, GoTemplate, InOllama, Jinja, Message, Role, Template,
};
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::families::{
    self, ernie4_5, gemma3, glm4, granite, hunyuan, llama, mistral3, phi3, qwen3, seed_oss,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::common_families::{by_scores, byte_level};
use crate::common_template::{Case, DAY};

const TEMPLATES: [(&str, &str); 6] = [
    ("bare", include_str!("../fixtures/template/go/bare.gotmpl")),
    ("chatml", include_str!("../fixtures/template/go/chatml.gotmpl")),
    ("functions", include_str!("../fixtures/template/go/functions.gotmpl")),
    ("headers", include_str!("../fixtures/template/go/headers.gotmpl")),
    ("rounds", include_str!("../fixtures/template/go/rounds.gotmpl")),
    ("thoughts", include_str!("../fixtures/template/go/thoughts.gotmpl")),
];

fn digest(text: &str) -> String {
    Sha256::digest(text)[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn prompts_are_those_of_go() {
    let expected: Value =
        serde_json::from_str(include_str!("../fixtures/template/go.json")).expect("the fixture is JSON");
    let (mut compared, mut differences) = (0, Vec::new());
    for (name, source) in TEMPLATES {
        let template = GoTemplate::new(source).unwrap_or_else(|e| panic!("{name}: {e}"));
        let expected = expected[name].as_array().expect("a list");
        assert_eq!(expected.len(), Case::all().len());
        for (case, expected) in Case::all().into_iter().zip(expected) {
            // Here, `developer` is another name of the system.
            if case.name == "developer" {
                continue;
            }
            let mut asked = case.conversation.clone();
            let last = asked.messages.iter().rposition(|m| m.role == Role::Assistant).expect("an answer");
            asked.messages.truncate(last);
            let thinks = case.conversation.messages.iter().any(|m| !m.thinking.is_empty());
            asked.kwargs.insert("enable_thinking".into(), thinks.into());
            let found = template.prompt(&asked, DAY);
            compared += 1;
            if found.as_deref().map(digest).ok().as_deref() != expected.as_str() {
                differences.push(format!("{name}, {}, expected {expected}: {found:?}", case.name));
            }
        }
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
    assert_eq!(compared, 6 * 39);
}

fn prompt(source: &str) -> Result<String, String> {
    let question = Conversation::new(vec![Message::new(Role::User, "Hi")]);
    GoTemplate::new(source).and_then(|template| template.prompt(&question, DAY)).map_err(|e| e.to_string())
}

#[test]
fn templates_that_cannot_be_rendered_are_errors() {
    let fine = prompt("{{ range .Messages }}{{ .Content }}{{ end }}{{ .Nothing }}");
    assert_eq!(fine.as_deref(), Ok("Hi<no value>"));
    assert_eq!(prompt("{{ .Prompt }}, {{ currentDate }}").as_deref(), Ok("Hi, 2026-09-05"));
    for (source, expected) in [
        ("{{ .Prompt", "it is no Go template: an action is not closed by }}"),
        ("{{ \"a }}", "it is no Go template: a text is not closed"),
        ("{{ if .Prompt }}", "it is no Go template: a block has no {{ end }}"),
        ("{{ end }}", "it is no Go template: {{ end }} without a block"),
        ("{{ }}", "it is no Go template: an action is empty"),
        ("{{ (1 }}", "it is no Go template: a parenthesis is not closed"),
        ("{{ 1) }}", "it is no Go template: a parenthesis is closed that was not opened"),
        ("{{ break }}", "it is no Go template: {{ break }} outside of a loop"),
        ("{{ $x }}", "it fails: the variable $x, which is not defined"),
        ("{{ $x = 1 }}", "it fails: the variable $x, which is not defined"),
        ("{{ template \"a\" . }}", "it uses {{ template }}, which is not supported here"),
        ("{{ call .Prompt }}", "it uses the function call, which is not supported here"),
        (
            "{{ range .Messages }}{{ .Weight }}{{ end }}",
            "it uses the field .Weight of a message, which is not supported here",
        ),
        ("{{ .Prompt.Name }}", "it fails: the field .Name of Hi"),
        ("{{ index .Messages 5 }}", "it fails: the index 5 of 1 items"),
        ("{{ lt 1 \"a\" }}", "it fails: 1 compared with a"),
    ] {
        assert_eq!(prompt(source), Err(expected.to_owned()), "{source}");
    }
}

#[test]
fn renderings_and_their_sources_are_bounded() {
    let messages: Vec<Message> =
        (0..200).map(|i| Message::new(if i % 2 == 0 { Role::User } else { Role::Assistant }, "x")).collect();
    let long = Conversation::new(messages);
    let error = |source: &str| {
        let found = GoTemplate::new(source).and_then(|template| template.prompt(&long, DAY));
        found.map(|text| text.len()).expect_err("refused").to_string()
    };
    let loops = "{{ range $.Messages }}".repeat(4) + &"{{ end }}".repeat(4);
    assert_eq!(error(&loops), "it does not come to an end");
    let writes = format!("{{{{ range .Messages }}}}{}{{{{ end }}}}", "long ".repeat(100_000));
    assert_eq!(error(&writes), "it makes too much text");
    assert_eq!(
        error(&"{{ if 1 }}".repeat(100_000)),
        "it is no Go template: its blocks are nested too deeply"
    );
    let parentheses = format!("{{{{ {}", "(".repeat(100_000));
    assert_eq!(error(&(parentheses + "}}")), "it is no Go template: its parentheses are nested too deeply");
    assert_eq!(error(&"x".repeat(2 << 20)), "it is larger than 1 MiB");
    let padded = prompt("{{ printf \"%999999999d\" 1 }}").expect("rendered");
    assert_eq!(padded.len(), 999);
}

/// The conversations without functions and thoughts, up to the question for the last answer.
fn questions() -> Vec<Conversation> {
    let asked = |case: Case| {
        let mut asked = case.conversation;
        asked.messages.truncate(asked.messages.iter().rposition(|m| m.role == Role::Assistant).expect("one"));
        asked.kwargs.insert("enable_thinking".into(), false.into());
        asked
    };
    // Go templates cannot trim, and Ollama knows no empty messages.
    let plain = |c: &Conversation| {
        c.tools.is_empty()
            && c.messages.iter().all(|m| {
                let outer = |c: char| c.is_whitespace() || c.is_control();
                m.thinking.is_empty()
                    && m.content.trim_matches(outer) == m.content
                    && !m.content.is_empty()
                    && m.role != Role::Tool
            })
    };
    Case::all().into_iter().map(asked).filter(plain).collect()
}

#[test]
fn layouts_for_ollama_write_what_their_jinja_writes() {
    let tokenizer = Tokenizer::new(byte_level("qwen2"), &qwen3::TOKENIZER).expect("sound");
    let questions = questions();
    assert!(questions.len() >= 10, "{}", questions.len());
    let layout = |source: &str| {
        // The end of a turn in the vocabularies that these layouts are for.
        let source = source.replace("eos_token", "'</s>'");
        let template = Template::Jinja(Box::new(Jinja::new(&source, DAY).expect("sound")));
        families::ollama_templates::LAYOUTS.iter().position(|layout| {
            let go = GoTemplate::new(layout).expect("sound");
            let found = go.compare(&template, &tokenizer, &questions).expect("it renders");
            found.compared >= 8 && found.difference.is_none()
        })
    };
    assert_eq!(layout(include_str!("../fixtures/template/families/qwen3.jinja")), Some(0));
    assert_eq!(layout(include_str!("../fixtures/template/families/qwen2.5.jinja")), Some(1));
    assert_eq!(layout(include_str!("../fixtures/template/families/smollm2.jinja")), Some(2));
    assert_eq!(layout(include_str!("../fixtures/template/families/mistral.jinja")), Some(4));
    assert_eq!(layout(include_str!("../fixtures/template/families/gpt-oss.jinja")), Some(6));
    assert_eq!(layout(include_str!("../fixtures/template/families/deepseek-r1.jinja")), None);
    if let Ok(folder) = std::env::var("RULLAMA_TEMPLATES") {
        let read = |name: &str| std::fs::read_to_string(format!("{folder}/{name}.jinja")).expect("there");
        let found = ["llama3.1", "llama3.2", "nemo", "gemma3"].map(|name| layout(&read(name)));
        assert_eq!(found, [Some(3), None, Some(5), None]);
    }
}

#[test]
fn built_in_layouts_have_a_go_template_for_ollama() {
    let questions = questions();
    let bytes = Tokenizer::new(byte_level("qwen2"), &qwen3::TOKENIZER).expect("sound");
    let scores = Tokenizer::new(by_scores(false), &gemma3::TOKENIZER).expect("sound");
    for (layout, tokenizer) in [
        (&qwen3::CHAT, &bytes),
        (&llama::CHAT, &bytes),
        (&gemma3::CHAT, &scores),
        (&granite::CHAT, &bytes),
        (&seed_oss::CHAT, &bytes),
        (&mistral3::CHAT, &bytes),
        (&ernie4_5::CHAT, &bytes),
        (&glm4::CHAT, &bytes),
        (&hunyuan::CHAT, &bytes),
        (&phi3::CHAT_3, &bytes),
        (&phi3::CHAT_4, &bytes),
        (&phi3::CHAT_4_MINI, &bytes),
    ] {
        let InOllama::Template(go) = layout.in_ollama else { panic!("{} is code of Ollama", layout.family) };
        // The token that begins a sequence is another one in this vocabulary.
        let source = match layout.family {
            "llama" => "<|begin_of_text|>".to_owned() + &go(),
            "mistral3" => "<s>".to_owned() + &go(),
            "hunyuan-dense" => "<｜hy_begin▁of▁sentence｜>".to_owned() + &go(),
            "ernie4_5" => "<|begin_of_sentence|>".to_owned() + &go(),
            _ => go(),
        };
        let go = GoTemplate::new(&source).expect("sound");
        let found = go.compare(&Template::BuiltIn(layout), tokenizer, &questions).expect("it renders");
        assert_eq!((found.compared, found.difference), (questions.len(), None), "{}", layout.family);
    }
}

#[test]
fn differences_show_where_prompts_part() {
    let tokenizer = Tokenizer::new(byte_level("qwen2"), &qwen3::TOKENIZER).expect("sound");
    let go = GoTemplate::new("{{ range .Messages }}<|im_start|>{{ .Role }}: {{ .Content }}{{ end }}")
        .expect("sound");
    let question = Conversation::new(vec![Message::new(Role::User, "Hi")]);
    let found = go.compare(&Template::BuiltIn(&qwen3::CHAT), &tokenizer, &[question]).expect("it renders");
    let expected = Difference {
        before: "<|im_start|>user".into(),
        trained: "\nHi<|im_end|>\n<|im_start|>assistant\n".into(),
        go: ": Hi".into(),
    };
    assert_eq!(found, Comparison { compared: 1, difference: Some(expected) });
}
