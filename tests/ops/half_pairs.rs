//! Heads of keys and of values in one dispatch: the bits are those of two, which `half_heads` checks.

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::gpu::{Gpu, GpuError};
use rullama_train::ops::act::Act;
use rullama_train::ops::heads::Rotation;
use rullama_train::ops::heads::coop16 as coop_heads;
use rullama_train::ops::heads::coop16_backward as coop_heads_backward;
use rullama_train::ops::pack::Packed;
use rullama_train::ops::rms_norm::Norm;
use rullama_train::ops::{Rows, rope};

use super::check::{Block, Outcome, run, values};
use super::half::{EPS, make_stale};

/// Tokens, heads, their size, rotated values of keys, and whether keys and values are normed: keys with weights, values without.
const CASES: [(usize, usize, usize, usize, [bool; 2]); 6] = [
    (1, 1, 16, 0, [true, true]),
    (33, 2, 256, 64, [true, true]),
    (17, 1, 512, 512, [true, true]),
    (33, 8, 128, 128, [true, false]),
    (7, 3, 64, 24, [false, false]),
    (5, 20, 16, 16, [false, true]), // more heads than a workgroup takes at once
];

/// The storage of the heads that a kernel reads.
#[derive(Clone, Copy, Debug)]
enum Source {
    InF32,
    PackedByReader,
    Packed,
}

/// Keys and values of one case.
struct Pair<'a> {
    gpu: &'a Gpu,
    name: String,
    tokens: usize,
    heads: usize,
    width: usize,
    norms: [Norm; 2],
    positions: wgpu::Buffer,
    table: Option<rope::Table>,
    x: [Rows; 2],
}

impl<'a> Pair<'a> {
    fn new(gpu: &'a Gpu, case: (usize, usize, usize, usize, [bool; 2])) -> Result<Pair<'a>, GpuError> {
        let (tokens, heads, size, turned, normed) = case;
        let w = values(1, size);
        let norm = |is_normed: bool, w: Option<&[f32]>| match is_normed {
            true => Norm::new(gpu, "norm", w, size, EPS),
            false => Ok(Norm::identity(size)),
        };
        let positions: Vec<u32> = (0..tokens as u32).map(|t| t % 13).collect();
        let frequencies: Vec<f64> =
            (0..turned / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / turned as f64)).collect();
        let table = (turned > 0).then(|| rope::Table::new(gpu, &frequencies, 1.0, 13));
        let width = heads * size;
        Ok(Pair {
            gpu,
            name: format!("T={tokens} heads={heads} K={size} turned={turned} normed={normed:?}"),
            tokens,
            heads,
            width,
            norms: [norm(normed[0], Some(&w))?, norm(normed[1], None)?],
            positions: gpu.upload("positions", &positions)?,
            table: table.transpose()?,
            x: [2, 3].map(|seed| Block::input(gpu, (0, 0), width, &values(seed, tokens * width)).rows),
        })
    }

    /// A pair with a norm of keys that takes all heads of a token together, or whose weights stand behind the rotary embedding.
    fn normed_otherwise(gpu: &'a Gpu, of_rows: bool) -> Result<Pair<'a>, GpuError> {
        let mut pair = Pair::new(gpu, CASES[3])?;
        let norm = match of_rows {
            true => Norm::new(gpu, "norm", Some(&values(1, pair.width)), pair.width, EPS)?,
            false => pair.norms[0].clone(),
        };
        pair.norms[0] = Norm { of_rows, behind_rotation: !of_rows, ..norm };
        pair.name = format!("{}, of rows={of_rows}", pair.name);
        Ok(pair)
    }

    fn turn(&self) -> Option<Rotation<'_>> {
        self.table.as_ref().map(|table| (&self.positions, table))
    }

    fn room(&self) -> [Packed; 2] {
        [(); 2].map(|()| {
            let packed = Packed::new(self.gpu, "pair", self.tokens, self.width).expect("it is small");
            make_stale(self.gpu, &packed, self.width, self.tokens);
            packed
        })
    }

