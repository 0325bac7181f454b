//! Experts in host memory, and copying a layer's experts to the device before they are needed.
//!
//! The layers whose experts are in host memory share one set of buffers on the device. Upload buffers of equal sizes are the
//! source of the copies: the host fills them while the device computes the previous layers. The device then copies them, in
//! queue order, after the last kernel that reads the previous layer's experts. Weights are frozen, so nothing is copied back.
//! If a layer's experts are still on the device after forward, backward does not copy them again.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Mutex;

use super::Model;
use crate::base::formats::planes;
use crate::base::{Base, Tensor};
use crate::gpu::{Gpu, GpuError, Recorder, Submission, Upload};
use crate::ops::linear::grouped::{ExpertWeight, expert_tiles};
use crate::ops::pass::Pass;
use crate::ops::{Tile, Weight, random};

/// The experts that are in host memory.
pub(super) struct HostExperts<'b> {
    /// All tiles of a layer's matrices, in the form that kernels read.
    layers: BTreeMap<usize, Vec<Cow<'b, [u8]>>>,
    /// For each tile: the buffer on the device, and the upload buffer that it is copied from.
    places: Vec<(wgpu::Buffer, Upload)>,
    now: Mutex<Now>,
}

/// The current contents of the shared buffers.
#[derive(Default)]
struct Now {
    layer: Option<usize>,
    /// The submission that copied it.
    copied: Option<Submission>,
}

/// The expert matrices of `layer`, gate and up before down; empty for a layer without experts.
pub(super) fn matrices(base: &Base, layer: usize) -> impl Iterator<Item = Tensor<'_>> {
    let names = ["ffn_gate_up_exps", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];
    names.into_iter().filter_map(move |name| base.tensor(&format!("blk.{layer}.{name}")))
}

/// Bytes of each tile of the experts of `layer`.
fn tile_bytes(gpu: &Gpu, base: &Base, layer: usize) -> Vec<u64> {
    let count = base.config().layers[layer].experts.map_or(0, |experts| experts.count);
    matrices(base, layer).flat_map(|matrix| matrix_tile_bytes(gpu, &matrix, count)).collect()
}

/// Bytes of the experts of `layer`.
pub(super) fn layer_bytes(gpu: &Gpu, base: &Base, layer: usize) -> u64 {
    tile_bytes(gpu, base, layer).iter().sum()
}

/// Bytes of each buffer that `layers` share.
fn place_bytes(gpu: &Gpu, base: &Base, layers: &[usize]) -> Vec<u64> {
    let mut places: Vec<u64> = Vec::new();
    for &layer in layers {
        let tiles = tile_bytes(gpu, base, layer);
        places.resize(places.len().max(tiles.len()), 0);
        places.iter_mut().zip(tiles).for_each(|(place, tile)| *place = (*place).max(tile));
    }
    places
}

/// Bytes of the shared buffers and of their upload buffers, if the experts of `layers` are in host memory.
pub(super) fn device_bytes(gpu: &Gpu, base: &Base, layers: &[usize]) -> u64 {
    2 * place_bytes(gpu, base, layers).iter().sum::<u64>()
}

/// Bytes of host memory for the experts of `layers`: their weights and the upload buffers.
fn host_bytes(gpu: &Gpu, base: &Base, layers: &[usize]) -> u64 {
    let own = |&layer: &usize| {
        let count = base.config().layers[layer].experts.map_or(0, |experts| experts.count);
        matrices(base, layer).map(|matrix| matrix_host_bytes(gpu, base, &matrix, count)).sum::<u64>()
    };
    layers.iter().map(own).sum::<u64>() + place_bytes(gpu, base, layers).iter().sum::<u64>()
}

/// Picks `count` of `layers`, spread as evenly as possible, so that each copy can overlap with as much computation as possible.
pub(super) fn spread(layers: &[usize], count: usize) -> Vec<usize> {
    (0..count).map(|i| layers[(2 * i + 1) * layers.len() / (2 * count)]).collect()
}

impl<'b> HostExperts<'b> {
    /// Allocates the shared buffers for `layers`; [`HostExperts::keep`] adds the experts. Fails if host memory is too small: a
    /// system that runs out of memory kills this program or others.
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

    /// Reads the experts of `layer` into host memory. Returns weights that refer to the shared buffers, in the order of
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
            weights.push(within(gpu, &matrix, experts, places));
            tiles.extend(on_host(gpu, base, &matrix, experts).await?);
        }
        self.layers.insert(layer, tiles);
        Ok(weights)
    }

    /// Copies the experts of `layer` to the device, if they are in host memory and not on the device yet. First submits the
    /// commands in `rec`, to keep the device busy meanwhile. Later commands can use the experts.
    async fn fetch(&self, rec: &mut Recorder<'_>, layer: usize) -> Result<(), GpuError> {
        let Some(tiles) = self.layers.get(&layer) else { return Ok(()) };
        let before = {
            let mut now = self.now.lock().expect("lock is not poisoned");
            if now.layer == Some(layer) {
                return Ok(());
            }
            now.layer = None; // even if the copy fails
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
        *self.now.lock().expect("lock is not poisoned") = Now { layer: Some(layer), copied };
        Ok(())
    }
}

