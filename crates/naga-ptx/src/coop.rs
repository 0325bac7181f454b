//! Cooperative matrices of 16×16 on `mma.sync.m16n8k16`: A has four registers of a lane, B two for each half of its columns, and C four
//! f32 for each half of its columns. From shared memory, `ldmatrix` loads A and B; from elsewhere lanes load pairs, which `movmatrix`
//! transposes where the pairs lie along the other axis.

use naga::{CooperativeRole, CooperativeSize};

use crate::emit::Emitter;
use crate::value::{Op, Place, Space, Ty, Val};
use crate::{Result, unsupported};

/// The address of a matrix, and the bytes from a row (or a column) to the next.
pub struct Lines {
    pub place: Place,
    pub stride: Op,
    /// Bytes of an element behind the pointer; the stride counts them.
    pub unit: u32,
    pub row_major: bool,
}

/// Edge of the matrices that are translated.
pub fn check(columns: CooperativeSize, rows: CooperativeSize) -> Result<()> {
    match (columns, rows) {
        (CooperativeSize::Sixteen, CooperativeSize::Sixteen) => Ok(()),
        _ => unsupported("cooperative matrices other than 16×16"),
    }
}

impl Emitter {
    fn lane(&mut self) -> Op {
        let lane = self.r();
        self.line(format!("mov.u32 {lane}, %laneid;"));
        lane
    }

    /// `line · stride + byte` beyond the place.
    fn line_at(&mut self, lines: &Lines, line: Op, byte: Op) -> Place {
        let pitch = match lines.stride {
            Op::Bits(n) => Op::Bits(n * lines.unit),
            stride => self.r_from("mul.lo.u32", &format!("{stride}, {}", lines.unit)),
        };
        let offset = self.r_from("mad.lo.u32", &format!("{line}, {pitch}, {byte}"));
        self.element(&lines.place, offset, false, 1)
    }

    /// The bytes of eight lines.
    fn eight(&mut self, lines: &Lines) -> Op {
        match lines.stride {
            Op::Bits(n) => Op::Bits(8 * n * lines.unit),
            stride => self.r_from("mul.lo.u32", &format!("{stride}, {}", 8 * lines.unit)),
        }
    }

    pub fn load_matrix(&mut self, role: CooperativeRole, lines: &Lines) -> Result<Val> {
        let lane = self.lane();
        Ok(match role {
            CooperativeRole::C => Val::Matrix(self.load_sums(lines, lane)),
            _ => Val::Matrix(self.load_operand(role, lines, lane)),
        })
    }

    /// Blocks of 8×8 in the order of registers. Of A: rows below first, then columns. Of B: rows below first, then columns, too.
    /// `along`: whether memory lies along the pairs of a register, so that nothing is transposed.
    fn load_operand(&mut self, role: CooperativeRole, lines: &Lines, lane: Op) -> Vec<Op> {
        // Pairs lie along the steps of the sum: columns of A, rows of B.
        let along = lines.row_major == (role == CooperativeRole::A);
        // Block i of the registers is at line block `first` and at block `second` within lines. Registers of A: (row, column) blocks (0, 0),
        // (1, 0), (0, 1), (1, 1); of B: the same as (step, column).
        let line_is_low = match role {
            // A row-major: lines are rows, which the lowest bit of the register's number tells.
            CooperativeRole::A => lines.row_major,
            // B row-major: lines are steps, which the lowest bit tells.
            _ => lines.row_major,
        };
        if lines.place.space == Space::Shared {
            let to: Vec<Op> = (0..4).map(|_| self.r()).collect();
            let low = self.r_from("and.b32", &format!("{lane}, 7"));
            let bit3 = self.r_from("bfe.u32", &format!("{lane}, 3, 1"));
            let bit4 = self.r_from("bfe.u32", &format!("{lane}, 4, 1"));
            let (line_bit, byte_bit) = if line_is_low { (bit3, bit4) } else { (bit4, bit3) };
            let line = self.r_from("mad.lo.u32", &format!("{line_bit}, 8, {low}"));
            let byte = self.r_from("shl.b32", &format!("{byte_bit}, 4"));
            let at = self.line_at(lines, line, byte);
            let address = self.address(&at);
            let trans = if along { "" } else { ".trans" };
            let names: Vec<String> = to.iter().map(Op::to_string).collect();
            self.line(format!(
                "ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{{}}}, {address};",
                names.join(", ")
            ));
            return to;
        }
        let line = self.r_from("shr.u32", &format!("{lane}, 2"));
        let pair = self.r_from("and.b32", &format!("{lane}, 3"));
        let byte = self.r_from("shl.b32", &format!("{pair}, 2"));
        let upper = self.line_at(lines, line, byte);
        let eight = self.eight(lines);
        let lower = self.element(&upper, eight, false, 1);
        (0..4)
            .map(|i| {
                let (line_block, byte_block) = if line_is_low { (i & 1, i >> 1) } else { (i >> 1, i & 1) };
                let half = if line_block == 0 { &upper } else { &lower };
                let pairs = self.load_words(&half.plus(16 * byte_block), 1, false)[0];
                match along {
                    true => pairs,
                    false => self.r_from("movmatrix.sync.aligned.m8n8.trans.b16", &pairs.to_string()),
                }
            })
            .collect()
    }

    /// Sums: register 4·h + 2·v + i is in row lane / 4 + 8·v, column 8·h + lane % 4 · 2 + i.
    fn load_sums(&mut self, lines: &Lines, lane: Op) -> Vec<Op> {
        let mut sums = Vec::new();
        for (at, n) in self.places_of_sums(lines, lane) {
            sums.extend(self.load_words(&at, n, n == 2));
        }
        sums
    }

