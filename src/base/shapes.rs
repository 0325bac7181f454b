//! Gemma 4's shapes without their weights: a base for measuring speed and memory before anything is downloaded.
//!
//! Sizes, formats and metadata are those of Ollama's Q4_K_M files. Vectors hold the constants that real ones are near; the
//! matrices' blocks are made on the device ([`crate::ops::random`]), and the per-layer embeddings repeat one piece of noise.

use std::io;
use std::ops::Range;

use half::bf16;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::gguf_writer::{self, Entry};
use super::source::{Reading, Source};
use super::value::{Array, Value};
use super::{Base, Error, GgmlType};

/// A size of Gemma 4.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Ollama's tag.
    pub name: &'static str,
    /// Layers `L`.
    pub layers: usize,
    /// Width `D`.
    pub width: usize,
    /// Feed-forward width `F` of layers that make their own keys.
    pub ffn_width: usize,
    /// The same of layers that use another one's.
    pub shared_ffn_width: usize,
    /// Query heads `H`.
    pub heads: usize,
    /// Key/value heads `G` of sliding and of full layers.
    pub kv_heads: [usize; 2],
    /// Every so many layers the last one sees everything.
    pub full_every: usize,
    /// Layers at the end that use other layers' keys and values.
    pub shared: usize,
    /// Tokens that sliding layers see.
    pub window: usize,
    /// Width `P` of the per-layer embeddings; 0 for none. Models without them have no matrix for the values of full layers.
    pub per_layer_width: usize,
    /// Experts, those of them that work on a token, and the feed-forward width of one.
    pub experts: Option<[usize; 3]>,
    /// Vocabulary `V`.
    pub vocab: usize,
    /// Longest sequence.
    pub context_length: usize,
}

const E2B: Shape = Shape {
    name: "e2b",
    layers: 35,
    width: 1536,
    ffn_width: 6144,
    shared_ffn_width: 12_288,
    heads: 8,
    kv_heads: [1, 1],
    full_every: 5,
    shared: 20,
    window: 512,
    per_layer_width: 256,
    experts: None,
    vocab: 262_144,
    context_length: 131_072,
};

const DENSE: Shape = Shape {
    name: "31b",
    layers: 60,
    width: 5376,
    ffn_width: 21_504,
    shared_ffn_width: 21_504,
    heads: 32,
    kv_heads: [16, 4],
    full_every: 6,
    shared: 0,
    window: 1024,
    per_layer_width: 0,
    experts: None,
    vocab: 262_144,
    context_length: 262_144,
};

/// Every size there is. Source: the metadata of Google's checkpoints as llama.cpp's converter writes them.
pub const SHAPES: [Shape; 5] = [
    E2B,
    Shape {
        name: "e4b",
        layers: 42,
        width: 2560,
        ffn_width: 10_240,
        shared_ffn_width: 10_240,
        kv_heads: [2, 2],
        full_every: 6,
        shared: 18,
        ..E2B
    },
    Shape {
        name: "12b",
        layers: 48,
        width: 3840,
        ffn_width: 15_360,
        shared_ffn_width: 15_360,
        heads: 16,
        kv_heads: [8, 1],
        ..DENSE
    },
    Shape {
        name: "26b-a4b",
        layers: 30,
        width: 2816,
        ffn_width: 2112,
        shared_ffn_width: 2112,
        heads: 16,
        kv_heads: [8, 2],
        experts: Some([128, 8, 704]),
        ..DENSE
    },
    DENSE,
];

/// A few megabytes of every part that e2b has, for trying things where a CPU plays the GPU.
pub const TRIAL: Shape = Shape {
    name: "tiny",
    layers: 8,
    width: 768,
    ffn_width: 768,
    shared_ffn_width: 1536,
    heads: 2,
    full_every: 2,
    shared: 4,
    window: 64,
    vocab: 2048,
    context_length: 1024,
    ..E2B
};

/// Most sizes that a sweep goes through.
const SWEPT: usize = 6;

/// Head sizes of sliding and of full layers.
const HEAD_SIZES: [usize; 2] = [256, 512];

/// What a tensor holds.
#[derive(Clone, Copy)]
enum Content {
    Constant(f32),
    /// Divisors of the rotary frequencies: 1 for the quarter that turns, beyond any position for the rest.
    RopeFactors,
    /// Of this standard deviation.
    Noise(f32),
    /// Per-layer embeddings.
    Table,
    /// Made on the device.
    Blocks,
}

impl Shape {
    /// The size called `name`.
    pub fn named(name: &str) -> Option<Shape> {
        SHAPES.into_iter().find(|shape| shape.name == name)
    }

