//! Entry points of every kernel, and the modules that wgpu's backends get.

use std::env;

use naga::back::{PipelineConstants, hlsl, msl, pipeline_constants::process_overrides, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use naga::{AddressSpace, ShaderStage};

use crate::combinations::{Combination, combinations};
use crate::mend::mended;

/// An entry point of a shader with its weight formats and sizes.
pub struct Pipeline {
    pub name: String,
    /// The kernels that it belongs to: f32, f16, coop8, coop16, packed (f16 beside 16×16 matrices) or software.
    pub tier: &'static str,
    pub entry: String,
    pub of: &'static Combination,
}

/// A pipeline's module with its constants, and what it uses.
pub struct Ready {
    pub module: naga::Module,
    info: naga::valid::ModuleInfo,
    pub threads: u32,
    /// Numbers of the bindings, and whether each is a storage buffer.
    pub bindings: Vec<(u32, bool)>,
    pub workgroup_bytes: u32,
}

/// Every pipeline of the kernels that the variables TIERS and FORMATS leave.
pub fn all() -> Vec<Pipeline> {
    let listed =
        |name: &str| env::var(name).ok().map(|v| v.split(',').map(str::to_owned).collect::<Vec<_>>());
    let (tiers, formats) = (listed("TIERS"), listed("FORMATS"));
    let mut pipelines = Vec::new();
    for of in combinations_or_files() {
        let tier = tier(of);
        let last = of.formats.last().map(|format| format.trim_end_matches("_bytes"));
        let is_wanted = tiers.as_ref().is_none_or(|tiers| tiers.iter().any(|wanted| wanted == tier))
            && formats.as_ref().zip(last).is_none_or(|(formats, last)| formats.iter().any(|f| f == last));
        if !is_wanted {
            continue;
        }
        let sizes: Vec<String> = of.sizes.iter().map(|(name, value)| format!("{name}={value}")).collect();
        for entry in &of.module.entry_points {
            let name = format!("{}.{} {} {}", of.shader, entry.name, of.formats.join("+"), sizes.join(" "));
            pipelines.push(Pipeline { name, tier, entry: entry.name.clone(), of });
        }
    }
    pipelines
}

/// Every combination, or the expanded shaders of the files that the variable WGSL lists: to try other texts without building.
fn combinations_or_files() -> Vec<&'static Combination> {
    let Ok(files) = env::var("WGSL") else { return combinations().iter().collect() };
    let read = |file: &str| -> &'static Combination {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let module = naga::front::wgsl::parse_str(&text).unwrap_or_else(|e| panic!("{file}: {e}"));
        let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
        validator.subgroup_stages(ShaderStages::COMPUTE).subgroup_operations(SubgroupOperationSet::all());
        let info = validator.validate(&module).unwrap_or_else(|e| panic!("{file}: {e:?}"));
        let shader = file.to_string().leak();
        let name = file.to_string();
        let (formats, sizes) = (Vec::new(), Vec::new());
        Box::leak(Box::new(Combination { name, shader, formats, sizes, text, module, info, plain: false }))
    };
    files.split(',').map(read).collect()
}

fn tier(of: &Combination) -> &'static str {
    match () {
        () if of.shader.ends_with("/software") => "software",
        () if of.text.contains("coop_mat16x16") => "coop16",
        () if of.text.contains("coop_mat8x8") => "coop8",
        () if of.text.contains("enable f16") && of.shader.contains("coop16") => "packed",
        () if of.text.contains("enable f16") => "f16",
        () => "f32",
    }
}

/// The values that the op gives to the shader's `override` declarations, for a head of 256 and a wide matrix.
fn constants(p: &Pipeline) -> PipelineConstants {
    let size = |name: &str| p.of.sizes.iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| *value);
    let values = match p.of.shader {
        "matvec/plain" => {
            vec![("ROWS", size("SUMS") / 256), ("PARTS", if size("ALONE") > 0 { 1 } else { 32 })]
        }
        "cached_attention/plain" => {
            let queries = size("SCORES") / size("THREADS").max(1);
            vec![("HEAD_SIZE4", 64), ("QUERIES", if p.entry == "combine" { 1 } else { queries })]
        }
        _ => Vec::new(),
    };
    values.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
}

impl Pipeline {
    /// Whether a GPU with few registers for a thread, or one with many, runs it.
    pub fn is_for(&self, few_registers: bool) -> bool {
        let size = |name: &str| self.of.sizes.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
        match (size("FEW"), size("HEAD4"), size("HALF")) {
            (Some(few), Some(head4), Some(half)) => {
                (few == 1) == (few_registers && (head4 > 16 || half == 0))
            }
            _ => true,
        }
    }

