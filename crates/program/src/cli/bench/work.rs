//! Floating-point operations of a step, counted from the shapes.

use rullama_train::base::Base;
use rullama_train::base::config::{Config, LayerConfig};
use rullama_train::data::batch::{MicroBatch, Step};
use rullama_train::model::plan::{Kept, Plan};

/// Per matrix, without the embeddings: its layer, its name, and how many of its values are multiplied with each token. Of a
/// mixture's experts only the active ones count.
fn matrices(base: &Base) -> impl Iterator<Item = (Option<usize>, &str, usize)> {
    let experts = base.config().layers.iter().find_map(|l| l.experts);
    let matrices = base.tensors().filter(|m| m.rows > 1);
    matrices.filter_map(move |m| match (m.name, experts) {
        ("token_embd" | "output" | "per_layer_token_embd", _) => None,
        (name, e) => {
            let values = m.rows * m.cols;
            let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok());
            let active = e.filter(|_| name.ends_with("_exps")).map_or(values, |e| values / e.count * e.used);
            Some((layer, name, active))
        }
    })
}

/// Parameters that are multiplied with each token. Of the embeddings, only the head counts.
pub fn active_parameters(base: &Base) -> usize {
    base.config().vocab * base.config().width + matrices(base).map(|(_, _, values)| values).sum::<usize>()
}

/// Operations of a step's products with the frozen matrices, two per value and token: forward, backward, and forward again for
/// recomputed layers.
pub fn product_operations(base: &Base, plan: &Plan, step: &Step) -> f64 {
    let tokens: usize = step.micro_batches.iter().map(MicroBatch::len).sum();
    let passes = |layer: Option<usize>, name: &str| match layer.map(|layer| plan.kept[layer]) {
        None | Some(Kept::All | Kept::Products) => 2,
        Some(Kept::Down | Kept::Attention) if name.ends_with("ffn_down") => 2,
        Some(_) => 3,
    };
    let in_layers: usize =
        matrices(base).map(|(layer, name, values)| values * tokens * passes(layer, name)).sum();
    let head = 2 * base.config().vocab * base.config().width * step.loss_tokens;
    2.0 * (in_layers + head) as f64
}

/// Operations of a step's attention over `batch` sequences of `length` tokens: two products forward, two more in recomputed
/// layers, and five backward. Only keys that a query attends to count.
pub fn attention_operations(config: &Config, plan: &Plan, batch: usize, length: usize) -> f64 {
    let of_layer = |(layer, kept): (&LayerConfig, &Kept)| {
        let keys = |t: usize| layer.window.map_or(t + 1, |window| window.min(t + 1));
        let pairs = batch * layer.heads * (0..length).map(keys).sum::<usize>();
        let products = 2 * if *kept < Kept::Attention { 2 } else { 1 } + 5;
        (2 * products * pairs * layer.head_size) as f64
    };
    config.layers.iter().zip(&plan.kept).map(of_layer).sum()
}
