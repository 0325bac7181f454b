//! Block formats: values bit by bit, GPU planes, random blocks.

use rullama_train::base::formats::planes;
use rullama_train::base::formats::{dequantize, random_blocks};
use rullama_train::base::{GgmlType, Gguf};

#[test]
fn values_have_the_bits_that_gguf_py_finds() {
    // gguf-py's decoders are bit-identical to llama.cpp's; tests/golden/make_blocks.py ran them.
    let gguf = Gguf::from_static(include_bytes!("../golden/blocks.gguf"), "blocks.gguf").expect("sound");
    for ty in GgmlType::SUPPORTED {
        let blocks = gguf.tensor(&ty.name()).expect("in the file");
        let values = gguf.tensor(&format!("{}.values", ty.name())).expect("in the file");
        assert_eq!(blocks.ty, ty);
        let found = dequantize(ty, gguf.data(blocks));
        let expected = gguf.data(values).as_chunks::<4>().0;
        assert_eq!(found.len(), expected.len(), "{ty:?}");
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let expected = f32::from_le_bytes(*expected);
            assert_eq!(
                found.to_bits(),
                expected.to_bits(),
                "{ty:?} value {i}: found {found}, expected {expected}"
            );
        }
    }
}

#[test]
fn sizes_are_those_of_ggml() {
    // ggml-common.h's static_asserts for the formats in use; gguf-py's GGML_QUANT_SIZES agrees.
    let expected = [
        (GgmlType::F32, 1, 4),
        (GgmlType::F16, 1, 2),
        (GgmlType::BF16, 1, 2),
        (GgmlType::Q4_0, 32, 18),
        (GgmlType::Q4_1, 32, 20),
        (GgmlType::Q5_0, 32, 22),
        (GgmlType::Q5_1, 32, 24),
        (GgmlType::Q8_0, 32, 34),
        (GgmlType::Q4_K, 256, 144),
        (GgmlType::Q5_K, 256, 176),
        (GgmlType::Q6_K, 256, 210),
        (GgmlType::Q2_K, 256, 84),
        (GgmlType::Q3_K, 256, 110),
        (GgmlType::IQ4_NL, 32, 18),
        (GgmlType::IQ4_XS, 256, 136),
        (GgmlType::MXFP4, 32, 17),
        (GgmlType::IQ2_XXS, 256, 66),
        (GgmlType::IQ2_XS, 256, 74),
        (GgmlType::IQ2_S, 256, 82),
        (GgmlType::IQ3_XXS, 256, 98),
        (GgmlType::IQ3_S, 256, 110),
        (GgmlType::IQ1_S, 256, 50),
        (GgmlType::IQ1_M, 256, 56),
        (GgmlType::TQ1_0, 256, 54),
        (GgmlType::TQ2_0, 256, 66),
        (GgmlType::NVFP4, 64, 36),
        (GgmlType::Q1_0, 128, 18),
        (GgmlType::Q2_0, 64, 18),
    ];
    assert_eq!(expected.len(), GgmlType::SUPPORTED.len());
    for (ty, len, bytes) in expected {
        assert_eq!((ty.block_len(), ty.block_bytes()), (len, bytes), "{ty:?}");
    }
    for ty in GgmlType::ALL {
        assert_eq!(GgmlType::from_id(ty as u32), Some(ty));
    }
    assert_eq!(GgmlType::from_id(4), None, "Q4_2 was removed from ggml");
}

/// Formats whose planes tests/ops alone reads back, with the kernels.
const BY_KERNELS: [GgmlType; 12] = [
    GgmlType::IQ2_XXS,
    GgmlType::IQ2_XS,
    GgmlType::IQ2_S,
    GgmlType::IQ3_XXS,
    GgmlType::IQ3_S,
    GgmlType::IQ1_S,
    GgmlType::IQ1_M,
    GgmlType::TQ1_0,
    GgmlType::TQ2_0,
    GgmlType::NVFP4,
    GgmlType::Q1_0,
    GgmlType::Q2_0,
];

