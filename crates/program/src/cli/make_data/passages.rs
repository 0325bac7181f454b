//! Passages: pieces of a document that are short enough to ask about, and long enough to have something to say.

use super::documents::Page;

/// Shorter passages say too little, in characters.
const SHORTEST: usize = 200;
/// Paragraphs are put together up to this many characters.
const LONGEST: usize = 1500;

/// A piece of a document.
#[derive(Clone, Debug, PartialEq)]
pub struct Passage {
    /// Its number in the document, from 1.
    pub number: usize,
    /// Page of a PDF file.
    pub page: Option<usize>,
    pub text: String,
}

/// Cuts pages into passages at the ends of paragraphs, or of sentences where a paragraph is too long. Short rests are left out.
pub fn cut(pages: &[Page]) -> Vec<Passage> {
    let mut found: Vec<Passage> = Vec::new();
    for page in pages {
        let mut text = String::new();
        let mut flush = |text: &mut String| {
            let done = std::mem::take(text);
            if done.chars().count() >= SHORTEST {
                found.push(Passage { number: found.len() + 1, page: page.number, text: done });
            }
        };
        for piece in paragraphs(&page.text).iter().flat_map(|paragraph| pieces(paragraph)) {
            if text.chars().count() + piece.chars().count() > LONGEST {
                flush(&mut text);
            }
            if !text.is_empty() {
                text += "\n\n";
            }
            text += &piece;
        }
        flush(&mut text);
    }
    found
}

/// Paragraphs, each on one line. Blocks of code and tables are left out.
fn paragraphs(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut in_code = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("```") || line.starts_with("~~~") {
            in_code = !in_code;
            found.push(String::new());
        } else if in_code || line.starts_with('|') {
        } else if line.is_empty() {
            found.push(String::new());
        } else {
            // Headings stand alone, and items begin lines.
            if line.starts_with(['#', '-', '*']) && !found[found.len() - 1].is_empty() {
                found.push(String::new());
            }
            let last = found.last_mut().expect("there is one");
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(line.trim_start_matches('#').trim());
        }
    }
    found.retain(|paragraph| !paragraph.is_empty());
    found
}

/// A paragraph in pieces of at most [`LONGEST`] characters, cut behind sentences or else between words.
fn pieces(paragraph: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = paragraph;
    while rest.chars().count() > LONGEST {
        let end = rest.char_indices().nth(LONGEST).map_or(rest.len(), |(at, _)| at);
        let sentence =
            [". ", "! ", "? "].iter().filter_map(|mark| rest[..end].rfind(mark)).max().map(|at| at + 1);
        let at = sentence.or_else(|| rest[..end].rfind(' ')).filter(|at| *at > 0).unwrap_or(end);
        found.push(rest[..at].trim().to_owned());
        rest = rest[at..].trim_start();
    }
    found.push(rest.to_owned());
    found.retain(|piece| !piece.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_put_together_and_long_ones_are_cut() {
        let sentence = "This sentence has exactly eight words in it. ";
        let long = sentence.repeat(60);
        let text = format!("# Title\n\nshort\n\n```sh\ncode {long}\n```\n\n{long}\n\n| a | b |\n");
        let found = cut(&[Page { number: None, text }]);
        assert!(
            found.len() == 2 && found.iter().all(|passage| passage.text.chars().count() <= LONGEST),
            "{found:?}"
        );
        assert!(found.iter().all(|passage| !passage.text.contains("code")), "{found:?}");
        assert!(found[1].text.starts_with("This") && found[1].text.ends_with("it."), "{found:?}");
        assert_eq!(cut(&[Page { number: Some(1), text: "short".into() }]), []);
    }
}
