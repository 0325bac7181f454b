//! Every shader as PTX, for CUDA's device: naga-ptx translates all but those on matrices of 8×8, which only Apple's GPUs have.

use naga::back::PipelineConstants;
use naga::back::pipeline_constants::process_overrides;
use naga_ptx::{Options, Unsupported};

use crate::combinations::{Combination, combinations};

/// Bytes of all arguments of a kernel.
const ARGUMENTS: u32 = 4096;

/// Shared memory that a kernel gets without asking for more.
const SHARED: u32 = 48 << 10;

/// The kernels of a shader, by the names of its entry points.
fn kernels(c: &Combination, options: &Options) -> Vec<(String, Result<naga_ptx::Kernel, Unsupported>)> {
    let mut constants = PipelineConstants::default();
    for (_, declared) in c.module.overrides.iter() {
        let name = declared.name.clone().expect("an override has a name");
        let value = match name.as_str() {
            "HEAD_SIZE4" => 32.0,
            "QUERIES" | "ROWS" => 4.0,
            "PARTS" => 8.0,
            other => panic!("{}: a value for {other}", c.name),
        };
        constants.insert(name, value);
    }
    let entries = c.module.entry_points.iter().map(|entry| entry.name.clone());
    let kernels = entries.map(|entry| {
        let stage = Some((naga::ShaderStage::Compute, entry.as_str()));
        let (module, info) =
            process_overrides(&c.module, &c.info, stage, &constants).expect("all overrides have values");
        let kernel = naga_ptx::translate(&module, &info, &entry, options);
        (entry, kernel)
    });
    kernels.collect()
}

/// A new shader, format or size changes the numbers.
pub fn every_kernel_is_translated() {
    let folder = std::env::var_os("RULLAMA_PTX").map(std::path::PathBuf::from);
    let (mut translated, mut refused) = (0, 0);
    for c in combinations() {
        let small = c.text.contains("coop_mat8x8");
        // Texts for 8.0 are these without the wait for the kernel ahead, which 9.0 and newer have.
        for (entry, kernel) in kernels(c, &Options { target: 90, ..Options::default() }) {
            let what = format!("{}, {entry}", c.name);
            match kernel {
                Ok(kernel) => {
                    assert!(kernel.shared <= SHARED, "{what}: {} bytes of shared memory", kernel.shared);
                    let bytes = kernel.params.iter().map(|param| match param.kind {
                        naga_ptx::ParamKind::Value { bytes } => bytes.next_multiple_of(16),
                        _ => 8,
                    });
                    assert!(bytes.sum::<u32>() <= ARGUMENTS, "{what}: its arguments are too long");
                    if let Some(folder) = &folder {
                        let file = folder.join(format!("{translated:04}.ptx"));
                        std::fs::write(file, format!("// {what}\n{}", kernel.text))
                            .expect("the folder exists");
                    }
                    translated += 1;
                }
                Err(Unsupported(reason)) => {
                    assert!(small, "{what}: {reason}");
                    assert_eq!(reason, "cooperative matrices other than 16×16", "{what}");
                    refused += 1;
                }
            }
        }
    }
    assert_eq!((translated, refused), (2299, 266), "entry points: translated, and on matrices of 8×8");
}
