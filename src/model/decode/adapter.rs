//! An adapter on the device as decoding applies it: unmerged, frozen, with the scale multiplied into `B`.

use std::ops::Range;

use crate::adapter::lora::{Adapter, Pair, Slot};
use crate::base::Module;
use crate::base::config::Config;
use crate::gpu::{Gpu, GpuError};
use crate::model::batch::ExpertLoras;
use crate::ops::Param;
use crate::ops::linear::experts::ExpertLora;
use crate::ops::linear::with_adapter::Applied as Group;
use crate::ops::lora::{Input, PerInput};

/// The adapter, by layer and [`Input`].
pub(super) struct Applied {
    layers: Vec<PerInput<Option<Group>>>,
}

/// The rank on the device of an adapter of rank `rank`.
pub(super) fn padded(gpu: &Gpu, rank: usize) -> usize {
    rank.next_multiple_of(gpu.kernels().rank_multiple())
}

impl Applied {
    /// Uploads `adapter` for a model of shape `config`.
    pub fn upload(gpu: &Gpu, adapter: &Adapter, config: &Config) -> Result<Applied, GpuError> {
        let group = |layer: usize, input: Input| -> Result<Option<Group>, GpuError> {
            let member = |(slot, holder, rows): (Slot, Slot, Range<usize>)| {
                let pair = adapter.pairs.get(&holder).map(|pair| (pair, rows));
                Member { slot, pair }
            };
            let members: Vec<Member> = readers(config, layer, input).map(member).collect();
            match members.iter().any(|m| m.pair.is_some()) {
                true => upload_group(gpu, adapter, &members).map(Some),
                false => Ok(None),
            }
        };
        let layer = |layer: usize| PerInput::try_new(|input| group(layer, input));
        Ok(Applied { layers: (0..config.layers.len()).map(layer).collect::<Result<_, _>>()? })
    }

    /// The adapters of the matrices that read `input` in `layer`; `None` if none of them is adapted.
    pub fn of(&self, layer: usize, input: Input) -> Option<&Group> {
        self.layers[layer][input].as_ref()
    }

    /// The adapters of a layer's experts. The scale is included in `B`.
    pub fn experts(&self, layer: usize) -> ExpertLoras<'_> {
        let lora = |input: Input| {
            let Group { a, b, rank, .. } = self.of(layer, input)?;
            Some(ExpertLora { a, b: &b[0], gradients: None, rank: *rank, scale: 1.0, mask: None })
        };
        ExpertLoras { gate_up: lora(Input::ExpertsNormed), down: lora(Input::ExpertsGated) }
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        let groups =
            self.layers.iter().flat_map(|layer| Input::ALL.map(|input| layer[input].as_ref())).flatten();
        groups.map(|g| g.a.buffer.size() + g.b[0].buffer.size() + g.transposed.size()).sum()
    }
}

/// The matrices of `layer` that read `input`, each with the slot that adapts it and its rows of that slot's `B`.
fn readers(config: &Config, layer: usize, input: Input) -> impl Iterator<Item = (Slot, Slot, Range<usize>)> {
    let modules = Module::ALL.into_iter().filter(move |m| Input::of(*m) == input);
    modules.filter_map(move |m| {
        let (holder, rows) = Slot::adapting(config, layer, m)?;
        Some((Slot::of_matrix(config, layer, m)?, holder, rows))
    })
}

/// Bytes of an adapter of the sorted `slots` with padded rank `rank`, as [`Applied::upload`] puts it on the device.
pub(super) fn bytes(config: &Config, slots: &[Slot], rank: usize) -> u64 {
    let group = |layer: usize, input: Input| -> usize {
        let is_adapted = readers(config, layer, input).any(|(_, slot, _)| slots.binary_search(&slot).is_ok());
        let members: Vec<Slot> = readers(config, layer, input).map(|(matrix, ..)| matrix).collect();
        let Some(first) = members.first().filter(|_| is_adapted) else { return 0 };
        let (_, b) = offsets(&members, rank);
        let transposed = if first.experts == 1 { b } else { 1 };
        members.len() * first.experts * rank * first.in_features + b + transposed
    };
    let layers = 0..config.layers.len();
    layers.flat_map(|layer| Input::ALL.map(|input| 4 * group(layer, input) as u64)).sum()
}

/// Where the matrix `B` of each member begins, and the length of all, in floats.
fn offsets(members: &[Slot], rank: usize) -> (Vec<usize>, usize) {
    let mut len = 0usize;
    let place = |slot: &Slot| {
        let offset = len.next_multiple_of(64); // the alignment of a binding's offset, 256 bytes
        len = offset + slot.experts * slot.out_features * rank;
        offset
    };
    (members.iter().map(place).collect(), len)
}

struct Member<'a> {
    slot: Slot,
    /// The matrices, and the rows of `B` that are the member's.
    pair: Option<(&'a Pair, Range<usize>)>,
}

impl Member<'_> {
    /// Rows of `B` over all experts.
    fn rows(&self) -> usize {
        self.slot.experts * self.slot.out_features
    }
}

fn upload_group(gpu: &Gpu, adapter: &Adapter, members: &[Member]) -> Result<Group, GpuError> {
    let (r, rank, scale) = (adapter.rank, padded(gpu, adapter.rank), adapter.scale());
    let (cols, experts) = (members[0].slot.in_features, members[0].slot.experts);
    let mut a = vec![0.0f32; members.len() * experts * rank * cols];
    let slots: Vec<Slot> = members.iter().map(|m| m.slot).collect();
    let (offsets, len) = offsets(&slots, rank);
    let (mut b, mut transposed) = (vec![0f32; len], vec![0f32; if experts == 1 { len } else { 0 }]);
    for (i, (member, &offset)) in members.iter().zip(&offsets).enumerate() {
        let Some((pair, rows)) = &member.pair else { continue };
        for (e, own) in pair.a.chunks_exact(r * cols).enumerate() {
            a[(i + e) * rank * cols..][..r * cols].copy_from_slice(own);
        }
        for (n, row) in pair.b[rows.start * r..rows.end * r].chunks_exact(r).enumerate() {
            for (i, value) in row.iter().enumerate() {
                let scaled = (scale * f64::from(*value)) as f32;
                b[offset + n * rank + i] = scaled;
                if experts == 1 {
                    transposed[offset + i * member.rows() + n] = scaled;
                }
            }
        }
    }
    let buffer = gpu.upload("adapter B", &b)?;
    let part = |(member, &offset): (&Member, &usize)| Param {
        buffer: buffer.clone(),
        offset: offset as u64 * 4,
        rows: member.rows(),
        cols: rank,
    };
    let b = members.iter().zip(&offsets).map(part).collect();
    let a =
        Param { buffer: gpu.upload("adapter A", &a)?, offset: 0, rows: members.len() * experts * rank, cols };
    let transposed = gpu.upload("adapter B transposed", &transposed)?;
    Ok(Group { a, b, transposed, offsets, rank })
}
