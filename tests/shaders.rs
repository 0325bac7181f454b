//! Every shader with every weight format, without a device: it expands, it is valid, and it stays within what every
//! WebGPU browser guarantees.

use std::fs;
use std::path::Path;

use naga::front::wgsl;
use naga::valid::{Capabilities, ModuleInfo, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use naga::{AddressSpace, Module};
use rullama_train::base::formats::GgmlType;
use rullama_train::gpu::shader::{SOURCES, expand};
use rullama_train::ops::attention;
use rullama_train::ops::attention::coop16 as coop_attention;
use rullama_train::ops::attention::coop16_backward as coop_attention_backward;
use rullama_train::ops::block_end as residual;
use rullama_train::ops::heads::coop16_backward as coop_heads_backward;

/// WebGPU's default limits (W3C, section 3.6.2).
const STORAGE_BUFFERS: usize = 8;
const WORKGROUP_BYTES: u32 = 16 * 1024;
const WORKGROUP_SIZE: u32 = 256;

/// One shader for one format, where it reads weights.
struct Combination {
    name: String,
    text: String,
    module: Module,
    info: ModuleInfo,
    /// Whether every browser must be able to run it, or only devices with cooperative matrices or SIMD registers.
    plain: bool,
}

/// Values of a shader's `{SIZE}`s that are checked.
fn sizes(source: &str) -> Vec<Vec<(&'static str, u32)>> {
    if source.contains("{COLUMNS}") {
        return (1..=4).map(|n| vec![("COLUMNS", n)]).collect();
    }
    if source.contains("{GATED}") {
        return [0, 1].map(|gated| vec![("GATED", gated), ("PLAIN", 1 - gated), ("DEEP", 4)]).to_vec();
    }
    if source.contains("{SHARES}") {
        let groups = |n: u32, deep: u32, groups: u32| {
            vec![("SHARES", n), ("DEEP", deep), ("THREADS", 256 * groups), ("GROUPED", u32::from(groups > 1))]
        };
        let all = (1..=residual::MAX_SHARES as u32).map(|n| groups(n, 4 / n.min(4), 1));
        return all.chain([groups(2, 1, 4)]).collect();
    }
    if source.contains("{PARTED}") {
        return [(1, 1), (4, 1), (1, 4)]
            .map(|(deep, parts)| vec![("DEEP", deep), ("PARTS", parts), ("PARTED", u32::from(parts > 1))])
            .to_vec();
    }
    if source.contains("{DEEP}") {
        return [1, 4].map(|n| vec![("DEEP", n)]).to_vec();
    }
    if source.contains("{TURNS}") {
        return [(1, 16), (8, 256), (20, 512)]
            .map(|(heads, size)| coop_heads_backward::sizes(heads, size).to_vec())
            .to_vec();
    }
    if source.contains("{MATRICES}") && source.contains("{EACH}") {
        let of = |(each, matrices, normed)| {
            let rows = [("EACH", each), ("MATRICES", matrices), ("ROWS", 1 - matrices)];
            [&rows[..], &[("NORMED", normed), ("SAME", 1 - normed)]].concat()
        };
        return [(1, 0, 0), (6, 1, 0), (12, 0, 1), (21, 1, 1)].map(of).to_vec();
    }
    if source.contains("{EACH}") {
        let threads = source.contains("{THREADS}");
        let of = |n| if threads { vec![("EACH", n), ("THREADS", 256)] } else { vec![("EACH", n)] };
        return [1, 6, 12, 21].map(of).to_vec();
    }
    if source.contains("{SLICE4}") {
        let each = |half| [4, 64, 100, 256, 512].map(|size| attention::sizes(size, half));
        return [each(false), each(true)].concat();
    }
    if source.contains("{HALF}") {
        return [0, 1].map(|half| vec![("HALF", half), ("SINGLE", 1 - half)]).to_vec();
    }
    if source.contains("{EDGE}") {
        return [(8, 8), (8, 32), (16, 32)].map(|(n, lanes)| vec![("EDGE", n), ("LANES", lanes)]).to_vec();
    }
    if source.contains("coop_mat8x8") && source.contains("#import common/attention") {
        let each = |lanes| {
            [4, 64, 100, 512].map(|size| [&attention::coop8_sizes(size)[..], &[("LANES", lanes)]].concat())
        };
        return [each(8), each(32)].concat();
    }
    if source.contains("#import common/coop8") {
        return [8, 32].map(|n| vec![("LANES", n)]).to_vec();
    }
    if source.contains("{LANES}") {
        return [4, 8, 16].map(|n| vec![("LANES", n), ("QUADS", n / 4), ("HEAD4", 16)]).to_vec();
    }
    if source.contains("{ALONE}") {
        return [(64, 0), (4, 1), (8, 1), (16, 1)]
            .map(|(n, alone)| vec![("THREADS", n), ("ALONE", alone), ("SHARED", 1 - alone)])
            .to_vec();
    }
    if source.contains("#import common/attention_part") {
        return [32, 64, 128, 512].map(|size| coop_attention_backward::sizes(size).to_vec()).to_vec();
    }
    if source.contains("array<vec4<f32>, {THREADS}>") {
        return [256, 1024].map(|n| vec![("THREADS", n)]).to_vec();
    }
    if source.contains("{SUBGROUPS}") {
        let of = |(size, matrices): (usize, u32)| {
            [&coop_attention::sizes(size)[..], &[("MATRICES", matrices), ("ROWS", 1 - matrices)]].concat()
        };
        return [(32, 0), (64, 1), (128, 0), (256, 1), (512, 1)].map(of).to_vec();
    }
    if source.contains("{MATRICES}") {
        return [0, 1].map(|matrices| vec![("MATRICES", matrices), ("ROWS", 1 - matrices)]).to_vec();
    }
    vec![vec![]]
}

/// Shaders with entry points: every folder but those of what they import.
fn entry_shaders() -> impl Iterator<Item = (&'static str, &'static str)> {
    SOURCES.iter().copied().filter(|(name, _)| !name.starts_with("common/") && !name.starts_with("formats/"))
}

fn combinations() -> Vec<Combination> {
    let mut combinations = Vec::new();
    for (shader, source) in entry_shaders() {
        let imports = |what: &str| source.lines().any(|line| line.trim() == what);
        // A shader of several matrices: one, and three of which the last two are alike.
        let three = |f| [vec![f], vec![GgmlType::Q4_K, f, f]];
        let formats: Vec<Vec<GgmlType>> = match (imports("#import weight"), imports("#import weights")) {
            (true, _) => GgmlType::SUPPORTED.map(|f| vec![f]).to_vec(),
            (_, true) => GgmlType::SUPPORTED.into_iter().flat_map(three).collect(),
            _ => vec![vec![]],
        };
        let each =
            formats.into_iter().flat_map(|f| sizes(source).into_iter().map(move |sizes| (f.clone(), sizes)));
        for (formats, sizes) in each {
            let name = format!("{shader} with {formats:?} {sizes:?}");
            let text = expand(shader, &formats, &sizes);
            let simd = shader.ends_with("/software");
            let plain = !simd && !text.contains("enable ");
            let module =
                wgsl::parse_str(&text).unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&text)));
            // The core of WebGPU, without optional features. unpack2x16float is part of it; naga asks because of OpenGL.
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
            combinations.push(Combination { name, text, module, info, plain });
        }
    }
    combinations
}

