//! Loops that are written out round by round: those of few rounds, all known, that index local arrays, which registers hold then.

use std::collections::HashSet;

use naga::{
    BinaryOperator as B, Expression as E, Function, Handle, LocalVariable, Module, Statement as S, TypeInner,
};

use crate::Result;
use crate::constant::literal_op;
use crate::context::{Context, Frame};
use crate::value::{Op, Ty, Val};

/// The head of a loop that counts by known numbers.
struct Counting {
    counter: Handle<LocalVariable>,
    signed: bool,
    goes_on: B,
    bound: u32,
    step: B,
    by: u32,
}

impl Counting {
    /// Whether there is a round at `i`; `None` where the comparison is not known.
    fn goes_on(&self, i: u32) -> Option<bool> {
        let (a, b) = match self.signed {
            true => (i64::from(i as i32), i64::from(self.bound as i32)),
            false => (i64::from(i), i64::from(self.bound)),
        };
        Some(match self.goes_on {
            B::Less => a < b,
            B::LessEqual => a <= b,
            B::Greater => a > b,
            B::GreaterEqual => a >= b,
            B::NotEqual => a != b,
            _ => return None,
        })
    }

    fn next(&self, i: u32) -> Option<u32> {
        Some(match self.step {
            B::Add => i.wrapping_add(self.by),
            B::Subtract => i.wrapping_sub(self.by),
            B::Divide if self.by > 1 && !self.signed => i / self.by,
            B::Multiply => i.wrapping_mul(self.by),
            _ => return None,
        })
    }

    /// The counter's value in every round, and after the last one.
    fn values(&self, first: u32, most: usize) -> Option<Vec<u32>> {
        let (mut values, mut i) = (Vec::new(), first);
        while self.goes_on(i)? {
            values.push(i);
            if values.len() > most {
                return None;
            }
            i = self.next(i)?;
        }
        values.push(i);
        Some(values)
    }
}

impl<'a> Context<'a> {
    /// The counter of a loop that is written out, its values in every round, and its value after the last one.
    pub fn rounds(
        &mut self,
        frame: &mut Frame<'a>,
        body: &'a naga::Block,
        continuing: &'a naga::Block,
        break_if: Option<Handle<E>>,
    ) -> Result<Option<(Handle<LocalVariable>, Vec<u32>)>> {
        let function = frame.function;
        if break_if.is_some() {
            return Ok(None);
        }
        let Some(counting) = self.counting(frame, body, continuing)? else { return Ok(None) };
        let counter = counting.counter;
        let Some(first) = frame.known.get(&counter).copied() else { return Ok(None) };
        let Some(values) = counting.values(first, self.out.options.most_rounds as usize) else {
            return Ok(None);
        };
        if stores_to(function, body, counter) || !indexes_locals(function, body) || leaves_early(body) {
            return Ok(None);
        }
        Ok(Some((counter, values)))
    }

    /// Reads `if (counter < bound) {} else { break; }` at the start of a body, and `counter = counter + step` at its end.
    fn counting(
        &mut self,
        frame: &Frame<'a>,
        body: &'a naga::Block,
        continuing: &'a naga::Block,
    ) -> Result<Option<Counting>> {
        let function = frame.function;
        let counter_of = |e: Handle<E>| match function.expressions[e] {
            E::Load { pointer } => match function.expressions[pointer] {
                E::LocalVariable(l) => Some(l),
                _ => None,
            },
            _ => None,
        };
        let Some(S::If { condition, accept, reject }) = body.iter().find(|s| !matches!(s, S::Emit(_))) else {
            return Ok(None);
        };
        let ends = accept.is_empty() && reject.len() == 1 && matches!(reject.first(), Some(S::Break));
        let E::Binary { op: goes_on, left, right } = function.expressions[*condition] else {
            return Ok(None);
        };
        let (Some(counter), true) = (counter_of(left), ends) else { return Ok(None) };
        let Some(bound) = self.number(function, right)? else { return Ok(None) };
        let stores: Vec<_> = continuing.iter().filter(|s| !matches!(s, S::Emit(_))).collect();
        let [S::Store { pointer, value }] = stores[..] else { return Ok(None) };
        let (E::LocalVariable(stored), E::Binary { op: step, left, right }) =
            (&function.expressions[*pointer], &function.expressions[*value])
        else {
            return Ok(None);
        };
        if *stored != counter || counter_of(*left) != Some(counter) {
            return Ok(None);
        }
        let Some(by) = self.number(function, *right)? else { return Ok(None) };
        let signed = self.ty(frame, *left)? == Ty::I32;
        Ok(Some(Counting { counter, signed, goes_on, bound, step: *step, by }))
    }

