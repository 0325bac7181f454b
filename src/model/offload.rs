//! Frozen matrices in host memory, and copying those of a layer to the device before they are needed.
//!
//! The layers whose matrices are in host memory share two sets of buffers on the device: the set that a layer does not use is filled with
//! the matrices of the next one. Where the device has memory for it and the host too, the matrices are in memory that the device copies
//! from ([`crate::gpu::HostBuffer`]). Otherwise the host fills upload buffers while the device computes, from the base's file where that
//! is in memory. Weights are frozen, so nothing is copied back.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use super::Model;
use crate::base::formats::planes;
use crate::base::{Base, Tensor};
use crate::gpu::{Gpu, GpuError, HostBuffer, Recorder, Submission, Upload};
use crate::memory::{Activations, OnHost};
use crate::ops::linear::grouped::expert_tiles;
use crate::ops::pass::Pass;
use crate::ops::{Tile, random, row_tiles};

/// Sets of buffers on the device.
const SETS: usize = 2;

/// Smaller matrices of a layer stay on the device.
const LEAST: usize = 4 << 10;

/// The matrices of a layer that can be larger, without experts.
const LARGE: [&str; 22] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_gate",
    "attn_output",
    "attn_q_a",
    "attn_q_b",
    "attn_kv_a_mqa",
    "attn_k_b",
    "attn_v_b",
    "ssm_out",
    "shortconv.in_proj",
    "shortconv.out_proj",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_gate_shexp",
    "ffn_up_shexp",
    "ffn_down_shexp",
    "inp_gate",
    "proj",
];

/// The direction in which layers follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the first to the last; backward may follow.
    Forward,
    /// From the last to the first.
    Backward,
    /// From the first to the last, and then from the first again.
    Around,
}

/// The matrices that are in host memory.
pub(super) struct HostWeights<'b> {
    layers: BTreeMap<usize, HostLayer<'b>>,
    sets: Vec<Set>,
    /// Whether tiles are in memory that the device copies from.
    is_resident: bool,
}

/// The tiles of a layer's matrices that are in host memory.
struct HostLayer<'b> {
    set: usize,
    tiles: Vec<HostTile<'b>>,
}

/// Some rows of a matrix.
struct HostTile<'b> {
    name: String,
    rows: Range<usize>,
    /// The buffer of a set that it is copied to.
    place: usize,
    bytes: u64,
    content: Option<Content<'b>>,
}

/// The content of a tile, in the layout that kernels read.
pub(super) enum Content<'b> {
    /// In memory that the device copies from.
    Resident(HostBuffer),
    /// In memory of the process, or of a file.
    Bytes(Cow<'b, [u8]>),
}

/// Buffers of one layer's tiles on the device.
struct Set {
    places: Vec<wgpu::Buffer>,
    uploads: Vec<Upload>, // none where tiles are resident
    held: Mutex<Held>,
}

/// The current contents of a set.
#[derive(Default)]
struct Held {
    layer: Option<usize>,
    /// The submission that copied it from the uploads.
    copied: Option<Submission>,
}

/// The expert matrices of `layer`, gate and up before down; empty for a layer without experts.
pub(super) fn experts(base: &Base, layer: usize) -> impl Iterator<Item = Tensor<'_>> {
    let names = ["ffn_gate_up_exps", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];
    names.into_iter().filter_map(move |name| base.tensor(&format!("blk.{layer}.{name}")))
}

/// The other matrices of `layer` that can stay in host memory.
pub(super) fn matrices(base: &Base, layer: usize) -> impl Iterator<Item = Tensor<'_>> {
    let found = LARGE.iter().filter_map(move |name| base.tensor(&format!("blk.{layer}.{name}")));
    found.filter(|matrix| matrix.rows * matrix.row_bytes() >= LEAST)
}

/// The matrices of `layer` that are in host memory, each with the rows of its tiles.
fn host_matrices<'a>(
    gpu: &Gpu,
    base: &'a Base,
    on_host: &OnHost,
    layer: usize,
) -> Vec<(Tensor<'a>, Vec<Range<usize>>)> {
    let mut found = Vec::new();
    if on_host.experts.contains(&layer) {
        let count = base.config().layers[layer].experts.map_or(1, |experts| experts.count);
        found.extend(experts(base, layer).map(|m| {
            let tiles = expert_tiles(gpu, m.ty, [count, m.rows / count], m.row_bytes()).collect();
            (m, tiles)
        }));
    }
    if on_host.layers.contains(&layer) {
        found.extend(matrices(base, layer).map(|m| {
            let tiles = row_tiles(gpu, m.ty, m.rows, m.row_bytes()).collect();
            (m, tiles)
        }));
    }
    found
}

