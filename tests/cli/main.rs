//! The program on the command line: bad input gives one clear error and leaves no files behind; good input gives the
//! documented results.

#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "some tests are of Linux alone"))]

mod agents;
mod attacks;
mod bench;
mod check;
mod completions;
mod describe;
mod distill;
mod exports;
mod families;
mod faults;
#[path = "../common/gguf_writer.rs"]
mod gguf_writer;
#[path = "../common/gpu.rs"]
mod gpu;
mod hub;
mod hub_server;
mod ids;
#[cfg(target_os = "linux")]
mod install;
mod kills;
mod make_data;
mod metrics;
#[cfg(unix)]
mod mpi;
mod offload;
#[cfg(unix)]
mod ollama;
mod pipelines;
mod place;
mod refusals;
mod resume;
mod rewards;
mod selftest;
mod serve;
mod talk;
#[path = "../common/tool_base.rs"]
mod tool_base;
mod train;
mod ui;
mod watched;

use std::process::ExitCode;

use gpu::trials;
use libtest_mimic::Arguments;
use place::{DATA, Place, RECIPE, matches, texts};
use rullama_train::gpu::{Gpu, GpuOptions};

/// The programs or hardware without which a test does not run.
#[derive(Clone, Copy, PartialEq)]
enum Needs {
    Nothing,
    Device,
    /// A device, and Open MPI.
    Mpi,
    /// A device that does without large files, and a file system to fill.
    FullDisk,
    /// Minutes.
    Time,
}

