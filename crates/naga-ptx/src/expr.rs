//! Expressions.

use naga::{Expression as E, Handle, RelationalFunction, ScalarKind, TypeInner};

use crate::constant::literal_op;
use crate::context::{Context, Frame};
use crate::coop::{self, Lines};
use crate::memory::stride_of;
use crate::value::{Pointer, Step, Ty, Val};
use crate::{Result, unsupported};

impl<'a> Context<'a> {
    /// Evaluates an expression where it stands.
    pub fn evaluate(&mut self, frame: &mut Frame<'a>, e: Handle<E>) -> Result<Val> {
        Ok(match frame.function.expressions[e] {
            E::Literal(literal) => Val::Scalar(literal_op(literal)?),
            E::Constant(c) => self.constant(self.module.constants[c].init)?,
            E::ZeroValue(ty) => self.zero(&self.module.types[ty].inner)?,
            E::Compose { ty, ref components } => {
                let parts = components.iter().map(|c| self.value(frame, *c)).collect::<Result<Vec<_>>>()?;
                self.compose(&self.module.types[ty].inner, parts)?
            }
            E::Splat { size, value } => {
                let ty = self.ty(frame, value)?;
                let op = self.op(frame, value)?;
                self.out.vector(vec![op; size as usize], ty, false)
            }
            E::Swizzle { size, vector, pattern } => self.swizzle(frame, vector, &pattern[..size as usize])?,
            E::AccessIndex { base, index } => match self.value(frame, base)? {
                Val::Pointer(pointer) => self.member(frame, base, pointer, index)?,
                value => self.out.part(&value, &[Step::Known(index)]),
            },
            E::Access { base, index } => self.access(frame, base, index)?,
            E::FunctionArgument(i) => frame.arguments[i as usize].clone(),
            E::GlobalVariable(g) => {
                if let Some(place) = self.globals.places.get(&g) {
                    Val::Pointer(Pointer::Memory(place.clone()))
                } else {
                    Val::Pointer(Pointer::Variable { slot: self.private(g)?, path: Vec::new() })
                }
            }
            E::LocalVariable(l) => match &frame.locals[&l] {
                Ok(slot) => Val::Pointer(Pointer::Variable { slot: *slot, path: Vec::new() }),
                Err(place) => Val::Pointer(Pointer::Memory(place.clone())),
            },
            E::Load { pointer } => self.load(frame, pointer)?,
            E::ArrayLength(pointer) => self.array_length(frame, pointer)?,
            E::CooperativeLoad { columns, rows, role, ref data } => {
                coop::check(columns, rows)?;
                let lines = self.lines(frame, data)?;
                self.out.load_matrix(role, &lines)?
            }
            E::CooperativeMultiplyAdd { a, b, c } => {
                let (a, b, c) = (self.value(frame, a)?, self.value(frame, b)?, self.value(frame, c)?);
                self.out.multiply_add(&a, &b, &c)?
            }
            ref operation => return self.operation(frame, e, operation),
        })
    }

