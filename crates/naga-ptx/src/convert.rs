//! Conversions between types of scalars, and between types of the same bits.

use crate::context::Context;
use crate::value::{Op, Ty, Val};
use crate::{Result, unsupported};

impl Context<'_> {
    pub fn convert(&mut self, value: &Val, from: Ty, to: Ty) -> Result<Val> {
        if from == to {
            return Ok(value.clone());
        }
        if let Val::Many(columns) = value {
            let columns = columns.iter().map(|c| self.convert(c, from, to));
            return Ok(Val::Many(columns.collect::<Result<_>>()?));
        }
        if let (Val::Vector(ops), Ty::F32, Ty::F16) = (value, from, to) {
            let words =
                ops.chunks(2).map(|pair| self.out.pair_of(pair[0], *pair.get(1).unwrap_or(&Op::Bits(0))));
            return Ok(Val::Halves(words.collect(), ops.len()));
        }
        let ops = self.out.components(value);
        let ops = ops.into_iter().map(|x| self.convert_op(x, from, to)).collect::<Result<Vec<Op>>>()?;
        Ok(self.out.vector(ops, to, matches!(value, Val::Scalar(_))))
    }

    fn convert_op(&mut self, x: Op, from: Ty, to: Ty) -> Result<Op> {
        let out = &mut self.out;
        if let (Op::Bits(bits), Ty::U32, Ty::F32) = (x, from, to) {
            return Ok(Op::Bits((bits as f32).to_bits()));
        }
        Ok(match (from, to) {
            (Ty::U32, Ty::I32) | (Ty::I32, Ty::U32) => x,
            (Ty::Bool, Ty::F32) => out.choose_op(x, Op::Bits(0x3f80_0000), Op::Bits(0)),
            (Ty::Bool, Ty::F16) => out.choose_op(x, Op::Bits16(0x3c00), Op::Bits16(0)),
            (Ty::Bool, _) => out.choose_op(x, Op::Bits(1), Op::Bits(0)),
            (Ty::F32, Ty::Bool) => out.scalar("setp.neu.f32", Ty::F32, &[x, Op::Bits(0)], Ty::Bool),
            (Ty::F16, Ty::Bool) => {
                let x = out.as_f32(x);
                out.scalar("setp.neu.f32", Ty::F32, &[x, Op::Bits(0)], Ty::Bool)
            }
            (_, Ty::Bool) => out.scalar("setp.ne.u32", Ty::U32, &[x, Op::Bits(0)], Ty::Bool),
            (Ty::F16, Ty::F32) => out.as_f32(x),
            (Ty::F32, Ty::F16) => out.as_f16(x),
            (Ty::F32 | Ty::F16, _) => {
                let x = out.in_register(x);
                out.scalar(&format!("cvt.rzi.{}.{}", to.name(), from.name()), from, &[x], to)
            }
            (_, Ty::F32 | Ty::F16) => {
                let x = out.in_register(x);
                out.scalar(&format!("cvt.rn.{}.{}", to.name(), from.name()), from, &[x], to)
            }
            _ => return unsupported(format!("{from:?} to {to:?}")),
        })
    }

    /// Gives bits another type.
    pub fn reinterpret(&mut self, value: &Val, count: usize, to: Option<Ty>) -> Result<Val> {
        let words: Vec<Op> = match value {
            Val::Scalar(op @ (Op::H(_) | Op::Bits16(_))) => return Ok(Val::Scalar(*op)),
            Val::Scalar(op) => vec![*op],
            Val::Vector(ops) | Val::Halves(ops, _) => ops.clone(),
            other => return unsupported(format!("a bitcast of {other:?}")),
        };
        Ok(match (to, count) {
            (Some(Ty::F16), n) => Val::Halves(words, n),
            (Some(Ty::Bool) | None, _) => return unsupported("a bitcast"),
            (_, 1) => Val::Scalar(words[0]),
            _ => Val::Vector(words),
        })
    }
}
