//! Quantizers lose no more than llama.cpp's: tests/golden/quantize.json holds what those lost on the same matrices.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use rullama_train::base::formats::dequantize;
use rullama_train::base::quantize::{ENCODED, Error, quantize, quantize_parallel};
use rullama_train::base::{Base, GgmlType};

const ROWS: usize = 128;
const COLS: usize = 1024;
/// Ours may lose this much more. Measured: 1.0002 and less; sums in another order make f32 ties fall otherwise.
const WORSE: f64 = 1.02;

/// Twin of `gaussian` in tests/golden/quantize.py.
fn gaussian(seed: u64) -> Vec<f32> {
    let splitmix = |i: u64| {
        let x = (i + (seed << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    };
    let sum = |i: usize| -> i64 {
        let parts = (0..3).map(|j| splitmix(3 * i as u64 + j));
        parts.map(|x| (0..4).map(|k| (x >> (16 * k) & 0xffff) as i64).sum::<i64>()).sum()
    };
    (0..ROWS * COLS).map(|i| (sum(i) - 6 * 65535) as f32 / 65536.0).collect()
}

fn matrix(name: &str) -> Vec<f32> {
    let normal = gaussian(1);
    match name {
        "gaussian" => normal,
        "cubed" => normal.into_iter().map(|x| x * x * x).collect(),
        "rows" => {
            let size = |i: usize| ((i / COLS % 16) as f32 - 12.0).exp2();
            normal.into_iter().enumerate().map(|(i, x)| x * size(i)).collect()
        }
        "shifted" => normal.into_iter().map(|x| x * 0.02 + 0.05).collect(),
        file if file.ends_with(".bf16") => {
            let bytes = std::fs::read(Path::new("tests/fixtures/quantize").join(file)).expect("a fixture");
            dequantize(GgmlType::BF16, &bytes)
        }
        tensor => {
            let base = Base::tiny().expect("part of the program");
            let name = tensor.strip_suffix(".weight").expect("a tensor's name");
            base.require_matrix(name).expect("one of the model's").dequantize()
        }
    }
}

fn relative_error(ty: GgmlType, values: &[f32]) -> f64 {
    let decoded = dequantize(ty, &quantize_parallel(ty, values).expect("ordinary values"));
    let squares = |terms: &mut dyn Iterator<Item = f64>| terms.map(|x| x * x).sum::<f64>();
    let difference = squares(&mut decoded.iter().zip(values).map(|(d, v)| f64::from(*d) - f64::from(*v)));
    (difference / squares(&mut values.iter().map(|&v| f64::from(v)))).sqrt()
}

#[test]
fn no_format_loses_more_than_in_llama_cpp() {
    let figures: BTreeMap<String, BTreeMap<String, f64>> =
        serde_json::from_str(include_str!("golden/quantize.json")).expect("what quantize.py wrote");
    assert_eq!(
        figures.len(),
        10,
        "four made matrices, three of the tiny model, three from before it was quantized"
    );
    let mut failures = Vec::new();
    for (name, expected) in &figures {
        let values = matrix(name);
        assert_eq!(expected.len(), 15, "formats that llama.cpp writes without importance matrix");
        for (ty, &expected) in expected {
            let ty = GgmlType::SUPPORTED.into_iter().find(|t| t.name() == *ty).expect("a supported type");
            let started = Instant::now();
            let found = relative_error(ty, &values);
            let line = format!(
                "{name:22} {:5} {found:.6e} llama.cpp {expected:.6e} ratio {:.5} in {:?}",
                ty.name(),
                found / expected,
                started.elapsed()
            );
            println!("{line}");
            // Values that the format holds exactly are lost by neither.
            if found > expected * WORSE + 1e-12 {
                failures.push(line);
            }
        }
    }
    assert!(failures.is_empty(), "worse than {WORSE} times llama.cpp:\n{}", failures.join("\n"));
}

#[test]
fn every_core_gives_the_same_bytes() {
    let values = gaussian(2);
    for ty in ENCODED {
        // A number of blocks that cores cannot share evenly.
        let values = &values[..7 * 256];
        assert_eq!(quantize_parallel(ty, values), quantize(ty, values), "{ty:?}");
        assert_eq!(quantize_parallel(ty, &[]), Ok(vec![]), "{ty:?}");
    }
}

/// A name and the value at each index.
type Shape = (&'static str, fn(usize) -> f32);

#[test]
fn odd_blocks_stay_finite_and_close() {
    let shapes: [Shape; 9] = [
        ("zeros", |_| 0.0),
        ("negative zeros", |_| -0.0),
        ("constant", |_| 0.3),
        ("negative constant", |_| -0.3),
        ("one value", |i| if i == 77 { -5.0 } else { 0.0 }),
        ("subnormal", |i| i as f32 * 1e-44),
        ("tiny", |i| (i as f32 - 100.0) * 1e-17),
        ("huge and tiny", |i| if i % 32 == 0 { 60000.0 } else { 1e-30 }),
        ("all positive", |i| 1.0 + i as f32 * 1e-3),
    ];
    for (shape, value) in shapes {
        let values: Vec<f32> = (0..256).map(value).collect();
        let largest = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        for ty in ENCODED {
            let decoded = dequantize(ty, &quantize(ty, &values).expect("finite values"));
            for (i, (found, expected)) in decoded.iter().zip(&values).enumerate() {
                // Most grids have 16 steps or more over the range, or over twice the largest value; 1e-6 is what the smallest
                // 16-bit scale cannot tell from 0.
                let steps = match ty {
                    GgmlType::Q2_K => 3.0,
                    GgmlType::Q3_K | GgmlType::MXFP4 => 4.0,
                    _ => 7.0,
                };
                let allowed = largest / steps + 1e-6;
                assert!(
                    (found - expected).abs() <= allowed,
                    "{shape}, {ty:?} at {i}: {found}, not {expected}"
                );
            }
        }
    }
}

#[test]
fn what_a_format_cannot_hold_is_refused() {
    let mut values = vec![0.5f32; 512];
    for (bad, expected) in [
        (f32::NAN, "the value NaN at position 300 is not a finite number"),
        (f32::NEG_INFINITY, "the value -inf at position 300 is not a finite number"),
        (70000.0, "the value 70000 at position 300 is beyond ±65504"),
    ] {
        values[300] = bad;
        for ty in ENCODED {
            let result = quantize_parallel(ty, &values);
            if bad == 70000.0 && matches!(ty, GgmlType::F32 | GgmlType::BF16 | GgmlType::MXFP4) {
                result.expect("wide enough");
                continue;
            }
            let error = result.expect_err(expected).to_string();
            assert!(error.contains(expected), "{ty:?}: {error}");
        }
    }
    assert_eq!(quantize(GgmlType::IQ3_S, &[0.0; 256]), Err(Error::Unsupported(GgmlType::IQ3_S)));
}
