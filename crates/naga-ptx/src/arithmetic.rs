//! Operators of scalars, vectors and matrices.
//!
//! Sums and products have no rounding modifier, so that `ptxas` may contract them to fused ones, as Vulkan's driver may without
//! `NoContraction`.

use naga::{BinaryOperator as B, UnaryOperator};

use crate::emit::Emitter;
use crate::value::{Op, Ty, Val};
use crate::{Result, unsupported};

impl Emitter {
    pub fn unary(&mut self, op: UnaryOperator, value: &Val, ty: Ty) -> Result<Val> {
        let one = |e: &mut Emitter, x: Op| match (op, ty) {
            (UnaryOperator::Negate, Ty::F32) => match x {
                Op::Bits(bits) => Op::Bits(bits ^ 0x8000_0000),
                _ => e.scalar("neg.f32", ty, &[x], ty),
            },
            (UnaryOperator::Negate, Ty::F16) => e.scalar("neg.f16", ty, &[x], ty),
            (UnaryOperator::Negate, _) => match x {
                Op::Bits(bits) => Op::Bits(bits.wrapping_neg()),
                _ => e.scalar("neg.s32", ty, &[x], ty),
            },
            (UnaryOperator::LogicalNot, _) => match x {
                Op::Bool(b) => Op::Bool(!b),
                _ => e.scalar("not.pred", ty, &[x], ty),
            },
            (UnaryOperator::BitwiseNot, _) => e.scalar("not.b32", ty, &[x], ty),
        };
        Ok(match value {
            Val::Scalar(x) => Val::Scalar(one(self, *x)),
            Val::Vector(xs) => Val::Vector(xs.iter().map(|x| one(self, *x)).collect()),
            Val::Halves(xs, n) => {
                Val::Halves(xs.iter().map(|x| self.r_from("neg.f16x2", &x.to_string())).collect(), *n)
            }
            Val::Many(columns) => {
                Val::Many(columns.iter().map(|c| self.unary(op, c, ty)).collect::<Result<_>>()?)
            }
            _ => return unsupported(format!("{op:?}")),
        })
    }

    /// Scalars become vectors beside vectors.
    pub fn alike(&mut self, a: &Val, b: &Val) -> (Val, Val) {
        match (a, b) {
            (Val::Scalar(x), Val::Vector(_) | Val::Halves(..)) => (self.spread(*x, b), b.clone()),
            (Val::Vector(_) | Val::Halves(..), Val::Scalar(x)) => (a.clone(), self.spread(*x, a)),
            _ => (a.clone(), b.clone()),
        }
    }

    fn spread(&mut self, x: Op, like: &Val) -> Val {
        match like {
            Val::Vector(ops) => Val::Vector(vec![x; ops.len()]),
            Val::Halves(words, n) => {
                let pair = self.join(x, x);
                Val::Halves(vec![pair; words.len()], *n)
            }
            _ => Val::Scalar(x),
        }
    }

    /// `ty` is the operands' type.
    pub fn binary(&mut self, op: B, a: &Val, b: &Val, ty: Ty) -> Result<Val> {
        if let (Val::Matrix(_), _) | (_, Val::Matrix(_)) = (a, b) {
            return self.matrix_arithmetic(op, a, b);
        }
        if let (Val::Many(_), _) | (_, Val::Many(_)) = (a, b) {
            return self.matrix_binary(op, a, b, ty);
        }
        let (a, b) = self.alike(a, b);
        let packed = match op {
            B::Add => Some("add.f16x2"),
            B::Subtract => Some("sub.f16x2"),
            B::Multiply => Some("mul.f16x2"),
            _ => None,
        };
        if let (Val::Halves(x, n), Val::Halves(y, _), Some(name)) = (&a, &b, packed) {
            let words = x.iter().zip(y).map(|(x, y)| {
                let (x, y) = (self.in_register(*x), self.in_register(*y));
                self.r_from(name, &format!("{x}, {y}"))
            });
            return Ok(Val::Halves(words.collect(), *n));
        }
        let scalar = matches!(a, Val::Scalar(_));
        let (x, y) = (self.components(&a), self.components(&b));
        let ops = x.iter().zip(&y).map(|(x, y)| self.binary_op(op, *x, *y, ty));
        let ops = ops.collect::<Result<Vec<Op>>>()?;
        let compares = matches!(
            op,
            B::Equal
                | B::NotEqual
                | B::Less
                | B::LessEqual
                | B::Greater
                | B::GreaterEqual
                | B::LogicalAnd
                | B::LogicalOr
        );
        Ok(self.vector(ops, if compares { Ty::Bool } else { ty }, scalar))
    }

