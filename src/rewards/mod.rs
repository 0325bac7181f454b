//! Rewards: functions that judge completions, for objectives that learn from them and for the choice of the best of several replies.
//!
//! A reward gives each completion a finite number, or none where it does not apply. `docs/rewards.md` describes them.

mod columns;
#[cfg(feature = "native")]
mod command;
mod error;
mod json;
mod number;
mod rational;
mod text;
mod tokens;
#[cfg(feature = "native")]
mod url;

use serde_json::{Map, Value};

pub use error::RewardError;

pub use crate::train::objective::advantages::totals;

use crate::recipe::{Reward, RewardKind};

/// A completion to be judged.
#[derive(Clone, Copy, Debug)]
pub struct Completion<'a> {
    /// The prompt as in the row: text, or a list of messages.
    pub prompt: &'a Value,
    /// The text, without the end token.
    pub text: &'a str,
    /// The tokens, with the end token where the model ended it, as TRL counts them.
    pub ids: &'a [u32],
    /// Whether it ended by itself, and not at a limit of its length.
    pub finished: bool,
    /// All columns of its row.
    pub row: &'a Map<String, Value>,
}

/// One value per completion; `None` where the reward does not apply.
type Values = Vec<Option<f64>>;

/// A function that judges completions.
trait Judge: Send {
    /// The values of the completions, all finite.
    fn score(&mut self, completions: &[Completion<'_>]) -> Result<Values, RewardError>;
}

/// The rewards of a recipe, ready to judge.
pub struct Rewards {
    all: Vec<Open>,
}

struct Open {
    name: String,
    weight: f64,
    /// Columns that it reads.
    columns: Vec<String>,
    judge: Box<dyn Judge>,
}

impl Rewards {
    /// Prepares the rewards. Fails on one that this build or machine cannot compute.
    pub fn open(keys: &[Reward]) -> Result<Rewards, RewardError> {
        let mut all: Vec<Open> = Vec::new();
        for reward in keys {
            let name = unique(reward.name(), &all);
            let judge = judge(&reward.kind, &name)?;
            all.push(Open { name, weight: reward.weight, columns: reward.columns(), judge });
        }
        Ok(Rewards { all })
    }

    /// The names, each once: `number`, `number_2`.
    pub fn names(&self) -> Vec<String> {
        self.all.iter().map(|reward| reward.name.clone()).collect()
    }

    /// The weights.
    pub fn weights(&self) -> Vec<f64> {
        self.all.iter().map(|reward| reward.weight).collect()
    }

    /// Judges completions: `[reward][completion]`. `None`: the reward does not apply to the completion.
    pub fn score(&mut self, completions: &[Completion<'_>]) -> Result<Vec<Values>, RewardError> {
        if completions.is_empty() {
            return Ok(vec![Vec::new(); self.all.len()]);
        }
        self.all.iter_mut().map(|reward| reward.judge.score(completions)).collect()
    }

    /// Refuses data of which no row has a column that a reward reads.
    pub fn check_columns<'a>(
        &self,
        rows: impl Iterator<Item = &'a Map<String, Value>> + Clone,
    ) -> Result<(), RewardError> {
        let columns =
            self.all.iter().flat_map(|reward| reward.columns.iter().map(|column| (&reward.name, column)));
        for (name, column) in columns {
            if rows.clone().any(|row| row.contains_key(column)) {
                continue;
            }
            let first = rows.clone().next().map(|row| row.keys().cloned().collect::<Vec<_>>().join(", "));
            let message = format!(
                "no row has the column {column:?}; the first row has {}; name one of the columns",
                first.filter(|names| !names.is_empty()).unwrap_or_else(|| "none".into())
            );
            return Err(RewardError::Column { reward: name.clone(), message });
        }
        Ok(())
    }
}

fn unique(name: &str, all: &[Open]) -> String {
    let mut names = std::iter::once(name.to_owned()).chain((2..).map(|n| format!("{name}_{n}")));
    names.find(|name| all.iter().all(|other| other.name != *name)).expect("there are more names than rewards")
}

fn judge(kind: &RewardKind, name: &str) -> Result<Box<dyn Judge>, RewardError> {
    let name = name.to_owned();
    Ok(match kind {
        RewardKind::Regex { pattern, full_match, after } => {
            Box::new(text::Pattern::new(&name, pattern, *full_match, after.clone())?)
        }
        RewardKind::ExactMatch { column, after } => {
            Box::new(text::Exact { name, column: column.clone(), after: after.clone() })
        }
        RewardKind::Number { column, tolerance, after } => Box::new(number::Number {
            name,
            column: column.clone(),
            tolerance: *tolerance,
            after: after.clone(),
        }),
        RewardKind::Json { schema, fenced, after } => {
            Box::new(json::Json::new(&name, schema.as_deref(), *fenced, after.clone())?)
        }
        RewardKind::ThinkFormat => Box::new(text::ThinkFormat),
        RewardKind::Length(form) => Box::new(tokens::Length(form.clone())),
        RewardKind::Repetition { ngram_size, max_penalty } => {
            Box::new(tokens::Repetition { ngram_size: *ngram_size, max_penalty: *max_penalty })
        }
        #[cfg(feature = "native")]
        RewardKind::Command { command, timeout } => {
            Box::new(command::Command::new(&name, command, *timeout)?)
        }
        #[cfg(feature = "native")]
        RewardKind::Url(judge) => Box::new(url::Url::new(&name, judge)?),
        #[cfg(not(feature = "native"))]
        RewardKind::Command { .. } | RewardKind::Url(_) => {
            let message = "a browser can neither start programs nor reach a judge; remove it, or train with the command line";
            return Err(RewardError::Failed { reward: name, message: message.into() });
        }
    })
}
