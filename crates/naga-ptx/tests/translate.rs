//! Small shaders as PTX. `ptxas` assembles every text too, where it is in the `PATH`.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

use naga::back::PipelineConstants;
use naga::back::pipeline_constants::process_overrides;
use naga::valid::{Capabilities, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use naga_ptx::{Kernel, Options, Param, ParamKind, Unsupported, translate};

const DATA: &str = "@group(0) @binding(0) var<storage, read_write> data: array<u32>;\n";
const HEAD: &str = "@compute @workgroup_size(64) fn main(@builtin(local_invocation_index) i: u32) {\n";

/// The kernel of entry point `main`.
fn compile(text: &str, options: &Options) -> Result<Kernel, Unsupported> {
    let module = naga::front::wgsl::parse_str(text).unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    validator.subgroup_stages(ShaderStages::COMPUTE).subgroup_operations(SubgroupOperationSet::all());
    let info = validator.validate(&module).unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    let stage = Some((naga::ShaderStage::Compute, "main"));
    let constants = PipelineConstants::default();
    let (module, info) = process_overrides(&module, &info, stage, &constants).expect("no overrides");
    translate(&module, &info, "main", options)
}

/// The kernel for `sm_80`, whose text and that for `sm_75` `ptxas` assembles.
fn kernel(text: &str) -> Kernel {
    for target in [75, 80] {
        let kernel = compile(text, &Options { target, ..Options::default() }).expect("it is translated");
        assemble(&kernel.text, target);
    }
    compile(text, &Options::default()).expect("it is translated")
}

/// The kernel of statements that have `data` and the thread's index `i`.
fn body(statements: &str) -> Kernel {
    kernel(&format!("{DATA}{HEAD}{statements}}}\n"))
}

fn assemble(text: &str, target: u32) {
    static THERE: OnceLock<bool> = OnceLock::new();
    let quiet = |command: &mut Command| command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !*THERE.get_or_init(|| quiet(Command::new("ptxas").arg("--version")).is_ok()) {
        return;
    }
    let name = format!("naga-ptx-{}-{:?}.ptx", std::process::id(), std::thread::current().id());
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, text).expect("the folder can be written");
    let out = if cfg!(windows) { "NUL" } else { "/dev/null" };
    let done = Command::new("ptxas").arg(format!("-arch=sm_{target}")).arg("-o").arg(out).arg(&file).output();
    let done = done.expect("it runs");
    let _ = std::fs::remove_file(&file);
    assert!(done.status.success(), "{}\n{text}", String::from_utf8_lossy(&done.stderr));
}

/// How often a part is in the text.
fn count(kernel: &Kernel, part: &str) -> usize {
    kernel.text.matches(part).count()
}

#[test]
fn parameters_are_in_the_order_of_bindings() {
    let kernel = kernel(
        "struct P { n: u32, scale: f32, rest: vec2<f32> }
        @group(0) @binding(2) var<uniform> p: P;
        @group(0) @binding(1) var<storage, read> x: array<f32>;
        @group(0) @binding(0) var<storage, read_write> y: array<f32>;
        @group(0) @binding(3) var<storage, read> unused: array<f32>;
        @compute @workgroup_size(8, 4) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < arrayLength(&x) { y[id.x] = x[id.x] * p.scale; }
        }",
    );
    let param = |binding, kind| Param { binding: Some((0, binding)), kind };
    assert_eq!(
        kernel.params,
        [
            param(0, ParamKind::Address { writes: true }),
            param(1, ParamKind::Address { writes: false }),
            param(1, ParamKind::Bytes),
            param(2, ParamKind::Value { bytes: 16 }),
        ]
    );
    assert_eq!((kernel.threads, kernel.shared), ([8, 4, 1], 0));
    assert_eq!(kernel.least_bytes, [(0, 0, 4), (0, 1, 4), (0, 2, 16)]);
    assert!(kernel.text.contains("ld.global.nc.b32"), "reads of what nothing writes");
    assert!(kernel.text.contains(".reqntid 8, 4, 1"));
}

#[test]
fn a_constant_says_how_many_workgroups_run_at_once() {
    let text = |more: &str| format!("{more}{DATA}{HEAD}data[i] = i;}}\n");
    assert!(!kernel(&text("")).text.contains(".minnctapersm"));
    let kernel = kernel(&text("const WORKGROUPS_AT_ONCE: u32 = 2u;\n"));
    assert!(kernel.text.contains(".reqntid 64, 1, 1 .minnctapersm 2\n"), "{}", kernel.text);
}

