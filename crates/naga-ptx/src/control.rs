//! Branches and loops.

use naga::{Expression as E, Handle, SwitchCase, SwitchValue};

use crate::Result;
use crate::context::{Context, Frame};
use crate::value::Op;

impl<'a> Context<'a> {
    pub fn branch(
        &mut self,
        frame: &mut Frame<'a>,
        condition: Handle<E>,
        accept: &'a naga::Block,
        reject: &'a naga::Block,
    ) -> Result<()> {
        let condition = self.op(frame, condition)?;
        if let Op::Bool(known) = condition {
            return self.block(frame, if known { accept } else { reject });
        }
        let before = frame.known.clone();
        let end = self.out.label();
        if accept.is_empty() {
            self.out.line(format!("@{condition} bra {end};"));
            self.block(frame, reject)?;
        } else {
            let otherwise = if reject.is_empty() { end.clone() } else { self.out.label() };
            self.out.line(format!("@!{condition} bra {otherwise};"));
            self.block(frame, accept)?;
            if !reject.is_empty() {
                self.jump(&end);
                self.out.place_label(&otherwise);
                frame.known = before;
                self.block(frame, reject)?;
            }
        }
        self.out.place_label(&end);
        frame.known.clear();
        Ok(())
    }

    pub fn switch(
        &mut self,
        frame: &mut Frame<'a>,
        selector: Handle<E>,
        cases: &'a [SwitchCase],
    ) -> Result<()> {
        let selector = self.op(frame, selector)?;
        let end = self.out.label();
        let labels: Vec<String> = cases.iter().map(|_| self.out.label()).collect();
        let mut default = end.clone();
        for (case, label) in cases.iter().zip(&labels) {
            let value = match case.value {
                SwitchValue::I32(v) => v as u32,
                SwitchValue::U32(v) => v,
                SwitchValue::Default => {
                    default = label.clone();
                    continue;
                }
            };
            let p = self.out.p();
            self.out.line(format!("setp.eq.u32 {p}, {selector}, {value};"));
            self.out.line(format!("@{p} bra {label};"));
        }
        self.jump(&default);
        frame.breaks.push(end.clone());
        for (case, label) in cases.iter().zip(&labels) {
            frame.known.clear();
            self.out.place_label(label);
            self.block(frame, &case.body)?;
            if !case.fall_through {
                self.jump(&end);
            }
        }
        frame.breaks.pop();
        self.out.place_label(&end);
        frame.known.clear();
        Ok(())
    }

    pub fn repeat(
        &mut self,
        frame: &mut Frame<'a>,
        body: &'a naga::Block,
        continuing: &'a naga::Block,
        break_if: Option<Handle<E>>,
    ) -> Result<()> {
        if let Some((counter, values)) = self.rounds(frame, body, continuing, break_if)? {
            return self.written_out(frame, body, counter, values);
        }
        let (start, next, end) = (self.out.label(), self.out.label(), self.out.label());
        frame.known.clear();
        self.out.place_label(&start);
        frame.breaks.push(end.clone());
        frame.continues.push(next.clone());
        self.block(frame, body)?;
        self.out.place_label(&next);
        frame.known.clear();
        self.block(frame, continuing)?;
        match break_if {
            Some(condition) => {
                let condition = self.op(frame, condition)?;
                let condition = self.out.in_register(condition);
                self.out.line(format!("@!{condition} bra {start};"));
            }
            None => self.jump(&start),
        }
        frame.breaks.pop();
        frame.continues.pop();
        self.out.place_label(&end);
        frame.known.clear();
        Ok(())
    }
}
