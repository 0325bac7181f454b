//! The GPUs that were tried: what `tests/compilers/run` compiled for them, and the reports that users sent.

use std::collections::BTreeMap;
use std::fs;

use rullama_train::words::grouped;
use serde_json::Value;

use super::{read, root};

/// Folder of the reports, from the root.
const REPORTS: &str = "results";

/// A report, with the name of its file.
struct Report {
    file: String,
    content: Value,
}

/// Facts about a GPU: the compiler that took its kernels, and reports of those who have it.
#[derive(Default)]
struct Gpu<'a> {
    compiled: Option<String>,
    reports: Vec<&'a Report>,
}

/// The page.
pub fn page() -> String {
    let reports = reports();
    let mut gpus: BTreeMap<String, Gpu> = BTreeMap::new();
    for gpu in compiled().as_object().expect("an object").values() {
        gpus.entry(string(gpu, "device")).or_default().compiled = Some(compiled_by_us(gpu));
    }
    for report in &reports {
        gpus.entry(string(&report.content, "device")).or_default().reports.push(report);
    }
    let mut text = "# GPUs\n\n".to_string();
    text += "**Compiled by us**: every kernel that the GPU may run goes through the compiler of its driver on every change, without the GPU\n\
        ([how](precision.md#compilers-of-other-gpus)). Nothing ran there. Beside these drivers, DXC compiles the kernels of DX12, and clang\n\
        checks the types of Metal's. **Run**: somebody had the GPU, and sent the file that `rullama-train selftest --report FILE` writes. Such\n\
        files are in [results/](../results), and this page is made from them: please\n\
        [send yours](https://github.com/rullama/rullama-train/issues/new?template=gpu.yml).\n\n\
        | GPU | compiled by us | run |\n|---|---|---|\n";
    for (name, gpu) in &gpus {
        let run: Vec<String> = gpu.reports.iter().map(|report| ran(report)).collect();
        let run = if run.is_empty() { "–".into() } else { run.join("; ") };
        text += &format!("| {name} | {} | {run} |\n", gpu.compiled.as_deref().unwrap_or("–"));
    }
    text += "\nIntel's GPUs get kernels in f16 or f32, though Arc A has matrices of 8×8×16 and Arc B and Lunar Lake of 8×16×16, as their driver\n\
        reports: naga's WGSL has matrices of 8×8 and 16×16 alone. Meteor Lake and Iris Xe have none.\n";
    text += "\n## Reports\n\nA margin is the largest error of a check as a share of what is allowed; the table has the largest of all checks. Speeds are those of a\n\
        product with Q4_K weights, of attention forward, and of a copy.\n\n\
        | GPU | kernels | checks right | margin | product, GFLOP/s | attention, GFLOP/s | copy, GB/s |\n|---|---|---|---|---|---|---|\n";
    for report in &reports {
        let variants = report.content["variants"].as_array().into_iter().flatten();
        text.extend(variants.map(|variant| row(report, variant)));
    }
    text
}

/// A sentence for the README.
pub fn sentence() -> String {
    let compiled = compiled().as_object().map_or(0, serde_json::Map::len);
    let reports = reports();
    let is_gpu = |report: &&Report| report.content["software"] != true;
    let run = reports.iter().filter(is_gpu).map(|report| string(&report.content, "device"));
    let run: Vec<String> = run.collect();
    format!(
        "Our kernels ran on {}, and they compile for {compiled} other GPUs: [docs/gpus.md](docs/gpus.md).",
        run.join(" and ")
    )
}

fn compiled() -> Value {
    let text = read(&root().join("tests/compilers/allowed.json"));
    serde_json::from_str(&text).expect("tests/compilers/allowed.json is JSON")
}

/// All reports, by the names of their files.
fn reports() -> Vec<Report> {
    let folder = root().join(REPORTS);
    let files = fs::read_dir(&folder).expect("the repository has results/");
    let mut files: Vec<_> = files.map(|file| file.expect("a readable folder").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let report = |file: &std::path::PathBuf| {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        let content: Value = serde_json::from_str(&read(file)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(content["layout"], 1, "{name}: expected a file of `selftest --report`, layout 1");
        Report { file: name, content }
    };
    files.iter().map(report).collect()
}

fn compiled_by_us(gpu: &Value) -> String {
    let kernels = gpu["kernels"].as_object().expect("kernels");
    let sum = |what: &str| kernels.values().filter_map(|of| of[what].as_u64()).sum::<u64>() as usize;
    let spill = kernels.values().filter_map(|of| Some(of["spills"].as_object()?.len())).sum::<usize>();
    let (all, failed) = (sum("pipelines"), sum("failed"));
    format!("{}: {} kernels, {failed} fail, {spill} spill", string(gpu, "driver"), grouped(all, ' '))
}

fn ran(report: &Report) -> String {
    let Report { file, content } = report;
    let day = string(content, "date");
    let variants = content["variants"].as_array().map_or(&[][..], Vec::as_slice);
    let wrong = variants.iter().filter(|variant| variant["right"] != true).count();
    let verdict = match (variants.len(), wrong) {
        (_, 0) => "right".to_string(),
        (all, wrong) => format!("**{wrong} of {all} kinds of kernels wrong**"),
    };
    let by_hand = content["source"].as_str().map_or(String::new(), |source| format!(", {source}"));
    format!(
        "{}, {}, {day}: [{verdict}](../{REPORTS}/{file}){by_hand}",
        string(content, "backend"),
        string(content, "driver")
    )
}

fn row(report: &Report, variant: &Value) -> String {
    let checks = variant["checks"].as_array().map_or(&[][..], Vec::as_slice);
    let right = match checks.len() {
        // A report that was written before checks were listed.
        0 => variant["count"].as_str().unwrap_or("–").to_string(),
        all => format!("{} of {all}", checks.iter().filter(|check| check["wrong"].is_null()).count()),
    };
    let margin = checks.iter().filter_map(|check| check["margin"].as_f64()).reduce(f64::max);
    let number = |name: &str| variant[name].as_f64().map_or("–".into(), |x| format!("{:.1}", x / 1e9));
    format!(
        "| {} | {} | {right} | {} | {} | {} | {} |\n",
        string(&report.content, "device"),
        string(variant, "kernels"),
        margin.map_or("–".into(), |x| format!("{x:.2}")),
        number("operations_per_second"),
        number("attention_operations_per_second"),
        number("copy_bytes_per_second"),
    )
}

fn string(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_else(|| panic!("{name} is not a text in {value}")).into()
}
