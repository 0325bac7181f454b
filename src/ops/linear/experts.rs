//! Products of rows that are grouped by expert with the experts' matrices, and the adapters of those.

use super::cuda::grouped::Input;
use super::cuda::{self, Panels};
use super::grouped::{self, Columns, ExpertWeight, Source};
use super::grouped_coop16;
use crate::gpu::Recorder;
use crate::ops::act::Act;
use crate::ops::dropout::grouped as grouped_dropout;
use crate::ops::dropout::grouped::ExpertMask;
use crate::ops::experts::groups::Groups;
use crate::ops::lora::grouped as grouped_lora;
use crate::ops::pack::{Packed, grouped as grouped_pack};
use crate::ops::pass::Pass;
use crate::ops::{Param, Rows};

/// The adapters of one matrix of every expert.
#[derive(Clone, Copy)]
pub struct ExpertLora<'a> {
    /// `A` of every expert `[E·R, K]`.
    pub a: &'a Param,
    /// `B` of every expert `[E·N, R]`.
    pub b: &'a Param,
    /// Gradients of `A` and `B`, where they are trained.
    pub gradients: Option<[&'a Param; 2]>,
    /// Rank `R`, padded.
    pub rank: usize,
    /// Scale `s` of `s·B·A`.
    pub scale: f32,
    /// The dropout mask of what `A` reads.
    pub mask: Option<ExpertMask>,
}

impl<'a> ExpertLora<'a> {
    /// `A` as a matrix to multiply by.
    pub fn a_weight(&self, groups: &Groups) -> ExpertWeight {
        ExpertWeight::of_param(self.a, groups.experts.count)
    }

    /// `B` as a matrix to multiply by.
    pub fn b_weight(&self, groups: &Groups) -> ExpertWeight {
        ExpertWeight::of_param(self.b, groups.experts.count)
    }

    /// `s·z·Bᵀ`, with the rows of `B` from `first_row` on.
    pub fn up(self, z: &'a Rows, first_row: usize) -> grouped::LowRank<'a> {
        let ExpertLora { b: matrix, rank, scale, .. } = self;
        grouped::LowRank { z: z.all(), matrix, first_row, rank, scale }
    }

    /// `u·A`, unless dropout is applied.
    fn back(self, u: &'a Rows) -> Option<grouped::LowRank<'a>> {
        let ExpertLora { a: matrix, rank, mask, .. } = self;
        mask.is_none().then(|| grouped::LowRank { z: u.all(), matrix, first_row: 0, rank, scale: 1.0 })
    }
}

/// The groups of a pass, and the scratch of their products.
#[derive(Clone, Copy)]
pub struct Grouped<'a> {
    /// Which rows belong to which expert.
    pub groups: &'a Groups,
    /// The operand of the products `[rows, D or 2·F]`, where they do not read the tokens' rows.
    pub operand: &'a Act,
    /// `z` or `u` `[rows, R]` beside tiles.
    pub thin: Option<&'a Packed>,
}

/// The operand of grouped products.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    /// Rows of f32; where products read tiles, only an adapter with dropout reads these.
    pub rows: Source<'a>,
    /// The rows as tiles, where products read those.
    tiles: Option<Input<'a>>,
}

impl<'a> Operand<'a> {
    /// The columns from `first`, a multiple of 16, on.
    pub fn columns_from(self, first: usize) -> Operand<'a> {
        let rows = match self.rows {
            Source::Rows(view) => Source::Rows(view.rows.from(view.offset + first)),
            Source::Tokens(view) => Source::Tokens(view.rows.from(view.offset + first)),
        };
        let from_first = |tiles: Input<'a>| Input { first_column: tiles.first_column + first, ..tiles };
        Operand { rows, tiles: self.tiles.map(from_first) }
    }
}

