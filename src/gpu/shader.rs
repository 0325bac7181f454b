//! The WGSL sources and the expander of their `#import`, `#for` and `#if` lines.
//!
//! Cooperative matrices stay in registers only under names of their own, so kernels that use them repeat lines:
//!
//! ```text
//! #for i in 0..4
//! var c{i} = coop_mat16x16<f32, C>();
//! #end
//! ```
//!
//! Loops nest, end at a number or at one of the kernel's sizes, and `{NAME}` stands for a size anywhere. Functions that differ in
//! the buffers that they read are one with a loop around it: `#for (name, a, b) in (first, q, k) (second, dout, v)`.
//!
//! `#if {NAME}` … `#else` … `#end` keeps the first part where the kernel's size `NAME` is above 0, else the second. `#if !{NAME}`
//! keeps its part where the size is 0. In a loop the number may be the round's: a size, too, may stand among a round's values.
//!
//! `#import weight` is the reader of the kernel's weight format. A kernel that reads several matrices says `#import weights`:
//! the readers of all its formats, in which everything of the first is called `weight_0`, `weight_rows_0`, `weight4_0` and
//! so on, of the second `weight_1`; `{WEIGHTS}` is how many there are.

/// Every file of `shaders/` by its path without `.wgsl`: the name that `#import` and [`super::Kernel`] use. The build lists them.
pub const SOURCES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/shaders.rs"));

/// Expands shader `name` for a kernel's weight `formats` and `sizes`: replaces each `#import` by its file, once per file, repeats each
/// `#for` and chooses a part of each `#if`.
///
/// # Panics
/// Panics on a name that is not in [`SOURCES`], with the chain of files, and on a `#for` or `#if` without bounds or `#end`. These are
/// mistakes in this crate, which `tests/shaders.rs` finds.
pub fn expand(name: &str, formats: &[&str], sizes: &[(&str, u32)]) -> String {
    let (mut text, mut seen) = (String::new(), Vec::new());
    include(name, formats, &mut seen, &mut text);
    for (size, value) in [sizes, &[("WEIGHTS", formats.len() as u32)]].concat() {
        text = text.replace(&format!("{{{size}}}"), &value.to_string());
    }
    let mut lines = text.lines();
    let mut repeated = String::new();
    assert!(repeat(&mut lines, &mut repeated) == Closing::Text, "{name} has an #end or #else of no block");
    repeated
}

/// An expanded shader as browsers want it: they have a directive for subgroups, which naga does not know.
pub fn for_browsers(text: &str) -> String {
    let directive = if text.contains("subgroupBroadcast(") { "enable subgroups;\n" } else { "" };
    format!("{directive}{text}")
}

/// The line that closes a block of lines; `Text` is the end of the text.
#[derive(PartialEq)]
enum Closing {
    Text,
    Else,
    End,
}

/// Copies lines up to the one that ends their block; returns that line's kind.
fn repeat<'a>(lines: &mut impl Iterator<Item = &'a str>, text: &mut String) -> Closing {
    while let Some(line) = lines.next() {
        let directive = line.trim();
        if directive == "#end" {
            return Closing::End;
        }
        if directive == "#else" {
            return Closing::Else;
        }
        if let Some(condition) = directive.strip_prefix("#if ") {
            let size = condition.strip_prefix('!').unwrap_or(condition);
            let size: u32 =
                size.parse().unwrap_or_else(|_| panic!("{line:?} has no number or size of the kernel"));
            let holds = (size > 0) != condition.starts_with('!');
            let (mut then, mut otherwise) = (String::new(), String::new());
            if block(lines, &mut then, line) == Closing::Else {
                assert!(block(lines, &mut otherwise, line) == Closing::End, "{line:?} has two #else");
            }
            text.push_str(if holds { &then } else { &otherwise });
        } else if let Some(head) = directive.strip_prefix("#for ") {
            let body = body(lines, line);
            let rounds = rounds(head);
            let rounds =
                rounds.unwrap_or_else(|| panic!("no bounds, number or size of the kernel in {line:?}"));
            for round in rounds {
                let named = |text: String, (name, value): &(&str, String)| {
                    text.replace(&format!("{{{name}}}"), value)
                };
                let round = round.iter().fold(body.clone(), named);
                assert!(repeat(&mut round.lines(), text) == Closing::Text, "{line:?} has an #else");
            }
        } else {
            text.push_str(line);
            text.push('\n');
        }
    }
    Closing::Text
}

