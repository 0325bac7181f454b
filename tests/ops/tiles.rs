//! Products in every way that a device may choose, and the search for the fastest.

use rullama_train::base::formats::GgmlType;
use rullama_train::cases::product::{self, Shape};
use rullama_train::gpu::{Choice, Fault, Gpu, GpuError, Product, Tier};
use rullama_train::ops::linear::tiling::{COOP8, COOP16, TILED, Tiling};
use rullama_train::ops::linear::tune::{Found, tune};

use super::check::Outcome;

/// Parts of every sum: the longest are cut once more than into halves.
const PARTS: u32 = 3;

/// Runs a test of products with the smallest tiles of its kernels, column after column of them.
pub fn others(gpu: &Gpu, test: super::Run) -> Outcome {
    let tiling = tiling(gpu);
    let tile_rows = *tiling.rows.last().expect("kernels have tiles");
    let choice = Choice { tile_rows, by_columns: true, parts: PARTS };
    let other = gpu.with_kernels(gpu.kernels());
    other.choose(products(tiling).iter().map(|product| (product.to_string(), choice)).collect());
    test(&other)
}

/// A choice for each product that the kernels offer.
pub fn found(gpu: &Gpu) -> Outcome {
    let tiling = tiling(gpu);
    let Found { choices, wrong } = search(gpu)?;
    let offered =
        |choice: &Choice| tiling.rows.contains(&choice.tile_rows) && (1..=16).contains(&choice.parts);
    if choices.len() != 2 || !wrong.is_empty() || !choices.values().all(offered) {
        return Err(format!("{choices:?}, wrong: {wrong:?}").into());
    }
    Ok(())
}

/// Tiles of 32 rows that lie 31 rows apart: they are reported, and not chosen.
pub fn wrong(gpu: &Gpu) -> Outcome {
    let (right, wrong) = ("const ROWS: u32 = 32u * 1u;", "const ROWS: u32 = 31u * 1u;");
    gpu.plant(Some(Fault { shader: "linear/tiled", right, wrong }));
    let found = search(gpu);
    gpu.plant(None);
    let Found { choices, wrong } = found?;
    // Both orders, forward and backward.
    if wrong.len() != 4 || !choices.values().all(|choice| choice.tile_rows == 64) {
        return Err(format!("{choices:?}, wrong: {wrong:?}").into());
    }
    Ok(())
}

/// The fastest ways to compute a product, forward and backward.
fn search(gpu: &Gpu) -> Result<Found, GpuError> {
    let product = |entry, columns, summed| Product {
        shader: tiling(gpu).shader,
        entry,
        format: GgmlType::Q4_K.reader(),
        rows: 64,
        columns,
        summed,
    };
    pollster::block_on(tune(gpu, [product("forward", 256, 512), product("backward", 512, 256)]))
}

fn tiling(gpu: &Gpu) -> &'static Tiling {
    match gpu.kernels().tier() {
        Tier::F32 | Tier::F16 => &TILED,
        Tier::Coop8 => &COOP8,
        Tier::Coop16 => &COOP16,
    }
}

/// Every product of the tests: of whole matrices, or of pieces of 64 rows.
fn products(tiling: &'static Tiling) -> Vec<Product> {
    let shapes = GgmlType::SUPPORTED
        .into_iter()
        .flat_map(|ty| product::of_rows(ty).into_iter().chain(product::of_tiles(ty)).collect::<Vec<Shape>>());
    let mut products = Vec::new();
    for Shape { ty, tokens: rows, k, n, tiled, .. } in shapes {
        let (format, shader) = (ty.reader(), tiling.shader);
        for outputs in if tiled { vec![64, n % 64] } else { vec![n] } {
            let [columns, inputs] = [outputs, k].map(|count| count.next_multiple_of(4));
            products.push(Product { shader, entry: "forward", format, rows, columns, summed: k });
            products.push(Product {
                shader,
                entry: "backward",
                format,
                rows,
                columns: inputs,
                summed: outputs,
            });
        }
    }
    products
}
