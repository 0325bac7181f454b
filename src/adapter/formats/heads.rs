//! The order of a delta net's value heads. llama.cpp's files and memory have the heads that read one key head `Hk` heads apart;
//! transformers and mlx-lm have them side by side.

use crate::adapter::lora::Slot;
use crate::base::Module;
use crate::base::config::DeltaNet;

/// One of the two matrices of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::adapter) enum Half {
    A,
    B,
}

/// Values of a half in transformers' order, which differs only where rows of `B` or columns of `A` belong to value heads.
pub(super) fn side_by_side(half: Half, values: &[f32], slot: &Slot, delta: &DeltaNet) -> Option<Vec<f32>> {
    moved(half, values, slot, delta, |to, from, moved, values| moved[to].copy_from_slice(values[from]))
}

/// Undoes [`side_by_side`].
pub(super) fn apart(half: Half, values: &[f32], slot: &Slot, delta: &DeltaNet) -> Option<Vec<f32>> {
    moved(half, values, slot, delta, |to, from, moved, values| moved[from].copy_from_slice(values[to]))
}

/// The values with every head moved by `each`, which gets its places in transformers' order and in memory.
fn moved(
    half: Half,
    values: &[f32],
    slot: &Slot,
    delta: &DeltaNet,
    each: impl Fn(usize, usize, &mut [&mut [f32]], &[&[f32]]),
) -> Option<Vec<f32>> {
    let sharing = delta.value_heads / delta.key_heads;
    let (first, rows) = match (slot.module, half) {
        (Module::AttnQkv, Half::B) => (2 * delta.keys(), delta.head_size),
        (Module::AttnGate, Half::B) | (Module::SsmOut, Half::A) => (0, delta.head_size),
        (Module::SsmAlpha | Module::SsmBeta, Half::B) => (0, 1),
        _ => return None,
    };
    // B has its heads in rows; A, which is moved row by row, in columns.
    let (width, stretch) = match half {
        Half::A => (1, slot.in_features),
        Half::B => (values.len() / slot.out_features, values.len()),
    };
    let mut result = values.to_vec();
    for (result, values) in result.chunks_exact_mut(stretch).zip(values.chunks_exact(stretch)) {
        let mut heads: Vec<&mut [f32]> = result[first * width..].chunks_exact_mut(rows * width).collect();
        let stored: Vec<&[f32]> = values[first * width..].chunks_exact(rows * width).collect();
        for to in 0..delta.value_heads {
            each(to, to % sharing * delta.key_heads + to / sharing, &mut heads, &stored);
        }
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_that_share_a_key_head_become_neighbours() {
        let delta = DeltaNet { key_heads: 2, value_heads: 6, head_size: 1 };
        let slot = |module, out_features, in_features| Slot {
            layer: 0,
            module,
            out_features,
            in_features,
            experts: 1,
        };
        // Memory: heads 0, 2, 4 read key head 0.
        let stored = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        let together = [0.0, 2.0, 4.0, 1.0, 3.0, 5.0];
        let out = slot(Module::SsmOut, 9, 6);
        assert_eq!(side_by_side(Half::A, &stored, &out, &delta).as_deref(), Some(&together[..]));
        assert_eq!(apart(Half::A, &together, &out, &delta).as_deref(), Some(&stored[..]));
        assert_eq!(side_by_side(Half::B, &[0.0; 9], &out, &delta), None);
        let qkv = slot(Module::AttnQkv, 10, 7);
        let found = side_by_side(Half::B, &[[9.0; 4].as_slice(), &stored].concat(), &qkv, &delta);
        assert_eq!(found.as_deref(), Some(&[[9.0; 4].as_slice(), &together].concat()[..]));
    }
}
