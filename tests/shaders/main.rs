//! Every shader with every weight format and with the sizes of `ops::op::OPS`, without a device: it expands, it is valid, and it stays
//! within the limits that every WebGPU browser guarantees.

mod combinations;
mod hlsl;
mod ptx;
mod rebuilt;
#[path = "../common/trials.rs"]
mod trials;
mod upstream;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::Arguments;
use naga::AddressSpace;
use naga::front::wgsl;
use rullama_train::base::formats::GgmlType;
use rullama_train::gpu::shader::{SOURCES, expand, for_browsers};
use rullama_train::ops::op::{self, Variant};
use sha2::{Digest, Sha256};

use combinations::{Combination, combinations, entry_shaders};

/// WebGPU's default limits (W3C WebGPU, section 3.6.2).
const STORAGE_BUFFERS: usize = 8;
const WORKGROUP_BYTES: u32 = 16 * 1024;
const WORKGROUP_SIZE: u32 = 256;

type Test = (&'static str, Option<&'static str>, fn());

fn main() -> ExitCode {
    let tests: [Test; 13] = [
        ("every_combination_is_valid", None, every_combination_is_valid),
        ("limits_of_every_browser", None, limits_of_every_browser),
        ("shaders_for_browsers_are_written_to_a_file", None, shaders_for_browsers_are_written_to_a_file),
        ("every_format_has_a_reader", None, every_format_has_a_reader),
        ("the_table_of_ops_has_every_shader", None, the_table_of_ops_has_every_shader),
        ("overrides_have_a_meaning", None, overrides_have_a_meaning),
        ("params_are_twins", None, params_are_twins),
        ("matrices_of_8x8_lie_in_arrays_of_scalars", None, matrices_of_8x8_lie_in_arrays_of_scalars),
        ("hlsl_defines_no_function_twice", None, hlsl::hlsl_defines_no_function_twice),
        (
            "naga_has_the_faults_that_are_worked_around",
            None,
            upstream::naga_has_the_faults_that_are_worked_around,
        ),
        ("the_ptx_is_that_of_its_source", None, the_ptx_is_that_of_its_source),
        ("every_kernel_is_translated", None, ptx::every_kernel_is_translated),
        ("the_ptx_is_what_nvcc_makes", rebuilt::ignored(), rebuilt::the_ptx_is_what_nvcc_makes),
    ];
    let trial = |(name, ignored, test): Test| {
        trials::trial(name, ignored, move || {
            test();
            Ok(())
        })
    };
    trials::run(&Arguments::from_args(), tests.map(trial).into())
}

/// A new shader, format or size changes the number.
fn every_combination_is_valid() {
    let combinations = combinations();
    let names: Vec<_> = combinations.iter().map(|c| &c.name).collect();
    let expected = 399 + 44 * GgmlType::SUPPORTED.len();
    assert_eq!(combinations.len(), expected, "checked {names:?}");
    for c in combinations {
        assert!(!c.module.entry_points.is_empty(), "{}: a shader without entry points does nothing", c.name);
        assert!(!c.text.contains("\n#"), "{}: an import, a loop or an #if is left", c.name);
    }
}

fn limits_of_every_browser() {
    for Combination { name, module, info, plain, .. } in combinations() {
        // Devices with cooperative matrices or SIMD registers must have more: see src/gpu/select.rs.
        let storage_limit = match plain {
            true => STORAGE_BUFFERS,
            false if name.contains("coop16") => 20,
            false => 10,
        };
        let workgroup_limit = if *plain { WORKGROUP_BYTES } else { 2 * WORKGROUP_BYTES };
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
            // Devices that have more threads use them: see `Gpu::threads_to_share`.
            let more = [512, 1024].into_iter().find(|n| name.contains(&format!("THREADS\", {n}")));
            let most = more.unwrap_or(WORKGROUP_SIZE);
            assert!(threads <= most, "{what} has {threads} threads, expected at most {most}");
            assert!(entry.workgroup_size[2] <= 64, "{what}: {:?}", entry.workgroup_size);
        }
    }
}

/// Writes the shaders for browsers where web/tests/api/shaders.spec.ts compiles them with the browser's own compiler, which is stricter
/// than naga.
fn shaders_for_browsers_are_written_to_a_file() {
    let all = combinations().iter().filter(|c| !c.text.contains("enable wgpu_"));
    let all: serde_json::Map<String, serde_json::Value> =
        all.map(|c| (c.name.clone(), for_browsers(&c.text).into())).collect();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("browser_shaders.json");
    fs::write(file, serde_json::to_vec(&all).expect("text")).expect("the build folder can be written");
}

