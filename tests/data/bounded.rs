//! Chat templates that never end, or make huge texts or deep values, are stopped with one error that names them.

use rullama_train::data::template::{Conversation, Jinja, Message, Role, Template, TrainOn};

use super::tokenizer;
use crate::common_template::DAY;

/// The error of a template named `T.jinja`, from a thread with a stack of 1 MiB.
fn stopped(source: String) -> String {
    let work = move || {
        let template = Jinja::named("T.jinja", &source, DAY).map(|jinja| Template::Jinja(Box::new(jinja)));
        let conversation = Conversation::new(vec![Message::new(Role::User, "Hi")]);
        template
            .and_then(|template| template.text(&tokenizer(), &conversation, true))
            .expect_err(&source[..source.len().min(99)])
    };
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(work).expect("a thread");
    thread.join().expect("no panic").to_string()
}

fn expect(cases: &[(&str, String)], message: &str) {
    for (name, source) in cases {
        let error = stopped(source.clone());
        assert!(
            error.starts_with("the chat template T.jinja ") && error.contains(message),
            "{name}: {error}"
        );
    }
}

/// A loop that runs 10^10 times.
fn repeated(body: &str) -> String {
    let loops = "{% for i in range(100000) %}";
    format!("{{% set ns = namespace(s='ab', l=[1]) %}}{loops}{loops}{body}{{% endfor %}}{{% endfor %}}")
}

#[test]
fn a_template_that_never_ends_is_stopped() {
    let cases = [
        ("loop", repeated("{% set ns.s = i %}")),
        (
            "macro",
            "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}"
                .into(),
        ),
        ("recursive", "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}".into()),
        ("empty", repeated("")),
    ];
    for (name, source) in cases {
        let error = stopped(source);
        let ends = error.contains("was stopped: it does not come to an end")
            || error.contains("recursion limit exceeded");
        assert!(error.starts_with("the chat template T.jinja ") && ends, "{name}: {error}");
    }
}

#[test]
fn a_template_on_which_the_engine_panics_is_stopped() {
    let end = "{% for y in [] %}{% else %}{% break %}{% endfor %}";
    let source = format!("{{% for x in [1] %}}{{% generation %}}{end}{{% endgeneration %}}{{% endfor %}}");
    expect(&[("break", source)], "was stopped: the template engine fails on it; choose the model's");
}

#[test]
fn a_template_that_makes_huge_texts_is_stopped() {
    let word = "word ".repeat(1000);
    let cases = [
        ("output", repeated("{{ 'x' * 1000 }}")),
        ("literal text", repeated(&word)),
        (
            "a macro's literal text",
            format!("{{% macro m() %}}{word}{{% endmacro %}}{}", repeated("{{ m() }}")),
        ),
        (
            "a block's literal text",
            format!("{{% block b %}}{word}{{% endblock %}}{}", repeated("{{ self.b() }}")),
        ),
        ("raw text", repeated(&format!("{{% raw %}}{{{{ {word} }}}}{{% endraw %}}"))),
        ("captured text", format!("{{% set x %}}{}{{% endset %}}", repeated(&word))),
        ("double", repeated("{% set ns.s = ns.s + ns.s %}")),
        ("double with ~", repeated("{% set ns.s = ns.s ~ ns.s %}")),
        ("double in a list", repeated("{% set ns.s = [(ns.s ~ '')[0:] ~ ns.s][0] %}")),
        ("double by join", repeated("{% set ns.s = [ns.s, ns.s] | join(ns.s) %}")),
        ("double by a method", repeated("{% set ns.s = ns.s.join([ns.s, ns.s]) %}")),
        ("double by replace", repeated("{% set ns.s = ns.s.replace('a', ns.s) %}")),
        ("double by a filter", repeated("{% set ns.s = ns.s | replace('a', ns.s) %}")),
        ("double by format", repeated("{% set ns.s = '%s%s' | format(ns.s, ns.s) %}")),
        ("double by str.format", repeated("{% set ns.s = '{0}{0}'.format(ns.s) %}")),
        ("double by tojson", repeated("{% set ns.s = [ns.s, ns.s] | tojson %}")),
        ("double a list", repeated("{% set ns.l = ns.l + ns.l %}")),
        ("double a list by chain", repeated("{% set ns.l = ns.l | chain(ns.l) %}")),
        ("double by a set block", repeated("{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}")),
        (
            "slices",
            repeated("{% set ns.l = ns.l + [(word * 1000)[0:]] %}").replace("word", "messages[0].role"),
        ),
        ("dates", repeated("{% set ns.l = ns.l + [strftime_now('x' * 10000)] %}")),
        ("multiply", "{{ ('x' * 90000000) | length }}".into()),
        ("multiply constants", "{% set x = 'x' * 90000000 + 'x' * 90000000 %}".into()),
        ("multiply a list", "{{ ([1] * 90000000) | list | length }}".into()),
        ("indent", "{{ messages[0].content | indent(4900000000, true) }}".into()),
        ("indent by a name", "{{ 'a' | indent(width=4900000000, first=true) }}".into()),
        ("indent of JSON", "{{ messages | tojson(indent='x' * 1000000) }}".into()),
        ("batch", "{{ [1] | batch(900000000, 'x') }}".into()),
        ("slice", "{{ [1] | slice(900000000) | list }}".into()),
    ];
    for (name, source) in &cases {
        let error = stopped(source.clone());
        assert!(error.contains("was stopped: it makes too much text"), "{name}: {error}");
    }
    expect(
        &[("width", "{{ '%900000000d' | format(1) }}".into())],
        "was stopped: it formats a value with a huge width",
    );
    expect(&[("tuple", "{{ (1, 2) * 40000000 }}".into())], "cannot repeat a tuple");
}

