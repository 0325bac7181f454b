//! Values and places while a kernel is translated.

use std::collections::HashMap;

use naga::{GlobalVariable, Handle, Scalar, ScalarKind};

/// A register or a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// 32 bits: `%r`.
    R(u32),
    /// 16 bits: `%h`.
    H(u32),
    /// A predicate: `%p`.
    P(u32),
    /// 64 bits, for addresses: `%d`.
    D(u32),
    /// A number of 32 bits.
    Bits(u32),
    /// A number of 16 bits.
    Bits16(u16),
    /// A known condition.
    Bool(bool),
}

impl Op {
    /// The number, if it is one of 32 bits.
    pub fn bits(self) -> Option<u32> {
        match self {
            Op::Bits(bits) => Some(bits),
            _ => None,
        }
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Op::R(n) => write!(f, "%r{n}"),
            Op::H(n) => write!(f, "%h{n}"),
            Op::P(n) => write!(f, "%p{n}"),
            Op::D(n) => write!(f, "%d{n}"),
            Op::Bits(bits) => write!(f, "0x{bits:x}"),
            Op::Bits16(bits) => write!(f, "0x{bits:x}"),
            Op::Bool(b) => write!(f, "{}", i32::from(*b)),
        }
    }
}

/// Scalars that registers hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ty {
    U32,
    I32,
    F32,
    F16,
    Bool,
}

impl Ty {
    pub fn of(scalar: Scalar) -> Option<Ty> {
        Some(match (scalar.kind, scalar.width) {
            (ScalarKind::Uint, 4) => Ty::U32,
            (ScalarKind::Sint, 4) => Ty::I32,
            (ScalarKind::Float, 4) => Ty::F32,
            (ScalarKind::Float, 2) => Ty::F16,
            (ScalarKind::Bool, _) => Ty::Bool,
            _ => return None,
        })
    }

    /// Its name in arithmetic instructions.
    pub fn name(self) -> &'static str {
        match self {
            Ty::U32 => "u32",
            Ty::I32 => "s32",
            Ty::F32 => "f32",
            Ty::F16 => "f16",
            Ty::Bool => "pred",
        }
    }

    pub fn zero(self) -> Op {
        match self {
            Ty::F16 => Op::Bits16(0),
            Ty::Bool => Op::Bool(false),
            _ => Op::Bits(0),
        }
    }
}

/// A value of any type.
#[derive(Clone, Debug)]
pub enum Val {
    Scalar(Op),
    /// Components of a vector.
    Vector(Vec<Op>),
    /// Pairs of components of a vector of f16, and how many components there are.
    Halves(Vec<Op>, usize),
    /// Members, elements, or columns.
    Many(Vec<Val>),
    /// Registers of a cooperative matrix: pairs of f16 of A and B, f32 of C.
    Matrix(Vec<Op>),
    Pointer(Pointer),
}

/// A state space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Global { constant: bool },
    Shared,
    Param,
    Local,
}

/// The beginning of an address.
#[derive(Clone, Debug, PartialEq)]
pub enum Base {
    /// A name of shared memory, a parameter or local memory.
    Name(String),
    /// A register.
    At(Op),
}

/// A place in memory.
#[derive(Clone, Debug)]
pub struct Place {
    pub space: Space,
    pub base: Base,
    pub offset: i64,
    /// The first address and that behind the last one, where they are checked.
    pub bounds: Option<(Op, Op)>,
}

/// A step into a variable in registers.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Known(u32),
    Computed(Op),
}

#[derive(Clone, Debug)]
pub enum Pointer {
    Memory(Place),
    /// A part of a variable that registers hold.
    Variable {
        slot: usize,
        path: Vec<Step>,
    },
}

/// The module's variables.
#[derive(Default)]
pub struct Globals {
    /// Those in memory.
    pub places: HashMap<Handle<GlobalVariable>, Place>,
    /// Those in registers: slots of private variables.
    pub slots: HashMap<Handle<GlobalVariable>, usize>,
    /// Bytes of a buffer.
    pub lengths: HashMap<Handle<GlobalVariable>, Place>,
}

/// The number of 32 bits that `x` is.
pub fn f32_bits(x: f32) -> Op {
    Op::Bits(x.to_bits())
}