impl Model<'_> {
    /// The layers whose experts are in host memory.
    pub fn offloaded(&self) -> Vec<usize> {
        self.offload.iter().flat_map(|offload| offload.layers.keys().copied()).collect()
    }

    /// Ensures that the experts of `layer` are on the device for the commands recorded next.
    pub(super) async fn fetch(&self, rec: &mut Recorder<'_>, layer: usize) -> Result<(), GpuError> {
        match &self.offload {
            Some(offload) => offload.fetch(rec, layer).await,
            None => Ok(()),
        }
    }

    /// [`Model::fetch`] between two ops of a pass.
    pub(super) async fn fetch_for(&self, p: &mut Pass<'_, '_>, layer: usize) -> Result<(), GpuError> {
        match &self.offload {
            Some(offload) if offload.layers.contains_key(&layer) => {
                offload.fetch(p.rec.for_copies(), layer).await
            }
            _ => Ok(()),
        }
    }

    /// Copies the experts of up to `layers` layers from host memory to the device and waits, without other work, to measure the
    /// copy rate. Returns the number of bytes.
    pub async fn copy_experts(&self, gpu: &Gpu, layers: usize) -> Result<u64, GpuError> {
        let Some(offload) = &self.offload else { return Ok(0) };
        let there = offload.now.lock().expect("lock is not poisoned").layer;
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

/// Bytes of each tile of the matrices of all `experts`.
fn matrix_tile_bytes(gpu: &Gpu, matrix: &Tensor<'_>, experts: usize) -> Vec<u64> {
    let tiles = expert_tiles(gpu, experts, matrix.rows / experts, matrix.row_bytes());
    tiles.map(|tile| ((tile.len() * matrix.row_bytes()) as u64).next_multiple_of(16)).collect()
}

/// Bytes that [`on_host`] allocates for a matrix: none if it stays in a file in memory.
fn matrix_host_bytes(gpu: &Gpu, base: &Base, matrix: &Tensor<'_>, experts: usize) -> u64 {
    let in_file = base.gguf().is_in_memory() && !base.is_random();
    let tiles = expert_tiles(gpu, experts, matrix.rows / experts, matrix.row_bytes());
    let bytes = tiles.map(|tile| tile.len() * matrix.row_bytes());
    let own = bytes.filter(|&bytes| !(in_file && planes::is_as_in_file(matrix.ty, bytes)));
    own.map(|bytes| planes::planes_bytes(bytes) as u64).sum()
}

/// The matrices of all `experts` in `buffers`, one buffer per tile. The buffers may be larger, and are filled later.
fn within<'a>(
    gpu: &Gpu,
    matrix: &Tensor<'_>,
    experts: usize,
    buffers: impl IntoIterator<Item = &'a wgpu::Buffer>,
) -> ExpertWeight {
    let Tensor { ty, rows: all_rows, cols, .. } = *matrix;
    let rows = all_rows / experts;
    let places = expert_tiles(gpu, experts, rows, matrix.row_bytes());
    let bytes = matrix_tile_bytes(gpu, matrix, experts);
    let tiles = places.zip(bytes).zip(buffers).map(|((tile, bytes), buffer)| Tile {
        first_row: tile.start,
        rows: tile.len(),
        buffer: buffer.clone(),
        range: Some((0, bytes)),
    });
    ExpertWeight { weight: Weight { ty, rows: all_rows, cols, tiles: tiles.collect(), bias: None }, rows }
}

/// The content of each tile of the matrices of all `experts`, in host memory. It is the file itself if the kernels read the file's layout
/// and `base` is in memory.
async fn on_host<'b>(
    gpu: &Gpu,
    base: &'b Base,
    matrix: &Tensor<'b>,
    experts: usize,
) -> Result<Vec<Cow<'b, [u8]>>, GpuError> {
    let mut tiles = Vec::new();
    for tile in expert_tiles(gpu, experts, matrix.rows / experts, matrix.row_bytes()) {
        if base.is_random() && random::makes(matrix.ty) {
            let made = random::weight(gpu, matrix, std::iter::once(tile))?;
            let buffer = &made.tiles[0].buffer;
            tiles.push(Cow::Owned(gpu.read(buffer, buffer.size() as usize).await?));
            continue;
        }
        let rows = matrix.rows(tile);
        tiles.push(match base.read(&rows).await.map_err(GpuError::read)? {
            Cow::Borrowed(bytes) => planes::to_planes(matrix.ty, rows.rows, bytes),
            Cow::Owned(bytes) => Cow::Owned(planes::to_planes(matrix.ty, rows.rows, &bytes).into_owned()),
        });
        if let Some(Cow::Owned(_)) = tiles.last() {
            base.gguf().release(rows.range); // the file's copy is not read again
        }
    }
    Ok(tiles)
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
