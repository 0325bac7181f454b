//! The adapters on the device, grouped by what they read: the `A·x` of a group is one product.

use std::ops::Range;

use crate::base::Module;
use crate::ops::Param;
use crate::ops::dropout::Mask;

/// An activation that adapted matrices of a layer read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The output of `attn_norm`, read by q, k and v, or by all but the last matrix of a delta net or a short convolution.
    AttnNormed,
    /// The latent vectors of queries.
    QueryLatent,
    /// The latent vectors of keys and values.
    Latent,
    /// The output of attention, a delta net or a short convolution.
    Attention,
    /// The output of `ffn_norm`, read by gate and up.
    FfnNormed,
    /// The gated product, `activation(gate)·up`.
    Gated,
    /// The stream after the feed-forward block, read by the per-layer branch.
    AfterFfn,
    /// The gated per-layer input.
    PerLayer,
    /// The input of the router, and of the score of a shared expert.
    RouterNormed,
    /// The input of the experts' gate and up.
    ExpertsNormed,
    /// The gated product of an expert.
    ExpertsGated,
}

impl Input {
    /// Every input, in the order of a layer.
    pub const ALL: [Input; 11] = [
        Input::AttnNormed,
        Input::QueryLatent,
        Input::Latent,
        Input::Attention,
        Input::FfnNormed,
        Input::Gated,
        Input::AfterFfn,
        Input::PerLayer,
        Input::RouterNormed,
        Input::ExpertsNormed,
        Input::ExpertsGated,
    ];

    /// The input that `module` reads.
    pub fn of(module: Module) -> Input {
        match module {
            Module::AttnQ | Module::AttnK | Module::AttnV => Input::AttnNormed,
            Module::AttnQkv | Module::AttnGate | Module::SsmAlpha | Module::SsmBeta => Input::AttnNormed,
            Module::ShortconvInProj | Module::AttnQA | Module::AttnKvAMqa => Input::AttnNormed,
            Module::AttnQB => Input::QueryLatent,
            Module::AttnKvB | Module::AttnKB | Module::AttnVB => Input::Latent,
            Module::AttnOutput | Module::SsmOut | Module::ShortconvOutProj => Input::Attention,
            Module::FfnGate | Module::FfnUp | Module::FfnGateUp => Input::FfnNormed,
            Module::FfnGateShexp | Module::FfnUpShexp => Input::FfnNormed,
            Module::FfnDown | Module::FfnDownShexp => Input::Gated,
            Module::InpGate => Input::AfterFfn,
            Module::Proj => Input::PerLayer,
            Module::FfnGateInp | Module::FfnGateInpShexp => Input::RouterNormed,
            Module::FfnGateUpExps => Input::ExpertsNormed,
            Module::FfnDownExps => Input::ExpertsGated,
        }
    }
}

/// A value for each [`Input`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PerInput<T>([T; 11]);

impl<T> PerInput<T> {
    /// The value that `of` gives for each input.
    pub fn new(of: impl FnMut(Input) -> T) -> PerInput<T> {
        PerInput(Input::ALL.map(of))
    }

    /// The value that `of` gives for each input, or the first error.
    pub fn try_new<E>(mut of: impl FnMut(Input) -> Result<T, E>) -> Result<PerInput<T>, E> {
        let mut values = Vec::with_capacity(Input::ALL.len());
        for input in Input::ALL {
            values.push(of(input)?);
        }
        Ok(PerInput(values.try_into().unwrap_or_else(|_| unreachable!("one value for each input"))))
    }
}

impl<T> std::ops::Index<Input> for PerInput<T> {
    type Output = T;

    fn index(&self, input: Input) -> &T {
        &self.0[input as usize]
    }
}

/// A parameter matrix and its gradient.
#[derive(Clone, Debug)]
pub struct Trained {
    /// The matrix.
    pub value: Param,
    /// Its gradient, to which backward adds.
    pub grad: Param,
    /// The buffer of the adapter that holds the matrix.
    pub shard: usize,
}

/// The adapted matrices that read one input.
#[derive(Debug)]
pub struct Group {
    /// All `A` below each other, `[Σ R, K]`; of experts, which are alone in their groups, `[E·R, K]`. Matrices that are one in transformers
    /// share one, `[R, K]`.
    pub a: Trained,
    /// The matrices.
    pub members: Vec<Member>,
    /// Tells this group's dropout mask from others.
    pub key: u32,
}

/// One adapted matrix of a group.
#[derive(Debug)]
pub struct Member {
    /// Which matrix it is.
    pub module: Module,
    /// First column in `z`, first row in `a`. Members that share `A` share these.
    pub offset: usize,
    /// First column in `u`.
    pub u_offset: usize,
    /// The rows of the slot's `B` that are the member's.
    pub rows: Range<usize>,
    /// `B` `[N, R]`, of experts `[E·N, R]`.
    pub b: Trained,
}

impl Group {
    /// The adapted matrix that is `module`; `None` where the adapter leaves it alone.
    pub fn member(&self, module: Module) -> Option<&Member> {
        self.members.iter().find(|member| member.module == module)
    }

    /// Whether the members share one `A`: then each has columns of its own in `u`, but not in `z`.
    pub fn shares_a(&self) -> bool {
        self.members.iter().any(|member| member.u_offset != member.offset)
    }

    /// The first columns of the parts of `u` `[T, rows of a]` whose products with `A` the input's gradient has: one, unless members share
    /// `A`.
    pub fn u_parts(&self) -> Vec<usize> {
        match self.shares_a() {
            true => self.members.iter().map(|member| member.u_offset).collect(),
            false => vec![0],
        }
    }

    /// The group's dropout mask in a pass with mask `of_pass`.
    pub fn mask(&self, of_pass: Mask) -> Mask {
        Mask { key: of_pass.key.wrapping_mul(0x9e37_79b9).wrapping_add(self.key), ..of_pass }
    }
}

/// The adapters of a group as one pass applies them.
#[derive(Clone, Copy)]
pub struct Lora<'a> {
    /// The matrices.
    pub group: &'a Group,
    /// Rank `R`, padded to what the kernels take.
    pub rank: usize,
    /// Scale `s` of `s·B·A`.
    pub scale: f32,
    /// The dropout mask of what `A` reads; `None` outside training and without dropout.
    pub mask: Option<Mask>,
}
