//! Finds the fastest way to compute each product on a device, by trying.

use std::collections::{BTreeMap, BTreeSet};

use web_time::Instant;

use super::tiling::Tiling;
use super::{coop16, tiled};
use crate::base::formats::{GgmlType, random_blocks};
use crate::gpu::{Choice, Choices, Gpu, GpuError, Product, Recorder};
use crate::ops::pack::Packed;
use crate::ops::partial_sums::LEAST_STEPS;
use crate::ops::{Rows, Weight};

/// Seconds for all products together. When they are over, the rest are computed in the usual way.
const BUDGET: f64 = 5.0;

/// Longest side of a matrix that is tried. A longer one, of a vocabulary, fills every device in the usual way.
const LONGEST: usize = 32_768;

/// Seconds of one measurement, which is repeated.
const MEASURED: f64 = 0.004;

/// Measurements of a way, of which the shortest counts.
const ROUNDS: usize = 3;

/// Largest difference of two ways to compute a product, relative to its norm: they add the terms in another order.
const TOLERANCE: f64 = 1e-4;

/// A way replaces the usual one where it takes at most this share of its time: noise decides nothing.
const WORTH: f64 = 0.97;

/// The result of a search.
#[derive(Debug, Default)]
pub struct Found {
    /// A choice for each product, which the caller keeps: another search may find others.
    pub choices: Choices,
    /// Ways that compute something else than the usual one, in words. They were not chosen.
    pub wrong: Vec<String>,
}

/// Finds a choice for each of `products`, those of the most multiplications first. Takes up to some 300 MB on the device meanwhile.
pub async fn tune(gpu: &Gpu, products: impl IntoIterator<Item = Product>) -> Result<Found, GpuError> {
    let gpu = &gpu.with_kernels(gpu.kernels());
    let mut products: Vec<Product> = products.into_iter().collect();
    products.sort_by_key(|p| std::cmp::Reverse(p.rows * p.columns * p.summed));
    let samples: BTreeSet<Product> = products.iter().map(|product| product.sample()).collect();
    let samples = samples.into_iter().map(|sample| Trial::with_values(gpu, sample));
    let samples: Vec<Trial> = samples.collect::<Result<_, GpuError>>()?;
    compile(gpu, &samples)?;
    let (mut found, mut sound) = (Found::default(), BTreeMap::new());
    for sample in samples {
        sound.insert(sample.product, sample.sound(&mut found.wrong).await?);
    }
    let started = Instant::now();
    for product in products {
        let is_tried =
            started.elapsed().as_secs_f64() < BUDGET && product.matrix().iter().all(|side| *side <= LONGEST);
        let choice = match is_tried {
            true => Trial::new(gpu, product)?.fastest(&sound[&product.sample()])?,
            false => Tiling::of(&product).usual(gpu, &product),
        };
        found.choices.insert(product.to_string(), choice);
    }
    Ok(found)
}

/// Compiles all kernels for these products in parallel, which takes longer than to time them.
fn compile(gpu: &Gpu, samples: &[Trial]) -> Result<(), GpuError> {
    let mut rec = Recorder::ahead(gpu);
    for sample in samples {
        for choice in sample.tiles() {
            sample.choose(choice);
            sample.record(&mut rec);
        }
    }
    rec.compile().map(drop)
}

/// One product.
struct Trial<'g> {
    gpu: &'g Gpu,
    tiling: &'static Tiling,
    product: Product,
    weight: Weight,
    x: Operand,
    y: Rows,
}

enum Operand {
    Rows(Rows),
    Packed(Packed),
}

