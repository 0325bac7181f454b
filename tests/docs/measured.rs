//! Tables of measured speeds, from the files that `bench` and `benches/peers/chart` wrote, and of sequences that the program plans.

use std::process::Command;
use std::sync::OnceLock;

use rullama_train::words::grouped;
use serde_json::Value;

use super::{read, root};

/// Sizes in the README, with the names that people know.
const KNOWN: [(&str, &str); 9] = [
    ("Llama 3.1 8B", "llama3.1-8b"),
    ("Qwen 3 8B", "qwen3-8b"),
    ("Qwen 3 30B-A3B", "qwen3-30b-a3b"),
    ("Qwen 3.5 4B", "qwen3.5-4b"),
    ("Gemma 4 E2B", "e2b"),
    ("Gemma 4 E4B", "e4b"),
    ("Gemma 4 12B", "12b"),
    ("Gemma 4 26B-A4B", "26b-a4b"),
    ("Gemma 4 31B", "31b"),
];

/// The longest sequence of every published size by GPU memory, as the program plans it for GPUs without 16×16 cooperative matrices.
pub fn fits() -> String {
    by_memory(planned().iter().map(|row| (string(&row["base"]).into(), cells(row))))
}

/// [`fits`] of the models that people know, from 8 GB on.
pub fn known_fits() -> String {
    let mut table = "| model | 8 GB | 12 GB | 16 GB | 24 GB |\n|---|---|---|---|---|\n".to_string();
    for (title, name) in KNOWN {
        let row = planned().iter().find(|row| row["base"] == name).expect("a published size");
        let host =
            row["sizes"].as_array().expect("sizes").iter().filter_map(|size| size["host_bytes"].as_u64());
        let experts = match host.max().unwrap_or(0) {
            0 => String::new(),
            bytes => format!(", up to {} GiB in host memory", bytes.div_ceil(1 << 30)),
        };
        table += &format!("| {title}{experts} | {} |\n", cells(row)[1..].join(" | "));
    }
    table
}

/// An object for each published size, which the program plans once for all tests.
fn planned() -> &'static [Value] {
    static PLANNED: OnceLock<Vec<Value>> = OnceLock::new();
    PLANNED.get_or_init(|| {
        let program = Command::new(env!("CARGO_BIN_EXE_rullama-train"))
            .args(["bench", "all", "--fits", "--kernels", "f32", "--host-memory", "64", "--json"])
            .output();
        let output = program.expect("the program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect()
    })
}

/// The longest sequence for each size of memory.
fn cells(row: &Value) -> Vec<String> {
    let sizes = row["sizes"].as_array().expect("sizes");
    sizes.iter().map(|size| size["tokens"].as_u64().map_or("–".into(), thousands)).collect()
}

/// The longest sequence and the speed of every published size by GPU memory, as `bench all --fits --time` measured them.
pub fn speeds() -> String {
    let text = read(&root().join("docs/fits.tsv"));
    let (under, rows) = text.strip_prefix("# ").and_then(|text| text.split_once('\n')).expect("a header");
    let mut table: Vec<(String, Vec<String>)> = Vec::new();
    for row in rows.lines().skip(1) {
        let [model, _, tokens, timed, speed, _] = row.split('\t').collect::<Vec<_>>()[..] else {
            panic!("docs/fits.tsv: expected six values between tabs, found {row:?}")
        };
        if table.last().is_none_or(|(last, _)| last != model) {
            table.push((model.into(), Vec::new()));
        }
        let number = |text: &str| text.parse().map(thousands).unwrap_or_else(|e| panic!("{row:?}: {e}"));
        table.last_mut().expect("a row").1.push(match (tokens, timed, speed) {
            ("", ..) => "–".into(),
            (tokens, _, "") => number(tokens),
            (tokens, timed, speed) if tokens == timed => format!("{} at {}", number(tokens), number(speed)),
            (tokens, timed, speed) => {
                format!("{}; {} at {}", number(tokens), number(timed), number(speed))
            }
        });
    }
    format!("\nMeasured on {under}:\n{}", by_memory(table.into_iter()))
}

/// A table with a column for each size of memory.
fn by_memory(rows: impl Iterator<Item = (String, Vec<String>)>) -> String {
    let mut table =
        "\n| model | 6 GB | 8 GB | 12 GB | 16 GB | 24 GB |\n|---|---|---|---|---|---|\n".to_string();
    for (model, cells) in rows {
        assert_eq!(cells.len(), 5, "{model} has a cell for each size");
        table += &format!("| {model} | {} |\n", cells.join(" | "));
    }
    table + "\n"
}

/// Speed against memory beside PyTorch, from the file that the chart is drawn from.
pub fn peers() -> String {
    let text = read(&root().join("docs/images/speed.jsonl"));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let shape = |line: &Value| {
        let model = line.get("base").unwrap_or(&line["model"]);
        format!("{} | {} × {}", string(model), line["batch"], line["sequence"])
    };
    let mut shapes: Vec<String> = Vec::new();
    shapes.extend(lines.iter().map(shape));
    let mut table =
        "\n| shape | tokens per step | program | tokens/s in GiB |\n|---|---|---|---|\n".to_string();
    while let Some(first) = shapes.first().cloned() {
        for line in lines.iter().filter(|line| shape(line) == first) {
            table += &format!("| {first} | {} |\n", program_and_speeds(line));
        }
        shapes.retain(|shape| *shape != first);
    }
    table + "\n"
}

/// The last two cells of a row.
fn program_and_speeds(line: &Value) -> String {
    let speed = |value: &Value| thousands(value.as_f64().expect("a speed").round() as u64);
    if let Some(points) = line["points"].as_array() {
        let point = |point: &Value| {
            let gib = point["planned_bytes"].as_f64().expect("bytes") / f64::from(1 << 30);
            format!("{} in {gib:.1}", speed(&point["tokens_per_second"]))
        };
        return format!("rullama-train | {}", points.iter().map(point).collect::<Vec<_>>().join(", "));
    }
    let mut parts: Vec<&str> = string(&line["variant"]).split('+').collect();
    let program = match parts.remove(0) {
        "unsloth" => "unsloth",
        "plain" => "PEFT",
        first => {
            parts.insert(0, first);
            "PEFT"
        }
    };
    let program = [&[program][..], &parts[..]].concat().join(", ");
    match line["error"].as_str() {
        Some(error) => format!("{program} | {}", error.replace('|', "\\|")),
        None => format!(
            "{program} | {} in {:.1}",
            speed(&line["tokens_per_s"]),
            line["gib"].as_f64().expect("GiB")
        ),
    }
}

fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("expected a string, found {value}"))
}

fn thousands(number: u64) -> String {
    grouped(number as usize, ' ')
}
