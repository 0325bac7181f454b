//! The f64 reference against PyTorch in f64, on whole golden models: logits, losses and every gradient.

use std::path::Path;

use rullama_train::data::batch::MicroBatch;
use rullama_train::reference::model::{Adapter, Model, Pair, Weights};

use super::golden::{Golden, by_name};
use super::{added, norm};

/// The rounding of golden files to f32 is 3e-8.
const TOLERANCE: f64 = 1e-7;

fn assert_equal(name: &str, found: &[f64], expected: &[f64]) {
    let error = norm(&added(found, expected)) / norm(expected);
    assert!(error <= TOLERANCE, "{name}: relative error {error:.1e}, expected at most {TOLERANCE:.0e}");
}

#[test]
fn a_shared_expert_beside_routed_ones() {
    let g = Golden::read(Path::new("tests/golden/qwen35moe"));
    let config = g.base.config();
    let widen = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let weights = Weights::from_tensors(config, |name| Some(widen(&g.base.matrix(name)?.dequantize())));
    let weights = weights.expect("a whole model");
    let pairs = g.adapter.pairs.iter();
    let pairs = pairs.map(|(slot, pair)| (*slot, Pair { a: widen(&pair.a), b: widen(&pair.b) })).collect();
    let adapter =
        Adapter { rank: g.adapter.rank, scale: g.adapter.scale(), pairs, masks: Default::default() };
    let mut batch = MicroBatch::pack([&g.first]);
    let factor = 1.0 / batch.loss_rows.len() as f64;

    let model = Model { config, weights: &weights, adapter: &adapter };
    let acts = model.forward(&batch);
    assert_equal("loss", &[model.loss(&batch, &acts, factor)], g.tensor("loss.lora"));
    let gradients = model.backward(&batch, &acts, factor).pairs;
    let narrow = |values: Vec<f64>| values.into_iter().map(|x| x as f32).collect();
    let gradients = gradients.into_iter().map(|(slot, pair)| {
        (slot, rullama_train::adapter::lora::Pair { a: narrow(pair.a), b: narrow(pair.b) })
    });
    let gradients = by_name(&gradients.collect(), config);
    assert_eq!(gradients.len(), g.count("grad."), "every gradient of the file is compared");
    for (name, found) in gradients {
        assert_equal(&name, &found, g.tensor(&format!("grad.{name}")));
    }
    batch.loss_rows = (0..batch.len() as u32).collect();
    assert_equal("logits", &model.forward(&batch).logits, g.tensor("logits.lora"));
    let base = Model { adapter: &Adapter::none(), ..model };
    assert_equal("logits of the base", &base.forward(&batch).logits, g.tensor("logits.base"));
}
