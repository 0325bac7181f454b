//! Tensors of a base on the device, by name.

use std::cell::RefCell;

use super::offload::{self, HostWeights};
use super::stream;
use crate::base::{Base, Tensor};
use crate::gpu::{Gpu, GpuError};
use crate::ops::Weight;
use crate::ops::linear::grouped::ExpertWeight;
use crate::ops::rms_norm::Norm;

/// Uploads tensors of a base by name.
pub(super) struct Upload<'a, 'b> {
    pub gpu: &'a Gpu,
    pub base: &'b Base,
    /// Takes the matrices that stay in host memory.
    pub host: Option<RefCell<HostWeights<'b>>>,
}

impl<'b> Upload<'_, 'b> {
    pub async fn matrix(&self, name: &str) -> Result<Weight, GpuError> {
        Ok(self.optional(name).await?.expect("the base checked its tensors when it was opened"))
    }

    pub async fn optional(&self, name: &str) -> Result<Option<Weight>, GpuError> {
        let Some(matrix) = self.base.tensor(name) else { return Ok(None) };
        let mut weight = match self.kept(&matrix).await? {
            Some(weight) => weight,
            None => stream::weight(self.gpu, self.base, &matrix).await?,
        };
        if let Some(bias) = self.base.bias(name) {
            weight.bias = Some(self.gpu.upload(name, &bias)?);
        }
        Ok(Some(weight))
    }

    /// The matrices of all `experts`.
    pub async fn experts(&self, matrix: &Tensor<'b>, experts: usize) -> Result<ExpertWeight, GpuError> {
        let rows = matrix.rows / experts;
        match self.kept(matrix).await? {
            Some(weight) => Ok(ExpertWeight { weight, rows }),
            None => stream::experts(self.gpu, self.base, matrix, experts).await,
        }
    }

    /// The matrix, if it stays in host memory.
    async fn kept(&self, matrix: &Tensor<'b>) -> Result<Option<Weight>, GpuError> {
        let Some(host) = &self.host else { return Ok(None) };
        let Some(is_resident) = host.borrow().takes(matrix) else { return Ok(None) };
        let Tensor { ty, rows, cols, .. } = *matrix;
        let places = host.borrow().tiles(matrix);
        let mut tiles = Vec::with_capacity(places.len());
        for place in places {
            let first = place.start;
            let content = offload::content(self.gpu, self.base, matrix, place, is_resident).await?;
            tiles.push(host.borrow_mut().put(matrix, first, content));
        }
        Ok(Some(Weight { ty, rows, cols, tiles, bias: None }))
    }

    /// The matrix as `count` matrices of `rows` rows.
    pub async fn row_parts(&self, name: &str, rows: usize, count: usize) -> Result<Vec<Weight>, GpuError> {
        let whole = self.base.tensor(name).expect("the base checked its tensors when it was opened");
        let mut parts = Vec::with_capacity(count);
        for i in 0..count {
            let part = whole.rows(i * rows..(i + 1) * rows);
            parts.push(stream::weight(self.gpu, self.base, &part).await?);
        }
        Ok(parts)
    }

    /// The norm `name`, or the identity of `width` values where the layer has none.
    pub fn norm_if(&self, present: bool, name: &str, width: usize) -> Result<Norm, GpuError> {
        match present {
            true => self.norm(name, self.base.config().rms_eps),
            false => Ok(Norm::identity(width)),
        }
    }

    /// The norm `name` before a block, or one that passes rows on where the layer has none.
    pub fn pre_norm(&self, present: bool, name: &str) -> Result<Norm, GpuError> {
        let config = self.base.config();
        match present {
            true => self.norm(name, config.rms_eps),
            false => Norm::passing(self.gpu, name, config.width, 1.0),
        }
    }

    /// The norm `name` of queries with the factor on the scores: a rotary embedding that turns a part of a head cannot have it.
    pub fn scaled_norm(&self, name: &str, factor: f64) -> Result<Norm, GpuError> {
        let weight: Vec<f32> =
            self.base.vector(name).into_iter().map(|w| (f64::from(w) * factor) as f32).collect();
        Norm::new(self.gpu, name, Some(&weight), weight.len(), self.base.config().rms_eps)
    }

    pub fn norm(&self, name: &str, eps: f32) -> Result<Norm, GpuError> {
        let weight = self.base.vector(name);
        Norm::new(self.gpu, name, Some(&weight), weight.len(), eps)
    }
}
