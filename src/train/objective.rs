//! The training objective: how the losses of a step's rows become one number to minimise.

/// The quantity that training minimises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// Mean cross entropy over the loss tokens of the step.
    #[default]
    CrossEntropy,
}

impl Objective {
    /// The gradient of the objective with respect to the loss of each row, `[rows]`: it seeds the backward pass.
    pub fn coefficients(self, rows: usize) -> Vec<f32> {
        match self {
            Objective::CrossEntropy => vec![1.0 / rows as f32; rows],
        }
    }
}
