//! Models and data sets by name.

use std::path::{Path, PathBuf};

use super::client::{Client, Error};
use super::download::{At, download};
use crate::base::stores::hub::{self, Kind, MAIN, Name, PARQUET};
use crate::base::stores::listing::{self, Listed, Record};
use crate::files;

/// Where a download is.
pub struct Progress<'a> {
    /// The file.
    pub file: &'a str,
    /// Its number from 1, and how many there are.
    pub number: [usize; 2],
    /// Bytes that are there, of all.
    pub bytes: [u64; 2],
}

/// The files that a name stands for, on this machine.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The commit.
    pub commit: String,
    /// The files.
    pub files: Vec<PathBuf>,
    /// Why the cache was used without asking the Hub.
    pub notice: Option<String>,
}

/// Downloads the model `name`, all parts of it. Asks the Hub for the newest commit of the revision; without a connection, what is in the
/// cache is used.
pub fn model(name: &Name, progress: &mut dyn FnMut(&Progress)) -> Result<Fetched, Error> {
    let revision = name.revision.as_deref().unwrap_or(MAIN);
    let chosen = |files: &[Listed]| listing::choose_model(name, files);
    match fetch(Kind::Model, name, revision, &chosen, progress) {
        Err(Error::Unreachable(problem)) => {
            let Ok(path) = hub::cached_model(name) else {
                return Err(Error::Unreachable(format!("{name}: {problem}")));
            };
            let commit = listing::commit_of(&path).unwrap_or_default();
            Ok(Fetched {
                commit,
                files: vec![path],
                notice: Some(format!("{problem}; the cached files are used")),
            })
        }
        result => result,
    }
}

/// Downloads the data set `name`: the Parquet files that the Hub has of a split, or the named files.
pub fn dataset(name: &Name, progress: &mut dyn FnMut(&Progress)) -> Result<Fetched, Error> {
    let revision = listing::dataset_revision(name);
    let chosen = |files: &[Listed]| listing::choose_samples(name, files);
    match fetch(Kind::Dataset, name, revision, &chosen, progress) {
        Err(Error::Unreachable(problem)) => match listing::cached_samples(name) {
            Ok((commit, files)) => {
                Ok(Fetched { commit, files, notice: Some(format!("{problem}; the cached files are used")) })
            }
            Err(_) => Err(Error::Unreachable(format!("{name}: {problem}"))),
        },
        Err(Error::Refused(problem)) if revision == PARQUET && problem.contains("no such revision") => {
            Err(Error::Refused(format!(
                "{name}: the Hub has no Parquet files of this data set; name files of it, such as hf:{}/data/*.jsonl",
                name.repo
            )))
        }
        result => result,
    }
}

/// Chooses files of a repository.
type Choose<'a> = dyn Fn(&[Listed]) -> Result<Vec<Listed>, String> + 'a;

fn fetch(
    kind: Kind,
    name: &Name,
    revision: &str,
    chosen: &Choose,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Fetched, Error> {
    let client = Client::of_environment()?;
    let repo = &*name.repo;
    let (commit, listed) = client.files(kind, repo, revision)?;
    let wanted = chosen(&listed).map_err(|problem| Error::Refused(format!("{name} {problem}")))?;
    let caches = hub::caches();
    let cache =
        caches.first().ok_or_else(|| Error::Refused("no home folder is known; set HF_HOME".into()))?;
    let folder = hub::folder(cache, kind, repo);
    let at = At { kind, repo, commit: &commit };
    let locks = cache.join(".locks").join(folder.file_name().unwrap_or_default());
    for (index, file) in wanted.iter().enumerate() {
        let (blob, lock) = (folder.join("blobs").join(&file.blob), locks.join(format!("{}.lock", file.blob)));
        let number = [index + 1, wanted.len()];
        let mut at_byte =
            |bytes| progress(&Progress { file: &file.path, number, bytes: [bytes, file.bytes] });
        download(&client, &at, file, (&blob, &lock), &mut at_byte)?;
    }
    // Nothing is named before all of it is there.
    let snapshot = folder.join("snapshots").join(&commit);
    let mut paths = Vec::new();
    for file in &wanted {
        let place = snapshot.join(&file.path);
        link(&folder.join("blobs").join(&file.blob), &place)?;
        paths.push(place);
    }
    Record { files: listed }.write(kind, repo, &commit)?;
    if revision != commit {
        files::write_atomic(&folder.join("refs").join(revision), commit.as_bytes())?;
    }
    Ok(Fetched { commit, files: paths, notice: None })
}

/// Links the file of a snapshot to its blob, if it is not there.
fn link(blob: &Path, place: &Path) -> Result<(), Error> {
    let length = |path: &Path| path.metadata().map(|found| found.len()).ok();
    if length(place).is_none() || length(place) != length(blob) {
        files::link(blob, place)?;
    }
    Ok(())
}
