//! A Vulkan driver, and what it counts in a pipeline.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{CStr, CString};

use ash::vk;

use crate::pipelines::{Pipeline, Ready};

/// A device of a driver, with all features that these kernels can use.
pub struct Driver {
    device: ash::Device,
    executables: ash::khr::pipeline_executable_properties::Device,
    /// Edges of the matrices of f16 with sums in f32.
    pub edges: Vec<u32>,
    /// Whether its threads have few registers.
    pub few_registers: bool,
    lanes: Option<u32>,
    _library: libloading::Library,
    _entry: ash::Entry,
    _instance: ash::Instance,
}

fn text(chars: &[std::ffi::c_char]) -> String {
    // SAFETY: Vulkan ends its texts by a zero.
    unsafe { CStr::from_ptr(chars.as_ptr()) }.to_string_lossy().into_owned()
}

impl Driver {
    /// Opens the first device of the driver, and prints what it is.
    pub fn open(print: bool) -> Driver {
        // SAFETY: calls of Vulkan as its specification wants them; everything lives as long as the process.
        unsafe {
            let library = libloading::Library::new("libvulkan.so.1").expect("the Vulkan loader is installed");
            let get =
                *library.get::<vk::PFN_vkGetInstanceProcAddr>(b"vkGetInstanceProcAddr").expect("a loader");
            let entry = ash::Entry::from_static_fn(ash::StaticFn { get_instance_proc_addr: get });
            let app = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
            let info = vk::InstanceCreateInfo::default().application_info(&app);
            let instance = entry.create_instance(&info, None).expect("an instance");
            let physical = instance.enumerate_physical_devices().expect("devices");
            let physical = *physical.first().expect("the driver has a device");
            let mut subgroups = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
            let mut driver = vk::PhysicalDeviceDriverProperties::default();
            let mut properties =
                vk::PhysicalDeviceProperties2::default().push_next(&mut subgroups).push_next(&mut driver);
            instance.get_physical_device_properties2(physical, &mut properties);
            let limits = properties.properties.limits;
            let name = text(&properties.properties.device_name);
            let few_registers = rullama_train::gpu::has_few_registers(properties.properties.vendor_id, &name);
            let extensions = instance.enumerate_device_extension_properties(physical).expect("extensions");
            let has = |name: &CStr| extensions.iter().any(|e| e.extension_name_as_c_str() == Ok(name));
            let matrices = has(ash::khr::cooperative_matrix::NAME);
            let robust = has(ash::ext::robustness2::NAME);
            if print {
                println!("# device\t{name}");
                println!("# driver\t{} {}", text(&driver.driver_name), text(&driver.driver_info));
                println!("# subgroups\t{} to {}", subgroups.min_subgroup_size, subgroups.max_subgroup_size);
                println!("# workgroup memory\t{}", limits.max_compute_shared_memory_size);
                println!("# threads of a workgroup\t{}", limits.max_compute_work_group_invocations);
                println!("# storage buffers\t{}", limits.max_per_stage_descriptor_storage_buffers);
                println!("# storage buffer range\t{}", limits.max_storage_buffer_range);
            }
            // Edges of matrices of f16 with sums in f32.
            let mut edges = Vec::new();
            if matrices {
                let queries = ash::khr::cooperative_matrix::Instance::new(&entry, &instance);
                let all = queries.get_physical_device_cooperative_matrix_properties(physical);
                for m in all.expect("properties") {
                    let size = [m.m_size, m.n_size, m.k_size];
                    if print {
                        println!("# matrix\t{size:?} {:?} -> {:?}", m.a_type, m.result_type);
                    }
                    let half = m.a_type == vk::ComponentTypeKHR::FLOAT16;
                    if half && m.result_type == vk::ComponentTypeKHR::FLOAT32 && size == [size[0]; 3] {
                        edges.push(size[0]);
                    }
                }
            }
            let mut v11 = vk::PhysicalDeviceVulkan11Features::default();
            let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
            let mut v13 = vk::PhysicalDeviceVulkan13Features::default();
            let mut coop = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
            let mut robust2 = vk::PhysicalDeviceRobustness2FeaturesEXT::default();
            let mut stats = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default();
            let mut wanted = vec![ash::khr::pipeline_executable_properties::NAME.as_ptr()];
            let mut features = vk::PhysicalDeviceFeatures2::default()
                .push_next(&mut v11)
                .push_next(&mut v12)
                .push_next(&mut v13)
                .push_next(&mut stats);
            if matrices {
                wanted.push(ash::khr::cooperative_matrix::NAME.as_ptr());
                features = features.push_next(&mut coop);
            }
            if robust {
                wanted.push(ash::ext::robustness2::NAME.as_ptr());
                features = features.push_next(&mut robust2);
            }
            instance.get_physical_device_features2(physical, &mut features);
            features.features = vk::PhysicalDeviceFeatures {
                robust_buffer_access: features.features.robust_buffer_access,
                shader_int64: features.features.shader_int64,
                shader_int16: features.features.shader_int16,
                ..Default::default()
            };
            let queue = vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0]);
            let queues = [queue];
            let info = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queues)
                .enabled_extension_names(&wanted)
                .push_next(&mut features);
            let device = instance.create_device(physical, &info, None).expect("a device");
            let executables = ash::khr::pipeline_executable_properties::Device::new(&instance, &device);
            // As src/gpu/lanes.rs requires them.
            let sizes = subgroups.min_subgroup_size..=subgroups.max_subgroup_size;
            let varies = sizes.start() < sizes.end() && sizes.contains(&32) && edges.contains(&16);
            let lanes = env::var("LANES").ok().map(|lanes| lanes.parse().expect("a number"));
            let lanes = lanes.or(varies.then_some(32));
            Driver {
                device,
                executables,
                edges,
                few_registers,
                lanes,
                _library: library,
                _entry: entry,
                _instance: instance,
            }
        }
    }

    /// Compiles a pipeline; returns what the driver counted.
    pub fn compile(
        &self,
        p: &Pipeline,
        ready: &Ready,
        words: &[u32],
    ) -> Result<BTreeMap<String, String>, String> {
        let device = &self.device;
        // SAFETY: calls of Vulkan as its specification wants them.
        unsafe {
            let bindings: Vec<_> = ready
                .bindings
                .iter()
                .map(|(binding, storage)| {
                    let ty = if *storage {
                        vk::DescriptorType::STORAGE_BUFFER
                    } else {
                        vk::DescriptorType::UNIFORM_BUFFER
                    };
                    vk::DescriptorSetLayoutBinding::default()
                        .binding(*binding)
                        .descriptor_type(ty)
                        .descriptor_count(1)
                        .stage_flags(vk::ShaderStageFlags::COMPUTE)
                })
                .collect();
            let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
            let set = device.create_descriptor_set_layout(&info, None).map_err(|e| format!("layout: {e}"))?;
            let sets = [set];
            let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
            let layout = device.create_pipeline_layout(&info, None).map_err(|e| format!("layout: {e}"))?;
            let info = vk::ShaderModuleCreateInfo::default().code(words);
            let module = device.create_shader_module(&info, None).map_err(|e| format!("module: {e}"))?;
            let entry = CString::new(p.entry.clone()).expect("a name");
            let mut required = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default();
            let mut stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(&entry);
            match self.lanes {
                Some(lanes) => {
                    required = required.required_subgroup_size(lanes);
                    stage = stage.push_next(&mut required);
                }
                // wgpu sets it wherever a device is opened with subgroups, which these kernels need.
                None if ["coop8", "coop16", "packed", "software"].contains(&p.tier) => {
                    stage = stage.flags(vk::PipelineShaderStageCreateFlags::ALLOW_VARYING_SUBGROUP_SIZE);
                }
                None => {}
            }
            let info = vk::ComputePipelineCreateInfo::default()
                .flags(vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR)
                .stage(stage)
                .layout(layout);
            let made = device.create_compute_pipelines(vk::PipelineCache::null(), &[info], None);
            let pipeline = made.map_err(|(_, e)| format!("pipeline: {e}"))?[0];
            let info = vk::PipelineInfoKHR::default().pipeline(pipeline);
            let each = self
                .executables
                .get_pipeline_executable_properties(&info)
                .map_err(|e| format!("properties: {e}"))?;
            let mut found = BTreeMap::new();
            for (i, executable) in each.iter().enumerate() {
                found.insert("subgroup".into(), executable.subgroup_size.to_string());
                let info =
                    vk::PipelineExecutableInfoKHR::default().pipeline(pipeline).executable_index(i as u32);
                let counts = self
                    .executables
                    .get_pipeline_executable_statistics(&info)
                    .map_err(|e| format!("counts: {e}"))?;
                for c in counts {
                    use vk::PipelineExecutableStatisticFormatKHR as Format;
                    let value = match c.format {
                        Format::BOOL32 => c.value.b32.to_string(),
                        Format::INT64 => c.value.i64.to_string(),
                        Format::UINT64 => c.value.u64.to_string(),
                        _ => c.value.f64.to_string(),
                    };
                    let prefix = if i > 0 { format!("{i}:") } else { String::new() };
                    found.insert(format!("{prefix}{}", text(&c.name)), value);
                }
            }
            device.destroy_pipeline(pipeline, None);
            device.destroy_shader_module(module, None);
            device.destroy_pipeline_layout(layout, None);
            device.destroy_descriptor_set_layout(set, None);
            Ok(found)
        }
    }
}
