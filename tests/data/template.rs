//! Chat templates: the text equals transformers' character by character, and the loss tokens are those that the assistant
//! wrote.

use rullama_train::data::template::{
    Conversation, Jinja, Message, Role, Template, TemplateError, ToolCall, TrainOn,
};
use rullama_train::data::tokenizer::{Special, Tokenizer};
use rullama_train::families::gemma4;

use super::shapes::with_tools;
use super::{tokenizer, trained};
use crate::common_template::{Case, DAY, own};

/// Gemma's turns without any marks.
const PLAIN: &str = "{{ bos_token }}{% for m in messages %}{{ '<|turn>' + m.role + '\n' + m.content | trim + '<turn|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|turn>assistant\n' }}{% endif %}";

fn jinja(source: &str) -> Template {
    Template::Jinja(Box::new(Jinja::new(source, DAY).expect("sound")))
}

fn talk(turns: &[(Role, &str)]) -> Conversation {
    Conversation::new(turns.iter().map(|(role, text)| Message::new(*role, *text)).collect())
}

fn four_turns() -> Conversation {
    talk(&[(Role::User, "a"), (Role::Assistant, "b c"), (Role::User, "d"), (Role::Assistant, "e")])
}

/// The text and its parts with loss. Checks that the ids are those of the text.
fn rendered(
    template: &Template,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
    train_on: TrainOn,
) -> Result<(String, Vec<String>), TemplateError> {
    let rendered = template.render(tokenizer, conversation, train_on)?;
    let text = tokenizer.decode(&rendered.ids);
    assert_eq!(rendered.ids, tokenizer.encode(&text, Special::Parse), "{text:?}");
    Ok((text, trained(tokenizer, &rendered.ids, &rendered.labels)))
}