    /// Operators and functions.
    fn operation(&mut self, frame: &mut Frame<'a>, e: Handle<E>, operation: &E) -> Result<Val> {
        Ok(match *operation {
            E::Unary { op, expr } => {
                let ty = self.ty(frame, expr)?;
                let value = self.value(frame, expr)?;
                self.out.unary(op, &value, ty)?
            }
            E::Binary { op, left, right } => {
                let ty = self.ty(frame, left)?;
                let (a, b) = (self.value(frame, left)?, self.value(frame, right)?);
                self.out.binary(op, &a, &b, ty)?
            }
            E::Select { condition, accept, reject } => {
                let (a, b) = (self.value(frame, accept)?, self.value(frame, reject)?);
                match self.value(frame, condition)? {
                    Val::Scalar(op) => self.out.choose(op, &a, &b),
                    Val::Vector(conditions) => {
                        let ty = self.ty(frame, accept)?;
                        let (a, b) = (self.out.components(&a), self.out.components(&b));
                        let ops = conditions.iter().zip(a.iter().zip(&b));
                        let ops = ops.map(|(c, (a, b))| self.out.choose_op(*c, *a, *b)).collect();
                        self.out.vector(ops, ty, false)
                    }
                    other => return unsupported(format!("{other:?} as a condition")),
                }
            }
            E::Relational { fun, argument } => self.relational(frame, fun, argument)?,
            E::Math { fun, arg, arg1, arg2, arg3 } => {
                let ty = self.ty(frame, arg)?;
                let args = [Some(arg), arg1, arg2, arg3];
                let args =
                    args.into_iter().flatten().map(|a| self.value(frame, a)).collect::<Result<Vec<_>>>()?;
                self.out.math(fun, &args, ty)?
            }
            E::As { expr, kind, convert } => {
                let from = self.ty(frame, expr)?;
                let value = self.value(frame, expr)?;
                match convert {
                    Some(width) => {
                        let to = Ty::of(naga::Scalar { kind, width });
                        let Some(to) = to else { return unsupported(format!("{kind:?} of {width} bytes")) };
                        self.convert(&value, from, to)?
                    }
                    None => match self.inner(frame, e) {
                        TypeInner::Vector { size, scalar } => {
                            self.reinterpret(&value, *size as usize, Ty::of(*scalar))?
                        }
                        TypeInner::Scalar(scalar) => self.reinterpret(&value, 1, Ty::of(*scalar))?,
                        _ if kind == ScalarKind::Float => value,
                        other => return unsupported(format!("a bitcast to {other:?}")),
                    },
                }
            }
            ref other => return unsupported(format!("{other:?}")),
        })
    }

    fn swizzle(
        &mut self,
        frame: &mut Frame<'a>,
        vector: Handle<E>,
        pattern: &[naga::SwizzleComponent],
    ) -> Result<Val> {
        let ty = self.ty(frame, vector)?;
        let value = self.value(frame, vector)?;
        if let (Val::Halves(words, _), Some(pair)) = (&value, whole_pair(pattern)) {
            return Ok(Val::Halves(vec![words[pair]], 2));
        }
        let ops = self.out.components(&value);
        Ok(self.out.vector(pattern.iter().map(|c| ops[*c as usize]).collect(), ty, false))
    }

    /// A part whose index is an expression.
    fn access(&mut self, frame: &mut Frame<'a>, base: Handle<E>, index: Handle<E>) -> Result<Val> {
        let signed = self.ty(frame, index)? == Ty::I32;
        let index = self.op(frame, index)?;
        let step = index.bits().map_or(Step::Computed(index), Step::Known);
        Ok(match self.value(frame, base)? {
            Val::Pointer(Pointer::Memory(place)) => {
                let inner = self.pointee(frame, base)?;
                let Some(stride) = stride_of(&inner) else {
                    return unsupported(format!("an index of {inner:?}"));
                };
                Val::Pointer(Pointer::Memory(self.out.element(&place, index, signed, stride)))
            }
            Val::Pointer(Pointer::Variable { slot, mut path }) => {
                path.push(step);
                Val::Pointer(Pointer::Variable { slot, path })
            }
            value => self.out.part(&value, &[step]),
        })
    }

    fn load(&mut self, frame: &mut Frame<'a>, pointer: Handle<E>) -> Result<Val> {
        if let E::LocalVariable(l) = frame.function.expressions[pointer]
            && let Some(op) = frame.rounds.get(&l)
        {
            return Ok(Val::Scalar(*op));
        }
        let inner = self.pointee(frame, pointer)?;
        match self.place(frame, pointer)? {
            Pointer::Memory(place) => self.out.load(self.module, &place, &inner),
            Pointer::Variable { slot, path } => {
                let variable = self.slots[slot].clone();
                let part = self.out.part(&variable, &path);
                Ok(self.out.copy(&part))
            }
        }
    }

