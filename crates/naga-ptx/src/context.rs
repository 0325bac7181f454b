//! Functions while their bodies are written out, and the values in them.

use std::collections::HashMap;

use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{BuiltIn, Expression as E, Function, GlobalVariable, Handle, LocalVariable, Module, TypeInner};

use crate::emit::Emitter;
use crate::unroll::{computed_arrays, longest};
use crate::value::{Globals, Op, Place, Pointer, Ty, Val};
use crate::{Result, unsupported};

/// Elements of a local array, at most, that registers hold where an index is computed.
const MOST_IN_REGISTERS: u32 = 16;

/// Nested calls, at most: all are written out.
const MOST_CALLS: usize = 64;

/// A function while its body is written out.
pub struct Frame<'a> {
    pub function: &'a Function,
    pub info: &'a FunctionInfo,
    pub arguments: Vec<Val>,
    pub values: HashMap<Handle<E>, Val>,
    /// Local variables: slots of registers, or places of memory.
    pub locals: HashMap<Handle<LocalVariable>, std::result::Result<usize, Place>>,
    /// Counters of loops that are written out round by round.
    pub rounds: HashMap<Handle<LocalVariable>, Op>,
    /// Variables whose value is a known number here.
    pub known: HashMap<Handle<LocalVariable>, u32>,
    /// The label that returns jump to, and the registers of the result.
    pub end: String,
    pub result: Option<Val>,
    pub returned: bool,
    /// Targets of break and continue.
    pub breaks: Vec<String>,
    pub continues: Vec<String>,
}

/// State that the functions of an entry point share.
pub struct Context<'a> {
    pub module: &'a Module,
    pub info: &'a ModuleInfo,
    pub globals: Globals,
    /// Variables in registers.
    pub slots: Vec<Val>,
    pub out: &'a mut Emitter,
    /// Functions that are being written out: naga allows no recursion.
    depth: usize,
}

/// Writes an entry point.
pub fn entry<'a>(
    module: &'a Module,
    info: &'a ModuleInfo,
    index: usize,
    globals: Globals,
    out: &'a mut Emitter,
) -> Result<()> {
    let point = &module.entry_points[index];
    let mut context = Context { module, info, globals, slots: Vec::new(), out, depth: 0 };
    let used = info.get_entry_point(index);
    // Private variables begin before anything else.
    for (handle, global) in module.global_variables.iter() {
        if global.space == naga::AddressSpace::Private && !used[handle].is_empty() {
            context.declare_private(handle, global)?;
        }
    }
    let mut arguments = Vec::new();
    for argument in &point.function.arguments {
        arguments.push(match (&argument.binding, &module.types[argument.ty].inner) {
            (Some(naga::Binding::BuiltIn(builtin)), _) => context.builtin(*builtin)?,
            (None, TypeInner::Struct { members, .. }) => {
                let members = members.iter().map(|m| match m.binding {
                    Some(naga::Binding::BuiltIn(builtin)) => context.builtin(builtin),
                    _ => unsupported("an argument without a builtin"),
                });
                Val::Many(members.collect::<Result<_>>()?)
            }
            _ => return unsupported("an argument without a builtin"),
        });
    }
    context.call(&point.function, used, arguments)?;
    Ok(())
}

impl<'a> Context<'a> {
    fn builtin(&mut self, builtin: BuiltIn) -> Result<Val> {
        let threads = self.out.threads();
        let mut special = |name: &str| self.out.r_from("mov.u32", name);
        let mut three = |name: &str| ["x", "y", "z"].map(|axis| special(&format!("%{name}.{axis}")));
        Ok(match builtin {
            BuiltIn::WorkGroupId => Val::Vector(three("ctaid").to_vec()),
            BuiltIn::NumWorkGroups => Val::Vector(three("nctaid").to_vec()),
            BuiltIn::LocalInvocationId => Val::Vector(three("tid").to_vec()),
            BuiltIn::GlobalInvocationId => {
                let (groups, own) = (three("ctaid"), three("tid"));
                let ids = (0..3).map(|i| {
                    self.out.r_from("mad.lo.u32", &format!("{}, {}, {}", groups[i], threads[i], own[i]))
                });
                Val::Vector(ids.collect())
            }
            BuiltIn::LocalInvocationIndex => Val::Scalar(self.index()),
            BuiltIn::SubgroupSize => Val::Scalar(Op::Bits(32)),
            BuiltIn::SubgroupInvocationId => Val::Scalar(special("%laneid")),
            BuiltIn::SubgroupId => {
                let index = self.index();
                Val::Scalar(self.out.r_from("shr.u32", &format!("{index}, 5")))
            }
            BuiltIn::NumSubgroups => Val::Scalar(Op::Bits(threads.iter().product::<u32>().div_ceil(32))),
            other => return unsupported(format!("{other:?}")),
        })
    }

