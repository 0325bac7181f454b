//! The program on the command line: bad input gives one clear error and leaves no files behind; good input gives the
//! documented results.

mod attacks;
mod bench;
mod check;
mod completions;
mod describe;
mod exports;
mod families;
mod faults;
#[path = "../common/gguf_writer.rs"]
mod gguf_writer;
#[path = "../common/gpu.rs"]
mod gpu;
mod ids;
mod kills;
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
mod selftest;
mod serve;
mod talk;
#[path = "../common/tool_base.rs"]
mod tool_base;
mod train;
mod ui;
mod watched;

use libtest_mimic::{Arguments, Trial};
use place::{DATA, Place, RECIPE, matches, texts};
use rullama_train::gpu::{Backend, Gpu};

/// A test's name and what it does.
type Test = (&'static str, fn(Place));

fn main() {
    let arguments = Arguments::from_args();
    let cache = place::share_cache();
    gpu::quiet_mesa();
    let missing = pollster::block_on(Gpu::open(Backend::Auto, None, false)).err();
    if let Some(error) = &missing {
        eprintln!("tests that need a GPU are ignored: {error}");
    }
    let anywhere: [Test; 21] = [
        ("a command or a recipe that is something else is refused", refusals::commands),
        ("a recipe with a mistake is refused", refusals::recipes),
        ("an override with a mistake is refused", refusals::overrides),
        ("a dataset with a mistake is refused", refusals::datasets),
        ("a model that cannot be used is refused", refusals::models),
        ("a model that Ollama does not have is refused", refusals::ollama),
        ("an adapter that does not fit is refused", refusals::adapters),
        ("an output path that cannot be written is refused", refusals::places),
        ("metrics that do not suit the samples are refused", metrics::refusals),
        ("evaluation without validation data is refused", refusals::no_validation),
        ("bench options with mistakes are refused", bench::bench_numbers),
        ("a missing device is refused", refusals::no_device),
        ("chat, generate and serve options with mistakes are refused", talk::refusals),
        ("init writes a recipe that fits the samples", describe::init),
        ("inspect describes models", describe::inspect_models),
        ("inspect describes adapters", describe::inspect_adapters),
        ("inspect describes samples", describe::inspect_samples),
        ("inspect prints token ids", ids::inspect),
        ("models lists Ollama's models", describe::models),
        ("completions, manual pages and the Markdown reference cover every command", describe::manual),
        ("web without the built-in page says how to build it", refusals::web),
    ];
    let mut on_a_device: Vec<Test> = vec![
        ("check prints a summary and writes no files", check::check),
        ("check --gradients writes one file", check::check_gradients),
        ("experts in host memory are reported, and do not change a byte of the results", offload::offload),
        ("a recipe that init writes can be trained", describe::init_trains),
        ("every recipe for the tiny base gets to its first step", describe::shipped),
        ("inspect describes runs and checkpoints", describe::inspect_runs),
        ("train writes the same adapter each time", train::train),
        ("eval gives the same losses as training", train::eval),
        ("exports and merges are verified before they are written", exports::exports),
        ("metrics of generated answers are everywhere", metrics::everywhere),
        ("bench reports a speed", bench::bench),
        ("bench --plan prints the smallest limit that fits", bench::plan),
        ("bench --fits prints the longest sequences", bench::fits),
        ("bench --fits --time writes a table and resumes it", bench::timed_fits),
        ("bench --sweep writes a page with charts", bench::sweep),
        ("eval on given files compares base and adapter", watched::eval_files),
        ("validation files are scored separately", watched::sources),
        ("an overflow is an error, not a loss", watched::eval_overflow),
        ("training that changes nothing is an error", watched::changes_nothing),
        ("train --json prints one object per line, --quiet prints nothing", watched::voices),
        ("the report is one page that needs no network", watched::report),
        ("a closed stdout does not stop check", check::closed_pipe),
        ("a run that is killed and resumed gives the same bytes", resume::killed),
        ("a run that compares answers, killed and resumed, gives the same bytes", resume::killed_preference),
        (
            "a run with every feature, killed at random moments and resumed, gives the same bytes",
            kills::three_moments,
        ),
        ("a run cannot be resumed with settings that change its results", resume::changed),
        ("a finished run is extended or replaced only on request", resume::finished),
        ("a damaged checkpoint is reported, and the previous one is used", resume::damaged),
        ("one run per folder", resume::locked),
        ("a loss that is not finite stops the run", resume::not_finite),
        ("the best adapter is kept, and early stopping ends the run", resume::best),
        ("generate replies to prompts", talk::generate),
        ("chat keeps the conversation", talk::chat_commands),
        ("serve answers like OpenAI's API", serve::serve),
        ("serve rejects bad requests like OpenAI's API", serve::bad_requests),
        ("serve continues text and gives log-probabilities", completions::completions),
        ("serve refuses in words for clients", completions::words),
        ("serve stops generating when the client disconnects, and stops on Ctrl-C", attacks::goes_away),
        ("serve refuses pages of other origins and clients without the key", attacks::strangers),
        ("serve answers during floods of connections, headers and bodies", attacks::floods),
        ("serve drops a client that reads nothing", attacks::reads_nothing),
        ("serve returns tool calls", serve::tools),
        ("ui refuses strangers and pages of other ports", ui::strangers),
        ("ui reads and writes nothing outside the chosen folders", ui::outside),
        ("ui trains, replies, exports and merges", ui::whole),
        ("ui pauses, stops and resumes a run, which goes on without the page", ui::long_run),
        ("models with delta nets are trained, merged, and reply", families::delta_nets),
        ("replies follow the template", talk::templates),
        ("bench --decode reports speeds", bench::bench_decode),
        ("a device is tested at its first use, and what fails is turned off", selftest::first_use),
        ("check --lr proposes a rate and leaves the run alone", check::learning_rate),
    ];
    #[cfg(unix)]
    on_a_device.push(("a finished run creates its model in Ollama", ollama::after_training));
    #[cfg(unix)]
    on_a_device.push(("an evening, from a table to a model in Ollama", ollama::evening));
    on_a_device.push(("a disk that fails is one error, and the run can be resumed", faults::disk));
    on_a_device.push(("a device that is lost is one error, and the run can be resumed", faults::device));
    #[cfg(unix)]
    on_a_device.push(("an interrupted merge or export leaves nothing behind", kills::merges));
    #[cfg(target_os = "linux")]
    on_a_device.push(("a merge whose base becomes shorter leaves nothing behind", kills::cut_base));
    if cfg!(unix) {
        on_a_device.push(("events go to a hook and a CSV file", watched::log));
        on_a_device.push(("Ctrl-C saves a checkpoint and says how to resume", resume::interrupted));
        on_a_device.push(("a second Ctrl-C quits at once", resume::interrupted_twice));
    }
    if cfg!(target_os = "linux") {
        on_a_device.push((
            "compiled kernels are cached, and a damaged cache does not stop a run",
            pipelines::damaged,
        ));
        on_a_device
            .push(("every command uses and extends the cache of compiled kernels", pipelines::everywhere));
    }
    let trial = |(name, test): Test| {
        Trial::test(name, move || {
            test(Place::new());
            Ok(())
        })
    };
    let mut trials: Vec<Trial> = anywhere.into_iter().map(trial).collect();
    #[cfg(unix)]
    let merges: [Test; 4] = [
        ("a launcher without a library that can be used is refused", mpi::libraries),
        ("merge --ollama calls ollama, and never replaces a model unasked", ollama::merge),
        ("a Modelfile has the template of its base", ollama::modelfile),
        ("merge without ollama prints the command", ollama::not_installed),
    ];
    #[cfg(unix)]
    trials.extend(merges.into_iter().map(trial));
    let by_hand: [Test; 2] = [
        ("a disk that fails at any call is one error (slow: run with --ignored)", faults::disk_every),
        (
            "a device that is lost at any submission is one error (slow: run with --ignored)",
            faults::device_every,
        ),
    ];
    let thirty = trial((
        "a run killed at thirty random moments gives the same bytes (slow: run with --ignored)",
        kills::thirty_moments,
    ));
    trials.push(thirty.with_ignored_flag(true));
    trials.extend(by_hand.into_iter().map(|t| trial(t).with_ignored_flag(true)));
    trials.extend(on_a_device.into_iter().map(|t| trial(t).with_ignored_flag(missing.is_some())));
    #[cfg(unix)]
    {
        let under_mpirun: [Test; 2] = [
            ("two processes under mpirun give the bytes of one, also after a kill", mpi::two_processes),
            ("processes that cannot train together are refused", mpi::refusals),
        ];
        let ignored = missing.is_some() || !mpi::is_installed();
        trials.extend(under_mpirun.into_iter().map(|t| trial(t).with_ignored_flag(ignored)));
    }
    #[cfg(target_os = "linux")]
    {
        let full = trial(("a full disk is one error, and the run can be resumed", resume::full_disk));
        let tried = missing.is_none() && resume::device_needs_no_large_files();
        trials.push(full.with_ignored_flag(!tried));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(cache);
    conclusion.exit()
}
