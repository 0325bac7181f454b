//! The gated short convolution, over samples in a row and over tokens that continue others.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{values, wide};
use super::tolerance::Tolerance;
use crate::base::config::ShortConv;
use crate::gpu::GpuError;
use crate::ops::cached_heads::NO_SEQUENCE;
use crate::ops::delta::Carried;
use crate::ops::short_conv::{self, Convolution, Taps};
use crate::reference::short_conv as reference;

/// Four products of three factors.
const PRODUCTS: Tolerance = Tolerance::new(5e-7, 1e-6, 1e-6);

pub const CASES: [Case; 2] = [
    Case {
        op: "short_conv",
        name: "forward and backward",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes::<Packed> {
            small: &[(20, 3, &[1, 2, 67])],
            more: &[
                (4, 3, &[1]),
                (20, 3, &[1, 2, 67, 3]),
                (64, 4, &[5, 1, 1, 60]),
                (132, 2, &[9, 300]),
                (8, 1, &[7]),
            ],
            check: both_ways,
        },
    },
    Case {
        op: "short_conv",
        name: "tokens that continue others",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes { small: &[(20, 3)], more: &[(4, 3), (20, 4), (132, 3)], check: continued },
    },
];

/// Channels, taps and lengths of samples.
type Packed = (usize, usize, &'static [u32]);

/// Samples of one token, of fewer than the convolution reaches, and of more, in rows that may be longer than their columns.
fn both_ways(b: &mut Bench, &(channels, taps, lengths): &Packed) -> Result<(), GpuError> {
    let name = format!("C={channels} taps={taps} lengths={lengths:?}");
    let mut bounds: Vec<[u32; 2]> = Vec::new();
    for length in lengths {
        let first = bounds.len() as u32;
        bounds.extend(vec![[first, first + length]; *length as usize]);
    }
    let tokens = bounds.len();
    let (bcx, dy) = (values(1, tokens * 3 * channels), values(2, tokens * channels));
    let weights = values(3, channels * taps);
    let taps = Taps::new(b.gpu, &ShortConv { channels, taps }, &weights)?;
    // Values behind the bounds must not be used.
    let on_device = b.gpu.upload("case", &[&bounds[..], &[[77; 2]; 64]].concat())?;
    let conv = Convolution { channels, taps: &taps, tokens };
    let (bcx_block, dy_block) = (b.input(3 * channels, &bcx)?, b.input_within((0, 8), channels, &dy)?);
    let (y, dbcx) = (b.output_within((0, 8), channels, tokens)?, b.output(3 * channels, tokens)?);
    b.run(|rec| {
        short_conv::forward(rec, &conv, y.rows(), bcx_block.rows(), &on_device);
        short_conv::backward(rec, &conv, dbcx.rows(), dy_block.rows(), bcx_block.rows(), &on_device);
    })?;
    if b.compares() {
        let starts: Vec<u32> = bounds.iter().map(|bound| bound[0]).collect();
        let (bcx, weights) = (wide(&bcx), wide(&weights));
        b.expect(format!("y {name}"), &y, reference::forward(&bcx, &weights, &starts), PRODUCTS);
        let expected = reference::backward(&wide(&dy), &bcx, &weights, &starts);
        b.expect(format!("dbcx {name}"), &dbcx, expected, PRODUCTS);
    }
    Ok(())
}

/// Two sequences that are read in passes, and one more token of each, as decoding reads them, with a row of no sequence between them.
fn continued(b: &mut Bench, &(channels, taps): &(usize, usize)) -> Result<(), GpuError> {
    let weights = values(3, channels * taps);
    let taps = Taps::new(b.gpu, &ShortConv { channels, taps }, &weights)?;
    let carried = Carried::for_each(b.gpu, [channels, 0, 0], 3)?;
    // Sequences begin where others ended.
    b.gpu.write(&carried.history, &vec![f32::MAX; (carried.history.size() / 4) as usize]);
    let passes: [&[usize]; 2] = [&[1, 1, 2, 1, 3, 5, 1, 1], &[3, 1, 2, 5, 1, 3]];
    let sequences = [1, 2].map(|seed| values(seed, (15 + 1) * 3 * channels));
    let row = |of: usize, token: usize| &sequences[of][token * 3 * channels..][..3 * channels];
    let right = |of: usize, first: usize, count: usize| {
        let (bcx, starts) = (wide(&sequences[of]), vec![0; first + count]);
        let y = reference::forward(&bcx[..(first + count) * 3 * channels], &wide(&weights), &starts);
        y[first * channels..].to_vec()
    };
    let (mut ends, places) = ([0; 2], [2, 0]);
    for (of, passes) in passes.into_iter().enumerate() {
        for &tokens in passes {
            let before = ends[of];
            let part = &sequences[of][before * 3 * channels..][..tokens * 3 * channels];
            let bcx = b.input_within((0, 4), 3 * channels, part)?;
            let (y, past) = (b.output(channels, tokens)?, b.gpu.upload("case", &[before as u32])?);
            let (conv, own) = (Convolution { channels, taps: &taps, tokens }, carried.sequence(places[of]));
            b.run(|rec| short_conv::forward_carried(rec, &conv, &own, &past, y.rows(), bcx.rows()))?;
            let name = format!("C={channels} sequence {of}: {tokens} after {before}");
            b.expect(name, &y, right(of, before, tokens), PRODUCTS);
            ends[of] += tokens;
        }
    }
    let [first, second] = ends.map(|end| end as u32);
    let table = b.gpu.upload("case", &[[first, 2], [0, NO_SEQUENCE], [second, 0]])?;
    let rows = [row(0, ends[0]), row(0, 0), row(1, ends[1])].concat();
    let (bcx, y) = (b.input_within((0, 4), 3 * channels, &rows)?, b.output(channels, 3)?);
    let conv = Convolution { channels, taps: &taps, tokens: 3 };
    b.run(|rec| short_conv::each(rec, &conv, &carried, &table, y.rows(), bcx.rows()))?;
    let expected = [right(0, ends[0], 1), right(0, 0, 1), right(1, ends[1], 1)].concat();
    b.expect(format!("C={channels}: a token of each"), &y, expected, PRODUCTS);
    Ok(())
}