/// The block that `head` opens; returns whether an `#else` or an `#end` closed it.
fn block<'a>(lines: &mut impl Iterator<Item = &'a str>, text: &mut String, head: &str) -> Closing {
    let end = repeat(lines, text);
    assert!(end != Closing::Text, "{head:?} without #end");
    end
}

/// The lines of the loop that `head` opens, with the blocks inside as they are: a round's values may decide about them.
fn body<'a>(lines: &mut impl Iterator<Item = &'a str>, head: &str) -> String {
    let (mut text, mut depth) = (String::new(), 0);
    for line in lines {
        let directive = line.trim();
        match directive {
            "#end" if depth == 0 => return text,
            "#end" => depth -= 1,
            _ if directive.starts_with("#if ") || directive.starts_with("#for ") => depth += 1,
            _ => {}
        }
        text.push_str(line);
        text.push('\n');
    }
    panic!("{head:?} without #end")
}

/// The values of a loop's names, round by round.
fn rounds(head: &str) -> Option<Vec<Vec<(&str, String)>>> {
    let (names, values) = head.split_once(" in ")?;
    if let Some(count) = values.strip_prefix("0..") {
        let count: u32 = count.parse().ok()?;
        return Some((0..count).map(|i| vec![(names, i.to_string())]).collect());
    }
    let list = |text: &'_ str| -> Vec<String> { text.split(", ").map(str::to_string).collect() };
    let names: Vec<&str> = names.strip_prefix('(')?.strip_suffix(')')?.split(", ").collect();
    let values = values.strip_prefix('(')?.strip_suffix(')')?.split(") (").map(list);
    values.map(|v| (v.len() == names.len()).then(|| names.iter().copied().zip(v).collect())).collect()
}

fn include(name: &str, formats: &[&str], seen: &mut Vec<String>, text: &mut String) {
    if seen.iter().any(|s| s == name) {
        return;
    }
    seen.push(name.to_string());
    let source = SOURCES.iter().find(|(n, _)| *n == name).map(|(_, source)| *source);
    let source =
        source.unwrap_or_else(|| panic!("no shader named {name}; imported through {}", seen.join(" → ")));
    let reader = |format: &&str| format!("formats/{format}");
    for line in source.lines() {
        match line.strip_prefix("#import ").map(str::trim) {
            Some("weight") => {
                let [format] = formats else {
                    panic!("{name} imports a weight format, given are {formats:?}")
                };
                include(&reader(format), &[], seen, text);
            }
            // These values in f16, for kernels that import the format before.
            Some("weight_half") => {
                let mut own = formats.iter().map(|f| format!("formats/half/{f}"));
                let own = own.find(|own| SOURCES.iter().any(|(n, _)| n == own));
                include(own.as_deref().unwrap_or("formats/half/any"), &[], seen, text);
            }
            Some("weights") => {
                for (i, format) in formats.iter().enumerate() {
                    let mut own = String::new();
                    include(&reader(format), &[], &mut Vec::new(), &mut own);
                    text.push_str(&numbered(&own, i));
                }
            }
            Some(other) => include(other, formats, seen, text),
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
}

/// A reader with `_i` behind the names that it declares, and behind those of its matrix.
fn numbered(reader: &str, i: usize) -> String {
    let declared = reader.lines().filter_map(|line| {
        let rest = line.strip_prefix("fn ").or(line.strip_prefix("struct "))?;
        rest.split(|c: char| !in_name(c)).next()
    });
    let names: Vec<&str> = declared.chain(["weight", "weight_rows"]).collect();
    let mut text = String::new();
    let mut rest = reader;
    while let Some(start) = rest.find(in_name) {
        let end = rest[start..].find(|c| !in_name(c)).map_or(rest.len(), |n| start + n);
        text.push_str(&rest[..end]);
        if names.contains(&&rest[start..end]) {
            text.push_str(&format!("_{i}"));
        }
        rest = &rest[end..];
    }
    text + rest
}

fn in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}
