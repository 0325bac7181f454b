//! Heads of keys and values of a latent vector.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{values, wide};
use super::tolerance::Tolerance;
use crate::gpu::GpuError;
use crate::ops::latent::{self, Parts};
use crate::reference::latent as reference;

/// Sums over heads; all else is copied.
const SUMS: Tolerance = Tolerance::new(5e-7, 1e-6, 1e-6);
/// Columns before the shared part.
const BEFORE: usize = 8;

pub const CASES: [Case; 1] = [Case {
    op: "latent",
    name: "heads of latent vectors",
    needs: Needs::Any,
    variants: super::F32,
    shapes: &Shapes {
        small: &[[3, 16, 4, 12, 21], [3, 16, 0, 8, 21]],
        // Heads of published sizes among them.
        more: &[
            [1, 8, 4, 4, 1],
            [3, 12, 4, 4, 5],
            [4, 16, 8, 8, 67],
            [5, 24, 0, 20, 33],
            [16, 192, 64, 128, 9],
        ],
        check: both_ways,
    },
}];

/// Heads, their size, their shared and own parts, and tokens: with and without a shared part and zeros behind.
fn both_ways(b: &mut Bench, &[heads, size, shared, own, tokens]: &[usize; 5]) -> Result<(), GpuError> {
    let name = format!("H={heads} K={size} shared={shared} own={own} T={tokens}");
    let parts = Parts { heads, size, shared, own };
    let all_shared = values(1, tokens * (BEFORE + shared));
    let (own_values, dwhole) = (values(2, tokens * heads * own), values(3, tokens * heads * size));
    let from = b.input(BEFORE + shared, &all_shared)?;
    let own_block = b.input_within((0, 8), heads * own, &own_values)?;
    let dwhole_block = b.input_within((0, 4), heads * size, &dwhole)?;
    let whole = b.output_within((0, 4), heads * size, tokens)?;
    let down = b.output_within((0, 8), heads * own, tokens)?;
    let dshared = b.output_within((0, 4), shared.max(4), tokens)?;
    b.run(|rec| {
        let of_all = (shared > 0).then(|| from.rows().from(BEFORE));
        latent::join(rec, &parts, whole.view(), own_block.rows(), of_all, tokens);
        latent::part(rec, &parts, down.rows(), dwhole_block.rows(), tokens);
        if shared > 0 {
            latent::sum(rec, &parts, dshared.view(), dwhole_block.rows(), tokens);
        }
    })?;
    let rows = all_shared.chunks(BEFORE + shared);
    let shared_values: Vec<f32> = rows.flat_map(|row| row[BEFORE..].to_vec()).collect();
    let expected = reference::join(&wide(&own_values), &wide(&shared_values), tokens, heads, size);
    let [down_expected, dshared_expected] = reference::backward(&wide(&dwhole), tokens, heads, [own, shared]);
    b.expect(format!("whole {name}"), &whole, expected, SUMS);
    b.expect(format!("own {name}"), &down, down_expected, SUMS);
    if shared > 0 {
        b.expect(format!("shared {name}"), &dshared, dshared_expected, SUMS);
    }
    Ok(())
}
