//! The processes of a run that `mpirun` or `srun` started: connecting them, what must be equal on all of them, and how they end.

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail};
use rullama_train::gpu::Gpu;
use rullama_train::recipe::Recipe;
use rullama_train::run::Identity;
use rullama_train::train::Times;
use rullama_train::train::ranks::Ranks;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::message;
use super::output::{self, line};

/// Time for which rank 1 holds an error back: rank 0 reports one that all ranks have.
const AFTER_THE_FIRST: Duration = Duration::from_millis(1000);
/// Time that each further rank waits longer, so that only one of them reports.
const AFTER_THE_NEXT: Duration = Duration::from_millis(200);

/// Runs `work` on every rank that a launcher started, or once. An error of one rank ends all, with one message.
pub fn run(work: impl FnOnce(&Rc<Ranks>) -> Result<ExitCode>) -> Result<ExitCode> {
    let Some(ranks) = connect()? else { return work(&Rc::new(Ranks::alone())) };
    let ranks = Rc::new(ranks);
    match std::panic::catch_unwind(AssertUnwindSafe(|| work(&ranks))) {
        Ok(Ok(code)) => {
            ranks.leave()?;
            Ok(code)
        }
        Ok(Err(error)) => end(&ranks, &message(&error)),
        Err(_) => end(&ranks, "a defect of this program; the message above says where. Please report it"),
    }
}

/// Reports an error and ends all ranks.
fn end(ranks: &Ranks, problem: &str) -> ! {
    wait_for_the_first(ranks.rank());
    output::error(format_args!("{}: {problem}", ranks.name(ranks.rank())));
    ranks.abort();
    std::process::exit(1)
}

fn wait_for_the_first(rank: usize) {
    if rank > 0 {
        std::thread::sleep(AFTER_THE_FIRST + AFTER_THE_NEXT * (rank as u32 - 1).min(20));
    }
}

#[cfg(unix)]
fn connect() -> Result<Option<Ranks>> {
    use rullama_train::train::ranks::mpi::{self, Mpi};

    let Some(launcher) = mpi::launcher(|name| std::env::var(name).ok())? else { return Ok(None) };
    let mpi = Mpi::connect(launcher).inspect_err(|_| {
        // The rank is known only from the launcher.
        let names = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"];
        let rank = names.iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
        wait_for_the_first(rank.unwrap_or(0));
    })?;
    Ok(Some(Ranks::new(Box::new(mpi), &host_name())?))
}

#[cfg(not(unix))]
fn connect() -> Result<Option<Ranks>> {
    if ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"].iter().any(|name| std::env::var_os(name).is_some()) {
        bail!("training on several GPUs needs Linux or macOS; start without the launcher");
    }
    Ok(None)
}

fn host_name() -> String {
    sysinfo::System::host_name().unwrap_or_else(|| "this host".into())
}

/// Refuses a command that would run once per process, and would write or print as often.
pub fn refuse(command: &str) -> Result<()> {
    let started = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"].iter().find_map(|name| std::env::var(name).ok());
    match started.and_then(|started| started.parse::<usize>().ok()) {
        Some(started) if started > 1 => bail!(
            "`{command}` runs in one process, but a launcher started {started}; start it without mpirun or srun (training and `bench` use \
             several)"
        ),
        _ => Ok(()),
    }
}

/// Fails if the ranks read different recipes.
pub fn check_recipe(ranks: &Ranks, recipe: &Recipe) -> Result<()> {
    let text = |recipe: &Recipe| serde_json::to_value(recipe).map(|value| value.to_string());
    let own = text(recipe)?;
    for (rank, other) in ranks.gather(own.as_bytes())?.iter().enumerate() {
        let other = String::from_utf8_lossy(other);
        if other != own {
            let differences = differing_keys(&own, &other);
            let [here, there] = [ranks.name(ranks.rank()), ranks.name(rank)];
            bail!(
                "{here} and {there} have different recipes: {differences}; give every process the same recipe and options"
            );
        }
    }
    Ok(())
}

/// The keys that differ, with both values.
fn differing_keys(own: &str, other: &str) -> String {
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap_or_default();
    let (own, other) = (parse(own), parse(other));
    let mut found = Vec::new();
    for section in own.as_object().into_iter().flat_map(|sections| sections.keys()) {
        let keys = [&own, &other].map(|recipe| recipe[section].as_object().cloned().unwrap_or_default());
        let mut names: Vec<&String> = keys.iter().flat_map(|keys| keys.keys()).collect();
        names.sort();
        names.dedup();
        for name in names {
            let [own, other] = [0, 1]
                .map(|which: usize| keys[which].get(name).map_or("not set".into(), ToString::to_string));
            if own != other {
                found.push(format!("{section}.{name} is {own} and {other}"));
            }
        }
    }
    found.join("; ")
}