/// 7 shaders read weights of 9 formats, two of them with operands of two types, one reads them in two ways and makes its input in
/// two, one does so on registers of three widths and two on matrices of subgroups of two, 27 read none, and nineteen are
/// made for 2, 5, 4, 4, 4, 4, 4, 4, 9, 2, 3, 4, 3, 3, 3, 3, 2, 8 and 10 sizes. A new shader or format changes the number.
#[test]
fn every_combination_is_valid() {
    let combinations = combinations();
    let names: Vec<_> = combinations.iter().map(|c| &c.name).collect();
    assert_eq!(
        combinations.len(),
        20 * GgmlType::SUPPORTED.len()
            + 27
            + 10
            + 8
            + 2
            + 5
            + 4
            + 4
            + 4
            + 4
            + 4
            + 4
            + 9
            + 2
            + 3
            + 4
            + 3
            + 3
            + 3
            + 3
            + 2,
        "checked {names:?}"
    );
    for c in &combinations {
        assert!(!c.module.entry_points.is_empty(), "{}: a shader without entry points does nothing", c.name);
        assert!(!c.text.contains("\n#"), "{}: an import or a loop is left", c.name);
    }
}

#[test]
fn limits_of_every_browser() {
    for Combination { name, module, info, plain, .. } in combinations() {
        // What devices with cooperative matrices or SIMD registers are asked for: see src/gpu/mod.rs.
        let storage_limit = if plain { STORAGE_BUFFERS } else { 10 };
        let workgroup_limit = if plain { WORKGROUP_BYTES } else { 2 * WORKGROUP_BYTES };
        for (i, entry) in module.entry_points.iter().enumerate() {
            let what = format!("{name}, {}", entry.name);
            let (mut storage, mut workgroup_bytes) = (0, 0);
            for (handle, global) in module.global_variables.iter() {
                if info.get_entry_point(i)[handle].is_empty() {
                    continue;
                }
                match global.space {
                    AddressSpace::Storage { .. } => storage += 1,
                    AddressSpace::WorkGroup => {
                        workgroup_bytes += module.types[global.ty].inner.size(module.to_ctx());
                    }
                    _ => {}
                }
            }
            let threads: u32 = entry.workgroup_size.iter().product();
            assert!(storage > 0, "{what} binds no storage buffer");
            assert!(
                storage <= storage_limit,
                "{what} binds {storage} storage buffers, expected at most {storage_limit}"
            );
            assert!(
                workgroup_bytes <= workgroup_limit,
                "{what} uses {workgroup_bytes} bytes of workgroup memory, expected at most {workgroup_limit}"
            );
            // What devices are asked for that say they have it: see `Gpu::threads_to_share`.
            let most = if name.contains("THREADS\", 1024") { 1024 } else { WORKGROUP_SIZE };
            assert!(threads <= most, "{what} has {threads} threads, expected at most {most}");
            assert!(entry.workgroup_size[2] <= 64, "{what}: {:?}", entry.workgroup_size);
        }
    }
}

