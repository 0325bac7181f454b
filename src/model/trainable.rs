//! The trained adapter on the device: parameters, gradients and moments, in a few large buffers.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::adapter::lora::{Adapter, Pair, Slot};
use crate::base::Module;
use crate::base::config::Config;
use crate::gpu::{Gpu, GpuError, Recorder};
use crate::ops::Param;
use crate::ops::adamw::{self, Clip, Shard};
use crate::ops::lora::{Group, Input, Member, PerInput, Trained};
use crate::ops::row_status;
use crate::ops::update_norm::{Taken, UpdateNorm};

/// The trained adapter. On the device the rank is padded to a multiple of 4, or of 16 for cooperative matrices. The padding and
/// its gradient are zero.
pub struct Trainable {
    rank: usize,
    pub(super) padded_rank: usize,
    pub(super) scale: f32,
    layers: Vec<Vec<Option<Group>>>, // by layer and `Input`
    slots: Vec<Slot>,
    parameters: Vec<wgpu::Buffer>,
    gradients: Vec<wgpu::Buffer>,
    first: Vec<wgpu::Buffer>,
    second: Vec<wgpu::Buffer>,
    /// Gradient norm, clipping and counts of the last step.
    pub clip: Clip,
    update_norm: UpdateNorm,
}

impl Trainable {
    /// Uploads `adapter` with zero gradients and moments, for a model of shape `config`.
    pub fn new(gpu: &Gpu, adapter: &Adapter, config: &Config) -> Result<Trainable, GpuError> {
        // Longer than 60 lines: one value per buffer and place.
        let padded_rank = adapter.rank.next_multiple_of(gpu.kernels().rank_multiple());
        let mut layout = Layout { shard_limit: gpu.max_binding_bytes(), shards: Vec::new() };
        let slots: Vec<Slot> = adapter.pairs.keys().copied().collect();
        for slot in &slots {
            let needed = 4 * slot.len_a(padded_rank).max(slot.len_b(padded_rank)) as u64;
            if needed > layout.shard_limit {
                return Err(GpuError::AdapterTooLarge {
                    module: slot.module.gguf_name(),
                    layer: slot.layer,
                    needed,
                    allowed: layout.shard_limit,
                    device: gpu.device_name().into(),
                });
            }
        }
        let places: Vec<GroupPlaces> = places(config, &slots, padded_rank, &mut layout);

        let buffers = |label: &str| -> Result<Vec<wgpu::Buffer>, GpuError> {
            layout.shards.iter().map(|&bytes| gpu.buffer(label, bytes)).collect()
        };
        let (parameters, gradients) = (buffers("adapter")?, buffers("adapter gradients")?);
        let (first, second) = (buffers("adapter first moments")?, buffers("adapter second moments")?);
        let trained = |p: &Place| Trained {
            value: Param {
                buffer: parameters[p.shard].clone(),
                offset: p.offset,
                rows: p.rows,
                cols: p.cols,
            },
            grad: Param { buffer: gradients[p.shard].clone(), offset: p.offset, rows: p.rows, cols: p.cols },
            shard: p.shard,
        };
        let mut groups: Vec<Vec<Option<Group>>> =
            config.layers.iter().map(|_| Input::ALL.iter().map(|_| None).collect()).collect();
        for (i, place) in places.iter().enumerate() {
            let shares = place.a.rows < place.members.len() * padded_rank;
            let members = place.members.iter().enumerate().map(|(m, (module, rows, b))| Member {
                module: *module,
                offset: if shares { 0 } else { m * padded_rank },
                u_offset: m * padded_rank,
                rows: rows.clone(),
                b: trained(b),
            });
            let group = Group { a: trained(&place.a), members: members.collect(), key: i as u32 };
            groups[place.layer][place.input as usize] = Some(group);
        }
        let clip = Clip::new(gpu, layout.shards.iter().copied())?;
        let update_norm = UpdateNorm::new(gpu, layout.shards.iter().copied())?;
        let scale = adapter.scale() as f32;
        let rank = adapter.rank;
        let trainable = Trainable {
            rank,
            padded_rank,
            scale,
            layers: groups,
            slots,
            parameters,
            gradients,
            first,
            second,
            clip,
            update_norm,
        };
        trainable.write(gpu, &trainable.parameters, &adapter.pairs);
        Ok(trainable)
    }

    /// The group that reads `input` in `layer`; `None` if none of its matrices is adapted.
    pub(super) fn group(&self, layer: usize, input: Input) -> Option<&Group> {
        self.layers[layer][input as usize].as_ref()
    }

    /// The adapted matrices, sorted, and the rank.
    pub(super) fn adapted(&self) -> (&[Slot], usize) {
        (&self.slots, self.rank)
    }

    /// The lowest layer with an adapted matrix. No gradients are needed below it.
    pub(super) fn lowest_layer(&self) -> usize {
        self.slots.first().map_or(self.layers.len(), |s| s.layer)
    }

