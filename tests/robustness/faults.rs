//! Each call that changes files fails once, or the disk is full or gone from that call on. Afterwards the earlier files are sound,
//! and the same work without the fault gives the same bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rullama_train::adapter::lora::{Adapter, slots};
use rullama_train::adapter::merge::{self, MergeType};
use rullama_train::adapter::{self, Format, WriteOptions, read_any};
use rullama_train::base::{Base, Gguf, Module};
use rullama_train::data::dataset::cache::{Cache, Entry};
use rullama_train::data::dataset::{self, Options};
use rullama_train::data::template::Template;
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::families::gemma4;
use rullama_train::files::faults::{self, Fault};
use rullama_train::files::{self, GrowingFile};
use rullama_train::recipe::{Recipe, Syntax};
use rullama_train::run::Identity;
use rullama_train::run::checkpoint::{self, Checkpoint};

use crate::mutate::GgufWriter;

/// Every file and folder below a folder; files with their bytes. Temporary ones are left out.
type Contents = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// Work on files of a folder.
struct Work<'a> {
    name: &'a str,
    /// Creates the files that are there before.
    prepare: &'a dyn Fn(&Path),
    /// Writes. May be repeated after an error.
    write: &'a dyn Fn(&Path) -> Result<(), String>,
    /// Panics if something half-written stands in place of something good, or if something good is gone. After
    /// [`Fault::Gone`], which cannot be put in order, a folder may be one that no reader accepts.
    check: &'a dyn Fn(&Path, Fault),
}

impl Work<'_> {
    /// Tries each fault at each call.
    fn fails_safely(&self) {
        let dir = tempfile::tempdir().expect("a folder");
        (self.prepare)(dir.path());
        (self.write)(dir.path()).expect("no fault");
        let after = contents(dir.path());
        for kind in [Fault::Once, Fault::Full, Fault::Gone] {
            let first_without = (1..).find(|&call| !self.survives(kind(call), &after)).expect("work ends");
            assert!(first_without > 3, "{}: almost nothing was written", self.name);
        }
    }

    /// Returns false if the work ends before the call that would fail.
    fn survives(&self, fault: Fault, after: &Contents) -> bool {
        let dir = tempfile::tempdir().expect("a folder");
        (self.prepare)(dir.path());
        faults::set(Some(fault));
        let result = (self.write)(dir.path());
        let calls = faults::calls();
        faults::set(None);
        (self.check)(dir.path(), fault);

        let (n, cause) = match fault {
            Fault::Once(n) => (n, "a fault of the disk"),
            Fault::Full(n) => (n, "no storage space; free some space, or choose another disk"),
            Fault::Gone(n) => (n, "the disk is gone"),
        };
        let what = format!("{}, {fault:?} of {calls} calls: {result:?}", self.name);
        if let Err(message) = result {
            assert!(message.contains(cause) && !message.contains('\n'), "{what}");
            assert!(message.contains(&*dir.path().to_string_lossy()), "the file is not named: {what}");
            assert!(!message.contains("unfinished"), "the file is a temporary one: {what}");
        } else {
            assert!(contents(dir.path()) == *after, "{what}");
        }
        files::remove_unfinished(dir.path()).expect("removed");
        (self.write)(dir.path()).expect("no fault any more");
        assert!(contents(dir.path()) == *after, "{what}: the second attempt gives other bytes");
        n <= calls
    }
}

fn contents(dir: &Path) -> Contents {
    fn walk(dir: &Path, root: &Path, found: &mut Contents) {
        for entry in fs::read_dir(dir).expect("a folder").flatten() {
            let path = entry.path();
            if entry.file_name().to_string_lossy().starts_with(".unfinished-") {
                continue;
            }
            let name = path.strip_prefix(root).expect("inside").to_path_buf();
            found.insert(name, path.is_file().then(|| fs::read(&path).expect("read")));
            if path.is_dir() {
                walk(&path, root, found);
            }
        }
    }
    let mut found = Contents::new();
    walk(dir, dir, &mut found);
    found
}

const MODULES: [Module; 2] = [Module::AttnQ, Module::FfnDown];