    fn matrix_binary(&mut self, op: B, a: &Val, b: &Val, ty: Ty) -> Result<Val> {
        match (op, a, b) {
            (B::Add | B::Subtract, Val::Many(x), Val::Many(y)) => {
                let columns = x.iter().zip(y).map(|(x, y)| self.binary(op, x, y, ty));
                Ok(Val::Many(columns.collect::<Result<_>>()?))
            }
            (B::Multiply, Val::Many(columns), Val::Scalar(_)) => {
                Ok(Val::Many(columns.iter().map(|c| self.binary(op, c, b, ty)).collect::<Result<_>>()?))
            }
            (B::Multiply, Val::Scalar(_), Val::Many(columns)) => {
                Ok(Val::Many(columns.iter().map(|c| self.binary(op, c, a, ty)).collect::<Result<_>>()?))
            }
            (B::Multiply, Val::Many(columns), Val::Vector(_) | Val::Halves(..)) => {
                let factors = self.components(b);
                let mut sum = self.binary(B::Multiply, &columns[0], &Val::Scalar(factors[0]), ty)?;
                for (column, factor) in columns.iter().zip(factors).skip(1) {
                    sum = self.fused(column, &Val::Scalar(factor), &sum, ty)?;
                }
                Ok(sum)
            }
            (B::Multiply, Val::Vector(_) | Val::Halves(..), Val::Many(columns)) => {
                let dots = columns.iter().map(|c| self.dot(a, c, ty)).collect::<Result<Vec<Op>>>()?;
                Ok(self.vector(dots, ty, false))
            }
            (B::Multiply, Val::Many(_), Val::Many(columns)) => {
                let columns = columns.iter().map(|c| self.matrix_binary(op, a, c, ty));
                Ok(Val::Many(columns.collect::<Result<_>>()?))
            }
            _ => unsupported(format!("{op:?} of matrices")),
        }
    }

    /// a · b + c.
    pub fn fused(&mut self, a: &Val, b: &Val, c: &Val, ty: Ty) -> Result<Val> {
        let (a, b) = self.alike(a, b);
        let (a, c) = self.alike(&a, c);
        if let (Val::Halves(x, n), Val::Halves(y, _), Val::Halves(z, _)) = (&a, &b, &c) {
            let words = x.iter().zip(y).zip(z).map(|((x, y), z)| {
                let (x, y, z) = (self.in_register(*x), self.in_register(*y), self.in_register(*z));
                self.r_from("fma.rn.f16x2", &format!("{x}, {y}, {z}"))
            });
            return Ok(Val::Halves(words.collect(), *n));
        }
        let scalar = matches!(a, Val::Scalar(_));
        let (x, y, z) = (self.components(&a), self.components(&b), self.components(&c));
        let name = format!("fma.rn.{}", ty.name());
        let ops = x.iter().zip(&y).zip(&z).map(|((x, y), z)| self.scalar(&name, ty, &[*x, *y, *z], ty));
        let ops = ops.collect();
        Ok(self.vector(ops, ty, scalar))
    }

    pub fn dot(&mut self, a: &Val, b: &Val, ty: Ty) -> Result<Op> {
        let (x, y) = (self.components(a), self.components(b));
        let mut sum = self.binary_op(B::Multiply, x[0], y[0], ty)?;
        for (x, y) in x.iter().zip(&y).skip(1) {
            sum = match ty {
                Ty::F32 | Ty::F16 => self.scalar(&format!("fma.rn.{}", ty.name()), ty, &[*x, *y, sum], ty),
                _ => self.scalar(&format!("mad.lo.{}", ty.name()), ty, &[*x, *y, sum], ty),
            };
        }
        Ok(sum)
    }
}
