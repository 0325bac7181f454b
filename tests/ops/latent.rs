//! Heads of keys and values of a latent vector.

use rullama_train::gpu::Gpu;
use rullama_train::ops::latent::{self, Parts};
use rullama_train::reference;

use super::check::{Block, Check, Outcome, Tolerance, run, values, wide};

/// Sums over heads; all else is copied.
const EXACT: Tolerance = Tolerance { norm: 5e-7, relative: 1e-6, absolute: 1e-6 };

/// Heads of published sizes and small ones, with and without a shared part and zeros behind.
pub fn both_ways(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("heads of latent vectors", EXACT);
    for (heads, size, shared, own, tokens) in
        [(1, 8, 4, 4, 1), (3, 12, 4, 4, 5), (4, 16, 8, 8, 67), (5, 24, 0, 20, 33), (16, 192, 64, 128, 9)]
    {
        let name = format!("H={heads} K={size} shared={shared} own={own} T={tokens}");
        let parts = Parts { heads, size, shared, own };
        // The shared part begins behind other columns.
        let before = 8;
        let all_shared = values(1, tokens * (before + shared));
        let rows = all_shared.chunks(before + shared);
        let shared_values: Vec<f32> = rows.flat_map(|row| row[before..].to_vec()).collect();
        let (own_values, dwhole) = (values(2, tokens * heads * own), values(3, tokens * heads * size));
        let expected =
            reference::latent::join(&wide(&own_values), &wide(&shared_values), tokens, heads, size);
        let [down_expected, dshared_expected] =
            reference::latent::backward(&wide(&dwhole), tokens, heads, [own, shared]);
        let from = Block::input(gpu, (0, 0), before + shared, &all_shared);
        let own_rows = Block::input(gpu, (0, 8), heads * own, &own_values);
        let dwhole = Block::input(gpu, (0, 4), heads * size, &dwhole);
        let whole = Block::output(gpu, (0, 4), heads * size, tokens);
        let down = Block::output(gpu, (0, 8), heads * own, tokens);
        let dshared = Block::output(gpu, (0, 4), shared.max(4), tokens);
        run(gpu, |rec| {
            let of_all = (shared > 0).then(|| from.rows.from(before));
            latent::join(rec, &parts, whole.rows.all(), &own_rows.rows, of_all, tokens);
            latent::part(rec, &parts, &down.rows, &dwhole.rows, tokens);
            if shared > 0 {
                latent::sum(rec, &parts, dshared.rows.all(), &dwhole.rows, tokens);
            }
        })?;
        check.close(&format!("whole {name}"), heads * size, &whole.read(gpu, &name)?, &expected)?;
        check.close(&format!("own {name}"), heads * own, &down.read(gpu, &name)?, &down_expected)?;
        if shared > 0 {
            let found = dshared.read(gpu, &name)?;
            check.close(&format!("shared {name}"), shared, &found, &dshared_expected)?;
        }
    }
    check.done()
}