    pub fn ready(&self) -> Ready {
        let stage = Some((ShaderStage::Compute, self.entry.as_str()));
        let processed = process_overrides(&self.of.module, &self.of.info, stage, &constants(self));
        let (module, info) = processed.expect("every constant has a value");
        let (module, info) = (module.into_owned(), info.into_owned());
        let at = module.entry_points.iter().position(|e| e.name == self.entry).expect("it was listed");
        let threads = module.entry_points[at].workgroup_size.iter().product();
        let (mut bindings, mut workgroup_bytes) = (Vec::new(), 0);
        for (handle, global) in module.global_variables.iter() {
            if info.get_entry_point(at)[handle].is_empty() {
                continue;
            }
            match (global.space, &global.binding) {
                (AddressSpace::Storage { .. }, Some(b)) => bindings.push((b.binding, true)),
                (AddressSpace::Uniform, Some(b)) => bindings.push((b.binding, false)),
                (AddressSpace::WorkGroup, _) => {
                    workgroup_bytes += module.types[global.ty].inner.size(module.to_ctx());
                }
                _ => {}
            }
        }
        Ready { module, info, threads, bindings, workgroup_bytes }
    }
}

const UNCHECKED: BoundsCheckPolicies = BoundsCheckPolicies {
    index: BoundsCheckPolicy::Unchecked,
    buffer: BoundsCheckPolicy::Unchecked,
    image_load: BoundsCheckPolicy::Unchecked,
    binding_array: BoundsCheckPolicy::Unchecked,
};

/// The words that a driver of Vulkan 1.3 gets for a module without runtime checks, from wgpu and src/gpu/spirv.rs.
pub fn spirv(p: &Pipeline, ready: &Ready) -> Result<Vec<u32>, String> {
    let options = spv::Options {
        lang_version: (1, 6),
        flags: spv::WriterFlags::LABEL_VARYINGS | spv::WriterFlags::FORCE_POINT_SIZE,
        bounds_check_policies: UNCHECKED,
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        ray_query_initialization_tracking: false,
        use_storage_input_output_16: false,
        emit_int_div_checks: false,
        ..Default::default()
    };
    let entry = spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: p.entry.clone() };
    let words = spv::write_vec(&ready.module, &ready.info, &options, Some(&entry));
    let words = words.map_err(|e| format!("naga: {e}"))?;
    // UNMENDED=1 leaves naga's faults in, as they are on NVIDIA's drivers.
    Ok(if env::var_os("UNMENDED").is_some() { words } else { mended(&words) })
}

/// The entry point's name and the text that wgpu's DX12 backend gives to DXC, or with SM=5.1 to FXC.
pub fn hlsl(p: &Pipeline, ready: &Ready) -> Result<(String, String), String> {
    let old = env::var("SM").is_ok_and(|sm| sm == "5.1");
    let options = hlsl::Options {
        shader_model: if old { hlsl::ShaderModel::V5_1 } else { hlsl::ShaderModel::V6_6 },
        restrict_indexing: false,
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        ..Default::default()
    };
    let entry = hlsl::PipelineOptions { entry_point: Some((ShaderStage::Compute, p.entry.clone())) };
    let mut text = String::new();
    let info = hlsl::Writer::new(&mut text, &options, &entry)
        .write(&ready.module, &ready.info, None)
        .map_err(|e| format!("naga: {e}"))?;
    let name = info.entry_point_names.into_iter().find_map(Result::ok).ok_or("no entry point")?;
    Ok((name, text))
}

/// The entry point's name and the text that wgpu's Metal backend gives to Apple's compiler. Buffers have the order of their bindings.
pub fn msl(p: &Pipeline, ready: &Ready) -> Result<(String, String), String> {
    let mut sorted = ready.bindings.clone();
    sorted.sort_unstable();
    let resources = sorted.iter().enumerate().map(|(slot, (binding, _))| {
        let target = msl::BindTarget { buffer: Some(slot as u8), mutable: true, ..Default::default() };
        (naga::ResourceBinding { group: 0, binding: *binding }, target)
    });
    let resources = msl::EntryPointResources {
        resources: resources.collect(),
        sizes_buffer: Some(30),
        ..Default::default()
    };
    let options = msl::Options {
        lang_version: (3, 1),
        per_entry_point_map: [(p.entry.clone(), resources)].into_iter().collect(),
        fake_missing_bindings: false,
        bounds_check_policies: UNCHECKED,
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..Default::default()
    };
    let entry = Some((ShaderStage::Compute, p.entry.clone()));
    let entry = msl::PipelineOptions { entry_point: entry, ..Default::default() };
    let (text, info) =
        msl::write_string(&ready.module, &ready.info, &options, &entry).map_err(|e| format!("naga: {e}"))?;
    let name = info.entry_point_names.into_iter().find_map(Result::ok).ok_or("no entry point")?;
    Ok((name, text))
}
