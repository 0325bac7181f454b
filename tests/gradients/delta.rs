//! The gated delta net: gradients of its parts, its two forms, packed samples, and PyTorch's numbers.

use std::collections::BTreeMap;

use rullama_train::base::config::Activation;
use rullama_train::reference::delta::{Gradients, Inputs, chunked, conv, gates, l2_norm, recurrence};
use rullama_train::reference::{gated, rms_norm};
use safetensors::SafeTensors;

use super::{assert_close, assert_gradient, dot, values};

const CHUNK: usize = 64;

#[test]
fn conv_backward() {
    let starts = [0, 0, 0, 0, 0, 5, 6, 6];
    let (x, w, dy) = (values(1, 8 * 3), values(2, 3 * 4), values(3, 8 * 3));
    let dx = conv::backward(&dy, &w, &starts);
    assert_gradient("dx", &dx, &x, |x| dot(&dy, &conv::forward(x, &w, &starts)));
}

#[test]
fn l2_norm_backward() {
    let (x, dy) = (values(1, 3 * 5), values(2, 3 * 5));
    let dx = l2_norm::backward(&dy, &x, 5, 0.05, 0.7);
    assert_gradient("dx", &dx, &x, |x| dot(&dy, &l2_norm::forward(x, 5, 0.05, 0.7)));
}

#[test]
fn gates_backward() {
    let (alpha, b, a, dt) = (values(1, 4 * 3), values(2, 4 * 3), [-0.3, -2.0, -0.01], values(3, 3));
    let (dg, dbeta) = (values(4, 4 * 3), values(5, 4 * 3));
    let loss = |alpha: &[f64], b: &[f64]| {
        let (g, beta) = gates::forward(alpha, b, &a, &dt);
        dot(&dg, &g) + dot(&dbeta, &beta)
    };
    let (dalpha, db) = gates::backward(&dg, &dbeta, &alpha, &b, &a, &dt);
    assert_gradient("dalpha", &dalpha, &alpha, |alpha| loss(alpha, &b));
    assert_gradient("db", &db, &b, |b| loss(&alpha, b));
}

/// Inputs of samples of these lengths in one row.
struct Case {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    g: Vec<f64>,
    beta: Vec<f64>,
    starts: Vec<u32>,
}

const KEY_HEADS: usize = 2;
const VALUE_HEADS: usize = 4;
const SIZE: usize = 3;

impl Case {
    fn of(lengths: &[usize]) -> Case {
        let tokens: usize = lengths.iter().sum();
        let normed = |seed| l2_norm::forward(&values(seed, tokens * KEY_HEADS * SIZE), SIZE, 1e-6, 1.0);
        let starts = lengths.iter().scan(0, |at, &n| {
            *at += n;
            Some(std::iter::repeat_n((*at - n) as u32, n))
        });
        Case {
            q: normed(1),
            k: normed(2),
            v: values(3, tokens * VALUE_HEADS * SIZE),
            // Decays from almost none to almost all.
            g: values(4, tokens * VALUE_HEADS).iter().map(|g| -(4.0 * g).exp()).collect(),
            beta: values(5, tokens * VALUE_HEADS).iter().map(|b| 0.5 + 0.5 * b).collect(),
            starts: starts.flatten().collect(),
        }
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs {
            q: &self.q,
            k: &self.k,
            v: &self.v,
            g: &self.g,
            beta: &self.beta,
            starts: &self.starts,
            key_heads: KEY_HEADS,
            value_heads: VALUE_HEADS,
            size: SIZE,
        }
    }

    /// The tokens from `first` to `end` alone.
    fn cut(&self, first: usize, end: usize) -> Case {
        let tokens = self.starts.len();
        let of = |x: &[f64]| x[x.len() / tokens * first..x.len() / tokens * end].to_vec();
        Case {
            q: of(&self.q),
            k: of(&self.k),
            v: of(&self.v),
            g: of(&self.g),
            beta: of(&self.beta),
            starts: vec![0; end - first],
        }
    }
}