#[test]
fn our_own_template_renders_as_in_transformers() {
    let (tokenizer, template) = (tokenizer(), own());
    let cases = Case::all();
    assert_eq!(cases.len(), 40);
    let wrong: Vec<String> =
        cases.iter().filter_map(|case| case.compare(&tokenizer, &template, "own").err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn generation_blocks_mark_what_transformers_marks() {
    let (tokenizer, template) = (with_tools(), own());
    for case in Case::all() {
        let (_, found) =
            rendered(&template, &tokenizer, &case.conversation, TrainOn::Assistant).expect("sound");
        // transformers' indices count characters; ours must fall between tokens.
        assert_eq!(found, case.spans("own"), "{}", case.name);
    }
}

#[test]
fn the_built_in_layout_renders_as_googles_templates() {
    let tokenizer = tokenizer();
    for (layout, key) in [(&gemma4::template::SMALL, "small"), (&gemma4::template::LARGE, "large")] {
        let mut compared = 0;
        for case in Case::all() {
            // The template accepts only strings as results. Python strips, sorts and prints a few things differently from Go.
            let known = ["object result", "list result", "control characters", "arguments of all kinds"];
            if known.contains(&case.name.as_str()) {
                continue;
            }
            let template = Template::BuiltIn(layout);
            match case.compare(&tokenizer, &template, key) {
                Ok(()) => {}
                // Our sample includes the prompt's empty thought, transformers' does not.
                Err(text) if key == "large" && text.contains("prompt false") => {
                    let found = template.text(&tokenizer, &case.conversation, false).expect("sound");
                    let without = found.replace("<|channel>thought\n<channel|>", "");
                    assert_eq!(Some(&*without), case.expected(key, false), "{}", case.name);
                }
                Err(text) => panic!("{text}"),
            }
            compared += 1;
        }
        assert_eq!(compared, 36);
    }
}

#[test]
fn the_built_in_layout_prints_arguments_as_go_does() {
    let arguments = serde_json::json!({
        "B": 1.0, "a": 1e21, "c": 1.5e-7, "d": -0.25, "e": null, "f": [true, {"k": "v"}], "g": 12345678901234567890u64
    });
    let call = ToolCall {
        name: "f".into(),
        arguments: arguments.as_object().expect("an object").clone(),
        ..ToolCall::default()
    };
    let mut conversation = talk(&[(Role::User, "a"), (Role::Assistant, "")]);
    conversation.messages[1].tool_calls = vec![call];
    let text =
        Template::BuiltIn(&gemma4::template::SMALL).text(&tokenizer(), &conversation, false).expect("sound");
    let expected = "<|tool_call>call:f{B:1,a:1e+21,c:1.5e-07,d:-0.25,e:null,f:[true,{k:<|\"|>v<|\"|>}],g:12345678901234567890}<tool_call|>";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn prefixes_give_the_mask_of_a_template_without_marks() {
    let (tokenizer, template) = (tokenizer(), jinja(PLAIN));
    let (text, found) = rendered(&template, &tokenizer, &four_turns(), TrainOn::Assistant).expect("sound");
    assert_eq!(
        text,
        "<bos><|turn>user\na<turn|>\n<|turn>assistant\nb c<turn|>\n<|turn>user\nd<turn|>\n<|turn>assistant\ne<turn|>\n"
    );
    assert_eq!(found, ["b c<turn|>", "e<turn|>"], "the end token and not the newline behind it");
    let of = |train_on| rendered(&template, &tokenizer, &four_turns(), train_on).expect("sound").1;
    assert_eq!(of(TrainOn::LastAssistant), ["e<turn|>"]);
    assert_eq!(of(TrainOn::All).concat(), text);
    let mut flagged = four_turns();
    flagged.messages[1].train = Some(false);
    flagged.messages[2].train = Some(true);
    let of = |train_on| rendered(&template, &tokenizer, &flagged, train_on).expect("sound").1;
    assert_eq!(of(TrainOn::Assistant), ["<|turn>user\nd<turn|>\n", "e<turn|>"]);
    let (before, after) = text.split_once("<|turn>assistant\nb c<turn|>\n").expect("there");
    assert_eq!(of(TrainOn::All), [before, after]);
    // The prompt is the text before the answer.
    let prompt = template.prompt(&tokenizer, &talk(&[(Role::User, "a")])).expect("sound");
    assert_eq!(tokenizer.decode(&prompt), "<bos><|turn>user\na<turn|>\n<|turn>assistant\n");
}

#[test]
fn prefixes_marks_and_pieces_agree() {
    // The tiny model's own template, a version with marks, and the built-in template give the same ids and labels.
    let tokenizer = tokenizer();
    let plain = "{{ bos_token }}{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}{{ '<|turn>' + role + '\n' + message['content'] | trim + '<turn|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|turn>model\n' }}{% endif %}";
    let marked = plain.replace(
        "{{ '<|turn>' + role + '\n' + message['content'] | trim + '<turn|>\n' }}",
        "{{ '<|turn>' + role + '\n' }}{% if role == 'model' %}{% generation %}{{ message['content'] | trim + '<turn|>' }}{% endgeneration %}{% else %}{{ message['content'] | trim + '<turn|>' }}{% endif %}{{ '\n' }}",
    );
    let mut compared = 0;
    for case in Case::all() {
        if !case.conversation.tools.is_empty() || case.thinks() || case.conversation.thinks() {
            continue;
        }
        for train_on in [TrainOn::Assistant, TrainOn::LastAssistant] {
            let of = |template: &Template| {
                template
                    .render(&tokenizer, &case.conversation, train_on)
                    .unwrap_or_else(|e| panic!("{}: {e}", case.name))
            };
            let expected = of(&Template::BuiltIn(&gemma4::template::SMALL));
            if case.name != "developer" && case.name != "control characters" {
                assert_eq!(of(&jinja(plain)), expected, "{}", case.name);
                assert_eq!(of(&jinja(&marked)), expected, "{}", case.name);
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 30);
}

#[test]
fn the_last_answer_includes_the_block_at_the_end_of_its_prompt() {
    // As in Gemma's templates for large models: the prompt has an empty thought, earlier turns have none.
    let large = PLAIN.replace(
        "'<|turn>assistant\n' }}{% endif %}",
        "'<|turn>assistant\n<|channel>thought\n<channel|>' }}{% endif %}",
    );
    let (tokenizer, template) = (tokenizer(), jinja(&large));
    let (text, found) = rendered(&template, &tokenizer, &four_turns(), TrainOn::Assistant).expect("sound");
    assert!(text.ends_with("<|turn>assistant\n<|channel>thought\n<channel|>e<turn|>\n"), "{text}");
    assert_eq!(text.matches("<channel|>").count(), 1);
    assert_eq!(found, ["b c<turn|>", "e<turn|>"]);
    // An empty answer starts with a different control token, whose first characters are the same.
    let empty = talk(&[(Role::User, "a"), (Role::Assistant, "")]);
    let (text, found) = rendered(&template, &tokenizer, &empty, TrainOn::Assistant).expect("sound");
    assert!(text.ends_with("<|turn>assistant\n<|channel>thought\n<channel|><turn|>\n"), "{text}");
    assert_eq!(found, ["<turn|>"]);
}

#[test]
fn conversations_without_a_provable_mask_are_refused() {
    let tokenizer = tokenizer();
    let refused = |source: &str, conversation: &Conversation| {
        let error =
            rendered(&jinja(source), &tokenizer, conversation, TrainOn::Assistant).expect_err("refused");
        error.to_string()
    };
    // Earlier turns are rendered differently from the last one.
    let numbered =
        PLAIN.replace("m.content | trim", "m.content + ('!' if loop.last and m.role == 'assistant' else '')");
    assert_eq!(
        refused(&numbered, &four_turns()),
        "message 2: its tokens cannot be separated from the others: the template renders it differently once other messages \
         follow; set data.train_on = \"last_assistant\", or end the conversation after it"
    );
    assert!(rendered(&jinja(&numbered), &tokenizer, &four_turns(), TrainOn::LastAssistant).is_ok());
    // The role in the prompt differs from the role in the message.
    let other = PLAIN.replace("'<|turn>assistant\n'", "'<|turn>model\n'");
    assert_eq!(
        refused(&other, &four_turns()),
        "message 2: its tokens cannot be separated from the others: the prompt continues with \"model\\n\", the message with \
         \"assistant\\nb c<turn|>\\n\"; expected the message to begin with its prompt. Choose another data.template, or \
         data.train_on = \"last_assistant\""
    );
    // The prompt ends within a token.
    let spaced = PLAIN.replace("m.role + '\n'", "m.role + ': '").replace("assistant\n'", "assistant: '");
    let error = refused(&spaced, &four_turns());
    assert!(
        error.starts_with("message 2: its tokens cannot be separated from the others: one token covers both the template's text "),
        "{error}"
    );
    assert!(error.contains("one token covers both"), "{error}");
    // The template's own message.
    let raising = "{{ raise_exception('only one turn, please') }}";
    assert_eq!(
        refused(raising, &four_turns()),
        "the chat template refuses the conversation: only one turn, please (line 1 of the template)"
    );
    let Err(error) = Jinja::new("{% if %}", DAY) else { panic!("broken") };
    assert!(error.to_string().starts_with("the chat template cannot be read: "), "{error}");
    // A template that marks one answer of two trains that one, as transformers does.
    let once = "{% generation %}{{ messages[1].content }}{% endgeneration %}";
    let found = rendered(&jinja(once), &tokenizer, &four_turns(), TrainOn::Assistant).expect("a mask");
    assert_eq!(found, ("<bos>b c".into(), vec!["b c".into()]));
}

#[test]
fn fields_that_the_template_never_reads_are_refused() {
    let tokenizer = tokenizer();
    let refused = |conversation: &Conversation| {
        rendered(&jinja(PLAIN), &tokenizer, conversation, TrainOn::Assistant)
            .expect_err("refused")
            .to_string()
    };
    let unused = |key: &str| {
        format!(
            "the chat template never reads \"{key}\", so the sample would lose it; remove it from the data, or choose another \
             data.template"
        )
    };
    let mut thinking = four_turns();
    thinking.messages[3].thinking = "Hm.".into();
    assert_eq!(refused(&thinking), unused("reasoning_content"));
    let mut calling = four_turns();
    calling.messages[3].tool_calls = vec![ToolCall { name: "f".into(), ..ToolCall::default() }];
    let elsewhere = ": the Jinja file of a model that has functions and the same turns, such as Qwen 2.5's for ChatML (chat_template in its \
                     tokenizer_config.json on Hugging Face)";
    assert_eq!(refused(&calling), unused("tool_calls") + elsewhere);
    let mut declaring = four_turns();
    declaring.tools = vec![serde_json::json!({"type": "function", "function": {"name": "f"}})];
    assert_eq!(refused(&declaring), unused("tools") + elsewhere);
    let mut wishing = four_turns();
    wishing.kwargs.insert("tone".into(), "kind".into());
    assert_eq!(refused(&wishing), unused("tone"));
    let built_in =
        Template::BuiltIn(&gemma4::template::SMALL).render(&tokenizer, &wishing, TrainOn::Assistant);
    assert_eq!(built_in.expect_err("refused").to_string(), unused("tone"));
    let kind = PLAIN.replace("{{ bos_token }}", "{{ bos_token }}{{ tone }}");
    let (text, _) = rendered(&jinja(&kind), &tokenizer, &wishing, TrainOn::Assistant).expect("sound");
    assert!(text.starts_with("<bos>kind<|turn>"), "{text}");
    // Text that the template drops is noticed.
    let forgetful = PLAIN.replace("messages %}", "messages if m.role != 'system' %}");
    let conversation = talk(&[(Role::System, "Be brief."), (Role::User, "a"), (Role::Assistant, "b")]);
    let of =
        |source: &str| jinja(source).render(&tokenizer, &conversation, TrainOn::Assistant).expect("sound");
    assert!(!of(&forgetful).left_out.is_empty() && of(PLAIN).left_out.is_empty());
}

#[test]
fn the_caller_sets_the_date() {
    use rullama_train::data::template::Date;
    // Python: datetime.date.fromordinal(719163 + n).
    for (days, expected) in
        [(0, (1970, 1, 1)), (11_016, (2000, 2, 29)), (20_701, (2026, 9, 5)), (-1, (1969, 12, 31))]
    {
        assert_eq!(Date(days).civil(), expected);
    }
    let template = jinja("{{ strftime_now('%Y-%m-%d %a %b %y %%') }}{{ messages[0].content }}");
    let text = template.text(&tokenizer(), &talk(&[(Role::User, "!")]), false).expect("sound");
    assert_eq!(text, "2026-09-05 Sat Sep 26 %!");
    let refused = jinja("{{ strftime_now('%Q') }}").text(&tokenizer(), &talk(&[(Role::User, "!")]), false);
    assert!(refused.is_err());
    // The digest changes from day to day only if the template writes the date.
    let digest =
        |source: &str, day| Template::Jinja(Box::new(Jinja::new(source, Date(day)).expect("sound"))).digest();
    assert_ne!(digest("{{ strftime_now('%Y') }}", 0), digest("{{ strftime_now('%Y') }}", 1));
    assert_eq!(digest(PLAIN, 0), digest(PLAIN, 1));
}

#[test]
fn values_are_printed_as_in_python() {
    let printed = |value: &str| {
        let source =
            format!("{{% set x = {value} %}}{{{{ x }}}}|{{{{ x | tojson }}}}{{{{ messages[0].content }}}}");
        let text = jinja(&source).text(&tokenizer(), &talk(&[(Role::User, "")]), false).expect("sound");
        text.split_once('|').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("both")
    };
    // Each value as Python 3.11 prints it with print(x) and json.dumps(x, ensure_ascii=False).
    for (value, text, json) in [
        ("[1, 2.0, true, none]", "[1, 2.0, True, None]", "[1, 2.0, true, null]"),
        ("'a\"b'", "a\"b", "\"a\\\"b\""),
        ("['a\\nb', \"it's\", 'é\\t']", "['a\\nb', \"it's\", 'é\\t']", "[\"a\\nb\", \"it's\", \"é\\t\"]"),
        ("{'k': {'x': [], 'y': {}}}", "{'k': {'x': [], 'y': {}}}", "{\"k\": {\"x\": [], \"y\": {}}}"),
        ("1e16", "1e+16", "1e+16"),
        ("123456789012345.0", "123456789012345.0", "123456789012345.0"),
        ("0.0001", "0.0001", "0.0001"),
        ("0.00001", "1e-05", "1e-05"),
        ("-0.5", "-0.5", "-0.5"),
    ] {
        assert_eq!(printed(value), (text.to_owned(), json.to_owned()), "{value}");
    }
}

/// Kinds in which templates of Command R+, Hermes 2 Pro and Nemotron Nano 2 rendered otherwise. Texts are transformers'.
#[test]
fn filters_tests_and_methods_are_those_of_jinja2() {
    for (source, expected) in [
        ("{{ 'a\\n' | indent(4, first=true) }}|", "    a\n|"),
        ("{{ '{\\n\\n  b\\r\\nc' | indent }}|", "{\n\n      b\n    c|"),
        ("{{ 'a\\n\\nb\\n' | indent(2, blank=true) }}|", "a\n  \n  b\n  |"),
        ("{{ 'a\\nb' | indent('> ', true) }}|", "> a\n> b|"),
        ("{{ '' | indent(3, true) }}|{{ '\\n' | indent(width=1) }}|", "   |\n|"),
        (
            "{{ nothing is iterable }}{{ nothing is sequence }}{{ none is iterable }}{{ 3 is iterable }}{{ 'a' is sequence }}{{ messages[0].y is iterable }}",
            "TrueTrueFalseFalseTrueTrue",
        ),
        (
            "{{ '\u{1c} a\u{1f} '.strip() }}|{{ '\u{1d} a\u{1e} '.lstrip() }}|{{ '\u{1d} a\u{1e} '.rstrip() }}|{{ ' xax '.strip('x ') }}|",
            "a|a\u{1e} |\u{1d} a|a|",
        ),
    ] {
        let text = jinja(source).text(&tokenizer(), &talk(&[(Role::User, "")]), false).expect("sound");
        assert_eq!(text, expected, "{source}");
    }
}

#[test]
fn a_text_without_bos_gets_one() {
    let (tokenizer, template) = (tokenizer(), jinja(&PLAIN.replace("{{ bos_token }}", "")));
    let rendered = template.render(&tokenizer, &four_turns(), TrainOn::All).expect("sound");
    assert_eq!(rendered.ids[..2], ["<bos>", "<|turn>"].map(|token| tokenizer.id(token).expect("a token")));
    assert_eq!(rendered.labels.len(), rendered.ids.len());
}
