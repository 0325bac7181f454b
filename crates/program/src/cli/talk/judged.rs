//! `generate --reward`: rewards of replies, and pairs of the best and the worst reply to a prompt.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::files;
use rullama_train::recipe::Reward;
use rullama_train::rewards::{Completion, Rewards, totals};
use rullama_train::talk::generate::{Finish, Reply};
use serde_json::{Map, Value, json};

use super::prompts::{Prompt, PromptArgs};
use crate::cli::output;

/// Options that choose the rewards.
#[derive(Args)]
pub struct RewardArgs {
    /// Judge the replies by a reward: its name, or its keys as in [[rewards]] of a recipe, such as 'name = "regex", pattern = "^yes"'; may
    /// be repeated.
    #[arg(long = "reward", value_name = "REWARD")]
    rewards: Vec<String>,
    /// Judge the replies by the [[rewards]] of this recipe.
    #[arg(long = "rewards", value_name = "RECIPE", conflicts_with = "rewards")]
    recipe: Option<PathBuf>,
    /// Write the best and the worst reply to each prompt to this file, as samples for train.objective = "dpo", instead of printing replies.
    #[arg(long, value_name = "FILE")]
    pairs: Option<PathBuf>,
    /// Overwrite the file of --pairs.
    #[arg(long, requires = "pairs")]
    force: bool,
}

impl RewardArgs {
    /// Opens the rewards, before the model. `None` if there are none. `n`: replies to each prompt.
    pub fn open(&self, n: u64, prompts: &PromptArgs) -> Result<Option<Judge>> {
        let keys = match &self.recipe {
            Some(path) => Reward::of_recipe(path)?,
            None => {
                self.rewards.iter().map(|text| Reward::parse(text, "--reward")).collect::<Result<_, _>>()?
            }
        };
        if let Some(path) = &self.recipe
            && keys.is_empty()
        {
            bail!("--rewards: {} has no [[rewards]]; add some, or use --reward", path.display());
        }
        if let Some(path) = &self.pairs {
            if keys.is_empty() {
                bail!("--pairs needs something that judges the replies: add --reward or --rewards");
            }
            if n < 2 {
                bail!("--pairs needs several replies to each prompt: add --n 8");
            }
            if prompts.raw {
                bail!("--pairs writes samples of conversations; remove --raw");
            }
            if path.exists() && !self.force {
                bail!(
                    "{} exists; choose another name with --pairs, or overwrite it with --force",
                    path.display()
                );
            }
            files::check_file(path)?;
        }
        if keys.is_empty() {
            return Ok(None);
        }
        let rewards = Rewards::open(&keys)?;
        let (names, weights) = (rewards.names(), rewards.weights());
        let of = |reward: &Reward| {
            reward.columns().into_iter().map(|column| (reward.name(), column)).collect::<Vec<_>>()
        };
        let columns = keys.iter().flat_map(of).collect();
        let (pairs, counts, lines) = (self.pairs.clone(), Counts::default(), String::new());
        Ok(Some(Judge { rewards, names, weights, columns, pairs, counts, lines }))
    }
}

/// The replies to one prompt.
pub struct Group<'a> {
    pub prompt: &'a Prompt,
    pub replies: &'a [Reply],
}

/// The rewards of a reply.
pub struct Verdict {
    /// The weighted sum; `None` if no reward applies.
    pub total: Option<f64>,
    each: Vec<Option<f64>>,
}

