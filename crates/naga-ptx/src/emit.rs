//! The text: registers, declarations, instructions.

use std::fmt::Write;

use crate::value::{Base, Op, Place, Space, Ty, Val};
use crate::{Options, Param, ParamKind};

pub struct Emitter {
    pub options: Options,
    threads: [u32; 3],
    params: Vec<Param>,
    declarations: String,
    body: String,
    registers: [u32; 4],
    labels: u32,
    locals: u32,
    /// Whether the kernel reads memory before it waits for the one ahead.
    pub early: bool,
    /// Blocks that a multiprocessor shall have room for.
    pub at_once: Option<u32>,
    /// Whether the text waits for the kernel ahead already.
    waits: bool,
}

impl Emitter {
    pub fn new(options: Options, threads: [u32; 3]) -> Emitter {
        Emitter {
            options,
            threads,
            params: Vec::new(),
            declarations: String::new(),
            body: String::new(),
            registers: [0; 4],
            labels: 0,
            locals: 0,
            early: false,
            at_once: None,
            waits: false,
        }
    }

    pub fn threads(&self) -> [u32; 3] {
        self.threads
    }

    /// Declares a parameter. An address is loaded at the start of the kernel.
    pub fn param(&mut self, param: Param) -> Place {
        let name = format!("param_{}", self.params.len());
        self.params.push(param);
        match param.kind {
            ParamKind::Address { writes } => {
                let raw = self.d();
                let address = self.d();
                self.line(format!("ld.param.u64 {raw}, [{name}];"));
                self.line(format!("cvta.to.global.u64 {address}, {raw};"));
                Place {
                    space: Space::Global { constant: !writes },
                    base: Base::At(address),
                    offset: 0,
                    bounds: None,
                }
            }
            _ => Place { space: Space::Param, base: Base::Name(name), offset: 0, bounds: None },
        }
    }

    /// A buffer's place that knows its bounds.
    pub fn bounded(&mut self, place: Place, length: &Place) -> Place {
        let Base::At(start) = place.base else { unreachable!("buffers have addresses") };
        let bytes = self.load_words(length, 1, false)[0];
        let (wide, end) = (self.d(), self.d());
        self.line(format!("cvt.u64.u32 {wide}, {bytes};"));
        self.line(format!("add.u64 {end}, {start}, {wide};"));
        Place { bounds: Some((start, end)), ..place }
    }

    pub fn shared(&mut self, name: &str, bytes: u32) -> Place {
        writeln!(self.declarations, "    .shared .align 16 .b8 {name}[{bytes}];").expect("text");
        Place { space: Space::Shared, base: Base::Name(name.into()), offset: 0, bounds: None }
    }

    pub fn local(&mut self, bytes: u32) -> Place {
        let name = format!("local_{}", self.locals);
        self.locals += 1;
        writeln!(self.declarations, "    .local .align 16 .b8 {name}[{bytes}];").expect("text");
        Place { space: Space::Local, base: Base::Name(name), offset: 0, bounds: None }
    }

    pub fn line(&mut self, text: impl AsRef<str>) {
        self.body.push_str("    ");
        self.body.push_str(text.as_ref());
        self.body.push('\n');
    }

    pub fn label(&mut self) -> String {
        self.labels += 1;
        format!("L{}", self.labels)
    }

    pub fn place_label(&mut self, label: &str) {
        self.body.push_str(label);
        self.body.push_str(":\n");
    }

    fn register(&mut self, kind: usize) -> u32 {
        self.registers[kind] += 1;
        self.registers[kind] - 1
    }

    pub fn r(&mut self) -> Op {
        Op::R(self.register(0))
    }

    pub fn h(&mut self) -> Op {
        Op::H(self.register(1))
    }

    pub fn p(&mut self) -> Op {
        Op::P(self.register(2))
    }

    pub fn d(&mut self) -> Op {
        Op::D(self.register(3))
    }

    /// A register for a scalar.
    pub fn register_of(&mut self, ty: Ty) -> Op {
        match ty {
            Ty::F16 => self.h(),
            Ty::Bool => self.p(),
            _ => self.r(),
        }
    }

    /// A register of the same kind as `op`.
    pub fn like(&mut self, op: Op) -> Op {
        match op {
            Op::R(_) | Op::Bits(_) => self.r(),
            Op::H(_) | Op::Bits16(_) => self.h(),
            Op::P(_) | Op::Bool(_) => self.p(),
            Op::D(_) => self.d(),
        }
    }

