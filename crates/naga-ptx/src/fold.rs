//! Operators of numbers that are known.

use naga::BinaryOperator as B;

use crate::value::{Op, Ty};

/// Whether the reciprocal of an f32 is exact.
pub fn is_power_of_two(bits: u32) -> bool {
    let exponent = bits >> 23 & 0xff;
    bits & 0x7f_ffff == 0 && (2..253).contains(&exponent)
}

/// Integers that are known.
pub fn known(op: B, a: u32, b: u32, ty: Ty) -> Option<Op> {
    let signed = ty == Ty::I32;
    let less = |a: u32, b: u32| if signed { (a as i32) < b as i32 } else { a < b };
    Some(match op {
        B::Add => Op::Bits(a.wrapping_add(b)),
        B::Subtract => Op::Bits(a.wrapping_sub(b)),
        B::Multiply => Op::Bits(a.wrapping_mul(b)),
        B::Divide if !signed && b > 0 => Op::Bits(a / b),
        B::Modulo if !signed && b > 0 => Op::Bits(a % b),
        B::And => Op::Bits(a & b),
        B::InclusiveOr => Op::Bits(a | b),
        B::ExclusiveOr => Op::Bits(a ^ b),
        B::ShiftLeft => Op::Bits(a << (b & 31)),
        B::ShiftRight if !signed => Op::Bits(a >> (b & 31)),
        B::Equal => Op::Bool(a == b),
        B::NotEqual => Op::Bool(a != b),
        B::Less => Op::Bool(less(a, b)),
        B::Greater => Op::Bool(less(b, a)),
        B::LessEqual => Op::Bool(!less(b, a)),
        B::GreaterEqual => Op::Bool(!less(a, b)),
        _ => return None,
    })
}