type Test = (Needs, &'static str, fn(Place));

const TESTS: &[Test] = &[
    (Needs::Nothing, "a command or a recipe that is something else is refused", refusals::commands),
    (Needs::Nothing, "a recipe with a mistake is refused", refusals::recipes),
    (Needs::Nothing, "an override with a mistake is refused", refusals::overrides),
    (Needs::Nothing, "a dataset with a mistake is refused", refusals::datasets),
    (Needs::Nothing, "a model that cannot be used is refused", refusals::models),
    (Needs::Nothing, "a model that Ollama does not have is refused", refusals::ollama),
    (Needs::Nothing, "an adapter that does not fit is refused", refusals::adapters),
    (Needs::Nothing, "an output path that cannot be written is refused", refusals::places),
    (Needs::Nothing, "a teacher that cannot be one is refused", distill::refusals),
    (Needs::Nothing, "a repair of nothing is refused", distill::repair_refusals),
    (Needs::Nothing, "metrics that do not suit the samples are refused", metrics::refusals),
    (Needs::Nothing, "evaluation without validation data is refused", refusals::no_validation),
    (Needs::Nothing, "bench options with mistakes are refused", bench::bench_numbers),
    (Needs::Nothing, "a missing device is refused", refusals::no_device),
    (Needs::Nothing, "chat, generate and serve options with mistakes are refused", talk::refusals),
    (Needs::Nothing, "rewards with mistakes are refused", rewards::refusals),
    (Needs::Nothing, "init writes a recipe that fits the samples", describe::init),
    (Needs::Nothing, "inspect describes models", describe::inspect_models),
    (Needs::Nothing, "inspect describes adapters", describe::inspect_adapters),
    (Needs::Nothing, "inspect describes samples", describe::inspect_samples),
    (Needs::Nothing, "inspect prints token ids", ids::inspect),
    (Needs::Nothing, "models lists Ollama's models", describe::models),
    (Needs::Nothing, "models of every store are found, once, and named alike everywhere", hub::stores),
    #[cfg(target_os = "linux")]
    (Needs::Device, "a model of every store is trained by its name", hub::trained_by_name),
    (Needs::Nothing, "a model of the Hub is downloaded when it is named", hub::model),
    (Needs::Nothing, "downloads survive what goes wrong", hub::trouble),
    (Needs::Nothing, "a download that is killed at ten moments is continued", hub::killed),
    (Needs::Nothing, "an adapter is sent to the Hub with its model card", hub::push),
    (Needs::Nothing, "example writes the tasks of the repository", agents::example),
    (Needs::Nothing, "commands for people print one object with --json", agents::json),
    #[cfg(target_os = "linux")]
    (Needs::Nothing, "the script installs what it has the digest of", install::script),
    #[cfg(target_os = "linux")]
    (Needs::Nothing, "bash completes names of models around their colon", install::completed),
    (Needs::Nothing, "make-data keeps sources, and drops by rules", make_data::make_data),
    (Needs::Nothing, "a data set of the Hub is found by its split or its files", hub::samples),
    (
        Needs::Nothing,
        "completions, manual pages and the Markdown reference cover every command",
        describe::manual,
    ),
    (Needs::Nothing, "web without the built-in page says how to build it", refusals::web),
    #[cfg(unix)]
    (Needs::Nothing, "a launcher without a library that can be used is refused", mpi::libraries),
    #[cfg(unix)]
    (Needs::Nothing, "merge --ollama calls ollama, and never replaces a model unasked", ollama::merge),
    #[cfg(unix)]
    (Needs::Nothing, "a Modelfile has the template of its base", ollama::modelfile),
    #[cfg(unix)]
    (Needs::Nothing, "merge without ollama prints the command", ollama::not_installed),
    (Needs::Device, "check prints a summary and writes no files", check::check),
    (Needs::Device, "check --gradients writes one file", check::check_gradients),
    (Needs::Device, "check --json has numbers", agents::check),
    (Needs::Device, "an MCP client trains and exports within its folders", agents::mcp),
    (
        Needs::Device,
        "experts in host memory are reported, and do not change a byte of the results",
        offload::offload,
    ),
    (Needs::Device, "a recipe that init writes can be trained", describe::init_trains),
    (Needs::Device, "every recipe for the tiny base gets to its first step", describe::shipped),
    (Needs::Device, "inspect describes runs and checkpoints", describe::inspect_runs),
    (Needs::Device, "train writes the same adapter each time", train::train),
    (Needs::Device, "eval gives the same losses as training", train::eval),
    (Needs::Device, "a run on a base and samples of the Hub records what they were", hub::train),
    (Needs::Device, "exports and merges are verified before they are written", exports::exports),
    (Needs::Device, "metrics of generated answers are everywhere", metrics::everywhere),
    (Needs::Device, "bench reports a speed", bench::bench),
    (Needs::Device, "bench --plan prints the smallest limit that fits", bench::plan),
    (Needs::Device, "bench --fits prints the longest sequences", bench::fits),
    (Needs::Device, "bench --fits --time writes a table and resumes it", bench::timed_fits),
    (Needs::Device, "bench --sweep writes a page with charts", bench::sweep),
    (Needs::Device, "eval on given files compares base and adapter", watched::eval_files),
    (Needs::Device, "validation files are scored separately", watched::sources),
    (Needs::Device, "an overflow is an error, not a loss", watched::eval_overflow),
    (Needs::Device, "training that changes nothing is an error", watched::changes_nothing),
    (Needs::Device, "train --json prints one object per line, --quiet prints nothing", watched::voices),
    (Needs::Device, "the report is one page that needs no network", watched::report),
    (Needs::Device, "a closed stdout does not stop check", check::closed_pipe),
    (Needs::Device, "a run that is killed and resumed gives the same bytes", resume::killed),
    (Needs::Device, "a student learns from a teacher, killed and resumed", distill::distill),
    (Needs::Device, "a base learns from itself with a context", distill::itself),
    (Needs::Device, "a strongly quantized base is repaired", distill::repair),
    (
        Needs::Device,
        "a run that compares answers, killed and resumed, gives the same bytes",
        resume::killed_preference,
    ),
    (
        Needs::Device,
        "a run with every feature, killed at random moments and resumed, gives the same bytes",
        kills::three_moments,
    ),
    (Needs::Device, "a run cannot be resumed with settings that change its results", resume::changed),
    (Needs::Device, "a finished run is extended or replaced only on request", resume::finished),
    (Needs::Device, "a damaged checkpoint is reported, and the previous one is used", resume::damaged),
    (Needs::Device, "one run per folder", resume::locked),
    (Needs::Device, "a loss that is not finite stops the run", resume::not_finite),
    (Needs::Device, "the best adapter is kept, and early stopping ends the run", resume::best),
    (Needs::Device, "generate replies to prompts", talk::generate),
    (Needs::Device, "replies are judged by rewards", rewards::judged),
    #[cfg(unix)]
    (Needs::Device, "replies are judged by a program", rewards::program),
    (Needs::Device, "dpo learns from the best and the worst of several replies", rewards::best_of_n),
    (Needs::Device, "chat keeps the conversation", talk::chat_commands),
    (Needs::Device, "serve answers like OpenAI's API", serve::serve),
    (Needs::Device, "serve answers several requests at once", serve::together),
    (Needs::Device, "serve rejects bad requests like OpenAI's API", serve::bad_requests),
    (Needs::Device, "serve continues text and gives log-probabilities", completions::completions),
    (Needs::Device, "serve refuses in words for clients", completions::words),
    (
        Needs::Device,
        "serve stops generating when the client disconnects, and stops on Ctrl-C",
        attacks::goes_away,
    ),
    (Needs::Device, "serve refuses pages of other origins and clients without the key", attacks::strangers),
    (Needs::Device, "serve answers during floods of connections, headers and bodies", attacks::floods),
    (Needs::Device, "serve drops a client that reads nothing", attacks::reads_nothing),
    (Needs::Device, "serve returns tool calls", serve::tools),
    (Needs::Device, "ui refuses strangers and pages of other ports", ui::strangers),
    (Needs::Device, "ui reads and writes nothing outside the chosen folders", ui::outside),
    (Needs::Device, "ui trains, replies, exports and merges", ui::whole),
    (Needs::Device, "ui pauses, stops and resumes a run, which goes on without the page", ui::long_run),
    (Needs::Device, "models with delta nets are trained, merged, and reply", families::delta_nets),
    (Needs::Device, "replies follow the template", talk::templates),
    (Needs::Device, "bench --decode reports speeds", bench::bench_decode),
    (Needs::Device, "a device is tested at its first use, and what fails is turned off", selftest::first_use),
    (Needs::Device, "check --lr proposes a rate and leaves the run alone", check::learning_rate),
    #[cfg(unix)]
    (Needs::Device, "a finished run creates its model in Ollama", ollama::after_training),
    #[cfg(unix)]
    (Needs::Device, "an evening, from a table to a model in Ollama", ollama::evening),
    (Needs::Device, "a disk that fails is one error, and the run can be resumed", faults::disk),
    (Needs::Device, "a device that is lost is one error, and the run can be resumed", faults::device),
    #[cfg(unix)]
    (Needs::Device, "an interrupted merge or export leaves nothing behind", kills::merges),
    #[cfg(target_os = "linux")]
    (Needs::Device, "a merge whose base becomes shorter leaves nothing behind", kills::cut_base),
    #[cfg(unix)]
    (Needs::Device, "events go to a hook and a CSV file", watched::log),
    #[cfg(unix)]
    (Needs::Device, "Ctrl-C saves a checkpoint and says how to resume", resume::interrupted),
    #[cfg(unix)]
    (Needs::Device, "a second Ctrl-C quits at once", resume::interrupted_twice),
    #[cfg(target_os = "linux")]
    (
        Needs::Device,
        "compiled kernels are cached, and a damaged cache does not stop a run",
        pipelines::damaged,
    ),
    #[cfg(target_os = "linux")]
    (Needs::Device, "every command uses and extends the cache of compiled kernels", pipelines::everywhere),
    #[cfg(unix)]
    (Needs::Mpi, "two processes under mpirun give the bytes of one, also after a kill", mpi::two_processes),
    #[cfg(unix)]
    (Needs::Mpi, "two processes with a teacher give the bytes of one", mpi::taught),
    #[cfg(unix)]
    (Needs::Mpi, "processes that cannot train together are refused", mpi::refusals),
    #[cfg(target_os = "linux")]
    (Needs::FullDisk, "a full disk is one error, and the run can be resumed", resume::full_disk),
    (Needs::Time, "a disk that fails at any call is one error", faults::disk_every),
    (Needs::Time, "a device that is lost at any submission is one error", faults::device_every),
    (Needs::Time, "a run killed at thirty random moments gives the same bytes", kills::thirty_moments),
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let cache = place::share_cache();
    gpu::quiet_mesa();
    let missing = pollster::block_on(Gpu::open(GpuOptions::default())).err();
    if let Some(error) = &missing {
        eprintln!("tests that need a GPU are ignored: {error}");
    }
    let has_device = missing.is_none();
    let trial = |&(needs, name, test): &Test| {
        let run = move || {
            test(Place::new());
            Ok(())
        };
        trials::trial(name, ignored(needs, has_device), run)
    };
    let status = trials::run(&arguments, TESTS.iter().map(trial).collect());
    drop(cache);
    status
}

/// Why a test is ignored, if it is.
fn ignored(needs: Needs, has_device: bool) -> Option<&'static str> {
    match needs {
        Needs::Nothing => None,
        Needs::Time => Some(trials::SLOW),
        _ if !has_device => Some(trials::NO_DEVICE),
        Needs::Device => None,
        #[cfg(unix)]
        Needs::Mpi => (!mpi::is_installed()).then_some("needs Open MPI"),
        #[cfg(target_os = "linux")]
        Needs::FullDisk => {
            (!resume::device_needs_no_large_files()).then_some("needs a device without large files")
        }
        #[allow(unreachable_patterns, reason = "where each kind of test exists")]
        _ => None,
    }
}
