//! The gated short convolution.

use rullama_train::base::config::ShortConv;
use rullama_train::gpu::Gpu;
use rullama_train::ops::cached_heads::NO_SEQUENCE;
use rullama_train::ops::delta::Carried;
use rullama_train::ops::short_conv::{self, Convolution, Taps};
use rullama_train::reference;

use super::check::{Block, Check, Outcome, Tolerance, run, values, wide};

/// Four products of three factors.
const EXACT: Tolerance = Tolerance { norm: 5e-7, relative: 1e-6, absolute: 1e-6 };

/// Samples that begin anywhere, some shorter than the convolution reaches, in rows that may be longer than their columns.
pub fn both_ways(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("short convolution", EXACT);
    for (channels, taps, lengths) in [
        (4, 3, &[1][..]),
        (20, 3, &[1, 2, 67, 3]),
        (64, 4, &[5, 1, 1, 60]),
        (132, 2, &[9, 300]),
        (8, 1, &[7]),
    ] {
        let name = format!("C={channels} taps={taps} lengths={lengths:?}");
        let shape = ShortConv { channels, taps };
        let mut bounds: Vec<[u32; 2]> = Vec::new();
        for length in lengths {
            let first = bounds.len() as u32;
            bounds.extend(vec![[first, first + length]; *length as usize]);
        }
        let (starts, tokens): (Vec<u32>, usize) = (bounds.iter().map(|b| b[0]).collect(), bounds.len());
        let (bcx, dy) = (values(1, tokens * 3 * channels), values(2, tokens * channels));
        let weights = values(3, channels * taps);
        let (wide_bcx, wide_w) = (wide(&bcx), wide(&weights));
        let y_expected = reference::short_conv::forward(&wide_bcx, &wide_w, &starts);
        let dbcx_expected = reference::short_conv::backward(&wide(&dy), &wide_bcx, &wide_w, &starts);
        let taps = Taps::new(gpu, &shape, &weights)?;
        // The guard after the bounds must not be used.
        let bounds = gpu.upload("bounds", &[bounds, vec![[77; 2]; 64]].concat())?;
        let conv = Convolution { channels, taps: &taps, tokens };
        let bcx = Block::input(gpu, (0, 0), 3 * channels, &bcx);
        let dy = Block::input(gpu, (0, 8), channels, &dy);
        let (y, dbcx) =
            (Block::output(gpu, (0, 8), channels, tokens), Block::output(gpu, (0, 0), 3 * channels, tokens));
        run(gpu, |rec| {
            short_conv::forward(rec, &conv, &y.rows, &bcx.rows, &bounds);
            short_conv::backward(rec, &conv, &dbcx.rows, &dy.rows, &bcx.rows, &bounds);
        })?;
        check.close(&format!("y {name}"), channels, &y.read(gpu, &name)?, &y_expected)?;
        check.close(&format!("dbcx {name}"), 3 * channels, &dbcx.read(gpu, &name)?, &dbcx_expected)?;
    }
    check.done()
}

/// One sequence in passes that continue each other, and many with a token each, as decoding reads them.
pub fn continued(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("continued short convolution", EXACT);
    for (channels, taps) in [(4, 3), (20, 4), (132, 3)] {
        let shape = ShortConv { channels, taps };
        let weights = values(3, channels * taps);
        let own = Taps::new(gpu, &shape, &weights)?;
        let all = [1, 1, 2, 1, 3, 5, 1, 1];
        let tokens: usize = all.iter().sum();
        let sequences = [1, 2].map(|seed| values(seed, (tokens + 1) * 3 * channels));
        let expected = |of: usize| {
            reference::short_conv::forward(&wide(&sequences[of]), &wide(&weights), &vec![0; tokens + 1])
        };
        let carried = Carried::for_each(gpu, [channels, 0, 0], 3)?;
        // Sequences begin where others ended.
        gpu.write(&carried.history, &vec![f32::MAX; (carried.history.size() / 4) as usize]);
        for (of, place) in [(0, 2), (1, 0)] {
            let (mut before, state) = (0, carried.sequence(place));
            for count in all {
                let part = &sequences[of][before * 3 * channels..][..count * 3 * channels];
                let bcx = Block::input(gpu, (0, 4), 3 * channels, part);
                let y = Block::output(gpu, (0, 0), channels, count);
                let past = gpu.upload("past", &[before as u32])?;
                let conv = Convolution { channels, taps: &own, tokens: count };
                run(gpu, |rec| short_conv::forward_carried(rec, &conv, &state, &past, &y.rows, &bcx.rows))?;
                let name = format!("C={channels} sequence {of}: {count} after {before}");
                let right = &expected(of)[before * channels..][..count * channels];
                check.close(&name, channels, &y.read(gpu, &name)?, right)?;
                before += count;
            }
        }
        let last = |of: usize| &sequences[of][tokens * 3 * channels..];
        let rows = [last(0), &sequences[0][..3 * channels], last(1)].concat();
        let table = gpu.upload("steps", &[[tokens as u32, 2], [0, NO_SEQUENCE], [tokens as u32, 0]])?;
        let (bcx, y) =
            (Block::input(gpu, (0, 4), 3 * channels, &rows), Block::output(gpu, (0, 0), channels, 3));
        let conv = Convolution { channels, taps: &own, tokens: 3 };
        run(gpu, |rec| short_conv::each(rec, &conv, &carried, &table, &y.rows, &bcx.rows))?;
        let of = |of: usize| expected(of)[tokens * channels..].to_vec();
        let right = [of(0), expected(0)[..channels].to_vec(), of(1)].concat();
        let name = format!("C={channels}: a token of each");
        check.close(&name, channels, &y.read(gpu, &name)?, &right)?;
    }
    check.done()
}