    fn index(&mut self) -> Op {
        let [x, y, z] = self.out.threads();
        let mut index = self.out.r_from("mov.u32", "%tid.x");
        if y > 1 {
            let own = self.out.r_from("mov.u32", "%tid.y");
            index = self.out.r_from("mad.lo.u32", &format!("{own}, {x}, {index}"));
        }
        if z > 1 {
            let own = self.out.r_from("mov.u32", "%tid.z");
            index = self.out.r_from("mad.lo.u32", &format!("{own}, {}, {index}", x * y));
        }
        index
    }

    /// The registers of a private variable.
    pub fn private(&self, global: Handle<GlobalVariable>) -> Result<usize> {
        self.globals.slots.get(&global).copied().map_or_else(|| unsupported("a variable"), Ok)
    }

    fn declare_private(&mut self, handle: Handle<GlobalVariable>, global: &GlobalVariable) -> Result<()> {
        let value = match global.init {
            Some(init) => self.constant(init)?,
            None => self.zero(&self.module.types[global.ty].inner)?,
        };
        let value = self.out.copy(&value);
        self.slots.push(value);
        self.globals.slots.insert(handle, self.slots.len() - 1);
        Ok(())
    }

    /// Writes a function's body here. Returns its result.
    pub fn call(
        &mut self,
        function: &'a Function,
        info: &'a FunctionInfo,
        arguments: Vec<Val>,
    ) -> Result<Option<Val>> {
        if self.depth > MOST_CALLS {
            return unsupported(format!("more than {MOST_CALLS} nested calls"));
        }
        self.depth += 1;
        let result = match &function.result {
            Some(result) => Some(self.undefined(&self.module.types[result.ty].inner)?),
            None => None,
        };
        let mut frame = Frame {
            function,
            info,
            arguments,
            values: HashMap::new(),
            locals: HashMap::new(),
            rounds: HashMap::new(),
            known: HashMap::new(),
            end: self.out.label(),
            result,
            returned: false,
            breaks: Vec::new(),
            continues: Vec::new(),
        };
        self.declare_locals(&mut frame)?;
        self.block(&mut frame, &function.body)?;
        self.depth -= 1;
        if frame.returned {
            let end = frame.end.clone();
            self.out.place_label(&end);
        }
        Ok(frame.result)
    }

    fn declare_locals(&mut self, frame: &mut Frame<'a>) -> Result<()> {
        let indexed = computed_arrays(frame.function);
        for (handle, local) in frame.function.local_variables.iter() {
            let inner = &self.module.types[local.ty].inner;
            let init = match local.init {
                Some(init) => self.value(frame, init)?,
                None => self.zero(inner)?,
            };
            if let Val::Scalar(Op::Bits(bits)) = init {
                frame.known.insert(handle, bits);
            }
            if indexed.contains(&handle) && longest(self.module, inner) > MOST_IN_REGISTERS {
                let place = self.out.local(inner.size(self.module.to_ctx()));
                self.out.store(self.module, &place, inner, &init)?;
                frame.locals.insert(handle, Err(place));
            } else {
                let value = self.out.copy(&init);
                self.slots.push(value);
                frame.locals.insert(handle, Ok(self.slots.len() - 1));
            }
        }
        Ok(())
    }

