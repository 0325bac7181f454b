//! Gradients of every op.

use rullama_train::base::config::Activation;

use super::{added, assert_gradient, dot, norm, values};
use rullama_train::reference::cross_entropy::Adjusted;
use rullama_train::reference::{
    attention, cross_entropy, embedding, gated, latent, linear, lora, rms_norm, rope, short_conv,
};

#[test]
fn embedding_scatter() {
    let (x, dy, rows) = (values(1, 5 * 3), values(2, 3 * 3), [4, 1, 2]);
    let dx = embedding::scatter(&dy, &rows, 3, 5);
    assert_gradient("dx", &dx, &x, |x| dot(&dy, &embedding::gather(x, &rows, 3)));
}

#[test]
fn rms_norm_backward() {
    let (x, dy, w, eps) = (values(1, 3 * 7), values(2, 3 * 7), values(3, 7), 0.05);
    for weight in [Some(&w[..]), None] {
        let dx = rms_norm::backward(&dy, &x, weight, 7, eps);
        assert_gradient("dx", &dx, &x, |x| dot(&dy, &rms_norm::forward(x, weight, 7, eps)));
    }
}

#[test]
fn linear_backward() {
    let (x, w, dy) = (values(1, 3 * 5), values(2, 4 * 5), values(3, 3 * 4));
    let dx = linear::backward(&dy, &w, 5);
    assert_gradient("dx", &dx, &x, |x| dot(&dy, &linear::forward(x, &w, 5)));
}

#[test]
fn lora_backward() {
    let (rows, inputs, outputs, rank, scale) = (4, 5, 3, 2, 0.7);
    let (x, a, b) = (values(1, rows * inputs), values(2, rank * inputs), values(3, outputs * rank));
    let (y, dy) = (values(4, rows * outputs), values(5, rows * outputs));
    let dropout: Vec<f64> = (0..rows * inputs).map(|i| if i % 3 == 0 { 0.0 } else { 1.5 }).collect();
    for mask in [None, Some(&dropout[..])] {
        let f = |x: &[f64], a: &[f64], b: &[f64]| {
            let mut y = y.clone();
            lora::forward(x, a, b, rank, scale, mask, &mut y);
            dot(&dy, &y)
        };
        let z = lora::forward(&x, &a, &b, rank, scale, mask, &mut y.clone());
        let before = [values(6, x.len()), values(7, a.len()), values(8, b.len())];
        let [mut dx, mut da, mut db] = before.clone();
        lora::backward(&dy, &x, &a, &b, rank, scale, mask, &z, &mut dx, &mut da, &mut db);
        assert_gradient("dx", &added(&dx, &before[0]), &x, |x| f(x, &a, &b));
        assert_gradient("da", &added(&da, &before[1]), &a, |a| f(&x, a, &b));
        assert_gradient("db", &added(&db, &before[2]), &b, |b| f(&x, &a, b));
    }
}

#[test]
fn short_conv_backward() {
    let (starts, channels) = ([0, 0, 0, 0, 0, 5, 6, 6], 3);
    for taps in [3, 4] {
        let (bcx, w) = (values(1, 8 * 3 * channels), values(2, channels * taps));
        let dy = values(3, 8 * channels);
        let dbcx = short_conv::backward(&dy, &bcx, &w, &starts);
        assert_gradient("dbcx", &dbcx, &bcx, |bcx| dot(&dy, &short_conv::forward(bcx, &w, &starts)));
    }
}

#[test]
fn latent_backward() {
    let (tokens, heads, own, shared, size) = (3, 2, 3, 2, 7);
    let (x, turned) = (values(1, tokens * heads * own), values(2, tokens * shared));
    let dy = values(3, tokens * heads * size);
    let [down, dshared] = latent::backward(&dy, tokens, heads, [own, shared]);
    assert_gradient("own", &down, &x, |x| dot(&dy, &latent::join(x, &turned, tokens, heads, size)));
    assert_gradient("shared", &dshared, &turned, |s| dot(&dy, &latent::join(&x, s, tokens, heads, size)));
}

#[test]
fn rope_backward() {
    let (positions, frequencies) = ([0, 1, 2, 5], [1.0, 0.3, 0.0]);
    let (x, dy) = (values(1, 4 * 2 * 6), values(2, 4 * 2 * 6));
    let dx = rope::backward(&dy, &positions, &frequencies, 2);
    assert_gradient("dx", &dx, &x, |x| dot(&dy, &rope::forward(x, &positions, &frequencies, 2)));
}

