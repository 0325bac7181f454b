//! What is pending on an activation: one kernel with its reader, or finished before anything else that is recorded.

use rullama_train::base::formats::GgmlType;
use rullama_train::cases::tolerance::HALF;
use rullama_train::gpu::Gpu;
use rullama_train::ops::act::Act;
use rullama_train::ops::pack::Packed;
use rullama_train::ops::pass::{Operands, Pass, Scratch};
use rullama_train::ops::rms_norm::Norm;
use rullama_train::ops::{linear, norm_add, rms_norm, scale};
use rullama_train::reference;

use super::check::{Block, Check, Outcome, run, scaled, sum, values, wide};
use super::half::{EPS, packed, unpacked};
use super::linear::random_weight;

const SHAPES: [(usize, usize); 2] = [(17, 64), (66, 132)];

/// The commands between what is left pending and its reader.
type Between = fn(&mut Pass, &Block);

const BETWEEN: [(&str, Between); 2] = [
    ("alone", |_, _| ()),
    ("with others between", |p, other| scale::in_place(p.rec.now(), &other.rows, 2.0, 1)),
];

fn act(block: &Block) -> Act {
    block.rows.clone().into()
}

/// The sum of a stream and a norm, and the norm of it; the gradients of both.
pub fn norms(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("a norm that waits for the next one", HALF);
    let scratch = Scratch::for_products(gpu, None)?;
    for (height, width) in SHAPES {
        let [x, stream, dy, before] = [1, 2, 3, 4].map(|seed| values(seed, height * width));
        let weights = [5, 6].map(|seed| values(seed, width));
        let [of_x, of_sum] = weights.each_ref().map(|w| Norm::new(gpu, "norm", Some(w), width, EPS));
        let (of_x, of_sum) = (of_x?, of_sum?);
        let norm =
            |x: &[f64], w: &[f32]| reference::rms_norm::forward(x, Some(&wide(w)), width, f64::from(EPS));
        let back = |dy: &[f64], x: &[f64], w: &[f32]| {
            reference::rms_norm::backward(dy, x, Some(&wide(w)), width, f64::from(EPS))
        };
        let sum_expected = scaled(0.5, &sum(&wide(&stream), &norm(&wide(&x), &weights[0])));
        let dx_expected = scaled(0.5, &sum(&wide(&before), &back(&wide(&dy), &wide(&x), &weights[0])));
        let next_expected = back(&dx_expected, &wide(&stream), &weights[1]);
        for (what, between) in BETWEEN {
            let name = format!("[{height}, {width}] {what}");
            let [x, stream, dy, other] =
                [&x, &stream, &dy, &before].map(|x| Block::input(gpu, (0, 0), width, x));
            let dx = Block::in_out(gpu, (0, 0), width, &before);
            let staging = Block::output(gpu, (0, 0), width, height);
            let [stored, y, next] =
                [(); 3].map(|()| Packed::new(gpu, "tiles", height, width).expect("small"));
            let summed = Act::tiled(stored.clone(), Some(staging.rows.clone()));
            let [y_act, next_act] = [&y, &next].map(|tiles| Act::tiled(tiles.clone(), None));
            run(gpu, |rec| {
                let p = &mut Pass::new(rec, height, &scratch);
                norm_add::forward(p, &summed, &act(&x), &of_x, &act(&stream), 0.5);
                between(p, &other);
                rms_norm::forward(p, &y_act, &summed, &of_sum);
                rms_norm::backward_add(p, &act(&dx), &act(&dy), &act(&x), &of_x, 0.5);
                between(p, &other);
                rms_norm::backward(p, &next_act, &act(&dx), &act(&stream), &of_sum);
            })?;
            let found = unpacked(gpu, &stored, width, height, &name)?;
            check.close(&format!("sum {name}"), width, &found, &sum_expected)?;
            let expected = norm(&found, &weights[1]);
            check.close(&format!("y {name}"), width, &unpacked(gpu, &y, width, height, &name)?, &expected)?;
            check.close(&format!("dx {name}"), width, &dx.read(gpu, &name)?, &dx_expected)?;
            let found = unpacked(gpu, &next, width, height, &name)?;
            check.close(&format!("next {name}"), width, &found, &next_expected)?;
        }
    }
    check.done()
}

/// The partial sums of a product that a norm reads.
pub fn products(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("a product that its reader adds up", HALF);
    for (t, n, k) in [(65, 256, 1024), (33, 512, 2048)] {
        let scratch = Scratch::for_products(gpu, Some(Operands::new(gpu, t, k, n, 0)?))?;
        let (x, base, w) = (values(1, t * k), values(2, t * n), values(3, n));
        let (weight, matrix) = random_weight(gpu, GgmlType::Q8_0, n, k, false);
        let product = reference::linear::forward(&wide(&x), &matrix, k);
        let normed = reference::rms_norm::forward(&product, Some(&wide(&w)), n, f64::from(EPS));
        let norm = Norm::new(gpu, "norm", Some(&w), n, EPS)?;
        let tiles = packed(gpu, &Block::input(gpu, (0, 0), k, &x), k, t)?;
        for (what, between) in BETWEEN {
            let name = format!("T={t} K={k} N={n} {what}");
            let base_rows = Block::input(gpu, (0, 0), n, &base);
            let other = Block::in_out(gpu, (0, 0), n, &base);
            let [y, to] = [(); 2].map(|()| Block::output(gpu, (0, 0), n, t));
            let unsummed = act(&y).finished_by_reader();
            run(gpu, |rec| {
                let p = &mut Pass::new(rec, t, &scratch);
                linear::frozen(p, &unsummed, &Act::tiled(tiles.clone(), None), &weight, 1.0);
                between(p, &other);
                norm_add::forward(p, &act(&to), &unsummed, &norm, &act(&base_rows), 1.0);
            })?;
            check.close(&name, n, &to.read(gpu, &name)?, &sum(&wide(&base), &normed))?;
        }
    }
    check.done()
}
