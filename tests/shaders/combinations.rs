//! Every shader with every weight format and with the sizes of `ops::op::OPS`.

use std::sync::LazyLock;

use naga::Module;
use naga::front::wgsl;
use naga::valid::{Capabilities, ModuleInfo, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use rullama_train::base::formats::GgmlType;
use rullama_train::gpu::shader::{SOURCES, expand};
use rullama_train::ops::op;

/// One shader with one set of weight formats and sizes.
pub struct Combination {
    pub name: String,
    pub shader: &'static str,
    pub formats: Vec<&'static str>,
    pub sizes: Vec<(&'static str, u32)>,
    pub text: String,
    pub module: Module,
    pub info: ModuleInfo,
    /// Whether every browser must run it; other shaders need f16, cooperative matrices or subgroups.
    pub plain: bool,
}

/// Shaders with entry points: all but those that are only imported.
pub fn entry_shaders() -> impl Iterator<Item = (&'static str, &'static str)> {
    SOURCES.iter().copied().filter(|(name, _)| !name.starts_with("common/") && !name.starts_with("formats/"))
}

/// The readers of `formats` for kernels with these sizes; `None` where one of them has none, and for several matrices where kernels with these
/// sizes have one.
fn readers(formats: Vec<&'static str>, sizes: &[(&str, u32)]) -> Option<Vec<&'static str>> {
    let in_bytes = |name: &str| {
        GgmlType::SUPPORTED.into_iter().find(|ty| ty.reader() == name).and_then(GgmlType::byte_reader)
    };
    if sizes.contains(&("ENDED", 1)) && formats.len() > 1 {
        return None;
    }
    match sizes.contains(&("BYTES", 1)) {
        true => formats.into_iter().map(in_bytes).collect(),
        false => Some(formats),
    }
}

/// All combinations: parsed and validated once for all tests.
pub fn combinations() -> &'static [Combination] {
    static ALL: LazyLock<Vec<Combination>> = LazyLock::new(read);
    &ALL
}

fn read() -> Vec<Combination> {
    let mut combinations = Vec::new();
    for (shader, source) in entry_shaders() {
        let imports = |what: &str| source.lines().any(|line| line.trim() == what);
        // A shader of several matrices: one matrix, and three of which the last two have the same format.
        let three = |f| [vec![f], vec!["q4_k", f, f]];
        let supported = GgmlType::SUPPORTED.map(GgmlType::reader);
        let formats: Vec<Vec<&str>> = match (imports("#import weight"), imports("#import weights")) {
            (true, _) => supported.map(|f| vec![f]).to_vec(),
            (_, true) => supported.into_iter().flat_map(three).collect(),
            _ => vec![vec![]],
        };
        let each =
            formats.into_iter().flat_map(|f| op::sizes(shader).into_iter().map(move |s| (f.clone(), s)));
        let each = each.filter_map(|(formats, sizes)| Some((readers(formats, &sizes)?, sizes)));
        for (formats, sizes) in each {
            let name = format!("{shader} with {formats:?} {sizes:?}");
            let text = expand(shader, &formats, &sizes);
            let simd = shader.ends_with("/software");
            let plain = !simd && !text.contains("enable ");
            let module =
                wgsl::parse_str(&text).unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&text)));
            // The core of WebGPU without optional features. It has unpack2x16float, which naga makes a capability for OpenGL.
            let core = Capabilities::default() | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
            let more = Capabilities::SHADER_FLOAT16
                | Capabilities::COOPERATIVE_MATRIX
                | Capabilities::SUBGROUP
                | Capabilities::SUBGROUP_BARRIER;
            let capabilities = if plain { core } else { core | more };
            let mut validator = Validator::new(ValidationFlags::all(), capabilities);
            if !plain {
                validator
                    .subgroup_stages(ShaderStages::COMPUTE)
                    .subgroup_operations(SubgroupOperationSet::all());
            }
            let info =
                validator.validate(&module).unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&text)));
            combinations.push(Combination { name, shader, formats, sizes, text, module, info, plain });
        }
    }
    combinations
}
