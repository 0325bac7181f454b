//! Operators of two scalars, and conversions between f16 and f32.

use naga::BinaryOperator as B;

use crate::emit::Emitter;
use crate::fold::{is_power_of_two, known};
use crate::value::{Op, Ty, f32_bits};
use crate::{Result, unsupported};

impl Emitter {
    /// `x op y`, both of `ty`.
    pub fn binary_op(&mut self, op: B, x: Op, y: Op, ty: Ty) -> Result<Op> {
        if let (Op::Bits(a), Op::Bits(b), Ty::U32 | Ty::I32) = (x, y, ty)
            && let Some(known) = known(op, a, b, ty)
        {
            return Ok(known);
        }
        let arithmetic = |instruction: &str| format!("{instruction}.{}", ty.name());
        Ok(match (op, ty) {
            (B::Add, Ty::U32 | Ty::I32) if y == Op::Bits(0) => x,
            (B::Add, Ty::U32 | Ty::I32) if x == Op::Bits(0) => y,
            (B::Multiply, Ty::U32 | Ty::I32) if y == Op::Bits(1) => x,
            (B::Multiply, Ty::U32 | Ty::I32) if x == Op::Bits(1) => y,
            (B::Add, _) => self.scalar(&arithmetic("add"), ty, &[x, y], ty),
            (B::Subtract, _) => self.scalar(&arithmetic("sub"), ty, &[x, y], ty),
            (B::Multiply, Ty::F32 | Ty::F16) => self.scalar(&arithmetic("mul"), ty, &[x, y], ty),
            (B::Multiply, _) => self.scalar(&arithmetic("mul.lo"), ty, &[x, y], ty),
            (B::Divide | B::Modulo, _) => return self.quotient(op, x, y, ty),
            (B::Equal | B::NotEqual | B::Less | B::LessEqual | B::Greater | B::GreaterEqual, _) => {
                self.comparison(op, x, y, ty)
            }
            _ => return self.bitwise(op, x, y, ty),
        })
    }

    fn quotient(&mut self, op: B, x: Op, y: Op, ty: Ty) -> Result<Op> {
        if let (Op::Bits(n), Ty::U32) = (y, ty) {
            return Ok(self.quotient_by(op, x, n.max(1)));
        }
        Ok(match (op, ty) {
            (B::Divide, Ty::F32) => match y {
                Op::Bits(bits) if is_power_of_two(bits) => {
                    self.scalar("mul.f32", ty, &[x, f32_bits(1.0 / f32::from_bits(bits))], ty)
                }
                _ => self.scalar("div.full.f32", ty, &[x, y], ty),
            },
            (_, Ty::F16) => {
                let (a, b) = (self.as_f32(x), self.as_f32(y));
                let q = self.quotient(op, a, b, Ty::F32)?;
                self.as_f16(q)
            }
            (_, Ty::U32 | Ty::I32) => {
                // x / 0 is x and x % 0 is 0.
                let y = match y {
                    Op::Bits(0) => Op::Bits(1),
                    Op::Bits(_) => y,
                    _ => {
                        let zero = self.p();
                        self.line(format!("setp.eq.u32 {zero}, {y}, 0;"));
                        self.r_from("selp.b32", &format!("1, {y}, {zero}"))
                    }
                };
                let instruction = if op == B::Divide { "div" } else { "rem" };
                self.scalar(&format!("{instruction}.{}", ty.name()), ty, &[x, y], ty)
            }
            (_, Ty::F32) => {
                let q = self.scalar("div.full.f32", ty, &[x, y], ty);
                let whole = self.scalar("cvt.rzi.f32.f32", ty, &[q], ty);
                let minus = self.scalar("neg.f32", ty, &[whole], ty);
                self.scalar("fma.rn.f32", ty, &[minus, y, x], ty)
            }
            _ => return unsupported(format!("{op:?} of {ty:?}")),
        })
    }

    fn comparison(&mut self, op: B, x: Op, y: Op, ty: Ty) -> Op {
        match (op, ty) {
            (B::Equal, Ty::Bool) => {
                let differ = self.scalar("xor.pred", ty, &[x, y], ty);
                self.scalar("not.pred", ty, &[differ], ty)
            }
            (_, Ty::Bool) => self.scalar("xor.pred", ty, &[x, y], ty),
            _ => {
                let comparison = match (op, ty) {
                    (B::Equal, _) => "eq",
                    (B::NotEqual, Ty::F32 | Ty::F16) => "neu",
                    (B::NotEqual, _) => "ne",
                    (B::Less, _) => "lt",
                    (B::LessEqual, _) => "le",
                    (B::Greater, _) => "gt",
                    _ => "ge",
                };
                self.scalar(&format!("setp.{comparison}.{}", ty.name()), ty, &[x, y], Ty::Bool)
            }
        }
    }

    fn bitwise(&mut self, op: B, x: Op, y: Op, ty: Ty) -> Result<Op> {
        Ok(match (op, ty) {
            (B::And | B::LogicalAnd, Ty::Bool) => self.scalar("and.pred", ty, &[x, y], ty),
            (B::InclusiveOr | B::LogicalOr, Ty::Bool) => self.scalar("or.pred", ty, &[x, y], ty),
            (B::ExclusiveOr, Ty::Bool) => self.scalar("xor.pred", ty, &[x, y], ty),
            (B::And, _) => self.scalar("and.b32", ty, &[x, y], ty),
            (B::InclusiveOr, _) => self.scalar("or.b32", ty, &[x, y], ty),
            (B::ExclusiveOr, _) => self.scalar("xor.b32", ty, &[x, y], ty),
            (B::ShiftLeft | B::ShiftRight, _) => {
                let y = match y {
                    Op::Bits(n) => Op::Bits(n & 31),
                    _ => self.r_from("and.b32", &format!("{y}, 31")),
                };
                let instruction = match (op, ty) {
                    (B::ShiftLeft, _) => "shl.b32",
                    (_, Ty::I32) => "shr.s32",
                    _ => "shr.u32",
                };
                self.scalar(instruction, ty, &[x, y], ty)
            }
            _ => return unsupported(format!("{op:?} of {ty:?}")),
        })
    }

    pub fn as_f32(&mut self, x: Op) -> Op {
        self.scalar("cvt.f32.f16", Ty::F16, &[x], Ty::F32)
    }

    pub fn as_f16(&mut self, x: Op) -> Op {
        let x = self.in_register(x);
        self.scalar("cvt.rn.f16.f32", Ty::F32, &[x], Ty::F16)
    }

    /// A pair from two f32.
    pub fn pair_of(&mut self, low: Op, high: Op) -> Op {
        if self.options.target < 80 {
            let (low, high) = (self.as_f16(low), self.as_f16(high));
            return self.join(low, high);
        }
        let (low, high) = (self.in_register(low), self.in_register(high));
        self.r_from("cvt.rn.f16x2.f32", &format!("{high}, {low}"))
    }
}