#[test]
fn loops_over_local_arrays_are_written_out() {
    let counted = "var a: array<u32, 8>;
        for (var k = 0u; k < 8u; k += 1u) { a[k] = i + k; }
        data[i] = a[0] + a[7];";
    assert_eq!(count(&body(counted), "bra"), 1, "the jump to the return alone");
    // Signed counters that begin below 0.
    let signed = "var a: array<i32, 4>;
        for (var k = -1; k < 3; k += 1) { a[k + 1] = k; }
        data[i] = u32(a[0]) + u32(a[3]);";
    let kernel = body(signed);
    assert_eq!(count(&kernel, "bra"), 1);
    assert_eq!(
        (count(&kernel, ", 0xffffffff;"), count(&kernel, ", 0x2;")),
        (2, 1),
        "the counter, and the rounds of -1 and of 2"
    );
    // A counter that is needed behind a loop that is left early.
    let early = "var a: array<u32, 4>; var k = 0u;
        for (; k < 4u; k += 1u) { a[k] = k; if data[k] == 3u { break; } }
        data[i] = k + a[1];";
    assert!(count(&body(early), "bra") > 2, "it stays a loop");
}

#[test]
fn long_arrays_with_computed_indices_are_in_memory() {
    let long = "var a: array<u32, 100>; a[i] = 1u; data[i] = a[data[0] % 100u];";
    assert!(body(long).text.contains(".local .align 16 .b8"));
    let short = "var a: array<u32, 4>; a[i % 4u] = 1u; data[i] = a[data[0] % 4u];";
    assert!(!body(short).text.contains(".local"));
}

#[test]
fn control_flow_and_calls() {
    let kernel = kernel(&format!(
        "{DATA}
        fn pick(x: u32) -> u32 {{
            switch x {{ case 0u: {{ return 7u; }} case 1u, 2u: {{ return x * 2u; }} default: {{ }} }}
            var y = x;
            loop {{ y = y / 2u; if y < 5u {{ break; }} continuing {{ y += 1u; break if y > 1000u; }} }}
            return y;
        }}
        {HEAD} data[i] = pick(data[i]) + pick(i); }}"
    ));
    assert!(count(&kernel, "call") == 0, "calls are written out");
}

#[test]
fn quotients_by_known_numbers_take_no_division() {
    let known = body("data[i] = i / 4u + i % 16u + i / 12u + i % 25u;");
    assert_eq!(count(&known, "div.u32") + count(&known, "rem.u32"), 0);
    assert_eq!((count(&known, "shr.u32 %r"), count(&known, "mul.hi.u32")), (5, 2));
    let computed = body("data[i] = i / data[0] + i % data[1];");
    assert_eq!((count(&computed, "div.u32"), count(&computed, "rem.u32")), (1, 1));
}

#[test]
fn vectors_of_f16_are_pairs() {
    let kernel = kernel(
        "enable f16;
        @group(0) @binding(0) var<storage, read_write> x: array<vec4<f16>>;
        @compute @workgroup_size(32) fn main(@builtin(local_invocation_index) i: u32) {
            let v = x[i];
            x[i] = max(v * v + v.yxzw, vec4<f16>(1.0h)) + vec4<f16>(vec4<f32>(f32(v.x)));
        }",
    );
    assert_eq!(count(&kernel, "mul.f16x2"), 2);
    assert_eq!(count(&kernel, "max.f16x2"), 2);
    assert_eq!(count(&kernel, "ld.global.v2.b32"), 1);
    assert_eq!(count(&kernel, "cvt.rn.f16x2.f32"), 2);
}

#[test]
fn functions_of_numbers() {
    let kernel = kernel(
        "@group(0) @binding(0) var<storage, read_write> x: array<vec4<f32>>;
        @group(0) @binding(1) var<storage, read_write> n: array<u32>;
        @compute @workgroup_size(32) fn main(@builtin(local_invocation_index) i: u32) {
            let v = x[i];
            x[i] = tanh(v) + exp(v) + log(v) + sqrt(v) + inverseSqrt(v) + mix(v, v.yxzw, vec4<f32>(0.5)) + sign(v)
                + pow(v, v) + clamp(v, vec4<f32>(0.0), vec4<f32>(1.0)) + normalize(v) * dot(v, v) + floor(v) % v / 8.0;
            let u = n[i];
            n[i] = firstTrailingBit(u) + firstLeadingBit(u) + countOneBits(u) + extractBits(u, 3u, 5u)
                + insertBits(u, 1u, 2u, 3u) + dot4U8Packed(u, u) + pack2x16float(unpack2x16float(u))
                + pack4xU8(unpack4xU8(u)) + u / n[0] + u % n[0] + (u << (u & 7u));
        }",
    );
    assert!(kernel.text.contains("copysign.f32") && kernel.text.contains("bfind.u32"));
    assert!(!kernel.text.contains("tanh.approx"), "it has 11 bits only");
}

#[test]
fn workgroups_share_memory_and_subgroups_values() {
    let kernel = kernel(&format!(
        "{DATA}
        var<workgroup> sums: array<u32, 64>;
        {HEAD}
            sums[i] = subgroupAdd(data[i]);
            workgroupBarrier();
            data[i] = sums[63u - i] + subgroupShuffleXor(i, 5u) + subgroupBroadcast(i, 3u)
                + select(0u, 1u, subgroupAny(i > 3u)) + subgroupBallot(i > 7u).x;
            storageBarrier();
        }}"
    ));
    assert_eq!(kernel.shared, 256);
    assert_eq!(count(&kernel, "shfl.sync.bfly.b32"), 6);
    assert_eq!(count(&kernel, "bar.sync 0;"), 2);
    assert_eq!(count(&kernel, "fence.acq_rel.gpu;"), 2);
}

