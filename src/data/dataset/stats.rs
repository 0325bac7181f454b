//! Counts over the records of a file: the notices and errors that follow from them.

use std::collections::BTreeSet;

use indexmap::IndexMap;

use super::context;
use super::error::Problem;
use super::sample::{Read, System};
use super::{Container, Format, Options, Overlong, What};
use crate::data::batch::Sample;
use crate::data::compare::Side;
use crate::data::template::{LeftOut, Rendered};

/// Results of a file's records.
#[derive(Default)]
pub(super) struct Tally {
    /// Number of samples, including those that are too long.
    total: usize,
    pub shapes: Vec<(Format, usize)>,
    overlong: usize,
    /// Number and length of the first sample that is too long.
    first_overlong: Option<(usize, usize)>,
    longest: usize,
    control_tokens: usize,
    left_out: (usize, BTreeSet<LeftOut>),
    /// Number of samples with bytes that the vocabulary cannot write, the first one's number, and the bytes.
    unwritten: (usize, Option<usize>, BTreeSet<u8>),
    pub ignored: IndexMap<String, usize>,
    invalid: (usize, Option<(usize, String)>),
    pairs: Vec<((&'static str, &'static str), usize)>,
    prompts: Vec<(&'static str, usize)>,
    nulls: (usize, usize),
    /// Number of NaN and Infinity.
    pub not_numbers: usize,
    binary: usize,
    empty: usize,
    /// Number of the first sample with an empty answer.
    first_empty: Option<usize>,
    silent: usize,
    own_system: usize,
    without_system: usize,
    missing_system: usize,
    /// Number of samples whose last answer ends in no token that ends a reply, with the first one's tokens.
    open_ends: (usize, Option<(String, String)>),
    /// Number of tokens of a file of plain text, if it was cut.
    cut: Option<usize>,
    /// Number of samples with a context, and with an empty one.
    contexts: [usize; 2],
}

impl Tally {
    /// Counts the record with this number, and returns its samples.
    pub fn count(&mut self, number: usize, read: Read) -> Vec<(Side, Rendered)> {
        self.total += 1;
        if read.overlong {
            self.overlong += 1;
            self.first_overlong.get_or_insert((number, read.length));
            self.longest = self.longest.max(read.length);
        }
        self.control_tokens += usize::from(read.control_tokens);
        self.contexts[0] += usize::from(read.context == context::Found::Text);
        self.contexts[1] += usize::from(read.context == context::Found::Empty);
        self.left_out.0 += usize::from(!read.left_out.is_empty());
        self.left_out.1.extend(read.left_out);
        self.own_system += usize::from(read.system == System::Own);
        self.without_system += usize::from(read.system == System::NoConversation);
        self.missing_system += usize::from(read.system == System::Missing);
        if let Some(tokens) = read.open_end {
            self.open_ends.0 += 1;
            self.open_ends.1.get_or_insert(tokens);
        }
        read.ignored.into_iter().for_each(|key| *self.ignored.entry(key).or_default() += 1);
        self.note_unwritten(number, read.rendered.iter().map(|(_, rendered)| rendered));
        if !read.rendered.is_empty() {
            increment(&mut self.shapes, read.shape);
            read.pair.into_iter().for_each(|pair| increment(&mut self.pairs, pair));
            read.prompt.into_iter().for_each(|key| increment(&mut self.prompts, key));
            self.nulls.0 += usize::from(read.nulls);
            self.nulls.1 += usize::from(read.kept_nulls);
            self.binary += usize::from(read.binary);
            self.silent += usize::from(read.silent);
            if read.empty {
                self.empty += 1;
                self.first_empty.get_or_insert(number);
            }
        }
        read.rendered
    }

    /// Notes the bytes that the vocabulary cannot write in a record's samples.
    fn note_unwritten<'a>(&mut self, number: usize, rendered: impl Iterator<Item = &'a Rendered>) {
        let bytes: BTreeSet<u8> = rendered.flat_map(|rendered| &rendered.unwritten).copied().collect();
        if !bytes.is_empty() {
            self.unwritten.0 += 1;
            self.unwritten.1.get_or_insert(number);
            self.unwritten.2.extend(bytes);
        }
    }

    /// Counts a record that cannot be used.
    pub fn drop(&mut self, number: usize, problem: Problem) {
        self.invalid.0 += 1;
        self.invalid.1.get_or_insert((number, problem.to_string()));
    }