    /// Maximum width of `u`: columns of all matrices that read one input.
    pub(super) fn max_u_width(&self) -> usize {
        let of_tokens = |layer| {
            let inputs = Input::ALL.into_iter();
            let inputs = inputs.take_while(|input| *input != Input::ExpertsNormed);
            inputs.filter_map(move |input| Some(self.group(layer, input)?.members.len() * self.padded_rank))
        };
        (0..self.layers.len()).flat_map(of_tokens).max().unwrap_or(0).max(4)
    }

    /// Columns of `z` for each input of a layer; 0 if nothing that reads the input is adapted.
    pub(super) fn z_widths(&self, layer: usize) -> PerInput<usize> {
        let columns = |g: &Group| g.members.last().map_or(0, |last| last.offset + self.padded_rank);
        PerInput::new(|input| self.group(layer, input).map_or(0, columns))
    }

    /// Bytes of the parameters, gradients and both moments.
    pub fn bytes(&self) -> u64 {
        4 * self.parameters.iter().map(|b| b.size()).sum::<u64>()
    }

    /// Sets all gradients to zero.
    pub fn zero_gradients(&self, rec: &mut Recorder) {
        for buffer in &self.gradients {
            rec.clear(buffer, buffer.size());
        }
    }

    /// Clips the gradients to `max_norm` (0: no clipping) and takes an optimizer step, unless the gradients or any of the first
    /// `rows` rows are not finite.
    pub fn update(
        &self,
        rec: &mut Recorder,
        (verdicts, rows): (&wgpu::Buffer, usize),
        max_norm: f64,
        step: &Taken,
    ) {
        self.clip.norm(rec, &self.gradients, max_norm);
        row_status::tally(rec, &self.clip, verdicts, rows);
        let shard = |i: usize| Shard {
            parameters: &self.parameters[i],
            gradients: &self.gradients[i],
            first: &self.first[i],
            second: &self.second[i],
        };
        let shards: Vec<Shard> = (0..self.parameters.len()).map(shard).collect();
        for shard in &shards {
            match step.adam {
                Some(adam) => adamw::adamw(rec, shard, &self.clip, adam, step.learning_rate, step.update),
                None => adamw::sgd(rec, shard, &self.clip, step.weight_decay, step.learning_rate),
            }
        }
        self.update_norm.record(rec, &shards, &self.clip, step);
    }

    /// Replaces parameters and scale by those of an adapter of the same slots and rank. Moments and gradients are kept.
    ///
    /// Panics if slots or rank differ.
    pub fn set(&mut self, gpu: &Gpu, adapter: &Adapter) {
        assert!(adapter.pairs.keys().eq(&self.slots) && adapter.rank == self.rank, "the same slots and rank");
        self.scale = adapter.scale() as f32;
        self.write(gpu, &self.parameters, &adapter.pairs);
    }

    /// Overwrites the parameters. Moments and gradients are kept.
    pub fn write_parameters(&self, gpu: &Gpu, pairs: &BTreeMap<Slot, Pair>) {
        self.write(gpu, &self.parameters, pairs);
    }

    /// Overwrites AdamW's first and second moments.
    pub fn write_moments(&self, gpu: &Gpu, first: &BTreeMap<Slot, Pair>, second: &BTreeMap<Slot, Pair>) {
        self.write(gpu, &self.first, first);
        self.write(gpu, &self.second, second);
    }

    fn write(&self, gpu: &Gpu, buffers: &[wgpu::Buffer], pairs: &BTreeMap<Slot, Pair>) {
        let mut shards: Vec<Vec<f32>> = buffers.iter().map(|b| vec![0.0; (b.size() / 4) as usize]).collect();
        let (r, pr) = (self.rank, self.padded_rank);
        for (slot, group, members) in self.members() {
            let (pair, k) = (&pairs[&slot], slot.in_features);
            let at = group.a.value.offset as usize / 4 + members[0].offset * k;
            for (e, a) in pair.a.chunks_exact(r * k).enumerate() {
                shards[group.a.shard][at + e * pr * k..][..r * k].copy_from_slice(a);
            }
            for member in members {
                let at = member.b.value.offset as usize / 4;
                let rows = &pair.b[member.rows.start * r..member.rows.end * r];
                for (n, row) in rows.chunks_exact(r).enumerate() {
                    shards[member.b.shard][at + n * pr..at + n * pr + r].copy_from_slice(row);
                }
            }
        }
        for (buffer, data) in buffers.iter().zip(&shards) {
            gpu.write(buffer, data);
        }
    }

    /// Reads the parameters, by slot.
    pub async fn read(&self, gpu: &Gpu) -> Result<BTreeMap<Slot, Pair>, GpuError> {
        self.read_from(gpu, &self.parameters).await
    }

    /// Reads AdamW's first and second moments, by slot.
    pub async fn read_moments(&self, gpu: &Gpu) -> Result<[BTreeMap<Slot, Pair>; 2], GpuError> {
        Ok([self.read_from(gpu, &self.first).await?, self.read_from(gpu, &self.second).await?])
    }

