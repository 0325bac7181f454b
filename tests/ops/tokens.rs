//! The likeliest token at any place, the likeliest of rows, and drawn ones.

use rullama_train::gpu::Gpu;
use rullama_train::ops::Rows;
use rullama_train::ops::argmax::top;
use rullama_train::ops::argmax::{Argmax, Likeliest};
use rullama_train::ops::categorical::{Categorical, Draw, Drawn};

use super::check::{Outcome, run, values};

/// The largest value at any place, the first of equal values, never NaN; none if all values are NaN.
pub fn likeliest(gpu: &Gpu) -> Outcome {
    let argmax = Argmax::new(gpu)?;
    let found = |values: &[f32]| -> Result<Likeliest, libtest_mimic::Failed> {
        // The guard after the values is larger than all of them.
        let mut padded = values.to_vec();
        padded.resize(values.len() + 70, 1e30);
        let (buffer, stride) = (gpu.upload("values", &padded)?, padded.len());
        let rows = Rows { buffer, stride, start: 0 };
        run(gpu, |rec| argmax.forward(rec, &rows, values.len()))?;
        Ok(pollster::block_on(gpu.read::<Likeliest>(&argmax.result, 1))?[0])
    };
    for len in [1, 63, 64, 65, 1024, 5000, 300_000] {
        let row = values(len as u64, len);
        for at in [0, len / 2, len - 1] {
            let mut row = row.clone();
            row[at] = 2.0;
            if at + 1 < len {
                row[len - 1] = 2.0;
                row[at / 2] = f32::NAN;
                row[at] = 2.0;
            }
            let expected = Likeliest { index: at as u32, value: 2.0 };
            let found = found(&row)?;
            if found != expected {
                return Err(format!("{len} values: expected {expected:?}, found {found:?}").into());
            }
        }
    }
    for (row, finite) in [
        (vec![f32::NAN; 100], false),
        (vec![f32::NEG_INFINITY; 100], false),
        (vec![f32::INFINITY; 100], false),
        (vec![-3e38; 100], true),
    ] {
        if found(&row)?.is_finite() != finite {
            return Err(format!("{} and its like: finite should be {finite}", row[0]).into());
        }
    }
    Ok(())
}

/// The largest values of rows in their order, and the softmax of a target, against f64.
pub fn likeliest_of_rows(gpu: &Gpu) -> Outcome {
    let mut worst = 0f64;
    for (count, rows, wanted) in
        [(1, 1, 3), (63, 2, 0), (64, 3, 1), (65, 70, 5), (5003, 3, 20), (49_152, 2, 20), (70_001, 2, 600)]
    {
        let stride = (count + 3_usize).next_multiple_of(4);
        // The padding between the rows is larger than all values.
        let mut all = vec![1e30f32; rows * stride];
        let mut row_of = |row: usize| {
            let mut own: Vec<f32> = values(row as u64 + 1, count).iter().map(|x| 12.0 * x).collect();
            if count > 200 {
                // Equal values in different lanes, and what is never chosen.
                (own[77], own[150], own[4], own[5]) = (99.0, 99.0, f32::NEG_INFINITY, 99.0);
            }
            if wanted > 256 && row == 1 {
                // Far more equal values than are wanted of them, zeros of both signs among them.
                own.iter_mut().for_each(|x| *x = (*x / 12.0).round());
            }
            all[row * stride..][..count].copy_from_slice(&own);
            own
        };
        let plain: Vec<Vec<f32>> = (0..rows).map(&mut row_of).collect();
        let targets: Vec<u32> = (0..=rows).map(|row| ((row * 31 + count / 2) % count) as u32).collect();
        let block = Rows { buffer: gpu.upload("values", &all)?, stride, start: 0 };
        let (ids, words) = (gpu.upload("targets", &targets)?, top::words(wanted));
        let results = gpu.upload("results", &vec![7u32; (rows + 1) * words])?;
        run(gpu, |rec| top::forward(rec, &block, count, &ids, &results, 1, wanted, rows))?;
        let found = pollster::block_on(gpu.read::<u32>(&results, (rows + 1) * words))?;
        if found[..words] != vec![7; words] {
            return Err("the place before the first row was written".into());
        }
        for ((row, found), target) in plain.iter().zip(top::read(&found[words..], wanted)).zip(&targets[1..])
        {
            let mut order: Vec<u32> = (0..count as u32).filter(|i| row[*i as usize].is_finite()).collect();
            let value = |i: &u32| row[*i as usize] + 0.0; // -0 counts as 0
            order.sort_by(|a, b| value(b).total_cmp(&value(a)).then(a.cmp(b)));
            order.truncate(wanted);
            let expected: Vec<Likeliest> =
                order.iter().map(|&index| Likeliest { index, value: row[index as usize] }).collect();
            if found.top != expected {
                return Err(format!("{count} values: expected {expected:?}, found {:?}", found.top).into());
            }
            let lse = row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
            let of = |x: f32| f64::from(x) - f64::from(found.largest) - f64::from(found.sum).ln();
            let target = row[*target as usize];
            worst = worst.max((of(target) - (f64::from(target) - lse)).abs());
            if found.target != target || worst.is_nan() || worst >= 2e-6 {
                return Err(
                    format!("{count} values: {found:?}, a log-probability is off by {worst:e}").into()
                );
            }
        }
    }
    let block = Rows { buffer: gpu.upload("values", &[1.0, f32::NAN, 2.0, 0.0])?, stride: 4, start: 0 };
    let (ids, results) = (gpu.upload("targets", &[0u32])?, gpu.upload("results", &[0u32; 5])?);
    run(gpu, |rec| top::forward(rec, &block, 4, &ids, &results, 0, 1, 1))?;
    match &top::read(&pollster::block_on(gpu.read::<u32>(&results, 5))?, 1)[..] {
        [row] if !row.sum.is_finite() => Ok(()),
        rows => Err(format!("NaN must make the sum NaN: {rows:?}").into()),
    }
}

