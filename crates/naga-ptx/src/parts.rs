//! Parts of values in registers.

use crate::emit::Emitter;
use crate::value::{Op, Step, Ty, Val};

impl Emitter {
    /// The two halves of a pair.
    pub fn split(&mut self, pair: Op) -> (Op, Op) {
        if let Op::Bits(bits) = pair {
            return (Op::Bits16(bits as u16), Op::Bits16((bits >> 16) as u16));
        }
        let (low, high) = (self.h(), self.h());
        self.line(format!("mov.b32 {{{low}, {high}}}, {pair};"));
        (low, high)
    }

    /// A pair of two halves.
    pub fn join(&mut self, low: Op, high: Op) -> Op {
        if let (Op::Bits16(low), Op::Bits16(high)) = (low, high) {
            return Op::Bits(u32::from(low) | u32::from(high) << 16);
        }
        let (low, high) = (self.in_register(low), self.in_register(high));
        let to = self.r();
        self.line(format!("mov.b32 {to}, {{{low}, {high}}};"));
        to
    }

    /// The part of a value in registers that `path` leads to.
    pub fn part(&mut self, value: &Val, path: &[Step]) -> Val {
        let Some((step, rest)) = path.split_first() else {
            return value.clone();
        };
        let children = self.children(value);
        match step {
            // An index that is out of bounds is in code that is never reached; WGSL allows any element.
            Step::Known(i) => self.part(&children[(*i as usize).min(children.len() - 1)], rest),
            Step::Computed(index) => {
                let parts: Vec<Val> = children.iter().map(|child| self.part(child, rest)).collect();
                let mut chosen = parts[0].clone();
                for (i, part) in parts.iter().enumerate().skip(1) {
                    let p = self.p();
                    self.line(format!("setp.eq.u32 {p}, {index}, {i};"));
                    chosen = self.choose(p, part, &chosen);
                }
                chosen
            }
        }
    }

    fn children(&mut self, value: &Val) -> Vec<Val> {
        match value {
            Val::Many(values) => values.clone(),
            Val::Vector(ops) => ops.iter().map(|op| Val::Scalar(*op)).collect(),
            Val::Halves(..) => self.components(value).into_iter().map(Val::Scalar).collect(),
            _ => unreachable!("{value:?} has no parts"),
        }
    }

    /// The scalars of a vector or scalar.
    pub fn components(&mut self, value: &Val) -> Vec<Op> {
        match value {
            Val::Scalar(op) => vec![*op],
            Val::Vector(ops) => ops.clone(),
            Val::Halves(words, n) => {
                let mut halves: Vec<Op> = words
                    .iter()
                    .flat_map(|w| {
                        let (low, high) = self.split(*w);
                        [low, high]
                    })
                    .collect();
                halves.truncate(*n);
                halves
            }
            _ => unreachable!("{value:?} has no components"),
        }
    }

    /// A vector, or a scalar of one component.
    pub fn vector(&mut self, ops: Vec<Op>, ty: Ty, scalar: bool) -> Val {
        match ty {
            _ if scalar => Val::Scalar(ops[0]),
            Ty::F16 => {
                let n = ops.len();
                let words =
                    ops.chunks(2).map(|pair| self.join(pair[0], *pair.get(1).unwrap_or(&Op::Bits16(0))));
                Val::Halves(words.collect(), n)
            }
            _ => Val::Vector(ops),
        }
    }

    /// `condition ? accept : reject`.
    pub fn choose(&mut self, condition: Op, accept: &Val, reject: &Val) -> Val {
        match (accept, reject) {
            (Val::Scalar(a), Val::Scalar(b)) => Val::Scalar(self.choose_op(condition, *a, *b)),
            (Val::Vector(a), Val::Vector(b)) => {
                Val::Vector(a.iter().zip(b).map(|(a, b)| self.choose_op(condition, *a, *b)).collect())
            }
            (Val::Matrix(a), Val::Matrix(b)) => {
                Val::Matrix(a.iter().zip(b).map(|(a, b)| self.choose_op(condition, *a, *b)).collect())
            }
            (Val::Halves(a, n), Val::Halves(b, _)) => {
                Val::Halves(a.iter().zip(b).map(|(a, b)| self.choose_op(condition, *a, *b)).collect(), *n)
            }
            (Val::Many(a), Val::Many(b)) => {
                Val::Many(a.iter().zip(b).map(|(a, b)| self.choose(condition, a, b)).collect())
            }
            _ => unreachable!("both have a type"),
        }
    }