/// A base of a few kilobytes.
fn base() -> Base {
    let gguf = Gguf::from_bytes(GgufWriter::gemma4().bytes(), "small").expect("sound");
    Base::from_gguf(gguf, "small").expect("sound")
}

fn adapter(base: &Base, seed: u64) -> Adapter {
    let mut adapter = Adapter::init(&slots(base.config(), &MODULES), 2, 4.0, false, seed);
    for pair in adapter.pairs.values_mut() {
        pair.b.iter_mut().enumerate().for_each(|(i, b)| *b = (i as f32 + seed as f32).sin());
    }
    adapter
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[test]
fn checkpoints_survive_every_fault() {
    let base = base();
    let recipe = "model.base = 'x'\ndata.train = 'a'\noutput.dir = 'b'\nlora.rank = 2";
    let recipe = Recipe::parse(recipe, Syntax::Toml, "r.toml", &[("", ""); 0]).expect("sound");
    let digest = |text: &str| text.to_string();
    let checkpoint = |step: usize| Checkpoint {
        step,
        steps: 9,
        recipe: recipe.clone(),
        identity: Identity {
            base: digest("b"),
            contents: None,
            tokenizer: digest("t"),
            train: digest("d"),
            validation: digest("v"),
            initial: None,
            teacher: None,
        },
        adapter: adapter(&base, step as u64),
        first: adapter(&base, 20).pairs,
        second: adapter(&base, 30).pairs,
        updates: step as u64,
        changed: Vec::new(),
        choices: Default::default(),
        best: Some((1, Some(adapter(&base, 40).pairs))),
        metrics: "{\"event\":\"step\"}\n".into(),
        timing: String::new(),
        completions: None,
    };
    let read = |path: &Path| Checkpoint::read(path, base.config(), |_| Ok(slots(base.config(), &MODULES)));
    let keep = |dir: &Path, step: usize| {
        checkpoint(step).write(dir, &base).map_err(text)?;
        checkpoint::prune(dir, 2).map_err(text)
    };
    Work {
        name: "a third checkpoint, after which the first is removed",
        prepare: &|dir| [3, 4].into_iter().for_each(|step| keep(dir, step).expect("no fault")),
        write: &|dir| keep(dir, 5),
        check: &|dir, fault| {
            let found = checkpoint::list(dir);
            let steps: Vec<usize> = found.iter().map(|(step, _)| *step).collect();
            assert!([&[4, 3][..], &[5, 4, 3], &[5, 4]].contains(&&steps[..]), "{fault:?}: {steps:?}");
            for (step, path) in found {
                assert_eq!(read(&path).map_err(text), Ok(checkpoint(step)), "{fault:?}");
            }
        },
    }
    .fails_safely();
}

#[test]
fn exports_survive_every_fault() {
    let base = base();
    let config = base.config();
    let options = WriteOptions { base_model: "x", dropout: 0.0, fingerprint: None, vocabulary: None };
    for format in Format::ALL {
        let write = |dir: &Path, seed: u64| {
            adapter::write(dir, format, &adapter(&base, seed), config, &options).map(drop).map_err(text)
        };
        let [earlier, new] = [1, 2].map(|seed| {
            let dir = tempfile::tempdir().expect("a folder");
            write(dir.path(), seed).expect("no fault");
            read_any(&format.place(dir.path()), config, None).expect("sound")
        });
        let check = |dir: &Path, fault: Fault| match read_any(&format.place(dir), config, None) {
            Ok(found) => assert!(found == earlier || found == new, "{format:?}, {fault:?}: a mixture"),
            Err(error) => {
                assert!(matches!(fault, Fault::Gone(_)), "{format:?}, {fault:?}: {error}");
            }
        };
        let prepare = |dir: &Path| write(dir, 1).expect("no fault");
        Work { name: format.name(), prepare: &prepare, write: &|dir| write(dir, 2), check: &check }
            .fails_safely();
        // Into a folder that does not exist yet.
        let path = |dir: &Path| dir.join("new");
        let check = |dir: &Path, fault: Fault| {
            let place = format.place(&path(dir));
            assert!(!place.exists() || read_any(&place, config, None).is_ok(), "{format:?}, {fault:?}");
        };
        Work { name: format.name(), prepare: &|_| (), write: &|dir| write(&path(dir), 2), check: &check }
            .fails_safely();
    }
}

#[test]
fn merged_models_survive_every_fault() {
    let base = base();
    let merge = |path: &Path, seed: u64| {
        merge::write(path, &base, &adapter(&base, seed), MergeType::Auto, |_| ()).map(drop).map_err(text)
    };
    let sound = [1, 2].map(|seed| {
        let dir = tempfile::tempdir().expect("a folder");
        merge(&dir.path().join("merged.gguf"), seed).expect("no fault");
        fs::read(dir.path().join("merged.gguf")).expect("there")
    });
    Work {
        name: "merge",
        prepare: &|dir| merge(&dir.join("merged.gguf"), 1).expect("no fault"),
        // As the command does: beside its place, then moved there.
        write: &|dir| {
            let path = dir.join("merged.gguf");
            let staged = files::beside(&path).map_err(text)?;
            let temporary = staged.path().join("merged.gguf");
            let name = staged.path().display().to_string();
            merge(&temporary, 2).map_err(|e| e.replace(&name, &dir.display().to_string()))?;
            files::replace(&temporary, &path).map_err(text)
        },
        check: &|dir, fault| {
            let found = fs::read(dir.join("merged.gguf")).expect("there");
            assert!(sound.contains(&found), "{fault:?}: {} bytes", found.len());
        },
    }
    .fails_safely();
}

#[test]
fn caches_of_tokens_survive_every_fault() {
    let tokenizer = Tokenizer::from_gguf(Base::tiny().expect("sound").gguf()).expect("sound");
    let template = Template::BuiltIn(&gemma4::template::SMALL);
    let options = Options { max_seq_len: 64, ..Options::new(&template) };
    let parse = |text: &str| dataset::parse(text.as_bytes(), "x", &tokenizer, &options).expect("sound");
    let sets = [parse("{\"prompt\": \"a\", \"completion\": \"b\"}"), parse("{\"text\": \"To the end.\"}")];
    let cache = |dir: &Path| Cache { dir: dir.to_owned(), least_bytes: 0 };
    Work {
        name: "cache",
        prepare: &|dir| cache(dir).store("key", &sets[0]).expect("no fault"),
        write: &|dir| cache(dir).store("key", &sets[1]).map_err(text),
        check: &|dir, fault| match cache(dir).load("key", "x") {
            Entry::Found(found) => assert!(sets.contains(&found), "{fault:?}"),
            _ => panic!("{fault:?}: the entry is missing or damaged"),
        },
    }
    .fails_safely();
}

#[test]
fn reports_and_growing_files_survive_every_fault() {
    let page = |n: usize| format!("<p>{n}</p>").repeat(5000).into_bytes();
    Work {
        name: "report",
        prepare: &|dir| files::write_atomic(&dir.join("report.html"), &page(1)).expect("no fault"),
        write: &|dir| files::write_atomic(&dir.join("report.html"), &page(2)).map_err(text),
        check: &|dir, fault| {
            let found = fs::read(dir.join("report.html")).expect("there");
            assert!(found == page(1) || found == page(2), "{fault:?}");
        },
    }
    .fails_safely();
    let lines = |n: usize| "{\"event\":\"step\"}\n".repeat(n);
    let grow = |dir: &Path| {
        let mut file = GrowingFile::create(dir.join("metrics.jsonl"), lines(2).as_bytes())?;
        (0..3).try_for_each(|_| file.append(lines(1).as_bytes()))
    };
    Work {
        name: "metrics",
        prepare: &|dir| {
            files::write_atomic(&dir.join("metrics.jsonl"), lines(3).as_bytes()).expect("no fault")
        },
        write: &|dir| grow(dir).map_err(text),
        check: &|dir, fault| {
            let found = fs::read_to_string(dir.join("metrics.jsonl")).expect("there");
            assert!(found.starts_with(&lines(2)) && lines(5).starts_with(&found), "{fault:?}: {found}");
        },
    }
    .fails_safely();
}
