//! GGUF metadata values with their exact types, and conversions to Rust types; entries of tensors.

use std::ops::Range;

use crate::base::GgmlType;

/// A tensor's entry in the header.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Name as in the file, with `.weight`.
    pub name: String,
    /// Sizes in GGUF's `ne` order: the first is the contiguous one (columns, the input width).
    pub shape: Vec<usize>,
    /// Element or block format.
    pub ty: GgmlType,
    /// Position of the data in the file, in bytes.
    pub range: Range<u64>,
}

/// One metadata value. Source: the GGUF specification, `gguf_metadata_value_type`.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // each variant is the Rust type that it holds
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// A metadata array: all elements have one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // each variant is the Rust type that it holds
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(a) => a.len(),
            Array::I8(a) => a.len(),
            Array::U16(a) => a.len(),
            Array::I16(a) => a.len(),
            Array::U32(a) => a.len(),
            Array::I32(a) => a.len(),
            Array::U64(a) => a.len(),
            Array::I64(a) => a.len(),
            Array::F32(a) => a.len(),
            Array::F64(a) => a.len(),
            Array::Bool(a) => a.len(),
            Array::String(a) => a.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as integers; `None` where they are not integers or a `u64` exceeds `i64`.
    fn integers(&self) -> Option<Vec<i64>> {
        fn widen<T: Copy + Into<i64>>(a: &[T]) -> Option<Vec<i64>> {
            Some(a.iter().map(|&x| x.into()).collect())
        }
        match self {
            Array::U8(a) => widen(a),
            Array::I8(a) => widen(a),
            Array::U16(a) => widen(a),
            Array::I16(a) => widen(a),
            Array::U32(a) => widen(a),
            Array::I32(a) => widen(a),
            Array::I64(a) => widen(a),
            Array::U64(a) => a.iter().map(|&x| i64::try_from(x).ok()).collect(),
            Array::F32(_) | Array::F64(_) | Array::Bool(_) | Array::String(_) => None,
        }
    }
}

impl Value {
    /// The value as an integer; `None` where it is not an integer or a `u64` exceeds `i64`.
    fn integer(&self) -> Option<i64> {
        match *self {
            Value::U8(x) => Some(x.into()),
            Value::I8(x) => Some(x.into()),
            Value::U16(x) => Some(x.into()),
            Value::I16(x) => Some(x.into()),
            Value::U32(x) => Some(x.into()),
            Value::I32(x) => Some(x.into()),
            Value::I64(x) => Some(x),
            Value::U64(x) => i64::try_from(x).ok(),
            _ => None,
        }
    }

    /// Type and value (or length) for error messages, at most about 60 characters.
    pub fn describe(&self) -> String {
        match self {
            Value::String(s) if s.chars().count() > 40 => {
                format!("the string {:?}…", s.chars().take(40).collect::<String>())
            }
            Value::String(s) => format!("the string {s:?}"),
            Value::Bool(x) => format!("the bool {x}"),
            Value::F32(x) => format!("the float {x}"),
            Value::F64(x) => format!("the float {x}"),
            Value::U64(x) => format!("the integer {x}"),
            Value::Array(a) => {
                let of = match a {
                    Array::String(_) => "strings",
                    Array::Bool(_) => "bools",
                    Array::F32(_) | Array::F64(_) => "floats",
                    _ => "integers",
                };
                format!("an array of {} {of}", a.len())
            }
            other => format!("the integer {}", other.integer().unwrap_or_default()),
        }
    }
}

/// A type that a metadata value can be read as.
pub trait FromValue<'a>: Sized {
    /// The expected type in words, for error messages.
    const EXPECTED: &'static str;
    /// The value, or `None` where its type or range does not fit.
    fn from_value(value: &'a Value) -> Option<Self>;
}

macro_rules! from_value {
    ($lifetime:lifetime $type:ty, $expected:literal, $value:ident => $convert:expr) => {
        impl<$lifetime> FromValue<$lifetime> for $type {
            const EXPECTED: &'static str = $expected;
            fn from_value($value: &$lifetime Value) -> Option<Self> {
                $convert
            }
        }
    };
}

from_value!('a u32, "an integer from 0 to 4294967295", value => value.integer()?.try_into().ok());
from_value!('a i32, "an integer of 32 bits", value => value.integer()?.try_into().ok());
from_value!('a u64, "an integer of 0 or more", value => match value {
    Value::U64(x) => Some(*x),
    _ => value.integer()?.try_into().ok(),
});
from_value!('a f32, "a float", value => match *value {
    Value::F32(x) => Some(x),
    Value::F64(x) => Some(x as f32),
    _ => None,
});
from_value!('a bool, "a bool", value => match *value {
    Value::Bool(x) => Some(x),
    _ => None,
});
from_value!('a &'a str, "a string", value => match value {
    Value::String(s) => Some(s),
    _ => None,
});
from_value!('a Vec<u32>, "an array of integers from 0 to 4294967295", value => match value {
    Value::Array(a) => a.integers()?.into_iter().map(|x| x.try_into().ok()).collect(),
    _ => None,
});
from_value!('a Vec<i32>, "an array of integers of 32 bits", value => match value {
    Value::Array(a) => a.integers()?.into_iter().map(|x| x.try_into().ok()).collect(),
    _ => None,
});
// Scores of a vocabulary may be integers, as in llama.cpp.
from_value!('a Vec<f32>, "an array of floats", value => match value {
    Value::Array(Array::F32(a)) => Some(a.clone()),
    Value::Array(Array::F64(a)) => Some(a.iter().map(|&x| x as f32).collect()),
    Value::Array(a) => Some(a.integers()?.into_iter().map(|x| x as f32).collect()),
    _ => None,
});
from_value!('a Vec<bool>, "an array of bools", value => match value {
    Value::Array(Array::Bool(a)) => Some(a.clone()),
    _ => None,
});
from_value!('a &'a [String], "an array of strings", value => match value {
    Value::Array(Array::String(a)) => Some(a),
    _ => None,
});
