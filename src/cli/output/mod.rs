//! Text for the terminal: labelled lines, numbers with units, and descriptions of what several commands print.

mod adapter;
mod device;
mod samples;

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::ProgressBar;
use rullama_train::words;
pub use rullama_train::words::bytes;

pub use adapter::{adapters, written};
pub use device::{device, offloaded, plan};
pub use samples::{found, lengths, marked_sample, token_counts};

/// Prints text and a newline. A closed stdout (`| head`) is not an error.
pub fn text(text: impl Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints a line with a label. On a terminal, long text is wrapped and indented to its own column.
pub fn line(label: &str, text: impl Display) {
    let text = text.to_string();
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

/// Columns before the text of a labelled line.
const LABEL: usize = 11;

/// Splits text at spaces into lines of at most `width` columns. A longer word gets a line of its own.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                *line += &format!(" {word}")
            }
            _ => lines.push(word.into()),
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

/// Shows a spinner with a message until the returned bar is cleared; does nothing without a terminal.
pub fn spinner(message: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner().with_message(message);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// A number with its noun in singular or plural: `1 epoch`, `2 000 tokens`.
pub fn count(n: usize, noun: &str) -> String {
    format!("{} {noun}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// A duration in two units at most: `45 s`, `12 min 30 s`, `3 h 05 min`.
pub fn duration(time: Duration) -> String {
    words::duration(time.as_secs() as f64, 0)
}

/// Digits in groups of three, separated by spaces.
pub fn grouped(n: usize) -> String {
    words::grouped(n, ' ')
}

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
    }
}
