//! The program as a user meets it: bad input gets one clear error and leaves nothing behind; good input does what it
//! says.

mod bench;
mod check;
mod describe;
#[path = "../common/gguf_writer.rs"]
mod gguf_writer;
#[path = "../common/gpu.rs"]
mod gpu;
mod handed_out;
mod kills;
mod offload;
mod pipelines;
mod place;
mod refusals;
mod resume;
mod talk;
#[path = "../common/tool_base.rs"]
mod tool_base;
mod train;
mod watched;

use libtest_mimic::{Arguments, Trial};
use place::{DATA, Place, RECIPE, matches, texts};
use rullama_train::gpu::{Backend, Gpu};

/// A test's name and what it does.
type Test = (&'static str, fn(Place));

fn main() {
    let arguments = Arguments::from_args();
    gpu::quiet_mesa();
    let missing = pollster::block_on(Gpu::open(Backend::Auto, None, false)).err();
    if let Some(error) = &missing {
        eprintln!("some ignored, for want of a device: {error}");
    }
    let anywhere: [Test; 18] = [
        ("a recipe with a mistake is refused", refusals::recipes),
        ("an override with a mistake is refused", refusals::overrides),
        ("a dataset with a mistake is refused", refusals::datasets),
        ("a model that cannot be used is refused", refusals::models),
        ("a model that Ollama does not have is refused", refusals::ollama),
        ("an adapter that does not fit is refused", refusals::adapters),
        ("a place that cannot be written is refused", refusals::places),
        ("evaluation without validation data is refused", refusals::no_validation),
        ("a benchmark of nothing is refused", bench::bench_numbers),
        ("a device that is not there is refused", refusals::no_device),
        ("a reply with a mistake is refused", talk::refusals),
        ("init writes a recipe that fits the samples", describe::init),
        ("inspect describes models", describe::inspect_models),
        ("inspect describes adapters", describe::inspect_adapters),
        ("inspect describes samples", describe::inspect_samples),
        ("models lists what Ollama has", describe::models),
        ("completions and manual pages know every command", describe::manual),
        ("without its page inside, web says how to build it", refusals::web),
    ];
    let mut on_a_device: Vec<Test> = vec![
        ("check shows and writes nothing", check::check),
        ("check --gradients writes one file", check::check_gradients),
        ("experts in host memory are said, and change no byte", offload::offload),
        ("what init writes can be trained", describe::init_trains),
        ("every recipe for the tiny base gets to its first step", describe::shipped),
        ("inspect describes runs and checkpoints", describe::inspect_runs),
        ("train writes an adapter, the same each time", train::train),
        ("eval gives the losses that training gave", train::eval),
        ("what is handed out is compared first", handed_out::handed_out),
        ("bench gives a speed", bench::bench),
        ("bench --plan gives the smallest limit that fits", bench::plan),
        ("bench --sweep gives a page with charts", bench::sweep),
        ("eval on files of one's own, base and adapter side by side", watched::eval_files),
        ("validation files are scored one by one", watched::sources),
        ("what overflows is no loss", watched::eval_overflow),
        ("training that changes nothing is an error", watched::changes_nothing),
        ("train --json gives an object a line, --quiet nothing", watched::voices),
        ("the report is one page without network", watched::report),
        ("a reader that goes away does not stop the run", check::closed_pipe),
        ("killed at any moment, a run ends in the same bytes", resume::killed),
        ("killed at random moments, so does a run with everything", kills::three_moments),
        ("what decides the numbers may not change under a run", resume::changed),
        ("a damaged checkpoint is named, and the one before it taken", resume::damaged),
        ("one run a folder", resume::locked),
        ("a loss that is not finite stops the run", resume::not_finite),
        ("the best adapter is kept, and no better one ends the run", resume::best),
        ("generate replies to prompts", talk::generate),
        ("chat keeps the conversation", talk::talk),
        ("serve answers as OpenAI does", talk::serve),
        ("serve refuses as OpenAI does", talk::bad_requests),
        ("serve stops where nobody waits, and ends on Ctrl-C", talk::goes_away),
        ("serve calls functions", talk::tools),
        ("replies follow the template", talk::templates),
        ("bench --decode gives speeds", talk::bench_decode),
    ];
    if cfg!(unix) {
        on_a_device.push(("Ctrl-C saves, and says how to go on", resume::interrupted));
        on_a_device.push(("Ctrl-C twice does not wait", resume::interrupted_twice));
    }
    if cfg!(target_os = "linux") {
        on_a_device.push(("compiled kernels are kept, and no file of them stops a run", pipelines::damaged));
        on_a_device.push((
            "every command takes kernels that are compiled, and keeps its own",
            pipelines::everywhere,
        ));
    }
    let trial = |(name, test): Test| {
        Trial::test(name, move || {
            test(Place::new());
            Ok(())
        })
    };
    let mut trials: Vec<Trial> = anywhere.into_iter().map(trial).collect();
    let thirty =
        trial(("killed at thirty random moments (minutes: by hand, with --ignored)", kills::thirty_moments));
    trials.push(thirty.with_ignored_flag(true));
    trials.extend(on_a_device.into_iter().map(|t| trial(t).with_ignored_flag(missing.is_some())));
    #[cfg(target_os = "linux")]
    {
        let full = trial(("a full disk is one error, and the run goes on later", resume::full_disk));
        let tried = missing.is_none() && resume::device_needs_no_large_files();
        trials.push(full.with_ignored_flag(!tried));
    }
    libtest_mimic::run(&arguments, trials).exit()
}
