//! Compiled kernels. They are compiled ahead and in parallel, or at first use. They are kept for this run and, where the backend can
//! export them ([`Gpu::pipelines`]), for later runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

#[cfg(not(target_arch = "wasm32"))]
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::backend::is_cuda;
use super::{Entry, Gpu, shader};

/// One entry point of one shader file, for its weight formats and one set of constants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// File in `shaders/`, without `.wgsl`.
    pub shader: &'static str,
    /// Entry point.
    pub entry: &'static str,
    /// Names of the weight formats that `#import weight` or `#import weights` stands for: files of `shaders/formats/`.
    pub formats: Vec<&'static str>,
    /// Values of the shader's `override` declarations.
    pub constants: Vec<(&'static str, u32)>,
    /// Numbers that the shader's text is expanded with; see [`shader`].
    pub sizes: Vec<(&'static str, u32)>,
}

impl Kernel {
    /// A kernel without weight format or constants.
    pub fn new(shader: &'static str, entry: &'static str) -> Kernel {
        Kernel { shader, entry, formats: Vec::new(), constants: Vec::new(), sizes: Vec::new() }
    }

    /// Adds a matrix of weights of `format`.
    #[must_use]
    pub fn with_format(mut self, format: &'static str) -> Kernel {
        self.formats.push(format);
        self
    }

    /// Sets `override name = value`.
    #[must_use]
    pub fn with_constant(mut self, name: &'static str, value: u32) -> Kernel {
        self.constants.push((name, value));
        self
    }

    /// Sets the sizes for subgroups of `lanes`, a multiple of 4, that are SIMD registers: see [`super::Kernels::software_lanes`].
    #[must_use]
    pub fn with_lanes(self, lanes: u32) -> Kernel {
        self.with_size("LANES", lanes).with_size("QUADS", lanes / 4)
    }

    /// Replaces `{name}` by `value` in the shader's text.
    #[must_use]
    pub fn with_size(mut self, name: &'static str, value: u32) -> Kernel {
        self.sizes.push((name, value));
        self
    }

    /// Sets several sizes at once: see [`Kernel::with_size`].
    #[must_use]
    pub fn with_sizes(mut self, sizes: impl IntoIterator<Item = (&'static str, u32)>) -> Kernel {
        self.sizes.extend(sizes);
        self
    }
}

impl std::fmt::Display for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.shader, self.entry)?;
        if !self.formats.is_empty() {
            write!(f, " {}", self.formats.join("+"))?;
        }
        self.constants.iter().chain(&self.sizes).try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// A mistake that is planted into one shader, to show that the self-test notices it.
#[derive(Clone, Copy)]
pub struct Fault {
    /// File in `shaders/`, without `.wgsl`.
    pub shader: &'static str,
    /// A part of its expanded text.
    pub right: &'static str,
    /// The mistake in its place.
    pub wrong: &'static str,
}

impl Fault {
    /// Whether the text of a kernel has the part.
    fn is_in(&self, kernel: &Kernel) -> bool {
        self.shader == kernel.shader
            && shader::expand(kernel.shader, &kernel.formats, &kernel.sizes).contains(self.right)
    }
}

/// A kernel ready to run.
#[derive(Clone)]
pub(super) struct Compiled {
    pub name: Arc<str>,
    pub pipeline: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

/// Identifies the GPU, driver and shaders that compiled pipelines belong to.
pub struct PipelinesKey {
    /// The GPU, as a file's name.
    pub device: String,
    /// A digest that is equal only for the same driver and the same shaders.
    pub digest: [u8; 32],
}

/// The compiled pipeline of each kernel.
#[derive(Default)]
pub(super) struct Cache {
    compiled: Mutex<HashMap<Kernel, Compiled>>,
    /// The driver's own cache of what it compiled, in this run or in earlier ones.
    driver: OnceLock<wgpu::PipelineCache>,
    /// The planted mistake, in tests.
    fault: Mutex<Option<Fault>>,
}

impl Gpu {
    /// Drops every compiled kernel.
    pub(crate) fn forget_kernels(&self) {
        self.pipelines.compiled.lock().expect("lock is not poisoned").clear();
    }

    /// Plants a mistake into the kernels of one shader whose text has the right part, or removes the present one.
    #[doc(hidden)]
    pub fn plant(&self, fault: Option<Fault>) {
        let mut planted = self.pipelines.fault.lock().expect("lock is not poisoned");
        let changed = [planted.take(), fault];
        let mut compiled = self.pipelines.compiled.lock().expect("lock is not poisoned");
        compiled.retain(|kernel, _| changed.iter().flatten().all(|fault| !fault.is_in(kernel)));
        *planted = fault;
    }

    /// The compiled kernel.
    pub(super) fn pipeline(&self, kernel: &Kernel) -> Compiled {
        let known = self.pipelines.compiled.lock().expect("lock is not poisoned").get(kernel).cloned();
        known.unwrap_or_else(|| {
            let compiled = self.compile(kernel);
            self.pipelines
                .compiled
                .lock()
                .expect("lock is not poisoned")
                .insert(kernel.clone(), compiled.clone());
            compiled
        })
    }

    /// Compiles those of `kernels` that are not compiled yet, and the texts of `launched`, in parallel; returns the number of the former.
    pub(super) fn compile_all(&self, mut kernels: Vec<Kernel>, launched: Vec<Entry>) -> usize {
        {
            let compiled = self.pipelines.compiled.lock().expect("lock is not poisoned");
            kernels.retain(|kernel| !compiled.contains_key(kernel));
        }
        #[cfg(not(target_arch = "wasm32"))]
        let (compiled, ()): (Vec<Compiled>, ()) = rayon::join(
            || kernels.par_iter().map(|kernel| self.compile(kernel)).collect(),
            || launched.par_iter().for_each(|entry| self.prepare_cuda(*entry)),
        );
        #[cfg(target_arch = "wasm32")]
        let (compiled, ()): (Vec<Compiled>, ()) = (
            kernels.iter().map(|kernel| self.compile(kernel)).collect(), // a browser compiles in its own process
            launched.iter().for_each(|entry| self.prepare_cuda(*entry)),
        );
        let count = compiled.len();
        self.pipelines
            .compiled
            .lock()
            .expect("lock is not poisoned")
            .extend(kernels.into_iter().zip(compiled));
        count
    }

    /// The number of compiled kernels.
    pub fn compiled(&self) -> usize {
        self.pipelines.compiled.lock().expect("lock is not poisoned").len()
    }

    fn compile(&self, kernel: &Kernel) -> Compiled {
        let label = kernel.to_string();
        let mut text = shader::expand(kernel.shader, &kernel.formats, &kernel.sizes);
        let fault = *self.pipelines.fault.lock().expect("lock is not poisoned");
        if let Some(fault) = fault.filter(|fault| fault.shader == kernel.shader) {
            text = text.replace(fault.right, fault.wrong);
        }
        if cfg!(target_arch = "wasm32") {
            text = shader::for_browsers(&text);
        }
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(&label),
            source: wgpu::ShaderSource::Wgsl(text.into()),
        };
        let module = match self.is_software() {
            true => self.device.create_shader_module(descriptor),
            // SAFETY: the tests run every kernel on the software device with the checks that are off here.
            false => unsafe {
                self.device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked())
            },
        };
        let constants: Vec<_> =
            kernel.constants.iter().map(|&(name, value)| (name, f64::from(value))).collect();
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&label),
            layout: None,
            module: &module,
            entry_point: Some(kernel.entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &constants,
                // Every kernel writes workgroup memory before it reads it.
                zero_initialize_workgroup_memory: false,
            },
            cache: self.pipelines.driver.get(),
        });
        let layout = pipeline.get_bind_group_layout(0);
        Compiled { name: label.into(), pipeline, layout }
    }

    /// The key of [`Gpu::pipelines`]; `None` where the backend cannot export them.
    pub fn pipelines_key(&self) -> Option<PipelinesKey> {
        let has = self.device.features().contains(wgpu::Features::PIPELINE_CACHE);
        let device = wgpu::util::pipeline_cache_key(&self.info).filter(|_| has)?;
        Some(PipelinesKey { device, digest: self.digest() })
    }

    /// A digest that is equal only for the same device, driver, version of this program, and shaders.
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(env!("CARGO_PKG_VERSION"));
        let i = &self.info;
        hash.update(format!("\n{}\n{}\n{}\n", i.name, i.driver, i.driver_info));
        if is_cuda(i) {
            hash.update("CUDA\n"); // the same driver, and another compiler
        }
        shader::SOURCES.iter().for_each(|(_, text)| hash.update(text));
        hash.finalize().into()
    }

    /// Keeps the pipelines that the driver compiles from now on. `earlier` are the bytes that [`Gpu::pipelines`] returned under the same
    /// [`Gpu::pipelines_key`], if any. Call it at most once, before the first kernel; it does nothing without a key.
    ///
    /// # Safety
    /// Drivers trust `earlier`: the bytes must be unchanged.
    pub unsafe fn keep_pipelines(&self, earlier: Option<&[u8]>) {
        if self.pipelines_key().is_none() {
            return;
        }
        let descriptor =
            wgpu::PipelineCacheDescriptor { label: Some("pipelines"), data: earlier, fallback: true };
        // SAFETY: the caller guarantees it; wgpu checks GPU and driver in their header and ignores the bytes of others.
        let cache = unsafe { self.device.create_pipeline_cache(&descriptor) };
        assert!(self.pipelines.driver.set(cache).is_ok(), "called once");
    }

    /// The pipelines that the driver compiled, as bytes for [`Gpu::keep_pipelines`] in a later run. `None` if that was not called or the
    /// driver exports nothing.
    pub fn pipelines(&self) -> Option<Vec<u8>> {
        self.pipelines.driver.get()?.get_data()
    }
}