fn every_format_has_a_reader() {
    for format in GgmlType::SUPPORTED {
        let name = format!("formats/{}", format.name().to_lowercase());
        assert!(
            SOURCES.iter().any(|(listed, _)| *listed == name),
            "{name}: every supported format has a reader"
        );
    }
}

/// Sizes of the table belong to shaders that exist and use them, and every shader belongs to an op.
fn the_table_of_ops_has_every_shader() {
    for op in &op::OPS {
        for (file, _) in op.sizes {
            let name = format!("{}/{file}", op.name);
            assert!(entry_shaders().any(|(shader, _)| shader == name), "{name}: no such shader");
        }
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops").join(op.name);
        assert!(dir.is_dir(), "{}: an op has a folder of src/ops", op.name);
        let in_cuda = dir.join("cuda.rs").exists() || dir.join("cuda").exists();
        assert_eq!(in_cuda, op.variants.contains(&Variant::Cuda), "{}: its variant in CUDA", op.name);
    }
    for (shader, _) in entry_shaders() {
        assert!(op::find(shader).is_some(), "{shader}: its op is not in ops::op::OPS");
    }
}

/// An override has a comment on its line, has no default that a caller could forget, and its op sets it.
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
    // Cached attention has head size and queries; matvec has rows and parts.
    assert_eq!(found, 4, "overrides in all shaders");
}

/// `Params` of a shader and of the Rust file that fills it have the same names in the same order.
fn params_are_twins() {
    for (shader, source) in entry_shaders() {
        let text = expand(shader, &["f32"], &op::sizes(shader)[0]);
        let module = wgsl::parse_str(&text).expect("checked in the other test");
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

        let file = rust_twin(shader);
        let shared = ["common/attention_part", "common/delta"]
            .into_iter()
            .find(|shared| source.contains(&format!("#import {shared}")));
        let home = shared.map_or_else(|| twin_of(shader), str::to_string);
        let head = format!("/// Twin of `Params` in shaders/{home}.wgsl");
        let (_, after) =
            file.split_once(&head).unwrap_or_else(|| panic!("no struct of src/ops says {head:?}"));
        let (_, body) = after.split_once('{').expect("a struct follows");
        let (body, _) = body.split_once('}').expect("it ends");
        let rust: Vec<String> = body
            .lines()
            .map(|line| line.trim().trim_end_matches(',').to_string())
            .filter(|l| !l.is_empty())
            .flat_map(|line| match line.as_str() {
                "mask: MaskParams" => fields("dropout/grouped", "MaskParams", "mask_"),
                "gradients: GradientParams" => fields("lora/coop16_gradients", "GradientParams", ""),
                _ => vec![line],
            })
            .collect();
        assert_eq!(wgsl, rust, "{shader}: Params in WGSL (left) and in Rust (right)");
    }
}

/// The fields of a struct within `Params`, whose home are the Rust files of `shader`, with the prefix that they have in WGSL.
fn fields(shader: &str, name: &str, prefix: &str) -> Vec<String> {
    let file = rust_twin(shader);
    let (_, after) = file.split_once(&format!("struct {name} {{")).expect("its home");
    let (body, _) = after.split_once('}').expect("it ends");
    let fields = body.lines().map(|line| line.trim().trim_end_matches(',')).filter(|l| !l.is_empty());
    fields.map(|field| format!("{prefix}{field}")).collect()
}

/// The Rust files of the shader's op, one after the other.
fn rust_twin(shader: &str) -> String {
    let op = shader.split('/').next().expect("a folder");
    rust_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops").join(op))
}

/// The Rust files in a folder and those below it.
fn rust_in(dir: &Path) -> String {
    let files = fs::read_dir(dir).unwrap_or_else(|e| panic!("{dir:?}, the op of a shader: {e}"));
    files
        .map(|file| file.expect("it can be listed").path())
        .map(|path| match path.is_dir() {
            true => rust_in(&path),
            false => fs::read_to_string(path).expect("it can be read"),
        })
        .collect()
}

/// The shader whose `Params` the variants `software` and `coop8` share.
fn twin_of(shader: &str) -> String {
    shader.replace("grouped_coop8", "grouped").replace("/software", "/tiled").replace("/coop8", "/tiled")
}

