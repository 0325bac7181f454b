//! WGSL's functions of numbers, component by component where they are.

use naga::{BinaryOperator as B, MathFunction as M, UnaryOperator};

use crate::emit::Emitter;
use crate::value::{Op, Ty, Val, f32_bits};
use crate::{Result, unsupported};

impl Emitter {
    /// `ty` is the type of the first argument.
    pub fn math(&mut self, fun: M, args: &[Val], ty: Ty) -> Result<Val> {
        let first = &args[0];
        Ok(match fun {
            M::Fma => self.fused(first, &args[1], &args[2], ty)?,
            M::Min | M::Max => {
                let name = if fun == M::Min { "min" } else { "max" };
                self.each2(name, first, &args[1], ty)
            }
            M::Clamp => {
                let low = self.each2("max", first, &args[1], ty);
                self.each2("min", &low, &args[2], ty)
            }
            M::Abs => self.abs(first, ty),
            M::Mix => {
                // a + t·(b − a) would not end at b; a·(1 − t) + b·t does.
                let minus = self.unary(UnaryOperator::Negate, &args[2], ty)?;
                let rest = self.binary(B::Add, &Val::Scalar(one(ty)), &minus, ty)?;
                let left = self.binary(B::Multiply, first, &rest, ty)?;
                self.fused(&args[1], &args[2], &left, ty)?
            }
            M::Step => {
                let above = self.binary(B::LessEqual, first, &args[1], ty)?;
                let conditions = self.components(&above);
                let ops = conditions.into_iter().map(|c| self.choose_op(c, one(ty), ty.zero())).collect();
                self.vector(ops, ty, matches!(first, Val::Scalar(_)))
            }
            M::Pow => {
                let exponents = self.components(&args[1]);
                let mut exponents = exponents.into_iter();
                self.each_as_f32(first, ty, |e, x| {
                    let y = exponents.next().expect("as many components");
                    let y = if ty == Ty::F16 { e.as_f32(y) } else { y };
                    let l = e.scalar("lg2.approx.ftz.f32", Ty::F32, &[x], Ty::F32);
                    let l = e.scalar("mul.f32", Ty::F32, &[l, y], Ty::F32);
                    Ok(e.exp2(l))
                })?
            }
            M::Dot | M::Length | M::Distance | M::Normalize | M::Cross | M::Transpose => {
                return self.geometry(fun, args, ty);
            }
            _ => match (self.bits_of(fun, args, ty)?, ty) {
                (Some(value), _) => value,
                (None, Ty::F32 | Ty::F16) => self.each_as_f32(first, ty, |e, x| e.of_f32(fun, x))?,
                _ => return unsupported(format!("{fun:?} of {ty:?}")),
            },
        })
    }

    fn geometry(&mut self, fun: M, args: &[Val], ty: Ty) -> Result<Val> {
        let first = &args[0];
        Ok(match fun {
            M::Dot => Val::Scalar(self.dot(first, &args[1], ty)?),
            M::Cross => {
                let (a, b) = (self.components(first), self.components(&args[1]));
                let mut ops = Vec::new();
                for (i, j) in [(1, 2), (2, 0), (0, 1)] {
                    let back = self.binary_op(B::Multiply, a[j], b[i], ty)?;
                    let minus = self.scalar(&format!("neg.{}", ty.name()), ty, &[back], ty);
                    ops.push(self.scalar(&format!("fma.rn.{}", ty.name()), ty, &[a[i], b[j], minus], ty));
                }
                self.vector(ops, ty, false)
            }
            M::Transpose => {
                let Val::Many(columns) = first else { return unsupported("transpose") };
                let columns: Vec<Vec<Op>> = columns.iter().map(|c| self.components(c)).collect();
                let rows = (0..columns[0].len()).map(|r| {
                    let row = columns.iter().map(|c| c[r]).collect();
                    self.vector(row, ty, false)
                });
                Val::Many(rows.collect())
            }
            _ => {
                let x = match fun {
                    M::Distance => self.binary(B::Subtract, first, &args[1], ty)?,
                    _ => first.clone(),
                };
                let square = Val::Scalar(self.dot(&x, &x, ty)?);
                let root = if fun == M::Normalize { M::InverseSqrt } else { M::Sqrt };
                let root = self.each_as_f32(&square, ty, |e, x| e.of_f32(root, x))?;
                if fun == M::Normalize { self.binary(B::Multiply, &x, &root, ty)? } else { root }
            }
        })
    }

    fn abs(&mut self, value: &Val, ty: Ty) -> Val {
        match (value, ty) {
            (_, Ty::U32) => value.clone(),
            (Val::Halves(words, n), _) => {
                let words = words.iter().map(|w| self.r_from("abs.f16x2", &w.to_string()));
                Val::Halves(words.collect(), *n)
            }
            _ => {
                let name = format!("abs.{}", ty.name());
                self.each1(value, ty, |e, x| e.scalar(&name, ty, &[x], ty))
            }
        }
    }

    /// Components, one by one.
    pub fn each1(&mut self, value: &Val, ty: Ty, mut f: impl FnMut(&mut Emitter, Op) -> Op) -> Val {
        let scalar = matches!(value, Val::Scalar(_));
        let ops = self.components(value);
        let ops = ops.into_iter().map(|x| f(self, x)).collect();
        self.vector(ops, ty, scalar)
    }

    /// Components, one by one, as f32 and back.
    fn each_as_f32(
        &mut self,
        value: &Val,
        ty: Ty,
        mut f: impl FnMut(&mut Emitter, Op) -> Result<Op>,
    ) -> Result<Val> {
        let ops = self.components(value);
        let mut results = Vec::new();
        for x in ops {
            results.push(match ty {
                Ty::F16 => {
                    let x = self.as_f32(x);
                    let y = f(self, x)?;
                    self.as_f16(y)
                }
                _ => f(self, x)?,
            });
        }
        Ok(self.vector(results, ty, matches!(value, Val::Scalar(_))))
    }

    /// `min` or `max` of two values.
    fn each2(&mut self, name: &str, a: &Val, b: &Val, ty: Ty) -> Val {
        let (a, b) = self.alike(a, b);
        let old = self.options.target < 80;
        if let (Val::Halves(x, n), Val::Halves(y, _), false) = (&a, &b, old) {
            let words = x.iter().zip(y).map(|(x, y)| {
                let (x, y) = (self.in_register(*x), self.in_register(*y));
                self.r_from(&format!("{name}.f16x2"), &format!("{x}, {y}"))
            });
            return Val::Halves(words.collect(), *n);
        }
        let scalar = matches!(a, Val::Scalar(_));
        let (x, y) = (self.components(&a), self.components(&b));
        let full = format!("{name}.{}", ty.name());
        let ops = x.iter().zip(&y).map(|(x, y)| match (x, y, ty) {
            (Op::Bits(a), Op::Bits(b), Ty::U32) => {
                Op::Bits(if name == "min" { *a.min(b) } else { *a.max(b) })
            }
            (_, _, Ty::F16) if old => {
                let (x, y) = (self.as_f32(*x), self.as_f32(*y));
                let z = self.scalar(&format!("{name}.f32"), Ty::F32, &[x, y], Ty::F32);
                self.as_f16(z)
            }
            _ => self.scalar(&full, ty, &[*x, *y], ty),
        });
        let ops = ops.collect();
        self.vector(ops, ty, scalar)
    }
}

fn one(ty: Ty) -> Op {
    match ty {
        Ty::F16 => Op::Bits16(0x3c00),
        Ty::F32 => f32_bits(1.0),
        _ => Op::Bits(1),
    }
}
