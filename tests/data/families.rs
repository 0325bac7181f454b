//! Chat templates of other families: the text equals transformers' for forty conversations, and the loss tokens are those that
//! the assistant writes. `RULLAMA_TEMPLATES` names a folder with further templates (fixtures/template/families.py).

use std::path::Path;

use rullama_train::data::template::{
    Conversation, Jinja, Message, Role, Template, TemplateError, ToolCall, TrainOn,
};
use rullama_train::data::tokenizer::{Special, Tokenizer};
use rullama_train::families::{gemma3, gpt_oss, llama, qwen3, qwen35};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::trained;
use crate::common_families::{by_scores, byte_level};
use crate::common_template::{Case, DAY};

const GPT_OSS: &str = include_str!("../fixtures/template/families/gpt-oss.jinja");
const QWEN3: &str = include_str!("../fixtures/template/families/qwen3.jinja");
const QWEN35: &str = include_str!("../fixtures/template/families/qwen3.5.jinja");

fn tokenizer() -> Tokenizer {
    Tokenizer::new(byte_level("qwen2"), &qwen3::TOKENIZER).expect("sound")
}

fn jinja(source: &str) -> Template {
    Template::Jinja(Box::new(Jinja::new(source, DAY).expect("sound")))
}

fn digest(text: &str) -> String {
    Sha256::digest(text)[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares a template's renderings with transformers'; returns the differences and the number of equal texts.
fn compare(name: &str, source: &str, expected: &Value) -> (Vec<String>, usize) {
    let (tokenizer, template) = (tokenizer(), jinja(source));
    let (mut wrong, mut equal) = (Vec::new(), 0);
    for (case, expected) in Case::all().iter().zip(expected.as_array().expect("a list")) {
        // Here, `developer` is another name of the system.
        if case.name == "developer" {
            continue;
        }
        let mut asked = case.conversation.clone();
        asked.messages.truncate(asked.messages.iter().rposition(|m| m.role == Role::Assistant).expect("one"));
        asked.kwargs.insert("enable_thinking".into(), case.conversation.thinks().into());
        for (conversation, prompt) in [(&case.conversation, false), (&asked, true)] {
            let expected = expected[usize::from(prompt)].as_str().expect("a digest");
            let found = template.text(&tokenizer, conversation, prompt);
            // A field that a template never reads is refused here, and lost there.
            if let Err(TemplateError::Unused(_)) = found {
                continue;
            }
            match found.as_deref().map_or(String::new(), digest) {
                digest if digest == expected => equal += 1,
                _ => wrong
                    .push(format!("{name}, {}, prompt {prompt}, expected {expected}: {found:?}", case.name)),
            }
        }
    }
    (wrong, equal)
}

/// The expected texts, and those in `families.json` of a folder with further templates.
fn with_own_expectations(mut fixture: Value, folder: &Path) -> Value {
    if let Ok(text) = std::fs::read_to_string(folder.join("families.json")) {
        let own: Map<String, Value> = serde_json::from_str(&text).expect("families.json is an object");
        fixture.as_object_mut().expect("an object").extend(own);
    }
    fixture
}

#[test]
fn published_templates_render_as_in_transformers() {
    let fixture: Value = serde_json::from_str(include_str!("../fixtures/template/families.json"))
        .expect("the fixture is JSON");
    let further = std::env::var("RULLAMA_TEMPLATES");
    let fixture = match &further {
        Ok(folder) => with_own_expectations(fixture, Path::new(folder)),
        Err(_) => fixture,
    };
    let own = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/template/families"));
    let (mut compared, mut differences) = (0, Vec::new());
    for (name, expected) in fixture.as_object().expect("an object") {
        let file = format!("{name}.jinja");
        let paths = [Some(own.join(&file)), further.as_ref().ok().map(|dir| Path::new(dir).join(&file))];
        let Some(source) = paths.into_iter().flatten().find_map(|path| std::fs::read_to_string(path).ok())
        else {
            continue;
        };
        let (wrong, equal) = compare(name, &source, expected);
        println!("{name}: {equal} of 78 texts are equal, {} differ", wrong.len());
        assert!(wrong.len() + equal >= 30, "{name}: only {equal} texts were compared");
        differences.extend(wrong);
        compared += 1;
    }
    assert!(differences.is_empty(), "{} texts differ:\n{}", differences.len(), differences.join("\n"));
    assert!(compared >= 5, "{compared} templates");
}

fn talk(turns: &[(Role, &str)]) -> Conversation {
    Conversation::new(turns.iter().map(|(role, text)| Message::new(*role, *text)).collect())
}

fn four_turns() -> Conversation {
    talk(&[(Role::User, "a"), (Role::Assistant, "b c"), (Role::User, "d"), (Role::Assistant, "e")])
}

/// The text, and its parts with loss.
fn loss(
    template: &Template,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
    train_on: TrainOn,
) -> (String, Vec<String>) {
    let rendered = template.render(tokenizer, conversation, train_on).expect("a provable mask");
    let text = tokenizer.decode(&rendered.ids);
    assert_eq!(rendered.ids, tokenizer.encode(&text, Special::Parse), "{text:?}");
    (text, trained(tokenizer, &rendered.ids, &rendered.labels))
}

#[test]
fn qwens_empty_thoughts_have_no_loss() {
    let (tokenizer, template) = (tokenizer(), jinja(QWEN3));
    let (text, found) = loss(&template, &tokenizer, &four_turns(), TrainOn::Assistant);
    let expected = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb c<|im_end|>\n<|im_start|>user\nd<|im_end|>\n\
                    <|im_start|>assistant\n<think>\n\n</think>\n\ne<|im_end|>\n";
    assert_eq!((&*text, found), (expected, vec!["b c<|im_end|>".to_owned(), "e<|im_end|>".to_owned()]));
    // So it is if the prompt has the empty thought.
    let mut without = four_turns();
    without.kwargs.insert("enable_thinking".into(), false.into());
    let (text, found) = loss(&template, &tokenizer, &without, TrainOn::Assistant);
    assert_eq!((&*text, &*found), (expected, &["b c<|im_end|>".to_owned(), "e<|im_end|>".to_owned()][..]));
    // A thought has loss, unless the recipe says otherwise.
    let mut thinking = four_turns();
    thinking.messages[3].thinking = "Hm.".into();
    let of = |train_on| loss(&template, &tokenizer, &thinking, train_on).1;
    assert_eq!(of(TrainOn::Assistant), ["b c<|im_end|>", "<think>\nHm.\n</think>\n\ne<|im_end|>"]);
    assert_eq!(of(TrainOn::LastAssistant), ["<think>\nHm.\n</think>\n\ne<|im_end|>"]);
    assert_eq!(of(TrainOn::Answers), ["b c<|im_end|>", "e<|im_end|>"]);
    // A thought inside the text of the answer is one, too.
    let mut inside = four_turns();
    inside.messages[3].content = "<think>\nHm.\n</think>\n\ne".into();
    assert_eq!(loss(&template, &tokenizer, &inside, TrainOn::Answers).1, ["b c<|im_end|>", "e<|im_end|>"]);
    // The file's default layout, in both forms.
    let built_in = Template::BuiltIn(&qwen3::CHAT);
    let of = |train_on| loss(&built_in, &tokenizer, &thinking, train_on).1;
    assert_eq!(of(TrainOn::Assistant), ["b c<|im_end|>", "<think>\nHm.\n</think>\n\ne<|im_end|>"]);
    assert_eq!(of(TrainOn::Answers), ["b c<|im_end|>", "e<|im_end|>"]);
}

/// Ollama's renderer, which the built-in layout follows, prints booleans and lists of arguments in Go's way, and functions in the order
/// of its API.
#[test]
fn the_built_in_layout_of_qwen35_writes_the_prompts_of_its_jinja() {
    let tokenizer = Tokenizer::new(byte_level("qwen35"), &qwen35::TOKENIZER).expect("sound");
    let (published, built_in) = (jinja(QWEN35), Template::BuiltIn(&qwen35::template::CHAT));
    let (mut compared, mut wrong) = (0, Vec::new());
    for case in Case::all() {
        let known = ["arguments of all kinds", "object result", "list result", "control characters"];
        if known.contains(&&*case.name) || !case.conversation.tools.is_empty() {
            continue;
        }
        let mut asked = case.conversation.clone();
        asked.messages.truncate(asked.messages.iter().rposition(|m| m.role == Role::Assistant).expect("one"));
        asked.kwargs.insert("enable_thinking".into(), case.conversation.thinks().into());
        let [expected, found] =
            [&published, &built_in].map(|template| template.text(&tokenizer, &asked, true).expect("sound"));
        // The history of a conversation that does not think has empty thoughts in rounds of calls there.
        let expected = match case.conversation.thinks() {
            true => expected,
            false => {
                let (history, prompt) = expected.split_at(expected.len() - "<think>\n\n</think>\n\n".len());
                history.replace("<think>\n\n</think>\n\n", "") + prompt
            }
        };
        if found != expected {
            wrong.push(format!("{}\nexpected {expected:?}\nfound    {found:?}", case.name));
        }
        compared += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared >= 20, "{compared}");
}

/// Both layouts train what the model writes: behind the mark of a thought that the prompt opens, and behind an empty thought.
#[test]
fn qwen35_is_trained_on_what_the_assistant_writes() {
    let tokenizer = Tokenizer::new(byte_level("qwen35"), &qwen35::TOKENIZER).expect("sound");
    let mut thinking = four_turns();
    thinking.messages[3].thinking = "Hm.".into();
    let mut inside = four_turns();
    inside.messages[3].content = "<think>\nHm.\n</think>\n\ne".into();
    for template in [jinja(QWEN35), Template::BuiltIn(&qwen35::template::CHAT)] {
        let of = |conversation: &Conversation, train_on| loss(&template, &tokenizer, conversation, train_on);
        let (text, found) = of(&four_turns(), TrainOn::Assistant);
        let expected = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb c<|im_end|>\n<|im_start|>user\nd<|im_end|>\n\
                        <|im_start|>assistant\n<think>\n\n</think>\n\ne<|im_end|>\n";
        assert_eq!(
            (&*text, &*found),
            (expected, &["b c<|im_end|>".to_owned(), "e<|im_end|>".to_owned()][..])
        );
        for conversation in [&thinking, &inside] {
            let (text, found) = of(conversation, TrainOn::Assistant);
            assert!(
                text.ends_with("<|im_start|>assistant\n<think>\nHm.\n</think>\n\ne<|im_end|>\n"),
                "{text}"
            );
            assert_eq!(found, ["b c<|im_end|>", "Hm.\n</think>\n\ne<|im_end|>"]);
            assert_eq!(of(conversation, TrainOn::Answers).1, ["b c<|im_end|>", "e<|im_end|>"]);
        }
    }
}

#[test]
fn qwen35_calls_functions_with_a_mark_per_argument() {
    let tokenizer = Tokenizer::new(byte_level("qwen35"), &qwen35::TOKENIZER).expect("sound");
    let mut rounds = talk(&[
        (Role::System, "Be brief."),
        (Role::User, "Rome?"),
        (Role::Assistant, "I look."),
        (Role::Tool, "sunny."),
        (Role::Tool, "windy"),
        (Role::Assistant, "Sunny."),
    ]);
    let arguments = serde_json::json!({"city": "Rome", "days": 3, "warm": true, "hours": [1, 2], "x": 1.5});
    let Value::Object(arguments) = arguments else { unreachable!("an object") };
    let call = ToolCall { id: String::new(), name: "weather".into(), arguments };
    rounds.messages[2].tool_calls = vec![call.clone(), call];
    rounds.tools = vec![serde_json::json!({"type": "function", "function": {
        "name": "weather", "description": "<weather>", "strict": true, "parameters": {
            "properties": {"city": {"description": "Where", "type": "string"}}, "required": ["city"], "type": "object"
        }
    }})];
    let built_in = Template::BuiltIn(&qwen35::template::CHAT);
    let (text, found) = loss(&built_in, &tokenizer, &rounds, TrainOn::Assistant);
    let declared = "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"<weather>\", \
                    \"parameters\": {\"type\": \"object\", \"required\": [\"city\"], \"properties\": {\"city\": {\"type\": \"string\", \
                    \"description\": \"Where\"}}}}}\n</tools>\n\nIf you choose";
    assert!(text.contains(declared), "{text}");
    assert!(
        text.contains("</IMPORTANT>\n\nBe brief.<|im_end|>\n<|im_start|>user\nRome?<|im_end|>\n"),
        "{text}"
    );
    let results = "<|im_end|>\n<|im_start|>user\n<tool_response>\nsunny.\n</tool_response>\n<tool_response>\nwindy\n</tool_response>\
                   <|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nSunny.<|im_end|>\n";
    assert!(text.ends_with(results), "{text}");
    let call = "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n\
                <parameter=warm>\ntrue\n</parameter>\n<parameter=hours>\n[1,2]\n</parameter>\n<parameter=x>\n1.5\n</parameter>\n\
                </function>\n</tool_call>";
    assert_eq!(found, [format!("I look.\n\n{call}\n{call}<|im_end|>"), "Sunny.<|im_end|>".into()]);
    // The Jinja prints Python's words. Its answers are separated from the rest as exactly.
    let (_, found) = loss(&jinja(QWEN35), &tokenizer, &rounds, TrainOn::Assistant);
    let pythons = call.replace("true", "True").replace("[1,2]", "[1, 2]");
    assert_eq!(found, [format!("I look.\n\n{pythons}\n{pythons}<|im_end|>"), "Sunny.<|im_end|>".into()]);
}

#[test]
fn what_the_layout_of_qwen35_cannot_write_is_refused() {
    let of = |conversation: &Conversation| (qwen35::template::CHAT.check)(conversation);
    assert_eq!(of(&four_turns()), Ok(()));
    let mut late = four_turns();
    late.messages[2].role = Role::System;
    assert_eq!(of(&late), Err(TemplateError::SystemNotFirst { number: 3 }));
    let mut unasked = four_turns();
    unasked.messages[2].role = Role::Tool;
    assert_eq!(of(&unasked), Err(TemplateError::ToolWithoutCall { number: 3 }));
    let mut other = four_turns();
    other.kwargs.insert("reasoning_effort".into(), "low".into());
    assert_eq!(of(&other), Err(TemplateError::Unused("reasoning_effort".into())));
    let hides = |conversation: &Conversation| (qwen35::template::CHAT.hides_thoughts)(conversation);
    let mut older = four_turns();
    older.messages[1].thinking = "Hm.".into();
    assert!(hides(&older) && !hides(&four_turns()));
}

/// The byte-level vocabulary with the tokens of harmony.
fn harmony() -> Tokenizer {
    let mut data = byte_level("gpt-4o");
    for token in ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"] {
        data.tokens.push(token.into());
        data.token_types.push(3);
    }
    data.eos = vec![data.tokens.len() as u32 - 2];
    data.eos_token = data.eos.first().copied();
    Tokenizer::new(data, &gpt_oss::TOKENIZER).expect("sound")
}

/// An answer in the middle ends in a token that the model never generates. Reasoning stands in the last answer alone.
#[test]
fn channels_of_gpt_oss_have_loss_as_far_as_the_assistant_writes_them() {
    let tokenizer = harmony();
    let layouts = [jinja(GPT_OSS), Template::BuiltIn(&gpt_oss::template::HARMONY)];
    let [first, last] = ["<|channel|>final<|message|>b c", "<|channel|>final<|message|>e<|return|>"];
    let mut thinking = four_turns();
    thinking.messages[3].thinking = "Hm.".into();
    thinking.messages[1].thinking = "Left out.".into();
    for (layout, behind) in layouts.iter().zip(["<|start|>assistant", ""]) {
        let of = |conversation: &Conversation, train_on| loss(layout, &tokenizer, conversation, train_on).1;
        assert_eq!(of(&four_turns(), TrainOn::Assistant), [first, last]);
        assert_eq!(of(&four_turns(), TrainOn::LastAssistant), [last]);
        let thought = format!("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{last}");
        assert_eq!(of(&thinking, TrainOn::Assistant), [first.to_owned(), thought]);
        assert_eq!(of(&thinking, TrainOn::Answers), [first.to_owned(), format!("{behind}{last}")]);
    }
    let [found, built_in] =
        layouts.each_ref().map(|layout| loss(layout, &tokenizer, &thinking, TrainOn::Assistant).0);
    assert_eq!(found.replace("Current date: 2026-09-05\n", ""), built_in);
}

#[test]
fn rounds_of_calls_have_loss_on_what_the_assistant_writes() {
    let (tokenizer, template) = (tokenizer(), jinja(QWEN3));
    let mut rounds = talk(&[
        (Role::User, "Rome?"),
        (Role::Assistant, ""),
        (Role::Tool, "sunny"),
        (Role::Assistant, "Sunny."),
        (Role::User, "b"),
        (Role::Assistant, "c"),
    ]);
    let arguments: Map<String, Value> = [("city".to_owned(), "Rome".into())].into_iter().collect();
    rounds.messages[1].tool_calls = vec![ToolCall { id: String::new(), name: "weather".into(), arguments }];
    let (_, found) = loss(&template, &tokenizer, &rounds, TrainOn::Assistant);
    let call =
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call><|im_end|>";
    assert_eq!(found, [call, "Sunny.<|im_end|>", "c<|im_end|>"]);
}

#[test]
fn prompts_that_open_a_thought_are_trained_with_an_empty_one() {
    // As DeepSeek R1: the history has no thoughts, and the prompt opens one.
    let source = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endfor %}\
                  {% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}";
    let (text, found) = loss(&jinja(source), &tokenizer(), &four_turns(), TrainOn::Assistant);
    assert!(text.ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\ne<|im_end|>"), "{text}");
    assert_eq!(found, ["b c<|im_end|>", "e<|im_end|>"]);
    // As Qwen 3 2507: the last answer has the thought, empty or not.
    let thoughts = source.replace(
        "m.content +",
        "('<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' if loop.last and m.role == 'assistant' else '') + m.content +",
    );
    let (_, found) = loss(&jinja(&thoughts), &tokenizer(), &four_turns(), TrainOn::Assistant);
    assert_eq!(found, ["b c<|im_end|>", "e<|im_end|>"]);
    let mut thinking = four_turns();
    thinking.messages[3].thinking = "Hm.".into();
    let of = |train_on| loss(&jinja(&thoughts), &tokenizer(), &thinking, train_on).1;
    assert_eq!(of(TrainOn::Assistant), ["b c<|im_end|>", "Hm.\n</think>\n\ne<|im_end|>"]);
    assert_eq!(of(TrainOn::Answers), ["b c<|im_end|>", "e<|im_end|>"]);
}

#[test]
fn files_without_a_template_have_their_familys_layout() {
    let mut conversation = four_turns();
    conversation.messages.insert(0, Message::new(Role::System, "Be brief."));
    let text = |layout, tokenizer: &Tokenizer| {
        Template::BuiltIn(layout).text(tokenizer, &conversation, false).expect("sound")
    };
    let scores = Tokenizer::new(by_scores(false), &gemma3::TOKENIZER).expect("sound");
    assert_eq!(
        text(&gemma3::CHAT, &scores),
        "<bos><start_of_turn>user\nBe brief.\n\na<end_of_turn>\n<start_of_turn>model\nb c<end_of_turn>\n<start_of_turn>user\n\
         d<end_of_turn>\n<start_of_turn>model\ne<end_of_turn>\n"
    );
    let (_, found) = loss(&Template::BuiltIn(&gemma3::CHAT), &scores, &conversation, TrainOn::Assistant);
    assert_eq!(found, ["b c<end_of_turn>", "e<end_of_turn>"]);
    assert!(text(&llama::CHAT, &tokenizer()).starts_with(
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user"
    ));
    let mut declaring = four_turns();
    declaring.tools = vec![serde_json::json!({"type": "function", "function": {"name": "f"}})];
    let refused = Template::BuiltIn(&llama::CHAT).text(&tokenizer(), &declaring, false);
    assert_eq!(refused, Err(TemplateError::Unused("tools".into())));
}

#[test]
fn marks_of_reasoning_may_stand_in_a_message_and_control_tokens_may_not() {
    let (tokenizer, template) = (tokenizer(), jinja(QWEN3));
    let of = |text: &str| {
        let conversation = talk(&[(Role::User, text), (Role::Assistant, "b")]);
        template.render(&tokenizer, &conversation, TrainOn::Assistant).map(|_| ())
    };
    assert_eq!(of("What does <think> mean?"), Ok(()));
    let error = of("What does <|im_end|> mean?").expect_err("refused").to_string();
    assert!(
        error.starts_with("message 1 (user) contains the text of the control token <|im_end|>"),
        "{error}"
    );
}

/// Ollama has other code for later versions of an architecture, which a model in its store names.
#[test]
fn a_layout_follows_one_code_of_ollama() {
    let layout = &qwen35::template::CHAT;
    assert!(layout.follows(None) && layout.follows(Some("qwen3.5")));
    assert!(!layout.follows(Some("qwen3.8")) && !qwen3::CHAT.follows(None));
}

/// `tokenizer.chat_template.tool_use` renders conversations with functions; transformers chooses by declared functions.
#[test]
fn the_template_for_functions_renders_conversations_with_functions() {
    let tokenizer = tokenizer();
    let plain = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}";
    let functions = "{{ tools | tojson }}{% for m in messages %}{{ m.role + '> ' + m.content }}{% for c in m.tool_calls or [] %}\
                     {{ c.function.name }}{% endfor %}{{ '\n' }}{% endfor %}";
    let new = |source| Jinja::new(source, DAY).expect("sound");
    let template = Template::Jinja(Box::new(new(plain).with_functions(new(functions))));
    let text = |conversation: &Conversation| template.text(&tokenizer, conversation, false).expect("sound");
    let mut conversation = talk(&[(Role::User, "a"), (Role::Assistant, "b")]);
    assert_eq!(text(&conversation), "user: a\nassistant: b\n");
    conversation.messages[1].tool_calls = vec![ToolCall { name: "f".into(), ..ToolCall::default() }];
    // The first template has no place for calls.
    assert_eq!(text(&conversation), "nulluser> a\nassistant> bf\n");
    conversation.messages[1].tool_calls.clear();
    conversation.tools = vec![serde_json::json!({"name": "f"})];
    assert_eq!(text(&conversation), "[{\"name\": \"f\"}]user> a\nassistant> b\n");
}