    /// Reads the gradients, by slot.
    pub async fn read_gradients(&self, gpu: &Gpu) -> Result<BTreeMap<Slot, Pair>, GpuError> {
        self.read_from(gpu, &self.gradients).await
    }

    /// Values of all gradients, with their padding.
    pub fn gradient_values(&self) -> usize {
        self.gradients.iter().map(|buffer| (buffer.size() / 4) as usize).sum()
    }

    /// Reads all gradients, with their padding, as they lie on the device.
    pub async fn copy_gradients(&self, gpu: &Gpu, mut values: &mut [f32]) -> Result<(), GpuError> {
        for buffer in &self.gradients {
            let (own, rest) = values.split_at_mut((buffer.size() / 4) as usize);
            gpu.read_into(buffer, own).await?;
            values = rest;
        }
        Ok(())
    }

    /// Overwrites all gradients by values that [`Trainable::copy_gradients`] has read, or sums of them.
    pub async fn set_gradients(&self, gpu: &Gpu, mut values: &[f32]) -> Result<(), GpuError> {
        for buffer in &self.gradients {
            let (own, rest) = values.split_at((buffer.size() / 4) as usize);
            gpu.write_from(buffer, own).await?;
            values = rest;
        }
        Ok(())
    }

    async fn read_from(&self, gpu: &Gpu, buffers: &[wgpu::Buffer]) -> Result<BTreeMap<Slot, Pair>, GpuError> {
        let mut shards = Vec::new();
        for buffer in buffers {
            shards.push(gpu.read::<f32>(buffer, (buffer.size() / 4) as usize).await?);
        }
        let (r, pr) = (self.rank, self.padded_rank);
        let mut pairs = BTreeMap::new();
        for (slot, group, members) in self.members() {
            let k = slot.in_features;
            let at = group.a.value.offset as usize / 4 + members[0].offset * k;
            let of_expert = |e: usize| &shards[group.a.shard][at + e * pr * k..][..r * k];
            let a = (0..slot.experts).flat_map(of_expert).copied().collect();
            let rows = |member: &&Member| {
                let at = member.b.value.offset as usize / 4;
                shards[member.b.shard][at..][..member.rows.len() * pr].chunks_exact(pr)
            };
            let b = members.iter().flat_map(rows).flat_map(|row| &row[..r]).copied().collect();
            pairs.insert(slot, Pair { a, b });
        }
        Ok(pairs)
    }

    /// Every slot with its group and its members of that: one, unless several matrices have one adapter.
    fn members(&self) -> impl Iterator<Item = (Slot, &Group, Vec<&Member>)> {
        self.slots.iter().map(|slot| {
            let group = self.group(slot.layer, Input::of(slot.module)).expect("a group for every slot");
            let own = |m: &&Member| m.module == slot.module || slot.module.fused().contains(&m.module);
            let members: Vec<&Member> = group.members.iter().filter(own).collect();
            assert!(!members.is_empty(), "a member for every slot");
            (*slot, group, members)
        })
    }
}

/// The location of a matrix.
struct Place {
    shard: usize,
    offset: u64,
    rows: usize,
    cols: usize,
}

struct GroupPlaces {
    layer: usize,
    input: Input,
    a: Place,
    members: Vec<(Module, Range<usize>, Place)>,
}

/// Packs tensors into buffers in order. No buffer is larger than a binding.
struct Layout {
    shard_limit: u64,
    shards: Vec<u64>,
}

impl Layout {
    fn place(&mut self, rows: usize, cols: usize) -> Place {
        let bytes = (rows * cols * 4) as u64;
        let padded = bytes.next_multiple_of(256); // the alignment of a binding's offset
        match self.shards.last() {
            Some(&used) if used + padded <= self.shard_limit => {}
            _ => self.shards.push(0),
        }
        let shard = self.shards.len() - 1;
        let offset = self.shards[shard];
        self.shards[shard] += padded;
        Place { shard, offset, rows, cols }
    }
}

fn places(config: &Config, slots: &[Slot], padded_rank: usize, layout: &mut Layout) -> Vec<GroupPlaces> {
    let mut groups = Vec::new();
    let mut rest = slots;
    while let Some(first) = rest.first() {
        let layer = first.layer;
        let (of_layer, others) = rest.split_at(rest.iter().take_while(|s| s.layer == layer).count());
        rest = others;
        for input in Input::ALL {
            let readers: Vec<&Slot> = of_layer.iter().filter(|s| Input::of(s.module) == input).collect();
            let Some(first) = readers.first() else { continue };
            let a = layout.place(readers.len() * first.experts * padded_rank, first.in_features);
            let parts: Vec<_> = readers.iter().flat_map(|slot| slot.parts(config)).collect();
            assert!(readers.len() == 1 || readers.len() == parts.len(), "an adapter of several is alone");
            // Gradients are written four rows at a time.
            let place_b = |(module, rows): (Module, Range<usize>)| {
                let b = layout.place(rows.len().next_multiple_of(4), padded_rank);
                (module, rows, b)
            };
            groups.push(GroupPlaces { layer, input, a, members: parts.into_iter().map(place_b).collect() });
        }
    }
    groups
}
