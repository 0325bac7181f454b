//! Distribution of the tokens over the experts.

use crate::gpu::{Gpu, GpuError};
use crate::memory::ExpertActs;

/// Number of choices of each expert in the last pass, by layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Loads(Vec<Vec<u32>>);

impl Loads {
    /// Reads the loads of the layers that have experts; `None` in dense models.
    pub async fn read<'a>(
        gpu: &Gpu,
        layers: impl Iterator<Item = &'a ExpertActs>,
    ) -> Result<Option<Loads>, GpuError> {
        let mut loads = Vec::new();
        for acts in layers {
            loads.push(gpu.read(&acts.groups.counts.buffer, acts.groups.experts.count).await?);
        }
        Ok((!loads.is_empty()).then_some(Loads(loads)))
    }

    /// By layer, the choices of each expert.
    pub fn layers(&self) -> &[Vec<u32>] {
        &self.0
    }

    /// Largest share of a layer's choices that one expert took.
    pub fn busiest(&self) -> f64 {
        let share = |layer: &Vec<u32>| {
            let most = layer.iter().max().copied().unwrap_or(0);
            f64::from(most) / f64::from(layer.iter().sum::<u32>().max(1))
        };
        self.0.iter().map(share).fold(0.0, f64::max)
    }

    /// Share of all layers' experts that worked on no token.
    pub fn idle(&self) -> f64 {
        let all: usize = self.0.iter().map(Vec::len).sum();
        self.0.iter().flatten().filter(|count| **count == 0).count() as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::Loads;

    #[test]
    fn loads_in_two_figures() {
        // 5 of 10 in the second layer; 3 of 8 experts have none.
        let loads = Loads(vec![vec![3, 3, 0, 4], vec![5, 0, 0, 5]]);
        assert_eq!((loads.busiest(), loads.idle()), (0.5, 0.375));
    }
}
