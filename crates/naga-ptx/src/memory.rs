//! Loads and stores.

use naga::{Module, TypeInner};

use crate::emit::Emitter;
use crate::value::{Base, Op, Place, Space, Ty, Val};
use crate::{Result, unsupported};

impl Place {
    pub fn plus(&self, bytes: i64) -> Place {
        Place { offset: self.offset + bytes, ..self.clone() }
    }
}

/// A scalar in memory: its bytes and the type of a load.
fn width(ty: Ty) -> u32 {
    if ty == Ty::F16 { 2 } else { 4 }
}

impl Emitter {
    pub fn address(&self, place: &Place) -> String {
        let base = match &place.base {
            Base::Name(name) => name.clone(),
            Base::At(op) => op.to_string(),
        };
        match place.offset {
            0 => format!("[{base}]"),
            n => format!("[{base}+{n}]"),
        }
    }

    /// The place of element `index` of elements `stride` bytes apart.
    pub fn element(&mut self, place: &Place, index: Op, signed: bool, stride: u32) -> Place {
        if let Some(index) = index.bits() {
            let index = if signed { i64::from(index as i32) } else { i64::from(index) };
            return place.plus(index * i64::from(stride));
        }
        let sign = if signed { "s32" } else { "u32" };
        if place.space == Space::Shared {
            let base = self.pointer_register(place);
            let to = self.r();
            self.line(format!("mad.lo.{sign} {to}, {index}, {stride}, {base};"));
            return Place { base: Base::At(to), ..place.clone() };
        }
        let base = self.pointer_register(place);
        let to = self.d();
        self.line(format!("mad.wide.{sign} {to}, {index}, {stride}, {base};"));
        Place { base: Base::At(to), ..place.clone() }
    }

    /// A register with the base of a place.
    fn pointer_register(&mut self, place: &Place) -> Op {
        match &place.base {
            Base::At(op) => *op,
            Base::Name(name) => {
                let (to, ty) = match place.space {
                    Space::Shared => (self.r(), "u32"),
                    _ => (self.d(), "u64"),
                };
                self.line(format!("mov.{ty} {to}, {name};"));
                to
            }
        }
    }

    /// The condition of an access to `bytes`, before its instruction; empty where nothing is checked.
    pub fn guard(&mut self, place: &Place, bytes: u32) -> String {
        let (Some((start, end)), Base::At(base)) = (place.bounds, &place.base) else { return String::new() };
        let (first, last) = (self.d(), self.d());
        self.line(format!("add.s64 {first}, {base}, {};", place.offset));
        self.line(format!("add.s64 {last}, {first}, {bytes};"));
        let (above, inside) = (self.p(), self.p());
        self.line(format!("setp.ge.u64 {above}, {first}, {start};"));
        self.line(format!("setp.le.and.u64 {inside}, {last}, {end}, {above};"));
        format!("@{inside} ")
    }

    /// Zeros in the registers of a load that may not happen.
    pub fn clear(&mut self, guard: &str, registers: &[Op]) {
        if !guard.is_empty() {
            for op in registers {
                let ty = if matches!(op, Op::H(_)) { "b16" } else { "b32" };
                self.line(format!("mov.{ty} {op}, 0;"));
            }
        }
    }

