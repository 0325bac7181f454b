//! The thread that uses the device for the page: it checks recipes and replies. Requests wait for one another. The base of the last
//! conversation stays on the device until something else needs the room.

use std::sync::mpsc::Receiver;

use rullama_train::gpu::{GpuOptions, KernelSetting};

use super::job::{Job, Piece, quick};
use super::problem::Problem;
use super::talk;
use crate::cli::setup::device::Device;

/// Opens the device and answers requests until [`Job::End`].
pub fn serve(jobs: &Receiver<Job>) {
    let gpu = Device::open(GpuOptions::default(), KernelSetting::Auto).map_err(Problem::from);
    let mut next = None;
    while let Some(job) = next.take().or_else(|| jobs.recv().ok()) {
        next = match (job, &gpu) {
            (Job::End, _) => return,
            (Job::Chat(chat), Ok(gpu)) => talk::on_one_base(gpu, *chat, jobs),
            (Job::Chat(chat), Err(problem)) => {
                let _ = chat.pieces.send(Piece::Failed(problem.clone()));
                None
            }
            (job, gpu) => {
                quick(job, gpu.as_ref().map(|gpu| &**gpu));
                None
            }
        };
    }
}
