//! Compiled kernels, made ahead and in parallel or at first use, and kept: for this run, and where the backend gives them out
//! ([`Gpu::pipelines`]) for later ones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

#[cfg(not(target_arch = "wasm32"))]
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::{Gpu, shader};
use crate::base::formats::GgmlType;

/// One entry point of one shader file, for its weight formats and one set of constants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// File name in `shaders/` without `.wgsl`.
    pub shader: &'static str,
    /// Entry point.
    pub entry: &'static str,
    /// What `#import weight` or `#import weights` stands for.
    pub formats: Vec<GgmlType>,
    /// Values of the shader's `override` declarations.
    pub constants: Vec<(&'static str, u32)>,
    /// Numbers that the shader's text is made for; see [`shader`].
    pub sizes: Vec<(&'static str, u32)>,
}

impl Kernel {
    /// A kernel without weight format or constants.
    pub fn new(shader: &'static str, entry: &'static str) -> Kernel {
        Kernel { shader, entry, formats: Vec::new(), constants: Vec::new(), sizes: Vec::new() }
    }

    /// The same for weights of `format`, or for one more matrix of it.
    pub fn with_format(mut self, format: GgmlType) -> Kernel {
        self.formats.push(format);
        self
    }

    /// The same with `override name = value`.
    pub fn with_constant(mut self, name: &'static str, value: u32) -> Kernel {
        self.constants.push((name, value));
        self
    }

    /// The same for subgroups of `lanes`, a multiple of 4, that are SIMD registers: see [`Gpu::simd`].
    pub fn with_lanes(self, lanes: u32) -> Kernel {
        self.with_size("LANES", lanes).with_size("QUADS", lanes / 4)
    }

    /// The same with `{name}` standing for `value` in the shader's text.
    pub fn with_size(mut self, name: &'static str, value: u32) -> Kernel {
        self.sizes.push((name, value));
        self
    }

    /// The same with several of them.
    pub fn with_sizes(mut self, sizes: impl IntoIterator<Item = (&'static str, u32)>) -> Kernel {
        self.sizes.extend(sizes);
        self
    }
}

impl std::fmt::Display for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.shader, self.entry)?;
        if !self.formats.is_empty() {
            write!(f, " {}", GgmlType::names(&self.formats).replace(", ", "+"))?;
        }
        self.constants.iter().chain(&self.sizes).try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// A kernel ready to run.
#[derive(Clone)]
pub(super) struct Compiled {
    pub name: Arc<str>,
    pub pipeline: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

/// What compiled pipelines can be used for.
pub struct PipelinesKey {
    /// The GPU, as a file's name.
    pub device: String,
    /// Equal only for the same driver, and the same shaders.
    pub digest: [u8; 32],
}

/// Pipelines by kernel.
#[derive(Default)]
pub(super) struct Cache {
    compiled: Mutex<HashMap<Kernel, Compiled>>,
    /// What the driver compiled, in this run or in earlier ones.
    of_driver: OnceLock<wgpu::PipelineCache>,
}

impl Cache {
    /// Forgets every kernel.
    pub fn clear(&self) {
        self.compiled.lock().expect("held for a look only").clear();
    }
}

impl Gpu {
    /// The compiled kernel.
    pub(super) fn pipeline(&self, kernel: &Kernel) -> Compiled {
        let known = self.pipelines.compiled.lock().expect("held for a look only").get(kernel).cloned();
        known.unwrap_or_else(|| {
            let compiled = self.compile(kernel);
            self.pipelines
                .compiled
                .lock()
                .expect("held for a move only")
                .insert(kernel.clone(), compiled.clone());
            compiled
        })
    }

    /// Compiles those of `kernels` that are not yet, side by side; how many these were.
    pub(super) fn compile_all(&self, mut kernels: Vec<Kernel>) -> usize {
        {
            let compiled = self.pipelines.compiled.lock().expect("held for a look only");
            kernels.retain(|kernel| !compiled.contains_key(kernel));
        }
        #[cfg(not(target_arch = "wasm32"))]
        let each = kernels.par_iter();
        #[cfg(target_arch = "wasm32")]
        let each = kernels.iter(); // a browser compiles in a process of its own
        let compiled: Vec<Compiled> = each.map(|kernel| self.compile(kernel)).collect();
        let count = compiled.len();
        self.pipelines
            .compiled
            .lock()
            .expect("held for a move only")
            .extend(kernels.into_iter().zip(compiled));
        count
    }

    /// How many kernels are compiled.
    pub fn compiled(&self) -> usize {
        self.pipelines.compiled.lock().expect("held for a look only").len()
    }

    fn compile(&self, kernel: &Kernel) -> Compiled {
        let label = kernel.to_string();
        let text = shader::expand(kernel.shader, &kernel.formats, &kernel.sizes);
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(&label),
            source: wgpu::ShaderSource::Wgsl(text.into()),
        };
        let module = match self.is_software() {
            true => self.device.create_shader_module(descriptor),
            // SAFETY: the software device runs every kernel's tests with the checks that are left out here.
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
            cache: self.pipelines.of_driver.get(),
        });
        let layout = pipeline.get_bind_group_layout(0);
        Compiled { name: label.into(), pipeline, layout }
    }

    /// What [`Gpu::pipelines`] are for; `None` where the backend gives nothing.
    pub fn pipelines_key(&self) -> Option<PipelinesKey> {
        let has = self.device.features().contains(wgpu::Features::PIPELINE_CACHE);
        let device = wgpu::util::pipeline_cache_key(&self.info).filter(|_| has)?;
        let mut hash = Sha256::new();
        hash.update(env!("CARGO_PKG_VERSION"));
        let i = &self.info;
        hash.update(format!("\n{}\n{}\n{}\n", i.name, i.driver, i.driver_info));
        shader::SOURCES.iter().for_each(|(_, text)| hash.update(text));
        Some(PipelinesKey { device, digest: hash.finalize().into() })
    }

    /// Keeps what the driver compiles from now on, beside `earlier`: what [`Gpu::pipelines`] gave under the same
    /// [`Gpu::pipelines_key`], or nothing. Called at most once, before the first kernel; does nothing without a key.
    ///
    /// # Safety
    /// Drivers trust these bytes: they must be unchanged.
    pub unsafe fn keep_pipelines(&self, earlier: Option<&[u8]>) {
        if self.pipelines_key().is_none() {
            return;
        }
        let descriptor =
            wgpu::PipelineCacheDescriptor { label: Some("pipelines"), data: earlier, fallback: true };
        // SAFETY: as the caller says; wgpu looks at the GPU and driver in their header, and takes nothing of other ones.
        let cache = unsafe { self.device.create_pipeline_cache(&descriptor) };
        assert!(self.pipelines.of_driver.set(cache).is_ok(), "called once");
    }

    /// What the driver compiled, for [`Gpu::keep_pipelines`] of a later run; `None` where that was not called, or the driver
    /// gives nothing.
    pub fn pipelines(&self) -> Option<Vec<u8>> {
        self.pipelines.of_driver.get()?.get_data()
    }
}
