//! Experts that stay in host memory, and how a layer's come to the device before it needs them.
//!
//! The layers whose experts stay in host memory take turns in one set of buffers on the device. Copies start from a set of
//! upload buffers of the same sizes: the host fills these while the device still works on the layers before, then the device
//! copies them, in the order of its one queue behind the last kernel that reads the layer before. Weights are frozen: nothing
//! comes back, and a layer that still lies there from its forward is not copied again for its backward.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Mutex;

use super::Model;
use crate::base::{Base, Tensor};
use crate::gpu::{Gpu, GpuError, Recorder, Submission, Upload};
use crate::ops::linear::grouped::ExpertWeight;

/// The experts that stay in host memory.
pub(super) struct HostExperts<'b> {
    /// Every tile of a layer's matrices, as kernels read them.
    layers: BTreeMap<usize, Vec<Cow<'b, [u8]>>>,
    /// By tile: where it is read on the device, and where the device copies it from.
    places: Vec<(wgpu::Buffer, Upload)>,
    now: Mutex<Now>,
}

/// The contents of the places.
#[derive(Default)]
struct Now {
    layer: Option<usize>,
    /// The submission that copied it there.
    copied: Option<Submission>,
}

/// The matrices of the experts of `layer`, gate and up before down; none in a layer without.
pub(super) fn matrices(base: &Base, layer: usize) -> impl Iterator<Item = Tensor<'_>> {
    let names = ["ffn_gate_up_exps", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];
    names.into_iter().filter_map(move |name| base.tensor(&format!("blk.{layer}.{name}")))
}

/// Bytes of each tile of the experts of `layer`.
fn tile_bytes(gpu: &Gpu, base: &Base, layer: usize) -> Vec<u64> {
    let count = base.config().layers[layer].experts.map_or(0, |experts| experts.count);
    matrices(base, layer).flat_map(|matrix| ExpertWeight::tile_bytes(gpu, &matrix, count)).collect()
}

/// Bytes of the experts of `layer`.
pub(super) fn layer_bytes(gpu: &Gpu, base: &Base, layer: usize) -> u64 {
    tile_bytes(gpu, base, layer).iter().sum()
}

/// Bytes of each place that `layers` take turns in.
fn place_bytes(gpu: &Gpu, base: &Base, layers: &[usize]) -> Vec<u64> {
    let mut places: Vec<u64> = Vec::new();
    for &layer in layers {
        let tiles = tile_bytes(gpu, base, layer);
        places.resize(places.len().max(tiles.len()), 0);
        places.iter_mut().zip(tiles).for_each(|(place, tile)| *place = (*place).max(tile));
    }
    places
}

/// Bytes of the places on the device, and of what they are copied from, where the experts of `layers` stay in host memory.
pub(super) fn device_bytes(gpu: &Gpu, base: &Base, layers: &[usize]) -> u64 {
    2 * place_bytes(gpu, base, layers).iter().sum::<u64>()
}

/// Bytes of host memory that the experts of `layers` take there: their own, and what the device copies from.
fn host_bytes(gpu: &Gpu, base: &Base, layers: &[usize]) -> u64 {
    let own = |&layer: &usize| {
        let count = base.config().layers[layer].experts.map_or(0, |experts| experts.count);
        matrices(base, layer).map(|matrix| ExpertWeight::host_bytes(gpu, base, &matrix, count)).sum::<u64>()
    };
    layers.iter().map(own).sum::<u64>() + place_bytes(gpu, base, layers).iter().sum::<u64>()
}

/// `count` of `layers`, as far from each other as can be: so each copy has the most work of others to hide behind.
pub(super) fn spread(layers: &[usize], count: usize) -> Vec<usize> {
    (0..count).map(|i| layers[(2 * i + 1) * layers.len() / (2 * count)]).collect()
}

