//! mlx-lm's adapter folders: `adapters.safetensors` and `adapter_config.json`, as `mlx_lm.lora` writes and loads them.
//!
//! Tensors are transposed, `lora_a` `[in, R]` and `lora_b` `[R, out]`, and the config contains the scale. Experts have separate gate,
//! up and down, `lora_a` `[E, R, in]` and `lora_b` `[E, out, R]`: the joint `A` of gate and up is written twice, and `B` is split.
//! Source: mlx-lm 0.32 `tuner/utils.py` (`load_adapters`), `tuner/lora.py` (`LoRALinear`, `LoRASwitchLinear`) and
//! its model files (`Experts`, `Model.sanitize`: the gate's rows come before those of up).

use std::borrow::Cow;
use std::path::Path;

use safetensors::tensor::TensorView;
use serde_json::{Map, Value, json};

use super::assemble::{Names, Place, RankScale, Tensor, assemble, layer_and_rest};
use super::layout::{Half, MatrixLayout};
use super::safetensors_file::{self, Matrix, read_file};
use crate::adapter::lora::{Adapter, MAX_RANK, Slot};
use crate::adapter::{Error, WriteOptions};
use crate::base::Module;
use crate::base::config::Config;
use crate::families::{self, AdapterNames};
use crate::files;

/// File of the tensors.
pub(in crate::adapter) const TENSORS: &str = "adapters.safetensors";
/// File of everything else.
const CONFIG: &str = "adapter_config.json";
/// Stands for the joint matrix in names. No tensor of a file is named so.
const GATE_UP_JOINED: &str = "gate and up";
/// Names of `A` and `B`.
const HALVES: [&str; 2] = ["lora_a", "lora_b"];

/// Writes the folder. Existing files of other names stay, see [`files::write_folder`].
pub fn write(dir: &Path, adapter: &Adapter, config: &Config, options: &WriteOptions) -> Result<(), Error> {
    let names = families::names(config);
    let mut tensors = Vec::new();
    for (slot, pair) in &adapter.pairs {
        for (half, values) in [(Half::A, &pair.a), (Half::B, &pair.b)] {
            let (mut shape, _) = MatrixLayout::Mlx.shape(half, adapter.rank, slot);
            let paths = (names.mlx)(slot.module);
            let stored = |values| MatrixLayout::Mlx.store(half, values, adapter.rank, slot, config);
            let parts = match (slot.module, half) {
                (Module::FfnGateUpExps, Half::A) => vec![values.into(), values.into()],
                (Module::FfnGateUpExps, Half::B) => {
                    shape[1] /= 2;
                    halves(values, shape[1] * adapter.rank).map(Cow::Owned).into()
                }
                (_, Half::A) => vec![stored(values); paths.len()],
                (_, Half::B) => {
                    shape[1] /= paths.len();
                    values.chunks_exact(values.len() / paths.len()).map(stored).collect()
                }
            };
            for (path, values) in paths.iter().zip(parts) {
                let name = format!("{}.{}", in_layer(names, slot.layer, path), HALVES[half as usize]);
                tensors.push(Matrix { name, shape: shape.clone(), values });
            }
        }
    }
    let bytes = safetensors_file::serialize(&tensors, options.metadata())
        .map_err(|problem| Error::Adapter { problem })?;
    let present = Module::ALL.into_iter().filter(|m| adapter.pairs.keys().any(|s| s.module == *m));
    let description = json!({
        "fine_tune_type": "lora",
        "lora_parameters": {
            "dropout": options.dropout,
            "keys": present.flat_map(names.mlx).collect::<Vec<_>>(),
            "rank": adapter.rank,
            "scale": adapter.scale(),
        },
        "model": options.base_model,
        // All layers. A layer without tensors in the file keeps mlx-lm's initial values, which have no effect.
        "num_layers": -1,
    });
    let config = serde_json::to_vec_pretty(&description).expect("an object with text keys is JSON");
    Ok(files::write_folder(dir, &[(TENSORS, &bytes), (CONFIG, &config)])?)
}