/// Bytes of `rows` of a matrix in the layout that kernels read.
fn planes_bytes(matrix: &Tensor, rows: &Range<usize>) -> u64 {
    matrix.planes_bytes(rows.len()) as u64
}

/// Bytes of the tiles of everything that may stay in host memory, by layer.
pub(super) struct Sizes {
    experts: Vec<Vec<u64>>,
    others: Vec<Vec<u64>>,
    /// Bytes of host memory that are available, for a device that copies from it.
    resident: Option<u64>,
}

impl Sizes {
    /// The sizes of `base`.
    pub fn of(gpu: &Gpu, base: &Base) -> Sizes {
        let layers = base.config().layers.len();
        let of = |on_host: OnHost, layer: usize| -> Vec<u64> {
            let matrices = host_matrices(gpu, base, &on_host, layer);
            matrices.iter().flat_map(|(m, tiles)| tiles.iter().map(|t| planes_bytes(m, t))).collect()
        };
        let experts = |layer: usize| of(OnHost { experts: vec![layer], ..OnHost::default() }, layer);
        let others = |layer: usize| of(OnHost { layers: vec![layer], ..OnHost::default() }, layer);
        let available = gpu.host_memory().unwrap_or(u64::MAX);
        Sizes {
            experts: (0..layers).map(experts).collect(),
            others: (0..layers).map(others).collect(),
            resident: gpu.has_host_buffers().then_some(available),
        }
    }

    /// Bytes of the tiles of `layer` that are in host memory.
    fn tiles(&self, on_host: &OnHost, layer: usize) -> impl Iterator<Item = u64> {
        let experts = on_host.experts.contains(&layer).then(|| &self.experts[layer]);
        let others = on_host.layers.contains(&layer).then(|| &self.others[layer]);
        experts.into_iter().chain(others).flatten().copied()
    }

    /// Bytes of matrices that are not on the device.
    pub fn off_device(&self, on_host: &OnHost) -> u64 {
        on_host.of_layers().into_iter().map(|layer| self.layer_bytes(on_host, layer)).sum()
    }

    /// Bytes of the matrices of `layer` that are in host memory.
    pub fn layer_bytes(&self, on_host: &OnHost, layer: usize) -> u64 {
        self.tiles(on_host, layer).sum()
    }

    /// Bytes of each buffer of a set.
    fn place_bytes(&self, on_host: &OnHost) -> Vec<u64> {
        let mut places: Vec<u64> = Vec::new();
        for layer in on_host.of_layers() {
            let mut tiles: Vec<u64> = self.tiles(on_host, layer).collect();
            tiles.sort_unstable_by(|a, b| b.cmp(a));
            places.resize(places.len().max(tiles.len()), 0);
            places.iter_mut().zip(tiles).for_each(|(place, tile)| *place = (*place).max(tile));
        }
        places
    }

    /// Bytes of the sets, and of upload buffers where matrices are not resident.
    pub fn device_bytes(&self, on_host: &OnHost) -> u64 {
        let set: u64 = self.place_bytes(on_host).iter().sum();
        sets(on_host.of_layers().len()) as u64 * with_uploads(set, self.is_resident(on_host))
    }

    /// Whether the matrices can be in memory that the device copies from, which the system cannot reclaim.
    fn is_resident(&self, on_host: &OnHost) -> bool {
        self.resident.is_some_and(|available| self.resident_bytes(on_host) <= available)
    }

    /// Bytes of host memory that have to be available for that: an eighth more than the matrices take.
    fn resident_bytes(&self, on_host: &OnHost) -> u64 {
        let bytes = self.off_device(on_host);
        bytes + bytes / 8
    }
}

/// Bytes of a set of `bytes`, with its upload buffers where matrices are not resident.
fn with_uploads(bytes: u64, is_resident: bool) -> u64 {
    if is_resident { bytes } else { 2 * bytes }
}

/// Sets that as many layers share.
fn sets(layers: usize) -> usize {
    layers.min(SETS)
}

