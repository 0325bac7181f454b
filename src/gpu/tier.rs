//! What products compute with, and for how many threads work is split.

use std::sync::atomic::Ordering;

use super::{Gpu, GpuError, Kernels};

/// What products compute with, the slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// f32: what every device does.
    F32,
    /// Operands of products and of attention in f16, scaled by powers of two, and sums in f32; the rest, adapters' gradients too, in f32.
    F16,
    /// The same with products on cooperative matrices of 8×8, which Apple's GPUs have.
    Cooperative8,
    /// All on cooperative matrices of 16×16, adapters' gradients as well.
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

/// Cooperative matrices of f16 that add up in f32.
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
    /// What products compute with.
    pub fn tier(&self) -> Tier {
        *self.tier.lock().expect("the lock is held for a move only")
    }

    /// Whether all products, and attention, run on cooperative matrices of 16×16: f16 operands with scaled rows, f32 sums.
    pub fn cooperative(&self) -> bool {
        self.tier() == Tier::Cooperative
    }

    /// Whether the device can compute with `tier`.
    pub fn has_tier(&self, tier: Tier) -> bool {
        match tier {
            Tier::F32 => true,
            Tier::F16 => self.half(),
            Tier::Cooperative8 => self.matrices.is_some_and(|m| m.edge == 8),
            Tier::Cooperative => self.matrices.is_some_and(|m| m.edge == 16),
        }
    }

    /// What went wrong when a device that reports cooperative matrices tried them, which it then does without.
    pub fn failed_trial(&self) -> Option<&str> {
        self.failed_trial.as_deref()
    }

    /// The cooperative matrices that products run on now.
    pub fn matrices(&self) -> Option<Matrices> {
        self.matrices.filter(|_| [Tier::Cooperative, Tier::Cooperative8].contains(&self.tier()))
    }

    /// The fastest that the device has; on a CPU, which has no f16 to multiply, f32.
    pub fn best_tier(&self) -> Tier {
        let tiers = [Tier::Cooperative, Tier::Cooperative8, Tier::F16];
        let best = tiers.into_iter().find(|tier| self.has_tier(*tier) && !self.is_software());
        best.unwrap_or(Tier::F32)
    }

    /// Computes with `tier` from now on, if the device has it, else as before. Trainers made before keep what they have.
    pub fn set_tier(&self, tier: Tier) {
        if self.has_tier(tier) {
            *self.tier.lock().expect("the lock is held for a move only") = tier;
        }
    }

    /// Computes with what a recipe asks for.
    ///
    /// # Errors
    /// [`GpuError::NoTier`] where the device has it not, [`GpuError::FailedTrial`] where it turned out not to have it.
    pub fn choose(&self, kernels: Kernels) -> Result<(), GpuError> {
        let tier = match kernels {
            Kernels::Auto => self.best_tier(),
            Kernels::F32 => Tier::F32,
            Kernels::F16 => Tier::F16,
            Kernels::Cooperative if self.has_tier(Tier::Cooperative8) => Tier::Cooperative8,
            Kernels::Cooperative => Tier::Cooperative,
        };
        if let (Tier::Cooperative, Some(reason)) = (tier, &self.failed_trial) {
            return Err(GpuError::FailedTrial { device: self.info.name.clone(), reason: reason.clone() });
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

    /// Lanes of a subgroup, where it is a SIMD register of a CPU that plays a GPU: shaders/simd_*.wgsl are for that.
    pub fn simd(&self) -> Option<u32> {
        self.simd.load(Ordering::Relaxed).then_some(self.info.subgroup_min_size)
    }

    /// Turns the kernels for [`Gpu::simd`] off, or on again where the device is such a CPU.
    pub fn set_simd(&self, on: bool) {
        self.simd.store(on && self.has_simd, Ordering::Relaxed);
    }

    /// Whether shaders may compute in f16.
    pub fn half(&self) -> bool {
        self.device.features().contains(wgpu::Features::SHADER_F16)
    }

    /// Threads of a workgroup that share work which one has to do; a software device runs them one after the other.
    pub fn threads_to_share(&self) -> usize {
        let limits = &self.limits;
        match self.workgroups_to_fill() {
            0 => 256,
            _ => {
                limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x) as usize
            }
        }
    }

    /// Workgroups of 64 threads that keep the device busy; products with fewer tiles are split along their sums.
    pub fn workgroups_to_fill(&self) -> usize {
        self.workgroups_to_fill.load(Ordering::Relaxed)
    }

    /// Sets [`Gpu::workgroups_to_fill`]: for tests of split products on any device.
    pub fn set_workgroups_to_fill(&self, workgroups: usize) {
        self.workgroups_to_fill.store(workgroups, Ordering::Relaxed);
    }
}
