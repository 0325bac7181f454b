//! The kernels that a device runs, and the number of threads that work is split over.

use std::sync::atomic::Ordering;

use super::{Gpu, GpuError, Kernels};

/// The kernels that products and attention run on, the slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// f32, which every device supports.
    F32,
    /// Operands of products and attention in f16, scaled by powers of two, and sums in f32. Everything else is f32, adapters' gradients too.
    F16,
    /// As [`Tier::F16`], on cooperative matrices of 8×8, which Apple's GPUs have.
    Cooperative8,
    /// All products on cooperative matrices of 16×16, adapters' gradients too.
    Cooperative,
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Tier::F32 => "f32",
            Tier::F16 => "f16 operands",
            Tier::Cooperative8 => "f16 operands on 8×8 cooperative matrices",
            Tier::Cooperative => "f16 operands on 16×16 cooperative matrices",
        })
    }
}

/// Cooperative matrices of f16 with sums in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrices {
    /// Rows, columns and steps: 16, or 8 on Apple's GPUs.
    pub edge: u32,
    /// Lanes of the subgroup that holds one.
    pub lanes: u32,
}

impl std::fmt::Display for Matrices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "f16 on {0}×{0} cooperative matrices", self.edge)
    }
}

impl Gpu {
    /// The kernels that products run on.
    pub fn tier(&self) -> Tier {
        *self.tier.lock().expect("lock is not poisoned")
    }

    /// Whether all products, and attention, run on cooperative matrices of 16×16: f16 operands with scaled rows, f32 sums.
    pub fn cooperative(&self) -> bool {
        self.tier() == Tier::Cooperative
    }

    /// Whether the device supports `tier`.
    pub fn has_tier(&self, tier: Tier) -> bool {
        match tier {
            Tier::F32 => true,
            Tier::F16 => self.half(),
            Tier::Cooperative8 => self.matrices.is_some_and(|m| m.edge == 8),
            Tier::Cooperative => self.matrices.is_some_and(|m| m.edge == 16),
        }
    }

    /// Why the self-test of the cooperative matrices that the device reports failed; they are not used then.
    pub fn failed_self_test(&self) -> Option<&str> {
        self.failed_self_test.as_deref()
    }

    /// Stops using the device's cooperative matrices, whose self-test failed for `reason`.
    pub(crate) fn reject_matrices(&mut self, reason: String) {
        self.matrices = None;
        self.failed_self_test = Some(reason);
        self.set_tier(self.best_tier());
    }

    /// The cooperative matrices that products run on now.
    pub fn matrices(&self) -> Option<Matrices> {
        self.matrices.filter(|_| [Tier::Cooperative, Tier::Cooperative8].contains(&self.tier()))
    }

    /// The fastest tier that the device supports; f32 on a software device, since CPUs do not multiply f16.
    pub fn best_tier(&self) -> Tier {
        let tiers = [Tier::Cooperative, Tier::Cooperative8, Tier::F16];
        let best = tiers.into_iter().find(|tier| self.has_tier(*tier) && !self.is_software());
        best.unwrap_or(Tier::F32)
    }

    /// Uses `tier` from now on if the device supports it; does nothing otherwise. Existing trainers keep their buffers.
    pub fn set_tier(&self, tier: Tier) {
        if self.has_tier(tier) {
            *self.tier.lock().expect("lock is not poisoned") = tier;
        }
    }

    /// Uses the kernels that a recipe asks for.
    ///
    /// # Errors
    /// [`GpuError::NoTier`] if the device does not support them, [`GpuError::FailedSelfTest`] if its self-test failed.
    pub fn choose(&self, kernels: Kernels) -> Result<(), GpuError> {
        let tier = match kernels {
            Kernels::Auto => self.best_tier(),
            Kernels::F32 => Tier::F32,
            Kernels::F16 => Tier::F16,
            Kernels::Cooperative if self.has_tier(Tier::Cooperative8) => Tier::Cooperative8,
            Kernels::Cooperative => Tier::Cooperative,
        };
        if let (Tier::Cooperative, Some(reason)) = (tier, &self.failed_self_test) {
            return Err(GpuError::FailedSelfTest { device: self.info.name.clone(), reason: reason.clone() });
        }
        if !self.has_tier(tier) {
            return Err(GpuError::NoTier {
                device: self.info.name.clone(),
                wanted: tier,
                best: self.best_tier(),
            });
        }
        self.set_tier(tier);
        Ok(())
    }

    /// Lanes of a subgroup on a software renderer, where it is a SIMD register of the CPU: the variants `software` are for that.
    pub fn simd(&self) -> Option<u32> {
        self.simd.load(Ordering::Relaxed).then_some(self.info.subgroup_min_size)
    }

    /// Turns the variants `software` off, or on again if the device supports them: see [`Gpu::simd`].
    pub fn set_simd(&self, on: bool) {
        self.simd.store(on && self.has_simd, Ordering::Relaxed);
    }

    /// Whether shaders may compute in f16.
    pub fn half(&self) -> bool {
        self.device.features().contains(wgpu::Features::SHADER_F16)
    }

    /// Threads of a workgroup that share the work of one row. A software device runs them one after the other.
    pub fn threads_to_share(&self) -> usize {
        let limits = &self.limits;
        match self.workgroups_to_fill() {
            0 => 256,
            _ => {
                limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x) as usize
            }
        }
    }

    /// Workgroups of 64 threads that keep the device busy. Products with fewer tiles are split along their sums.
    pub fn workgroups_to_fill(&self) -> usize {
        self.workgroups_to_fill.load(Ordering::Relaxed)
    }

    /// Sets [`Gpu::workgroups_to_fill`]: for tests of split products on any device.
    pub fn set_workgroups_to_fill(&self, workgroups: usize) {
        self.workgroups_to_fill.store(workgroups, Ordering::Relaxed);
    }
}