/// Leaves what browsers get where web/tests/api/shaders.spec.ts has the browser's own compiler read it: that demands more than
/// naga does.
#[test]
fn what_browsers_get_is_written_down() {
    let plain = combinations().into_iter().filter(|c| c.plain).map(|c| (c.name, c.text.into()));
    let plain: serde_json::Map<String, serde_json::Value> = plain.collect();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plain_shaders.json");
    fs::write(file, serde_json::to_vec(&plain).expect("text")).expect("the build folder can be written");
}

#[test]
fn every_format_has_a_reader() {
    for format in GgmlType::SUPPORTED {
        let name = format!("formats/{}", format.name().to_lowercase());
        assert!(
            SOURCES.iter().any(|(listed, _)| *listed == name),
            "{name}: every supported format has a reader"
        );
    }
}

/// An override says on its line what it is, has no default that a caller could forget, and its op sets it.
#[test]
fn overrides_have_a_meaning() {
    let mut found = 0;
    for (shader, source) in SOURCES {
        for line in source.lines().filter(|line| line.starts_with("override ")) {
            found += 1;
            let (declaration, meaning) = line.split_once("//").unwrap_or((line, ""));
            let name = declaration["override ".len()..].split(':').next().expect("a name").trim();
            assert!(meaning.trim().len() > 3, "{shader}: {name} has no comment");
            assert!(!declaration.contains('='), "{shader}: {name} has a default");
            assert!(source.matches(name).count() > 1, "{shader}: {name} is not used");
            let set = format!("with_constant(\"{name}\"");
            assert!(rust_twin(shader).contains(&set), "no file of shader {shader} in src/ops sets {name}");
        }
    }
    // Head size and queries of cached attention; rows and parts of matvec.
    assert_eq!(found, 4, "overrides in all shaders");
}

/// `Params` of a shader and of the Rust file that fills it: the same names in the same order.
#[test]
fn params_are_twins() {
    for (shader, source) in entry_shaders() {
        let format = [GgmlType::F32];
        let module =
            wgsl::parse_str(&expand(shader, &format, &sizes(source)[0])).expect("checked in the other test");
        let params = module.types.iter().find(|(_, ty)| ty.name.as_deref() == Some("Params"));
        let Some((_, naga::Type { inner: naga::TypeInner::Struct { members, .. }, .. })) = params else {
            panic!("{shader} has no struct Params");
        };
        let scalar = |ty| match module.types[ty].inner {
            naga::TypeInner::Scalar(naga::Scalar::U32) => "u32",
            naga::TypeInner::Scalar(naga::Scalar::F32) => "f32",
            ref other => panic!("{shader}: Params are u32 and f32, found {other:?}"),
        };
        let member =
            |m: &naga::StructMember| format!("{}: {}", m.name.as_deref().unwrap_or("?"), scalar(m.ty));
        let wgsl: Vec<String> = members.iter().map(member).collect();

        // grad_norm is the first half of the optimizer step.
        let file = rust_twin(if shader == "grad_norm/plain" { "adamw/plain" } else { shader });
        let shared = source.contains("#import common/attention_part");
        let home = if shared { "common/attention_part".to_string() } else { twin_of(shader) };
        let head = format!("/// Twin of `Params` in shaders/{home}.wgsl");
        let (_, after) =
            file.split_once(&head).unwrap_or_else(|| panic!("no struct of src/ops says {head:?}"));
        let (_, body) = after.split_once('{').expect("a struct follows");
        let (body, _) = body.split_once('}').expect("it ends");
        let rust: Vec<String> = body
            .lines()
            .map(|line| line.trim().trim_end_matches(',').to_string())
            .filter(|l| !l.is_empty())
            .flat_map(|line| if line == "mask: MaskParams" { mask_params() } else { vec![line] })
            .collect();
        assert_eq!(wgsl, rust, "{shader}: Params in WGSL (left) and in Rust (right)");
    }
}

