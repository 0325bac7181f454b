//! A cache of tokenized files. The key is the digest of everything that decides the tokens: the file's bytes, the tokenizer,
//! the template, the options, and `VERSION`.
//!
//! An entry consists of `MAGIC`, the SHA-256 of the rest, the length of a JSON header, the header, and little-endian u32
//! arrays: for each sample, and for each row that a teacher reads in place of the sample before it, its record number, side, length, number of loss runs and number of other labels; then all ids, the runs
//! (start, length) of labels that equal their ids, and the other labels (position, label).

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::container::Ending;
use super::{Dataset, Found, Notice, Options, What};
use crate::data::batch::{IGNORE, Sample};
use crate::data::compare::Side;
use crate::data::tokenizer::Tokenizer;
use crate::files;
use crate::words::hex;

/// Must be raised when the same file could give different tokens, or when the layout of an entry changes.
const VERSION: u32 = 4;
const MAGIC: &[u8; 8] = b"RLTOKENS";
/// Smaller files are read about as fast as they are looked up.
const LEAST_BYTES: usize = 1 << 20;
/// Entries that were not used for this long are removed.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
const ENDING: &str = "tokens";

/// A folder with the tokens of files that were read before.
#[derive(Clone, Debug, PartialEq)]
pub struct Cache {
    /// The folder. It is created if it does not exist.
    pub dir: PathBuf,
    /// Files smaller than this are not cached.
    pub least_bytes: usize,
}

/// Result of a lookup.
pub enum Entry {
    /// The samples of the file.
    Found(Dataset),
    /// There is no entry.
    Missing,
    /// The entry at this path is damaged.
    Broken(PathBuf),
}

/// The part of an entry that is not an array.
#[derive(Serialize, Deserialize)]
struct Header {
    found: Found,
    notices: Vec<What>,
    samples: usize,
    ids: usize,
    runs: usize,
    odd: usize,
}

impl Cache {
    /// Creates a cache in `dir`.
    pub fn new(dir: PathBuf) -> Cache {
        Cache { dir, least_bytes: LEAST_BYTES }
    }

    /// The user's cache, if the system has a cache folder (`$XDG_CACHE_HOME` or `~/.cache` on Linux).
    pub fn of_user() -> Option<Cache> {
        user_folder().map(|dir| Cache::new(dir.join("rullama-train").join("datasets")))
    }

    /// Whether a file of `bytes` bytes is cached.
    pub fn is_worth(&self, bytes: usize) -> bool {
        bytes >= self.least_bytes
    }

    /// The key of a file's tokens: a SHA-256 in hex. The ending of its name decides how some files are read.
    pub fn key(name: &str, bytes: &[u8], tokenizer: &Tokenizer, options: &Options) -> String {
        let Options {
            supervision,
            format,
            template,
            train_on,
            max_seq_len,
            overlong,
            invalid,
            fields,
            system,
            unasked,
            teacher_prompt,
            ..
        } = options;
        let ending = Ending::of(name);
        let mut hash = Sha256::new();
        hash.update(format!(
            "{VERSION} {supervision:?} {format:?} {train_on:?} {max_seq_len} {overlong:?} {invalid:?} {fields:?} {system:?} {unasked:?} {teacher_prompt:?} {ending:?}"
        ));
        hash.update(tokenizer.digest());
        hash.update(template.digest());
        hash.update(Sha256::digest(bytes));
        hex(&hash.finalize())
    }

    fn path(&self, key: &str) -> PathBuf {
        self.dir.join(format!("{key}.{ENDING}"))
    }

    /// Looks up the samples under a key. `name`: current name of the file, for messages.
    pub fn load(&self, key: &str, name: &str) -> Entry {
        let path = self.path(key);
        let bytes = match files::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Entry::Missing,
            Err(_) => return Entry::Broken(path),
        };
        match decode(&bytes, name) {
            Some(dataset) => {
                // The age counts from the last use. If the time cannot be set, the entry is only removed sooner.
                let _ = std::fs::File::options()
                    .append(true)
                    .open(&path)
                    .and_then(|file| file.set_modified(SystemTime::now()));
                Entry::Found(dataset)
            }
            None => Entry::Broken(path),
        }
    }

    /// Stores samples under a key, atomically, and removes old entries.
    pub fn store(&self, key: &str, dataset: &Dataset) -> Result<(), files::Error> {
        files::write_atomic(&self.path(key), &encode(dataset))?;
        prune(&self.dir);
        Ok(())
    }
}

#[cfg(feature = "native")]
fn user_folder() -> Option<PathBuf> {
    dirs::cache_dir()
}

#[cfg(not(feature = "native"))]
fn user_folder() -> Option<PathBuf> {
    None
}