    /// A base of this shape: [`Base::is_random`]. Its matrices have no bytes on the host.
    pub async fn base(&self) -> Result<Base, Error> {
        let file = File::new(self).map_err(|source| Error::Io { file: self.name.into(), source })?;
        Base::random(Box::new(file), self.name).await
    }

    /// The same shape with fewer layers, up to all of them: as many as keep its shares of full layers and of those that use
    /// others' keys and values.
    pub fn by_layers(&self) -> Vec<Shape> {
        let least = match self.shared {
            0 => self.full_every,
            shared => self.layers / common_divisor(self.layers, shared),
        };
        let with = |layers: usize| Shape { layers, shared: layers * self.shared / self.layers, ..*self };
        let whole = |shape: &Shape| shape.layers - shape.shared >= shape.full_every;
        swept((least..=self.layers).step_by(least).map(with).filter(whole).collect())
    }

    /// The same shape with a smaller width, up to its own, and feed-forwards in proportion; heads and vocabulary stay.
    pub fn by_width(&self) -> Vec<Shape> {
        let with = |width: usize| {
            let of = |size: usize| size * width / self.width;
            Shape {
                width,
                ffn_width: of(self.ffn_width),
                shared_ffn_width: of(self.shared_ffn_width),
                experts: self.experts.map(|[count, used, size]| [count, used, of(size)]),
                ..*self
            }
        };
        swept((256..=self.width).step_by(256).map(with).collect())
    }

    fn full(&self, layer: usize) -> bool {
        layer % self.full_every == self.full_every - 1
    }

    fn metadata(&self) -> Vec<(String, Value)> {
        let sizes = |of: &dyn Fn(usize) -> usize| {
            Value::Array(Array::U32((0..self.layers).map(|layer| of(layer) as u32).collect()))
        };
        let first_shared = self.layers - self.shared;
        let [sliding, full] = HEAD_SIZES.map(|size| size as u32);
        let mut keys: Vec<(&str, Value)> = [
            ("block_count", self.layers),
            ("embedding_length", self.width),
            ("context_length", self.context_length),
            ("attention.head_count", self.heads),
            ("attention.sliding_window", self.window),
            ("attention.shared_kv_layers", self.shared),
            ("embedding_length_per_layer_input", self.per_layer_width),
        ]
        .map(|(key, value)| (key, Value::U32(value as u32)))
        .into();
        for (key, [value, value_swa]) in [
            (["attention.key_length", "attention.key_length_swa"], [full, sliding]),
            (["attention.value_length", "attention.value_length_swa"], [full, sliding]),
            (["rope.dimension_count", "rope.dimension_count_swa"], [full, sliding]),
        ] {
            keys.extend([(key[0], Value::U32(value)), (key[1], Value::U32(value_swa))]);
        }
        keys.extend([
            ("attention.layer_norm_rms_epsilon", Value::F32(1e-6)),
            ("rope.freq_base", Value::F32(1e6)),
            ("rope.freq_base_swa", Value::F32(1e4)),
            ("final_logit_softcapping", Value::F32(30.0)),
            (
                "feed_forward_length",
                sizes(&|i| if i < first_shared { self.ffn_width } else { self.shared_ffn_width }),
            ),
            ("attention.head_count_kv", sizes(&|i| self.kv_heads[usize::from(self.full(i))])),
            (
                "attention.sliding_window_pattern",
                Value::Array(Array::Bool((0..self.layers).map(|i| !self.full(i)).collect())),
            ),
        ]);
        if let Some([count, used, width]) = self.experts {
            keys.extend([
                ("expert_count", Value::U32(count as u32)),
                ("expert_used_count", Value::U32(used as u32)),
                ("expert_feed_forward_length", Value::U32(width as u32)),
            ]);
        }
        let architecture = ("general.architecture".to_string(), Value::String("gemma4".into()));
        let name = ("general.name".to_string(), Value::String(format!("random {}", self.name)));
        let keys = keys.into_iter().map(|(key, value)| (format!("gemma4.{key}"), value));
        [architecture, name].into_iter().chain(keys).collect()
    }