    /// Counts the parts of a file of plain text, and returns them as samples.
    pub fn parts(&mut self, parts: Vec<Rendered>, name: &str) -> Vec<Sample> {
        self.total = parts.len();
        self.shapes = vec![(Format::Text, parts.len())];
        self.cut = (parts.len() > 1).then(|| parts.iter().map(|part| part.ids.len()).sum());
        self.note_unwritten(1, parts.iter());
        let unit = Container::Text.unit();
        let sample = |(index, Rendered { ids, labels, .. }): (usize, Rendered)| Sample {
            ids,
            labels,
            origin: format!("{name} {unit} {}", index + 1),
            side: Side::Example,
            taught: None,
            row: None,
        };
        parts.into_iter().enumerate().map(sample).collect()
    }

    /// Fails if samples are too long and may not be changed, if no sample remains, or if all answers are empty.
    pub fn check(&self, options: &Options, container: Container, samples: usize) -> Result<(), Problem> {
        let Options { max_seq_len, context, .. } = *options;
        if options.overlong == Overlong::Error
            && let Some((number, length)) = self.first_overlong
        {
            let first = format!("{} {number}", container.unit());
            let (count, total, longest) = (self.overlong, self.total, self.longest);
            return Err(Problem::Overlong { count, total, first, length, longest, max_seq_len, context });
        }
        if samples == 0 {
            let (dropped, longest, invalid) = (self.overlong, self.longest, self.invalid.1.clone());
            return Err(Problem::NoSamples { container, dropped, longest, invalid, max_seq_len, context });
        }
        if self.silent == samples {
            return Err(Problem::EmptyAnswers(samples));
        }
        Ok(())
    }

    /// The notice about samples without a context, if others have one.
    fn contexts(&self) -> Option<What> {
        let ([with, empty], total) = (self.contexts, self.total);
        (with < total && with + empty > 0).then_some(What::Contexts { with, empty, total })
    }

    /// The notices about the file.
    pub fn notices(self, options: &Options, container: Container) -> Vec<What> {
        let (mut notices, contexts) = (Vec::new(), self.contexts());
        let (total, max_seq_len) = (self.total, options.max_seq_len);
        if self.overlong > 0 {
            let (action, count, longest) = (options.overlong, self.overlong, self.longest);
            notices.push(What::Overlong { action, count, total, longest, max_seq_len });
        }
        if let (count, Some((number, problem))) = self.invalid {
            notices.push(What::Invalid { count, total: total + count, number, problem, container });
        }
        if let Some(tokens) = self.cut {
            notices.push(What::Parts { files: 1, parts: total, tokens, max_seq_len });
        }
        for ((prompt, completion), count) in self.pairs {
            notices.push(What::Pair { prompt: prompt.into(), completion: completion.into(), count });
        }
        for (key, count) in self.prompts {
            notices.push(What::Prompt { key: key.into(), count });
        }
        if self.not_numbers > 0 {
            notices.push(What::NotNumbers(self.not_numbers));
        }
        if self.nulls.0 > 0 {
            notices.push(What::Nulls(self.nulls.0));
        }
        if self.nulls.1 > 0 {
            notices.push(What::KeptNulls(self.nulls.1));
        }
        if self.binary > 0 {
            notices.push(What::Binary(self.binary));
        }
        if let Some(number) = self.first_empty {
            notices.push(What::EmptyAnswers { count: self.empty, total, number, container });
        }
        if self.own_system + self.without_system > 0 {
            notices.push(What::System { own: self.own_system, no_conversation: self.without_system });
        }
        if let (count @ 1.., Some(unasked)) = (self.missing_system, options.unasked) {
            let (ollama, text) = (unasked.ollama, unasked.text.to_owned());
            notices.push(What::UnaskedSystem { ollama, text, count, total });
        }
        if let (count, Some((found, expected))) = self.open_ends {
            notices.push(What::OpenEnds { count, total, found, expected });
        }
        notices.extend(contexts);
        if self.control_tokens > 0 {
            notices.push(What::ControlTokens(self.control_tokens));
        }
        if let (count, Some(number), bytes) = self.unwritten {
            notices.push(What::Unwritten { count, number, bytes, container });
        }
        if let (count @ 1.., what) = self.left_out {
            notices.push(What::LeftOut { count, what });
        }
        if !self.ignored.is_empty() {
            notices.push(What::IgnoredKeys { keys: self.ignored.into_iter().collect(), container });
        }
        notices
    }
}

fn increment<T: PartialEq>(counts: &mut Vec<(T, usize)>, key: T) {
    match counts.iter_mut().find(|(seen, _)| *seen == key) {
        Some((_, count)) => *count += 1,
        None => counts.push((key, 1)),
    }
}
