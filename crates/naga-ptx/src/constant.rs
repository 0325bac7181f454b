//! Constants, zeros, and values that are composed of others.

use naga::{Expression as E, Handle, TypeInner};

use crate::context::Context;
use crate::coop;
use crate::value::{Op, Ty, Val};
use crate::{Result, unsupported};

impl Context<'_> {
    /// A constant expression of the module.
    pub fn constant(&mut self, e: Handle<E>) -> Result<Val> {
        Ok(match self.module.global_expressions[e] {
            E::Literal(literal) => Val::Scalar(literal_op(literal)?),
            E::Constant(c) => self.constant(self.module.constants[c].init)?,
            E::ZeroValue(ty) => self.zero(&self.module.types[ty].inner)?,
            E::Compose { ty, ref components } => {
                let parts = components.iter().map(|c| self.constant(*c)).collect::<Result<Vec<_>>>()?;
                self.compose(&self.module.types[ty].inner, parts)?
            }
            E::Splat { size, value } => {
                let Val::Scalar(op) = self.constant(value)? else { return unsupported("a constant") };
                let ty = if matches!(op, Op::Bits16(_)) { Ty::F16 } else { Ty::U32 };
                self.out.vector(vec![op; size as usize], ty, false)
            }
            ref other => return unsupported(format!("constant {other:?}")),
        })
    }

    pub fn zero(&mut self, inner: &TypeInner) -> Result<Val> {
        Ok(match *inner {
            TypeInner::CooperativeMatrix { columns, rows, role, .. } => {
                coop::check(columns, rows)?;
                Val::Matrix(vec![Op::Bits(0); if role == naga::CooperativeRole::C { 8 } else { 4 }])
            }
            TypeInner::Scalar(s) => match Ty::of(s) {
                Some(ty) => Val::Scalar(ty.zero()),
                None => return unsupported(format!("{s:?}")),
            },
            TypeInner::Vector { size, scalar } => match Ty::of(scalar) {
                Some(ty) => self.out.vector(vec![ty.zero(); size as usize], ty, false),
                None => return unsupported(format!("{scalar:?}")),
            },
            TypeInner::Struct { ref members, .. } => {
                let types = &self.module.types;
                let members: Vec<_> = members.iter().map(|m| &types[m.ty].inner).collect();
                Val::Many(members.into_iter().map(|m| self.zero(m)).collect::<Result<_>>()?)
            }
            TypeInner::Array { base, size: naga::ArraySize::Constant(n), .. } => {
                let element = self.zero(&self.module.types[base].inner)?;
                Val::Many(vec![element; n.get() as usize])
            }
            TypeInner::Matrix { columns, rows, scalar } => {
                let column = self.zero(&TypeInner::Vector { size: rows, scalar })?;
                Val::Many(vec![column; columns as usize])
            }
            ref other => return unsupported(format!("zero of {other:?}")),
        })
    }

    /// A value of a type, from its parts.
    pub fn compose(&mut self, inner: &TypeInner, parts: Vec<Val>) -> Result<Val> {
        Ok(match *inner {
            TypeInner::Vector { scalar, .. } => {
                let Some(ty) = Ty::of(scalar) else { return unsupported(format!("{scalar:?}")) };
                if let Some(pairs) = pairs(&parts) {
                    return Ok(pairs);
                }
                let ops: Vec<Op> = parts.iter().flat_map(|p| self.out.components(p)).collect();
                self.out.vector(ops, ty, false)
            }
            TypeInner::Matrix { rows, scalar, .. }
                if !matches!(parts[0], Val::Vector(_) | Val::Halves(..)) =>
            {
                let Some(ty) = Ty::of(scalar) else { return unsupported(format!("{scalar:?}")) };
                let ops: Vec<Op> = parts.iter().flat_map(|p| self.out.components(p)).collect();
                Val::Many(ops.chunks(rows as usize).map(|c| self.out.vector(c.to_vec(), ty, false)).collect())
            }
            _ => Val::Many(parts),
        })
    }
}

/// A vector of f16 whose pairs are those of its parts.
fn pairs(parts: &[Val]) -> Option<Val> {
    let (mut words, mut count) = (Vec::new(), 0);
    for part in parts {
        let Val::Halves(more, n) = part else { return None };
        // Only the last part may end within a pair.
        if count % 2 == 1 {
            return None;
        }
        words.extend(more);
        count += n;
    }
    Some(Val::Halves(words, count))
}

pub fn literal_op(literal: naga::Literal) -> Result<Op> {
    Ok(match literal {
        naga::Literal::F32(x) => Op::Bits(x.to_bits()),
        naga::Literal::F16(x) => Op::Bits16(x.to_bits()),
        naga::Literal::U32(x) => Op::Bits(x),
        naga::Literal::I32(x) => Op::Bits(x as u32),
        naga::Literal::Bool(x) => Op::Bool(x),
        other => return unsupported(format!("{other:?}")),
    })
}