    /// Every tensor, typed as llama-quantize's Q4_K_M types them.
    fn tensors(&self) -> Vec<(Entry, Content)> {
        let (d, p) = (self.width, self.per_layer_width);
        let mut tensors = Tensors(Vec::new());
        let (q4, q6) = (GgmlType::Q4_K, GgmlType::Q6_K);
        let more = |more: bool| if more { q6 } else { q4 };
        tensors.matrix("token_embd".into(), &[d, self.vocab], q6);
        tensors.add("output_norm".into(), &[d], GgmlType::F32, Content::Constant(1.0));
        tensors.add("rope_freqs".into(), &[HEAD_SIZES[1] / 2], GgmlType::F32, Content::RopeFactors);
        if p > 0 {
            let of_all = p * self.layers;
            tensors.add("per_layer_token_embd".into(), &[of_all, self.vocab], GgmlType::BF16, Content::Table);
            tensors.matrix("per_layer_model_proj".into(), &[d, of_all], q4);
            tensors.add("per_layer_proj_norm".into(), &[p], GgmlType::F32, Content::Constant(1.0));
        }
        let mut values = 0;
        for i in 0..self.layers {
            let full = usize::from(self.full(i));
            let (head_size, kv_heads) = (HEAD_SIZES[full], self.kv_heads[full]);
            let (queries, keys) = (self.heads * head_size, kv_heads * head_size);
            let ffn = if i < self.layers - self.shared { self.ffn_width } else { self.shared_ffn_width };
            let name = |last: &str| format!("blk.{i}.{last}");
            let mut vectors = vec![
                ("attn_norm", d, 1.0),
                ("post_attention_norm", d, 1.0),
                ("ffn_norm", d, 1.0),
                ("post_ffw_norm", d, 1.0),
                ("attn_q_norm", head_size, 1.0),
                ("attn_k_norm", head_size, [0.06, 0.045][full]),
                ("layer_output_scale", 1, 0.7),
            ];
            tensors.matrix(name("attn_q"), &[d, queries], q4);
            tensors.matrix(name("attn_k"), &[d, keys], q4);
            if p > 0 || full == 0 {
                tensors.matrix(name("attn_v"), &[d, keys], more(more_bits(values, self.layers)));
                values += 1;
            }
            tensors.matrix(name("attn_output"), &[queries, d], q4);
            tensors.matrix(name("ffn_gate"), &[d, ffn], q4);
            tensors.matrix(name("ffn_up"), &[d, ffn], q4);
            tensors.matrix(name("ffn_down"), &[ffn, d], more(more_bits(i, self.layers)));
            if p > 0 {
                tensors.matrix(name("inp_gate"), &[d, p], q4);
                tensors.matrix(name("proj"), &[p, d], q4);
                vectors.push(("post_norm", d, 1.0));
            }
            if let Some([count, _, width]) = self.experts {
                let std = (d as f32).powf(-0.5);
                tensors.add(name("ffn_gate_inp"), &[d, count], GgmlType::F32, Content::Noise(std));
                tensors.matrix(name("ffn_gate_up_exps"), &[d, 2 * width, count], q4);
                tensors.matrix(name("ffn_down_exps"), &[width, d, count], more(more_bits(i, self.layers)));
                vectors.extend([
                    ("post_ffw_norm_1", d, 1.0),
                    ("pre_ffw_norm_2", d, 1.0),
                    ("post_ffw_norm_2", d, 1.0),
                ]);
            }
            for (last, len, value) in vectors {
                tensors.add(name(last), &[len], GgmlType::F32, Content::Constant(value));
            }
            if let Some([count, ..]) = self.experts {
                for (last, len, value) in
                    [("ffn_gate_inp.scale", d, 4.0), ("ffn_down_exps.scale", count, 1.0)]
                {
                    tensors.add(name(last), &[len], GgmlType::F32, Content::Constant(value));
                }
            }
        }
        tensors.0
    }
}

