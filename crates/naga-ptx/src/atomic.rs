//! Atomic operations.

use naga::{AtomicFunction as A, Expression as E, Handle};

use crate::context::{Context, Frame};
use crate::value::{Space, Ty, Val};
use crate::{Result, unsupported};

impl<'a> Context<'a> {
    pub fn atomic(
        &mut self,
        frame: &mut Frame<'a>,
        pointer: Handle<E>,
        fun: &A,
        value: Handle<E>,
        result: Option<Handle<E>>,
    ) -> Result<()> {
        let place = self.memory(frame, pointer)?;
        let ty = self.ty(frame, value)?;
        let value = self.op(frame, value)?;
        let name = ty.name();
        let (operation, operands) = match fun {
            A::Add => (format!("add.{name}"), value.to_string()),
            A::Subtract => {
                let instruction = if ty == Ty::F32 { "neg.f32" } else { "neg.s32" };
                (format!("add.{name}"), self.out.scalar(instruction, ty, &[value], ty).to_string())
            }
            A::And => ("and.b32".into(), value.to_string()),
            A::ExclusiveOr => ("xor.b32".into(), value.to_string()),
            A::InclusiveOr => ("or.b32".into(), value.to_string()),
            A::Min => (format!("min.{name}"), value.to_string()),
            A::Max => (format!("max.{name}"), value.to_string()),
            A::Exchange { compare: None } => ("exch.b32".into(), value.to_string()),
            A::Exchange { compare: Some(compare) } => {
                let compare = self.op(frame, *compare)?;
                ("cas.b32".into(), format!("{compare}, {value}"))
            }
        };
        if ty == Ty::F32 && !matches!(fun, A::Add | A::Subtract | A::Exchange { .. }) {
            return unsupported("atomics of f32 other than add and exchange");
        }
        let (scope, space) = match place.space {
            Space::Shared => ("cta", "shared"),
            _ => ("gpu", "global"),
        };
        let address = self.out.address(&place);
        let guard = self.out.guard(&place, 4);
        let old = self.out.r();
        self.out.clear(&guard, &[old]);
        self.out
            .line(format!("{guard}atom.relaxed.{scope}.{space}.{operation} {old}, {address}, {operands};"));
        let Some(result) = result else { return Ok(()) };
        let value = match fun {
            A::Exchange { compare: Some(compare) } => {
                let compare = self.op(frame, *compare)?;
                let same = self.out.scalar("setp.eq.b32", Ty::U32, &[old, compare], Ty::Bool);
                Val::Many(vec![Val::Scalar(old), Val::Scalar(same)])
            }
            _ => Val::Scalar(old),
        };
        frame.values.insert(result, value);
        Ok(())
    }
}