fn parts(g: &Gradients) -> [(&'static str, &[f64]); 5] {
    [("dq", &g.q), ("dk", &g.k), ("dv", &g.v), ("dg", &g.g), ("dbeta", &g.beta)]
}

#[test]
fn recurrence_backward() {
    let case = Case::of(&[5, 1, 4]);
    let x = case.inputs();
    let dout = values(6, x.v.len());
    let loss = |x: &Inputs| dot(&dout, &recurrence::forward(x));
    let g = recurrence::backward(&dout, &x);
    assert_gradient("dq", &g.q, &case.q, |q| loss(&Inputs { q, ..x }));
    assert_gradient("dk", &g.k, &case.k, |k| loss(&Inputs { k, ..x }));
    assert_gradient("dv", &g.v, &case.v, |v| loss(&Inputs { v, ..x }));
    assert_gradient("dg", &g.g, &case.g, |g| loss(&Inputs { g, ..x }));
    assert_gradient("dbeta", &g.beta, &case.beta, |beta| loss(&Inputs { beta, ..x }));
}

/// Chunks give what the definition gives, wherever samples begin and end.
#[test]
fn chunks_are_the_recurrence() {
    for lengths in [&[1][..], &[63], &[64], &[65], &[200], &[1, 63, 64, 65, 1, 7], &[100, 3, 130]] {
        let case = Case::of(lengths);
        let x = case.inputs();
        let dout = values(6, x.v.len());
        let name = format!("{lengths:?}");
        assert_close(&name, &chunked::forward(&x, CHUNK), &recurrence::forward(&x), 1e-12);
        let (found, expected) = (chunked::backward(&dout, &x, CHUNK), recurrence::backward(&dout, &x));
        for ((part, found), (_, expected)) in parts(&found).into_iter().zip(parts(&expected)) {
            let differences: Vec<f64> = found.iter().zip(expected).map(|(a, b)| a - b).collect();
            let error = super::norm(&differences) / super::norm(expected).max(1e-3);
            assert!(error < 1e-12, "{name}: {part} differs by {error:.1e}");
        }
    }
}

#[test]
fn packed_samples_do_not_see_each_other() {
    let lengths = [70, 1, 31, 64];
    let case = Case::of(&lengths);
    let dout = values(6, case.v.len());
    let (packed, grads) =
        (chunked::forward(&case.inputs(), CHUNK), chunked::backward(&dout, &case.inputs(), CHUNK));
    let mut first = 0;
    for length in lengths {
        let alone = case.cut(first, first + length);
        let of = |x: &[f64]| {
            let each = x.len() / case.starts.len();
            x[each * first..each * (first + length)].to_vec()
        };
        assert_close("o", &of(&packed), &chunked::forward(&alone.inputs(), CHUNK), 1e-12);
        let expected = chunked::backward(&of(&dout), &alone.inputs(), CHUNK);
        for ((part, found), (_, expected)) in parts(&grads).into_iter().zip(parts(&expected)) {
            let found = of(found);
            let difference: f64 = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(difference < 1e-12, "{part} of the sample at {first} differs by {difference:.1e}");
        }
        first += length;
    }
}

/// tests/golden/delta.safetensors: PyTorch in f64, by tests/golden/families/delta_ref.py, stored as f32.
#[test]
fn equals_pytorch() {
    let bytes = std::fs::read("tests/golden/delta.safetensors").expect("the file is in the repository");
    let file = SafeTensors::deserialize(&bytes).expect("a sound file");
    let value = |b: &[u8]| f64::from(f32::from_le_bytes(b.try_into().expect("4 bytes")));
    let named =
        file.tensors().into_iter().map(|(name, t)| (name, t.data().chunks_exact(4).map(value).collect()));
    let named: BTreeMap<String, Vec<f64>> = named.collect();
    let get = |name: &str| named[name].as_slice();
    let lengths = file.tensor("lengths").expect("there").data();
    let lengths: Vec<usize> = lengths
        .chunks_exact(8)
        .map(|b| i64::from_le_bytes(b.try_into().expect("8 bytes")) as usize)
        .collect();
    let starts = lengths.iter().scan(0, |at, &n| {
        *at += n;
        Some(std::iter::repeat_n((*at - n) as u32, n))
    });
    let starts: Vec<u32> = starts.flatten().collect();
    let (tokens, value_heads, size) = (starts.len(), get("ssm_a").len(), get("norm").len());
    let key_heads = get("q").len() / tokens / size;
    let (scale, eps, keys) = ((size as f64).powf(-0.5), 1e-6, key_heads * size);

    let ones = vec![1.0; get("qkv").len()];
    let pre = conv::forward(get("qkv"), get("conv"), &starts);
    let mixed = gated::forward(&pre, &ones, Activation::Silu);
    let channels = mixed.len() / tokens;
    let columns = |x: &[f64], from: usize, to: usize| -> Vec<f64> {
        x.chunks_exact(channels).flat_map(|row| row[from..to].to_vec()).collect()
    };
    let (raw_q, raw_k) = (columns(&mixed, 0, keys), columns(&mixed, keys, 2 * keys));
    let (q, k) = (l2_norm::forward(&raw_q, size, eps, scale), l2_norm::forward(&raw_k, size, eps, 1.0));
    let v = columns(&mixed, 2 * keys, channels);
    let (g, beta) = gates::forward(get("a"), get("b"), get("ssm_a"), get("dt"));
    let x = Inputs { q: &q, k: &k, v: &v, g: &g, beta: &beta, starts: &starts, key_heads, value_heads, size };
    let o = chunked::forward(&x, CHUNK);
    let normed = rms_norm::forward(&o, Some(get("norm")), size, eps);
    let y = gated::forward(get("z"), &normed, Activation::Silu);

    let (dz, dnormed) = gated::backward(get("dy"), get("z"), &normed, Activation::Silu);
    let dout = rms_norm::backward(&dnormed, &o, Some(get("norm")), size, eps);
    let d = chunked::backward(&dout, &x, CHUNK);
    let dq = l2_norm::backward(&d.q, &raw_q, size, eps, scale);
    let dk = l2_norm::backward(&d.k, &raw_k, size, eps, 1.0);
    let dmixed: Vec<f64> = (0..tokens)
        .flat_map(|t| {
            let part = |x: &[f64]| x[x.len() / tokens * t..x.len() / tokens * (t + 1)].to_vec();
            [part(&dq), part(&dk), part(&d.v)].concat()
        })
        .collect();
    let (dpre, _) = gated::backward(&dmixed, &pre, &ones, Activation::Silu);
    let dqkv = conv::backward(&dpre, get("conv"), &starts);
    let (da, db) = gates::backward(&d.g, &d.beta, get("a"), get("b"), get("ssm_a"), get("dt"));
    let found: [(&str, &[f64]); 15] = [
        ("q", &q),
        ("k", &k),
        ("v", &v),
        ("g", &g),
        ("beta", &beta),
        ("o", &o),
        ("y", &y),
        ("dz", &dz),
        ("do", &dout),
        ("dq", &d.q),
        ("dk", &d.k),
        ("dv", &d.v),
        ("dqkv", &dqkv),
        ("da", &da),
        ("db", &db),
    ];
    for (name, found) in found {
        let differences: Vec<f64> = found.iter().zip(get(name)).map(|(a, b)| a - b).collect();
        let error = super::norm(&differences) / super::norm(get(name));
        assert!(found.len() == get(name).len() && error < 1e-6, "{name} differs by {error:.1e}");
    }
}
