//! The gated unit of experts, and the combination of their outputs by token.

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::base::config::{Activation, Experts};
use rullama_train::gpu::Gpu;
use rullama_train::ops::Rows;
use rullama_train::ops::experts::combine;
use rullama_train::ops::gated::grouped as gated;
use rullama_train::ops::gated::grouped_coop16 as coop_gated;
use rullama_train::ops::linear::grouped::{Columns, ExpertWeight};
use rullama_train::ops::linear::grouped_coop16 as coop_linear;
use rullama_train::ops::pack::Packed;
use rullama_train::reference;

use super::super::check::{Block, Check, Held, Outcome, run, values, wide};
use super::{Grouped, tolerance};

/// The gated unit with the gradients of the choices' weights, and the combination by token: together the reference's experts.
pub fn whole(gpu: &Gpu) -> Outcome {
    Activation::ALL.into_iter().try_for_each(|activation| whole_with(gpu, activation))
}

fn whole_with(gpu: &Gpu, activation: Activation) -> Outcome {
    let mut check = Check::new("gated of experts", tolerance(gpu));
    for (count, used, tokens, f, d) in [(4, 2, 1, 4, 8), (8, 2, 70, 36, 24), (128, 8, 90, 96, 20)] {
        let name = format!("{activation:?} E={count} used={used} T={tokens} F={f} D={d}");
        let g = Grouped::new(gpu, Experts { count, used, width: f, ..Experts::default() }, tokens, 1e6)?;
        let rows = g.choices.len();
        let scales = values(5, count);
        let (mut gate_up, dy, x) =
            (values(2, tokens * used * 2 * f), values(3, tokens * used * f), values(4, tokens * used * d));
        // Large enough for the bounds of gpt-oss's units.
        gate_up.iter_mut().for_each(|x| *x *= 9.0);
        let of = |v: &[f32], w: usize, c: usize| wide(&v[c * w..(c + 1) * w]);
        let on_device = |v: &[f32], w: usize| {
            let grouped: Vec<f32> = g.rows(w, |c| of(v, w, c)).iter().map(|&x| x as f32).collect();
            Block::input(gpu, (0, 0), w, &grouped)
        };
        let split = |c: usize| {
            let row = of(&gate_up, 2 * f, c);
            (row[..f].to_vec(), row[f..].to_vec())
        };
        let factor = |c: usize| g.routing.weights[c] * f64::from(scales[g.routing.experts[c]]);
        let y = g.rows(f, |c| reference::gated::forward(&split(c).0, &split(c).1, activation));
        let dgate_up = g.rows(2 * f, |c| {
            let dy: Vec<f64> = of(&dy, f, c).iter().map(|x| factor(c) * x).collect();
            let (dgate, dup) = reference::gated::backward(&dy, &split(c).0, &split(c).1, activation);
            [dgate, dup].concat()
        });
        let dweights: Vec<f64> = (0..tokens * used)
            .map(|c| {
                let y = reference::gated::forward(&split(c).0, &split(c).1, activation);
                let inner: f64 = y.iter().zip(of(&dy, f, c)).map(|(a, b)| a * b).sum();
                f64::from(scales[g.routing.experts[c]]) * inner
            })
            .collect();

        let (inputs, dy_rows) = (on_device(&gate_up, 2 * f), on_device(&dy, f));
        let scale_rows = Block::input(gpu, (0, 0), count, &scales);
        let dweights_rows = Rows::new(gpu, "test", 1, tokens * used)?;
        let backward_inputs = [&dy_rows.rows, &inputs.rows, &scale_rows.rows];
        if gpu.kernels().reads_tiles() {
            // A product with ones shows the packed rows, for every expert.
            let product = |packed: &Packed, width: usize| -> Result<Vec<f64>, Failed> {
                let one: Vec<f32> = (0..count * width * width)
                    .map(|i| f32::from(u8::from((i % (width * width)).is_multiple_of(width + 1))))
                    .collect();
                let one = Held::new(gpu, width, &one);
                let out = Rows::new(gpu, "test", rows, width)?;
                let one = ExpertWeight::of_param(&one.param, count);
                run(gpu, |rec| {
                    coop_linear::forward(
                        rec,
                        Columns::all(out.all()),
                        packed,
                        &one,
                        1.0,
                        None,
                        &g.groups,
                        tokens,
                    )
                })?;
                g.read(gpu, &out, width)
            };
            let packed = Packed::new(gpu, "test", rows, 2 * f)?;
            run(gpu, |rec| coop_gated::forward(rec, &packed, &inputs.rows, activation, &g.groups, tokens))?;
            check.close(&name, f, &product(&packed, f)?, &y)?;
            let out = (&packed, &dweights_rows);
            run(gpu, |rec| coop_gated::backward(rec, out, backward_inputs, activation, &g.groups, tokens))?;
            check.close(&name, 2 * f, &product(&packed, 2 * f)?, &dgate_up)?;
        } else {
            let out = Rows::new(gpu, "test", rows, f)?;
            run(gpu, |rec| gated::forward(rec, &out, &inputs.rows, activation, &g.groups, tokens))?;
            check.close(&name, f, &g.read(gpu, &out, f)?, &y)?;
            let out = Rows::new(gpu, "test", rows, 2 * f)?;
            run(gpu, |rec| {
                gated::backward(rec, [&out, &dweights_rows], backward_inputs, activation, &g.groups, tokens)
            })?;
            check.close(&name, 2 * f, &g.read(gpu, &out, 2 * f)?, &dgate_up)?;
        }
        let found: Vec<f32> = block_on(gpu.read(&dweights_rows.buffer, tokens * used))?;
        check.close_to(&name, used, &wide(&found), &dweights, 0.1)?;

        let x_rows = on_device(&x, d);
        for weighted in [true, false] {
            let mut expected = vec![0.0; tokens * d];
            for c in 0..tokens * used {
                let factor = if weighted { factor(c) } else { 1.0 };
                let own = of(&x, d, c);
                (0..d).for_each(|i| expected[c / used * d + i] += factor * own[i]);
            }
            let y = Block::output(gpu, (0, 0), d, tokens);
            run(gpu, |rec| match weighted {
                true => combine::forward(rec, y.view(), &x_rows.rows, &scale_rows.rows, &g.groups, tokens),
                false => combine::backward(rec, y.view(), &x_rows.rows, &g.groups, tokens),
            })?;
            check.close(&format!("{name} combined"), d, &y.read(gpu, &name)?, &expected)?;
        }
        assert_eq!(g.tokens, tokens);
    }
    check.done()
}
