//! The model card of an adapter: the page that the Hub shows of its repository.

use std::path::Path;

use rullama_train::adapter::Format;
use rullama_train::base::Base;
use rullama_train::base::stores::hub::{Name, is_repo};
use rullama_train::run::metrics::{History, MetricsEvent};
use serde_json::Value;

use super::train::run_file;

/// Where the facts of a card come from.
pub struct Card<'a> {
    pub repo: &'a str,
    pub base: &'a Base,
    /// Folder of the run, or of the adapter.
    pub folder: &'a Path,
    pub formats: &'a [Format],
    pub history: Option<&'a History>,
}

/// Name of the chart in the repository.
pub const CHART: &str = "loss.svg";

impl Card<'_> {
    /// The card as Markdown.
    pub fn text(&self) -> String {
        let run = run_file::read(self.folder);
        let mut text = self.head(&run);
        let base = self.base;
        text += &format!("# {}\n\n", self.repo.rsplit('/').next().unwrap_or(self.repo));
        text += &format!(
            "A LoRA adapter for {} ({}), trained on its quantized weights by [rullama-train](https://github.com/rullama/rullama-train).\n\n",
            base.name(),
            base.config().architecture
        );
        text += &format!(
            "| | |\n|---|---|\n| base | `{}` |\n| fingerprint of the base | `{}` |\n",
            base.name(),
            base.fingerprint()
        );
        for (name, key) in [("training samples", "train"), ("validation samples", "validation")] {
            if let Some(digest) = run["digests"][key].as_str() {
                text += &format!("| SHA-256 of the {name}, as tokens | `{digest}` |\n");
            }
        }
        if let (Some(steps), Some(device)) = (run["steps"].as_u64(), run["device"].as_str()) {
            text += &format!("| steps | {steps} |\n| device | {device} |\n");
        }
        if let Some(version) = run["version"].as_str() {
            text += &format!("| rullama-train | {version} |\n");
        }
        text += &self.losses();
        text += "\n## Use\n\n";
        text += &self.uses();
        if let Ok(recipe) = std::fs::read_to_string(self.folder.join("recipe.resolved.toml")) {
            text += &format!("\n## Recipe\n\n```toml\n{}\n```\n", recipe.trim());
        }
        text
    }

    /// The part that the Hub reads.
    fn head(&self, run: &Value) -> String {
        let mut head = String::from(
            "---\nlibrary_name: peft\npipeline_tag: text-generation\ntags:\n- lora\n- gguf\n- rullama-train\n",
        );
        let named = run["hub"].as_array().into_iter().flatten().filter_map(|entry| entry["name"].as_str());
        let of_hub: Vec<Name> = named.filter_map(|name| Name::parse(name)?.ok()).collect();
        let base = Name::parse(self.base.name()).and_then(Result::ok);
        let origin = self.origin().or_else(|| base.as_ref().map(|name| name.repo.clone()));
        if let Some(repo) = origin {
            head += &format!("base_model: {repo}\nbase_model_relation: adapter\n");
        }
        let data: Vec<&Name> =
            of_hub.iter().filter(|name| base.as_ref().is_none_or(|base| base.repo != name.repo)).collect();
        if !data.is_empty() {
            head += "datasets:\n";
            data.iter().for_each(|name| head += &format!("- {}\n", name.repo));
        }
        head + "---\n\n"
    }

    /// The repository that PEFT loads, as the adapter names it.
    fn origin(&self) -> Option<String> {
        let config = std::fs::read(Format::Peft.place(self.folder).join("adapter_config.json")).ok()?;
        let config: Value = serde_json::from_slice(&config).ok()?;
        let name = config["base_model_name_or_path"].as_str()?;
        (is_repo(name) && !name.ends_with(".gguf")).then(|| name.to_owned())
    }

    /// Evaluations as a table, and the chart.
    fn losses(&self) -> String {
        let Some(history) = self.history else { return String::new() };
        let rows = history.events.iter().filter_map(|event| match event {
            MetricsEvent::Evaluation(evaluation) => {
                evaluation.scores.map(|scores| (evaluation.step, scores.eval_loss))
            }
            _ => None,
        });
        let rows: Vec<String> = rows.map(|(step, loss)| format!("| {step} | {loss:.4} |")).collect();
        let chart = if chart(history).is_some() {
            format!("\n![Loss of every step]({CHART})\n")
        } else {
            String::new()
        };
        match rows.is_empty() {
            true => chart,
            false => format!("{chart}\n| step | validation loss |\n|---|---|\n{}\n", rows.join("\n")),
        }
    }

    /// How other programs load the files.
    fn uses(&self) -> String {
        let repo = self.repo;
        let mut text = String::new();
        let gguf =
            self.formats.iter().find(|format| matches!(format, Format::GgufLora | Format::GgufLoraF16));
        let file = gguf.map(|format| format.place(Path::new("")).display().to_string());
        let base = match Name::parse(self.base.name()) {
            Some(Ok(name)) => format!("-hf {}", name.to_string().trim_start_matches("hf:")),
            _ => "-m BASE.gguf".into(),
        };
        if let Some(file) = &file {
            text += &format!(
                "llama.cpp:\n\n```sh\nhf download {repo} {file} --local-dir .\nllama-cli {base} --lora {file}\n```\n\n"
            );
        }
        if self.formats.contains(&Format::Peft) {
            let origin = self.origin().unwrap_or_else(|| "ORG/BASE".into());
            text += &format!(
                "PEFT:\n\n```python\nfrom peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n\nmodel = \
                 AutoModelForCausalLM.from_pretrained(\"{origin}\")\nmodel = PeftModel.from_pretrained(model, \"{repo}\")\n```\n\n"
            );
        }
        text += &format!(
            "One merged file, and a model in Ollama:\n\n```sh\nhf download {repo} --local-dir adapter\nrullama-train merge adapter --base {} \
             --ollama mine\n```\n",
            self.base.name()
        );
        text
    }
}

