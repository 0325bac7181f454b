//! Recorded commands, and how they are encoded and submitted.

#[cfg(not(target_arch = "wasm32"))]
use rayon::prelude::*;

use super::cuda::Timers;
use super::profile::Timing;
use super::upload::Submission;
use super::{Gpu, Launch};

/// One recorded command.
pub(super) enum Command {
    Dispatch {
        name: std::sync::Arc<str>,
        pipeline: wgpu::ComputePipeline,
        bind_group: wgpu::BindGroup,
        workgroups: [u32; 3],
        /// Sum of the sizes of the bound buffers.
        bytes: u64,
    },
    Clear {
        buffer: wgpu::Buffer,
        bytes: u64,
    },
    Copy {
        from: wgpu::Buffer,
        to: wgpu::Buffer,
        bytes: u64,
    },
    Launch(Launch),
}

impl Command {
    fn launch(&self) -> Option<&Launch> {
        match self {
            Command::Launch(launch) => Some(launch),
            _ => None,
        }
    }
}

/// Encoded commands, which are submitted once.
#[derive(Default)]
pub(super) struct Encoded {
    commands: Vec<wgpu::CommandBuffer>,
    timings: Vec<Timing>,
    timers: Vec<Timers>,
}

/// An encoder's commands, and what times them.
type Part = (wgpu::CommandBuffer, Option<Timing>, Option<Timers>);

/// Most commands of an encoder: more encoders take less time, each on its own core.
const MOST: usize = 128;

impl Gpu {
    /// Encodes commands, the first `first` of them in an encoder of their own. Launches have theirs: wgpu does not mix them with its
    /// commands.
    pub(super) fn encode(&self, commands: &mut dyn Iterator<Item = &Command>, first: usize) -> Encoded {
        let commands: Vec<&Command> = commands.collect();
        // A software device needs the cores itself.
        let (first, most) =
            if self.is_software() { (0, usize::MAX) } else { (first.min(commands.len()), MOST) };
        let (start, rest) = commands.split_at(first);
        let alike = [start, rest]
            .into_iter()
            .flat_map(|half| half.chunk_by(|a, b| a.launch().is_some() == b.launch().is_some()));
        let parts: Vec<&[&Command]> = alike.flat_map(|part| part.chunks(most)).collect();
        #[cfg(not(target_arch = "wasm32"))]
        let each = parts.par_iter();
        #[cfg(target_arch = "wasm32")]
        let each = parts.iter(); // a page has one thread
        let encoded: Vec<Part> = each.map(|part| self.encode_part(part)).collect();
        let mut all = Encoded::default();
        for (commands, timing, timers) in encoded {
            all.commands.push(commands);
            all.timings.extend(timing);
            all.timers.extend(timers);
        }
        all
    }

    fn encode_part(&self, part: &[&Command]) -> Part {
        let launches: Vec<&Launch> = part.iter().filter_map(|command| command.launch()).collect();
        if launches.is_empty() {
            let (commands, timing) = self.encode_dispatches(part);
            return (commands, timing, None);
        }
        let (commands, timers) = self.encode_launches(&launches);
        (commands, None, timers)
    }

    fn encode_dispatches(&self, commands: &[&Command]) -> (wgpu::CommandBuffer, Option<Timing>) {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let dispatches = commands.iter().filter(|c| matches!(c, Command::Dispatch { .. })).count();
        let mut timing = self.profile.timing(&self.device, dispatches);
        let mut commands = commands.iter().peekable();
        while let Some(command) = commands.next() {
            match command {
                Command::Clear { buffer, bytes } => encoder.clear_buffer(buffer, 0, Some(*bytes)),
                Command::Copy { from, to, bytes } => encoder.copy_buffer_to_buffer(from, 0, to, 0, *bytes),
                Command::Launch(_) => unreachable!("launches have encoders of their own"),
                Command::Dispatch { name, pipeline, bind_group, workgroups: [x, y, z], bytes } => {
                    let timestamp_writes = timing.as_mut().map(|t| t.next(name.clone(), *bytes));
                    let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
                    let mut pass = encoder.begin_compute_pass(&descriptor);
                    pass.set_pipeline(pipeline);
                    pass.set_bind_group(0, bind_group, &[]);
                    pass.dispatch_workgroups(*x, *y, *z);
                    // A timed dispatch has a pass of its own; otherwise neighbours share one.
                    while timing.is_none() {
                        let next = commands.next_if(|c| matches!(c, Command::Dispatch { .. }));
                        let Some(Command::Dispatch { pipeline, bind_group, workgroups: [x, y, z], .. }) =
                            next
                        else {
                            break;
                        };
                        pass.set_pipeline(pipeline);
                        pass.set_bind_group(0, bind_group, &[]);
                        pass.dispatch_workgroups(*x, *y, *z);
                    }
                }
            }
        }
        if let Some(timing) = &timing {
            timing.resolve(&mut encoder);
        }
        (encoder.finish(), timing)
    }

    /// Submits encoded commands.
    pub(super) fn run(&self, encoded: Encoded) -> Submission {
        let submission = self.send(encoded.commands);
        self.profile.keep(encoded.timings, encoded.timers);
        submission
    }

    /// Submits encoded commands, one command buffer after the other: the device starts with the first.
    pub(super) fn run_each(&self, encoded: Encoded) {
        for commands in encoded.commands {
            self.send(Some(commands));
        }
        self.profile.keep(encoded.timings, encoded.timers);
    }
}