/// Judges replies, and collects pairs.
pub struct Judge {
    rewards: Rewards,
    names: Vec<String>,
    weights: Vec<f64>,
    /// Columns that rewards read, each with the name of its reward.
    columns: Vec<(&'static str, String)>,
    pairs: Option<PathBuf>,
    counts: Counts,
    /// The pairs so far.
    lines: String,
}

/// Counts of what was found so far.
#[derive(Default)]
struct Counts {
    prompts: usize,
    pairs: usize,
    /// Prompts whose replies are all equally good.
    equal: usize,
    /// Prompts that no reward judges.
    unjudged: usize,
    /// Prompts whose better replies were all cut off, or say nothing.
    unfinished: usize,
    /// Judged replies, the sum of their rewards, and that of the best of each prompt.
    replies: usize,
    sum: f64,
    best: f64,
}

impl Judge {
    /// Refuses prompts that lack the columns of all rewards.
    pub fn check(&self, prompts: &[Prompt]) -> Result<()> {
        if let Some((reward, column)) =
            self.columns.first().filter(|_| prompts.iter().all(|prompt| prompt.row.is_empty()))
        {
            bail!(
                "the reward {reward} reads the column {column:?}, which a prompt alone does not have; give prompts with columns by --samples"
            );
        }
        Ok(self.rewards.check_columns(prompts.iter().map(|prompt| &prompt.row))?)
    }

    /// Whether replies are judged for pairs, and not printed unless asked for.
    pub fn writes_pairs(&self) -> bool {
        self.pairs.is_some()
    }

    /// The rewards of the replies to one prompt. Adds their pair.
    pub fn judge(&mut self, group: &Group, tokenizer: &Tokenizer, args: &PromptArgs) -> Result<Vec<Verdict>> {
        let ids: Vec<Vec<u32>> = group.replies.iter().map(|reply| with_end(reply, tokenizer)).collect();
        let completions: Vec<Completion> = group
            .replies
            .iter()
            .zip(&ids)
            .map(|(reply, ids)| Completion {
                prompt: &group.prompt.value,
                text: &reply.text,
                ids,
                finished: reply.finish == Finish::Stop,
                row: &group.prompt.row,
            })
            .collect();
        let scores = self.rewards.score(&completions)?;
        let totals = totals(&scores, &self.weights);
        self.count(group, &totals, args);
        let each = |i: usize| scores.iter().map(|scores| scores[i]).collect();
        Ok(totals.iter().enumerate().map(|(i, total)| Verdict { total: *total, each: each(i) }).collect())
    }

    fn count(&mut self, group: &Group, totals: &[Option<f64>], args: &PromptArgs) {
        let judged: Vec<(&Reply, f64)> =
            group.replies.iter().zip(totals).filter_map(|(reply, total)| Some((reply, (*total)?))).collect();
        let counts = &mut self.counts;
        counts.prompts += 1;
        let Some(best) = judged.iter().map(|(_, total)| *total).reduce(f64::max) else {
            counts.unjudged += 1;
            return;
        };
        counts.replies += judged.len();
        counts.sum += judged.iter().map(|(_, total)| total).sum::<f64>();
        counts.best += best;
        if judged.iter().all(|(_, total)| *total == best) {
            counts.equal += 1;
            return;
        }
        let Some((chosen, rejected)) = pair(&judged) else {
            counts.unfinished += 1;
            return;
        };
        counts.pairs += 1;
        if self.pairs.is_some() {
            let mut sample = args.sample(group.prompt);
            sample.insert("chosen".into(), json!(chosen));
            sample.insert("rejected".into(), json!(rejected));
            self.lines += &format!("{}\n", Value::Object(sample));
        }
    }

    /// Adds rewards to a reply for `--json`.
    pub fn describe(&self, object: &mut Value, verdict: &Verdict) {
        let each: Map<String, Value> =
            self.names.iter().zip(&verdict.each).map(|(name, value)| (name.clone(), json!(value))).collect();
        object["reward"] = json!(verdict.total);
        object["rewards"] = Value::Object(each);
    }