/// Training and validation loss as an SVG picture; `None` before the second step.
pub fn chart(history: &History) -> Option<String> {
    const SIZE: [f64; 2] = [720.0, 240.0];
    const EDGE: f64 = 40.0;
    let (mut steps, mut evaluations) = (Vec::new(), Vec::new());
    for event in &history.events {
        match event {
            MetricsEvent::Step(step) => steps.extend(step.loss.map(|loss| (step.step as f64, loss))),
            MetricsEvent::Evaluation(evaluation) => {
                evaluations
                    .extend(evaluation.scores.map(|scores| (evaluation.step as f64, scores.eval_loss)));
            }
            _ => {}
        }
    }
    let all = || steps.iter().chain(&evaluations).copied();
    let (last, most) = all().fold((0.0, 0.0), |(x, y): (f64, f64), point| (x.max(point.0), y.max(point.1)));
    if steps.len() < 2 || most <= 0.0 {
        return None;
    }
    let place = |(x, y): (f64, f64)| {
        let right = EDGE + (SIZE[0] - 2.0 * EDGE) * x / last;
        let down = SIZE[1] - EDGE - (SIZE[1] - 2.0 * EDGE) * y / most;
        format!("{right:.1},{down:.1}")
    };
    let line = |points: &[(f64, f64)], color: &str| {
        let points: Vec<String> = points.iter().copied().map(place).collect();
        format!(
            "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" points=\"{}\"/>",
            points.join(" ")
        )
    };
    let [width, height] = SIZE;
    let (bottom, right) = (height - EDGE, width - EDGE);
    Some(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\
         <path d=\"M{EDGE} {EDGE}V{bottom}H{right}\" fill=\"none\" stroke=\"gray\"/>\
         <text x=\"4\" y=\"{EDGE}\">{most:.2}</text><text x=\"4\" y=\"{bottom}\">0</text>\
         <text x=\"{right}\" y=\"{}\" text-anchor=\"end\">step {last}</text>\
         <text x=\"{EDGE}\" y=\"24\" fill=\"#2563eb\">training loss</text><text x=\"140\" y=\"24\" fill=\"#dc2626\">validation loss</text>{}{}</svg>",
        bottom + 20.0,
        line(&steps, "#2563eb"),
        line(&evaluations, "#dc2626"),
    ))
}
