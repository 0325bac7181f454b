//! Which kernels a device runs: one value, chosen when the device is opened and never changed. Nothing else knows tiers.

use std::sync::RwLock;

use super::backend::{AMD, INTEL, QUALCOMM};
use super::{Gpu, GpuError, KernelSetting};

/// Matrix instructions of CUDA's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixInstructions {
    /// `mma.sync`, of compute capability 8.0 and newer.
    Mma,
    /// `wgmma`, of compute capability 9.0.
    Wgmma,
}

/// CUDA's kernels, and the least size of products that they compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InCuda {
    /// Instructions of the kernels for products and attention.
    pub instructions: MatrixInstructions,
    /// Tokens: to make panels of a matrix takes as long as to multiply a few hundred tokens by it.
    pub tokens: usize,
    /// Rows of an expert, on average, for the same reason.
    pub expert_rows: usize,
    /// Blocks of 128 tokens and 256 columns: with fewer, too many of the GPU's multiprocessors have nothing to do.
    pub blocks: usize,
    /// Multiplications: to make the panels is a dispatch of its own.
    pub multiplications: u64,
}

impl InCuda {
    /// The least size on a GPU with so many multiprocessors. On an H100, which has 132, a step of e2b of 512 tokens takes 0.92 of the time that
    /// it takes with only its output projection in CUDA, and one of 8192 tokens the least of those that were tried.
    fn where_worth(instructions: MatrixInstructions, multiprocessors: usize) -> InCuda {
        let blocks = (24 * multiprocessors).div_ceil(100);
        InCuda { instructions, tokens: 256, expert_rows: 384, blocks, multiplications: 1_000_000_000 }
    }
}

/// Operands of products and of attention, the slowest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tier {
    /// f32, which every device supports.
    #[default]
    F32,
    /// Operands of products and attention in f16, scaled by powers of two, and sums in f32. Everything else is f32, adapters'
    /// gradients too.
    F16,
    /// As [`Tier::F16`], on cooperative matrices of 8×8, which Apple's GPUs have.
    Coop8,
    /// All products on cooperative matrices of 16×16, adapters' gradients too; activations that products read are stored as f16
    /// tiles.
    Coop16,
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Tier::F32 => "f32",
            Tier::F16 => "f16 operands",
            Tier::Coop8 => "f16 operands on 8×8 cooperative matrices",
            Tier::Coop16 => "f16 operands on 16×16 cooperative matrices",
        })
    }
}

/// The kernels that a device runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernels {
    tier: Tier,
    matrix_lanes: u32,
    software_lanes: Option<u32>,
    workgroups_to_fill: usize,
    orders_storage: bool,
    few_registers: bool,
    starts_early: bool,
    cuda: Option<InCuda>,
}

/// The variant of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// Rows of f32; `half` where they become f16 in registers.
    Tiled {
        /// Whether operands are f16.
        half: bool,
    },
    /// Cooperative matrices of 8×8, held by subgroups of so many lanes.
    Coop8 {
        /// Lanes of a subgroup.
        lanes: u32,
    },
    /// Cooperative matrices of 16×16, held by subgroups of 32 lanes.
    Coop16,
}

impl std::fmt::Display for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let software = if self.software_lanes.is_some() { ", for software renderers" } else { "" };
        let cuda = match self.cuda.map(|cuda| cuda.instructions) {
            None => "",
            Some(MatrixInstructions::Mma) => ", long products, attention and delta nets in CUDA by mma.sync",
            Some(MatrixInstructions::Wgmma) => ", long products, attention and delta nets in CUDA",
        };
        write!(f, "{}{software}{cuda}", self.tier)
    }
}

impl Kernels {
    /// Operands of products and attention.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// The variant that products take.
    pub fn products(&self) -> Products {
        match self.tier {
            Tier::F32 => Products::Tiled { half: false },
            Tier::F16 => Products::Tiled { half: true },
            Tier::Coop8 => Products::Coop8 { lanes: self.matrix_lanes },
            Tier::Coop16 => Products::Coop16,
        }
    }

    /// Whether products and attention multiply f16.
    pub fn half_operands(&self) -> bool {
        self.tier != Tier::F32
    }

    /// Whether products read f16 tiles, so that activations are stored as such where nothing else reads them.
    pub fn reads_tiles(&self) -> bool {
        self.tier == Tier::Coop16
    }

    /// Whether kernels scale the rows of f32 operands themselves on the way to f16.
    pub fn scales_rows(&self) -> bool {
        [Tier::F16, Tier::Coop8].contains(&self.tier)
    }

    /// The cooperative matrices that products run on; `None` without.
    pub fn matrices(&self) -> Option<Matrices> {
        let edge = match self.tier {
            Tier::F32 | Tier::F16 => return None,
            Tier::Coop8 => 8,
            Tier::Coop16 => 16,
        };
        Some(Matrices { edge, lanes: self.matrix_lanes })
    }

