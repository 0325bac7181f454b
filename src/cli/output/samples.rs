//! Samples: the files that hold them, their lengths, and one of them with its loss marked.

use std::io::IsTerminal;
use std::path::Path;

use rullama_train::data::batch::{IGNORE, Sample};
use rullama_train::data::dataset::Found;
use rullama_train::data::tokenizer::Tokenizer;

use super::{count, grouped, line, text};

/// Number of bins of the histogram.
const BINS: usize = 8;
/// Longest bar of the histogram, in characters.
const BAR: usize = 40;

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
    let samples = count(samples.len(), "sample");
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
    text(format_args!("\n{}; loss tokens stand between « and »:\n", sample.origin));
    text(marked(tokenizer, sample));
}

/// A sample's text with its loss tokens between « and », in green on a terminal.
fn marked(tokenizer: &Tokenizer, sample: &Sample) -> String {
    let colour = std::io::stdout().is_terminal();
    let (open, close) = if colour { ("\x1b[32m«", "»\x1b[0m") } else { ("«", "»") };
    let mut text = String::new();
    let mut start = 0;
    let has_loss = |t: usize| t > 0 && sample.labels[t] != IGNORE;
    for t in 1..=sample.ids.len() {
        if t == sample.ids.len() || has_loss(t) != has_loss(start) {
            let piece = tokenizer.decode(&sample.ids[start..t]);
            text += &if has_loss(start) { format!("{open}{piece}{close}") } else { piece };
            start = t;
        }
    }
    text
}
