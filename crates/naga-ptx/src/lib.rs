//! Translates compute shaders from naga's IR, such as WGSL, to PTX text, which CUDA's driver compiles at run time.
//!
//! ```
//! use naga::valid::{Capabilities, ValidationFlags, Validator};
//!
//! let text = "@group(0) @binding(0) var<storage, read_write> x: array<f32>;
//! @compute @workgroup_size(64) fn double(@builtin(global_invocation_id) id: vec3<u32>) { x[id.x] *= 2.0; }";
//! let module = naga::front::wgsl::parse_str(text)?;
//! let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module)?;
//! let kernel = naga_ptx::translate(&module, &info, "double", &naga_ptx::Options::default())?;
//! assert!(kernel.text.contains(".visible .entry main("));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! All functions are inlined. Local variables become registers, which PTX lets one assign again, so no SSA form is built: `ptxas` does
//! that. Vectors of f16 are kept as pairs, so that arithmetic on them takes half the instructions. Uniform buffers are kernel parameters
//! by value (constant memory), storage buffers are parameters that are addresses. Bounds are not checked, as with wgpu's
//! `ShaderRuntimeChecks::unchecked()`, unless [`Options::checked`] is set. Workgroup memory is not zeroed.
//!
//! From `.target sm_90` on, a kernel waits for the end of the one ahead of it, so that it may be launched by programmatic stream
//! serialization. It waits before all else, or where it calls an empty function `wait_for_kernel_ahead`: then it must not read before that what
//! another kernel stores. Behind that call it allows the launch of the next one.
//!
//! A constant `WORKGROUPS_AT_ONCE` says how many workgroups a multiprocessor shall have room for: `ptxas` gives a kernel so few registers.
//!
//! Known are compute entry points with scalars of 32 bits, f16 and bool, their vectors and matrices, structs, arrays, atomics, subgroup
//! operations other than scans and quads, and cooperative matrices of 16×16 with operands in f16 and sums in f32. Everything else, such as
//! textures, is [`Unsupported`].

mod arithmetic;
mod atomic;
mod bits;
mod constant;
mod context;
mod control;
mod convert;
mod coop;
mod division;
mod emit;
mod expr;
mod fold;
mod functions;
mod math;
mod memory;
mod parts;
mod scalar;
mod stmt;
mod subgroup;
mod unroll;
mod value;

use naga::valid::ModuleInfo;
use naga::{AddressSpace, ArraySize, GlobalVariable, Handle, Module, StorageAccess, TypeInner};

/// The PTX version and target of the text.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// `.version`, such as (7, 8), which drivers from 520 on accept.
    pub version: (u32, u32),
    /// `.target sm_NN`: the least compute capability that runs the text, from 75 on. From 90 on, a kernel waits for the end of the one ahead
    /// of it before all else, so that it may be launched by programmatic stream serialization.
    pub target: u32,
    /// Rounds of a loop over a local array that are written out, at most.
    pub most_rounds: u32,
    /// Whether accesses to storage outside of their binding do nothing and read 0. Each storage buffer has a parameter
    /// [`ParamKind::Bytes`] then.
    pub checked: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { version: (7, 8), target: 80, most_rounds: 64, checked: false }
    }
}

/// The content of a kernel's parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// The contents of a uniform buffer or of immediates.
    Value {
        /// Bytes of them.
        bytes: u32,
    },
    /// The address of a storage buffer.
    Address {
        /// Whether the kernel may write to it.
        writes: bool,
    },
    /// Bytes of a storage buffer's binding, a number of 32 bits: for `arrayLength`, and where bounds are checked.
    Bytes,
}

/// A parameter of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Group and binding; `None` for immediates.
    pub binding: Option<(u32, u32)>,
    /// Its content.
    pub kind: ParamKind,
}

/// A translated entry point.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// PTX text with one entry named `main`.
    pub text: String,
    /// Its parameters, in their order.
    pub params: Vec<Param>,
    /// Threads of a block.
    pub threads: [u32; 3],
    /// Bytes of shared memory.
    pub shared: u32,
    /// The least bytes of each buffer, as wgpu's late validation wants them: (group, binding, bytes).
    pub least_bytes: Vec<(u32, u32, u64)>,
    /// Whether it may be launched as soon as the kernel ahead allows it, as it allows the next one: see the crate's text.
    pub early: bool,
}

/// Something that the translator does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported(pub String);

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "not translated to PTX: {}", self.0)
    }
}

impl std::error::Error for Unsupported {}

type Result<T> = std::result::Result<T, Unsupported>;

fn unsupported<T>(what: impl Into<String>) -> Result<T> {
    Err(Unsupported(what.into()))
}