    /// Registers for a value of a type.
    fn undefined(&mut self, inner: &TypeInner) -> Result<Val> {
        let zero = self.zero(inner)?;
        Ok(self.fresh(&zero))
    }

    fn fresh(&mut self, value: &Val) -> Val {
        let mut all = |ops: &[Op]| ops.iter().map(|op| self.out.like(*op)).collect::<Vec<Op>>();
        match value {
            Val::Scalar(op) => Val::Scalar(self.out.like(*op)),
            Val::Vector(ops) => Val::Vector(all(ops)),
            Val::Halves(ops, n) => Val::Halves(all(ops), *n),
            Val::Matrix(ops) => Val::Matrix(all(ops)),
            Val::Many(values) => Val::Many(values.iter().map(|v| self.fresh(v)).collect()),
            Val::Pointer(_) => unreachable!("no function returns a pointer"),
        }
    }

    /// The type of an expression.
    pub fn inner(&self, frame: &Frame<'a>, e: Handle<E>) -> &'a TypeInner {
        frame.info[e].ty.inner_with(&self.module.types)
    }

    /// The type of an expression's scalars.
    pub fn ty(&self, frame: &Frame<'a>, e: Handle<E>) -> Result<Ty> {
        let inner = self.inner(frame, e);
        scalar_of(inner).map_or_else(|| unsupported(format!("{inner:?}")), Ok)
    }

    /// The value of an expression, which was emitted before or needs not be.
    pub fn value(&mut self, frame: &mut Frame<'a>, e: Handle<E>) -> Result<Val> {
        if let Some(value) = frame.values.get(&e) {
            return Ok(value.clone());
        }
        let value = self.evaluate(frame, e)?;
        // Others are emitted where they stand; these are the same everywhere.
        if let E::Literal(_)
        | E::Constant(_)
        | E::ZeroValue(_)
        | E::FunctionArgument(_)
        | E::GlobalVariable(_)
        | E::LocalVariable(_) = frame.function.expressions[e]
        {
            frame.values.insert(e, value.clone());
        }
        Ok(value)
    }

    /// A value that is one scalar.
    pub fn op(&mut self, frame: &mut Frame<'a>, e: Handle<E>) -> Result<Op> {
        match self.value(frame, e)? {
            Val::Scalar(op) => Ok(op),
            other => unsupported(format!("{other:?} as a scalar")),
        }
    }

    /// A value that is a pointer.
    pub fn place(&mut self, frame: &mut Frame<'a>, e: Handle<E>) -> Result<Pointer> {
        match self.value(frame, e)? {
            Val::Pointer(pointer) => Ok(pointer),
            other => unsupported(format!("{other:?} as a pointer")),
        }
    }

    /// The type behind a pointer: of the module, or a part of one.
    pub fn pointee(&self, frame: &Frame<'a>, e: Handle<E>) -> Result<TypeInner> {
        Ok(match *self.inner(frame, e) {
            TypeInner::Pointer { base, .. } => self.module.types[base].inner.clone(),
            TypeInner::ValuePointer { size: Some(size), scalar, .. } => TypeInner::Vector { size, scalar },
            TypeInner::ValuePointer { size: None, scalar, .. } => TypeInner::Scalar(scalar),
            ref other => return unsupported(format!("a pointer, found {other:?}")),
        })
    }

    /// A place of memory, where a pointer is one.
    pub fn memory(&mut self, frame: &mut Frame<'a>, e: Handle<E>) -> Result<Place> {
        match self.place(frame, e)? {
            Pointer::Memory(place) => Ok(place),
            Pointer::Variable { .. } => unsupported("memory of a variable in registers"),
        }
    }
}

/// The scalar that a value's type consists of.
fn scalar_of(inner: &TypeInner) -> Option<Ty> {
    match *inner {
        TypeInner::Scalar(s) | TypeInner::Atomic(s) => Ty::of(s),
        TypeInner::Vector { scalar, .. }
        | TypeInner::Matrix { scalar, .. }
        | TypeInner::CooperativeMatrix { scalar, .. } => Ty::of(scalar),
        _ => None,
    }
}