    /// `to = from`.
    pub fn assign(&mut self, to: Op, from: Op) {
        let ty = match to {
            Op::R(_) => "b32",
            Op::H(_) => "b16",
            Op::P(_) => "pred",
            Op::D(_) => "b64",
            _ => unreachable!("only registers are assigned"),
        };
        match from {
            Op::Bool(b) => self.line(format!("setp.eq.u32 {to}, 0, {};", u32::from(!b))),
            _ => self.line(format!("mov.{ty} {to}, {from};")),
        }
    }

    /// `op` in a register.
    pub fn in_register(&mut self, op: Op) -> Op {
        match op {
            Op::Bits(_) | Op::Bits16(_) | Op::Bool(_) => {
                let to = self.like(op);
                self.assign(to, op);
                to
            }
            _ => op,
        }
    }

    /// An operand of an instruction on `ty`.
    pub fn operand(&mut self, op: Op, ty: Ty) -> String {
        match (op, ty) {
            (Op::Bits(bits), Ty::F32) => format!("0f{bits:08X}"),
            (Op::Bits(bits), Ty::I32) => format!("{}", bits as i32),
            (Op::Bits(bits), _) => format!("{bits}"),
            (Op::Bits16(_) | Op::Bool(_), _) => self.in_register(op).to_string(),
            _ => op.to_string(),
        }
    }

    /// `instruction to, a, b…` on scalars of `ty`, with a result of `result`.
    pub fn scalar(&mut self, instruction: &str, ty: Ty, operands: &[Op], result: Ty) -> Op {
        let texts: Vec<String> = operands.iter().map(|op| self.operand(*op, ty)).collect();
        let to = self.register_of(result);
        self.line(format!("{instruction} {to}, {};", texts.join(", ")));
        to
    }

    /// An instruction whose operands are printed as given and whose result has 32 bits.
    pub fn r_from(&mut self, instruction: &str, operands: &str) -> Op {
        let to = self.r();
        self.line(format!("{instruction} {to}, {operands};"));
        to
    }

    /// Fresh registers with the value.
    pub fn copy(&mut self, value: &Val) -> Val {
        let mut one = |op: &Op| {
            let to = self.like(*op);
            self.assign(to, *op);
            to
        };
        match value {
            Val::Scalar(op) => Val::Scalar(one(op)),
            Val::Vector(ops) => Val::Vector(ops.iter().map(one).collect()),
            Val::Halves(ops, n) => Val::Halves(ops.iter().map(one).collect(), *n),
            Val::Matrix(ops) => Val::Matrix(ops.iter().map(one).collect()),
            Val::Many(values) => Val::Many(values.iter().map(|v| self.copy(v)).collect()),
            Val::Pointer(p) => Val::Pointer(p.clone()),
        }
    }

    /// Waits for the end of the kernel ahead, where kernels do. The next one may start then: all blocks of this one have.
    pub fn wait(&mut self) {
        if self.options.target >= 90 {
            self.waits = true;
            self.line("griddepcontrol.wait;");
            self.line("griddepcontrol.launch_dependents;");
        }
    }

    pub fn finish(self) -> (String, Vec<Param>) {
        let mut text = String::new();
        let (major, minor) = self.options.version;
        let [x, y, z] = self.threads;
        let mut put = |line: String| {
            text.push_str(&line);
            text.push('\n');
        };
        put(format!(".version {major}.{minor}\n.target sm_{}\n.address_size 64\n", self.options.target));
        put(".visible .entry main(".into());
        let params: Vec<String> = self
            .params
            .iter()
            .enumerate()
            .map(|(i, p)| match p.kind {
                ParamKind::Value { bytes } => format!("    .param .align 16 .b8 param_{i}[{bytes}]"),
                ParamKind::Address { .. } => format!("    .param .u64 .ptr .global .align 16 param_{i}"),
                ParamKind::Bytes => format!("    .param .u32 param_{i}"),
            })
            .collect();
        put(params.join(",\n"));
        let at_once = self.at_once.map_or(String::new(), |count| format!(" .minnctapersm {count}"));
        put(format!(")\n.reqntid {x}, {y}, {z}{at_once}\n{{"));
        let kinds = [("b32", "%r"), ("b16", "%h"), ("pred", "%p"), ("b64", "%d")];
        for ((kind, name), count) in kinds.into_iter().zip(self.registers) {
            if count > 0 {
                put(format!("    .reg .{kind} {name}<{count}>;"));
            }
        }
        put(self.declarations);
        if self.options.target >= 90 && !self.waits {
            // The launch decides whether a kernel starts before the one ahead of it has ended, and only then does this wait.
            put("    griddepcontrol.wait;".into());
        }
        put(self.body);
        put("    ret;\n}".into());
        (text, self.params)
    }
}