/// Metal's `simdgroup_load` and `simdgroup_store` take pointers to scalars, and naga passes the pointer on unchanged.
fn matrices_of_8x8_lie_in_arrays_of_scalars() {
    let mut seen = 0;
    for c in combinations().iter().filter(|c| c.text.contains("coop_mat8x8")) {
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
    // peak has 6 loads and 8 stores. Two products have 8 loads and 16 stores in two entry points each. Attention has 4 and 4 in four
    // functions, and 6 and 8 in four entry points per 64 columns of a head, 12 in the four sizes. All for two numbers of lanes.
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

/// The PTX that the program contains is that of the sources beside it: the `build` of each folder makes it.
fn the_ptx_is_that_of_its_source() {
    const LAUNCHES: &str = "../../common/cuda/launches.cuh";
    const SHARED: &str = "../../common/cuda/matrices.cuh";
    const NUMBERS: &str = "../../common/cuda/numbers.cuh";
    const BARRIERS: &str = "../../common/cuda/barriers.cuh";
    let same = |folder: &str, sources: &[&str], ptx: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders").join(folder);
        let read = |name: &str| fs::read(folder.join(name)).expect("these files are part of the repository");
        let source = sources.iter().flat_map(|name| read(name)).collect::<Vec<u8>>();
        let digest: String = Sha256::digest(source).iter().map(|byte| format!("{byte:02x}")).collect();
        let text = String::from_utf8(read(ptx)).expect("PTX is text");
        let expected = format!("// sha256 of {}: {digest}", sources.join(" and "));
        assert_eq!(text.lines().next(), Some(expected.as_str()), "{ptx}");
        // The device takes one such instruction as the sign that all kernels of a text wait.
        let count = |what: &str| text.matches(what).count();
        let waits = if text.contains(".target sm_90a") { count(".visible .entry") } else { 0 };
        assert_eq!(count("griddepcontrol.wait;"), waits, "{ptx}");
    };
    // MATRICES in a source's name stands for the kind of matrix instructions. A kind ahead of it: others have no such source.
    let by_matrices = |folder: &str, common: &[&str], own: &[&str], [part, ending]: [&str; 2]| {
        for (matrices, before) in [("mma", &[SHARED][..]), ("wgmma", &[BARRIERS])] {
            let own = ["parts.cuh", "MATRICES.cuh"]
                .iter()
                .chain(own)
                .filter_map(|name| match name.split_once(':') {
                    Some((kind, name)) => (kind == matrices).then_some(name),
                    None => Some(name),
                })
                .map(|name| name.replace("MATRICES", matrices));
            let own = own.collect::<Vec<_>>();
            let own = own.iter().map(String::as_str).collect::<Vec<_>>();
            same(folder, &[before, common, &own].concat(), &format!("{part}-{matrices}{ending}.ptx"));
        }
    };
    for part in ["whole", "grouped"] {
        by_matrices("linear/cuda", &[LAUNCHES], &[&format!("{part}.cu")], [part, ""]);
    }
    let common = [LAUNCHES, SHARED, NUMBERS, "parts.cuh"];
    for (shared, part) in [
        ("project.cuh", "project"),
        ("project.cuh", "project-staged"),
        ("thin.cuh", "gradient"),
        ("thin.cuh", "backward"),
    ] {
        let own = format!("{part}.cu");
        same("lora/cuda", &[&common[..], &[shared, &own]].concat(), &format!("{part}.ptx"));
    }
    same("delta/cuda", &[SHARED, NUMBERS, "parts.cuh", "forward.cu"], "forward.ptx");
    for part in ["backward", "gradients"] {
        let sources = [SHARED, NUMBERS, "parts.cuh", "backward.cuh", &format!("{part}.cu")];
        same("delta/cuda", &sources, &format!("{part}.ptx"));
    }
    for kind in ["-64", "-128", "-256", "-128-capped", "-256-capped"] {
        for part in ["forward", "backward"] {
            let [header, source] = [format!("{part}.cuh"), format!("{part}-MATRICES.cu")];
            let own: &[&str] = match (part, kind) {
                ("backward", "-256" | "-256-capped") => {
                    &[&header, "mma:backward-mma.cu", "wgmma:backward-wide.cu"]
                }
                _ => &[&header, "wgmma:rings.cuh", &source],
            };
            by_matrices("attention/cuda", &[LAUNCHES, NUMBERS], own, [part, kind]);
        }
    }
    let wide = [BARRIERS, LAUNCHES, NUMBERS, "parts.cuh", "wgmma.cuh", "forward.cuh", "forward-wide.cu"];
    same("attention/cuda", &wide, "forward-wide-wgmma-512.ptx");
}