/// The fields that `mask: MaskParams` stands for, with its name before them.
fn mask_params() -> Vec<String> {
    let file = rust_twin("dropout/grouped");
    let (_, after) = file.split_once("struct MaskParams {").expect("its home");
    let (body, _) = after.split_once('}').expect("it ends");
    let fields = body.lines().map(|line| line.trim().trim_end_matches(',')).filter(|l| !l.is_empty());
    fields.map(|field| format!("mask_{field}")).collect()
}

/// The Rust files of the shader's op.
fn rust_twin(shader: &str) -> String {
    let op = shader.split('/').next().expect("a folder");
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops").join(op);
    let files = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{dir:?}, the op of shader {shader}: {e}"));
    files
        .map(|file| fs::read_to_string(file.expect("it can be listed").path()).expect("it can be read"))
        .collect()
}

/// The shader whose `Params` the op's variants for software devices and for matrices of 8×8 share.
fn twin_of(shader: &str) -> String {
    shader.replace("grouped_coop8", "grouped").replace("/software", "/tiled").replace("/coop8", "/tiled")
}

/// Metal's `simdgroup_load` and `simdgroup_store` take pointers to scalars: naga writes the pointer as it stands.
#[test]
fn matrices_of_8x8_lie_in_arrays_of_scalars() {
    let mut seen = 0;
    for c in combinations().into_iter().filter(|c| c.text.contains("coop_mat8x8")) {
        let entries = c.module.entry_points.iter().enumerate();
        let entries = entries.map(|(i, entry)| (&entry.function, c.info.get_entry_point(i)));
        let functions = c.module.functions.iter().map(|(handle, function)| (function, &c.info[handle]));
        for (function, info) in entries.chain(functions) {
            let loads = function.expressions.iter().filter_map(|(_, e)| match e {
                naga::Expression::CooperativeLoad { data, .. } => Some(data.pointer),
                _ => None,
            });
            let mut stores = Vec::new();
            stored_matrices(&function.body, &mut stores);
            for pointer in loads.chain(stores) {
                seen += 1;
                let ty = info[pointer].ty.inner_with(&c.module.types);
                let base = ty.pointer_base_type().expect("it points to something");
                let base = base.inner_with(&c.module.types);
                assert!(
                    matches!(base, naga::TypeInner::Scalar(_)),
                    "{}, {:?}: {base:?}",
                    c.name,
                    function.name
                );
            }
        }
    }
    // Of the ceiling 6 loads and 8 stores; of two products 8 loads and 16 stores, two entry points. Of attention 4 and 4, four functions;
    // 6 and 8, four entry points, for every 64 columns of a head, which are 12 in the four sizes. Of each for two numbers of lanes.
    let attention = 4 * 8 * 4 + 4 * 14 * 12;
    let expected = 2 * (14 + 2 * 24 * 2 * GgmlType::SUPPORTED.len() + attention);
    assert_eq!(seen, expected, "matrices loaded and stored");
}

fn stored_matrices(block: &naga::Block, pointers: &mut Vec<naga::Handle<naga::Expression>>) {
    for statement in block.iter() {
        match statement {
            naga::Statement::CooperativeStore { data, .. } => pointers.push(data.pointer),
            naga::Statement::Block(inner) => stored_matrices(inner, pointers),
            naga::Statement::If { accept, reject, .. } => {
                [accept, reject].into_iter().for_each(|inner| stored_matrices(inner, pointers));
            }
            naga::Statement::Loop { body, .. } => stored_matrices(body, pointers),
            _ => {}
        }
    }
}
