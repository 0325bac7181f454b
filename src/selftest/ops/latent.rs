//! Heads of keys and values of a latent vector.

use crate::gpu::GpuError;
use crate::ops::latent::{self, Parts};
use crate::reference;
use crate::selftest::bench::{Bench, F32, values, wide};

/// Keys with a shared part, which begins behind other columns, and values with zeros behind.
pub fn both_ways(b: &mut Bench) -> Result<(), GpuError> {
    let (heads, tokens) = (3, 21);
    for (shared, own) in [(4, 12), (0, 8)] {
        let size = 16;
        let parts = Parts { heads, size, shared, own };
        let all_shared = values(1, tokens * (shared + 8));
        let columns = |row: &[f32]| row[8..].to_vec();
        let shared_values: Vec<f32> = all_shared.chunks(shared + 8).flat_map(columns).collect();
        let (own_values, dwhole) = (values(2, tokens * heads * own), values(3, tokens * heads * size));
        let whole_expected =
            reference::latent::join(&wide(&own_values), &wide(&shared_values), tokens, heads, size);
        let [down_expected, dshared_expected] =
            reference::latent::backward(&wide(&dwhole), tokens, heads, [own, shared]);
        let input = b.input(shared + 8, &all_shared)?;
        let own_rows = b.input(heads * own, &own_values)?;
        let dwhole = b.input(heads * size, &dwhole)?;
        let whole = b.output(heads * size, tokens)?;
        let down = b.output(heads * own, tokens)?;
        let dshared = b.output(shared.max(4), tokens)?;
        b.run(|rec| {
            let from = (shared > 0).then(|| input.rows().from(8));
            latent::join(rec, &parts, whole.rows().all(), own_rows.rows(), from, tokens);
            latent::part(rec, &parts, down.rows(), dwhole.rows(), tokens);
            if shared > 0 {
                latent::sum(rec, &parts, dshared.rows().all(), dwhole.rows(), tokens);
            }
        })?;
        b.expect(format!("whole heads, {shared} shared"), &whole, whole_expected, F32);
        b.expect(format!("own part of {own}"), &down, down_expected, F32);
        if shared > 0 {
            b.expect("shared part", &dshared, dshared_expected, F32);
        }
    }
    Ok(())
}