/// Facts about a rank before the first step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankFacts {
    /// Its host.
    pub host: String,
    /// Its device, with the driver.
    pub device: String,
    /// The kernels that the device runs.
    pub kernels: String,
    /// The device's place on the bus; empty where the system does not tell.
    pub bus: String,
    /// Whether the device is a software renderer.
    pub software: bool,
    /// Cores that the process may use, of those that the host has.
    pub cores: [usize; 2],
    /// Version of this program.
    pub version: String,
    /// Digests of base and samples.
    pub identity: Option<Identity>,
    /// Tokens per second of forward and backward, as measured with the longest batch.
    pub tokens_per_second: Option<f64>,
}

impl RankFacts {
    /// The facts about this rank.
    pub fn own(gpu: &Gpu, identity: Option<&Identity>) -> RankFacts {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        RankFacts {
            host: host_name(),
            device: gpu.description(),
            kernels: gpu.kernels().to_string(),
            bus: gpu.bus_id().into(),
            software: gpu.is_software(),
            cores: [cores, sysinfo::System::physical_core_count().unwrap_or(cores)],
            version: env!("CARGO_PKG_VERSION").into(),
            identity: identity.cloned(),
            tokens_per_second: None,
        }
    }

    /// The facts about every rank.
    pub fn gather(self, ranks: &Ranks) -> Result<Vec<RankFacts>> {
        let own = serde_json::to_vec(&self)?;
        ranks.gather(&own)?.iter().map(|bytes| Ok(serde_json::from_slice(bytes)?)).collect()
    }
}

/// Fails if two ranks use one GPU, or if something that decides the results differs.
pub fn check(all: &[RankFacts]) -> Result<()> {
    let name = |rank: usize| format!("rank {rank} on {}", all[rank].host);
    for (rank, facts) in all.iter().enumerate() {
        let same_gpu = |other: &RankFacts| {
            !facts.software
                && (&other.host, &other.bus, &other.device) == (&facts.host, &facts.bus, &facts.device)
        };
        if let Some(other) = all[..rank].iter().position(same_gpu) {
            let place = if facts.bus.is_empty() { String::new() } else { format!(" at {}", facts.bus) };
            let gpus = all.iter().filter(|other| other.host == facts.host).map(|other| &other.bus);
            let count = gpus.collect::<std::collections::BTreeSet<_>>().len();
            bail!(
                "{} and {} both use {}{place}, and a GPU trains for one process; start at most {count} on that host",
                name(other),
                name(rank),
                facts.device
            );
        }
        let first = &all[0];
        let unlike = [
            ("version", &facts.version, &first.version),
            ("GPU or driver", &facts.device, &first.device),
            ("kernels", &facts.kernels, &first.kernels),
        ];
        if let Some((what, own, first)) = unlike.into_iter().find(|(_, own, first)| own != first) {
            bail!(
                "{} has another {what} than {}: {own}, and {first}. Results would depend on who computes them; use the same everywhere",
                name(rank),
                name(0)
            );
        }
        if let (Some(own), Some(first)) = (&facts.identity, &first.identity)
            && let [change, ..] = &own.changes_since(first)[..]
        {
            let subject = change.split(" had digest ").next().unwrap_or(change);
            bail!(
                "{} has another base or other samples than {}; what differs is {subject}",
                name(rank),
                name(0)
            );
        }
    }
    Ok(())
}

/// A hint where the launcher binds ranks to single cores, which slows down every copy.
pub fn bound(all: &[RankFacts]) -> Option<String> {
    let facts = all.iter().find(|facts| facts.cores[0] == 1 && facts.cores[1] > 1)?;
    Some(format!(
        "the launcher gives each process one of the {} cores of {}; start with mpirun --bind-to none, or srun --cpu-bind=none",
        facts.cores[1], facts.host
    ))
}

/// Gathers the facts about all ranks, now with a digest of every byte of the base, and checks that they fit together. `show`: whether to
/// print them.
pub fn introduce(ranks: &Ranks, own: RankFacts, show: bool) -> Result<Vec<RankFacts>> {
    let all = own.gather(ranks)?;
    check(&all)?;
    if show && all.len() > 1 {
        self::show(&all);
        super::output::notices(bound(&all).as_slice());
    }
    Ok(all)
}

