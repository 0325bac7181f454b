//! Adapters from disk, checked against the base that they are for, and several of them as one.

use super::formats::assemble::check_slots;
use super::lora::{Adapter, Slot};
use super::{AdapterPath, Error, Origin, origin, read_any};
use crate::base::Base;
use crate::base::fingerprint::{Fingerprint, Kinship};

/// What to do with an adapter of another model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtherBase {
    /// Refuse it.
    #[default]
    Refuse,
    /// Take it where its shapes fit, and say so.
    Allow,
}

impl From<bool> for OtherBase {
    fn from(allow: bool) -> OtherBase {
        if allow { OtherBase::Allow } else { OtherBase::Refuse }
    }
}

/// What [`load()`] found.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The adapter, or the sum of all.
    pub adapter: Adapter,
    /// Where it came from; of several, what all agree on.
    pub origin: Origin,
    /// What the user should know.
    pub notices: Vec<String>,
}

/// Reads adapters of any [`super::Format`] for `base`, and adds them up ([`Adapter::combine`]) unless it is a whole one.
///
/// `slots` are those that the caller trains, and all of them must be there; `None` takes what is there. Fails where
/// [`read_any`] fails, where adapters have no sum, and on an adapter whose files say that it was trained on another model,
/// unless `other_base` allows it. Another quantization of the same model is a notice.
pub fn load(
    paths: &[AdapterPath],
    base: &Base,
    slots: Option<&[Slot]>,
    other_base: OtherBase,
) -> Result<Loaded, Error> {
    let mut notices = Vec::new();
    let mut found = Vec::new();
    for AdapterPath { path, .. } in paths {
        // Of several, each may have a part of the slots.
        let adapter = read_any(path, base.config(), slots.filter(|_| paths.len() == 1))?;
        let origin = origin(path)?;
        notices.extend(compare(&path.display().to_string(), &origin, base, other_base)?);
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

/// What is to be said about an adapter from `origin` on `base`.
fn compare(path: &str, origin: &Origin, base: &Base, other_base: OtherBase) -> Result<Option<String>, Error> {
    let Some(text) = &origin.fingerprint else { return Ok(None) };
    let (name, here) = (base.name(), Fingerprint::of(base));
    let Ok(trained) = text.parse::<Fingerprint>() else {
        return Ok(Some(format!(
            "{path} says that its base is {text}, which this version cannot compare with {name}"
        )));
    };
    let trained_on = origin.base_model.as_deref().unwrap_or("another base");
    match here.kinship(&trained) {
        Kinship::Same => Ok(None),
        Kinship::OtherWeights => Ok(Some(format!(
            "{path} was trained on {trained_on}; {name} is the same model with other weights (another quantization, or \
             something was merged into one of them), so that replies may differ"
        ))),
        Kinship::OtherModel if other_base == OtherBase::Allow => Ok(Some(format!(
            "{path} was trained on {trained_on}, and {name} is another model, as was allowed"
        ))),
        Kinship::OtherModel => Err(Error::OtherBase {
            path: path.into(),
            trained: format!("{trained_on} ({trained})"),
            base: format!("{name} ({here})"),
        }),
    }
}

/// What all origins agree on.
fn common<'a>(mut origins: impl Iterator<Item = &'a Origin>) -> Origin {
    let agree = |mut one: Origin, other: &Origin| {
        one.base_model = one.base_model.filter(|name| other.base_model.as_ref() == Some(name));
        one.fingerprint = one.fingerprint.filter(|digests| other.fingerprint.as_ref() == Some(digests));
        if one.dropout != other.dropout {
            one.dropout = 0.0;
        }
        one
    };
    let first = origins.next().cloned().unwrap_or_default();
    origins.fold(first, agree)
}
