//! Compiled kernels, made at first use and kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::{Gpu, shader};
use crate::weights::quant::GgmlType;

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

/// Pipelines by kernel.
#[derive(Default)]
pub(super) struct Cache(Mutex<HashMap<Kernel, Compiled>>);

impl Gpu {
    /// The compiled kernel.
    pub(super) fn pipeline(&self, kernel: &Kernel) -> Compiled {
        let mut cache = self.pipelines.0.lock().expect("pipeline creation reports errors through the device");
        if let Some(compiled) = cache.get(kernel) {
            return compiled.clone();
        }
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
            cache: None,
        });
        let layout = pipeline.get_bind_group_layout(0);
        let compiled = Compiled { name: label.into(), pipeline, layout };
        cache.insert(kernel.clone(), compiled.clone());
        compiled
    }
}
