//! Rules by which a pair of question and answer is dropped. They compare words, and know nothing of meaning: a person reads the rest.

use std::collections::BTreeSet;
use std::fmt;

/// Share of an answer's words that its passage has.
const SUPPORT: f64 = 0.75;
/// Share of words from which two questions count as one.
const SAME: f64 = 0.8;

/// Why a pair is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    NoQuestion,
    AboutTheText,
    OtherSubject,
    NoAnswer,
    CutOff,
    Repeats,
    Unsupported,
    Duplicate,
}

impl Reason {
    /// The rule in words.
    pub fn rule(self) -> &'static str {
        match self {
            Reason::NoQuestion => {
                "the question has no question mark, or is shorter than 10 or longer than 200 characters"
            }
            Reason::AboutTheText => {
                "the question is about the text itself (“the passage”, “the author”), which nobody has in use"
            }
            Reason::OtherSubject => "the passage has less than half of the question's words",
            Reason::NoAnswer => {
                "the model gave no answer, asked something itself, or said that the text has none"
            }
            Reason::CutOff => "the answer was cut off",
            Reason::Repeats => "the answer repeats itself or the question",
            Reason::Unsupported => {
                "the passage has less than three quarters of the answer's words, or not all of its numbers"
            }
            Reason::Duplicate => "nearly the same question was asked before",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Reason::NoQuestion => "no_question",
            Reason::AboutTheText => "about_the_text",
            Reason::OtherSubject => "other_subject",
            Reason::NoAnswer => "no_answer",
            Reason::CutOff => "cut_off",
            Reason::Repeats => "repeats",
            Reason::Unsupported => "unsupported",
            Reason::Duplicate => "duplicate",
        };
        f.write_str(name)
    }
}

/// Words that say nothing about a subject.
const EMPTY: &str = " a about after all also an and any are as at be been but by can could did do does for from had has have how i if in \
    into is it its many may might more most much no not of on one or other should so some such than that the their them then there \
    these they this those to use used uses was we were what when where which who why will with would you your ";

/// The words of a text that say something, without endings that change with grammar.
fn words(text: &str) -> BTreeSet<String> {
    let lower = text.to_lowercase();
    let split = lower.split(|c: char| !c.is_alphanumeric());
    let says = |word: &&str| word.len() > 1 || word.chars().any(|c| c.is_numeric() || !c.is_ascii());
    split.filter(says).filter(|word| !EMPTY.contains(&format!(" {word} "))).map(stem).collect()
}

/// The words of a question with the one that asks, which tells “when” from “who”.
fn asked(question: &str) -> BTreeSet<String> {
    const ASKING: [&str; 9] = ["how", "many", "much", "what", "when", "where", "which", "who", "why"];
    let lower = question.to_lowercase();
    let asking = lower.split(|c: char| !c.is_alphanumeric()).filter(|word| ASKING.contains(word));
    asking.map(str::to_owned).chain(words(question)).collect()
}

fn stem(word: &str) -> String {
    if word.chars().any(|c| c.is_numeric()) {
        return word.into();
    }
    let endings = ["ing", "ies", "ed", "es", "s", "ly", "e", "y"];
    let cut =
        endings.iter().find_map(|ending| word.strip_suffix(ending).filter(|rest| rest.chars().count() >= 3));
    cut.unwrap_or(word).into()
}

fn share(of: &BTreeSet<String>, within: &BTreeSet<String>) -> f64 {
    if of.is_empty() { 0.0 } else { of.intersection(within).count() as f64 / of.len() as f64 }
}

/// The questions that were accepted so far.
#[derive(Default)]
pub struct Rules {
    accepted: Vec<BTreeSet<String>>,
}

impl Rules {
    /// Why a question is dropped before it is answered, if it is.
    pub fn question(&self, question: &str, passage: &str) -> Option<Reason> {
        let length = question.chars().count();
        if !question.ends_with('?') || !(10..=200).contains(&length) {
            return Some(Reason::NoQuestion);
        }
        let lower = question.to_lowercase();
        let about = [
            "the text",
            "the passage",
            "this text",
            "this passage",
            "the author",
            "the article",
            "the document",
            "the paragraph",
        ];
        if about.iter().any(|words| lower.contains(words)) {
            return Some(Reason::AboutTheText);
        }
        if share(&words(question), &words(passage)) < 0.5 {
            return Some(Reason::OtherSubject);
        }
        let asked = asked(question);
        let alike = |other: &BTreeSet<String>| {
            asked.intersection(other).count() as f64 >= SAME * asked.union(other).count() as f64
        };
        self.accepted.iter().any(alike).then_some(Reason::Duplicate)
    }

