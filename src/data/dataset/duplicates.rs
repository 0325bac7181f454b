//! Finds duplicate samples.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{Notice, What};
use crate::data::batch::Sample;

type Tokens<'a> = (&'a [u32], &'a [i32], &'a [u32]);

fn tokens(sample: &Sample) -> Tokens<'_> {
    (&sample.ids, &sample.labels, &sample.for_teacher().ids)
}

/// Reports training samples that equal an earlier one, and validation samples that equal a training sample. Samples are equal
/// if ids and labels are, and the row that a teacher reads.
pub fn duplicates(train: &[Sample], validation: &[Sample]) -> Vec<Notice> {
    let mut seen: HashMap<Tokens, &Sample> = HashMap::with_capacity(train.len());
    let mut repeated: Vec<(&Sample, &Sample)> = Vec::new();
    for sample in train {
        match seen.entry(tokens(sample)) {
            Entry::Occupied(earlier) => repeated.push((sample, earlier.get())),
            Entry::Vacant(place) => drop(place.insert(sample)),
        }
    }
    let leaked: Vec<(&Sample, &Sample)> =
        validation.iter().filter_map(|sample| Some((sample, *seen.get(&tokens(sample))?))).collect();
    let mut notices = Vec::new();
    if let Some((first, of)) = repeated.first() {
        let (first, of) = (first.origin.clone(), of.origin.clone());
        let what = What::Duplicates { count: repeated.len(), total: train.len(), first, of };
        notices.push(Notice { place: "data.train".into(), what });
    }
    if let Some((first, of)) = leaked.first() {
        let (first, of) = (first.origin.clone(), of.origin.clone());
        let what = What::Leaked { count: leaked.len(), total: validation.len(), first, of };
        notices.push(Notice { place: "validation".into(), what });
    }
    notices
}
