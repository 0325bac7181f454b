//! Reads many changed inputs in one process, and prints a table.
//!
//! `storm TARGET N SEED` reads N inputs; `storm all N SEED` does it for every target; `storm TARGET FILE…` reads files. Inputs that are
//! wrong, panic, hang or take too much memory are kept in `artifacts/TARGET/`. With `KEEP=1`, the first input of each message is kept
//! in `corpus/TARGET/`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rullama_fuzz::mutate::mutate;
use rullama_fuzz::rng::Rng;
use rullama_fuzz::targets::{Outcome, TARGETS, Target, named};

/// Memory that an input may take, of which none is larger than 1 MiB.
const MOST_BYTES: usize = 1 << 30;
/// Processor time that an input may take.
const MOST_TIME: Duration = Duration::from_secs(5);
/// Time that an input may take on a machine that does other work.
const LONGEST: Duration = Duration::from_secs(1200);

/// Counts bytes. Ends the process where an input takes too many.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static FLOODED: AtomicBool = AtomicBool::new(false);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        if live > MOST_BYTES && !FLOODED.swap(true, Relaxed) {
            eprintln!("flood: more than {MOST_BYTES} bytes; the input is in {}", last_input().display());
            exit(3);
        }
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Milliseconds since the start at which the current input was begun.
static BEGUN: AtomicU64 = AtomicU64::new(u64::MAX);

/// File into which each input is written before it is read, so that a crash of the process leaves it there.
fn last_input() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    folder.join(format!("storm-input-{}", std::process::id()))
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, rest @ ..] = &arguments[..] else { usage() };
    // One thread does all work of the readers, on a stack as small as those on which the program reads samples.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).stack_size(2 << 20).build().expect("a thread");
    let clean = pool.install(|| run(name, rest));
    let _ = fs::remove_file(last_input());
    exit(if clean { 0 } else { 1 })
}

fn usage() -> ! {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    eprintln!("storm TARGET|all N SEED, or storm TARGET FILE...; targets: {}", names.join(" "));
    exit(2)
}

fn run(name: &str, rest: &[String]) -> bool {
    if name == "all" {
        let each = |target: &Target| {
            std::process::Command::new(std::env::current_exe().expect("itself"))
                .arg(target.name)
                .args(rest)
                .status()
        };
        return TARGETS.iter().filter(|target| !each(target).is_ok_and(|status| status.success())).count()
            == 0;
    }
    let Some(target) = named(name) else { usage() };
    if let [n, seed] = rest
        && let (Ok(n), Ok(seed)) = (n.parse(), seed.parse())
    {
        watch(Instant::now());
        return storm(target, n, seed);
    }
    for file in rest {
        println!("{file}: {:?}", (target.read)(&fs::read(file).expect("a file")));
    }
    !rest.is_empty()
}

/// Processor time of a process or of a thread, as Linux counts it; elsewhere the time since the first call.
fn worked(place: &str) -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let text = fs::read_to_string(format!("/proc/{place}/schedstat")).ok();
    let nanoseconds = text.and_then(|text| text.split(' ').next()?.parse().ok());
    nanoseconds.map_or_else(|| START.get_or_init(Instant::now).elapsed(), Duration::from_nanos)
}

/// Ends the process where an input takes too long on the calling thread.
fn watch(start: Instant) {
    START.set(start).expect("set once");
    let thread =
        fs::read_link("/proc/thread-self").map_or_else(|_| String::new(), |path| path.display().to_string());
    let mut seen = (u64::MAX, Duration::ZERO);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(200));
            let (now, begun, worked) = (start.elapsed(), BEGUN.load(Relaxed), worked(&thread));
            if begun != seen.0 {
                seen = (begun, worked);
            }
            let late = now.saturating_sub(Duration::from_millis(begun)) > LONGEST;
            if begun != u64::MAX && (late || worked.saturating_sub(seen.1) > MOST_TIME) {
                eprintln!("hang: more than {MOST_TIME:?}; the input is in {}", last_input().display());
                exit(4);
            }
        }
    });
}