/// Translates entry point `entry` of a valid module without overrides: see [`naga::back::pipeline_constants::process_overrides`].
///
/// # Errors
/// [`Unsupported`] where the module has no such entry point, and for what is not known, such as textures.
pub fn translate(module: &Module, info: &ModuleInfo, entry: &str, options: &Options) -> Result<Kernel> {
    let found = module.entry_points.iter().enumerate().find(|(_, e)| e.name == entry);
    let Some((index, point)) = found else {
        return unsupported(format!("no entry point {entry}"));
    };
    if point.stage != naga::ShaderStage::Compute {
        return unsupported(format!(
            "{entry} is an entry point of {:?}, and only those of compute are",
            point.stage
        ));
    }
    let used = info.get_entry_point(index);
    let mut out = emit::Emitter::new(*options, point.workgroup_size);
    out.at_once = workgroups_at_once(module);
    out.early = options.target >= 90 && module.functions.iter().any(|(_, function)| stmt::is_wait(function));
    let mut globals = value::Globals::default();
    let mut least_bytes = Vec::new();
    let mut shared = 0;
    let mut bound: Vec<_> =
        module.global_variables.iter().filter(|(handle, _)| !used[*handle].is_empty()).collect();
    bound.sort_by_key(|(handle, g)| (g.binding.map(|b| (b.group, b.binding)), *handle));
    for (handle, global) in bound {
        let bytes = module.types[global.ty].inner.size(module.to_ctx());
        if let Some(binding) = global.binding {
            least_bytes.push((binding.group, binding.binding, u64::from(bytes)));
        }
        let place = match global.space {
            AddressSpace::Uniform | AddressSpace::Immediate => {
                let kind = ParamKind::Value { bytes: bytes.next_multiple_of(4) };
                out.param(Param { binding: binding(global), kind })
            }
            AddressSpace::Storage { access } => storage(module, handle, access, &mut globals, &mut out),
            AddressSpace::WorkGroup => {
                shared = u32::next_multiple_of(shared, 16) + bytes;
                out.shared(&format!("shared_{}", handle.index()), bytes)
            }
            AddressSpace::Private => continue,
            other => return unsupported(format!("address space {other:?}")),
        };
        globals.places.insert(handle, place);
    }
    context::entry(module, info, index, globals, &mut out)?;
    let early = out.early;
    let (text, params) = out.finish();
    Ok(Kernel { text, params, threads: point.workgroup_size, shared, least_bytes, early })
}

/// The value of the constant of that name.
fn workgroups_at_once(module: &Module) -> Option<u32> {
    let named = |c: &naga::Constant| c.name.as_deref() == Some("WORKGROUPS_AT_ONCE");
    let (_, constant) = module.constants.iter().find(|(_, c)| named(c))?;
    match module.global_expressions[constant.init] {
        naga::Expression::Literal(naga::Literal::U32(count)) => Some(count),
        _ => None,
    }
}

fn binding(global: &GlobalVariable) -> Option<(u32, u32)> {
    global.binding.map(|b| (b.group, b.binding))
}

/// Declares the parameters of a storage buffer: its address, and its length where that is needed.
fn storage(
    module: &Module,
    handle: Handle<GlobalVariable>,
    access: StorageAccess,
    globals: &mut value::Globals,
    out: &mut emit::Emitter,
) -> value::Place {
    let global = &module.global_variables[handle];
    let binding = binding(global);
    let writes = access.contains(StorageAccess::STORE);
    let pointer = out.param(Param { binding, kind: ParamKind::Address { writes } });
    let checked = out.options.checked;
    let measured = has_length(module, global) && measures(module, handle);
    if !checked && !measured {
        return pointer;
    }
    let length = out.param(Param { binding, kind: ParamKind::Bytes });
    let pointer = if checked { out.bounded(pointer, &length) } else { pointer };
    globals.lengths.insert(handle, length);
    pointer
}

/// Whether a buffer ends with an array of any length.
fn has_length(module: &Module, global: &GlobalVariable) -> bool {
    let any = |inner: &TypeInner| matches!(inner, TypeInner::Array { size: ArraySize::Dynamic, .. });
    match &module.types[global.ty].inner {
        TypeInner::Struct { members, .. } => {
            members.last().is_some_and(|last| any(&module.types[last.ty].inner))
        }
        inner => any(inner),
    }
}

/// Whether any function asks for the length of `global`'s array.
fn measures(module: &Module, global: naga::Handle<naga::GlobalVariable>) -> bool {
    let functions =
        module.functions.iter().map(|(_, f)| f).chain(module.entry_points.iter().map(|e| &e.function));
    functions.into_iter().any(|f| {
        let lengths = f.expressions.iter().filter_map(|(_, e)| match e {
            naga::Expression::ArrayLength(of) => Some(*of),
            _ => None,
        });
        lengths.into_iter().any(|mut of| {
            loop {
                match f.expressions[of] {
                    naga::Expression::AccessIndex { base, .. } | naga::Expression::Access { base, .. } => {
                        of = base
                    }
                    naga::Expression::GlobalVariable(g) => return g == global,
                    _ => return true,
                }
            }
        })
    })
}
