//! Exports an adapter for other programs: to every format that can hold it, each verified, and merged into its base.
//!
//!   cargo run --release --example export -- tests/golden/chat/adapter runs/exported

use rullama_train::families;
use std::path::Path;

use anyhow::{Context, Result};
use pollster::block_on;
use rullama_train::adapter::merge::{self, MergeType};
use rullama_train::adapter::{self, AdapterPath, Format, OtherBase, WriteOptions};
use rullama_train::base::{Base, Gguf};
use rullama_train::data::template::Template;
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::gpu::{Gpu, GpuOptions};
use rullama_train::model::plan::Offload;
use rullama_train::verify::{self, Exported, HeldOut};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let adapter = arguments.next().context("usage: export ADAPTER FOLDER")?;
    let out = arguments.next().context("usage: export ADAPTER FOLDER")?;
    run(&adapter, Path::new(&out))
}

/// Exports an adapter of the tiny base to the folder `out`.
pub fn run(adapter: &str, out: &Path) -> Result<()> {
    let base = Base::open("tiny")?;
    let found = adapter::load(&[AdapterPath::whole(adapter)], &base, None, OtherBase::Refuse)?;
    let gpu = block_on(Gpu::open(GpuOptions::default()))?;
    let tokenizer = Tokenizer::from_gguf(base.gguf())?;
    let layout = families::template(base.config());
    let held_out =
        HeldOut::built_in(&tokenizer, (&Template::BuiltIn(layout), layout), 256, base.config().vocab);

    let (fingerprint, vocabulary) = (found.origin.fingerprint.as_deref(), found.origin.vocabulary.as_deref());
    let options = WriteOptions { base_model: "tiny", dropout: 0.0, fingerprint, vocabulary };
    let write = verify::write_verified(
        &gpu,
        &base,
        out,
        &Format::ALL,
        &found.adapter,
        &options,
        &held_out,
        Offload::NEVER,
    );
    let written = block_on(write)?;
    println!("effect of the adapter: {}", written.effect);
    for (format, result) in written.formats {
        match result {
            Ok(Exported { place, fidelity }) => println!("{}: {fidelity}", place.display()),
            Err(error) => println!("{} failed: {error}", format.name()),
        }
    }

    let path = out.join("merged.gguf");
    merge::write(&path, &base, &found.adapter, MergeType::Auto, |_| {})?;
    let merged = Base::from_gguf(Gguf::open(&path)?, "merged")?;
    let verdict =
        block_on(verify::compare_merged(&gpu, &base, &found.adapter, &merged, &held_out, Offload::NEVER))?;
    verdict.check(MergeType::Auto)?;
    println!("{}: {}", path.display(), verdict.divergence);
    Ok(())
}
