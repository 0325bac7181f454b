//! Samples: the files that hold them, their lengths, and one of them with its loss marked.

use std::io::IsTerminal;
use std::path::Path;

use rullama_train::data::batch::Sample;
use rullama_train::data::compare::{Side, units};
use rullama_train::data::dataset::Found;
use rullama_train::data::loss_spans::{Piece, pieces};
use rullama_train::data::tokenizer::Tokenizer;

use super::{count, grouped, line, text};

/// Number of bins of the histogram.
const BINS: usize = 8;
/// Longest bar of the histogram, in characters.
const BAR: usize = 40;

/// Characters of a long sample that are shown of its start and of its end.
const SHOWN: [usize; 2] = [2000, 500];

/// The container, compression and sample shapes of a file, on one line.
pub fn found(path: &Path, found: &Found) -> String {
    let shapes: Vec<String> =
        found.shapes.iter().map(|(shape, n)| format!("{} {}", grouped(*n), shape.name())).collect();
    let packed = found.compression.map_or(String::new(), |c| format!(" in {}", c.name()));
    format!("{}: {}{packed}, {}", path.display(), found.container.name(), shapes.join(", "))
}

/// Number of samples and tokens, and the share of loss tokens: `3 samples, 120 tokens, 40 % loss tokens`.
pub fn token_counts(samples: &[Sample]) -> String {
    if samples.is_empty() {
        return "none".into();
    }
    let tokens: usize = samples.iter().map(|s| s.ids.len()).sum();
    let loss: usize = samples.iter().map(Sample::loss_tokens).sum();
    let share = 100.0 * loss as f64 / tokens.max(1) as f64;
    let samples = match samples[0].side {
        Side::Chosen | Side::Rejected => count(units(samples).len(), "pair"),
        Side::Desirable | Side::Undesirable => {
            let good = samples.iter().filter(|sample| sample.side.is_good()).count();
            format!("{} ({good} good)", count(samples.len(), "rated sample"))
        }
        Side::Example => count(samples.len(), "sample"),
    };
    format!("{samples}, {}, {share:.0} % loss tokens", count(tokens, "token"))
}

/// Prints the range of sample lengths and a histogram.
pub fn lengths(samples: &[Sample]) {
    let mut lengths: Vec<usize> = samples.iter().map(|sample| sample.ids.len()).collect();
    lengths.sort_unstable();
    let at = |share: f64| grouped(lengths[((lengths.len() - 1) as f64 * share).round() as usize]);
    let least = lengths[0];
    let most = lengths[lengths.len() - 1];
    line(
        "lengths",
        format_args!(
            "{} to {} tokens; median {}, 95th percentile {}",
            grouped(least),
            grouped(most),
            at(0.5),
            at(0.95)
        ),
    );
    let edges = edges(least, most);
    let counts: Vec<usize> = edges
        .windows(2)
        .map(|bin| lengths.partition_point(|&l| l < bin[1]) - lengths.partition_point(|&l| l < bin[0]))
        .collect();
    let highest = counts.iter().copied().max().unwrap_or(1).max(1);
    let width = grouped(most).chars().count();
    for (bin, &count) in edges.windows(2).zip(&counts) {
        let from = grouped(bin[0]);
        let to = grouped(bin[1] - 1);
        // A bin that is not empty has a bar.
        let bar = "▇".repeat((count * BAR).div_ceil(highest));
        text(format_args!("           {from:>width$} – {to:>width$}  {bar} {}", grouped(count)));
    }
}

/// Start of each bin, and one past the end of the last: equal widths, or doubling widths if the lengths differ 16-fold or more.
fn edges(least: usize, most: usize) -> Vec<usize> {
    let mut edges = vec![least];
    let spread = most / least.max(1) >= 16;
    let width = (most + 1 - least).div_ceil(BINS);
    while edges[edges.len() - 1] <= most {
        let last = edges[edges.len() - 1];
        edges.push(if spread { (last + 1).next_power_of_two() } else { last + width });
    }
    let end = edges.len() - 1;
    edges[end] = most + 1;
    edges
}

/// Prints a sample's origin and text, its loss tokens between « and ».
pub fn marked_sample(tokenizer: &Tokenizer, sample: &Sample) {
    let side = match sample.side {
        Side::Example => String::new(),
        side => format!(", {}", side.name()),
    };
    text(format_args!("\n{}{side}; loss tokens stand between « and »:\n", sample.origin));
    text(shortened(&marked(tokenizer, sample)));
}

/// Text of which a long middle is left out.
fn shortened(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= SHOWN[0] + SHOWN[1] {
        return text.to_owned();
    }
    let [first, last] = [&letters[..SHOWN[0]], &letters[letters.len() - SHOWN[1]..]];
    let left_out = grouped(letters.len() - first.len() - last.len());
    format!("{}\n… {left_out} characters …\n{}", String::from_iter(first), String::from_iter(last))
}

/// A sample's text with its loss tokens between « and », in green on a terminal.
fn marked(tokenizer: &Tokenizer, sample: &Sample) -> String {
    let colour = std::io::stdout().is_terminal();
    let (open, close) = if colour { ("\x1b[32m«", "»\x1b[0m") } else { ("«", "»") };
    let piece =
        |piece: Piece| if piece.has_loss { format!("{open}{}{close}", piece.text) } else { piece.text };
    pieces(tokenizer, sample).into_iter().map(piece).collect()
}