/// Decodes the packed matrix value by value, as src/base/formats/planes.rs describes it.
#[test]
fn planes_hold_every_value() {
    let (rows, cols) = (3, 512);
    for ty in GgmlType::SUPPORTED {
        let blocks = random_blocks(ty, rows * cols / ty.block_len(), 7);
        let packed = planes::to_planes(ty, rows, &blocks);
        let full = ty.table().len() + blocks.len().next_multiple_of(16);
        assert_eq!(
            packed.len(),
            full,
            "{ty:?}: no byte more than in the file, but for the table and the end"
        );
        assert_eq!(packed[..ty.table().len()], *ty.table(), "{ty:?}: the table comes first");
        assert!(ty.table().len() <= 4096, "{ty:?}");
        let value = |row: usize, col: usize| {
            let (slice, i, sixteen, block) =
                (col / 32 * rows + row, col % 32, cols / 32 * rows, col / 256 * rows + row);
            let half = |at: usize| half::f16::from_le_bytes([packed[at], packed[at + 1]]).to_f32();
            let word = |at: usize| u32::from_le_bytes(packed[at..at + 4].try_into().expect("four bytes"));
            // The first of two neighbours is in the low half of a word, the second in the high half.
            let (pair, low) = (i / 2, i % 2 * 16);
            let nibble = || word(slice * 16 + i / 8 * 4) >> (pair % 4 * 4 + low) & 15;
            let bit = |plane: usize| word(plane + slice * 4) >> (pair + low) & 1;
            let header = sixteen * 16 + block * 16;
            let k = || {
                let (s, sub) = (&packed[header + 4..header + 16], col / 32 % 8);
                let (scale, min) = match sub {
                    0..4 => (s[sub] & 63, s[sub + 4] & 63),
                    _ => (s[sub + 4] & 15 | s[sub - 4] >> 6 << 4, s[sub + 4] >> 4 | s[sub] >> 6 << 4),
                };
                (half(header) * f32::from(scale), half(header + 2) * f32::from(min))
            };
            // Two bits of a plane of pairs that begins at `plane`, and of the scales of the half of a slice.
            let two = |plane: usize| word(plane + slice * 8 + i / 16 * 4) >> (pair % 8 * 2 + low) & 3;
            let (run, headers) = (col % 256 / 16, cols / 256 * rows);
            let iq4 = |q: u32| {
                let levels = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
                levels[q as usize] as f32
            };
            let headers_end = sixteen * 16 + cols / 256 * rows * 16;
            match ty {
                GgmlType::Q4_0 => half(sixteen * 16 + slice * 2) * (nibble() as f32 - 8.0),
                GgmlType::Q4_1 => {
                    let factors = sixteen * 16 + slice * 4;
                    half(factors) * nibble() as f32 + half(factors + 2)
                }
                GgmlType::Q5_1 => {
                    let factors = sixteen * 20 + slice * 4;
                    half(factors) * (nibble() | bit(sixteen * 16) << 4) as f32 + half(factors + 2)
                }
                GgmlType::Q5_0 => {
                    half(sixteen * 20 + slice * 2) * ((nibble() | bit(sixteen * 16) << 4) as f32 - 16.0)
                }
                GgmlType::Q8_0 => {
                    half(sixteen * 32 + slice * 2) * f32::from(packed[slice * 32 + i].cast_signed())
                }
                GgmlType::Q4_K => k().0 * nibble() as f32 - k().1,
                GgmlType::Q5_K => k().0 * (nibble() | bit(headers_end) << 4) as f32 - k().1,
                GgmlType::Q6_K => {
                    let high = two(headers_end);
                    let scale = packed[header + col % 256 / 16].cast_signed();
                    let d = half(headers_end + sixteen * 8 + block * 2);
                    d * f32::from(scale) * ((nibble() | high << 4) as f32 - 32.0)
                }
                GgmlType::Q2_K => {
                    let (scales, factors) = (packed[block * 16 + run], headers * 80 + block * 4);
                    let (scale, min) = (f32::from(scales & 15), f32::from(scales >> 4));
                    half(factors) * scale * two(headers * 16) as f32 - half(factors + 2) * min
                }
                GgmlType::Q3_K => {
                    let low = packed[headers * 64 + block * 8 + run / 2] >> (run % 2 * 4) & 15;
                    let high = packed[headers * 104 + block * 4 + run / 4] >> (run % 4 * 2) & 3;
                    let q = two(0) | bit(headers * 72) << 2;
                    half(headers * 108 + block * 2) * (f32::from(low | high << 4) - 32.0) * (q as f32 - 4.0)
                }
                GgmlType::IQ4_NL => half(sixteen * 16 + slice * 2) * iq4(nibble()),
                GgmlType::IQ4_XS => {
                    let (d, s) = (sixteen * 16 + block * 8, col / 32 % 8);
                    let scale = word(d + 4) >> (4 * s) & 15 | (word(d) >> (16 + 2 * s) & 3) << 4;
                    half(d) * (scale as f32 - 32.0) * iq4(nibble())
                }
                GgmlType::MXFP4 => {
                    let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][nibble() as usize % 8];
                    let sign = if nibble() < 8 { 1.0 } else { -1.0 };
                    sign * size * (f32::from(packed[sixteen * 16 + slice]) - 127.0).exp2()
                }
                _ => dequantize(ty, &packed[..blocks.len()])[row * cols + col],
            }
        };
        if BY_KERNELS.contains(&ty) {
            continue;
        }
        let truth = dequantize(ty, &blocks);
        for (at, &expected) in truth.iter().enumerate() {
            assert_eq!(
                value(at / cols, at % cols),
                expected,
                "{ty:?}: row {}, column {}",
                at / cols,
                at % cols
            );
        }
    }
}

#[test]
fn rows_of_other_formats_stay_as_they_are() {
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::BF16] {
        for n in [0, 1, 2, 3] {
            let blocks = random_blocks(ty, n, 7);
            let mut expected = blocks.clone();
            expected.resize(blocks.len().next_multiple_of(16), 0);
            assert_eq!(planes::to_planes(ty, 1, &blocks), expected, "{ty:?}, {n} blocks");
        }
    }
}

#[test]
fn random_blocks_are_finite_reach_every_byte_and_repeat() {
    for ty in GgmlType::SUPPORTED {
        let n = 16384 / ty.block_len().min(16);
        let blocks = random_blocks(ty, n, 3);
        assert_eq!(blocks, random_blocks(ty, n, 3), "{ty:?}: the same seed");
        assert_ne!(blocks, random_blocks(ty, n, 4), "{ty:?}: another seed");
        let values = dequantize(ty, &blocks);
        // Largest magnitudes: |scale| < 2^-4, six-bit sub-scales, quants below 2^5 (Q6_K: 2^7 and 2^5; Q8_0: 2^7).
        let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
        assert!(values.iter().all(|v| v.is_finite()) && largest < 256.0, "{ty:?}: largest {largest}");
        let near = values.iter().filter(|v| **v == 0.0).count();
        assert!(near > 0 && near < values.len() / 2, "{ty:?}: {near} zeros of {}", values.len());
        let mut seen = [false; 256];
        blocks.iter().for_each(|&b| seen[usize::from(b)] = true);
        assert!(seen.iter().all(|&s| s), "{ty:?}: some byte never occurs");
    }
}