    /// Multiple that the rank of an adapter is padded to.
    pub fn rank_multiple(&self) -> usize {
        if self.tier == Tier::Coop16 { 16 } else { 4 }
    }

    /// Rows of a tile of rows that are grouped by expert. A software renderer, where rows that fill tiles cost as much as others,
    /// takes the fewest that a kernel can.
    pub fn expert_tile(&self) -> usize {
        match self.tier {
            Tier::Coop16 => 128,
            Tier::F32 if self.software_lanes.is_some() => 32,
            _ => 64,
        }
    }

    /// Lanes of a subgroup on a software renderer, where it is a SIMD register of the CPU: the variants `software` are for that.
    pub fn software_lanes(&self) -> Option<u32> {
        self.software_lanes
    }

    /// Workgroups of 64 threads that keep the device busy; products with fewer tiles are split along their sums. 0 on a software
    /// device: nothing is split.
    pub fn workgroups_to_fill(&self) -> usize {
        self.workgroups_to_fill
    }

    /// CUDA's kernels; `None` where none runs.
    pub fn cuda(&self) -> Option<InCuda> {
        self.cuda
    }

    /// Matrix instructions of CUDA's kernels.
    ///
    /// # Panics
    /// If [`Kernels::cuda`] is `None`.
    pub fn matrix_instructions(&self) -> MatrixInstructions {
        self.cuda.expect("CUDA's kernels run").instructions
    }

    /// Whether products of one row multiply integers in bytes: devices with cooperative matrices of 16×16 have an instruction for it.
    pub fn bytes(&self) -> bool {
        self.tier == Tier::Coop16
    }

    /// Whether a barrier orders storage for the whole device, so that the last workgroup to finish a part of a sum can add up the parts: where
    /// there are matrices of 16×16, all drivers do that.
    pub fn orders_storage(&self) -> bool {
        self.orders_storage
    }

    /// Whether a thread has about 100 registers, not 255: attention with long heads makes its sums in parts then.
    pub fn few_registers(&self) -> bool {
        self.few_registers
    }

    /// Whether kernels of decoding start before the one ahead has ended, and load weights until then: on CUDA's device, with Hopper's GPUs.
    pub fn starts_early(&self) -> bool {
        self.starts_early
    }

    /// These kernels without those of CUDA.
    pub fn without_cuda(self) -> Kernels {
        Kernels { cuda: None, ..self }
    }

    /// These kernels, with all products in CUDA that its kernels can compute, where there are any.
    pub fn all_in_cuda(self) -> Option<Kernels> {
        self.cuda.map(|cuda| Kernels {
            cuda: Some(InCuda { tokens: 0, expert_rows: 0, blocks: 0, multiplications: 0, ..cuda }),
            ..self
        })
    }

    /// These kernels without the variants `software`: what other devices run.
    pub fn without_software(self) -> Kernels {
        Kernels { software_lanes: None, ..self }
    }

    /// These kernels, with products split as on a device that `workgroups` workgroups keep busy.
    pub fn filling(self, workgroups: usize) -> Kernels {
        Kernels { workgroups_to_fill: workgroups, ..self }
    }

    /// These kernels, as on a device whose threads have few registers.
    #[must_use]
    pub fn with_few_registers(self) -> Kernels {
        Kernels { few_registers: true, ..self }
    }

