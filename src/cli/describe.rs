//! What `check` tells about the samples: their lengths, how they fill rows, how often they repeat.

use rullama_train::data::batch::Sample;
use rullama_train::data::dataset::What;
use rullama_train::recipe::Recipe;
use rullama_train::run::PreparedRun;

use super::session::Session;
use super::show;

/// Lines of the histogram, and the longest bar in characters.
const BINS: usize = 8;
const BAR: usize = 40;

/// Lengths, packing and duplicates of the training samples.
pub fn samples(recipe: &Recipe, session: &Session) {
    lengths(&session.prepared.data.train);
    packing(recipe, session);
    let repeated = |n: &rullama_train::data::dataset::Notice| {
        matches!(n.what, What::Duplicates { .. } | What::Leaked { .. })
    };
    if !session.prepared.data.notices.iter().any(repeated) {
        show::line("duplicates", "none");
    }
}

/// The spread of lengths, and a histogram of them.
pub fn lengths(samples: &[Sample]) {
    let mut lengths: Vec<usize> = samples.iter().map(|sample| sample.ids.len()).collect();
    lengths.sort_unstable();
    let at = |share: f64| lengths[((lengths.len() - 1) as f64 * share).round() as usize];
    let (least, most) = (lengths[0], lengths[lengths.len() - 1]);
    show::line(
        "lengths",
        format_args!(
            "{} to {} tokens, half up to {}, 95 % up to {}",
            show::grouped(least),
            show::grouped(most),
            show::grouped(at(0.5)),
            show::grouped(at(0.95))
        ),
    );
    let edges = edges(least, most);
    let counts: Vec<usize> = edges
        .windows(2)
        .map(|bin| lengths.partition_point(|&l| l < bin[1]) - lengths.partition_point(|&l| l < bin[0]))
        .collect();
    let highest = counts.iter().copied().max().unwrap_or(1).max(1);
    let width = show::grouped(most).chars().count();
    for (bin, &count) in edges.windows(2).zip(&counts) {
        let (from, to) = (show::grouped(bin[0]), show::grouped(bin[1] - 1));
        // A bin that holds anything shows it.
        let bar = "▇".repeat((count * BAR).div_ceil(highest));
        show::text(format_args!("           {from:>width$} – {to:>width$}  {bar} {}", show::grouped(count)));
    }
}

/// Where bins begin, and one past the end: equal widths, or doubling ones where lengths spread far.
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

fn packing(recipe: &Recipe, session: &Session) {
    if !recipe.data.packing {
        return;
    }
    let (max_seq_len, batch_size) = (recipe.data.max_seq_len, recipe.train.batch_size);
    let PreparedRun { data, steps, .. } = &session.prepared;
    let lengths = |plan: &[usize]| plan.iter().map(|&i| data.train[i].ids.len()).sum::<usize>();
    let batches: Vec<&Vec<usize>> = steps.plans.iter().flatten().collect();
    let tokens: usize = batches.iter().map(|batch| lengths(batch)).sum();
    let room = batches.len() * batch_size * max_seq_len;
    let samples: usize = batches.iter().map(|batch| batch.len()).sum();
    show::line(
        "packing",
        format_args!(
            "{:.1} samples a row; rows of {} tokens are {:.1} % full",
            samples as f64 / (batches.len() * batch_size) as f64,
            show::grouped(max_seq_len),
            100.0 * tokens as f64 / room as f64
        ),
    );
}

/// A length of time, to two units.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 60.0 => format!("{s:.0} s"),
        s if s < 3600.0 => format!("{:.0} min", (s / 60.0).ceil()),
        s => format!("{} h {:02} min", (s / 3600.0) as u64, ((s % 3600.0) / 60.0) as u64),
    }
}
