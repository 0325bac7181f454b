//! The text or words of every pipeline as files, for compilers that read those.

use std::fs;
use std::process::ExitCode;

use crate::pipelines::{self, Pipeline, Ready};

/// Writes a file for each pipeline, and `list.tsv`: number, entry point, name, tier, verdict, counts.
pub fn all(kind: &str, folder: &str) -> ExitCode {
    fs::create_dir_all(folder).expect("the folder can be made");
    let (mut list, mut failed) = (String::new(), 0);
    // naga has no HLSL for cooperative matrices.
    let is_written = |p: &Pipeline| kind != "hlsl" || !p.of.text.contains("coop_mat");
    for (i, p) in pipelines::all().iter().enumerate().filter(|(_, p)| is_written(p)) {
        let ready = p.ready();
        let (entry, verdict) = match text(kind, p, &ready) {
            Ok((entry, bytes)) => {
                let extension = if kind == "spirv" { "spv" } else { kind };
                fs::write(format!("{folder}/{i:05}.{extension}"), bytes).expect("the file can be written");
                (entry, "ok".to_string())
            }
            Err(error) => {
                failed += 1;
                (p.entry.clone(), format!("FAILED {error}"))
            }
        };
        list += &format!("{i:05}\t{entry}\t{}\t{}\t{verdict}\t{}\n", p.name, p.tier, ready.counts());
    }
    fs::write(format!("{folder}/list.tsv"), list).expect("the list can be written");
    ExitCode::from(u8::from(failed > 0))
}

fn text(kind: &str, p: &Pipeline, ready: &Ready) -> Result<(String, Vec<u8>), String> {
    let in_bytes = |(name, text): (String, String)| (name, text.into_bytes());
    match kind {
        "spirv" => {
            let words = pipelines::spirv(p, ready)?;
            Ok((p.entry.clone(), words.iter().flat_map(|word| word.to_le_bytes()).collect()))
        }
        "wgsl" => Ok((p.entry.clone(), p.of.text.clone().into_bytes())),
        "hlsl" => pipelines::hlsl(p, ready).map(in_bytes),
        _ => pipelines::msl(p, ready).map(in_bytes),
    }
}

impl Ready {
    /// Fields of a table.
    pub fn counts(&self) -> String {
        let storage = self.bindings.iter().filter(|(_, storage)| *storage).count();
        format!("threads={}\tstorage={storage}\tworkgroup_bytes={}", self.threads, self.workgroup_bytes)
    }
}