/// Reads a folder for the model `config`. For `slots` and errors see [`read_any`](crate::adapter::read_any).
///
/// Also fails if the adapter is not a plain LoRA (`fine_tune_type` "dora" or "full"). Alpha becomes `scale·rank`.
pub fn read(dir: &Path, config: &Config, slots: Option<&[Slot]>) -> Result<Adapter, Error> {
    let path = dir.join(CONFIG);
    let (rank, scale) =
        parse_config(&read_file(&path)?).map_err(|problem| Error::Config { path: path.clone(), problem })?;
    let names = families::names(config);
    let path = dir.join(TENSORS);
    let bytes = read_file(&path)?;
    let adapter = safetensors_file::open(&bytes).and_then(|file| {
        let views = file.tensors();
        let joined = join(&views, names)?;
        let mut tensors = safetensors_file::list(&views, |name| parse_name(name, names));
        tensors.retain(|tensor| !joined.iter().any(|j| j.of.contains(&tensor.name)));
        tensors.extend(joined.iter().map(Joined::tensor));
        let alpha = scale * rank as f64;
        let spec = |_: &Slot| RankScale::of(rank, alpha, false);
        let module = |slot: &Slot| module(names, slot);
        let names = Names { halves: HALVES, module: &module };
        assemble(&tensors, (MatrixLayout::Mlx, &names), &spec, (alpha, false), config, slots)
    });
    adapter.map_err(|problem| Error::Tensors { path, problem })
}

/// Rank and scale.
fn parse_config(bytes: &[u8]) -> Result<(usize, f64), String> {
    let config: Map<String, Value> = serde_json::from_slice(bytes)
        .map_err(|e| format!("expected a JSON object: {e}; copy or export the adapter again"))?;
    if let Some(found) = config.get("fine_tune_type").filter(|v| *v != "lora") {
        return Err(format!("fine_tune_type is {found}, expected \"lora\"; use a plain LoRA adapter"));
    }
    let parameter = |key: &str| config.get("lora_parameters").and_then(|p| p.get(key));
    let wrong = |key: &str, expected: &str| match parameter(key) {
        Some(found) => format!("lora_parameters.{key} is {found}, expected {expected}"),
        None => format!("lora_parameters.{key} is missing, expected {expected}"),
    };
    let rank = parameter("rank").and_then(Value::as_u64).and_then(|r| usize::try_from(r).ok());
    let rank = rank.filter(|r| (1..=MAX_RANK).contains(r));
    let rank = rank.ok_or_else(|| wrong("rank", &format!("a whole number from 1 to {MAX_RANK}")))?;
    let scale = parameter("scale").and_then(Value::as_f64).filter(|s| s.is_finite() && *s != 0.0);
    Ok((rank, scale.ok_or_else(|| wrong("scale", "a number other than 0"))?))
}

/// Path of a module in mlx-lm's model.
fn in_layer(names: &AdapterNames, layer: usize, path: &str) -> String {
    format!("{}.{layer}.{path}", names.mlx_layers)
}

fn module(names: &AdapterNames, slot: &Slot) -> String {
    in_layer(names, slot.layer, &(names.mlx)(slot.module).join(" and "))
}

/// Splits `values` into the blocks of gate and those of up, which alternate.
fn halves<T: Copy>(values: &[T], block: usize) -> [Vec<T>; 2] {
    [0, 1].map(|half| values.chunks_exact(block).skip(half).step_by(2).flatten().copied().collect())
}

/// The joint tensor of gate and up, made of two tensors of the file.
struct Joined<'a> {
    of: [&'a str; 2],
    place: Place,
    shape: Vec<usize>,
    ty: String,
    data: Vec<u8>,
}

