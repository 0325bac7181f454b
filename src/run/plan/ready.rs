//! Everything that a run needs besides the base and a device.

use super::row_length::row_notice;
use super::{Data, OpenBase, PreparedRun, RunError, fitted, initial_adapter};
use crate::adapter::Loaded;
use crate::recipe::Recipe;

/// A run before its first step, in host memory. The program and the page open it alike.
pub struct Ready {
    /// The recipe with the row length that base and samples require.
    pub recipe: Recipe,
    /// Samples and steps.
    pub prepared: PreparedRun,
    /// The adapter that training starts from.
    pub initial: Loaded,
}

impl Ready {
    /// Reads the samples of `recipe`, plans every step, and loads or initialises the adapter.
    pub fn read(recipe: &Recipe, base: &OpenBase) -> Result<Ready, RunError> {
        let (fitted, mut data) = fitted(recipe, base, |recipe| Data::read(recipe, base))?;
        data.notices.extend(row_notice(recipe, &fitted));
        let prepared = PreparedRun::plan(&fitted, base, data)?;
        let initial = initial_adapter(&fitted, &base.base)?;
        Ok(Ready { recipe: fitted, prepared, initial })
    }
}
