//! Products of a few rows with weights of every format, alone and side by side, and with an adapter's `A`.

use rullama_train::base::config::Activation;
use rullama_train::base::formats::GgmlType;
use rullama_train::cases::inputs::widths;
use rullama_train::cases::matvec::{Call, Gate, gated_product, product};
use rullama_train::gpu::Gpu;

use super::check::{Outcome, each};

pub fn forward(gpu: &Gpu, formats: &[GgmlType]) -> Outcome {
    let mut calls = Vec::new();
    for (i, ty) in formats.iter().copied().enumerate() {
        let k = widths(ty);
        calls.push(Call::new(1, k[2], &[(ty, 131)], 4));
        // Every number of rows with some format, with and without tiles and softcap.
        calls.push(Call {
            tiled: i % 2 == 0,
            softcap: [None, Some(3.0)][i % 2],
            ..Call::new([2, 3, 5, 8][i % 4], k[i % 3], &[(ty, 67)], 4 * (i % 3))
        });
        // Side by side, of the same and of different formats, in one dispatch and in several.
        calls.push(match i % 2 {
            0 => Call::new(1, 512, &[(ty, 5), (GgmlType::Q6_K, 64), (ty, 33)], 12),
            _ => Call { tiled: true, ..Call::new(1, 512, &[(ty, 128), (GgmlType::F16, 130)], 4) },
        });
    }
    calls.push(Call::new(1, 256, &[(GgmlType::Q4_K, 1)], 0));
    // Wide enough for every number of threads per row.
    calls.extend([128, 512, 1024, 1536, 2048].map(|k| Call::new(3, k, &[(GgmlType::F16, 5)], 4)));
    // More workgroups than one dimension holds: 32 768, of 32 rows each.
    calls.push(Call::new(1, 32, &[(GgmlType::Q8_0, 1_050_000)], 4));
    each(gpu, "matvec", &calls, product)
}

/// Rows that 32 and 64 threads share, with and without remaining slices, and `A` wider than four rounds of a workgroup.
pub fn wide_rows(gpu: &Gpu, formats: &[GgmlType]) -> Outcome {
    let mut calls = Vec::new();
    for ty in formats.iter().copied() {
        let sizes = [(1, 768), (3, 1536), (1, 4096)];
        calls.extend(sizes.map(|(rows, k)| Call::new(rows, k, &[(ty, 5), (GgmlType::Q4_K, 2)], 4)));
    }
    calls.push(Call::new(2, 9216, &[(GgmlType::Q6_K, 3)], 8));
    each(gpu, "matvec, wide rows", &calls, product)
}

/// A product whose workgroups compute its gated input: every format with one of the activations.
pub fn gated(gpu: &Gpu, formats: &[GgmlType]) -> Outcome {
    let gate = |(i, ty): (usize, &GgmlType)| {
        let activation = Activation::ALL[i % Activation::ALL.len()];
        Gate { ty: *ty, rows: [1, 2, 5, 8][i % 4], rank: [0, 4, 16][i % 3], activation, n: 131 }
    };
    let gates: Vec<Gate> = formats.iter().enumerate().map(gate).collect();
    each(gpu, "matvec, gated", &gates, gated_product)
}
