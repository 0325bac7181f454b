//! Exports an adapter for other programs: to every format that can hold it, each verified, and merged into its base.
//!
//!   cargo run --release --example export -- tests/golden/chat/adapter runs/exported

use std::path::Path;

use anyhow::{Context, Result};
use pollster::block_on;
use rullama_train::{
    AdapterPath, Base, Exported, Format, Gguf, Gpu, GpuOptions, MergeType, Offload, OpenBase, OtherBase,
    Recipe, WriteOptions, compare_merged, load_adapters, merge, write_verified,
};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let adapter = arguments.next().context("usage: export ADAPTER FOLDER")?;
    let out = arguments.next().context("usage: export ADAPTER FOLDER")?;
    run(&adapter, Path::new(&out))
}

/// Exports an adapter of the tiny base to the folder `out`.
pub fn run(adapter: &str, out: &Path) -> Result<()> {
    let frozen = OpenBase::open(&Recipe::new("tiny"))?;
    let base = &frozen.base;
    let found = load_adapters(&[AdapterPath::whole(adapter)], base, None, OtherBase::Refuse)?;
    let gpu = block_on(Gpu::open(GpuOptions::default()))?;
    let held_out = frozen.questions(256);

    let (fingerprint, vocabulary) = (found.origin.fingerprint.as_deref(), found.origin.vocabulary.as_deref());
    let options = WriteOptions { base_model: "tiny", dropout: 0.0, fingerprint, vocabulary };
    let write =
        write_verified(&gpu, base, out, &Format::ALL, &found.adapter, &options, &held_out, Offload::NEVER);
    let written = block_on(write)?;
    println!("effect of the adapter: {}", written.effect);
    for (format, result) in written.formats {
        match result {
            Ok(Exported { place, fidelity }) => println!("{}: {fidelity}", place.display()),
            Err(error) => println!("{} failed: {error}", format.name()),
        }
    }

    let path = out.join("merged.gguf");
    merge(&path, base, &found.adapter, MergeType::Auto, |_| {})?;
    let merged = Base::from_gguf(Gguf::open(&path)?, "merged")?;
    let verdict = block_on(compare_merged(&gpu, base, &found.adapter, &merged, &held_out, Offload::NEVER))?;
    verdict.check(MergeType::Auto)?;
    println!("{}: {}", path.display(), verdict.divergence);
    Ok(())
}