    /// The number that an expression is, if it is constant.
    fn number(&mut self, function: &'a Function, e: Handle<E>) -> Result<Option<u32>> {
        let value = match function.expressions[e] {
            E::Literal(literal) => Val::Scalar(literal_op(literal)?),
            E::Constant(c) => self.constant(self.module.constants[c].init)?,
            _ => return Ok(None),
        };
        Ok(match value {
            Val::Scalar(op) => op.bits(),
            _ => None,
        })
    }

    pub fn written_out(
        &mut self,
        frame: &mut Frame<'a>,
        body: &'a naga::Block,
        counter: Handle<LocalVariable>,
        mut values: Vec<u32>,
    ) -> Result<()> {
        let last = values.pop().expect("the value after the last round");
        let end = self.out.label();
        frame.breaks.push(end.clone());
        for value in values {
            let next = self.out.label();
            frame.continues.push(next.clone());
            frame.rounds.insert(counter, Op::Bits(value));
            frame.known.clear();
            self.block(frame, body)?;
            frame.continues.pop();
            self.out.place_label(&next);
        }
        frame.rounds.remove(&counter);
        frame.breaks.pop();
        self.out.place_label(&end);
        frame.known.clear();
        if let Ok(slot) = frame.locals[&counter] {
            let mut variable = self.slots[slot].clone();
            self.out.assign_part(&mut variable, &[], &Val::Scalar(Op::Bits(last)), None);
        }
        Ok(())
    }
}

/// Whether a loop is left from within, so that its counter is unknown behind it.
fn leaves_early(body: &naga::Block) -> bool {
    let mut rest = body.iter().skip_while(|s| matches!(s, S::Emit(_))).skip(1);
    rest.any(breaks)
}

fn breaks(statement: &S) -> bool {
    match statement {
        S::Break => true,
        // These have breaks of their own.
        S::Loop { .. } | S::Switch { .. } => false,
        _ => blocks(statement).into_iter().any(|block| block.iter().any(breaks)),
    }
}

/// The local variable that a pointer is a part of, if its index is computed on the way.
fn computed_base(function: &Function, mut e: Handle<E>) -> Option<Handle<LocalVariable>> {
    loop {
        match function.expressions[e] {
            E::Access { base, .. } | E::AccessIndex { base, .. } => e = base,
            E::LocalVariable(l) => return Some(l),
            _ => return None,
        }
    }
}

/// Local variables within which an index is computed.
pub fn computed_arrays(function: &Function) -> HashSet<Handle<LocalVariable>> {
    let computed = function.expressions.iter().filter_map(|(_, e)| match e {
        E::Access { base, .. } => computed_base(function, *base),
        _ => None,
    });
    computed.collect()
}

/// Elements of the longest array within a type.
pub fn longest(module: &Module, inner: &TypeInner) -> u32 {
    match inner {
        TypeInner::Array { base, size: naga::ArraySize::Constant(n), .. } => {
            n.get().max(longest(module, &module.types[*base].inner))
        }
        TypeInner::Struct { members, .. } => {
            members.iter().map(|m| longest(module, &module.types[m.ty].inner)).max().unwrap_or(0)
        }
        _ => 0,
    }
}

/// The blocks within a statement.
fn blocks(statement: &S) -> Vec<&naga::Block> {
    match statement {
        S::Block(block) => vec![block],
        S::If { accept, reject, .. } => vec![accept, reject],
        S::Switch { cases, .. } => cases.iter().map(|c| &c.body).collect(),
        S::Loop { body, continuing, .. } => vec![body, continuing],
        _ => Vec::new(),
    }
}

/// Whether a block assigns to a variable or a part of it.
fn stores_to(function: &Function, block: &naga::Block, local: Handle<LocalVariable>) -> bool {
    block.iter().any(|s| match s {
        S::Store { pointer, .. } => computed_base(function, *pointer) == Some(local),
        S::Call { arguments, .. } => arguments.iter().any(|a| computed_base(function, *a) == Some(local)),
        _ => blocks(s).into_iter().any(|b| stores_to(function, b, local)),
    })
}

/// Whether a block computes an index of a local variable.
fn indexes_locals(function: &Function, block: &naga::Block) -> bool {
    block.iter().any(|s| match s {
        S::Emit(range) => range.clone().any(|e| match function.expressions[e] {
            E::Access { base, .. } => computed_base(function, base).is_some(),
            _ => false,
        }),
        _ => blocks(s).into_iter().any(|b| indexes_locals(function, b)),
    })
}
