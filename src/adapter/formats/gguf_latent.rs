//! GGUF LoRA files for keys and values of a latent vector that the base has apart: an adapter for the matrix of each head.
//!
//! One `A` `[R, Rk]` and one `B` adapt all of them. The matrix of a head's values has `A` and its rows of `B`. That of its keys is transposed,
//! so its own `A` is the transpose of its rows of `B`, `[R, K − n]`, and its own `B` the transpose of `A`, `[Rk, R]`.

use super::gguf_joined::{HALVES, Joined};
use super::layout::{Half, transpose};
use crate::adapter::lora::{Pair, Slot};
use crate::base::config::{Config, Latent};
use crate::base::{Gguf, Module, TensorInfo};

/// The matrices of the file for the pair of keys and values of `heads` heads.
pub(super) fn parts(
    slot: &Slot,
    pair: &Pair,
    latent: &Latent,
    heads: usize,
    rank: usize,
) -> Vec<(Slot, Half, Vec<f32>)> {
    let (keys, values) = pair.b.split_at(heads * latent.key_size * rank);
    let of_each = |module, out_features, in_features| Slot {
        module,
        out_features,
        in_features,
        experts: heads,
        ..*slot
    };
    let of_keys = of_each(Module::AttnKB, latent.rank, latent.key_size);
    let of_values = of_each(Module::AttnVB, latent.value_size, latent.rank);
    let transposed = keys.chunks_exact(latent.key_size * rank).flat_map(|head| transpose(head, rank));
    vec![
        (of_keys, Half::A, transposed.collect()),
        (of_keys, Half::B, transpose(&pair.a, latent.rank).repeat(heads)),
        (of_values, Half::A, pair.a.repeat(heads)),
        (of_values, Half::B, values.to_vec()),
    ]
}

/// [`join_layer`] of every layer whose base has keys and values of a latent vector apart.
pub(super) fn join(gguf: &Gguf, config: &Config) -> Result<Vec<Joined>, String> {
    let mut joined = Vec::new();
    for (layer, l) in config.layers.iter().enumerate() {
        if let Some(latent) = l.latent.filter(|latent| latent.apart) {
            joined.extend(join_layer(gguf, layer, &latent, l.heads)?);
        }
    }
    Ok(joined)
}

/// `A` and `B` of all keys and values of a layer, from the tensors that [`parts`] describes; none where the file has none of them.
fn join_layer(gguf: &Gguf, layer: usize, latent: &Latent, heads: usize) -> Result<Vec<Joined>, String> {
    let name = |module: Module, half: &str| format!("blk.{layer}.{}.weight.{half}", module.gguf_name());
    let names = [Module::AttnKB, Module::AttnVB].map(|module| HALVES.map(|half| name(module, half)));
    let found: Vec<&TensorInfo> = names.iter().flatten().filter_map(|name| gguf.tensor(name)).collect();
    let Some(first) = found.first() else { return Ok(Vec::new()) };
    let &[keys_a, keys_b, values_a, values_b] = &found[..] else {
        return Err(format!("{} has no twin; export the adapter again", first.name));
    };
    let rank = values_a.shape.get(1).copied().unwrap_or(0);
    let (keys, values, vector) = (latent.key_size, latent.value_size, latent.rank);
    for (tensor, shape) in [
        (keys_a, [keys, rank, heads]),
        (keys_b, [rank, vector, heads]),
        (values_a, [vector, rank, heads]),
        (values_b, [rank, values, heads]),
    ] {
        if tensor.shape != shape || tensor.ty != first.ty || tensor.ty.block_len() != 1 {
            return Err(format!(
                "{} is {:?} of type {}, expected {shape:?} of unquantized values, alike in all four tensors; export the adapter again",
                tensor.name,
                tensor.shape,
                tensor.ty.name()
            ));
        }
    }
    let size = first.ty.block_bytes();
    let a = &gguf.data(values_a)[..rank * vector * size];
    let is_shared = gguf.data(values_a).chunks(a.len()).all(|other| other == a)
        && gguf.data(keys_b).chunks(a.len()).all(|other| turned(other, rank, size) == a);
    if !is_shared {
        return Err(format!(
            "{} and {} differ between heads, expected one A for the keys and values of all; train the adapter with attn_kv_b",
            values_a.name, keys_b.name
        ));
    }
    let of_keys = gguf.data(keys_a).chunks(rank * keys * size).flat_map(|head| turned(head, keys, size));
    let b: Vec<u8> = of_keys.chain(gguf.data(values_b).iter().copied()).collect();
    let of: Vec<String> = found.iter().map(|tensor| tensor.name.clone()).collect();
    let joined = |half: usize, shape: Vec<usize>, data: Vec<u8>| Joined {
        name: name(Module::AttnKvB, HALVES[half]),
        shape,
        ty: first.ty.name(),
        data,
        of: of.clone(),
    };
    let rows = heads * (keys + values);
    Ok(vec![joined(0, vec![vector, rank], a.to_vec()), joined(1, vec![rank, rows], b)])
}

/// The transpose of a matrix with rows of `columns` values of `size` bytes each.
fn turned(bytes: &[u8], columns: usize, size: usize) -> Vec<u8> {
    let values: Vec<&[u8]> = bytes.chunks_exact(size).collect();
    let column = |column: usize| values.iter().skip(column).step_by(columns.max(1)).copied();
    (0..columns).flat_map(column).flatten().copied().collect()
}
