//! Splits a Go template into text and actions, and actions into tokens.

use super::GoError;

/// White space of Go's templates.
const SPACE: [char; 4] = [' ', '\t', '\r', '\n'];

/// A token of an action.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A keyword, a function, `true`, `false` or `nil`.
    Word(String),
    /// `.Name`.
    Field(String),
    /// `$name`, or `$` alone with an empty name.
    Variable(String),
    Text(String),
    Int(i64),
    Float(f64),
    Dot,
    Open,
    Close,
    Pipe,
    Comma,
    Declare,
    Assign,
    /// White space, which separates arguments from fields.
    Space,
}

/// A part of a template.
#[derive(Debug)]
pub(super) enum Part {
    Text(String),
    Action(Vec<Token>),
}

/// Splits a template. `{{-` and `-}}` trim the text beside them.
pub(super) fn parts(source: &str) -> Result<Vec<Part>, GoError> {
    let mut parts = Vec::new();
    let (mut rest, mut trim) = (source, false);
    while let Some(at) = rest.find("{{") {
        let (text, action) = (&rest[..at], &rest[at + 2..]);
        let trims = action.strip_prefix('-').filter(|action| action.starts_with(SPACE));
        push(&mut parts, text, trim, trims.is_some());
        let (inside, after) = action_end(trims.unwrap_or(action))?;
        let trimmed = inside.strip_suffix('-').filter(|inside| inside.ends_with(SPACE));
        (rest, trim) = (after, trimmed.is_some());
        let inside = trimmed.unwrap_or(inside);
        if !inside.trim_matches(SPACE).starts_with("/*") {
            parts.push(Part::Action(tokens(inside)?));
        }
    }
    push(&mut parts, rest, trim, false);
    Ok(parts)
}

fn push(parts: &mut Vec<Part>, text: &str, trim_start: bool, trim_end: bool) {
    let text = if trim_start { text.trim_start_matches(SPACE) } else { text };
    let text = if trim_end { text.trim_end_matches(SPACE) } else { text };
    if !text.is_empty() {
        parts.push(Part::Text(text.to_owned()));
    }
}

/// The inside of an action, and what follows it. `}}` inside of a text or a comment does not end it.
fn action_end(action: &str) -> Result<(&str, &str), GoError> {
    let unclosed = || GoError::syntax("an action is not closed by }}");
    let (mut at, start) = (0, action.trim_start_matches(SPACE));
    if start.starts_with("/*") {
        at = action.find("*/").ok_or_else(unclosed)? + 2;
    }
    let bytes = action.as_bytes();
    while at < bytes.len() {
        match bytes[at] {
            b'"' | b'\'' | b'`' => at += quoted(&action[at..])?.1,
            b'}' if bytes.get(at + 1) == Some(&b'}') => return Ok((&action[..at], &action[at + 2..])),
            _ => at += 1,
        }
    }
    Err(unclosed())
}

/// The value of a text in quotes at the start of `source`, and its length with the quotes.
fn quoted(source: &str) -> Result<(String, usize), GoError> {
    let unclosed = || GoError::syntax("a text is not closed");
    let mut chars = source.char_indices();
    let (_, quote) = chars.next().ok_or_else(unclosed)?;
    let mut text = String::new();
    while let Some((at, char)) = chars.next() {
        match char {
            _ if char == quote => return Ok((text, at + 1)),
            '\\' if quote != '`' => {
                let (_, escape) = chars.next().ok_or_else(unclosed)?;
                let digits = match escape {
                    'x' => 2,
                    'u' => 4,
                    'U' => 8,
                    _ => {
                        text.push(simple_escape(escape)?);
                        continue;
                    }
                };
                let hex: String = chars.by_ref().take(digits).map(|(_, digit)| digit).collect();
                let char = u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32);
                text.push(char.ok_or_else(|| GoError::syntax(format!("\\{escape}{hex} is no character")))?);
            }
            _ => text.push(char),
        }
    }
    Err(unclosed())
}

fn simple_escape(escape: char) -> Result<char, GoError> {
    match escape {
        'n' => Ok('\n'),
        't' => Ok('\t'),
        'r' => Ok('\r'),
        '\\' | '"' | '\'' => Ok(escape),
        _ => Err(GoError::syntax(format!("the escape \\{escape} is not known"))),
    }
}

fn tokens(action: &str) -> Result<Vec<Token>, GoError> {
    let mut tokens = Vec::new();
    let mut rest = action.trim_matches(SPACE);
    while let Some(char) = rest.chars().next() {
        let (token, len) = match char {
            _ if SPACE.contains(&char) => (Token::Space, rest.len() - rest.trim_start_matches(SPACE).len()),
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            '|' => (Token::Pipe, 1),
            ',' => (Token::Comma, 1),
            ':' if rest.starts_with(":=") => (Token::Declare, 2),
            '=' => (Token::Assign, 1),
            '"' | '`' => {
                let (text, len) = quoted(rest)?;
                (Token::Text(text), len)
            }
            '\'' => {
                let (text, len) = quoted(rest)?;
                (Token::Int(text.chars().next().map_or(0, |char| char as i64)), len)
            }
            '.' if !rest[1..].starts_with(|c: char| c.is_alphanumeric() || c == '_') => (Token::Dot, 1),
            '.' if !rest[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                let name = word(&rest[1..]);
                (Token::Field(name.to_owned()), 1 + name.len())
            }
            '$' => {
                let name = word(&rest[1..]);
                (Token::Variable(name.to_owned()), 1 + name.len())
            }
            '0'..='9' | '.' | '+' | '-' => number(rest)?,
            _ if char.is_alphabetic() || char == '_' => {
                let name = word(rest);
                (Token::Word(name.to_owned()), name.len())
            }
            _ => return Err(GoError::syntax(format!("{char:?} is not expected in an action"))),
        };
        tokens.push(token);
        rest = &rest[len..];
    }
    Ok(tokens)
}

fn word(source: &str) -> &str {
    let end = source.find(|char: char| !char.is_alphanumeric() && char != '_');
    &source[..end.unwrap_or(source.len())]
}

fn number(source: &str) -> Result<(Token, usize), GoError> {
    let end = source[1..].find(|char: char| !char.is_ascii_alphanumeric() && char != '.');
    let text = &source[..end.map_or(source.len(), |end| end + 1)];
    let token = match text.parse() {
        Ok(int) => Token::Int(int),
        Err(_) => Token::Float(text.parse().map_err(|_| GoError::syntax(format!("{text} is no number")))?),
    };
    Ok((token, text.len()))
}