    pub fn choose_op(&mut self, condition: Op, a: Op, b: Op) -> Op {
        if let Op::Bool(condition) = condition {
            return if condition { a } else { b };
        }
        if a == b {
            return a;
        }
        match a {
            Op::P(_) | Op::Bool(_) => {
                let (a, b) = (self.in_register(a), self.in_register(b));
                let (yes, not, no, to) = (self.p(), self.p(), self.p(), self.p());
                self.line(format!("and.pred {yes}, {condition}, {a};"));
                self.line(format!("not.pred {not}, {condition};"));
                self.line(format!("and.pred {no}, {not}, {b};"));
                self.line(format!("or.pred {to}, {yes}, {no};"));
                to
            }
            Op::H(_) | Op::Bits16(_) => {
                let (a, b) = (self.in_register(a), self.in_register(b));
                let to = self.h();
                self.line(format!("selp.b16 {to}, {a}, {b}, {condition};"));
                to
            }
            _ => self.r_from("selp.b32", &format!("{a}, {b}, {condition}")),
        }
    }

    /// Assigns `value` to the part of a variable in registers that `path` leads to, where `guard` holds.
    pub fn assign_part(&mut self, variable: &mut Val, path: &[Step], value: &Val, guard: Option<Op>) {
        let Some((step, rest)) = path.split_first() else {
            self.assign_all(variable, value, guard);
            return;
        };
        if let Val::Halves(words, n) = variable {
            self.assign_half(words, *n, *step, value, guard);
            return;
        }
        let count = match variable {
            Val::Many(values) => values.len(),
            Val::Vector(ops) => ops.len(),
            _ => unreachable!("{variable:?} has no parts"),
        };
        for i in 0..count {
            let guard = match step {
                Step::Known(k) if *k as usize != i => continue,
                Step::Known(_) => guard,
                Step::Computed(index) => Some(self.is_at(*index, i, guard)),
            };
            match variable {
                Val::Many(values) => self.assign_part(&mut values[i], rest, value, guard),
                Val::Vector(ops) => self.assign_all(&mut Val::Scalar(ops[i]), value, guard),
                _ => unreachable!("it has parts"),
            }
        }
    }

    /// Assigns one of `n` halves in pairs, which are taken apart and joined again.
    fn assign_half(&mut self, words: &[Op], n: usize, step: Step, value: &Val, guard: Option<Op>) {
        let Val::Scalar(new) = *value else { unreachable!("a component") };
        let mut halves = self.components(&Val::Halves(words.to_vec(), n));
        for (i, half) in halves.iter_mut().enumerate() {
            match step {
                Step::Known(k) if k as usize == i => {
                    *half = guard.map_or(new, |guard| self.choose_op(guard, new, *half));
                }
                Step::Known(_) => {}
                Step::Computed(index) => {
                    let here = self.is_at(index, i, guard);
                    *half = self.choose_op(here, new, *half);
                }
            }
        }
        let Val::Halves(joined, _) = self.vector(halves, Ty::F16, false) else { unreachable!("a vector") };
        for (to, from) in words.iter().zip(joined) {
            self.assign(*to, from);
        }
    }

    fn is_at(&mut self, index: Op, i: usize, guard: Option<Op>) -> Op {
        let p = self.p();
        match guard {
            None => self.line(format!("setp.eq.u32 {p}, {index}, {i};")),
            Some(guard) => self.line(format!("setp.eq.and.u32 {p}, {index}, {i}, {guard};")),
        }
        p
    }

    fn assign_all(&mut self, variable: &mut Val, value: &Val, guard: Option<Op>) {
        match (variable, value) {
            (Val::Scalar(to), Val::Scalar(from)) => self.assign_guarded(*to, *from, guard),
            (Val::Vector(to), Val::Vector(from))
            | (Val::Matrix(to), Val::Matrix(from))
            | (Val::Halves(to, _), Val::Halves(from, _)) => {
                for (to, from) in to.iter().zip(from) {
                    self.assign_guarded(*to, *from, guard);
                }
            }
            (Val::Many(to), Val::Many(from)) => {
                for (to, from) in to.iter_mut().zip(from) {
                    self.assign_all(to, from, guard);
                }
            }
            (variable, value) => unreachable!("{variable:?} = {value:?}"),
        }
    }

    fn assign_guarded(&mut self, to: Op, from: Op, guard: Option<Op>) {
        match guard {
            None => self.assign(to, from),
            Some(guard) => {
                let from = self.choose_op(guard, from, to);
                if from != to {
                    self.assign(to, from);
                }
            }
        }
    }
}
