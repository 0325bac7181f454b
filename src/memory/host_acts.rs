//! Activations in host memory between forward and backward. Two buffers on the device hold those of the layer that runs and of a neighbour.
//!
//! In the middle of a layer's forward, what the layer below saved leaves; in the middle of its backward, that comes back.

use std::sync::Mutex;

use super::offloaded::Saves;
use super::table::Saved;
use crate::base::config::Config;
use crate::gpu::{Gpu, GpuError, HostBuffer, Recorder};
use crate::ops::act::Act;

/// Buffers on the device for each activation.
pub const PLACES: usize = 2;

/// The activations that leave the device.
pub fn names(saves: Saves) -> &'static [Saved] {
    match saves {
        Saves::None => &[],
        Saves::Inputs => &[Saved::Input],
        Saves::Results => &[Saved::Input, Saved::Down, Saved::Attention],
    }
}

/// Whether `name` of layer `layer` leaves: the branch of per-layer embeddings reads the first layer's input in every layer.
pub fn leaves(saves: Saves, config: &Config, name: Saved, layer: usize) -> bool {
    let is_read = name == Saved::Input && layer == 0 && config.per_layer_width > 0;
    names(saves).contains(&name) && !is_read
}

/// The activations of all layers that leave.
pub struct HostActs {
    kinds: Vec<Kind>,
    layers: usize,
    /// The layer whose activations the places hold.
    held: Mutex<[Option<usize>; PLACES]>,
}

/// One activation of every layer.
pub struct Kind {
    /// Its name.
    pub name: Saved,
    /// Its memory on the device, for the widest layer.
    pub places: [Act; PLACES],
    /// By layer, the first bytes of each of a place's buffers; none where it does not leave.
    pub host: Vec<Vec<HostBuffer>>,
}

impl Kind {
    /// Memory on the host for the activation `name`. `bytes` are those of each of its buffers, by layer; none where it does not leave.
    pub fn new(gpu: &Gpu, name: Saved, places: [Act; PLACES], bytes: &[Vec<u64>]) -> Result<Kind, GpuError> {
        let label = format!("{name:?}");
        let memory = |bytes: &Vec<u64>| bytes.iter().map(|bytes| gpu.host_buffer(&label, *bytes)).collect();
        let host = bytes.iter().map(memory).collect::<Result<_, _>>()?;
        Ok(Kind { name, places, host })
    }
}

impl HostActs {
    /// The activations `kinds` of `layers` layers.
    pub fn new(kinds: Vec<Kind>, layers: usize) -> HostActs {
        HostActs { kinds, layers, held: Mutex::default() }
    }

    /// The memory of an activation of layer `layer` while it runs; `None` for one that stays on the device.
    pub fn place(&self, name: Saved, layer: usize) -> Option<&Act> {
        let kind = self.kinds.iter().find(|kind| kind.name == name)?;
        (!kind.host[layer].is_empty()).then(|| &kind.places[layer % PLACES])
    }

    /// Copies what layer `layer` saved to the host, once all of it is recorded. That of the last ones stays in its places until backward needs
    /// it.
    pub fn leave(&self, rec: &mut Recorder, layer: usize) {
        if layer + PLACES >= self.layers {
            return;
        }
        for kind in &self.kinds {
            let buffers = kind.places[layer % PLACES].buffers();
            buffers.iter().zip(&kind.host[layer]).for_each(|(from, to)| rec.copy_out(from, to, to.bytes()));
        }
    }

    /// Notes that the places hold what the last layers saved.
    pub fn end_forward(&self) {
        let mut held = self.held.lock().expect("lock is not poisoned");
        for layer in self.layers.saturating_sub(PLACES)..self.layers {
            held[layer % PLACES] = Some(layer);
        }
    }

    /// Copies what layer `layer` saved back to its places, if it is not there.
    pub fn fetch(&self, rec: &mut Recorder, layer: usize) {
        let mut held = self.held.lock().expect("lock is not poisoned");
        if held[layer % PLACES].replace(layer) == Some(layer) {
            return;
        }
        for kind in &self.kinds {
            let buffers = kind.places[layer % PLACES].buffers();
            buffers
                .iter()
                .zip(&kind.host[layer])
                .for_each(|(to, from)| rec.copy_back(from, to, from.bytes()));
        }
    }
}
