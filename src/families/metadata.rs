//! [`Keys`]: checked reads of the metadata keys of one architecture.

use crate::base::{Error, Gguf};

// No real model comes near these limits. They keep products of sizes below 2³².
/// Largest number of layers.
pub const MOST_LAYERS: u32 = 1 << 10;
/// Largest number of heads.
pub const MOST_HEADS: u32 = 1 << 10;
/// Largest head size.
pub const WIDEST_HEAD: u32 = 1 << 16;
/// Largest width.
pub const WIDEST: u32 = 1 << 22;

/// Reads metadata keys. Every method takes the key without the prefix `ARCHITECTURE.`.
pub struct Keys<'a> {
    /// The file.
    pub gguf: &'a Gguf,
    /// `general.architecture`.
    pub architecture: &'static str,
}

impl Keys<'_> {
    /// The whole key.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// The error for a key with a wrong value.
    pub fn wrong(&self, name: &str, expected: &str) -> Error {
        self.gguf.wrong_value(&self.key(name), expected)
    }

    /// An integer; `None` where the key is missing.
    pub fn integer(&self, name: &str) -> Result<Option<u32>, Error> {
        self.gguf.get(&self.key(name))
    }

    /// A text; `None` where the key is missing.
    pub fn text(&self, name: &str) -> Result<Option<&str>, Error> {
        self.gguf.get(&self.key(name))
    }

    /// A size from 1 to `most`.
    pub fn size(&self, name: &str, most: u32) -> Result<usize, Error> {
        match self.gguf.require::<u32>(&self.key(name))? {
            size if (1..=most).contains(&size) => Ok(size as usize),
            _ => Err(self.wrong(name, &format!("1 to {most}"))),
        }
    }

    /// A size from 1 to `most` for each layer. The file has an array, or one number for all layers.
    pub fn sizes(&self, name: &str, layers: usize, most: u32) -> Result<Vec<usize>, Error> {
        let sizes = self.gguf.scalar_or_array(&self.key(name), layers)?;
        match sizes.iter().find(|size| !(1..=most).contains(*size)) {
            Some(bad) => Err(self.wrong(name, &format!("1 to {most} for each layer, found {bad}"))),
            None => Ok(sizes.into_iter().map(|size| size as usize).collect()),
        }
    }

    /// A finite number above 0.
    pub fn positive(&self, name: &str) -> Result<f32, Error> {
        let value: f32 = self.gguf.require(&self.key(name))?;
        if value.is_finite() && value > 0.0 { Ok(value) } else { Err(self.wrong(name, "a number above 0")) }
    }

    /// A finite number above 0; `default` where the key is missing, `None` where it is 0.
    pub fn positive_or(&self, name: &str, default: f32) -> Result<Option<f32>, Error> {
        match self.gguf.get::<f32>(&self.key(name))? {
            None => Ok(Some(default)),
            Some(0.0) => Ok(None),
            Some(_) => self.positive(name).map(Some),
        }
    }

    /// One bool for each layer.
    pub fn pattern(&self, name: &str, layers: usize) -> Result<Vec<bool>, Error> {
        let pattern: Vec<bool> = self.gguf.require(&self.key(name))?;
        if pattern.len() != layers {
            return Err(self.wrong(name, &format!("{layers} bools, one for each layer")));
        }
        Ok(pattern)
    }
}