    fn relational(
        &mut self,
        frame: &mut Frame<'a>,
        fun: RelationalFunction,
        argument: Handle<E>,
    ) -> Result<Val> {
        let ty = self.ty(frame, argument)?;
        let value = self.value(frame, argument)?;
        let name = match fun {
            RelationalFunction::All => "and.pred",
            RelationalFunction::Any => "or.pred",
            RelationalFunction::IsNan => "testp.notanumber.f32",
            RelationalFunction::IsInf => "testp.infinite.f32",
        };
        if let RelationalFunction::All | RelationalFunction::Any = fun {
            let ops = self.out.components(&value);
            let mut all = ops[0];
            for op in &ops[1..] {
                all = self.out.scalar(name, Ty::Bool, &[all, *op], Ty::Bool);
            }
            return Ok(Val::Scalar(all));
        }
        let scalar = matches!(value, Val::Scalar(_));
        let ops = self.out.components(&value);
        let ops = ops.into_iter().map(|x| {
            let x = if ty == Ty::F16 { self.out.as_f32(x) } else { x };
            self.out.scalar(name, Ty::F32, &[x], Ty::Bool)
        });
        let ops = ops.collect();
        Ok(self.out.vector(ops, Ty::Bool, scalar))
    }

    fn array_length(&mut self, frame: &mut Frame<'a>, pointer: Handle<E>) -> Result<Val> {
        let mut variable = pointer;
        let global = loop {
            match frame.function.expressions[variable] {
                E::AccessIndex { base, .. } => variable = base,
                E::GlobalVariable(g) => break g,
                ref other => return unsupported(format!("the length of {other:?}")),
            }
        };
        let TypeInner::Array { stride, .. } = self.pointee(frame, pointer)? else {
            return unsupported("the length of no array");
        };
        let start = match &self.module.types[self.module.global_variables[global].ty].inner {
            TypeInner::Struct { members, .. } => members.last().map_or(0, |m| m.offset),
            _ => 0,
        };
        let length = self.globals.lengths[&global].clone();
        let bytes = self.out.load_words(&length, 1, false)[0];
        let bytes = self.out.r_from("sub.u32", &format!("{bytes}, {start}"));
        Ok(Val::Scalar(self.out.r_from("div.u32", &format!("{bytes}, {stride}"))))
    }

    pub fn lines(&mut self, frame: &mut Frame<'a>, data: &naga::CooperativeData) -> Result<Lines> {
        let unit = match self.pointee(frame, data.pointer)? {
            inner @ (TypeInner::Scalar(_) | TypeInner::Vector { .. }) => inner.size(self.module.to_ctx()),
            other => return unsupported(format!("a matrix among {other:?}")),
        };
        let Pointer::Memory(place) = self.place(frame, data.pointer)? else {
            return unsupported("a matrix of registers");
        };
        let stride = self.op(frame, data.stride)?;
        Ok(Lines::new(place, stride, unit, data.row_major))
    }

    fn member(&mut self, frame: &Frame<'a>, base: Handle<E>, pointer: Pointer, index: u32) -> Result<Val> {
        Ok(Val::Pointer(match pointer {
            Pointer::Variable { slot, mut path } => {
                path.push(Step::Known(index));
                Pointer::Variable { slot, path }
            }
            Pointer::Memory(place) => {
                let inner = self.pointee(frame, base)?;
                let offset = match (&inner, stride_of(&inner)) {
                    (TypeInner::Struct { members, .. }, _) => members[index as usize].offset,
                    (_, Some(stride)) => index * stride,
                    _ => return unsupported(format!("a member of {inner:?}")),
                };
                Pointer::Memory(place.plus(i64::from(offset)))
            }
        }))
    }
}

/// The pair that a pattern takes as it is.
fn whole_pair(pattern: &[naga::SwizzleComponent]) -> Option<usize> {
    match *pattern {
        [x, y] => match [x as usize, y as usize] {
            [0, 1] => Some(0),
            [2, 3] => Some(1),
            _ => None,
        },
        _ => None,
    }
}