impl<'g> Trial<'g> {
    /// A product with operands of zeros: values do not change the time.
    fn new(gpu: &'g Gpu, product: Product) -> Result<Trial<'g>, GpuError> {
        let ty = format(&product);
        let bytes = product.matrix().iter().product::<usize>() / ty.block_len() * ty.block_bytes();
        Trial::with_weight(gpu, product, &vec![0; bytes])
    }

    /// A product with random operands.
    fn with_values(gpu: &'g Gpu, product: Product) -> Result<Trial<'g>, GpuError> {
        let ty = format(&product);
        let blocks = random_blocks(ty, product.matrix().iter().product::<usize>() / ty.block_len(), 1);
        let (rows, summed) = (product.rows, product.summed);
        let values: Vec<f32> = (0..rows * summed).map(|i| (i as f32 * 1.7).sin()).collect();
        let x = Rows { buffer: gpu.upload("trial", &values)?, stride: summed, start: 0 };
        let mut trial = Trial::with_weight(gpu, product, &blocks)?;
        match &mut trial.x {
            Operand::Rows(zeros) => *zeros = x,
            Operand::Packed(packed) => {
                let mut rec = Recorder::new(gpu);
                packed.pack(&mut rec, x.all(), summed, rows);
                rec.submit()?;
            }
        }
        Ok(trial)
    }

    fn with_weight(gpu: &'g Gpu, product: Product, data: &[u8]) -> Result<Trial<'g>, GpuError> {
        let (rows, summed, [outputs, inputs]) = (product.rows, product.summed, product.matrix());
        Ok(Trial {
            gpu,
            tiling: Tiling::of(&product),
            product,
            weight: Weight::upload(gpu, "trial", format(&product), outputs, inputs, data)?,
            x: match gpu.kernels().reads_tiles() {
                true => Operand::Packed(Packed::new(gpu, "trial", rows, summed)?),
                false => Operand::Rows(Rows::new(gpu, "trial", rows, summed)?),
            },
            y: Rows::new(gpu, "trial", rows, product.columns)?,
        })
    }

    /// The tiles and orders that compute what the usual ones do. The others are added to `wrong`.
    async fn sound(&self, wrong: &mut Vec<String>) -> Result<Vec<Choice>, GpuError> {
        let (mut sound, mut expected) = (Vec::new(), Vec::new());
        for choice in self.tiles() {
            let choice = Choice { parts: 3, ..choice };
            let y = self.result(choice).await?;
            if expected.is_empty() {
                expected = y.clone();
            }
            let square =
                |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x * x)).sum::<f64>();
            let difference = square(&mut y.iter().zip(&expected).map(|(y, expected)| y - expected));
            if difference <= TOLERANCE.powi(2) * square(&mut expected.iter().copied()) {
                sound.push(choice);
            } else {
                wrong.push(format!("{} in tiles of {} rows", self.product, choice.tile_rows));
            }
        }
        Ok(sound)
    }

    /// The product, computed in one way.
    async fn result(&self, choice: Choice) -> Result<Vec<f32>, GpuError> {
        self.choose(choice);
        let mut rec = Recorder::new(self.gpu);
        self.record(&mut rec);
        rec.submit()?;
        self.gpu.read(&self.y.buffer, self.product.rows * self.y.stride).await
    }

    /// Every tile and order, with the usual parts; the usual one first.
    fn tiles(&self) -> impl Iterator<Item = Choice> {
        let usual = |tile_rows| self.tiling.in_rows(self.gpu, &self.product, tile_rows);
        let of = move |&tile_rows| [false, true].map(|by_columns| Choice { by_columns, ..usual(tile_rows) });
        self.tiling.rows.iter().flat_map(of)
    }

    /// First the best tiles and their order, then the best number of parts for these.
    fn fastest(&self, ways: &[Choice]) -> Result<Choice, GpuError> {
        let first = self.tiling.usual(self.gpu, &self.product);
        let tile = |choice: &Choice| (choice.tile_rows, choice.by_columns);
        let is_sound = |choice: &Choice| ways.iter().any(|way| tile(way) == tile(choice));
        let best = self.best_of(self.tiles().filter(is_sound).filter(|choice| self.has_order(choice)))?;
        let most = (self.product.summed.div_ceil(self.tiling.steps) / LEAST_STEPS).max(1) as u32;
        let parts = [1, best.parts / 2, best.parts, best.parts * 3 / 2, best.parts * 2, best.parts * 3];
        let mut parts = parts.map(|parts| parts.clamp(1, most)).to_vec();
        parts.sort();
        parts.dedup();
        let best = self.best_of(parts.into_iter().map(|parts| Choice { parts, ..best }))?;
        // Once more, one after the other: the device may have changed its clock meanwhile.
        let times = [self.seconds(best)?, self.seconds(first)?];
        Ok(if times[0] <= WORTH * times[1] { best } else { first })
    }

    /// Whether columns of tiles are another order than rows of tiles.
    fn has_order(&self, choice: &Choice) -> bool {
        let tiles = self.tiling.tiles(choice.tile_rows, self.product.rows, self.product.columns);
        !choice.by_columns || tiles.iter().all(|tiles| *tiles > 1)
    }

    fn best_of(&self, choices: impl Iterator<Item = Choice>) -> Result<Choice, GpuError> {
        let timed = choices.map(|choice| Ok((self.seconds(choice)?, choice)));
        let timed: Vec<(f64, Choice)> = timed.collect::<Result<_, GpuError>>()?;
        let best = timed.into_iter().min_by(|(a, _), (b, _)| a.total_cmp(b));
        Ok(best.expect("there is the usual choice").1)
    }

    fn choose(&self, choice: Choice) {
        self.gpu.choose(Choices::from([(self.product.to_string(), choice)]));
    }

    /// Seconds of the product, with the sum of its parts.
    fn seconds(&self, choice: Choice) -> Result<f64, GpuError> {
        self.choose(choice);
        self.run(1)?; // compiles the kernel
        let once = self.run(1)?;
        if once > MEASURED {
            return Ok(once);
        }
        let repeated = (MEASURED / once.max(1e-5)).ceil().min(100.0) as usize;
        let rounds = (0..ROUNDS).map(|_| self.run(repeated));
        let rounds: Vec<f64> = rounds.collect::<Result<_, GpuError>>()?;
        Ok(rounds.into_iter().fold(f64::INFINITY, f64::min) / repeated as f64)
    }

    /// Seconds of the product `count` times.
    fn run(&self, count: usize) -> Result<f64, GpuError> {
        let mut rec = Recorder::lasting(self.gpu);
        (0..count).for_each(|_| self.record(&mut rec));
        let recording = rec.keep();
        let prepared = self.gpu.prepare(&[&recording]);
        self.gpu.wait()?;
        let started = Instant::now();
        self.gpu.submit(prepared)?;
        self.gpu.wait()?;
        Ok(started.elapsed().as_secs_f64())
    }

    fn record(&self, rec: &mut Recorder) {
        let (y, w, rows) = (self.y.all(), &self.weight, self.product.rows);
        match (&self.x, self.product.entry) {
            (Operand::Rows(x), "forward") => tiled::forward(rec, y, x.all(), w, 1.0, None, rows),
            (Operand::Rows(x), _) => tiled::backward(rec, y, x.all(), w, 1.0, None, rows, false),
            (Operand::Packed(x), "forward") => coop16::forward(rec, y, x, w, 1.0, None, rows),
            (Operand::Packed(x), _) => coop16::backward(rec, y, x, w, 1.0, None, rows, false),
        }
    }
}

fn format(product: &Product) -> GgmlType {
    let mut formats = GgmlType::SUPPORTED.into_iter();
    formats.find(|ty| ty.reader() == product.format).expect("a product reads a supported format")
}

impl Product {
    /// A product of a few rows that the same kernels compute, of odd size.
    fn sample(&self) -> Product {
        let (columns, summed) = if self.entry == "forward" { (132, 512) } else { (512, 132) };
        Product { rows: 100, columns, summed, ..*self }
    }

    /// Rows and columns of its matrix.
    fn matrix(&self) -> [usize; 2] {
        match self.entry {
            "forward" => [self.columns, self.summed],
            _ => [self.summed, self.columns],
        }
    }
}
