//! Functions of one f32: powers of e come from `ex2.approx`, logarithms from `lg2.approx`.

use naga::MathFunction as M;

use crate::emit::Emitter;
use crate::value::{Op, Ty, f32_bits};
use crate::{Result, unsupported};

impl Emitter {
    pub fn exp2(&mut self, x: Op) -> Op {
        self.scalar("ex2.approx.ftz.f32", Ty::F32, &[x], Ty::F32)
    }

    fn exp(&mut self, x: Op) -> Op {
        let x = self.scalar("mul.f32", Ty::F32, &[x, f32_bits(std::f32::consts::LOG2_E)], Ty::F32);
        self.exp2(x)
    }

    fn reciprocal(&mut self, x: Op) -> Op {
        self.scalar("rcp.approx.ftz.f32", Ty::F32, &[x], Ty::F32)
    }

    /// A function of one f32.
    pub fn of_f32(&mut self, fun: M, x: Op) -> Result<Op> {
        let f = Ty::F32;
        let one = |e: &mut Emitter, name: &str, x: Op| e.scalar(name, f, &[x], f);
        Ok(match fun {
            M::Exp => self.exp(x),
            M::Exp2 => self.exp2(x),
            M::Log2 => one(self, "lg2.approx.ftz.f32", x),
            M::Log => {
                let l = one(self, "lg2.approx.ftz.f32", x);
                self.scalar("mul.f32", f, &[l, f32_bits(std::f32::consts::LN_2)], f)
            }
            M::Sqrt => one(self, "sqrt.approx.ftz.f32", x),
            M::InverseSqrt => one(self, "rsqrt.approx.ftz.f32", x),
            M::Sin => one(self, "sin.approx.ftz.f32", x),
            M::Cos => one(self, "cos.approx.ftz.f32", x),
            M::Tanh => self.tanh(x),
            M::Floor => one(self, "cvt.rmi.f32.f32", x),
            M::Ceil => one(self, "cvt.rpi.f32.f32", x),
            M::Round => one(self, "cvt.rni.f32.f32", x),
            M::Trunc => one(self, "cvt.rzi.f32.f32", x),
            M::Fract => {
                let whole = one(self, "cvt.rmi.f32.f32", x);
                self.scalar("sub.f32", f, &[x, whole], f)
            }
            M::Saturate => {
                let low = self.scalar("max.f32", f, &[x, f32_bits(0.0)], f);
                self.scalar("min.f32", f, &[low, f32_bits(1.0)], f)
            }
            M::Sign => {
                let x = self.in_register(x);
                let (above, below) = (self.p(), self.p());
                self.line(format!("setp.gt.f32 {above}, {x}, 0f00000000;"));
                self.line(format!("setp.lt.f32 {below}, {x}, 0f00000000;"));
                let down = self.r_from("selp.b32", &format!("0xbf800000, 0, {below}"));
                self.r_from("selp.b32", &format!("0x3f800000, {down}, {above}"))
            }
            M::QuantizeToF16 => {
                let half = self.as_f16(x);
                self.as_f32(half)
            }
            _ => return unsupported(format!("{fun:?}")),
        })
    }

    /// 1 − 2 / (exp(2|x|) + 1), with the sign of x. `tanh.approx` has 11 bits.
    fn tanh(&mut self, x: Op) -> Op {
        let f = Ty::F32;
        let x = self.in_register(x);
        let size = self.scalar("abs.f32", f, &[x], f);
        let twice = self.scalar("mul.f32", f, &[size, f32_bits(2.0 * std::f32::consts::LOG2_E)], f);
        let e = self.exp2(twice);
        let sum = self.scalar("add.f32", f, &[e, f32_bits(1.0)], f);
        let part = self.reciprocal(sum);
        let t = self.scalar("fma.rn.f32", f, &[part, f32_bits(-2.0), f32_bits(1.0)], f);
        self.r_from("copysign.f32", &format!("{x}, {t}"))
    }
}