/// Drawn tokens lie where the running sum of the f64 softmax passes the point, and their probabilities are those of the softmax.
pub fn drawn(gpu: &Gpu) -> Outcome {
    const ROUNDING: f64 = 2e-6;
    let points = [0.0, 1e-7, 0.1, 0.5, 0.77, 0.999, 1.0 - 1e-9];
    let mut drawn = 0;
    for (count, spread) in
        [(1, 1.0), (63, 2.0), (256, 5.0), (257, 0.0), (5003, 12.0), (70_001, 3.0), (262_144, 8.0)]
    {
        for temperature in [0.7, 1.0, 3.0] {
            let stride = (count + 3_usize).next_multiple_of(4);
            // The padding between the rows is larger than all values.
            let mut all = vec![1e30f32; points.len() * stride];
            for (row, values_of) in all.chunks_exact_mut(stride).enumerate() {
                let own = values(row as u64 + 1, count);
                values_of.iter_mut().zip(own).for_each(|(to, x)| *to = spread * x);
                if count > 200 {
                    (values_of[3], values_of[150]) = (f32::NEG_INFINITY, 1.5 * spread);
                }
            }
            let block = Rows { buffer: gpu.upload("values", &all)?, stride, start: 0 };
            let categorical = Categorical::new(gpu, points.len())?;
            let draws = points.map(|point| Draw::at(point, temperature));
            gpu.write(&categorical.draws, &draws);
            run(gpu, |rec| categorical.forward(rec, &block, count, points.len()))?;
            let found = pollster::block_on(gpu.read::<Drawn>(&categorical.results, points.len()))?;
            for (((row, found), draw), point) in all.chunks_exact(stride).zip(&found).zip(draws).zip(points) {
                let row = &row[..count];
                let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let weight = |x: &f32| (f64::from(x - largest) / temperature).exp();
                let total: f64 = row.iter().map(weight).sum();
                let id = found.id as usize;
                let before = row[..id].iter().map(weight).sum::<f64>() / total;
                let own = weight(&row[id]) / total;
                let is_there = before - ROUNDING <= point && point <= before + own + ROUNDING && own > 0.0;
                let is_right = found.value == row[id] && found.largest == largest && found.is_sound();
                let error = (found.logprob(draw) - own.ln()).abs();
                if !(is_there && is_right && error < 5e-6) {
                    return Err(format!("{count} values over {spread} at {temperature}, point {point}: {found:?}, {before} before, {own}; {error:e}").into());
                }
                drawn += 1;
            }
        }
    }
    likeliest_is_drawn(gpu, drawn)
}

/// Without a temperature the first of the largest values is taken, and rows without a softmax are not sound.
fn likeliest_is_drawn(gpu: &Gpu, drawn: usize) -> Outcome {
    assert_eq!(drawn, 7 * 3 * 7);
    let draw = |row: &[f32]| -> Result<Drawn, libtest_mimic::Failed> {
        let categorical = Categorical::new(gpu, 1)?;
        gpu.write(&categorical.draws, &[Draw::LIKELIEST]);
        let block = Rows { buffer: gpu.upload("values", row)?, stride: row.len(), start: 0 };
        run(gpu, |rec| categorical.forward(rec, &block, row.len(), 1))?;
        Ok(pollster::block_on(gpu.read::<Drawn>(&categorical.results, 1))?[0])
    };
    for len in [4, 256, 4096, 100_000] {
        for at in [0, len / 2, len - 1] {
            let mut row = values(len as u64, len);
            (row[len - 1], row[at]) = (2.0, 2.0);
            let found = draw(&row)?;
            let sum: f64 = row.iter().map(|&x| (f64::from(x) - 2.0).exp()).sum();
            let error = (f64::from(found.sum) / sum - 1.0).abs();
            if (found.id, found.likeliest, found.value) != (at as u32, at as u32, 2.0) || error > 2e-6 {
                return Err(format!("{len} values: expected {at}, found {found:?}, {error:e}").into());
            }
        }
    }
    for (value, sound) in
        [(f32::NAN, false), (f32::INFINITY, false), (f32::NEG_INFINITY, false), (-3e38, true)]
    {
        let all = draw(&[value; 100])?;
        let one = draw(&[vec![0.5; 99], vec![value]].concat())?;
        let is_no_number = value.is_nan() || value == f32::INFINITY;
        if all.is_sound() != sound || one.is_sound() == is_no_number {
            return Err(format!("{value}: {all:?}, {one:?}").into());
        }
    }
    Ok(())
}
