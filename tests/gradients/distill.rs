//! Divergences from a teacher: the f64 reference against finite differences, and against PyTorch and TRL's formulas.

use rullama_train::ops::distill::{Distill, Divergence};
use rullama_train::reference::distill::{Taught, backward, forward};
use serde_json::Value as Json;

use super::{assert_close, assert_gradient, values};

const DIVERGENCES: [Divergence; 4] = [
    Divergence::ForwardKl,
    Divergence::ReverseKl,
    Divergence::Jsd { beta: 0.5 },
    Divergence::Jsd { beta: 0.1 },
];

/// `Σ coefficient·loss`.
fn loss(
    distill: &Distill,
    coefficients: &[f64],
    logits: &[f64],
    targets: &[u32],
    taught: &[Taught],
    cap: Option<f64>,
    vocab: usize,
) -> f64 {
    let rows = forward(distill, logits, targets, taught, cap, vocab);
    let each = rows.iter().zip(coefficients);
    each.map(|([divergence, entropy], c)| c * distill.loss(*divergence, *entropy)).sum()
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let (vocab, targets, coefficients) = (9, [3, 0, 8], [0.4, -0.1, 2.0]);
    let logits: Vec<f64> = values(1, 3 * vocab).iter().map(|x| 4.0 * x).collect();
    let row = |ids: &[u32], whole: bool| {
        let logs: Vec<f64> = values(ids.len() as u64, ids.len() + 1).iter().map(|x| 2.0 * x).collect();
        let given = if whole { &logs[..ids.len()] } else { &logs };
        let sum = given.iter().map(|x| x.exp()).sum::<f64>().ln();
        let tokens = ids.iter().zip(given).map(|(id, log)| (*id, log - sum)).collect();
        Taught { tokens, rest: given.get(ids.len()).map(|log| log - sum) }
    };
    let all: Vec<u32> = (0..vocab as u32).collect();
    let partly = [row(&[3, 1], false), row(&[7, 8], false), row(&[4, 2], false)];
    let whole = [row(&all, true), row(&all, true), row(&all, true)];
    for divergence in DIVERGENCES {
        for (taught, temperature, sft_weight) in
            [(&partly, 1.0, 0.0), (&partly, 2.0, 0.5), (&whole, 0.8, 0.25)]
        {
            for cap in [None, Some(3.0)] {
                let distill = Distill { divergence, temperature, weight: 0.7, sft_weight };
                let found = backward(&distill, &coefficients, &logits, &targets, taught, cap, vocab);
                let name = format!("{divergence:?} temperature {temperature} softcap {cap:?}");
                assert_gradient(&name, &found, &logits, |logits| {
                    loss(&distill, &coefficients, logits, &targets, taught, cap, vocab)
                });
            }
        }
    }
}

fn numbers(value: &Json) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn ids(value: &Json) -> Vec<u32> {
    numbers(value).iter().map(|x| *x as u32).collect()
}

/// The numbers of tests/golden/distill/losses.py.
#[test]
fn losses_and_gradients_are_those_of_pytorch() {
    let text = std::fs::read_to_string("tests/golden/distill/losses.json").expect("the records");
    let records: Json = serde_json::from_str(&text).expect("JSON");
    let (logits, targets) = (numbers(&records["logits"]), ids(&records["targets"]));
    let (coefficients, vocab) =
        (numbers(&records["coefficients"]), records["vocab"].as_u64().expect("a size") as usize);
    let cases = records["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 32);
    for case in cases {
        let number = |key: &str| case[key].as_f64().expect("a number");
        let beta = number("beta");
        let divergence = match beta {
            0.0 => Divergence::ForwardKl,
            1.0 => Divergence::ReverseKl,
            beta => Divergence::Jsd { beta },
        };
        let distill = Distill {
            divergence,
            temperature: number("temperature"),
            weight: number("weight"),
            sft_weight: number("sft_weight"),
        };
        let each = |key: &str| case[key].as_array().expect("rows").clone();
        let taught: Vec<Taught> = (each("ids").iter().zip(&each("logs")))
            .map(|(row, logs)| {
                let (row, logs) = (ids(row), numbers(logs));
                let rest = logs.get(row.len()).copied();
                Taught { tokens: row.into_iter().zip(logs).collect(), rest }
            })
            .collect();
        let cap = case["softcap"].as_f64();
        let name = format!("{distill:?} top {}", case["top"]);
        let found = forward(&distill, &logits, &targets, &taught, cap, vocab);
        let of = |i: usize| found.iter().map(|row| row[i]).collect::<Vec<f64>>();
        assert_close(&name, &of(0), &numbers(&case["divergences"]), 1e-9);
        assert_close(&name, &of(1), &numbers(&case["entropies"]), 1e-9);
        let found = backward(&distill, &coefficients, &logits, &targets, &taught, cap, vocab);
        assert_close(&name, &found, &numbers(&case["dlogits"]), 1e-9);
    }
}