/// Prints a line for each rank.
pub fn show(all: &[RankFacts]) {
    let slowest = all.iter().filter_map(|facts| facts.tokens_per_second).fold(f64::INFINITY, f64::min);
    let fastest = all.iter().filter_map(|facts| facts.tokens_per_second).fold(0.0, f64::max);
    for (rank, facts) in all.iter().enumerate() {
        let bus = if facts.bus.is_empty() { String::new() } else { format!(" at {}", facts.bus) };
        let speed = facts.tokens_per_second.map_or(String::new(), |speed| {
            let slow = if speed == slowest && fastest > 1.1 * slowest { ", the slowest" } else { "" };
            format!(", {speed:.0} tokens/s in the longest batch{slow}")
        });
        line(&format!("rank {rank}"), format_args!("{}: {}{bus}{speed}", facts.host, facts.device));
    }
}

/// The ranks for `run.json`. `times`: of the steps so far.
pub fn json(all: &[RankFacts], times: Option<&Times>) -> Value {
    let of_rank = |(rank, facts): (usize, &RankFacts)| {
        let steps = times.map_or(0, |times| times.steps);
        let seconds = times.filter(|_| steps > 0).map(|times| times.computes[rank] / steps as f64);
        json!({
            "host": facts.host, "device": facts.device, "bus": facts.bus, "tokens_per_second": facts.tokens_per_second,
            "compute_seconds_per_step": seconds,
        })
    };
    all.iter().enumerate().map(of_rank).collect()
}

/// A line with the parts of a step's time and the slowest rank.
pub fn summary(all: &[RankFacts], times: &Times) -> String {
    let steps = times.steps.max(1) as f64;
    let mean = times.computes.iter().sum::<f64>() / all.len() as f64;
    let slowest =
        (0..all.len()).max_by(|a, b| times.computes[*a].total_cmp(&times.computes[*b])).unwrap_or(0);
    let behind = 100.0 * (times.computes[slowest] / mean - 1.0);
    format!(
        "{} GPUs; per step {:.3} s of computation and {:.3} s of exchange (reading {:.3}, adding and waiting {:.3}, writing {:.3}); rank \
         {slowest} on {} was the slowest, {behind:.0} % behind the mean",
        all.len(),
        mean / steps,
        times.exchange() / steps,
        times.read / steps,
        times.sum / steps,
        times.write / steps,
        all[slowest].host
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(bus: &str) -> RankFacts {
        RankFacts {
            host: "a".into(),
            device: "H200 (Vulkan, 570)".into(),
            bus: bus.into(),
            ..RankFacts::default()
        }
    }

    fn refused(all: &[RankFacts]) -> String {
        check(all).expect_err("refused").to_string()
    }

    #[test]
    fn each_rank_needs_a_gpu_of_its_own() {
        assert!(check(&[facts("06:00.0"), facts("07:00.0")]).is_ok());
        assert!(check(&[facts("06:00.0"), RankFacts { host: "b".into(), ..facts("06:00.0") }]).is_ok());
        let software = RankFacts { software: true, ..facts("") };
        assert!(check(&[software.clone(), software]).is_ok());
        assert_eq!(
            refused(&[facts("06:00.0"), facts("06:00.0")]),
            "rank 0 on a and rank 1 on a both use H200 (Vulkan, 570) at 06:00.0, and a GPU trains for one process; start at most 1 \
             on that host"
        );
    }

    #[test]
    fn unlike_ranks_are_refused() {
        let other = RankFacts { device: "H200 (Vulkan, 580)".into(), host: "b".into(), ..facts("06:00.0") };
        assert_eq!(
            refused(&[facts("06:00.0"), other]),
            "rank 1 on b has another GPU or driver than rank 0 on a: H200 (Vulkan, 580), and H200 (Vulkan, 570). Results would depend \
             on who computes them; use the same everywhere"
        );
        let identity = |train: &str| Identity {
            base: "b".into(),
            contents: None,
            tokenizer: "t".into(),
            train: train.into(),
            validation: "v".into(),
            initial: None,
            teacher: None,
        };
        let with = |bus, train| RankFacts { identity: Some(identity(train)), ..facts(bus) };
        let text = refused(&[with("06", "0123"), with("07", "4567")]);
        assert!(text.contains("rank 1 on a has another base or other samples than rank 0 on a"), "{text}");
        assert!(text.contains("the training samples (data.train)"), "{text}");
    }

    #[test]
    fn bound_ranks_are_pointed_out() {
        let with = |cores| RankFacts { cores, ..facts("") };
        assert_eq!(bound(&[with([32, 32]), with([32, 32])]), None);
        assert_eq!(bound(&[with([1, 1])]), None);
        assert!(bound(&[with([1, 32])]).is_some_and(|text| text.contains("--bind-to none")));
    }
}
