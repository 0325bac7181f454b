//! Text for the terminal: labelled lines, numbers with units, and descriptions of what several commands print.

mod adapter;
mod device;
mod kept;
pub mod lessons;
pub mod next;
mod preference;
pub mod progress;
mod rewards;
mod samples;

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

use rullama_train::words;
pub use rullama_train::words::bytes;

pub use adapter::{adapters, effect, effect_json, effects, exported, places, written};
pub use device::{device, offloaded, plan};
pub use kept::{finish, keep};
pub use preference::preference;
pub use progress::Progress;
pub use rewards::{eval_rewards, rewards};
pub use samples::{found, lengths, marked_sample, token_counts};

/// Prints text and a newline. A closed stdout (`| head`) is not an error.
pub fn text(text: impl Display) {
    let text = text.to_string();
    if !kept::push("", &text) {
        let _ = writeln!(std::io::stdout(), "{text}");
    }
}

/// Prints an error to stderr in one write, so that the text of another process, such as a launcher, cannot split it.
pub fn error(text: impl Display) {
    let _ = std::io::stderr().write_all(format!("error: {text}\n").as_bytes());
}

/// Prints a line with a label. On a terminal, long text is wrapped and indented to its own column.
pub fn line(label: &str, text: impl Display) {
    let text = text.to_string();
    if kept::push(label, &text) {
        return;
    }
    let terminal = console::Term::stdout();
    if !terminal.features().is_attended() {
        return self::text(format_args!("{label:<10} {text}"));
    }
    let label = match label {
        "notice" => console::style(format!("{label:<10}")).yellow(),
        _ => console::style(format!("{label:<10}")).dim(),
    };
    let width = usize::from(terminal.size().1).saturating_sub(LABEL);
    self::text(format_args!("{label} {}", wrapped(&text, width).join(&format!("\n{:LABEL$}", ""))));
}

/// Prints a command with a label, on one line so that it can be copied.
pub fn command(label: &str, command: &str) {
    if kept::push(label, command) {
        return;
    }
    let label = format!("{label:<10}");
    match console::Term::stdout().features().is_attended() {
        true => text(format_args!("{} {command}", console::style(label).dim())),
        false => text(format_args!("{label} {command}")),
    }
}

/// Columns before the text of a labelled line.
const LABEL: usize = 11;

/// Prints columns of a table, and text after them, which is wrapped and indented to its own column on a terminal.
pub fn row(columns: &str, text: &str) {
    let terminal = console::Term::stdout();
    let indent = columns.chars().count();
    let width = match terminal.features().is_attended() {
        true => usize::from(terminal.size().1).saturating_sub(indent),
        false => usize::MAX,
    };
    self::text(format_args!("{columns}{}", wrapped(text, width).join(&format!("\n{:indent$}", ""))));
}

/// Splits text at spaces into lines of at most `width` columns. A longer word gets a line of its own, and a percent sign stays with
/// its number.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.replace(" %", "\u{a0}%").split(' ') {
        let word = word.replace('\u{a0}', " ");
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                *line += &format!(" {word}")
            }
            _ => lines.push(word),
        }
    }
    lines
}

/// Prints one `notice` line per item.
pub fn notices(notices: &[impl Display]) {
    for notice in notices {
        line("notice", notice);
    }
}

/// Shows a spinner with a message until the returned value is dropped.
pub fn spinner(message: impl Into<String>) -> Progress {
    Progress::new(message, 0)
}

/// A number with its noun in singular or plural: `1 epoch`, `2 000 tokens`.
pub fn count(n: usize, noun: &str) -> String {
    words::counted(n, noun)
}

/// A duration in two units at most: `45 s`, `12 min 30 s`, `3 h 05 min`.
pub fn duration(time: Duration) -> String {
    words::duration(time.as_secs() as f64, 0)
}

/// Digits in groups of three, separated by spaces.
pub fn grouped(n: usize) -> String {
    words::grouped(n, ' ')
}

/// Prints a labelled line, or does not.
pub type Say = dyn Fn(&str, String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_spaces() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("one two three", 13), ["one two three"]);
        assert_eq!(wrapped("a loooooong word", 6), ["a", "loooooong", "word"]);
        assert_eq!(wrapped("äöü äöü", 7), ["äöü äöü"]);
        assert_eq!(wrapped("", 7), [""]);
        assert_eq!(wrapped("one 93.6 %", 8), ["one", "93.6 %"]);
    }
}