    pub fn store_matrix(&mut self, value: &Val, lines: &Lines) -> Result<()> {
        let Val::Matrix(sums) = value else { return unsupported("a store of a matrix") };
        if sums.len() != 8 {
            return unsupported("a store of matrix A or B");
        }
        let lane = self.lane();
        let mut rest = sums.clone().into_iter();
        for (at, n) in self.places_of_sums(lines, lane) {
            let words: Vec<Op> = rest.by_ref().take(n).collect();
            self.store_words(&at, &words, n == 2);
        }
        Ok(())
    }

    /// The places of a lane's sums in the order of registers, and how many words lie at each.
    fn places_of_sums(&mut self, lines: &Lines, lane: Op) -> Vec<(Place, usize)> {
        let row = self.r_from("shr.u32", &format!("{lane}, 2"));
        let pair = self.r_from("and.b32", &format!("{lane}, 3"));
        let eight = self.eight(lines);
        let mut places = Vec::new();
        if lines.row_major {
            let byte = self.r_from("shl.b32", &format!("{pair}, 3"));
            let upper = self.line_at(lines, row, byte);
            let lower = self.element(&upper, eight, false, 1);
            for h in 0..2 {
                for half in [&upper, &lower] {
                    let at = half.plus(32 * h);
                    // Pairs are aligned where the pointer is one to vectors.
                    match lines.unit {
                        8.. => places.push((at, 2)),
                        _ => places.extend([(at.clone(), 1), (at.plus(4), 1)]),
                    }
                }
            }
        } else {
            let byte = self.r_from("shl.b32", &format!("{row}, 2"));
            let column = self.r_from("shl.b32", &format!("{pair}, 1"));
            let next = self.r_from("add.u32", &format!("{column}, 1"));
            let left = [self.line_at(lines, column, byte), self.line_at(lines, next, byte)];
            let right = [self.element(&left[0], eight, false, 1), self.element(&left[1], eight, false, 1)];
            for columns in [left, right] {
                for v in 0..2 {
                    places.extend(columns.iter().map(|at| (at.plus(32 * v), 1)));
                }
            }
        }
        places
    }

    /// a · b + c.
    pub fn multiply_add(&mut self, a: &Val, b: &Val, c: &Val) -> Result<Val> {
        let (Val::Matrix(a), Val::Matrix(b), Val::Matrix(c)) = (a, b, c) else {
            return unsupported("a product of other than matrices");
        };
        if (a.len(), b.len(), c.len()) != (4, 4, 8) {
            return unsupported("a product of other matrices");
        }
        let mut sums = Vec::new();
        for (b, c) in b.chunks(2).zip(c.chunks(4)) {
            sums.extend(self.eight_columns(a, b, c));
        }
        Ok(Val::Matrix(sums))
    }

    /// a · b + c for eight columns of b and c. Before 8.0 an instruction adds eight steps of the sum, not sixteen.
    fn eight_columns(&mut self, a: &[Op], b: &[Op], c: &[Op]) -> Vec<Op> {
        if self.options.target >= 80 {
            return self.mma("m16n8k16", a, b, c);
        }
        let half = self.mma("m16n8k8", &a[..2], &b[..1], c);
        self.mma("m16n8k8", &a[2..], &b[1..], &half)
    }

    fn mma(&mut self, shape: &str, a: &[Op], b: &[Op], c: &[Op]) -> Vec<Op> {
        let mut names = |ops: &[Op]| {
            let names: Vec<String> = ops.iter().map(|op| self.in_register(*op).to_string()).collect();
            names.join(", ")
        };
        let (a, b, c) = (names(a), names(b), names(c));
        let to: Vec<Op> = (0..4).map(|_| self.r()).collect();
        let sums: Vec<String> = to.iter().map(Op::to_string).collect();
        self.line(format!(
            "mma.sync.aligned.{shape}.row.col.f32.f16.f16.f32 {{{}}}, {{{a}}}, {{{b}}}, {{{c}}};",
            sums.join(", ")
        ));
        to
    }

    /// Sums of matrices, or a matrix times a number.
    pub fn matrix_arithmetic(&mut self, op: naga::BinaryOperator, left: &Val, right: &Val) -> Result<Val> {
        let name = match op {
            naga::BinaryOperator::Add => "add.f32",
            naga::BinaryOperator::Subtract => "sub.f32",
            naga::BinaryOperator::Multiply => "mul.f32",
            _ => return unsupported(format!("{op:?} of matrices")),
        };
        let pairs: Vec<(Op, Op)> = match (left, right) {
            (Val::Matrix(a), Val::Matrix(b)) if a.len() == 8 => {
                a.iter().copied().zip(b.iter().copied()).collect()
            }
            (Val::Matrix(a), Val::Scalar(b)) if a.len() == 8 => a.iter().map(|a| (*a, *b)).collect(),
            (Val::Scalar(a), Val::Matrix(b)) if b.len() == 8 => b.iter().map(|b| (*a, *b)).collect(),
            _ => return unsupported("arithmetic of matrices A and B"),
        };
        Ok(Val::Matrix(
            pairs.into_iter().map(|(a, b)| self.scalar(name, Ty::F32, &[a, b], Ty::F32)).collect(),
        ))
    }
}

impl Lines {
    pub fn new(place: Place, stride: Op, unit: u32, row_major: bool) -> Lines {
        Lines { place, stride, unit, row_major }
    }
}