static START: OnceLock<Instant> = OnceLock::new();

#[derive(Default)]
struct Table {
    accepted: usize,
    refused: usize,
    panics: usize,
    wrong: usize,
    peak: usize,
    slowest: Duration,
}

fn storm(target: &Target, n: usize, seed: u64) -> bool {
    std::panic::set_hook(Box::new(|_| {}));
    let seeds = inputs(target);
    let (mut table, mut messages) = (Table::default(), HashSet::new());
    for index in 0..n {
        let mut rng = Rng(seed.wrapping_mul(1 << 40).wrapping_add(index as u64));
        let input = mutate(&mut rng, target.kind, rng_pick(&seeds, seed, index));
        one(target, &input, &mut table, &mut messages);
    }
    let Table { accepted, refused, panics, wrong, peak, slowest } = table;
    println!(
        "| {} | {n} | {accepted} | {refused} | {panics} | {wrong} | 0 | {} | slowest {slowest:.1?}, {} messages |",
        target.name,
        peak >> 20,
        messages.len()
    );
    panics + wrong == 0
}

fn rng_pick(seeds: &[Vec<u8>], seed: u64, index: usize) -> &[u8] {
    &seeds[Rng(seed ^ (index as u64) << 1).below(seeds.len())]
}

/// Sound inputs and the corpus.
fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let mut inputs = (target.sound)();
    for input in &inputs {
        assert_eq!((target.read)(input), Outcome::Accepted, "{}: a sound input", target.name);
    }
    let mut files: Vec<PathBuf> = fs::read_dir(folder("corpus", target))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    files.sort();
    inputs.extend(files.iter().map(|path| fs::read(path).expect("a file")));
    inputs
}

fn folder(kind: &str, target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(kind).join(target.name)
}

fn one(target: &Target, input: &[u8], table: &mut Table, messages: &mut HashSet<String>) {
    let _ = fs::write(last_input(), input);
    let (began, before) = (worked("thread-self"), LIVE.load(Relaxed));
    PEAK.store(before, Relaxed);
    BEGUN.store(START.get().map_or(0, |start| start.elapsed().as_millis() as u64), Relaxed);
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.read)(input)));
    BEGUN.store(u64::MAX, Relaxed);
    table.peak = table.peak.max(PEAK.load(Relaxed).saturating_sub(before));
    table.slowest = table.slowest.max(worked("thread-self").saturating_sub(began));
    let message = match outcome {
        Ok(Outcome::Accepted) => {
            table.accepted += 1;
            return;
        }
        Ok(Outcome::Refused(message)) => {
            table.refused += 1;
            if messages.insert(kind_of(&message)) && std::env::var_os("KEEP").is_some() && input.len() <= 4096
            {
                keep("corpus", target, input);
            }
            return;
        }
        Ok(Outcome::Wrong(problem)) => {
            table.wrong += 1;
            problem
        }
        Err(panic) => {
            table.panics += 1;
            let text = panic.downcast_ref::<String>().cloned();
            text.or(panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default()
        }
    };
    if messages.insert(kind_of(&message)) {
        let path = keep("artifacts", target, input);
        eprintln!("{}: {}: {}", target.name, path.display(), message.chars().take(300).collect::<String>());
    }
}

/// A message without its numbers and names.
fn kind_of(message: &str) -> String {
    let words = message
        .split_whitespace()
        .filter(|word| word.chars().all(|c| c.is_alphabetic() || c == ',' || c == ';'));
    words.take(12).collect::<Vec<_>>().join(" ")
}

fn keep(kind: &str, target: &Target, input: &[u8]) -> PathBuf {
    use sha2::{Digest, Sha256};
    let name: String = Sha256::digest(input).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    let path = folder(kind, target).join(name);
    fs::create_dir_all(folder(kind, target)).expect("created");
    fs::write(&path, input).expect("written");
    path
}
