//! The gated short convolution, over samples in a row and over tokens that continue others.

use crate::base::config::ShortConv;
use crate::gpu::GpuError;
use crate::ops::cached_heads::NO_SEQUENCE;
use crate::ops::delta::Carried;
use crate::ops::short_conv::{self, Convolution, Taps};
use crate::reference;
use crate::selftest::bench::{Bench, F32, values, wide};

const SHAPE: ShortConv = ShortConv { channels: 20, taps: 3 };

/// Samples of one token, of fewer than the convolution reaches, and of more.
pub fn both_ways(b: &mut Bench) -> Result<(), GpuError> {
    let width = SHAPE.channels;
    let bounds: Vec<[u32; 2]> =
        [[0, 1], [1, 3], [3, 70]].iter().flat_map(|&[s, e]| vec![[s, e]; (e - s) as usize]).collect();
    let (starts, tokens): (Vec<u32>, usize) = (bounds.iter().map(|b| b[0]).collect(), bounds.len());
    let (bcx, dy) = (values(1, tokens * 3 * width), values(2, tokens * width));
    let weights = values(3, width * SHAPE.taps);
    let y_expected = reference::short_conv::forward(&wide(&bcx), &wide(&weights), &starts);
    let dbcx_expected = reference::short_conv::backward(&wide(&dy), &wide(&bcx), &wide(&weights), &starts);
    let taps = Taps::new(b.gpu, &SHAPE, &weights)?;
    let bounds = b.gpu.upload("self-test", &bounds)?;
    let conv = Convolution { channels: width, taps: &taps, tokens };
    let (bcx, dy) = (b.input(3 * width, &bcx)?, b.input(width, &dy)?);
    let (y, dbcx) = (b.output(width, tokens)?, b.output(3 * width, tokens)?);
    b.run(|rec| {
        short_conv::forward(rec, &conv, y.rows(), bcx.rows(), &bounds);
        short_conv::backward(rec, &conv, dbcx.rows(), dy.rows(), bcx.rows(), &bounds);
    })?;
    b.expect("y", &y, y_expected, F32);
    b.expect("dbcx", &dbcx, dbcx_expected, F32);
    Ok(())
}

/// Two sequences that are read in passes, and one more token of each, with a row of no sequence between them.
pub fn continued(b: &mut Bench) -> Result<(), GpuError> {
    let width = SHAPE.channels;
    let weights = values(3, width * SHAPE.taps);
    let taps = Taps::new(b.gpu, &SHAPE, &weights)?;
    let carried = Carried::for_each(b.gpu, [width, 0, 0], 2)?;
    let sequences = [1, 2].map(|seed| values(seed, 6 * 3 * width));
    let row = |of: usize, token: usize| &sequences[of][token * 3 * width..][..3 * width];
    let expected =
        |of: usize| reference::short_conv::forward(&wide(&sequences[of]), &wide(&weights), &[0; 6]);
    for (of, passes) in [(0, &[1, 1, 2, 1][..]), (1, &[3, 1])] {
        let mut before = 0;
        for &tokens in passes {
            let bcx = b.input(3 * width, &sequences[of][before * 3 * width..][..tokens * 3 * width])?;
            let (y, past) = (b.output(width, tokens)?, b.gpu.upload("self-test", &[before as u32])?);
            let conv = Convolution { channels: width, taps: &taps, tokens };
            let own = carried.sequence(of);
            b.run(|rec| short_conv::forward_carried(rec, &conv, &own, &past, y.rows(), bcx.rows()))?;
            let right = expected(of)[before * width..][..tokens * width].to_vec();
            b.expect(format!("{tokens} after {before}"), &y, right, F32);
            before += tokens;
        }
    }
    let table = b.gpu.upload("self-test", &[[5, 0], [0, NO_SEQUENCE], [4, 1]])?;
    let bcx = b.input(3 * width, &[row(0, 5), row(0, 0), row(1, 4)].concat())?;
    let y = b.output(width, 3)?;
    let conv = Convolution { channels: width, taps: &taps, tokens: 3 };
    b.run(|rec| short_conv::each(rec, &conv, &carried, &table, y.rows(), bcx.rows()))?;
    let alone = reference::short_conv::forward(&wide(row(0, 0)), &wide(&weights), &[0]);
    let right = [&expected(0)[5 * width..], &alone, &expected(1)[4 * width..][..width]].concat();
    b.expect("a token of each", &y, right, F32);
    Ok(())
}
