//! Recorded commands, and how they are encoded and submitted.

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
    /// Runs between submissions, not in one.
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
pub(super) struct Encoded {
    commands: wgpu::CommandBuffer,
    timing: Option<Timing>,
}

impl Gpu {
    /// Encodes commands for one submission.
    pub(super) fn encode(&self, commands: &mut dyn Iterator<Item = &Command>) -> Encoded {
        let commands: Vec<&Command> = commands.collect();
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let dispatches = commands.iter().filter(|c| matches!(c, Command::Dispatch { .. })).count();
        let mut timing = self.profile.timing(&self.device, dispatches);
        let mut commands = commands.into_iter().peekable();
        while let Some(command) = commands.next() {
            match command {
                Command::Clear { buffer, bytes } => encoder.clear_buffer(buffer, 0, Some(*bytes)),
                Command::Copy { from, to, bytes } => encoder.copy_buffer_to_buffer(from, 0, to, 0, *bytes),
                Command::Launch(_) => unreachable!("launches are run by `run_all`"),
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
        Encoded { commands: encoder.finish(), timing }
    }

    /// Submits `commands`, with the launches between them.
    pub(super) fn run_all(&self, commands: &[Command]) -> Submission {
        let same_side = |a: &Command, b: &Command| a.launch().is_some() == b.launch().is_some();
        let mut last = None;
        for part in commands.chunk_by(same_side) {
            let launches: Vec<&Launch> = part.iter().filter_map(Command::launch).collect();
            last = if launches.is_empty() {
                Some(self.run(self.encode(&mut part.iter())))
            } else {
                self.launch(&launches);
                None
            };
        }
        last.unwrap_or_else(|| self.send(None))
    }

    /// Submits encoded commands.
    pub(super) fn run(&self, encoded: Encoded) -> Submission {
        let submission = self.send(Some(encoded.commands));
        if let Some(timing) = encoded.timing {
            self.profile.keep(timing);
        }
        submission
    }
}
