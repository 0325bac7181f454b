//! Buffers that have an address. They are cut from slabs: a driver makes only so many allocations.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ash::vk;
use wgpu::hal::api::Vulkan as Hal;

use super::Shared;

/// Bytes of a slab of small buffers. A buffer of half as many has a slab of its own.
const SLAB: u64 = 64 << 20;

/// The slabs of a device.
pub struct Memory {
    device: ash::Device,
    types: vk::PhysicalDeviceMemoryProperties,
    /// The slab that small buffers are cut from, and the bytes used.
    current: Mutex<Option<(Arc<Slab>, u64)>>,
    /// The slab and the address of every buffer that lives.
    places: Shared<HashMap<vk::Buffer, (Arc<Slab>, u64)>>,
    /// Bytes of all buffers that live.
    allocated: Arc<AtomicU64>,
}

/// One allocation. The last buffer in it frees it.
struct Slab {
    device: ash::Device,
    memory: vk::DeviceMemory,
    bytes: u64,
}

impl Memory {
    pub fn new(instance: &ash::Instance, adapter: vk::PhysicalDevice, device: &ash::Device) -> Memory {
        Memory {
            device: device.clone(),
            // SAFETY: the adapter is the device's.
            types: unsafe { instance.get_physical_device_memory_properties(adapter) },
            current: Mutex::default(),
            places: Shared::default(),
            allocated: Arc::default(),
        }
    }

    pub fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    pub fn buffer(
        &self,
        device: &wgpu::Device,
        descriptor: &wgpu::BufferDescriptor,
    ) -> Result<wgpu::Buffer, vk::Result> {
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST
            | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
        let info = vk::BufferCreateInfo::default().size(descriptor.size).usage(usage);
        // SAFETY: the device lives, and the callback below destroys the buffer.
        let raw = unsafe { self.device.create_buffer(&info, None) }?;
        // SAFETY: the buffer was just made.
        let needs = unsafe { self.device.get_buffer_memory_requirements(raw) };
        let placed = self.place(&needs).and_then(|(slab, at)| {
            // SAFETY: the part of the slab belongs to this buffer alone.
            unsafe { self.device.bind_buffer_memory(raw, slab.memory, at) }.map(|()| slab)
        });
        let slab = match placed {
            Ok(slab) => slab,
            Err(error) => {
                // SAFETY: nobody else knows it.
                unsafe { self.device.destroy_buffer(raw, None) };
                return Err(error);
            }
        };
        let info = vk::BufferDeviceAddressInfo::default().buffer(raw);
        // SAFETY: the buffer has memory, and the usage for it.
        let address = unsafe { self.device.get_buffer_device_address(&info) };
        self.places.lock().expect("lock is not poisoned").insert(raw, (slab, address));
        self.allocated.fetch_add(needs.size, Ordering::Relaxed);
        let (vulkan, places, allocated) = (self.device.clone(), self.places.clone(), self.allocated.clone());
        let drop = Box::new(move || {
            // SAFETY: wgpu drops the buffer after its last use, while its device lives.
            unsafe { vulkan.destroy_buffer(raw, None) };
            let place = places.lock().expect("lock is not poisoned").remove(&raw);
            std::mem::drop(place); // frees the slab, where it was the last
            allocated.fetch_sub(needs.size, Ordering::Relaxed);
        });
        // SAFETY: the buffer has memory and the usages of the descriptor.
        Ok(unsafe {
            let hal = wgpu::hal::vulkan::Buffer::from_raw_externally_owned(raw, drop);
            device.create_buffer_from_hal::<Hal>(hal, descriptor)
        })
    }

    /// A part of a slab that meets `needs`.
    fn place(&self, needs: &vk::MemoryRequirements) -> Result<(Arc<Slab>, u64), vk::Result> {
        if needs.size >= SLAB / 2 {
            return Ok((self.slab(needs.size, needs.memory_type_bits)?, 0));
        }
        let mut current = self.current.lock().expect("lock is not poisoned");
        if let Some((slab, used)) = current.as_mut() {
            let at = used.next_multiple_of(needs.alignment);
            if at + needs.size <= slab.bytes {
                *used = at + needs.size;
                return Ok((slab.clone(), at));
            }
        }
        let slab = self.slab(SLAB, needs.memory_type_bits)?;
        *current = Some((slab.clone(), needs.size));
        Ok((slab, 0))
    }

    fn slab(&self, bytes: u64, allowed: u32) -> Result<Arc<Slab>, vk::Result> {
        let local = |i: &usize| {
            let flags = self.types.memory_types[*i].property_flags;
            allowed & 1 << i != 0 && flags.contains(vk::MemoryPropertyFlags::DEVICE_LOCAL)
        };
        let ty = (0..self.types.memory_type_count as usize).find(local);
        let ty = ty.ok_or(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY)?;
        let mut flags = vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(bytes)
            .memory_type_index(ty as u32)
            .push_next(&mut flags);
        // SAFETY: the slab frees it.
        let memory = unsafe { self.device.allocate_memory(&info, None) }?;
        Ok(Arc::new(Slab { device: self.device.clone(), memory, bytes }))
    }

    /// The addresses of parts of buffers, which begin at the bytes that stand beside them.
    pub fn addresses(&self, parts: &[(wgpu::Buffer, u64)]) -> Result<Vec<u64>, String> {
        let places = self.places.lock().expect("lock is not poisoned");
        let address = |(buffer, at): &(wgpu::Buffer, u64)| {
            // SAFETY: the handle is only compared.
            let raw = unsafe { buffer.as_hal::<Hal>().map(|hal| hal.raw_handle()) };
            raw.and_then(|raw| places.get(&raw)).map(|(_, address)| address + at)
        };
        parts
            .iter()
            .map(address)
            .collect::<Option<_>>()
            .ok_or("a buffer of CUDA's kernels has no address".into())
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: its last buffer is gone.
        unsafe { self.device.free_memory(self.memory, None) };
    }
}