/// Removes old entries. Entries that cannot be removed are ignored.
fn prune(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let unused = |modified: SystemTime| modified.elapsed().is_ok_and(|age| age > KEPT);
        let old = entry.metadata().and_then(|m| m.modified()).is_ok_and(unused);
        if old && entry.path().extension().is_some_and(|e| e == ENDING) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The sides by their numbers in an entry.
const SIDES: [Side; 5] = [Side::Example, Side::Chosen, Side::Rejected, Side::Desirable, Side::Undesirable];
/// The number in the place of a side of the row that a teacher reads in place of the sample before it.
const TAUGHT: u32 = SIDES.len() as u32;

fn side_number(side: Side) -> u32 {
    SIDES.iter().position(|known| *known == side).expect("every side is listed") as u32
}

fn encode<'a>(dataset: &'a Dataset) -> Vec<u8> {
    let own = |sample: &'a Sample| (sample, side_number(sample.side));
    let each = |sample: &'a Sample| [Some(own(sample)), sample.taught.as_deref().map(|row| (row, TAUGHT))];
    let rows: Vec<(&Sample, u32)> = dataset.samples.iter().flat_map(each).flatten().collect();
    let n = rows.len();
    let [mut numbers, mut sides, mut lengths, mut run_counts, mut odd_counts] =
        [(); 5].map(|()| Vec::with_capacity(n));
    let [mut ids, mut runs, mut odd] = [(); 3].map(|()| Vec::<u32>::new());
    for (sample, side) in rows {
        let number = sample.origin.rsplit(' ').next().and_then(|n| n.parse().ok());
        numbers.push(number.expect("an origin ends in a number"));
        sides.push(side);
        lengths.push(sample.ids.len() as u32);
        let (runs_before, odd_before) = (runs.len(), odd.len());
        let mut run: Option<u32> = None;
        for (t, (&id, &label)) in sample.ids.iter().zip(&sample.labels).enumerate() {
            let (t, equal) = (t as u32, label == id as i32);
            match (equal, run) {
                (true, None) => run = Some(t),
                (false, Some(start)) => runs.extend([start, t - start]),
                _ => {}
            }
            if !equal {
                run = None;
                if label != IGNORE {
                    odd.extend([t, label as u32]);
                }
            }
        }
        if let Some(start) = run {
            runs.extend([start, sample.ids.len() as u32 - start]);
        }
        run_counts.push(((runs.len() - runs_before) / 2) as u32);
        odd_counts.push(((odd.len() - odd_before) / 2) as u32);
        ids.extend(&sample.ids);
    }
    let header = Header {
        found: dataset.found.clone(),
        notices: dataset.notices.iter().map(|notice| notice.what.clone()).collect(),
        samples: n,
        ids: ids.len(),
        runs: runs.len(),
        odd: odd.len(),
    };
    let header = serde_json::to_vec(&header).expect("plain values");
    let mut rest = (header.len() as u64).to_le_bytes().to_vec();
    rest.extend(header);
    for array in [numbers, sides, lengths, run_counts, odd_counts, ids, runs, odd] {
        rest.extend(array.iter().flat_map(|value: &u32| value.to_le_bytes()));
    }
    [&MAGIC[..], &Sha256::digest(&rest), &rest].concat()
}

/// Decodes an entry. Returns `None` if it is damaged.
fn decode(bytes: &[u8], name: &str) -> Option<Dataset> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (digest, rest) = rest.split_at_checked(32)?;
    if Sha256::digest(rest)[..] != *digest {
        return None;
    }
    let (length, rest) = rest.split_at_checked(8)?;
    let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    let (header, mut rest) = rest.split_at_checked(length)?;
    let header: Header = serde_json::from_slice(header).ok()?;
    let mut array = |n: usize| -> Option<Vec<u32>> {
        let (array, tail) = rest.split_at_checked(n.checked_mul(4)?)?;
        rest = tail;
        Some(array.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    };
    let n = header.samples;
    let (numbers, sides, lengths) = (array(n)?, array(n)?, array(n)?);
    let (run_counts, odd_counts) = (array(n)?, array(n)?);
    let (ids, runs, odd) = (array(header.ids)?, array(header.runs)?, array(header.odd)?);
    if !rest.is_empty() {
        return None;
    }
    let unit = header.found.container.unit();
    let (mut ids, mut runs, mut odd) = (&ids[..], runs.chunks_exact(2), odd.chunks_exact(2));
    let mut samples = Vec::with_capacity(n);
    for i in 0..n {
        let (own, tail) = ids.split_at_checked(lengths[i] as usize)?;
        ids = tail;
        let mut labels = vec![IGNORE; own.len()];
        for run in runs.by_ref().take(run_counts[i] as usize) {
            let at = run[0] as usize..(run[0] as usize).checked_add(run[1] as usize)?;
            let equal = own.get(at.clone())?;
            labels.get_mut(at)?.iter_mut().zip(equal).for_each(|(label, &id)| *label = id as i32);
        }
        for one in odd.by_ref().take(odd_counts[i] as usize) {
            *labels.get_mut(one[0] as usize)? = one[1] as i32;
        }
        let (ids, origin) = (own.to_vec(), format!("{name} {unit} {}", numbers[i]));
        if sides[i] == TAUGHT {
            let of: &mut Sample = samples.last_mut()?;
            of.taught =
                Some(Box::new(Sample { ids, labels, origin, side: of.side, taught: None, row: None }));
            continue;
        }
        samples.push(Sample {
            ids,
            labels,
            origin,
            side: *SIDES.get(sides[i] as usize)?,
            taught: None,
            row: None,
        });
    }
    let notices = header.notices.into_iter().map(|what| Notice { place: name.to_owned(), what }).collect();
    Some(Dataset { samples, notices, found: header.found })
}