impl<'b> HostExperts<'b> {
    /// The places for `layers`; [`HostExperts::keep`] brings the experts themselves. Refused where host memory is too small for
    /// them: a system that runs out of it ends the program, or others.
    pub fn new(gpu: &Gpu, base: &Base, layers: &[usize]) -> Result<HostExperts<'b>, GpuError> {
        let needed = host_bytes(gpu, base, layers);
        if let Some(available) = gpu.host_memory().filter(|&available| needed > available) {
            return Err(GpuError::HostMemory { layers: layers.len(), needed, available });
        }
        let place = |bytes: u64| {
            Ok((gpu.buffer("experts in turn", bytes)?, gpu.upload_buffer("experts to copy", bytes)?))
        };
        let places =
            place_bytes(gpu, base, layers).into_iter().map(place).collect::<Result<_, GpuError>>()?;
        Ok(HostExperts { layers: BTreeMap::new(), places, now: Mutex::default() })
    }

    /// Reads the experts of `layer` into host memory; the weights stand for them where they will lie on the device, in the order of
    /// [`matrices`].
    pub async fn keep(
        &mut self,
        gpu: &Gpu,
        base: &'b Base,
        layer: usize,
        experts: usize,
    ) -> Result<Vec<ExpertWeight>, GpuError> {
        let (mut tiles, mut weights) = (Vec::new(), Vec::new());
        for matrix in matrices(base, layer) {
            let places = self.places[tiles.len()..].iter().map(|(place, _)| place);
            weights.push(ExpertWeight::within(gpu, &matrix, experts, places));
            tiles.extend(ExpertWeight::on_host(gpu, base, &matrix, experts).await?);
        }
        self.layers.insert(layer, tiles);
        Ok(weights)
    }

    /// Copies the experts of `layer` to the device, where they are in host memory and not there yet. What `rec` holds is submitted
    /// first, so that the device is busy meanwhile; later work finds them there.
    async fn fetch(&self, rec: &mut Recorder<'_>, layer: usize) -> Result<(), GpuError> {
        let Some(tiles) = self.layers.get(&layer) else { return Ok(()) };
        let before = {
            let mut now = self.now.lock().expect("the lock is held for a move only");
            if now.layer == Some(layer) {
                return Ok(());
            }
            now.layer = None; // whatever fails on the way
            now.copied.clone()
        };
        rec.submit()?;
        for (tile, (_, upload)) in tiles.iter().zip(&self.places) {
            rec.gpu().fill(upload, tile, before.as_ref()).await?;
        }
        for (tile, (place, upload)) in tiles.iter().zip(&self.places) {
            rec.copy_in(upload, place, tile.len() as u64);
        }
        let copied = Some(rec.submit_marked()?);
        *self.now.lock().expect("the lock is held for a move only") = Now { layer: Some(layer), copied };
        Ok(())
    }
}

impl Model<'_> {
    /// Layers whose experts stay in host memory.
    pub fn offloaded(&self) -> Vec<usize> {
        self.offload.iter().flat_map(|offload| offload.layers.keys().copied()).collect()
    }

    /// Sees that the experts of `layer` are on the device for what is recorded next.
    pub(super) async fn fetch(&self, rec: &mut Recorder<'_>, layer: usize) -> Result<(), GpuError> {
        match &self.offload {
            Some(offload) => offload.fetch(rec, layer).await,
            None => Ok(()),
        }
    }

    /// Copies the experts of at most `layers` layers from host memory to the device, without other work, and waits for it: for
    /// measuring what that takes. Bytes that were copied.
    pub async fn copy_experts(&self, gpu: &Gpu, layers: usize) -> Result<u64, GpuError> {
        let Some(offload) = &self.offload else { return Ok(0) };
        let there = offload.now.lock().expect("the lock is held for a move only").layer;
        let mut rec = Recorder::new(gpu);
        let mut bytes = 0;
        for (layer, tiles) in offload.layers.iter().filter(|(l, _)| Some(**l) != there).take(layers) {
            offload.fetch(&mut rec, *layer).await?;
            bytes += tiles.iter().map(|tile| tile.len() as u64).sum::<u64>();
        }
        gpu.wait()?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::spread;

    #[test]
    fn layers_are_spread() {
        let layers = [1, 2, 3, 5, 6, 7, 8, 9];
        assert!(spread(&layers, 0).is_empty());
        assert_eq!(spread(&layers, 1), [6]);
        assert_eq!(spread(&layers, 2), [3, 8]);
        assert_eq!(spread(&layers, 3), [2, 6, 8]);
        assert_eq!(spread(&layers, 8), layers);
    }
}