#[test]
fn a_template_with_deep_values_is_stopped() {
    let cases = [
        ("nestcmp", repeated("{% set ns.l = [ns.l] %}") + "{{ ns.l == ns.l }}"),
        ("mapping", repeated("{% set ns.l = {'a': ns.l} %}")),
        ("tuple", repeated("{% set ns.l = (ns.l, 1) %}")),
        ("itself", "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns == ns }}".into()),
    ];
    for (name, source) in &cases {
        let error = stopped(source.clone());
        let found =
            error.contains("its values are nested too deeply") || error.contains("a namespace is inside");
        assert!(found, "{name}: {error}");
    }
}

#[test]
fn a_template_that_overflows_the_parser_is_refused() {
    let many = |text: &str| text.repeat(20_000);
    let cases = [
        ("plus", format!("{{{{ 1{} }}}}", many("+1"))),
        ("deepnot", format!("{{{{ {} 1 }}}}", many("not "))),
        ("minus", format!("{{{{ {}1 }}}}", many("-"))),
        ("attr", format!("{{{{ a{} }}}}", many(".b"))),
        ("filters", format!("{{{{ a{} }}}}", many("|e"))),
        ("else", format!("{{{{ 1 {} 1 }}}}", many("if 0 else 1"))),
        ("calls", format!("{{{{ a{} }}}}", many("()"))),
    ];
    expect(&cases, "cannot be read: the tag in line 1 has more than 1000 words and signs");
    expect(
        &[("elif", format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(9_000)))],
        "more than 250 elif",
    );
    expect(&[("brackets", format!("{{{{ {}1{} }}}}", "(".repeat(400), ")".repeat(400)))], "recursion limits");
    expect(&[("ifs", "{% if 1 %}".repeat(9_000))], "cannot be read: ");
    expect(&[("size", "x".repeat(300_000))], "it has 300000 bytes, expected at most 262144");
    expect(&[("raw", "{% raw %}".repeat(25_000))], "cannot be read: ");
    expect(&[("include", "{% include 'chat_template' %}".into())], "it has the tag include");
    // Values that are deep, but within the limits, are read.
    for source in [
        format!("{{{{ 1{} }}}}", "+1".repeat(490)),
        format!("{{{{ {} 1 }}}}", "not ".repeat(990)),
        format!("{{{{ {}1{} }}}}", "(1 < ".repeat(60), ")".repeat(60)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(250)),
    ] {
        let work = move || Jinja::new(&source, DAY).map(drop).map_err(|error| error.to_string());
        let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(work).expect("a thread");
        thread.join().expect("no panic").expect("it is read");
    }
}

