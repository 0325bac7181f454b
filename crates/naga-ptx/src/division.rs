//! Quotients of unsigned integers by numbers that are known: `ptxas` would divide by them as by any others, in some twenty instructions.

use naga::BinaryOperator as B;

use crate::emit::Emitter;
use crate::value::{Op, Ty};

impl Emitter {
    /// `x / n`, or `x % n`.
    pub fn quotient_by(&mut self, op: B, x: Op, n: u32) -> Op {
        match (op, n.is_power_of_two()) {
            (B::Divide, true) if n == 1 => x,
            (B::Divide, true) => self.u32("shr.u32", x, Op::Bits(n.trailing_zeros())),
            (B::Divide, false) => self.by_reciprocal(x, n),
            (_, true) => self.u32("and.b32", x, Op::Bits(n - 1)),
            (_, false) => {
                let quotient = self.by_reciprocal(x, n);
                let whole = self.u32("mul.lo.u32", quotient, Op::Bits(n));
                self.u32("sub.u32", x, whole)
            }
        }
    }

    fn by_reciprocal(&mut self, x: Op, n: u32) -> Op {
        let (reciprocal, shift) = reciprocal(n);
        let high = self.u32("mul.hi.u32", x, Op::Bits(reciprocal));
        let rest = self.u32("sub.u32", x, high);
        let half = self.u32("shr.u32", rest, Op::Bits(1));
        let sum = self.u32("add.u32", half, high);
        self.u32("shr.u32", sum, Op::Bits(shift))
    }

    fn u32(&mut self, instruction: &str, x: Op, y: Op) -> Op {
        self.scalar(instruction, Ty::U32, &[x, y], Ty::U32)
    }
}

/// The lower 32 bits of 2^(33 + shift) / n, which has 33 and is rounded up, and `shift` (Granlund and Montgomery, "Division by Invariant
/// Integers using Multiplication", 1994, figure 4.1). `n` is no power of two.
fn reciprocal(n: u32) -> (u32, u32) {
    let shift = n.ilog2();
    let excess = (2u64 << shift) - u64::from(n);
    (((excess << 32) / u64::from(n) + 1) as u32, shift)
}

#[cfg(test)]
mod tests {
    use super::reciprocal;

    #[test]
    fn quotients_by_reciprocals_are_exact() {
        let divisors = (3..2000).chain([65_535, 65_537, 1 << 31 | 1, u32::MAX - 1, u32::MAX]);
        for n in divisors.filter(|n: &u32| !n.is_power_of_two()) {
            let (reciprocal, shift) = reciprocal(n);
            let near =
                (0..40).flat_map(|k| [n.wrapping_mul(k).wrapping_sub(1), n.wrapping_mul(k), u32::MAX - k]);
            for x in near.chain((0..500).map(|k: u32| k.wrapping_mul(0x9e37_79b9))) {
                let high = (u64::from(x) * u64::from(reciprocal) >> 32) as u32;
                assert_eq!(((x - high) / 2 + high) >> shift, x / n, "{x} / {n}");
            }
        }
    }
}
