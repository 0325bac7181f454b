//! Block formats: values bit by bit, GPU planes, random blocks.

use rullama_train::weights::quant::{dequantize, pack_planes, random_blocks};
use rullama_train::weights::{GgmlType, Gguf};

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
        (GgmlType::Q5_0, 32, 22),
        (GgmlType::Q8_0, 32, 34),
        (GgmlType::Q4_K, 256, 144),
        (GgmlType::Q5_K, 256, 176),
        (GgmlType::Q6_K, 256, 210),
    ];
    for (ty, len, bytes) in expected {
        assert_eq!((ty.block_len(), ty.block_bytes()), (len, bytes), "{ty:?}");
    }
    for ty in GgmlType::ALL {
        assert_eq!(GgmlType::from_id(ty as u32), Some(ty));
    }
    assert_eq!(GgmlType::from_id(4), None, "Q4_2 was removed from ggml");
}

#[test]
fn planes_hold_every_block_in_order() {
    // (format, [(start in the block, bytes)] in the order of the planes); the layout of the shaders.
    let planes: [(GgmlType, &[(usize, usize)]); 4] = [
        (GgmlType::Q8_0, &[(2, 32), (0, 2)]),
        (GgmlType::Q4_0, &[(2, 16), (0, 2)]),
        (GgmlType::Q5_0, &[(6, 16), (2, 4), (0, 2)]),
        (GgmlType::Q6_K, &[(0, 128), (128, 64), (192, 16), (208, 2)]),
    ];
    for (ty, planes) in planes {
        for n in [0, 1, 2, 5] {
            let (blocks, size) = (random_blocks(ty, n, 7), ty.block_bytes());
            let packed = pack_planes(ty, &blocks);
            assert_eq!(packed.len(), (n * size).next_multiple_of(4), "{ty:?}, {n} blocks");
            assert!(packed[n * size..].iter().all(|&b| b == 0), "{ty:?}, {n} blocks: the end is zeros");
            let mut plane = 0;
            for &(start, bytes) in planes {
                assert_eq!(plane % bytes.min(4), 0, "{ty:?}, {n} blocks: planes of words start at words");
                for block in 0..n {
                    let (found, expected) = (plane + block * bytes, block * size + start);
                    let (found, expected) =
                        (&packed[found..found + bytes], &blocks[expected..expected + bytes]);
                    assert_eq!(found, expected, "{ty:?}, {n} blocks: block {block}, bytes from {start}");
                }
                plane += n * bytes;
            }
        }
    }
}

#[test]
fn other_formats_stay_as_they_are() {
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::BF16, GgmlType::Q4_K, GgmlType::Q5_K] {
        for n in [0, 1, 2, 3] {
            let blocks = random_blocks(ty, n, 7);
            let mut expected = blocks.clone();
            expected.resize(blocks.len().next_multiple_of(4), 0);
            assert_eq!(pack_planes(ty, &blocks), expected, "{ty:?}, {n} blocks");
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
        // The largest: |scale| < 2^-4, six-bit sub-scales, quants below 2^5 (Q6_K: 2^7 and 2^5; Q8_0: 2^7).
        let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
        assert!(values.iter().all(|v| v.is_finite()) && largest < 256.0, "{ty:?}: largest {largest}");
        let near = values.iter().filter(|v| **v == 0.0).count();
        assert!(near > 0 && near < values.len() / 2, "{ty:?}: {near} zeros of {}", values.len());
        let mut seen = [false; 256];
        blocks.iter().for_each(|&b| seen[usize::from(b)] = true);
        assert!(seen.iter().all(|&s| s), "{ty:?}: some byte never occurs");
    }
}