    fn load_instruction(&self, space: Space) -> &'static str {
        match space {
            // `ptxas` moves a load that nothing can change past the wait for the kernel ahead.
            Space::Global { constant: true } if self.early => "ld.global",
            Space::Global { constant: true } => "ld.global.nc",
            Space::Global { constant: false } => "ld.global",
            Space::Shared => "ld.shared",
            Space::Param => "ld.param",
            Space::Local => "ld.local",
        }
    }

    fn store_instruction(space: Space) -> &'static str {
        match space {
            Space::Global { .. } => "st.global",
            Space::Shared => "st.shared",
            Space::Param => unreachable!("parameters are not written"),
            Space::Local => "st.local",
        }
    }

    /// `count` registers of 32 bits.
    pub fn load_words(&mut self, place: &Place, count: usize, aligned: bool) -> Vec<Op> {
        let instruction = self.load_instruction(place.space);
        let mut words = Vec::new();
        while words.len() < count {
            let left = count - words.len();
            let at = place.plus(4 * words.len() as i64);
            let n = match left {
                4.. if aligned => 4,
                2.. if aligned => 2,
                _ => 1,
            };
            let to: Vec<Op> = (0..n).map(|_| self.r()).collect();
            let address = self.address(&at);
            let guard = self.guard(&at, 4 * n as u32);
            self.clear(&guard, &to);
            match n {
                1 => self.line(format!("{guard}{instruction}.b32 {}, {address};", to[0])),
                _ => {
                    let names: Vec<String> = to.iter().map(Op::to_string).collect();
                    self.line(format!("{guard}{instruction}.v{n}.b32 {{{}}}, {address};", names.join(", ")));
                }
            }
            words.extend(to);
        }
        words
    }

    pub fn store_words(&mut self, place: &Place, words: &[Op], aligned: bool) {
        let instruction = Emitter::store_instruction(place.space);
        let mut done = 0;
        while done < words.len() {
            let at = place.plus(4 * done as i64);
            let n = match words.len() - done {
                4.. if aligned => 4,
                2.. if aligned => 2,
                _ => 1,
            };
            let from: Vec<Op> = words[done..done + n].iter().map(|op| self.in_register(*op)).collect();
            let address = self.address(&at);
            let guard = self.guard(&at, 4 * n as u32);
            match n {
                1 => self.line(format!("{guard}{instruction}.b32 {address}, {};", from[0])),
                _ => {
                    let names: Vec<String> = from.iter().map(Op::to_string).collect();
                    self.line(format!("{guard}{instruction}.v{n}.b32 {address}, {{{}}};", names.join(", ")));
                }
            }
            done += n;
        }
    }

    fn load_scalar(&mut self, place: &Place, ty: Ty) -> Op {
        let instruction = self.load_instruction(place.space);
        let address = self.address(place);
        match ty {
            Ty::F16 => {
                let to = self.h();
                let guard = self.guard(place, 2);
                self.clear(&guard, &[to]);
                self.line(format!("{guard}{instruction}.b16 {to}, {address};"));
                to
            }
            Ty::Bool => {
                let word = self.load_words(place, 1, false)[0];
                let to = self.p();
                self.line(format!("setp.ne.u32 {to}, {word}, 0;"));
                to
            }
            _ => self.load_words(place, 1, false)[0],
        }
    }

    fn store_scalar(&mut self, place: &Place, ty: Ty, op: Op) {
        match ty {
            Ty::F16 => {
                let op = self.in_register(op);
                let address = self.address(place);
                let guard = self.guard(place, 2);
                self.line(format!("{guard}{}.b16 {address}, {op};", Emitter::store_instruction(place.space)));
            }
            Ty::Bool => {
                let p = self.in_register(op);
                let word = self.r();
                self.line(format!("selp.b32 {word}, 1, 0, {p};"));
                self.store_words(place, &[word], false);
            }
            _ => self.store_words(place, &[op], false),
        }
    }

    /// Loads a value of a type in memory.
    pub fn load(&mut self, module: &Module, place: &Place, inner: &TypeInner) -> Result<Val> {
        Ok(match *inner {
            TypeInner::Scalar(scalar) => match Ty::of(scalar) {
                Some(ty) => Val::Scalar(self.load_scalar(place, ty)),
                None => return unsupported(format!("{scalar:?}")),
            },
            TypeInner::Atomic(scalar) => {
                let Some(Ty::U32 | Ty::I32) = Ty::of(scalar) else {
                    return unsupported(format!("{scalar:?}"));
                };
                let to = self.r();
                let address = self.address(place);
                let guard = self.guard(place, 4);
                self.clear(&guard, &[to]);
                match place.space {
                    Space::Shared => self.line(format!("ld.relaxed.cta.shared.b32 {to}, {address};")),
                    _ => self.line(format!("{guard}ld.relaxed.gpu.global.b32 {to}, {address};")),
                }
                Val::Scalar(to)
            }
            TypeInner::Vector { size, scalar } => {
                let n = size as usize;
                match Ty::of(scalar) {
                    Some(Ty::F16) => {
                        let words = self.load_words(place, n.div_ceil(2), n != 3);
                        Val::Halves(words, n)
                    }
                    Some(Ty::Bool) => {
                        let ops = (0..n).map(|i| self.load_scalar(&place.plus(4 * i as i64), Ty::Bool));
                        Val::Vector(ops.collect())
                    }
                    Some(_) => Val::Vector(self.load_words(place, n, true)),
                    None => return unsupported(format!("{scalar:?}")),
                }
            }
            TypeInner::Matrix { columns, rows, scalar } => {
                let column = TypeInner::Vector { size: rows, scalar };
                let stride = i64::from(column_stride(rows, scalar));
                let columns =
                    (0..columns as i64).map(|c| self.load(module, &place.plus(c * stride), &column));
                Val::Many(columns.collect::<Result<_>>()?)
            }
            TypeInner::Array { base, size: naga::ArraySize::Constant(n), stride } => {
                let elements = (0..n.get()).map(|i| {
                    self.load(
                        module,
                        &place.plus(i64::from(i) * i64::from(stride)),
                        &module.types[base].inner,
                    )
                });
                Val::Many(elements.collect::<Result<_>>()?)
            }
            TypeInner::Struct { ref members, .. } => {
                let members = members
                    .iter()
                    .map(|m| self.load(module, &place.plus(i64::from(m.offset)), &module.types[m.ty].inner));
                Val::Many(members.collect::<Result<_>>()?)
            }
            ref other => return unsupported(format!("a load of {other:?}")),
        })
    }

    /// Stores a value of a type in memory.
    pub fn store(&mut self, module: &Module, place: &Place, inner: &TypeInner, value: &Val) -> Result<()> {
        match (inner, value) {
            (TypeInner::Scalar(scalar), Val::Scalar(op)) => {
                self.store_scalar(place, Ty::of(*scalar).expect("it has a value"), *op);
            }
            (TypeInner::Atomic(_), Val::Scalar(op)) => {
                let op = self.in_register(*op);
                let address = self.address(place);
                let guard = self.guard(place, 4);
                match place.space {
                    Space::Shared => self.line(format!("st.relaxed.cta.shared.b32 {address}, {op};")),
                    _ => self.line(format!("{guard}st.relaxed.gpu.global.b32 {address}, {op};")),
                }
            }
            (TypeInner::Vector { scalar, .. }, Val::Vector(ops)) => match Ty::of(*scalar) {
                Some(Ty::Bool) => {
                    for (i, op) in ops.iter().enumerate() {
                        self.store_scalar(&place.plus(4 * i as i64), Ty::Bool, *op);
                    }
                }
                _ => self.store_words(place, ops, true),
            },
            (TypeInner::Vector { .. }, Val::Halves(words, n)) => match n {
                3 => {
                    self.store_words(place, &words[..1], false);
                    let (third, _) = self.split(words[1]);
                    self.store_scalar(&place.plus(4), Ty::F16, third);
                }
                _ => self.store_words(place, words, true),
            },
            (TypeInner::Matrix { rows, scalar, .. }, Val::Many(columns)) => {
                let column = TypeInner::Vector { size: *rows, scalar: *scalar };
                for (c, value) in columns.iter().enumerate() {
                    let at = place.plus(c as i64 * i64::from(column_stride(*rows, *scalar)));
                    self.store(module, &at, &column, value)?;
                }
            }
            (TypeInner::Array { base, stride, .. }, Val::Many(elements)) => {
                for (i, value) in elements.iter().enumerate() {
                    let at = place.plus(i as i64 * i64::from(*stride));
                    self.store(module, &at, &module.types[*base].inner, value)?;
                }
            }
            (TypeInner::Struct { members, .. }, Val::Many(values)) => {
                for (m, value) in members.iter().zip(values) {
                    self.store(module, &place.plus(i64::from(m.offset)), &module.types[m.ty].inner, value)?;
                }
            }
            (inner, _) => return unsupported(format!("a store of {inner:?}")),
        }
        Ok(())
    }
}

/// Bytes from a column to the next.
pub fn column_stride(rows: naga::VectorSize, scalar: naga::Scalar) -> u32 {
    let n = if rows as u32 == 3 { 4 } else { rows as u32 };
    n * u32::from(scalar.width)
}

/// Bytes from an element to the next, behind a pointer to `base`; `None` where it has no elements.
pub fn stride_of(base: &TypeInner) -> Option<u32> {
    match *base {
        TypeInner::Array { stride, .. } => Some(stride),
        TypeInner::Vector { scalar, .. } => Ty::of(scalar).map(width),
        TypeInner::Matrix { rows, scalar, .. } => Some(column_stride(rows, scalar)),
        _ => None,
    }
}
