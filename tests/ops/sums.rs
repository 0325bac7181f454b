//! Sums of products on cooperative matrices of 16×16 that their consumers add up: norms, forward and backward.

use rullama_train::base::config::Activation;
use rullama_train::base::formats::GgmlType;
use rullama_train::cases::tolerance::HALF;
use rullama_train::gpu::{Gpu, Recorder};
use rullama_train::ops::Weight;
use rullama_train::ops::act::Act;
use rullama_train::ops::gated::plain as gated;
use rullama_train::ops::linear::coop16::{self, Product};
use rullama_train::ops::norm_add::coop16::{self as norm_add, Then};
use rullama_train::ops::pack::Packed;
use rullama_train::ops::partial_sums::{Unsummed, add_up};
use rullama_train::ops::rms_norm::Norm;
use rullama_train::ops::rms_norm::coop16::{self as rms_norm, Gradient, Through};
use rullama_train::reference;

use super::check::{Block, Check, Outcome, run, scaled, sum, values, wide};
use super::half::{EPS, packed, unpacked};
use super::linear::random_weight;

/// (T, width of the norms, widths of the products' sums)
const CASES: [(usize, usize, [usize; 2]); 2] = [(65, 256, [1024, 68]), (33, 512, [516, 2048])];

fn rms_backward(dy: &[f64], x: &[f32], w: &[f32]) -> Vec<f64> {
    reference::rms_norm::backward(dy, &wide(x), Some(&wide(w)), w.len(), f64::from(EPS))
}

/// The parts of both gradients `dy·W`.
fn backward_in_parts(
    gpu: &Gpu,
    products: &[(Packed, Weight)],
    t: usize,
    k: usize,
    go: impl FnOnce(&mut Recorder, u32),
) -> Outcome {
    let untouched = Block::output(gpu, (0, 0), k, t);
    run(gpu, |rec| {
        let mut parts = Unsummed::new(t, k, products.len()).expect("there is room");
        for (dy, weight) in products {
            let product = Product::new(untouched.view(), dy, weight, t);
            coop16::backward_onto(rec, &product, Some(&mut parts), None);
        }
        go(rec, parts.count);
    })
}

