//! The part of its forward that each layer keeps for backward.

/// Bound on what layers keep, as the recipe sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// Keep the activations of as many layers as this many bytes hold, the last ones first.
    Keep(u64),
    /// Keep as much as leaves the whole plan within this many bytes.
    Within(u64),
    /// Every layer.
    Always,
    /// No layer.
    Never,
}

impl Recompute {
    /// Bytes that the whole plan may take, in order to choose scratch that it could do with less of: none where only a little may be kept.
    pub fn memory(self) -> u64 {
        match self {
            Recompute::Within(limit) => limit,
            Recompute::Keep(_) | Recompute::Always => 0,
            Recompute::Never => u64::MAX,
        }
    }
}

/// The part of its forward that a layer keeps; backward recomputes the rest. The choice itself changes no bit of the result. It
/// decides how much memory attention's backward can borrow, though: on 16×16 matrices sums over long passes may then be added
/// up in other parts, and round differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kept {
    /// Its input.
    Input,
    /// Also the output of its feed-forward block: a third of that block is not recomputed.
    Down,
    /// Also the output of its attention.
    Attention,
    /// Also the output of every product: only norms, heads and gated units are computed again, and the products of experts.
    Products,
    /// Everything.
    All,
}

impl Kept {
    /// Whether backward computes anything again.
    pub fn recomputes(self) -> bool {
        self != Kept::All
    }
}

/// Bytes that a layer may keep beyond those that it has at every level.
#[derive(Clone, Copy)]
pub struct LayerCosts {
    /// Bytes of the feed-forward block's output.
    pub down: u64,
    /// Bytes of attention's output.
    pub attention: u64,
    /// Bytes of the output of every product, the others included.
    pub products: u64,
    /// Bytes of everything, the others included.
    pub all: u64,
    /// Multiplications of the layer's forward.
    pub work: u64,
    /// Multiplications that keeping the feed-forward block's output saves.
    pub down_work: u64,
    /// Multiplications that keeping attention's output saves.
    pub attention_work: u64,
}

impl LayerCosts {
    /// Bytes at a level.
    pub fn of(&self, kept: Kept) -> u64 {
        match kept {
            Kept::Input => 0,
            Kept::Down => self.down,
            Kept::Attention => self.down + self.attention,
            Kept::Products => self.products,
            Kept::All => self.all,
        }
    }
}

impl LayerCosts {
    /// Multiplications of what backward computes again. Norms, heads and gated units count as a tenth of the layer.
    pub fn recomputed(&self, kept: Kept) -> u64 {
        match kept {
            Kept::Input => self.work,
            Kept::Down => self.work.saturating_sub(self.down_work),
            Kept::Attention => self.work.saturating_sub(self.down_work + self.attention_work),
            Kept::Products => self.work / 10,
            Kept::All => 0,
        }
    }
}

/// Bytes that recomputing layers share.
pub struct Shared {
    /// Bytes of what every recomputing layer needs.
    pub all: u64,
    /// Bytes more, where a layer does not keep the output of every product.
    pub products: u64,
    /// Bytes more, where a layer does not keep the feed-forward block's output.
    pub down: u64,
    /// Bytes more, where a layer does not keep attention's output.
    pub attention: u64,
}

impl Shared {
    /// Bytes that are needed where layers keep as much as `kept` has.
    pub fn needed(&self, kept: &[Kept]) -> u64 {
        let of = |level: Kept, bytes: u64| if kept.iter().any(|k| *k < level) { bytes } else { 0 };
        of(Kept::All, self.all)
            + of(Kept::Products, self.products)
            + of(Kept::Down, self.down)
            + of(Kept::Attention, self.attention)
    }
}

/// Chooses what each layer keeps, so that it fits into `room` where that is possible: first the outputs of feed-forward blocks
/// and of attention, those first that save the most work per byte, then those of every product, then everything. Between equals the last layer comes first.
pub fn choose(layers: &[LayerCosts], shared: &Shared, room: u64) -> Vec<Kept> {
    if layers.iter().map(|l| l.all).sum::<u64>() <= room {
        return vec![Kept::All; layers.len()];
    }
    let ratio = |work: u64, bytes: u64| work as f64 / bytes.max(1) as f64;
    let mut turns: Vec<(f64, usize, Kept)> = Vec::new();
    for (i, l) in layers.iter().enumerate().rev() {
        let [down, attention] = [ratio(l.down_work, l.down), ratio(l.attention_work, l.attention)];
        // Attention's output is kept beside the feed-forward block's, or both at once.
        let both = ratio(l.down_work + l.attention_work, l.down + l.attention);
        turns.extend([
            (down, i, Kept::Down),
            (if attention > down { both } else { attention }, i, Kept::Attention),
        ]);
    }
    turns.sort_by(|a, b| b.0.total_cmp(&a.0));
    for more in [Kept::Products, Kept::All] {
        turns.extend((0..layers.len()).rev().map(|i| (0.0, i, more)));
    }
    let mut kept = vec![Kept::Input; layers.len()];
    for (_, i, more) in turns {
        let before = kept[i];
        kept[i] = before.max(more);
        let bytes: u64 = kept.iter().zip(layers).map(|(kept, sizes)| sizes.of(*kept)).sum();
        if bytes + shared.needed(&kept) > room {
            kept[i] = before;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::Kept::{All, Attention, Down, Input, Products};
    use super::{LayerCosts, Shared, choose};

    #[test]
    fn what_saves_most_for_its_size_is_kept_first() {
        // The second one has no window.
        let layer = |attention_work| LayerCosts {
            down: 3,
            attention: 5,
            products: 20,
            all: 30,
            work: 40,
            down_work: 12,
            attention_work,
        };
        let shared = Shared { all: 30, products: 10, down: 2, attention: 4 };
        let kept = |layers: [LayerCosts; 3], room| choose(&layers, &shared, room);
        let short = |room| kept([layer(5), layer(10), layer(5)], room);
        assert_eq!(short(90), [All; 3], "all fit without scratch");
        assert_eq!(short(89), [Attention, Products, Products]);
        assert_eq!(short(88), [Attention, Products, Products]);
        assert_eq!(short(87), [Attention, Attention, All], "the rest holds everything of one layer");
        assert_eq!(short(85), [Attention, Attention, Products]);
        assert_eq!(short(76), [Attention, Attention, Products]);
        assert_eq!(short(75), [Attention; 3]);
        assert_eq!(short(64), [Attention; 3]);
        assert_eq!(short(63), [Down, Attention, Attention]);
        assert_eq!(short(58), [Down, Attention, Down]);
        assert_eq!(short(57), [Down; 3]);
        assert_eq!(short(53), [Down; 3]);
        assert_eq!(short(52), [Input, Down, Down]);
        assert_eq!(short(49), [Input, Input, Down]);
        assert_eq!(short(48), [Input; 3]);
        assert_eq!(short(0), [Input; 3]);
        let wide = LayerCosts { all: 60, ..layer(5) };
        assert_eq!(kept([wide; 3], 90), [Products; 3], "products share no scratch");
        assert_eq!(kept([wide; 3], 130), [Products, Products, All]);
        // If samples are long, attention over all of them costs more than feed-forwards.
        let long = |room| kept([layer(5), layer(100), layer(5)], room);
        assert_eq!(long(64), [Attention; 3]);
        assert_eq!(long(58), [Down, Attention, Down]);
        assert_eq!(long(57), [Input, Attention, Down]);
        assert_eq!(long(54), [Input, Attention, Input]);
        assert_eq!(long(53), [Down; 3], "no room for both");
    }
}
