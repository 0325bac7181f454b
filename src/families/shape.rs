//! [`Shape`]: a size of a family without its weights, to measure speed and memory before anything is downloaded.

use super::random::RandomFile;
use super::{ALL, Family, named};
use crate::base::{Base, Error, Gguf};

/// A size of a family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// `general.architecture` of the family.
    pub family: &'static str,
    /// Ollama's tag.
    pub name: &'static str,
    /// Layers `L`.
    pub layers: usize,
    /// Width `D`.
    pub width: usize,
    /// Feed-forward width `F` of layers that compute their own keys.
    pub ffn_width: usize,
    /// Feed-forward width `F` of layers that use another layer's keys, or of a shared expert.
    pub shared_ffn_width: usize,
    /// Query heads `H`.
    pub heads: usize,
    /// Key/value heads `G` of sliding and of full layers.
    pub kv_heads: [usize; 2],
    /// Head size `K` of sliding and of full layers.
    pub head_sizes: [usize; 2],
    /// Distance of full-attention layers: the last of so many layers has full attention.
    pub full_every: usize,
    /// Number of layers at the end that use other layers' keys and values.
    pub shared: usize,
    /// Window of sliding layers, in tokens.
    pub window: usize,
    /// Width `P` of the per-layer embeddings; 0 without.
    pub per_layer_width: usize,
    /// Number of experts, number of active experts per token, and feed-forward width of one expert.
    pub experts: Option<[usize; 3]>,
    /// Key heads, value heads and head size of the delta nets, which all but full-attention layers have; `None` without.
    pub delta: Option<[usize; 3]>,
    /// Whether the head is the embedding matrix.
    pub tied: bool,
    /// Vocabulary `V`.
    pub vocab: usize,
    /// Longest sequence.
    pub context_length: usize,
}

/// Largest number of sizes in a sweep.
const SWEPT: usize = 6;
/// Weights in a block of the finest block format (Q8_0).
const BLOCK: usize = 32;

impl Shape {
    /// The published size `name` of any family.
    pub fn named(name: &str) -> Option<Shape> {
        ALL.into_iter().flat_map(|family| family.shapes).find(|shape| shape.name == name).copied()
    }

    /// A base of this shape with random weights ([`Base::is_random`]). Its matrices have no bytes on the host.
    pub async fn base(&self) -> Result<Base, Error> {
        let family = self.family();
        let file = RandomFile::new(&(family.metadata)(self), (family.tensors)(self));
        let file = file.map_err(|source| Error::Io { file: self.name.into(), source })?;
        let gguf = Gguf::stream(Box::new(file), self.name).await?;
        Ok(Base::from_gguf(gguf, self.name)?.with_fingerprint().await?.with_random_blocks())
    }

    /// The shape with fewer layers, up to all of them. Each number of layers keeps the share of layers that use other layers' keys
    /// and values, and about that of full-attention layers.
    pub fn by_layers(&self) -> Vec<Shape> {
        let least = match self.shared {
            0 => self.full_every,
            shared => self.layers / common_divisor(self.layers, shared),
        };
        let with = |layers: usize| Shape { layers, shared: layers * self.shared / self.layers, ..*self };
        let whole = |shape: &Shape| shape.layers - shape.shared >= shape.full_every;
        let fewer = (least..self.layers).step_by(least).map(with).filter(whole);
        swept(fewer.chain([*self]).collect())
    }

    /// The shape with smaller widths, up to its own, and feed-forward widths in proportion, in whole blocks of weights. Heads and
    /// vocabulary stay.
    pub fn by_width(&self) -> Vec<Shape> {
        let with = |width: usize| {
            let in_proportion = |size: usize| (size * width / self.width).next_multiple_of(BLOCK);
            Shape {
                width,
                ffn_width: in_proportion(self.ffn_width),
                shared_ffn_width: in_proportion(self.shared_ffn_width),
                experts: self.experts.map(|[count, used, size]| [count, used, in_proportion(size)]),
                ..*self
            }
        };
        let divides = |step: &usize| self.width > *step && self.width.is_multiple_of(*step);
        let step = [256, 128].into_iter().find(divides).unwrap_or(64);
        swept((step..=self.width).step_by(step).map(with).collect())
    }

    /// Whether a layer has full attention.
    pub(super) fn is_full(&self, layer: usize) -> bool {
        layer % self.full_every == self.full_every - 1
    }

    fn family(&self) -> &'static Family {
        named(self.family).expect("a shape belongs to a family")
    }
}

/// At most [`SWEPT`] of the shapes, evenly spaced, with the last.
fn swept(shapes: Vec<Shape>) -> Vec<Shape> {
    let every = shapes.len().div_ceil(SWEPT).max(1);
    let first = (shapes.len() + every - 1) % every;
    shapes.into_iter().skip(first).step_by(every).collect()
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::gguf::source::now;

    #[test]
    fn sweeps_end_at_the_shape_itself_and_keep_its_share_of_sharing_layers() {
        for shape in ALL.into_iter().flat_map(|family| family.shapes.iter().chain([&family.small_shape])) {
            for sizes in [shape.by_layers(), shape.by_width()] {
                assert!((2..=SWEPT).contains(&sizes.len()), "{}: {}", shape.name, sizes.len());
                assert_eq!(sizes.last(), Some(shape));
                for size in sizes {
                    assert_eq!(size.shared * shape.layers, shape.shared * size.layers, "{}", shape.name);
                    now(size.base()).expect("a model that can be trained");
                }
            }
        }
    }
}