#[test]
fn attention_backward() {
    let (heads, kv_heads, size, starts) = (6, 2, 4, [0, 0, 0, 0, 4, 5, 5, 5, 5, 5]);
    let q = values(1, starts.len() * heads * size);
    let k = values(2, starts.len() * kv_heads * size);
    let v = values(3, starts.len() * kv_heads * size);
    let dout = values(4, q.len());
    let cases = [None, Some(3), Some(1)].map(|window| [(window, None), (window, Some(values(7, heads)))]);
    for (window, sinks) in cases.into_iter().flatten() {
        let attend = |q: &[f64], k: &[f64], v: &[f64]| {
            let (mut out, mut lse) = attention::forward(q, k, v, &starts, window, heads, kv_heads);
            if let Some(sinks) = &sinks {
                attention::add_sinks(&mut out, &mut lse, sinks);
            }
            (out, lse)
        };
        let f = |q: &[f64], k: &[f64], v: &[f64]| dot(&dout, &attend(q, k, v).0);
        let (out, lse) = attend(&q, &k, &v);
        let before = [values(5, k.len()), values(6, v.len())];
        let [mut dk, mut dv] = before.clone();
        let dq = attention::backward(
            &dout, &q, &k, &v, &starts, window, heads, kv_heads, &out, &lse, &mut dk, &mut dv,
        );
        let name = format!("window {window:?}, sinks {sinks:?}");
        if window == Some(1) && sinks.is_none() {
            // Each token attends only to itself: P is 1 for any scores.
            assert!(norm(&dq) < 1e-13, "{name}: dq must vanish, found norm {:e}", norm(&dq));
        } else {
            assert_gradient(&format!("{name}: dq"), &dq, &q, |q| f(q, &k, &v));
            assert_gradient(&format!("{name}: dk"), &added(&dk, &before[0]), &k, |k| f(&q, k, &v));
        }
        assert_gradient(&format!("{name}: dv"), &added(&dv, &before[1]), &v, |v| f(&q, &k, v));
    }
}

#[test]
fn gated_backward() {
    let gate: Vec<f64> = (0..40).map(|i| -5.0 + 0.25 * f64::from(i)).collect();
    // Gates up to 7.75, and ups up to 9: beyond the limits of SwiGLU in gpt-oss.
    let gate: Vec<f64> = gate.iter().map(|x| 1.63 * x).collect();
    let (up, dy) = (values(1, 40).iter().map(|x| 9.0 * x).collect::<Vec<f64>>(), values(2, 40));
    for activation in Activation::ALL {
        let f = |gate: &[f64], up: &[f64]| dot(&dy, &gated::forward(gate, up, activation));
        let (dgate, dup) = gated::backward(&dy, &gate, &up, activation);
        assert_gradient(&format!("{activation:?}: dgate"), &dgate, &gate, |gate| f(gate, &up));
        assert_gradient(&format!("{activation:?}: dup"), &dup, &up, |up| f(&gate, up));
    }
}

#[test]
fn gate_of_rows_backward() {
    let (rows, width) = (4, 7);
    let (x, dy) = (values(1, rows * width), values(2, rows * width));
    let scores: Vec<f64> = values(3, rows).iter().map(|x| 3.0 * x).collect();
    let f = |x: &[f64], scores: &[f64]| dot(&dy, &gated::rows_forward(x, scores));
    let (dx, dscores) = gated::rows_backward(&dy, &x, &scores);
    assert_gradient("dx", &dx, &x, |x| f(x, &scores));
    assert_gradient("dscores", &dscores, &scores, |scores| f(&x, scores));
}

#[test]
fn cross_entropy_backward() {
    let (vocab, targets, coefficients) = (9, [3, 0, 8], [0.4, -0.1, 2.0]);
    let logits: Vec<f64> = values(1, 3 * vocab).iter().map(|x| 4.0 * x).collect();
    for (softcap, temperature) in [(None, 1.0), (Some(3.0), 1.0), (Some(3.0), 0.7)] {
        let adjusted = Adjusted { softcap, temperature };
        let dlogits = cross_entropy::backward(&coefficients, &logits, &targets, adjusted, vocab);
        assert_gradient(&format!("{adjusted:?}"), &dlogits, &logits, |logits| {
            dot(&coefficients, &cross_entropy::forward(logits, &targets, adjusted, vocab))
        });
    }
}