impl Joined<'_> {
    fn tensor(&self) -> Tensor<'_> {
        let Joined { of: [name, _], place, shape, ty, data } = self;
        Tensor { name, place: Some(*place), shape, ty: ty.clone(), data }
    }
}

/// Joins every `A` and `B` of gate and up, of experts or of models that have both as one matrix, whose two tensors exist.
fn join<'a>(views: &'a [(String, TensorView<'a>)], names: &AdapterNames) -> Result<Vec<Joined<'a>>, String> {
    let mut joined = Vec::new();
    for module in [Module::FfnGateUpExps, Module::FfnGateUp] {
        joined.extend(join_module(views, names, module)?);
    }
    joined.sort_by_key(|joined| joined.of);
    Ok(joined)
}

/// [`join`] of one module. Both `A` must be equal, because they become one matrix.
fn join_module<'a>(
    views: &'a [(String, TensorView<'a>)],
    names: &AdapterNames,
    module: Module,
) -> Result<Vec<Joined<'a>>, String> {
    let &[gate_path, up_path] = (names.mlx)(module) else { return Ok(Vec::new()) };
    let find = |wanted: &str| views.iter().find(|(name, _)| name == wanted);
    let mut joined = Vec::new();
    for (gate_name, gate) in views {
        let Some((before, half)) = gate_name.split_once(gate_path) else { continue };
        let up_name = format!("{before}{}{half}", up_path);
        // A gate without its up matches no module, and is reported as such.
        let Some((up_name, up)) = find(&up_name) else { continue };
        let Some((layer, _, half)) = parse_name(&gate_name.replace(gate_path, GATE_UP_JOINED), names) else {
            continue;
        };
        if (gate.shape(), gate.dtype()) != (up.shape(), up.dtype()) {
            let [gate, up] = [gate, up].map(|view| format!("{} {:?}", view.dtype(), view.shape()));
            return Err(format!(
                "{gate_name} is {gate} and {up_name} is {up}, expected equal types and shapes; export the adapter again"
            ));
        }
        let mut shape = gate.shape().to_vec();
        let data = match (half, &mut shape[..]) {
            (Half::A, _) if gate.data() == up.data() => gate.data().to_vec(),
            (Half::A, _) => {
                return Err(format!(
                    "{gate_name} and {up_name} differ, but must be one matrix here; fuse the adapter in mlx-lm, or train gate and \
                     up with one A"
                ));
            }
            // An expert's rows, or one of the R rows of a transposed B.
            (Half::B, [blocks, rows, ..]) if *blocks > 0 => {
                let block = (gate.data().len() / *blocks).max(1);
                *rows *= 2;
                let blocks = gate.data().chunks(block).zip(up.data().chunks(block));
                blocks.flat_map(|(gate, up)| [gate, up].concat()).collect()
            }
            (Half::B, _) => gate.data().to_vec(), // the shape is reported later
        };
        let (of, place, ty) =
            ([gate_name.as_str(), up_name.as_str()], (layer, module, half), gate.dtype().to_string());
        joined.push(Joined { of, place, shape, ty, data });
    }
    Ok(joined)
}

/// The slot that a key names, in mlx-lm's whole model or in its text model alone.
fn parse_name(name: &str, names: &AdapterNames) -> Option<Place> {
    let alone = names.mlx_layers.strip_prefix("language_model.").unwrap_or(names.mlx_layers);
    let layers = name.strip_prefix(names.mlx_layers).or(name.strip_prefix(alone))?;
    let (layer, rest) = layer_and_rest(layers.strip_prefix('.')?)?;
    let (path, half) = match rest.strip_suffix(".lora_a") {
        Some(path) => (path, Half::A),
        None => (rest.strip_suffix(".lora_b")?, Half::B),
    };
    let module = match path {
        GATE_UP_JOINED => Module::FfnGateUpExps,
        _ => Module::ALL.into_iter().find(|m| *m != Module::FfnGateUpExps && (names.mlx)(*m) == [path])?,
    };
    Some((layer, module, half))
}