/// Bytes of host memory for matrices that are not resident: what their files do not hold as kernels read it, and the upload buffers.
fn upload_bytes(gpu: &Gpu, base: &Base, on_host: &OnHost, places: &[u64]) -> u64 {
    let in_file = base.gguf().is_in_memory() && !base.is_random();
    let layers = on_host.of_layers();
    let mut bytes = sets(layers.len()) as u64 * places.iter().sum::<u64>();
    for layer in layers {
        for (matrix, tiles) in host_matrices(gpu, base, on_host, layer) {
            let is_owned = |rows: &&Range<usize>| {
                matrix.order.is_some()
                    || matrix.side_by_side > 1
                    || !(in_file && planes::is_as_in_file(matrix.ty, rows.len() * matrix.row_bytes()))
            };
            bytes += tiles.iter().filter(is_owned).map(|rows| planes_bytes(&matrix, rows)).sum::<u64>();
        }
    }
    bytes
}

/// Picks `count` of `layers`, spread as evenly as possible, so that each copy can overlap with as much computation as possible.
pub(super) fn spread(layers: &[usize], count: usize) -> Vec<usize> {
    (0..count).map(|i| layers[(2 * i + 1) * layers.len() / (2 * count)]).collect()
}

impl<'b> HostWeights<'b> {
    /// Allocates the sets; [`HostWeights::keep`] adds the matrices. Fails if host memory is too small: a system that runs out of memory
    /// kills this program or others.
    pub fn new(gpu: &Gpu, base: &'b Base, on_host: &OnHost) -> Result<HostWeights<'b>, GpuError> {
        let sizes = Sizes::of(gpu, base);
        let is_resident = sizes.is_resident(on_host);
        let layers = on_host.of_layers();
        let bytes = sizes.place_bytes(on_host);
        if !is_resident {
            let resident = sizes.resident.map_or(u64::MAX, |_| sizes.resident_bytes(on_host));
            let needed = upload_bytes(gpu, base, on_host, &bytes).min(resident);
            if let Some(available) = gpu.host_memory().filter(|&available| needed > available) {
                return Err(GpuError::HostMemory { layers: layers.len(), needed, available });
            }
        }
        let set = || {
            let places = bytes.iter().map(|bytes| gpu.buffer("matrices in turn", *bytes));
            let uploads = bytes.iter().map(|bytes| gpu.upload_buffer("matrices to copy", *bytes));
            Ok(Set {
                places: places.collect::<Result<_, GpuError>>()?,
                uploads: uploads
                    .take(if is_resident { 0 } else { bytes.len() })
                    .collect::<Result<_, GpuError>>()?,
                held: Mutex::default(),
            })
        };
        let sets = (0..sets(layers.len())).map(|_| set()).collect::<Result<Vec<_>, GpuError>>()?;
        let layer = |(order, layer): (usize, &usize)| {
            let matrices = host_matrices(gpu, base, on_host, *layer);
            let tile = |matrix: &Tensor, rows: &Range<usize>| HostTile {
                name: matrix.name.into(),
                rows: rows.clone(),
                place: 0,
                bytes: planes_bytes(matrix, rows),
                content: None,
            };
            let tiles = matrices.iter().flat_map(|(m, tiles)| tiles.iter().map(move |rows| tile(m, rows)));
            let mut tiles: Vec<HostTile> = tiles.collect();
            tiles.sort_by_key(|tile| std::cmp::Reverse(tile.bytes));
            tiles.iter_mut().enumerate().for_each(|(place, tile)| tile.place = place);
            (*layer, HostLayer { set: order % sets.len(), tiles })
        };
        let layers = layers.iter().enumerate().map(layer).collect();
        Ok(HostWeights { layers, sets, is_resident })
    }

    /// Bytes of the matrices in host memory.
    pub fn off_device(&self) -> u64 {
        self.layers.values().flat_map(|layer| &layer.tiles).map(|tile| tile.bytes).sum()
    }

    /// Bytes of the sets, and of upload buffers where matrices are not resident. Host memory that is available now does not matter: the
    /// matrices have theirs.
    pub fn device_bytes(&self) -> u64 {
        let sets = self.sets.iter().flat_map(|set| &set.places).map(wgpu::Buffer::size).sum();
        with_uploads(sets, self.is_resident)
    }

    /// Whether the tiles of `matrix` stay in host memory, and then how: in memory that the device copies from?
    pub fn takes(&self, matrix: &Tensor) -> Option<bool> {
        let layer = self.layers.get(&layer_of(matrix)?)?;
        layer.tiles.iter().any(|tile| tile.name == matrix.name).then_some(self.is_resident)
    }

    /// The rows of the tiles of `matrix`.
    pub fn tiles(&self, matrix: &Tensor) -> Vec<Range<usize>> {
        let layer = layer_of(matrix).and_then(|layer| self.layers.get(&layer));
        let tiles = layer.into_iter().flat_map(|layer| &layer.tiles).filter(|tile| tile.name == matrix.name);
        let mut rows: Vec<Range<usize>> = tiles.map(|tile| tile.rows.clone()).collect();
        rows.sort_by_key(|rows| rows.start);
        rows
    }

    /// Keeps the content of the tile of `matrix` that begins at row `first`. Returns the tile, which refers to a buffer of a set.
    pub fn put(&mut self, matrix: &Tensor, first: usize, content: Content<'b>) -> Tile {
        let layer = layer_of(matrix).and_then(|layer| self.layers.get_mut(&layer));
        let HostLayer { set, tiles } = layer.expect("the matrix stays in host memory");
        let tile = tiles.iter_mut().find(|tile| tile.name == matrix.name && tile.rows.start == first);
        let tile = tile.expect("a tile begins at this row");
        tile.content = Some(content);
        let buffer = self.sets[*set].places[tile.place].clone();
        Tile { first_row: first, rows: tile.rows.len(), buffer, range: Some((0, tile.bytes)) }
    }

    /// Copies the matrices that a pass needs first to the device, if they are not there yet.
    async fn fetch_first(&self, rec: &mut Recorder<'_>, way: Way) -> Result<(), GpuError> {
        let first = match way {
            Way::Backward => self.layers.iter().next_back(),
            Way::Forward | Way::Around => self.layers.iter().next(),
        };
        match first {
            Some((layer, host)) => self.bring(rec, *layer, host).await,
            None => Ok(()),
        }
    }

    /// Copies the matrices that are needed after `layer` to the device, if they are not there yet. Later commands can use them.
    async fn fetch_after(&self, rec: &mut Recorder<'_>, layer: usize, way: Way) -> Result<(), GpuError> {
        let next = match way {
            Way::Backward => self.layers.range(..layer).next_back(),
            Way::Forward => self.layers.range(layer + 1..).next(),
            Way::Around => self.layers.range(layer + 1..).next().or_else(|| self.layers.iter().next()),
        };
        let Some((next, beside)) = next else { return Ok(()) };
        match self.layers.get(&layer) {
            Some(host) if host.set == beside.set => Ok(()), // which `layer` still uses
            _ => self.bring(rec, *next, beside).await,
        }
    }

    async fn bring(
        &self,
        rec: &mut Recorder<'_>,
        layer: usize,
        host: &HostLayer<'b>,
    ) -> Result<(), GpuError> {
        if !rec.runs() {
            return Ok(()); // nothing is copied
        }
        let set = &self.sets[host.set];
        let before = {
            let mut held = set.held.lock().expect("lock is not poisoned");
            if held.layer == Some(layer) {
                return Ok(());
            }
            held.layer = None; // even if the copy fails
            held.copied.take()
        };
        let mut staged = Vec::new();
        for tile in &host.tiles {
            match tile.content.as_ref().expect("every matrix in host memory was read") {
                Content::Resident(memory) => rec.copy_back(memory, &set.places[tile.place], tile.bytes),
                Content::Bytes(bytes) => staged.push((bytes, tile.place)),
            }
        }
        let mut copied = None;
        if !staged.is_empty() {
            rec.submit()?; // to keep the device busy meanwhile
            for (bytes, place) in &staged {
                rec.gpu().fill(&set.uploads[*place], bytes, before.as_ref()).await?;
            }
            for (bytes, place) in &staged {
                rec.copy_in(&set.uploads[*place], &set.places[*place], bytes.len() as u64);
            }
            copied = Some(rec.submit_marked()?);
        }
        *set.held.lock().expect("lock is not poisoned") = Held { layer: Some(layer), copied };
        Ok(())
    }
}

/// The layer of a matrix.
fn layer_of(matrix: &Tensor) -> Option<usize> {
    matrix.name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Reads `rows` of a matrix into host memory: where `is_resident`, into memory that the device copies from.
pub(super) async fn content<'b>(
    gpu: &Gpu,
    base: &'b Base,
    matrix: &Tensor<'b>,
    rows: Range<usize>,
    is_resident: bool,
) -> Result<Content<'b>, GpuError> {
    let size = planes_bytes(matrix, &rows);
    if base.is_random() && random::makes(matrix.ty) {
        let made = random::weight(gpu, matrix, std::iter::once(rows))?;
        let buffer = &made.tiles[0].buffer;
        if !is_resident {
            return Ok(Content::Bytes(Cow::Owned(gpu.read(buffer, buffer.size() as usize).await?)));
        }
        let host = gpu.host_buffer(matrix.name, size)?;
        let mut rec = Recorder::new(gpu);
        rec.copy_out(buffer, &host, size.min(buffer.size()));
        rec.submit()?;
        return Ok(Content::Resident(host));
    }
    let (count, range) = (rows.len(), matrix.rows(rows.clone()).range);
    let bytes = base.read_in_order(matrix, rows).await.map_err(GpuError::read)?;
    let content = match (is_resident, bytes) {
        (true, bytes) => {
            let write = |place: &mut [_]| planes::write_planes(matrix.ty, count, &bytes, place);
            Content::Resident(gpu.filled_host_buffer(matrix.name, size, write)?)
        }
        (false, Cow::Borrowed(bytes)) => Content::Bytes(planes::to_planes(matrix.ty, count, bytes)),
        (false, Cow::Owned(bytes)) => {
            Content::Bytes(Cow::Owned(planes::to_planes(matrix.ty, count, &bytes).into_owned()))
        }
    };
    if !matches!(content, Content::Bytes(Cow::Borrowed(_))) {
        base.gguf().release(range); // the file's copy is not read again
    }
    Ok(content)
}

