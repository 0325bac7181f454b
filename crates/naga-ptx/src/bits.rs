//! Functions of bits, and of numbers that share a word.

use naga::MathFunction as M;

use crate::Result;
use crate::emit::Emitter;
use crate::value::{Op, Ty, Val};

/// The scalar `args[i]`.
fn word(args: &[Val], i: usize) -> Op {
    match &args[i] {
        Val::Scalar(op) => *op,
        other => unreachable!("{other:?} is a scalar"),
    }
}

impl Emitter {
    /// The result of `fun`, if it is one of these.
    pub fn bits_of(&mut self, fun: M, args: &[Val], ty: Ty) -> Result<Option<Val>> {
        let first = &args[0];
        Ok(Some(match fun {
            M::CountOneBits | M::CountLeadingZeros | M::ReverseBits => {
                let name = match fun {
                    M::CountOneBits => "popc.b32",
                    M::CountLeadingZeros => "clz.b32",
                    _ => "brev.b32",
                };
                self.each1(first, ty, |e, x| e.scalar(name, Ty::U32, &[x], Ty::U32))
            }
            M::CountTrailingZeros => self.each1(first, ty, |e, x| {
                let turned = e.scalar("brev.b32", Ty::U32, &[x], Ty::U32);
                e.scalar("clz.b32", Ty::U32, &[turned], Ty::U32)
            }),
            M::FirstLeadingBit => {
                let name = format!("bfind.{}", ty.name());
                self.each1(first, ty, |e, x| e.scalar(&name, ty, &[x], ty))
            }
            M::FirstTrailingBit => self.each1(first, ty, |e, x| {
                let turned = e.scalar("brev.b32", Ty::U32, &[x], Ty::U32);
                let leading = e.scalar("clz.b32", Ty::U32, &[turned], Ty::U32);
                // No bit: −1, where `clz` counts 32.
                let none = e.scalar("setp.eq.u32", Ty::U32, &[leading, Op::Bits(32)], Ty::Bool);
                e.choose_op(none, Op::Bits(u32::MAX), leading)
            }),
            M::ExtractBits => {
                let (offset, count) = (word(args, 1), word(args, 2));
                let name = format!("bfe.{}", ty.name());
                self.each1(first, ty, |e, x| e.scalar(&name, ty, &[x, offset, count], ty))
            }
            M::InsertBits => {
                let (offset, count) = (word(args, 2), word(args, 3));
                let mut new = self.components(&args[1]).into_iter();
                self.each1(first, ty, |e, old| {
                    let new = new.next().expect("as many components");
                    e.scalar("bfi.b32", Ty::U32, &[new, old, offset, count], Ty::U32)
                })
            }
            _ => return self.packed(fun, args),
        }))
    }

    fn packed(&mut self, fun: M, args: &[Val]) -> Result<Option<Val>> {
        let first = &args[0];
        Ok(Some(match fun {
            M::Dot4I8Packed | M::Dot4U8Packed => {
                let t = if fun == M::Dot4I8Packed { "s32" } else { "u32" };
                let (a, b) = (word(args, 0), word(args, 1));
                Val::Scalar(self.r_from(&format!("dp4a.{t}.{t}"), &format!("{a}, {b}, 0")))
            }
            M::Pack2x16float => {
                let ops = self.components(first);
                Val::Scalar(self.pair_of(ops[0], ops[1]))
            }
            M::Unpack2x16float => {
                let (low, high) = self.split(word(args, 0));
                Val::Vector(vec![self.as_f32(low), self.as_f32(high)])
            }
            M::Unpack4xI8 | M::Unpack4xU8 => {
                let t = if fun == M::Unpack4xI8 { "s32" } else { "u32" };
                let x = word(args, 0);
                let bytes = (0..4).map(|i| self.r_from(&format!("bfe.{t}"), &format!("{x}, {}, 8", 8 * i)));
                Val::Vector(bytes.collect())
            }
            M::Pack4xI8 | M::Pack4xU8 => {
                let ops = self.components(first);
                let low = self.r_from("prmt.b32", &format!("{}, {}, 0x0040", ops[0], ops[1]));
                let high = self.r_from("prmt.b32", &format!("{}, {}, 0x0040", ops[2], ops[3]));
                Val::Scalar(self.r_from("prmt.b32", &format!("{low}, {high}, 0x5410")))
            }
            M::Pack4xI8Clamp | M::Pack4xU8Clamp => {
                let (t, low, high) =
                    if fun == M::Pack4xI8Clamp { ("s32", -128, 127) } else { ("u32", 0, 255) };
                let ops = self.components(first);
                let ops = ops.into_iter().map(|x| {
                    let x = self.r_from(&format!("max.{t}"), &format!("{x}, {low}"));
                    self.r_from(&format!("min.{t}"), &format!("{x}, {high}"))
                });
                let ops = Val::Vector(ops.collect());
                return self.packed(M::Pack4xU8, &[ops]);
            }
            _ => return Ok(None),
        }))
    }
}