    /// Prints what was found, and writes the pairs. `beside`: stdout has the replies.
    pub fn finish(self, beside: bool) -> Result<()> {
        let say = |text: &str| if beside { eprintln!("{text}") } else { output::text(text) };
        let Counts { prompts, pairs, equal, unjudged, unfinished, replies, sum, best } = self.counts;
        let judged = prompts - unjudged;
        if replies > 0 {
            let (mean, best) = (sum / replies as f64, best / judged as f64);
            let of =
                if replies == 1 { "1 reply".into() } else { format!("{} replies", output::grouped(replies)) };
            say(&format!("reward: {mean:.3} on average, {best:.3} for the best reply to each prompt ({of})"));
        }
        let Some(path) = &self.pairs else { return Ok(()) };
        let mut left_out: Vec<String> = Vec::new();
        let mut note = |count: usize, why: &str| {
            if count > 0 {
                left_out.push(format!("{count} {why}"));
            }
        };
        note(equal, "whose replies all have the same reward");
        note(unfinished, "whose better replies were all cut off or empty");
        note(unjudged, "that no reward judges");
        let left_out = match left_out.is_empty() {
            true => String::new(),
            false => format!("; left out: {}", left_out.join(", ")),
        };
        let of = output::count(prompts, "prompt");
        if pairs == 0 {
            bail!(
                "no pairs of {of}{left_out}; raise --temperature, --n or --max-tokens, or change the rewards"
            );
        }
        write(path, &self.lines)?;
        say(&format!("pairs: {pairs} of {of} in {}{left_out}", path.display()));
        Ok(())
    }
}

fn write(path: &Path, lines: &str) -> Result<()> {
    Ok(files::write_atomic(path, lines.as_bytes())?)
}

/// The best reply that the model ended, and the worst reply with a lower reward and another text. Of equals, the first. Empty replies are
/// neither: they are no samples.
fn pair<'a>(judged: &[(&'a Reply, f64)]) -> Option<(&'a str, &'a str)> {
    let spoken = || judged.iter().filter(|(reply, _)| !reply.text.trim().is_empty());
    let finished = spoken().filter(|(reply, _)| reply.finish == Finish::Stop);
    let best = finished.reduce(|best, other| if other.1 > best.1 { other } else { best })?;
    let worse = spoken().filter(|(reply, total)| *total < best.1 && reply.text.trim() != best.0.text.trim());
    let worst = worse.reduce(|worst, other| if other.1 < worst.1 { other } else { worst })?;
    Some((&best.0.text, &worst.0.text))
}

/// The tokens of a reply, with an end token where it ended by itself.
fn with_end(reply: &Reply, tokenizer: &Tokenizer) -> Vec<u32> {
    let end = tokenizer.eos().first().filter(|_| reply.finish == Finish::Stop);
    reply.ids.iter().chain(end).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(text: &str, finish: Finish) -> Reply {
        Reply { text: text.into(), finish, ..Reply::cancelled(1) }
    }

    #[test]
    fn a_pair_is_the_best_finished_and_the_worst_reply() {
        let of = |replies: &[(&str, Finish, f64)]| {
            let owned: Vec<(Reply, f64)> =
                replies.iter().map(|(text, finish, total)| (reply(text, *finish), *total)).collect();
            let judged: Vec<(&Reply, f64)> = owned.iter().map(|(reply, total)| (reply, *total)).collect();
            pair(&judged).map(|(chosen, rejected)| (chosen.to_owned(), rejected.to_owned()))
        };
        let named = |chosen: &str, rejected: &str| Some((chosen.to_owned(), rejected.to_owned()));
        let (stop, length) = (Finish::Stop, Finish::Length);
        assert_eq!(of(&[("a", stop, 0.5), ("b", stop, 1.0), ("c", stop, 0.0)]), named("b", "c"));
        assert_eq!(
            of(&[("a", stop, 1.0), ("b", stop, 1.0), ("c", stop, 0.0), ("d", stop, 0.0)]),
            named("a", "c")
        );
        assert_eq!(of(&[("a", length, 1.0), ("b", stop, 0.5), ("c", length, 0.0)]), named("b", "c"));
        assert_eq!(of(&[("a", length, 1.0), ("b", stop, 0.0)]), None, "the better one was cut off");
        assert_eq!(
            of(&[("", stop, 1.0), ("b", stop, 0.5), (" ", stop, 0.0), ("c", stop, 0.1)]),
            named("b", "c")
        );
        assert_eq!(of(&[("a", stop, 1.0), ("a\n", stop, 0.0)]), None, "one text");
        assert_eq!(of(&[]), None);
    }
}