    /// Why an answer is dropped, if it is; otherwise its question counts from now on. `whole`: whether the model ended it.
    pub fn answer(&mut self, question: &str, answer: &str, passage: &str, whole: bool) -> Option<Reason> {
        let lower = answer.to_lowercase();
        let refuses = [
            "none",
            "not mentioned",
            "does not say",
            "not specified",
            "no information",
            "i cannot",
            "i can't",
            "i'm sorry",
        ];
        let said = lower.trim_matches(|c: char| !c.is_alphanumeric());
        let asks = lower.lines().any(|line| line.trim_end().ends_with('?'));
        if said.is_empty() || said == "none" || asks || refuses[1..].iter().any(|words| lower.contains(words))
        {
            return Some(Reason::NoAnswer);
        }
        if !whole {
            return Some(Reason::CutOff);
        }
        let (answered, there) = (words(answer), words(passage));
        if repeats(&lower) || answered.is_subset(&words(question)) {
            return Some(Reason::Repeats);
        }
        let numbers = |text: &BTreeSet<String>| -> BTreeSet<String> {
            text.iter().filter(|word| word.chars().any(|c| c.is_numeric())).cloned().collect()
        };
        if share(&answered, &there) < SUPPORT || !numbers(&answered).is_subset(&there) {
            return Some(Reason::Unsupported);
        }
        self.accepted.push(asked(question));
        None
    }
}

/// Whether a sentence or a run of eight words occurs twice.
fn repeats(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut seen = BTreeSet::new();
    words.windows(8).any(|run| !seen.insert(run))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSAGE: &str = "The lighthouse of Kerm was built in 1873. Its keeper lights 12 lamps every evening, and polishes the brass on Sundays.";

    #[test]
    fn questions_are_about_the_passage() {
        let rules = Rules::default();
        let of = |question: &str| rules.question(question, PASSAGE);
        assert_eq!(of("When was the lighthouse of Kerm built?"), None);
        assert_eq!(of("When was the lighthouse built"), Some(Reason::NoQuestion));
        assert_eq!(of("What does the passage say about lamps?"), Some(Reason::AboutTheText));
        assert_eq!(of("Which animals live in Australia's deserts?"), Some(Reason::OtherSubject));
    }

    #[test]
    fn answers_are_supported_and_whole() {
        let question = "How many lamps does the keeper light?";
        let of = |answer: &str, whole| Rules::default().answer(question, answer, PASSAGE, whole);
        assert_eq!(of("The keeper lights 12 lamps every evening.", true), None);
        assert_eq!(of("The keeper lights 14 lamps every evening.", true), Some(Reason::Unsupported));
        assert_eq!(of("Most electric bulbs shine brightly near harbours.", true), Some(Reason::Unsupported));
        assert_eq!(of("The keeper lights 12 lamps every", false), Some(Reason::CutOff));
        assert_eq!(of("NONE.", true), Some(Reason::NoAnswer));
        assert_eq!(of("The text does not say.", true), Some(Reason::NoAnswer));
        assert_eq!(of("The keeper lights 12 lamps.\nWho polishes the brass?", true), Some(Reason::NoAnswer));
        assert_eq!(of("The keeper lights lamps.", true), Some(Reason::Repeats));
        let twice = "The keeper polishes the brass lamps of Kerm on Sundays. ".repeat(2);
        assert_eq!(of(&twice, true), Some(Reason::Repeats));
    }

    #[test]
    fn a_question_is_asked_once() {
        let mut rules = Rules::default();
        let question = "When was the lighthouse of Kerm built?";
        assert_eq!(rules.answer(question, "It was built in 1873.", PASSAGE, true), None);
        assert_eq!(rules.question("When was Kerm's Lighthouse built?", PASSAGE), Some(Reason::Duplicate));
        assert_eq!(rules.question("Who built the lighthouse of Kerm?", PASSAGE), None);
    }
}
