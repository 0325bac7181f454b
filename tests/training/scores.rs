//! Log-probabilities of a prompt's tokens, computed in passes, against PyTorch's logits in f64.

use std::path::Path;

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::gpu::Gpu;
use rullama_train::model::Model;
use rullama_train::model::decode::{Decoder, Lengths, Scoring, Workspace};
use rullama_train::ops::argmax::top::RowTop;

use super::decode::{Case, cases, training_logits};
use super::golden::{self, Golden};
use super::{check, check_that};

/// Largest difference of a log-probability in f32 from PyTorch's in f64. 1.7e-5 was seen.
const LOGPROB: f64 = 1e-4;
/// Likeliest tokens that are compared.
const TOP: usize = 5;

/// Every golden model with its adapter, in passes that begin and end anywhere.
pub fn against_pytorch(gpu: &Gpu) -> Result<(), Failed> {
    for name in golden::FOLDERS {
        let g = Golden::read(&Path::new("tests/golden").join(name));
        let (logits, ids) = (g.tensor("logits.lora").to_vec(), g.first.ids.clone());
        let case = Case { name: name.into(), adapter: g.adapter.clone(), ids, base: g.base };
        compare(gpu, &case, &logits, 16, usize::MAX)?;
    }
    Ok(())
}

/// A prompt longer than the rows whose logits are in memory at a time.
pub fn long_prompts(gpu: &Gpu) -> Result<(), Failed> {
    let case = cases().into_iter().find(|case| case.name == "tiny").expect("the model in the program");
    let model = Model::load(gpu, &case.base, 128)?;
    let logits = training_logits(gpu, &model, &case.adapter, &case.ids);
    check_that("it takes more than 64 rows", case.ids.len() > 70)?;
    compare(gpu, &case, &logits, 100, 1)
}

fn compare(gpu: &Gpu, case: &Case, logits: &[f64], chunk: usize, bytes: usize) -> Result<(), Failed> {
    let model = Model::load(gpu, &case.base, 128)?;
    let vocab = model.config().vocab;
    let workspace = Workspace::new(gpu, &model, Lengths { context: 128, chunk }, case.adapter.rank)?;
    let scoring = Scoring::within(&workspace, TOP, bytes)?;
    let mut decoder = Decoder::new(&workspace, Some(&case.adapter))?;
    let (mut found, last) = (Vec::new(), case.ids.len() - 1);
    for (ids, targets) in case.ids[..last].chunks(chunk).zip(case.ids[1..].chunks(chunk)) {
        found.extend(block_on(decoder.scores(ids, targets, &scoring, vocab, TOP))?);
    }
    check_that("every token but the first has a score", found.len() == last)?;
    let mut worst = 0f64;
    for ((row, logits), &target) in found.iter().zip(logits.chunks(vocab)).zip(&case.ids[1..]) {
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = largest + logits.iter().map(|x| (x - largest).exp()).sum::<f64>().ln();
        let mut sorted = logits.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        // Of nearly equal tokens, either may come first: their values are compared, and each token's own.
        for (place, found) in row.top.iter().enumerate() {
            let own = logits[found.index as usize];
            worst = differ(worst, of(row, found.value), sorted[place] - lse);
            worst = differ(worst, of(row, found.value), own - lse);
        }
        check_that("as many as wanted", row.top.len() == TOP)?;
        worst = differ(worst, of(row, row.target), logits[target as usize] - lse);
    }
    check(&format!("{}, log-probabilities", case.name), worst, LOGPROB)
}

fn of(row: &RowTop, logit: f32) -> f64 {
    f64::from(logit) - f64::from(row.largest) - f64::from(row.sum).ln()
}

/// The larger difference. Written so that NaN stays.
fn differ(worst: f64, found: f64, expected: f64) -> f64 {
    let difference = (found - expected).abs();
    if difference > worst || difference.is_nan() { difference } else { worst }
}
