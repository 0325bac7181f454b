//! The memory plan, made before a run, counts what the replies of its evaluations take.

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::gpu::{Gpu, Recorder};
use rullama_train::model::decode::{self, CHUNK, Decoder, Lengths, Sequences, Workspace};
use rullama_train::model::plan::{Passes, Recompute};
use rullama_train::model::{Model, Plan, Trainable};
use rullama_train::train::Capacity;

use super::check_that;
use super::decode::cases;

/// Replies within one pass, and of several passes.
const CONTEXTS: [usize; 2] = [90, CHUNK + 130];

/// Every family's golden model, and the one in the program.
pub fn replies(gpu: &Gpu) -> Result<(), Failed> {
    for case in cases() {
        let model = Model::load(gpu, &case.base, CONTEXTS[1])?;
        let trainable = Trainable::new(gpu, &case.adapter, case.base.config())?;
        let plan = |reply: usize| {
            let capacity = Capacity { reply, ..Capacity::LEAST };
            Plan::new(
                gpu,
                &model,
                &trainable,
                Passes { capacity, masked: false, recompute: Recompute::Always },
            )
        };
        for context in CONTEXTS {
            let what = format!("{}, {context} tokens", case.name);
            let planned = plan(context).total() - plan(0).total();
            let others = allocated(gpu)?;
            let workspace =
                Workspace::new(gpu, &model, Lengths { context, chunk: CHUNK }, case.adapter.rank)?;
            let decoder = Decoder::new(&workspace, Some(&case.adapter))?;
            let taken = workspace.bytes() + decoder.bytes();
            check_that(&format!("{what}: {planned} bytes planned, {taken} taken"), planned == taken)?;
            if let Some((now, others)) = allocated(gpu)?.zip(others) {
                // Read-backs of the logits and a few small buffers are not part of the plan; drivers round sizes up.
                let (allocated, most) = (now - others, planned + planned / 50 + (8 << 10));
                println!("{what}: {planned} planned, {allocated} allocated");
                check_that(&format!("{what}: {allocated} allocated"), allocated <= most)?;
            }
            let slots: Vec<_> = case.adapter.pairs.keys().copied().collect();
            let lengths = Lengths { context, chunk: CHUNK };
            let planned = decode::bytes_of_sequences(gpu, &case.base, lengths, 3, &slots, case.adapter.rank);
            let of_three = block_on(Workspace::for_sequences(gpu, &model, lengths, case.adapter.rank, 3))?;
            let taken = of_three.bytes() + Sequences::new(&of_three, Some(&case.adapter))?.bytes();
            check_that(
                &format!("{what}: {planned} bytes planned for three, {taken} taken"),
                planned == taken,
            )?;
            drop(of_three);
        }
    }
    Ok(())
}

/// Bytes allocated now, without those that uploads have staged, which are freed behind the next commands.
fn allocated(gpu: &Gpu) -> Result<Option<u64>, Failed> {
    Recorder::new(gpu).submit()?;
    gpu.wait()?;
    Ok(gpu.allocated_bytes())
}
