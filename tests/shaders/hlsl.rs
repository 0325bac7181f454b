//! The text that wgpu gives to DX12's compilers.

use std::collections::BTreeSet;

use naga::ShaderStage;
use naga::back::hlsl::{Options, PipelineOptions, ShaderModel, Writer};

use super::combinations::{Combination, combinations};

/// DXC and FXC refuse a function that is defined twice with the same parameters. naga 30 defines `ZeroValuefloat4` twice where a module
/// uses both `vec4<f32>` and an alias of it (tests/shaders/naga/zero_value.wgsl).
pub fn hlsl_defines_no_function_twice() {
    let mut seen = 0;
    // naga has no HLSL for cooperative matrices.
    for c in combinations().iter().filter(|c| !c.text.contains("coop_mat")) {
        for entry in &c.module.entry_points {
            let text = hlsl(c, &entry.name);
            let mut defined = BTreeSet::new();
            for signature in text.lines().filter_map(signature) {
                let Combination { shader, formats, sizes, .. } = c;
                let is_new = defined.insert(signature);
                assert!(
                    is_new,
                    "{shader}.{} {formats:?} {sizes:?}: {signature} is defined twice",
                    entry.name
                );
            }
            seen += 1;
        }
    }
    assert!(seen > 900, "{seen} entry points");
}

fn hlsl(c: &Combination, entry: &str) -> String {
    let options = Options {
        shader_model: ShaderModel::V6_6,
        restrict_indexing: false,
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        ..Options::default()
    };
    // Overrides have no values here: naga writes no module with them, so they become constants.
    let constants = c.module.overrides.iter().filter_map(|(_, o)| Some((o.name.clone()?, 64.0))).collect();
    let at = Some((ShaderStage::Compute, entry));
    let (module, info) =
        naga::back::pipeline_constants::process_overrides(&c.module, &c.info, at, &constants)
            .unwrap_or_else(|e| panic!("{}, {entry}: {e}", c.name));
    let pipeline = PipelineOptions { entry_point: Some((ShaderStage::Compute, entry.into())) };
    let mut text = String::new();
    Writer::new(&mut text, &options, &pipeline)
        .write(&module, &info, None)
        .unwrap_or_else(|e| panic!("{}, {entry}: {e}", c.name));
    text
}

/// The first line of a function's definition: a type, a name, and its parameters, none of which are calls.
fn signature(line: &str) -> Option<&str> {
    let is_definition = !line.starts_with([' ', '\t', '#', '[']) && line.ends_with('{') && line.contains('(');
    is_definition.then(|| line.trim_end_matches('{').trim())
}