#[test]
fn atomics() {
    let kernel = kernel(&format!(
        "@group(0) @binding(0) var<storage, read_write> a: array<atomic<u32>, 4>;
        var<workgroup> b: atomic<i32>;
        {HEAD}
            let old = atomicAdd(&a[0], 1u);
            atomicMax(&b, -3);
            let swapped = atomicCompareExchangeWeak(&a[1], old, 5u);
            if swapped.exchanged {{ atomicStore(&a[2], swapped.old_value + atomicLoad(&a[3])); }}
        }}"
    ));
    for part in ["atom.relaxed.gpu.global.add.u32", "atom.relaxed.cta.shared.max.s32", "gpu.global.cas.b32"] {
        assert_eq!(count(&kernel, part), 1, "{part}\n{}", kernel.text);
    }
}

const MATRICES: &str = "enable f16; enable wgpu_cooperative_matrix;
    @group(0) @binding(0) var<storage, read> x: array<f16>;
    @group(0) @binding(1) var<storage, read_write> y: array<f32>;
    @compute @workgroup_size(32) fn main() {
        let a = coopLoadT<coop_matEDGExEDGE<f16, A>>(&x[0], 16u);
        let b = coopLoad<coop_matEDGExEDGE<f16, B>>(&x[256], 16u);
        var c = coopLoadT<coop_matEDGExEDGE<f32, C>>(&y[0], 16u);
        c = coopMultiplyAdd(a, b, c);
        coopStoreT(c, &y[0], 16u);
    }";

#[test]
fn matrices_of_16x16() {
    let text = MATRICES.replace("EDGE", "16");
    assert_eq!(count(&kernel(&text), "mma.sync.aligned.m16n8k16"), 2);
    // Turing's instruction adds eight steps of the sum.
    let old = compile(&text, &Options { target: 75, ..Options::default() }).expect("it is translated");
    assert_eq!(count(&old, "mma.sync.aligned.m16n8k8"), 4);
    let refused = compile(&MATRICES.replace("EDGE", "8"), &Options::default()).expect_err("8×8");
    assert_eq!(refused.to_string(), "not translated to PTX: cooperative matrices other than 16×16");
}

#[test]
fn checked_accesses_are_guarded() {
    let text = format!("{DATA}{HEAD} data[i] = data[i + 1u]; }}");
    let kernel = compile(&text, &Options { checked: true, ..Options::default() }).expect("it is translated");
    assemble(&kernel.text, 80);
    assert_eq!(kernel.params[1].kind, ParamKind::Bytes);
    assert!(kernel.text.contains(" ld.global.b32") && kernel.text.lines().any(|l| l.trim().starts_with('@')));
    assert_eq!(count(&kernel, "setp.le.and.u64"), 2);
}

#[test]
fn what_is_not_known_is_named() {
    let refused = |text: &str| compile(text, &Options::default()).expect_err("not known").0;
    let scan = format!("{DATA}{HEAD} data[i] = subgroupInclusiveAdd(i); }}");
    assert_eq!(refused(&scan), "InclusiveScan");
    let text = "@compute @workgroup_size(1) fn other() {}";
    let module = naga::front::wgsl::parse_str(text).expect("it is valid");
    let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module).expect("valid");
    let missing = translate(&module, &info, "main", &Options::default()).expect_err("no such entry point");
    assert_eq!(missing.0, "no entry point main");
}

#[test]
fn a_kernel_waits_for_the_one_ahead_where_it_says_so() {
    let text = "@group(0) @binding(0) var<storage, read> w: array<u32>;
        @group(0) @binding(1) var<storage, read_write> data: array<u32>;
        fn wait_for_kernel_ahead() {}
        @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) i: u32) {
            let early = w[i];
            wait_for_kernel_ahead();
            data[i] += early;
        }";
    let newer = compile(text, &Options { target: 90, ..Options::default() }).expect("it is translated");
    assemble(&newer.text, 90);
    assert!(newer.early);
    assert_eq!(count(&newer, "griddepcontrol.wait;"), 1);
    // A load that nothing can change might move past the wait.
    assert_eq!(count(&newer, "ld.global.nc"), 0);
    let at = |part: &str| newer.text.find(part).expect(part);
    assert!(at("ld.global") < at("griddepcontrol.wait"));
    assert!(at("griddepcontrol.wait") < at("griddepcontrol.launch_dependents"));
    let older = kernel(text);
    assert!(!older.early);
    assert_eq!((count(&older, "griddepcontrol"), count(&older, "ld.global.nc")), (0, 1));
    let silent = body("data[i] += 1u;");
    assert!(!silent.early);
}
