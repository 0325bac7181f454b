//! Tiles of the products with quantized matrices, on each variant of their kernels, and the usual way through them.

use crate::gpu::{Choice, Gpu, Product, Recorder};
use crate::ops::STEPS;
use crate::ops::partial_sums::{WIDE, usual_parts};

/// The tiles of one shader.
pub struct Tiling {
    /// File in `shaders/`, without `.wgsl`.
    pub shader: &'static str,
    /// Rows that a tile can have: the usual number first, the fewest last.
    pub rows: &'static [u32],
    /// Its columns.
    pub columns: u32,
    /// Steps of the sum that it stages at a time.
    pub steps: usize,
    /// Workgroups of 64×64 results that keep a device as busy as one of its workgroups.
    pub wide: usize,
}

/// On f32 rows.
pub static TILED: Tiling =
    Tiling { shader: "linear/tiled", rows: &[64, 32], columns: 64, steps: STEPS, wide: 1 };

/// On cooperative matrices of 8×8.
pub static COOP8: Tiling = Tiling { shader: "linear/coop8", rows: &[64], columns: 64, steps: 32, wide: 1 };

/// On cooperative matrices of 16×16.
pub static COOP16: Tiling =
    Tiling { shader: "linear/coop16", rows: &[128, 64], columns: 128, steps: 32, wide: WIDE };

impl Tiling {
    /// The tiles of the shader of a recorded product.
    pub fn of(product: &Product) -> &'static Tiling {
        let mut all = [&TILED, &COOP8, &COOP16].into_iter();
        all.find(|tiling| tiling.shader == product.shader).expect("a recorded product has tiles")
    }

    /// Tiles of a result `[rows, columns]` across and down.
    pub fn tiles(&self, tile_rows: u32, rows: usize, columns: usize) -> [u32; 2] {
        [(columns as u32).div_ceil(self.columns), (rows as u32).div_ceil(tile_rows)]
    }

    /// Row of tiles after row, of the usual height.
    pub fn usual(&self, gpu: &Gpu, product: &Product) -> Choice {
        self.in_rows(gpu, product, self.rows[0])
    }

    /// Row of tiles after row, with the usual parts for tiles of `tile_rows` rows.
    pub fn in_rows(&self, gpu: &Gpu, product: &Product, tile_rows: u32) -> Choice {
        let [across, down] = self.tiles(tile_rows, product.rows, product.columns);
        let wide = (self.wide * tile_rows as usize / self.rows[0] as usize).max(1);
        let parts = usual_parts(gpu, across * down, product.summed.div_ceil(self.steps), wide);
        Choice { tile_rows, by_columns: false, parts: parts as u32 }
    }

    /// The device's choice for `product`, or the usual one.
    pub fn choose(&self, rec: &mut Recorder, product: Product) -> Choice {
        let usual = self.usual(rec.gpu(), &product);
        let choice = rec.choice(product).unwrap_or(usual);
        if self.rows.contains(&choice.tile_rows) { choice } else { usual }
    }

    /// The parts of a product of `tiles` tiles with `others` workgroups beside it: one fewer than chosen, where all of them fit on the device
    /// at once then, and do not otherwise.
    pub fn parts_beside(&self, gpu: &Gpu, choice: Choice, tiles: u32, others: u32) -> u32 {
        let places = (gpu.kernels().workgroups_to_fill() / self.wide) as u32;
        let fit = |parts: u32| tiles * parts + others <= places;
        let may_change = others > 0 && choice.parts > 1 && choice.tile_rows == self.rows[0];
        match may_change && !fit(choice.parts) && fit(choice.parts - 1) {
            true => choice.parts - 1,
            false => choice.parts,
        }
    }

    /// The shader's sizes.
    pub fn sizes(&self, choice: Choice) -> [(&'static str, u32); 2] {
        let lowest = self.rows[self.rows.len() - 1];
        [("HIGH", choice.tile_rows / lowest), ("TURNED", u32::from(choice.by_columns))]
    }

    /// Workgroups of a product in `parts` parts.
    pub fn workgroups(&self, choice: Choice, rows: u32, columns: u32, parts: u32) -> [u32; 3] {
        let [across, down] = self.tiles(choice.tile_rows, rows as usize, columns as usize);
        if choice.by_columns { [down, across, parts] } else { [across, down, parts] }
    }
}
