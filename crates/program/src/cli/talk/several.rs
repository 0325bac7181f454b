//! `generate --n` and `--reward`: several replies to each prompt, generated together, and judged.

use std::ops::ControlFlow;

use anyhow::Result;
use pollster::block_on;
use rullama_train::model::Model;
use rullama_train::talk::generate::{Options, Reply};
use rullama_train::talk::replies::{News, Replies};
use rullama_train::talk::sampling::Sampling;
use serde_json::{Value, json};

use super::judged::{Group, Judge, Verdict};
use super::prompts::{Prompt, PromptArgs};
use super::{Loaded, note_if_cut, print_piece, tokens};
use crate::cli::output::Progress;

/// The form of the output.
pub struct Form {
    /// Replies to each.
    pub n: usize,
    /// Whether one JSON object per reply is printed.
    pub json: bool,
    /// Judges the replies, if they are to be judged.
    pub judge: Option<Judge>,
}

/// Prints the replies to each prompt, in the order of the prompts and of their seeds.
pub fn run(
    form: Form,
    args: &PromptArgs,
    loaded: &Loaded,
    model: &Model,
    options: &Options,
    prompts: &[Prompt],
) -> Result<()> {
    let n = form.n;
    if options.sampling.temperature == 0.0 && n > 1 {
        eprintln!("note: without a temperature, the {n} replies to a prompt are the same; set --temperature");
    }
    let longest = prompts.iter().map(|prompt| prompt.ids.len()).max().unwrap_or(0);
    let workspace = loaded.workspace_for(model, longest + options.max_new_tokens, [n * prompts.len(), 1])?;
    let mut replies = Replies::new(&workspace, &loaded.frozen.tokenizer, loaded.adapter.as_ref())?;
    let own: Vec<Options> = (0..n as u64)
        .map(|i| {
            let sampling = Sampling { seed: options.sampling.seed.wrapping_add(i), ..options.sampling };
            Options { sampling, ..options.clone() }
        })
        .collect();
    let all: Vec<(&[u32], &Options)> =
        prompts.iter().flat_map(|prompt| own.iter().map(move |options| (&prompt.ids[..], options))).collect();
    let shows = form.json || form.judge.as_ref().is_none_or(|judge| !judge.writes_pairs());
    let bar = if shows { Progress::hidden() } else { Progress::new("replies", all.len()) };
    let mut show = Show { form, args, loaded, prompts, own: &own, shows };
    let mut waiting: Vec<Option<Reply>> = vec![None; all.len()];
    let (mut next, mut done, mut failed) = (0, 0, None);
    let printer = |of: usize, news: News| {
        let News::Done(reply) = news else { return ControlFlow::Continue(()) };
        waiting[of] = Some(reply);
        done += 1;
        bar.set_position(done);
        let mut flow = ControlFlow::Continue(());
        // Replies that are not judged are shown one by one, others once those to their prompt are there.
        let size = if show.form.judge.is_some() { n } else { 1 };
        while flow.is_continue()
            && waiting[next..].iter().take(size).filter(|reply| reply.is_some()).count() == size
        {
            let group: Vec<Reply> = waiting[next..next + size].iter_mut().filter_map(Option::take).collect();
            flow = show.group(next, &group).unwrap_or_else(|error| {
                failed = Some(error);
                ControlFlow::Break(())
            });
            next += size;
        }
        flow
    };
    block_on(replies.reply(&all, printer))?;
    bar.finish_and_clear();
    match (failed, show.form.judge) {
        (Some(error), _) => Err(error),
        (None, Some(judge)) if next == all.len() => judge.finish(shows),
        // stdout is closed.
        _ => Ok(()),
    }
}

/// Shows replies.
struct Show<'a> {
    form: Form,
    args: &'a PromptArgs,
    loaded: &'a Loaded,
    prompts: &'a [Prompt],
    own: &'a [Options],
    /// Whether replies are printed.
    shows: bool,
}

impl Show<'_> {
    /// Judges and prints replies to one prompt, of which `first` is the number of the first among all replies.
    fn group(&mut self, first: usize, replies: &[Reply]) -> Result<ControlFlow<()>> {
        let prompt = &self.prompts[first / self.form.n];
        let verdicts: Vec<Option<Verdict>> = match &mut self.form.judge {
            None => replies.iter().map(|_| None).collect(),
            Some(judge) => {
                let group = Group { prompt, replies };
                let verdicts = judge.judge(&group, &self.loaded.frozen.tokenizer, self.args)?;
                verdicts.into_iter().map(Some).collect()
            }
        };
        for (i, (reply, verdict)) in replies.iter().zip(&verdicts).enumerate().filter(|_| self.shows) {
            let number = (first + i) % self.form.n;
            let flow = match self.form.json {
                true => print_piece(&format!("{}\n", self.object(prompt, number, reply, verdict.as_ref()))),
                false => self.print(number, reply, verdict.as_ref()),
            };
            if flow.is_break() {
                return Ok(flow); // stdout is closed
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn print(&self, number: usize, reply: &Reply, verdict: Option<&Verdict>) -> ControlFlow<()> {
        let reward = match verdict.map(|verdict| verdict.total) {
            None => String::new(),
            Some(None) => ", without a reward".into(),
            Some(Some(total)) => format!(", reward {total:.3}"),
        };
        let flow = print_piece(&format!("--- {} of {}{reward}\n{}\n", number + 1, self.form.n, reply.text));
        note_if_cut(reply, self.loaded.context());
        flow
    }

    /// For `--json`.
    fn object(&self, prompt: &Prompt, number: usize, reply: &Reply, verdict: Option<&Verdict>) -> Value {
        let options = &self.own[number];
        let mut object = json!({ "prompt": prompt.value, "reply": number, "seed": options.sampling.seed });
        tokens::add_reply(&mut object, &prompt.ids, reply);
        if let Some((judge, verdict)) = self.form.judge.as_ref().zip(verdict) {
            judge.describe(&mut object, verdict);
        }
        if options.logprobs.is_some() {
            tokens::add_scores(&mut object, &self.loaded.frozen.tokenizer, reply);
        }
        object
    }
}