    /// Keys and values, and the tiles that they are in or that the kernel writes.
    fn sources(&self, source: Source) -> Result<([Act; 2], [Packed; 2]), Failed> {
        let tiles = self.room();
        if let Source::Packed = source {
            run(self.gpu, |rec| {
                self.x.iter().zip(&tiles).for_each(|(x, t)| t.pack(rec, x.all(), self.width, self.tokens));
            })?;
        }
        let act = |i: usize| match source {
            Source::InF32 => self.x[i].clone().into(),
            Source::PackedByReader => Act::tiled(tiles[i].clone(), None).packed_by_reader(self.x[i].clone()),
            Source::Packed => Act::tiled(tiles[i].clone(), None),
        };
        Ok(([0, 1].map(act), tiles))
    }

    fn same(&self, what: &str, found: &[Packed; 2], expected: &[Packed; 2]) -> Outcome {
        let halves = self.width / 16 * self.tokens.div_ceil(16) * 256;
        let bits = |packed: &Packed| -> Result<(Vec<u16>, Vec<u32>), GpuError> {
            let matrices = block_on(self.gpu.read(packed.bind(0).buffer, halves))?;
            Ok((matrices, block_on(self.gpu.read(packed.bind_factors(0).buffer, self.tokens))?))
        };
        for (kind, (found, expected)) in ["keys", "values"].into_iter().zip(found.iter().zip(expected)) {
            if bits(found)? != bits(expected)? {
                return Err(format!("{}, {what}: other bits of {kind} than apart", self.name).into());
            }
        }
        Ok(())
    }
}

/// Norms of keys and values, and the rotary embedding of keys.
pub fn forward(gpu: &Gpu) -> Outcome {
    let usual = CASES.map(|case| Pair::new(gpu, case));
    for pair in usual.into_iter().chain([true, false].map(|of_rows| Pair::normed_otherwise(gpu, of_rows))) {
        let pair = pair?;
        for source in [Source::InF32, Source::PackedByReader, Source::Packed] {
            let [(x, stored), (x_apart, stored_apart)] = [pair.sources(source)?, pair.sources(source)?];
            let [both, apart] = [pair.room(), pair.room()];
            let turns = [pair.turn(), None];
            run(gpu, |rec| {
                let norms = pair.norms.each_ref();
                let (y, x) = (both.each_ref(), x.each_ref());
                coop_heads::forward_both(rec, y, x, norms, turns[0], pair.heads, pair.tokens);
                for i in 0..2 {
                    let (y, x) = (&apart[i], &x_apart[i]);
                    coop_heads::forward(rec, y, x, norms[i], turns[i], pair.heads, pair.tokens);
                }
            })?;
            pair.same(&format!("{source:?}"), &both, &apart)?;
            pair.same(&format!("{source:?}, rounded"), &stored, &stored_apart)?;
        }
    }
    Ok(())
}

/// Their gradients.
pub fn backward(gpu: &Gpu) -> Outcome {
    for case in CASES {
        let pair = Pair::new(gpu, case)?;
        let dy = [4, 5].map(|seed| values(seed, pair.tokens * pair.width));
        let dy = dy.map(|dy| Block::input(gpu, (0, 0), pair.width, &dy).rows);
        for source in [Source::InF32, Source::Packed] {
            let (x, _) = pair.sources(source)?;
            let [both, apart] = [pair.room(), pair.room()];
            let turns = [pair.turn(), None];
            run(gpu, |rec| {
                let (norms, x) = (pair.norms.each_ref(), x.each_ref());
                let (dx, dys, heads, tokens) = (both.each_ref(), dy.each_ref(), pair.heads, pair.tokens);
                coop_heads_backward::backward_both(rec, dx, dys, x, norms, turns[0], heads, tokens);
                for i in 0..2 {
                    let (dx, dy) = (&apart[i], dys[i]);
                    coop_heads_backward::backward(rec, dx, dy, x[i], norms[i], turns[i], heads, tokens);
                }
            })?;
            pair.same(&format!("{source:?}"), &both, &apart)?;
        }
    }
    Ok(())
}
