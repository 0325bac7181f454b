//! [`RandomFile`]: a GGUF file of which only the header is in memory. Its vectors hold constants, its matrices' blocks are made
//! on the device ([`crate::ops::random`]), and its per-layer embeddings repeat one piece of noise.

use std::io;
use std::ops::Range;
use std::sync::OnceLock;

use half::bf16;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::base::GgmlType;
use crate::base::gguf::source::{Reading, Source};
use crate::base::gguf::value::Value;
use crate::base::gguf::writer::{self, Entry};

/// Values of a tensor.
#[derive(Clone, Copy)]
pub(super) enum Content {
    /// One value everywhere.
    Constant(f32),
    /// Divisors of the rotary frequencies: 1 for the first so many, beyond any position for the rest.
    RopeFactors(usize),
    /// Normal values of this standard deviation.
    Noise(f32),
    /// Per-layer embeddings: noise of standard deviation [`TABLE_STD`], in BF16.
    Table,
    /// Blocks that are made on the device.
    Blocks,
}

/// Tensors in the order of the file.
pub(super) struct Tensors(Vec<(Entry, Content)>);

impl Tensors {
    pub fn new() -> Tensors {
        Tensors(Vec::new())
    }

    /// Adds the tensor `name.weight`, or `name` where it ends in `.scale`. `shape` is in GGUF's order, columns first.
    pub fn add(&mut self, name: String, shape: &[usize], ty: GgmlType, content: Content) {
        let name =
            if name.ends_with(".scale") || name.ends_with(".bias") { name } else { format!("{name}.weight") };
        self.0.push((Entry { name, shape: shape.into(), ty }, content));
    }

    /// Adds an F32 vector of one value.
    pub fn vector(&mut self, name: String, len: usize, value: f32) {
        self.add(name, &[len], GgmlType::F32, Content::Constant(value));
    }

    /// Adds a matrix of blocks. Rows that are not whole blocks of 256 get a format with blocks of 32 and more bits.
    pub fn matrix(&mut self, name: String, shape: &[usize], ty: GgmlType) {
        let ty = match ty {
            _ if shape[0].is_multiple_of(256) => ty,
            GgmlType::Q6_K => GgmlType::Q8_0,
            _ => GgmlType::Q5_0,
        };
        self.add(name, shape, ty, Content::Blocks);
    }
}

/// Q6_K for the tensors to which llama-quantize's Q4_K_M gives more bits, else Q4_K: `use_more_bits` of llama-quant.cpp for
/// layer `i` of `n`.
pub(super) fn q4_k_m(i: usize, n: usize) -> GgmlType {
    let more_bits = i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
    if more_bits { GgmlType::Q6_K } else { GgmlType::Q4_K }
}

/// A GGUF file that is made as it is read.
pub(super) struct RandomFile {
    header: Vec<u8>,
    tensors: Vec<(Range<u64>, GgmlType, Content)>,
    length: u64,
    /// Standard normal values that repeat.
    noise: &'static [f32],
    /// `noise` times [`TABLE_STD`] in BF16. Rows of the per-layer embeddings are copied by the thousand.
    table: &'static [u8],
}

/// Number of values in [`RandomFile::noise`].
const NOISE: usize = 1 << 20;
/// Standard deviation of the per-layer embeddings.
const TABLE_STD: f32 = 1.0 / 16.0;

/// [`RandomFile::noise`] and [`RandomFile::table`], which all files share.
static NOISES: OnceLock<(Vec<f32>, Vec<u8>)> = OnceLock::new();

fn noises() -> (Vec<f32>, Vec<u8>) {
    let mut random = ChaCha8Rng::seed_from_u64(0);
    // Irwin and Hall: the sum of twelve uniform numbers.
    let normal = |_| (0..12).map(|_| random.random::<f32>()).sum::<f32>() - 6.0;
    let noise: Vec<f32> = (0..NOISE).map(normal).collect();
    let table = noise.iter().flat_map(|x| bf16::from_f32(x * TABLE_STD).to_le_bytes()).collect();
    (noise, table)
}

impl RandomFile {
    pub fn new(metadata: &[(String, Value)], tensors: Tensors) -> io::Result<RandomFile> {
        let Tensors(tensors) = tensors;
        let entries: Vec<Entry> = tensors.iter().map(|(entry, _)| entry.clone()).collect();
        let (mut header, alignment) = writer::header(metadata, &entries)?;
        header.resize(header.len().next_multiple_of(alignment as usize), 0);
        let mut length = header.len() as u64;
        let place = |(entry, content): (Entry, Content)| {
            let range = length..length + entry.bytes().expect("the header was written, so sizes fit");
            length = range.end.next_multiple_of(alignment);
            (range, entry.ty, content)
        };
        let tensors = tensors.into_iter().map(place).collect();
        let (noise, table) = NOISES.get_or_init(noises);
        Ok(RandomFile { header, tensors, length, noise, table })
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
        match *content {
            Content::Blocks => {}
            Content::Table => self.fill_table((range.start - place.start) as usize, &mut bytes),
            Content::Constant(value) => fill(&mut bytes, first, |_| value),
            Content::RopeFactors(ones) => fill(&mut bytes, first, |i| if i < ones { 1.0 } else { 1e30 }),
            Content::Noise(std) => fill(&mut bytes, first, |i| std * self.noise[i % NOISE]),
        }
        bytes
    }

    /// Bytes of the per-layer embeddings from byte `start` on.
    fn fill_table(&self, start: usize, mut place: &mut [u8]) {
        let mut at = start % self.table.len();
        while !place.is_empty() {
            let count = place.len().min(self.table.len() - at);
            let part = place.split_off_mut(..count).expect("count is at most the length");
            part.copy_from_slice(&self.table[at..][..count]);
            at = 0;
        }
    }
}

/// Fills `bytes` with F32 values, from index `first` on.
fn fill(bytes: &mut [u8], first: usize, value: impl Fn(usize) -> f32) {
    let places = bytes.as_chunks_mut::<4>().0.iter_mut().zip(first..);
    places.for_each(|(place, i)| *place = value(i).to_le_bytes());
}

impl Source for RandomFile {
    fn bytes(&self) -> u64 {
        self.length
    }

    fn read<'a>(&'a self, ranges: &[Range<u64>]) -> Reading<'a> {
        let bytes = ranges.iter().map(|range| self.bytes_of(range)).collect();
        Box::pin(std::future::ready(Ok(bytes)))
    }
}
