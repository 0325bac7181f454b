//! A copy of memory: written by the host, copied by a kernel, read back, every byte compared.

use crate::gpu::{Gpu, GpuError, Recorder};
use crate::ops::peak;

/// Bits around no copied word.
const POISON: u32 = 0xdead_beef;

/// Copies `bytes`, a multiple of 64.
///
/// # Errors
/// The first word that differs, or the device's error.
pub async fn copy(gpu: &Gpu, bytes: usize) -> Result<(), String> {
    let found = copied(gpu, bytes).await.map_err(|error| error.to_string())?;
    let wrong = found.iter().enumerate().find(|(i, word)| **word != word_at(*i));
    wrong.map_or(Ok(()), |(i, word)| {
        let missing = if *word == POISON { ", as before the copy" } else { "" };
        Err(format!("word {i} of {} is {word:#010x}{missing}, expected {:#010x}", found.len(), word_at(i)))
    })
}

/// Words that depend on their place, so that no piece can stand for another.
fn word_at(i: usize) -> u32 {
    let mixed = (i as u32).wrapping_mul(0x9e37_79b9);
    mixed ^ mixed >> 15
}

/// The first half reaches the device in a buffer's initial content, the second by a write.
async fn copied(gpu: &Gpu, bytes: usize) -> Result<Vec<u32>, GpuError> {
    let words: Vec<u32> = (0..bytes / 4).map(word_at).collect();
    let (first, second) = words.split_at(words.len() / 2);
    let mut found = Vec::with_capacity(words.len());
    for (half, written) in [(first, false), (second, true)] {
        let from = match written {
            false => gpu.upload("self-test", half)?,
            true => {
                let from = gpu.buffer("self-test", 4 * half.len() as u64)?;
                gpu.write(&from, half);
                from
            }
        };
        let to = gpu.upload("self-test", &vec![POISON; half.len()])?;
        let mut rec = Recorder::new(gpu);
        peak::copy(&mut rec, &from, &to, 4 * half.len() as u64);
        rec.submit()?;
        found.extend(gpu.read::<u32>(&to, half.len()).await?);
    }
    Ok(found)
}
