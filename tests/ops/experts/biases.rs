//! Frozen biases of experts.

use rullama_train::base::config::Experts;
use rullama_train::gpu::Gpu;
use rullama_train::ops::experts::bias::Biases;

use super::super::check::{Block, Check, Outcome, run, sum, values, wide};
use super::{EXACT, Grouped, NONE};

/// Frozen biases of rows by expert, of one row per choice, and of sums over a token's choices, with the gradients of their weights.
pub fn biases(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("experts, biases", EXACT);
    for (count, used, tokens, width) in [(5, 3, 1, 4), (8, 2, 70, 36), (32, 4, 9, 260), (128, 8, 90, 20)] {
        let name = format!("E={count} used={used} T={tokens} width={width}");
        let g = Grouped::new(gpu, Experts { count, used, width: 4, ..Experts::default() }, tokens, 1e6)?;
        let choices = tokens * used;
        let (held, scales, before) = (values(1, count * width), values(5, count), values(6, choices));
        let (x, y, dy) = (values(2, choices * width), values(3, tokens * width), values(4, tokens * width));
        let bias = |choice: usize| wide(&held[g.routing.experts[choice] * width..][..width]);
        let each = |choice: usize| sum(&wide(&x[choice * width..][..width]), &bias(choice));
        let (mut summed, mut dweights) = (wide(&y), wide(&before));
        for choice in 0..choices {
            let (token, scale) = (choice / used, f64::from(scales[g.routing.experts[choice]]));
            for (i, b) in bias(choice).into_iter().enumerate() {
                summed[token * width + i] += g.routing.weights[choice] * scale * b;
                dweights[choice] += scale * f64::from(dy[token * width + i]) * b;
            }
        }
        let on_device = |x: &[f64]| x.iter().map(|x| *x as f32).collect::<Vec<f32>>();
        let by_expert = g.rows(width, |choice| wide(&x[choice * width..][..width]));
        let grouped = Block::in_out(gpu, (0, 8), width, &on_device(&by_expert));
        let (single, to) = (Block::in_out(gpu, (0, 4), width, &x), Block::in_out(gpu, (0, 8), width, &y));
        let (dy, scales) =
            (Block::input(gpu, (0, 12), width, &dy), Block::input(gpu, (0, 0), count, &scales));
        let found = Block::in_out(gpu, (0, 0), choices, &before);
        let biases = Biases::new(gpu.upload("biases", &held)?, width);
        run(gpu, |rec| {
            biases.add(rec, &grouped.rows, &g.groups, tokens);
            biases.add_each(rec, &single.rows, &g.groups, tokens);
            biases.add_summed(rec, &to.rows, &scales.rows, &g.groups, tokens);
            biases.backward(rec, &found.rows, [&dy.rows, &scales.rows], &g.groups, tokens);
        })?;
        let used_rows = |found: Vec<f64>| {
            let pairs = found.chunks(width).zip(&g.choices).filter(|(_, choice)| **choice != NONE);
            pairs.flat_map(|(row, _)| row.to_vec()).collect::<Vec<f64>>()
        };
        let expected: Vec<f64> =
            g.choices.iter().filter(|choice| **choice != NONE).flat_map(|c| each(*c as usize)).collect();
        check.close(&name, width, &used_rows(grouped.read(gpu, &name)?), &expected)?;
        let expected: Vec<f64> = (0..choices).flat_map(each).collect();
        check.close(&format!("{name} each"), width, &single.read(gpu, &name)?, &expected)?;
        check.close(&format!("{name} summed"), width, &to.read(gpu, &name)?, &summed)?;
        check.close_to(&format!("{name} weights"), used, &found.read(gpu, &name)?, &dweights, 0.1)?;
    }
    check.done()
}
