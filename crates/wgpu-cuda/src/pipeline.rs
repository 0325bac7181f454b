//! Shaders, which naga reads, and pipelines, which the driver compiles.

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;

use naga::back::PipelineConstants;
use naga::valid::{Capabilities, ModuleInfo, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use wgpu::custom as c;

use crate::buffer::BufferData;
use crate::driver;
use crate::state::{Raw, State};

/// Bounds of storage are checked.
const CHECKED: &str = "WGPU_CUDA_CHECKED";
/// The folder where a text is kept that the driver refuses.
const DUMP: &str = "WGPU_CUDA_DUMP";

#[derive(Debug)]
pub struct Shader {
    pub parsed: Result<Arc<(naga::Module, ModuleInfo)>, String>,
}

impl Shader {
    pub fn new(source: &wgpu::ShaderSource<'_>) -> Shader {
        let parsed = match source {
            wgpu::ShaderSource::Wgsl(text) => parse(text),
            _ => Err("CUDA's device takes shaders in WGSL only".into()),
        };
        Shader { parsed }
    }
}

impl c::ShaderModuleInterface for Shader {
    fn get_compilation_info(&self) -> Pin<Box<dyn c::ShaderCompilationInfoFuture>> {
        Box::pin(ready(wgpu::CompilationInfo { messages: Vec::new() }))
    }
}

fn parse(text: &str) -> Result<Arc<(naga::Module, ModuleInfo)>, String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    validator.subgroup_stages(ShaderStages::COMPUTE).subgroup_operations(SubgroupOperationSet::all());
    let info = validator.validate(&module).map_err(|e| e.emit_to_string(text))?;
    Ok(Arc::new((module, info)))
}

/// A compiled kernel.
pub struct PipelineData {
    state: Arc<State>,
    module: Raw,
    /// Null where the text was refused.
    pub function: Raw,
    pub params: Vec<naga_ptx::Param>,
    pub threads: [u32; 3],
    /// Whether it allows the launch of the next kernel before it ends.
    pub early: bool,
    pub label: String,
}

impl PipelineData {
    /// Compiles a pipeline; the reason, where that fails.
    pub fn new(
        state: &Arc<State>,
        desc: &wgpu::ComputePipelineDescriptor<'_>,
    ) -> Result<PipelineData, String> {
        let shader = desc.module.as_custom::<Shader>().expect("a shader of CUDA");
        let parsed = shader.parsed.clone()?;
        let (module, info) = &*parsed;
        let constants: PipelineConstants =
            desc.compilation_options.constants.iter().map(|(name, value)| ((*name).into(), *value)).collect();
        let first = module.entry_points.first().map(|entry| entry.name.as_str());
        let entry = desc.entry_point.or(first).ok_or("the shader has no entry point")?;
        let stage = Some((naga::ShaderStage::Compute, entry));
        let (module, info) =
            naga::back::pipeline_constants::process_overrides(module, info, stage, &constants)
                .map_err(|e| e.to_string())?;
        let options = naga_ptx::Options {
            checked: std::env::var_os(CHECKED).is_some(),
            target: state.target,
            ..Default::default()
        };
        let kernel = naga_ptx::translate(&module, &info, entry, &options).map_err(|e| e.to_string())?;
        let label = desc.label.unwrap_or("kernel").to_string();
        state.current();
        let text = format!("// {}\n{}", label.replace('\n', " "), kernel.text);
        let text = driver::with_nul(text).map_err(|e| e.text)?;
        let loaded = state.driver.module(&text).map_err(|e| {
            if let Some(folder) = std::env::var_os(DUMP) {
                let _ = std::fs::write(std::path::Path::new(&folder).join("failed.ptx"), text.as_bytes());
            }
            e.text
        })?;
        let function = state.driver.kernel(loaded, c"main").map_err(|e| e.text)?;
        Ok(PipelineData {
            state: state.clone(),
            module: Raw(loaded),
            function: Raw(function),
            params: kernel.params,
            threads: kernel.threads,
            early: kernel.early,
            label,
        })
    }

    /// Stands for a pipeline that was refused: its dispatches do nothing.
    pub fn refused(state: &Arc<State>, label: &str) -> PipelineData {
        let nothing = Raw(std::ptr::null_mut());
        PipelineData {
            state: state.clone(),
            module: nothing,
            function: nothing,
            params: Vec::new(),
            threads: [1; 3],
            early: false,
            label: label.into(),
        }
    }
}

impl Drop for PipelineData {
    fn drop(&mut self) {
        if self.module.0.is_null() {
            return;
        }
        self.state.current();
        // SAFETY: nothing refers to the module, and no kernel of it runs after the wait.
        unsafe {
            (self.state.driver.synchronize)(self.state.stream.0);
            (self.state.driver.unload)(self.module.0);
        }
    }
}

#[derive(Clone)]
pub struct Pipeline(pub Arc<PipelineData>);

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.label)
    }
}

impl c::ComputePipelineInterface for Pipeline {
    fn get_bind_group_layout(&self, _: u32) -> c::DispatchBindGroupLayout {
        c::DispatchBindGroupLayout::custom(Layout)
    }
}

/// Layouts are not needed: kernels know their bindings.
#[derive(Debug)]
pub struct Layout;
impl c::BindGroupLayoutInterface for Layout {}
impl c::PipelineLayoutInterface for Layout {}

/// A part of a buffer at a binding.
#[derive(Debug)]
pub struct Bound {
    pub binding: u32,
    pub buffer: Arc<BufferData>,
    pub offset: u64,
    pub size: u64,
}

#[derive(Debug, Clone)]
pub struct Group(pub Arc<Vec<Bound>>);
impl c::BindGroupInterface for Group {}
