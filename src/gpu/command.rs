//! Recorded commands, and how they are encoded and submitted.

#[cfg(not(target_arch = "wasm32"))]
use rayon::prelude::*;

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

/// Encoded commands, which are submitted once.
#[derive(Default)]
pub(super) struct Encoded {
    commands: Vec<wgpu::CommandBuffer>,
    timings: Vec<Timing>,
}

impl From<wgpu::CommandBuffer> for Encoded {
    fn from(commands: wgpu::CommandBuffer) -> Encoded {
        Encoded { commands: vec![commands], timings: Vec::new() }
    }
}

/// Most commands of an encoder: more encoders take less time, each on its own core.
const MOST: usize = 128;

impl Gpu {
    /// Encodes commands, the first `first` of them in an encoder of their own. `recurs`: their kernels are likely to come again in their order.
    pub(super) fn encode(
        &self,
        commands: &mut dyn Iterator<Item = &Command>,
        first: usize,
        recurs: bool,
    ) -> Encoded {
        let commands: Vec<&Command> = commands.collect();
        // A software device needs the cores itself.
        let (first, most) =
            if self.is_software() { (0, usize::MAX) } else { (first.min(commands.len()), MOST) };
        let (start, rest) = commands.split_at(first);
        let parts: Vec<&[&Command]> = start.chunks(most).chain(rest.chunks(most)).collect();
        #[cfg(not(target_arch = "wasm32"))]
        let each = parts.par_iter();
        #[cfg(target_arch = "wasm32")]
        let each = parts.iter(); // a page has one thread
        let encoded: Vec<(wgpu::CommandBuffer, Option<Timing>)> =
            each.enumerate().map(|(i, part)| self.encode_part(part, recurs && i == 0)).collect();
        let (commands, timings): (Vec<_>, Vec<_>) = encoded.into_iter().unzip();
        Encoded { commands, timings: timings.into_iter().flatten().collect() }
    }

    fn encode_part(&self, commands: &[&Command], recurs: bool) -> (wgpu::CommandBuffer, Option<Timing>) {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        if let (Some(cuda), true) = (&self.cuda, recurs) {
            cuda.repeats(&encoder);
        }
        let is_timed = |c: &&&Command| matches!(c, Command::Dispatch { .. } | Command::Launch(_));
        let mut timing = self.profile.timing(&self.device, commands.iter().filter(is_timed).count());
        self.record(&mut encoder, commands, &mut timing);
        if let Some(timing) = &timing {
            timing.resolve(&mut encoder);
        }
        (encoder.finish(), timing)
    }

    /// Records commands in `encoder`, each between timestamps where they are timed.
    pub(super) fn record(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        commands: &[&Command],
        timing: &mut Option<Timing>,
    ) {
        let mut commands = commands.iter().peekable();
        while let Some(command) = commands.next() {
            match command {
                Command::Clear { buffer, bytes } => encoder.clear_buffer(buffer, 0, Some(*bytes)),
                Command::Copy { from, to, bytes } => encoder.copy_buffer_to_buffer(from, 0, to, 0, *bytes),
                Command::Launch(launch) => {
                    let cuda = self.cuda.as_ref().expect("kernels for CUDA were chosen where there is CUDA");
                    let timer = timing.as_mut().map(|t| t.next(launch.name.into(), launch.bytes));
                    cuda.record(encoder, launch, timer);
                }
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
    }

    /// Submits encoded commands.
    pub(super) fn run(&self, encoded: Encoded) -> Submission {
        let submission = self.send(encoded.commands);
        self.profile.keep(encoded.timings);
        submission
    }

    /// Submits encoded commands, one command buffer after the other: the device starts with the first.
    pub(super) fn run_each(&self, encoded: Encoded) {
        for commands in encoded.commands {
            self.send(Some(commands));
        }
        self.profile.keep(encoded.timings);
    }
}
