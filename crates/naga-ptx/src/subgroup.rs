//! Operations of subgroups, which are warps of 32 lanes that run together.

use naga::{
    BinaryOperator as B, CollectiveOperation, Expression as E, GatherMode as G, Handle, MathFunction,
    SubgroupOperation as O,
};

use crate::context::{Context, Frame};
use crate::value::{Op, Val};
use crate::{Result, unsupported};

impl<'a> Context<'a> {
    pub fn ballot(
        &mut self,
        frame: &mut Frame<'a>,
        result: Handle<E>,
        predicate: Option<Handle<E>>,
    ) -> Result<()> {
        let p = match predicate {
            Some(p) => self.op(frame, p)?,
            None => Op::Bool(true),
        };
        let p = self.out.in_register(p);
        let word = self.out.r_from("vote.sync.ballot.b32", &format!("{p}, 0xffffffff"));
        frame.values.insert(result, Val::Vector(vec![word, Op::Bits(0), Op::Bits(0), Op::Bits(0)]));
        Ok(())
    }

    pub fn gather(
        &mut self,
        frame: &mut Frame<'a>,
        mode: G,
        argument: Handle<E>,
        result: Handle<E>,
    ) -> Result<()> {
        let value = self.value(frame, argument)?;
        let (kind, index, clamp) = match mode {
            G::BroadcastFirst => ("idx", Op::Bits(0), 31),
            G::Broadcast(i) | G::Shuffle(i) => ("idx", self.op(frame, i)?, 31),
            G::ShuffleDown(i) => ("down", self.op(frame, i)?, 31),
            G::ShuffleUp(i) => ("up", self.op(frame, i)?, 0),
            G::ShuffleXor(i) => ("bfly", self.op(frame, i)?, 31),
            other => return unsupported(format!("{other:?}")),
        };
        let value = self.shuffle(kind, &value, index, clamp)?;
        frame.values.insert(result, value);
        Ok(())
    }

    pub fn collective(
        &mut self,
        frame: &mut Frame<'a>,
        op: O,
        kind: CollectiveOperation,
        argument: Handle<E>,
        result: Handle<E>,
    ) -> Result<()> {
        if kind != CollectiveOperation::Reduce {
            return unsupported(format!("{kind:?}"));
        }
        let ty = self.ty(frame, argument)?;
        let mut value = self.value(frame, argument)?;
        if let (O::All | O::Any, Val::Scalar(p)) = (op, &value) {
            let name = if op == O::All { "all" } else { "any" };
            let p = self.out.in_register(*p);
            let to = self.out.p();
            self.out.line(format!("vote.sync.{name}.pred {to}, {p}, 0xffffffff;"));
            frame.values.insert(result, Val::Scalar(to));
            return Ok(());
        }
        for distance in [16, 8, 4, 2, 1] {
            let other = self.shuffle("bfly", &value, Op::Bits(distance), 31)?;
            value = match op {
                O::Add => self.out.binary(B::Add, &value, &other, ty)?,
                O::Mul => self.out.binary(B::Multiply, &value, &other, ty)?,
                O::And => self.out.binary(B::And, &value, &other, ty)?,
                O::Or => self.out.binary(B::InclusiveOr, &value, &other, ty)?,
                O::Xor => self.out.binary(B::ExclusiveOr, &value, &other, ty)?,
                O::Min => self.out.math(MathFunction::Min, &[value, other], ty)?,
                O::Max => self.out.math(MathFunction::Max, &[value, other], ty)?,
                O::All | O::Any => return unsupported(format!("{op:?} of a vector")),
            };
        }
        frame.values.insert(result, value);
        Ok(())
    }

    fn shuffle(&mut self, kind: &str, value: &Val, index: Op, clamp: u32) -> Result<Val> {
        let instruction = format!("shfl.sync.{kind}.b32");
        let rest = format!("{index}, {clamp}, 0xffffffff");
        let mut one = |op: Op| match op {
            // A constant is the same in every lane.
            Op::Bits(_) | Op::Bits16(_) => op,
            Op::H(_) => {
                let word = self.out.join(op, Op::Bits16(0));
                let word = self.out.r_from(&instruction, &format!("{word}, {rest}"));
                self.out.split(word).0
            }
            _ => self.out.r_from(&instruction, &format!("{op}, {rest}")),
        };
        let numbers = |ops: &[Op]| ops.iter().all(|op| matches!(op, Op::R(_) | Op::Bits(_)));
        Ok(match value {
            Val::Scalar(op @ (Op::R(_) | Op::Bits(_) | Op::H(_) | Op::Bits16(_))) => Val::Scalar(one(*op)),
            Val::Vector(ops) if numbers(ops) => Val::Vector(ops.iter().map(|op| one(*op)).collect()),
            Val::Halves(words, n) => Val::Halves(words.iter().map(|op| one(*op)).collect(), *n),
            other => return unsupported(format!("a shuffle of {other:?}")),
        })
    }
}
