//! Faults of naga that this project works around, in the smallest shaders that show them: tests/shaders/naga has a report of each.

use naga::back::{hlsl, spv};
use naga::front::wgsl;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{Module, ShaderStage};

const CAPABILITY: u32 = 17;
const CONSTANT: u32 = 43;
const CONTROL_BARRIER: u32 = 224;
const DEVICE_SCOPE: u32 = 5346;
const DEVICE: u32 = 1;

/// Fails where naga no longer has a fault: the workaround can go then, and so can its shader.
pub fn naga_has_the_faults_that_are_worked_around() {
    let text = hlsl(include_str!("naga/zero_value.wgsl"));
    let defined = text.matches("float4 ZeroValuefloat4() {").count();
    assert_eq!(defined, 2, "HLSL defines a function once: aliases of vectors can return\n{text}");

    let [_, order] = barrier(&spirv(include_str!("naga/subgroup_barrier.wgsl")));
    assert_eq!(order, 0x88, "subgroupBarrier() has another order: src/gpu/spirv.rs need not add one");

    let words = spirv(include_str!("naga/device_scope.wgsl"));
    let [scope, _] = barrier(&words);
    assert_eq!(scope, DEVICE, "storageBarrier() has another scope: src/gpu/spirv.rs need not declare it");
    let declared = instructions(&words).any(|words| words == [2 << 16 | CAPABILITY, DEVICE_SCOPE]);
    assert!(!declared, "device scope is declared: src/gpu/spirv.rs need not do it");
}

fn parsed(text: &str) -> (Module, ModuleInfo) {
    let module = wgsl::parse_str(text).unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    let info = validator.validate(&module).unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    (module, info)
}

fn hlsl(text: &str) -> String {
    let (module, info) = parsed(text);
    let (options, mut written) = (hlsl::Options::default(), String::new());
    let mut writer = hlsl::Writer::new(&mut written, &options, &hlsl::PipelineOptions { entry_point: None });
    writer.write(&module, &info, None).expect("HLSL has all that the shader uses");
    written
}

fn spirv(text: &str) -> Vec<u32> {
    let (module, info) = parsed(text);
    let entry = spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: "main".into() };
    // Setting workgroup memory to zero needs a barrier of its own.
    let zero_initialize_workgroup_memory = spv::ZeroInitializeWorkgroupMemoryMode::None;
    let options =
        spv::Options { lang_version: (1, 6), zero_initialize_workgroup_memory, ..spv::Options::default() };
    spv::write_vec(&module, &info, &options, Some(&entry)).expect("SPIR-V has all that the shader uses")
}

/// Instructions behind the header of five words.
fn instructions(words: &[u32]) -> impl Iterator<Item = &[u32]> {
    let mut rest = &words[5..];
    std::iter::from_fn(move || {
        let (instruction, after) = rest.split_at_checked((rest.first()? >> 16) as usize)?;
        rest = after;
        Some(instruction)
    })
}

/// The memory scope and the order of the only barrier.
fn barrier(words: &[u32]) -> [u32; 2] {
    let is = |instruction: &[u32], code| instruction[0] & 0xffff == code;
    let barrier = instructions(words).find(|i| is(i, CONTROL_BARRIER)).expect("the shader has a barrier");
    [barrier[2], barrier[3]].map(|id| {
        let constant = instructions(words).find(|i| is(i, CONSTANT) && i[2] == id);
        constant.expect("operands of barriers are constants")[3]
    })
}