/// At most [`SWEPT`] of them, evenly, with the last.
fn swept(shapes: Vec<Shape>) -> Vec<Shape> {
    let every = shapes.len().div_ceil(SWEPT).max(1);
    let first = (shapes.len() + every - 1) % every;
    shapes.into_iter().skip(first).step_by(every).collect()
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Tensors in the file's order.
struct Tensors(Vec<(Entry, Content)>);

impl Tensors {
    fn add(&mut self, name: String, shape: &[usize], ty: GgmlType, content: Content) {
        let name = if name.ends_with(".scale") { name } else { format!("{name}.weight") };
        self.0.push((Entry { name, shape: shape.into(), ty }, content));
    }

    /// Adds a matrix of blocks. Rows that are no whole blocks of 256 have blocks of 32 and more bits.
    fn matrix(&mut self, name: String, shape: &[usize], ty: GgmlType) {
        let ty = match ty {
            _ if shape[0].is_multiple_of(256) => ty,
            GgmlType::Q6_K => GgmlType::Q8_0,
            _ => GgmlType::Q5_0,
        };
        self.add(name, shape, ty, Content::Blocks);
    }
}

/// Which of `n` layers llama-quantize's Q4_K_M gives six bits: `use_more_bits` of llama-quant.cpp.
fn more_bits(i: usize, n: usize) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

/// A GGUF file of which only the header is in memory.
struct File {
    header: Vec<u8>,
    tensors: Vec<(Range<u64>, GgmlType, Content)>,
    length: u64,
    /// Standard normal values that repeat.
    noise: Vec<f32>,
    /// The same times [`TABLE_STD`], in BF16: rows of the per-layer embeddings are copied by the thousand.
    table: Vec<u8>,
}

/// Values of a [`File`]'s noise.
const NOISE: usize = 1 << 20;
/// Standard deviation of the per-layer embeddings.
const TABLE_STD: f32 = 1.0 / 16.0;

impl File {
    fn new(shape: &Shape) -> io::Result<File> {
        let tensors = shape.tensors();
        let entries: Vec<Entry> = tensors.iter().map(|(entry, _)| entry.clone()).collect();
        let (mut header, alignment) = gguf_writer::header(&shape.metadata(), &entries)?;
        header.resize(header.len().next_multiple_of(alignment as usize), 0);
        let mut length = header.len() as u64;
        let place = |(entry, content): (Entry, Content)| {
            let range = length..length + entry.bytes().expect("checked with the header");
            length = range.end.next_multiple_of(alignment);
            (range, entry.ty, content)
        };
        let tensors = tensors.into_iter().map(place).collect();
        let mut random = ChaCha8Rng::seed_from_u64(0);
        // Irwin and Hall: the sum of twelve uniform numbers.
        let normal = |_| (0..12).map(|_| random.random::<f32>()).sum::<f32>() - 6.0;
        let noise: Vec<f32> = (0..NOISE).map(normal).collect();
        let table = noise.iter().flat_map(|x| bf16::from_f32(x * TABLE_STD).to_le_bytes()).collect();
        Ok(File { header, tensors, length, noise, table })
    }

    fn bytes_of(&self, range: &Range<u64>) -> Vec<u8> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        if range.start < self.header.len() as u64 {
            let known = &self.header[range.start as usize..self.header.len().min(range.end as usize)];
            bytes[..known.len()].copy_from_slice(known);
            return bytes;
        }
        let at = self.tensors.partition_point(|(place, ..)| place.end <= range.start);
        let Some((place, ty, content)) = self.tensors.get(at) else { return bytes };
        let first = ((range.start - place.start) / ty.block_bytes() as u64) as usize;
        let value = |i: usize| match content {
            Content::Constant(value) => *value,
            Content::RopeFactors if i < HEAD_SIZES[1] / 8 => 1.0,
            Content::RopeFactors => 1e30,
            Content::Noise(std) => std * self.noise[i % NOISE],
            Content::Table | Content::Blocks => unreachable!("no values of F32"),
        };
        match content {
            Content::Blocks => {}
            Content::Table => {
                let (mut place, mut at) =
                    (&mut bytes[..], (range.start - place.start) as usize % self.table.len());
                while !place.is_empty() {
                    let count = place.len().min(self.table.len() - at);
                    place
                        .split_off_mut(..count)
                        .expect("as many are left")
                        .copy_from_slice(&self.table[at..][..count]);
                    at = 0;
                }
            }
            _ => {
                let places = bytes.as_chunks_mut::<4>().0.iter_mut().zip(first..);
                places.for_each(|(place, i)| *place = value(i).to_le_bytes());
            }
        }
        bytes
    }
}

impl Source for File {
    fn bytes(&self) -> u64 {
        self.length
    }

    fn read<'a>(&'a self, ranges: &[Range<u64>]) -> Reading<'a> {
        let bytes = ranges.iter().map(|range| self.bytes_of(range)).collect();
        Box::pin(std::future::ready(Ok(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_end_at_the_shape_itself_and_keep_its_mixture() {
        let layers = |name: &str| {
            let shapes = Shape::named(name).expect("a size").by_layers();
            shapes.iter().map(|s| (s.layers, s.shared)).collect::<Vec<_>>()
        };
        assert_eq!(layers("e2b"), [(14, 8), (21, 12), (28, 16), (35, 20)]);
        assert_eq!(layers("31b"), [(12, 0), (24, 0), (36, 0), (48, 0), (60, 0)]);
        for shape in SHAPES.into_iter().chain([TRIAL]) {
            for sizes in [shape.by_layers(), shape.by_width()] {
                assert!((2..=SWEPT).contains(&sizes.len()), "{}: {}", shape.name, sizes.len());
                assert_eq!(sizes.last(), Some(&shape));
                for size in sizes {
                    super::super::source::now(size.base()).expect("a model that can be trained");
                }
            }
        }
    }
}