impl<'a> Grouped<'a> {
    /// The tokens' rows `x` `[T, cols]` as an operand. Where products read tiles, they are packed: in the tokens' order where all these
    /// products run in CUDA, else by group. An adapter's products do not run there, so matrices that are `adapted` need groups.
    pub fn gather(&self, p: &mut Pass, x: Source<'a>, cols: usize, adapted: bool) -> Operand<'a> {
        let of_tokens = !adapted && self.panels(p).is_some();
        match (self.operand.tiles(), x) {
            (Some(tiles), Source::Tokens(x)) if of_tokens => {
                tiles.for_rows(p.tokens).pack(p.rec.now(), x, cols, p.tokens);
            }
            (Some(tiles), _) => grouped_pack::pack(p.rec.now(), tiles, x, cols, self.groups, p.tokens),
            (None, _) => {}
        }
        self.operand_of(x, of_tokens)
    }

    /// The values that an op left in [`Grouped::operand`]; `rows` are the same in f32.
    pub fn operand(&self, rows: &'a Rows) -> Operand<'a> {
        self.operand_of(Source::Rows(rows.all()), false)
    }

    fn operand_of(&self, rows: Source<'a>, of_tokens: bool) -> Operand<'a> {
        let tiles = self.operand.tiles();
        Operand { rows, tiles: tiles.map(|tiles| Input { tiles, first_column: 0, of_tokens }) }
    }

    /// `z = x·A_eᵀ`, of the masked `x` with dropout.
    pub fn project(&self, p: &mut Pass, z: &Rows, x: Operand, lora: Option<ExpertLora>) {
        let Some(lora) = lora else { return };
        let a = lora.a_weight(self.groups);
        let to = Columns::all(z.all());
        match (lora.mask, x.tiles) {
            (Some(mask), _) => {
                grouped::forward_masked(p.rec.now(), to, x.rows, &a, mask, self.groups, p.tokens);
            }
            (None, None) => grouped::forward(p.rec.now(), to, x.rows, &a, 1.0, None, self.groups, p.tokens),
            (None, Some(x)) => {
                grouped_coop16::forward(p.rec.now(), to, x.tiles, &a, 1.0, None, self.groups, p.tokens);
            }
        }
        self.pack_thin(p.rec.now(), z, lora.rank, x, p.tokens);
    }

    /// `y = x·W_eᵀ + s·z·B_eᵀ`; `lora` is the adapter, its `z` and the first row of `B` that belongs to `w`.
    pub fn forward(
        &self,
        p: &mut Pass,
        y: Columns,
        x: Operand,
        w: &ExpertWeight,
        lora: Option<(ExpertLora, &Rows, usize)>,
    ) {
        let Some(input) = x.tiles else {
            let term = lora.map(|(lora, z, first_row)| lora.up(z, first_row));
            return grouped::forward(p.rec.now(), y, x.rows, w, 1.0, term.as_ref(), self.groups, p.tokens);
        };
        let term = lora.zip(self.thin).map(|((lora, _, first_row), z)| {
            let ExpertLora { b: matrix, rank, scale, .. } = lora;
            grouped_coop16::LowRank { z, matrix, first_row, rank, scale }
        });
        let (groups, tokens, term) = (self.groups, p.tokens, term.as_ref());
        match self.panels(p) {
            Some(panels) => {
                cuda::grouped::forward(p.rec.now(), panels, y, input, w, 1.0, term, groups, tokens);
            }
            None => grouped_coop16::forward(p.rec.now(), y, input.tiles, w, 1.0, term, groups, tokens),
        }
    }

    /// Memory for the panels of the experts' matrices, where products with them run in CUDA.
    fn panels<'p>(&self, p: &Pass<'p, '_>) -> Option<&'p Panels> {
        let panels = p.scratch.operands.as_ref()?.panels.as_ref()?;
        cuda::grouped::is_worth(p.rec.gpu(), &self.groups.experts, p.tokens).then_some(panels)
    }

    /// `u = s·dy·B_e`, and `dB_e += s·dyᵀ·z` where `B` is trained.
    pub fn project_back(&self, p: &mut Pass, u: &Rows, dy: Operand, z: &Rows, lora: ExpertLora) {
        let b = lora.b_weight(self.groups);
        let to = Columns::all(u.all());
        let z = Source::Rows(z.all());
        let (groups, tokens, scale) = (self.groups, p.tokens, lora.scale);
        match dy.tiles {
            None => {
                grouped::backward(p.rec.now(), to, dy.rows, &b, scale, None, groups, tokens, false);
                if let Some([_, db]) = lora.gradients {
                    grouped_lora::gradient(p.rec.now(), db, dy.rows, z, None, scale, None, groups, tokens);
                }
            }
            Some(Input { tiles, .. }) => {
                grouped_coop16::backward(p.rec.now(), to, (tiles, 0), &b, scale, None, groups, tokens, false);
                if let Some([_, db]) = lora.gradients {
                    grouped_lora::gradient_packed(p.rec.now(), db, tiles, z, scale, groups, tokens);
                }
            }
        }
        self.pack_thin(p.rec.now(), u, lora.rank, dy, tokens);
    }

    /// `dx (+)= dy·W_e + u·A_e`, where no mask stands between; [`Grouped::masked_back`] adds the adapter's part under a mask.
    pub fn backward(
        &self,
        p: &mut Pass,
        dx: Columns,
        dy: Operand,
        w: &ExpertWeight,
        lora: Option<(ExpertLora, &Rows)>,
        accumulate: bool,
    ) {
        let (groups, tokens) = (self.groups, p.tokens);
        let Some(input) = dy.tiles else {
            let term = lora.and_then(|(lora, u)| lora.back(u));
            return grouped::backward(
                p.rec.now(),
                dx,
                dy.rows,
                w,
                1.0,
                term.as_ref(),
                groups,
                tokens,
                accumulate,
            );
        };
        let unmasked = lora.filter(|(lora, _)| lora.mask.is_none());
        let term = unmasked.zip(self.thin).map(|((lora, _), z)| {
            let ExpertLora { a: matrix, rank, .. } = lora;
            grouped_coop16::LowRank { z, matrix, first_row: 0, rank, scale: 1.0 }
        });
        let term = term.as_ref();
        match self.panels(p) {
            Some(panels) => {
                cuda::grouped::backward(
                    p.rec.now(),
                    panels,
                    dx,
                    input,
                    w,
                    1.0,
                    term,
                    groups,
                    tokens,
                    accumulate,
                );
            }
            None => {
                let dy = (input.tiles, input.first_column);
                grouped_coop16::backward(p.rec.now(), dx, dy, w, 1.0, term, groups, tokens, accumulate);
            }
        }
    }

    /// `dx += mask·(u·A_e)`, where the adapter reads its input under a mask.
    pub fn masked_back(&self, p: &mut Pass, dx: Columns, lora: Option<(ExpertLora, &Rows)>) {
        let Some((lora, u)) = lora else { return };
        let Some(mask) = lora.mask else { return };
        grouped_dropout::backward(p.rec.now(), dx, u.all(), lora.a, mask, self.groups, p.tokens);
    }

    /// Packs `z` or `u`, scaled as the rows of `x` are, for products that read tiles.
    pub fn pack_thin(&self, rec: &mut Recorder, z: &Rows, rank: usize, x: Operand, tokens: usize) {
        if let (Some(thin), Some(Input { tiles, .. })) = (self.thin, x.tiles) {
            let z = Source::Rows(z.all());
            grouped_pack::pack_alike(rec, thin, z, rank, self.groups, tokens, tiles);
        }
    }
}