impl Model<'_> {
    /// The contents of host memory.
    pub fn on_host(&self) -> &OnHost {
        &self.on_host
    }

    /// Ensures that the matrices that a pass needs first are on the device for the commands recorded next.
    pub(super) async fn fetch_first(&self, rec: &mut Recorder<'_>, way: Way) -> Result<(), GpuError> {
        match &self.offload {
            Some(offload) => offload.fetch_first(rec, way).await,
            None => Ok(()),
        }
    }

    /// In the middle of `layer`, copies the matrices that are needed after it to the device.
    pub(super) async fn fetch_after(
        &self,
        rec: &mut Recorder<'_>,
        layer: usize,
        way: Way,
    ) -> Result<(), GpuError> {
        match &self.offload {
            Some(offload) => offload.fetch_after(rec, layer, way).await,
            None => Ok(()),
        }
    }

    /// In the middle of `layer`, copies what its neighbours leave in host memory, and what they need from there.
    pub(super) async fn exchange(
        &self,
        p: &mut Pass<'_, '_>,
        acts: &Activations,
        layer: usize,
        way: Way,
    ) -> Result<(), GpuError> {
        if self.offload.is_none() && !acts.leave_device() {
            return Ok(());
        }
        let rec = p.rec.for_copies();
        match way {
            Way::Backward => acts.fetch_below(rec, layer),
            Way::Forward | Way::Around => acts.leave_below(rec, layer),
        }
        self.fetch_after(rec, layer, way).await
    }

    /// Copies matrices of up to `layers` layers from host memory to the device and waits, without other work, to measure the copy rate.
    /// Returns the number of bytes.
    pub async fn copy_layers(&self, gpu: &Gpu, layers: usize) -> Result<u64, GpuError> {
        let Some(offload) = &self.offload else { return Ok(0) };
        let mut rec = Recorder::new(gpu);
        let mut bytes = 0;
        for (layer, host) in offload.layers.iter().rev().take(layers) {
            if offload.sets[host.set].held.lock().expect("lock is not poisoned").layer == Some(*layer) {
                continue;
            }
            offload.bring(&mut rec, *layer, host).await?;
            bytes += host.tiles.iter().map(|tile| tile.bytes).sum::<u64>();
        }
        // Reading what was copied last waits for the copies.
        rec.submit()?;
        for set in &offload.sets {
            if let Some(place) = set.places.last() {
                gpu.read::<u32>(place, 1).await?;
            }
        }
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
