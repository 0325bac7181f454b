//! Loads adapters for a base, and adds them up.

use super::formats::assemble::check_slots;
use super::left_out;
use super::lora::{Adapter, Slot};
use super::{AdapterPath, Error, Origin, origin, read_any};
use crate::base::Base;
use crate::base::fingerprint::{Fingerprint, Kinship};

/// Largest value of `B` times its scale. Larger ones overflow in f32 further on.
const MAX_VALUE: f64 = 1e12;

/// The treatment of an adapter that was trained on a different model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtherBase {
    /// Reject it.
    #[default]
    Refuse,
    /// Load it if its shapes fit, with a notice.
    Allow,
}

impl From<bool> for OtherBase {
    fn from(allow: bool) -> OtherBase {
        if allow { OtherBase::Allow } else { OtherBase::Refuse }
    }
}

/// The result of [`load()`].
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The adapter, or the sum of several.
    pub adapter: Adapter,
    /// The adapter's origin. For several adapters, the fields on which all agree.
    pub origin: Origin,
    /// Messages for the user.
    pub notices: Vec<String>,
}

/// Reads adapters of any [`Format`](super::Format) for `base`, and adds them up with [`Adapter::combine`]. A single adapter of
/// weight 1 is returned unchanged.
///
/// With `slots`, the result must have exactly these slots. With `None`, it has the slots in the files. Fails if [`read_any`]
/// fails, if the adapters cannot be added up, or if an adapter was trained on a different model and `other_base` does not
/// allow that. An adapter for another quantization of the same model gives a notice.
pub fn load(
    paths: &[AdapterPath],
    base: &Base,
    slots: Option<&[Slot]>,
    other_base: OtherBase,
) -> Result<Loaded, Error> {
    let mut notices = Vec::new();
    let mut found = Vec::new();
    for AdapterPath { path, .. } in paths {
        // One of several adapters may have only some of the slots.
        let adapter = read_any(path, base.config(), slots.filter(|_| paths.len() == 1))
            .map_err(|error| of_another_model(error, path, base))?;
        check_values(&adapter).map_err(|problem| Error::Tensors { path: path.clone(), problem })?;
        notices.extend(left_out::notice(path)?);
        let origin = origin(path)?;
        notices.extend(compare(&path.display().to_string(), &origin, base, other_base)?);
        if origin.vocabulary.as_deref().is_some_and(|digest| digest != base.vocabulary()) {
            notices.push(format!(
                "{} was trained with other tokens or merges than those of {}, so it may see other ids for the same text; use the file \
                 that it was trained on, or one with the same vocabulary",
                path.display(),
                base.name()
            ));
        }
        found.push((adapter, origin));
    }
    let origin = common(found.iter().map(|(_, origin)| origin));
    if let [AdapterPath { weight: 1.0, .. }] = paths
        && let Some((adapter, _)) = found.pop()
    {
        return Ok(Loaded { adapter, origin, notices });
    }
    let parts: Vec<(&Adapter, f64)> =
        found.iter().zip(paths).map(|((adapter, _), path)| (adapter, path.weight)).collect();
    let adapter = Adapter::combine(&parts)?;
    if let Some(slots) = slots {
        check_slots(&adapter, base.config(), slots).map_err(|problem| Error::Sum { problem })?;
    }
    Ok(Loaded { adapter, origin, notices })
}

/// Fails if the scale makes a value of `B` so large that kernels would overflow in f32.
fn check_values(adapter: &Adapter) -> Result<(), String> {
    let scale = adapter.scale();
    for (slot, pair) in &adapter.pairs {
        let largest = scale.abs() * f64::from(pair.b.iter().fold(0f32, |max, b| max.max(b.abs())));
        if largest > MAX_VALUE {
            return Err(format!(
                "B of {} times its scale of {scale:e} reaches {largest:.1e}, expected at most {MAX_VALUE:e}; use an adapter with \
                 another alpha",
                slot.name()
            ));
        }
    }
    Ok(())
}

/// Longest list of tensors in the error for an adapter of another model, in characters.
const MAX_PROBLEM: usize = 300;

/// The error for tensors that do not fit, which begins with the model that the adapter was trained on if that is another one.
fn of_another_model(error: Error, path: &std::path::Path, base: &Base) -> Error {
    let trained = origin(path).ok().and_then(|origin| origin.base_model);
    match (error, trained) {
        (Error::Tensors { path, problem }, Some(trained)) if trained != base.name() => {
            let mut shown: String = problem.chars().take(MAX_PROBLEM).collect();
            if shown.len() < problem.len() {
                shown += " …";
            }
            let problem = format!("it was trained on {trained} and does not fit {}: {shown}", base.name());
            Error::Tensors { path, problem }
        }
        (error, _) => error,
    }
}

/// The notice for an adapter from `origin` on `base`, or an error if it must not be loaded.
fn compare(path: &str, origin: &Origin, base: &Base, other_base: OtherBase) -> Result<Option<String>, Error> {
    let Some(text) = &origin.fingerprint else { return Ok(None) };
    let name = base.name();
    let here = base.fingerprint();
    let Ok(trained) = text.parse::<Fingerprint>() else {
        return Ok(Some(format!(
            "{path} has the base fingerprint {text}, which this version cannot compare with {name}"
        )));
    };
    let trained_on = origin.base_model.as_deref().unwrap_or("another base");
    match here.kinship(&trained) {
        Kinship::Same => Ok(None),
        Kinship::OtherWeights => Ok(Some(format!(
            "{path} was trained on {trained_on}; {name} is the same model with different weights (another quantization, or a \
             merged adapter), so replies may differ"
        ))),
        Kinship::OtherModel if other_base == OtherBase::Allow => Ok(Some(format!(
            "{path} was trained on {trained_on}, but {name} is a different model; loaded because this is allowed"
        ))),
        Kinship::OtherModel => Err(Error::OtherBase {
            path: path.into(),
            trained: format!("{trained_on} ({trained})"),
            base: format!("{name} ({here})"),
        }),
    }
}

/// The fields on which all origins agree.
fn common<'a>(mut origins: impl Iterator<Item = &'a Origin>) -> Origin {
    let agree = |mut one: Origin, other: &Origin| {
        one.base_model = one.base_model.filter(|name| other.base_model.as_ref() == Some(name));
        one.fingerprint = one.fingerprint.filter(|digests| other.fingerprint.as_ref() == Some(digests));
        one.vocabulary = one.vocabulary.filter(|digest| other.vocabulary.as_ref() == Some(digest));
        if one.dropout != other.dropout {
            one.dropout = 0.0;
        }
        one
    };
    let first = origins.next().cloned().unwrap_or_default();
    origins.fold(first, agree)
}
