//! The contents of host memory, and how much of them is copied.

/// Everything that stays in host memory and is copied to the device when a pass needs it. The choice changes no bit of the result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnHost {
    /// Layers whose experts do.
    pub experts: Vec<usize>,
    /// Layers whose other matrices do.
    pub layers: Vec<usize>,
    /// The activations that do between forward and backward.
    pub saves: Saves,
}

/// Activations of a layer that may be in host memory between forward and backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Saves {
    /// None.
    #[default]
    None,
    /// The layer's input.
    Inputs,
    /// Also the results of attention and of the feed-forward block, of layers that do not recompute them.
    Results,
}

impl OnHost {
    /// The experts of `layers`.
    pub fn experts(layers: &[usize]) -> OnHost {
        OnHost { experts: layers.to_vec(), ..OnHost::default() }
    }

    /// The layers of which any matrix does, in order.
    pub fn of_layers(&self) -> Vec<usize> {
        let mut all: Vec<usize> = self.experts.iter().chain(&self.layers).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// The contents of host memory, and how much of it is copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offloaded {
    /// The contents.
    pub on_host: OnHost,
    /// Layers that have experts.
    pub of: usize,
    /// Layers of the model.
    pub of_layers: usize,
    /// Bytes of matrices in host memory.
    pub bytes: u64,
    /// Bytes of matrices that a forward copies: per micro-batch of an evaluation, or per token of a reply.
    pub forward: u64,
    /// Bytes of matrices that forward and backward of a micro-batch copy.
    pub training: u64,
    /// Bytes of activations that a micro-batch copies, in both directions.
    pub saves: u64,
}
