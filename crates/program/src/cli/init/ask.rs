//! Questions on a terminal. Without one, a missing value is its default, or an error that names the flag.

use std::io::IsTerminal;

use anyhow::{Context, Result, bail};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::cli::{message, output};

/// Asks questions, if there is a terminal.
pub struct Asker {
    editor: Option<DefaultEditor>,
}

impl Asker {
    pub fn new() -> Result<Asker> {
        let can_ask = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        Ok(Asker { editor: can_ask.then(DefaultEditor::new).transpose()? })
    }

    pub fn can_ask(&self) -> bool {
        self.editor.is_some()
    }

    /// Asks one question. An empty answer is the default; without a default, it is asked for again.
    pub fn ask(&mut self, question: &str, default: Option<&str>, flag: &str) -> Result<String> {
        let Some(editor) = &mut self.editor else {
            return default.map(str::to_owned).with_context(|| {
                format!("{flag} is required when there is no terminal to ask on ({question})")
            });
        };
        let hint = default.filter(|d| !d.is_empty()).map_or(String::new(), |default| format!(" [{default}]"));
        loop {
            match editor.readline(&format!("{question}{hint}: ")) {
                Ok(answer) if !answer.trim().is_empty() => return Ok(answer.trim().to_owned()),
                Ok(_) => {
                    if let Some(default) = default {
                        return Ok(default.to_owned());
                    }
                }
                Err(ReadlineError::Interrupted | ReadlineError::Eof) => {
                    bail!("cancelled; nothing was written")
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Asks until `read` accepts the answer, and prints why it does not. An empty `default` is none.
    pub fn until<T>(
        &mut self,
        question: &str,
        default: &str,
        flag: &str,
        read: impl Fn(&str) -> Result<T>,
    ) -> Result<T> {
        loop {
            let answer = self.ask(question, Some(default).filter(|d| !d.is_empty()), flag)?;
            match read(&answer) {
                Ok(value) => return Ok(value),
                Err(error) => output::line("notice", message(&error)),
            }
        }
    }
}