/// Gradients of a norm's output that two products leave in parts: on their way through that norm and another one, and as they are.
pub fn backward(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("gradients in parts, 16×16", HALF);
    for (t, k, widths) in CASES {
        let name = format!("T={t} K={k} N={widths:?}");
        let [x, before, next_x] = [1, 2, 3].map(|seed| values(seed, t * k));
        let (w, next_w) = (values(4, k), values(5, k));
        let (mut products, mut dnormed) = (Vec::new(), vec![0.0; t * k]);
        for (seed, n) in [(6, widths[0]), (7, widths[1])] {
            let dy = values(seed, t * n);
            let (weight, matrix) = random_weight(gpu, GgmlType::Q8_0, n, k, false);
            dnormed = sum(&dnormed, &reference::linear::backward(&wide(&dy), &matrix, k));
            products.push((packed(gpu, &Block::input(gpu, (0, 0), n, &dy), n, t)?, weight));
        }
        let [norm, next] = [&w, &next_w].map(|w| Norm::new(gpu, "norm", Some(w), k, EPS));
        let (norm, next) = (norm?, next?);
        let [x_rows, next_rows] = [&x, &next_x].map(|x| Block::input(gpu, (0, 0), k, x));
        let [x_act, next_act] = [&x_rows, &next_rows].map(|x| Act::from(x.rows.clone()));
        let unused = Block::output(gpu, (0, 0), k, t);
        let dx = Packed::new(gpu, "dx", t, k)?;
        let through = Through { dx: &dx, x: &next_act, norm: &next };

        let added = scaled(0.5, &sum(&wide(&before), &rms_backward(&dnormed, &x, &w)));
        let to = Block::in_out(gpu, (0, 0), k, &before);
        backward_in_parts(gpu, &products, t, k, |rec, parts| {
            let dy = Gradient::Rows(&unused.rows, parts);
            rms_norm::backward_add(rec, &to.rows, dy, &x_act, &norm, t, 0.5, Some(through));
        })?;
        check.close(&format!("added {name}"), k, &to.read(gpu, &name)?, &added)?;
        let found = unpacked(gpu, &dx, k, t, &name)?;
        check.close(
            &format!("through the next norm {name}"),
            k,
            &found,
            &rms_backward(&added, &next_x, &next_w),
        )?;

        let added = sum(&wide(&before), &dnormed);
        let to = Block::in_out(gpu, (0, 0), k, &before);
        backward_in_parts(gpu, &products, t, k, |rec, parts| {
            rms_norm::backward_of_sum(rec, &to.rows, parts, through, t);
        })?;
        check.close(&format!("sum {name}"), k, &to.read(gpu, &name)?, &added)?;
        let found = unpacked(gpu, &dx, k, t, &name)?;
        check.close(
            &format!("sum through a norm {name}"),
            k,
            &found,
            &rms_backward(&added, &next_x, &next_w),
        )?;

        let [gate, up] = [8, 9].map(|seed| values(seed, t * k));
        let [gate_rows, up_rows] = [&gate, &up].map(|x| Block::input(gpu, (0, 0), k, x));
        let dgate = Block::output(gpu, (0, 0), k, t);
        backward_in_parts(gpu, &products, t, k, |rec, parts| {
            let (dy, gate, up) = ((&unused.rows, parts), &gate_rows.rows, &up_rows.rows);
            gated::backward(rec, &dgate.rows, None, dy, gate, up, Activation::Gelu, t);
        })?;
        let expected = reference::gated::backward(&dnormed, &wide(&gate), &wide(&up), Activation::Gelu).0;
        check.close(&format!("through a gate {name}"), k, &dgate.read(gpu, &name)?, &expected)?;

        let in_place = Block::output(gpu, (0, 0), k, t);
        backward_in_parts(gpu, &products, t, k, |rec, parts| add_up(rec, &in_place.rows, t, parts))?;
        check.close(&format!("added up {name}"), k, &in_place.read(gpu, &name)?, &dnormed)?;
    }
    check.done()
}

/// A product's result that a norm adds to the stream, which it leaves in parts.
pub fn forward(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("results in parts, 16×16", HALF);
    for (t, n, k) in [(65, 256, 1024), (33, 512, 2048)] {
        let name = format!("T={t} K={k} N={n}");
        let (x, base, w) = (values(1, t * k), values(2, t * n), values(3, n));
        let (weight, matrix) = random_weight(gpu, GgmlType::Q8_0, n, k, false);
        let product = reference::linear::forward(&wide(&x), &matrix, k);
        let normed = reference::rms_norm::forward(&product, Some(&wide(&w)), n, f64::from(EPS));
        let norm = Norm::new(gpu, "norm", Some(&w), n, EPS)?;
        let x = packed(gpu, &Block::input(gpu, (0, 0), k, &x), k, t)?;
        let base_rows = Block::input(gpu, (0, 0), n, &base);
        let (untouched, y) = (Block::output(gpu, (0, 0), n, t), Block::output(gpu, (0, 0), n, t));
        let [stored, to] = [(); 2].map(|()| Packed::new(gpu, "tiles", t, n).expect("it is small"));
        let act = Act::tiled(stored.clone(), None).packed_by_reader(untouched.rows.clone());
        run(gpu, |rec| {
            let mut parts = Unsummed::new(t, n, 1).expect("there is room");
            coop16::forward_onto(rec, &Product::new(untouched.view(), &x, &weight, t), Some(&mut parts));
            let (x, then) = ((&act, parts.count), (&to, Then::Sum));
            norm_add::forward(rec, Some(&y.rows), then, x, &norm, &base_rows.rows, 1.0, t);
        })?;
        check.close(&name, n, &y.read(gpu, &name)?, &sum(&wide(&base), &normed))?;
        let found = unpacked(gpu, &stored, n, t, &name)?;
        check.close(&format!("rounded {name}"), n, &found, &product)?;
    }
    check.done()
}
