//! Compiles every kernel with the shader compiler of a Vulkan driver, and prints what the driver counts in each. No kernel runs, so the
//! GPU may be one that Mesa's drm-shim pretends to have. See README.md beside this crate.

mod apart;
#[allow(dead_code, reason = "tests/shaders reads more of it")]
#[path = "../../shaders/combinations.rs"]
mod combinations;
mod driver;
#[path = "../../../src/gpu/spirv.rs"]
mod mend;
mod pipelines;
mod written;

use std::process::ExitCode;

const USAGE: &str =
    "compile-kernels vulkan [FILTER] | list | wgsl FOLDER | spirv FOLDER | hlsl FOLDER | msl FOLDER";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["vulkan"] => apart::parent(""),
        ["vulkan", filter] => apart::parent(filter),
        ["child", filter, from] => apart::child(filter, from.parse().expect("a number")),
        ["list"] => pipelines::all().iter().for_each(|p| println!("{}\t{}", p.name, p.tier)),
        [kind @ ("wgsl" | "spirv" | "hlsl" | "msl"), folder] => return written::all(kind, folder),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
