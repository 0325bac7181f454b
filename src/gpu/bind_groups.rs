//! Bind groups that outlive a recording, for the next one that repeats it: making them is more than half of the work of recording a step.

use super::Binding;

/// Most dispatches whose groups are kept, some 2 KB of the host's memory each.
const MOST: usize = 16_384;

/// The bind groups of a recording's dispatches, in their order.
#[derive(Default)]
pub struct BindGroups {
    groups: Vec<Option<Group>>,
    /// Place of the next dispatch.
    next: usize,
    /// Places whose groups are new.
    new: Vec<usize>,
}

/// A bind group, and all that it depends on.
struct Group {
    pipeline: wgpu::ComputePipeline,
    /// First byte of the dispatch's parameters.
    params: u64,
    bindings: Vec<Bound>,
    group: wgpu::BindGroup,
}

/// Binding number, buffer, and its part.
type Bound = (u32, wgpu::Buffer, Option<(u64, u64)>);

impl Group {
    fn is_for(&self, pipeline: &wgpu::ComputePipeline, params: u64, bindings: &[Binding]) -> bool {
        let same = |((index, buffer, range), b): (&Bound, &Binding)| {
            *index == b.index && buffer == b.buffer && *range == b.range
        };
        self.params == params
            && self.pipeline == *pipeline
            && self.bindings.len() == bindings.len()
            && self.bindings.iter().zip(bindings).all(same)
    }
}

impl BindGroups {
    /// These groups, for a recording from its start.
    pub(super) fn again(self) -> BindGroups {
        BindGroups { next: 0, new: Vec::new(), ..self }
    }

    /// The group of the next dispatch: that of the dispatch in this place of the last recording, where all is the same, or what `make`
    /// returns.
    pub(super) fn next(
        &mut self,
        pipeline: &wgpu::ComputePipeline,
        params: u64,
        bindings: &[Binding],
        make: impl FnOnce() -> wgpu::BindGroup,
    ) -> wgpu::BindGroup {
        let place = self.next;
        self.next += 1;
        if let Some(Some(known)) = self.groups.get(place)
            && known.is_for(pipeline, params, bindings)
        {
            return known.group.clone();
        }
        let group = make();
        if place < MOST {
            self.groups.resize_with(self.groups.len().max(place + 1), || None);
            let bindings = bindings.iter().map(|b| (b.index, b.buffer.clone(), b.range)).collect();
            let pipeline = pipeline.clone();
            self.groups[place] = Some(Group { pipeline, params, bindings, group: group.clone() });
            self.new.push(place);
        }
        group
    }

    /// Drops the new groups that bind any of `buffers`: others would keep memory alive that no plan counts.
    pub(super) fn forget(&mut self, buffers: &[&wgpu::Buffer]) {
        for place in self.new.drain(..) {
            let binds = |group: &Group| group.bindings.iter().any(|(_, buffer, _)| buffers.contains(&buffer));
            self.groups[place].take_if(|group| binds(group));
        }
    }
}