    /// These kernels, as on a device that orders storage.
    pub fn ordering_storage(self) -> Kernels {
        Kernels { orders_storage: true, ..self }
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

/// Whether threads of a GPU have so few registers that attention with long heads spills in its usual form: those of Intel's, Apple's and
/// Qualcomm's do in their compilers (docs/precision.md), those of AMD's and NVIDIA's do not. Of others that is not known.
pub fn has_few_registers(vendor: u32, name: &str) -> bool {
    [INTEL, QUALCOMM].contains(&vendor) || name.starts_with("Apple")
}

impl Gpu {
    /// The kernels that this device runs.
    pub fn kernels(&self) -> Kernels {
        self.kernels
    }

    /// A handle of the device that runs other kernels, and makes the usual choices.
    #[must_use]
    pub fn with_kernels(&self, kernels: Kernels) -> Gpu {
        Gpu { shared: self.shared.clone(), kernels, choices: RwLock::default(), longest: self.longest }
    }

    /// The kernels of `tier`; `None` where the device does not support them.
    pub fn kernels_of(&self, tier: Tier) -> Option<Kernels> {
        let supported = match tier {
            Tier::F32 => true,
            // Without matrices, the self-test was that of f16.
            Tier::F16 => self.half() && (self.matrices.is_some() || self.failed_self_test().is_none()),
            Tier::Coop8 => self.usable_matrices().is_some_and(|m| m.edge == 8),
            Tier::Coop16 => self.usable_matrices().is_some_and(|m| m.edge == 16),
        };
        supported.then_some(Kernels {
            tier,
            matrix_lanes: self.usable_matrices().map_or(0, |m| m.lanes),
            software_lanes: self.software.then_some(self.info.subgroup_min_size),
            // A software device has only a few cores, and each dispatch is expensive.
            workgroups_to_fill: if self.is_software() { 0 } else { 4096 },
            orders_storage: tier == Tier::Coop16,
            few_registers: has_few_registers(self.info.vendor, &self.info.name),
            starts_early: self.matrix_instructions() == Some(MatrixInstructions::Wgmma),
            cuda: self
                .matrix_instructions()
                .filter(|_| tier == Tier::Coop16)
                .map(|instructions| InCuda::where_worth(instructions, self.multiprocessors())),
        })
    }

    /// The fastest kernels that the device supports; f32 on a software device, since CPUs do not multiply f16.
    pub fn best_kernels(&self) -> Kernels {
        self.all_kernels()[0]
    }

    /// All kernels that `auto` may run on the device, the fastest first as far as is known without measuring. Those in f32 run on every device.
    pub fn all_kernels(&self) -> Vec<Kernels> {
        let tiers = match () {
            () if self.is_software() => &[Tier::F32][..],
            // Where f32 can issue twice a cycle, products take up to 1.77 times as long in f16: docs/precision.md.
            () if self.info.vendor == AMD => &[Tier::Coop16, Tier::Coop8, Tier::F32, Tier::F16],
            () => &[Tier::Coop16, Tier::Coop8, Tier::F16, Tier::F32],
        };
        let mut all: Vec<Kernels> = tiers.iter().filter_map(|tier| self.kernels_of(*tier)).collect();
        let software = all.iter().find(|kernels| kernels.software_lanes.is_some()).copied();
        all.extend(software.map(Kernels::without_software));
        let without = all.first().filter(|best| best.cuda.is_some()).map(|best| best.without_cuda());
        all.splice(1..1, without);
        all
    }

    /// The device running the kernels that a recipe asks for.
    ///
    /// # Errors
    /// [`GpuError::NoTier`] if the device does not support them, [`GpuError::FailedSelfTest`] if its self-test failed.
    pub fn running(&self, setting: KernelSetting) -> Result<Gpu, GpuError> {
        let tier = match setting {
            KernelSetting::Auto => self.best_kernels().tier(),
            KernelSetting::F32 => Tier::F32,
            KernelSetting::F16 => Tier::F16,
            KernelSetting::Cooperative if self.kernels_of(Tier::Coop8).is_some() => Tier::Coop8,
            KernelSetting::Cooperative => Tier::Coop16,
        };
        if let (Tier::Coop16, Some(reason)) = (tier, self.failed_self_test()) {
            return Err(GpuError::FailedSelfTest { device: self.info.name.clone(), reason: reason.into() });
        }
        let kernels = self.kernels_of(tier).ok_or_else(|| GpuError::NoTier {
            device: self.info.name.clone(),
            wanted: tier,
            best: self.best_kernels().tier(),
        })?;
        Ok(self.with_kernels(match setting {
            KernelSetting::Auto => kernels,
            _ => kernels.without_cuda(),
        }))
    }

    /// The cooperative matrices that the device reports and that its self-test did not reject.
    fn usable_matrices(&self) -> Option<Matrices> {
        self.matrices.filter(|_| self.failed_self_test().is_none())
    }

    /// Why the self-test of the cooperative matrices that the device reports, or of f16 in a browser, failed; they are not used then.
    pub fn failed_self_test(&self) -> Option<&str> {
        self.failed_self_test.get().map(String::as_str)
    }

    /// The device without its cooperative matrices, or without f16 where it has none, as their self-test failed for `reason`.
    pub(crate) fn rejecting(&self, reason: String) -> Gpu {
        self.failed_self_test.get_or_init(|| reason);
        self.with_kernels(self.best_kernels())
    }

    /// Whether shaders may compute in f16.
    pub fn half(&self) -> bool {
        self.device.features().contains(wgpu::Features::SHADER_F16)
    }

    /// Threads of a workgroup that share the work of one row: a power of two, at most `most`.
    pub fn threads_of_row(&self, most: usize) -> usize {
        1 << self.threads_to_share().min(most).ilog2()
    }

    /// Threads of a workgroup that share the work of one row. A software device runs them one after the other.
    pub fn threads_to_share(&self) -> usize {
        let limits = &self.limits;
        match self.kernels.workgroups_to_fill {
            0 => 256,
            _ => {
                limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x) as usize
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::has_few_registers;

    #[test]
    fn registers_by_vendor() {
        let gpus = [(0x8086, "Arc"), (0x106b, "Apple M1 (G13G A0)"), (0, "Apple M3"), (0x5143, "Adreno")];
        assert!(gpus.iter().all(|(vendor, name)| has_few_registers(*vendor, name)));
        let others = [(0x1002, "RX 7900 XTX"), (0x10de, "RTX 4090"), (0x10005, "llvmpipe"), (0, "")];
        assert!(!others.iter().any(|(vendor, name)| has_few_registers(*vendor, name)));
    }
}
