//! Lengths of functions, and their numbers of arguments.

/// A function as it stands in a file that rustfmt wrote.
pub struct Function {
    pub name: String,
    /// Its first line, from 1.
    pub line: usize,
    pub lines: usize,
    pub arguments: usize,
}

/// The functions of a file, those in tests included.
pub fn functions(text: &str) -> Vec<Function> {
    let lines: Vec<&str> = text.lines().collect();
    let found = lines.iter().enumerate().filter_map(|(first, line)| {
        let name = name(line)?;
        let indent = &line[..line.len() - line.trim_start().len()];
        let is_end = |line: &&str| line.strip_prefix(indent).is_some_and(|rest| rest.starts_with('}'));
        let last = match line.ends_with('}') || line.ends_with(';') {
            true => first,
            false => first + 1 + lines[first + 1..].iter().position(is_end)?,
        };
        let whole = lines[first..=last].join("\n");
        Some(Function { name, line: first + 1, lines: last + 1 - first, arguments: arguments(&whole) })
    });
    found.collect()
}

/// The name of the function that begins in a line.
fn name(line: &str) -> Option<String> {
    let (before, after) = line.split_once("fn ")?;
    let modifiers = before.split_whitespace().all(|word| {
        ["const", "async", "unsafe", "extern", "\"C\""].contains(&word)
            || word.starts_with("pub")
            || word.ends_with(')')
    });
    let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (modifiers && !name.is_empty()).then_some(name)
}

/// The number of arguments, `self` included.
fn arguments(function: &str) -> usize {
    let (mut depth, mut count, mut pending, mut before) = (0, 0, false, ' ');
    let (_, after) = function.split_once("fn ").unwrap_or_default();
    // Generic parameters come first.
    let (mut angles, mut last) = (0, ' ');
    let start = after.find(|c| {
        match c {
            '<' => angles += 1,
            '>' if last != '-' => angles -= 1,
            _ => {}
        }
        last = c;
        c == '(' && angles == 0
    });
    for letter in after[start.unwrap_or(0)..].chars() {
        match letter {
            '(' | '[' | '{' | '<' => depth += 1,
            '>' if before == '-' => {}
            ')' | ']' | '}' | '>' => depth -= 1,
            ',' if depth == 1 => {
                count += usize::from(pending);
                pending = false;
            }
            c => pending |= !c.is_whitespace(),
        }
        before = letter;
        if depth == 0 {
            break;
        }
    }
    count + usize::from(pending)
}
