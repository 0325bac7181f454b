//! Statements.

use naga::{Barrier, Expression as E, Handle, Statement as S};

use crate::context::{Context, Frame};
use crate::value::{Op, Pointer, Val};
use crate::{Result, unsupported};

/// The function whose call says where a kernel waits for the one ahead of it.
const WAIT: &str = "wait_for_kernel_ahead";

/// Whether calls of a function are that wait.
pub fn is_wait(function: &naga::Function) -> bool {
    function.name.as_deref() == Some(WAIT)
}

impl<'a> Context<'a> {
    pub fn block(&mut self, frame: &mut Frame<'a>, block: &'a naga::Block) -> Result<()> {
        block.iter().try_for_each(|statement| self.statement(frame, statement))
    }

    pub fn jump(&mut self, label: &str) {
        self.out.line(format!("bra {label};"));
    }

    fn statement(&mut self, frame: &mut Frame<'a>, statement: &'a S) -> Result<()> {
        match statement {
            S::Emit(range) => {
                for e in range.clone() {
                    let value = self.evaluate(frame, e)?;
                    frame.values.insert(e, value);
                }
            }
            S::Block(block) => self.block(frame, block)?,
            S::If { condition, accept, reject } => self.branch(frame, *condition, accept, reject)?,
            S::Switch { selector, cases } => self.switch(frame, *selector, cases)?,
            S::Loop { body, continuing, break_if } => self.repeat(frame, body, continuing, *break_if)?,
            S::Break => {
                let label = frame.breaks.last().expect("naga checks it").clone();
                self.jump(&label);
            }
            S::Continue => {
                let label = frame.continues.last().expect("naga checks it").clone();
                self.jump(&label);
            }
            S::Return { value } => self.give_back(frame, *value)?,
            S::ControlBarrier(barrier) => self.barrier(*barrier),
            S::MemoryBarrier(barrier) => {
                let scope = if barrier.contains(Barrier::STORAGE) { "gpu" } else { "cta" };
                self.out.line(format!("fence.acq_rel.{scope};"));
            }
            S::Store { pointer, value } => self.store(frame, *pointer, *value)?,
            S::Atomic { pointer, fun, value, result } => {
                self.atomic(frame, *pointer, fun, *value, *result)?;
            }
            S::WorkGroupUniformLoad { pointer, result } => {
                let place = self.memory(frame, *pointer)?;
                let inner = self.pointee(frame, *pointer)?;
                self.out.line("bar.sync 0;");
                let value = self.out.load(self.module, &place, &inner)?;
                self.out.line("bar.sync 0;");
                frame.values.insert(*result, value);
            }
            S::Call { function, .. } if is_wait(&self.module.functions[*function]) => self.out.wait(),
            S::Call { function, arguments, result } => {
                let arguments =
                    arguments.iter().map(|a| self.value(frame, *a)).collect::<Result<Vec<_>>>()?;
                let value = self.call(&self.module.functions[*function], &self.info[*function], arguments)?;
                if let (Some(result), Some(value)) = (result, value) {
                    // The result's registers are written once for each time that the call runs.
                    frame.values.insert(*result, value);
                }
            }
            S::SubgroupBallot { result, predicate } => self.ballot(frame, *result, *predicate)?,
            S::SubgroupGather { mode, argument, result } => {
                self.gather(frame, *mode, *argument, *result)?;
            }
            S::SubgroupCollectiveOperation { op, collective_op, argument, result } => {
                self.collective(frame, *op, *collective_op, *argument, *result)?;
            }
            S::CooperativeStore { target, data } => {
                let lines = self.lines(frame, data)?;
                let value = match self.value(frame, *target)? {
                    Val::Pointer(Pointer::Variable { slot, path }) => {
                        let variable = self.slots[slot].clone();
                        self.out.part(&variable, &path)
                    }
                    value => value,
                };
                self.out.store_matrix(&value, &lines)?;
            }
            other => return unsupported(format!("{other:?}")),
        }
        Ok(())
    }

    fn give_back(&mut self, frame: &mut Frame<'a>, value: Option<Handle<E>>) -> Result<()> {
        if let Some(value) = value {
            let value = self.value(frame, value)?;
            let mut result = frame.result.clone().expect("the function has a result");
            self.out.assign_part(&mut result, &[], &value, None);
        }
        frame.returned = true;
        let end = frame.end.clone();
        self.jump(&end);
        Ok(())
    }

    fn barrier(&mut self, barrier: Barrier) {
        if barrier.contains(Barrier::STORAGE) {
            self.out.line("fence.acq_rel.gpu;");
        }
        if barrier.intersects(Barrier::STORAGE | Barrier::WORK_GROUP) || barrier.is_empty() {
            self.out.line("bar.sync 0;");
        } else {
            self.out.line("bar.warp.sync 0xffffffff;");
        }
        if barrier.contains(Barrier::STORAGE) {
            self.out.line("fence.acq_rel.gpu;");
        }
    }

    fn store(&mut self, frame: &mut Frame<'a>, pointer: Handle<E>, value: Handle<E>) -> Result<()> {
        let new = self.value(frame, value)?;
        if let E::LocalVariable(l) = frame.function.expressions[pointer] {
            match new {
                Val::Scalar(Op::Bits(bits)) => frame.known.insert(l, bits),
                _ => frame.known.remove(&l),
            };
        }
        let inner = self.pointee(frame, pointer)?;
        match self.place(frame, pointer)? {
            Pointer::Memory(place) => self.out.store(self.module, &place, &inner, &new)?,
            Pointer::Variable { slot, path } => {
                let mut variable = self.slots[slot].clone();
                self.out.assign_part(&mut variable, &path, &new, None);
            }
        }
        Ok(())
    }
}