/// To find every answer, each prefix of a conversation is rendered: the work grows with the square of its length.
#[test]
fn a_conversation_with_too_many_messages_is_stopped() {
    let source = "{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}\
        {% if add_generation_prompt %}<|turn>assistant\n{% endif %}";
    let template = Jinja::named("T.jinja", source, DAY).expect("sound");
    let template = Template::Jinja(Box::new(template));
    let tokenizer = tokenizer();
    let render = |pairs: usize, train_on| {
        let pair = |_| [Message::new(Role::User, "Hi"), Message::new(Role::Assistant, "Ahoy!")];
        let conversation = Conversation::new((0..pairs).flat_map(pair).collect());
        template.render(&tokenizer, &conversation, train_on).map_err(|error| error.to_string())
    };
    assert!(render(100, TrainOn::Assistant).is_ok());
    let error = render(5000, TrainOn::Assistant).expect_err("too many");
    let expected = "the chat template T.jinja was stopped: it takes too long to find every answer among 10000 messages; shorten \
                    the conversation, or set data.train_on = \"last_assistant\"; choose";
    assert!(error.starts_with(expected), "{error}");
    assert!(render(5000, TrainOn::LastAssistant).is_ok());
}

#[test]
fn meters_do_not_change_what_a_template_writes() {
    let text = |source: &str| {
        let template = Jinja::new(source, DAY).map(|jinja| Template::Jinja(Box::new(jinja)));
        let conversation = Conversation::new(vec![Message::new(Role::User, "Hi")]);
        let text = template.and_then(|template| template.text(&tokenizer(), &conversation, true));
        text.unwrap_or_else(|error| panic!("{source}: {error}"))
    };
    for (source, expected) in [
        ("{{ 1 + 2 * 3 }}{{ 2 ** 3 * 2 }}{{ 7 // 2 + 1 }}", "7164"),
        ("{{ 'a' ~ 1 ~ none ~ true ~ [1] ~ 'b'|upper }}", "a1NoneTrue[1]B"),
        ("{{ 'x' + 'y' if 'a' in 'b' + 'a' and not 'c' in 'd' else 'n' + 'm' }}", "xy"),
        ("{{ ('a' + 'b')[0:1 + 0] + {'k': 'v' + 'w'}['k' ~ ''] }}", "avw"),
        (
            "{{ 'abc'[1:] }}{{ [1, 2, 3][:2][0] + 1 }}{{ {'k': 'abc'[:1 + 1]}.k }}{{ 'abc'[::-1].upper() }}",
            "bc2abCBA",
        ),
        ("{{ 'a' + '}}' + \"%}\" + 'it\\'s' }}", "a}}%}it's"),
        ("{{ 1.5e+3 + 1 }}{{ -2 * -3 }}", "1501.06"),
        ("{% set a, b = 'x' + 'y', 2 -%}\n {{ a ~ b }}", "xy2"),
        ("{% for x in ['a'] + ['b'] if x != 'c' -%}\n  {{ x }}\n{%- endfor %}", "ab"),
        ("{% for x in 'ab' %}\n  {{ x }}\n{% endfor %}!", "  a\n  b\n!"),
        ("{% macro m(a, b='x' + 'y') %}<{{ a ~ b }}>{% endmacro %}{{ m('q', b='z' ~ 1) }}", "<qz1>"),
        ("{{ missing | default('d' + 'e') }}{{ missing }}", "de"),
        ("{# {{ '+ #}{% raw %}{{ a + b }}{% endraw %}", "{{ a + b }}"),
        ("{% set x %}a{{ 'b' + 'c' }}{% endset %}{{ x | length }}", "3"),
        ("{{ [1, 2] | map('string') | join(', ') }}{{ '-'.join(['a', 'b']) }}", "1, 2a-b"),
        ("{{ 'a\\nb' | indent(2) }}{{ '%s-%03d' | format('x', 7) }}", "a\n  bx-007"),
    ] {
        assert_eq!(text(source), expected, "{source}");
    }
}
