//! `[eval]`: evaluation during the run.

use serde::Serialize;

use super::error::RecipeError;
use super::fields::Section;
use super::values::BestMetric;
use crate::talk::metrics::Metric;

/// `[eval]`: evaluation during the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Eval {
    /// Optimizer steps between evaluations; 0 evaluates only before the first and after the last step.
    pub steps: usize,
    /// Prompts that the model answers at every evaluation.
    pub samples: Vec<String>,
    /// Maximum length of an answer, in tokens.
    pub max_new_tokens: usize,
    /// Whether general questions are asked after the last step, which the data is not about.
    pub general: bool,
    /// Metrics of generated answers to questions of the validation data.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<Metric>,
    /// Maximum number of validation samples whose answers are generated; set if there are metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric_samples: Option<usize>,
    /// Pattern of [`Metric::Regex`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    /// Measure by which evaluations are compared.
    pub best_metric: BestMetric,
    /// Whether to export the adapter of the best evaluation instead of the last one.
    pub keep_best: bool,
    /// Number of evaluations without a better one after which the run ends; 0 disables early stopping.
    pub early_stopping_patience: usize,
}

impl Eval {
    /// Reads the keys; `validates`: whether there are validation samples.
    pub(super) fn read(section: &Section, validates: bool) -> Result<Eval, RecipeError> {
        let steps = section.count("steps", 0, 0)?;
        let early_stopping_patience = section.count("early_stopping_patience", 0, 0)?;
        if early_stopping_patience > 0 && steps == 0 {
            let message = "it counts evaluations, but eval.steps is 0; set eval.steps, or remove this key";
            return Err(section.conflict("early_stopping_patience", message));
        }
        let metrics = metrics(section)?;
        let keep_best = section.boolean("keep_best", validates)?;
        if keep_best && !validates {
            let message = "it compares validation losses, but there are no validation samples; set data.valid or data.val_size, or \
                           remove this key";
            return Err(section.conflict("keep_best", message));
        }
        Ok(Eval {
            steps,
            samples: section.texts("samples")?.unwrap_or_default(),
            max_new_tokens: section.count("max_new_tokens", 64, 1)?,
            general: section.boolean("general", true)?,
            metrics: metrics.names,
            metric_samples: metrics.samples,
            regex: metrics.pattern,
            best_metric: metrics.best,
            keep_best,
            early_stopping_patience,
        })
    }
}

/// The keys of `[eval]` that are about metrics.
struct Metrics {
    names: Vec<Metric>,
    samples: Option<usize>,
    pattern: Option<String>,
    best: BestMetric,
}

fn metrics(section: &Section) -> Result<Metrics, RecipeError> {
    let names: Vec<Metric> = section.choices("metrics", &[])?;
    let pattern = section.text("regex")?;
    match (&pattern, names.contains(&Metric::Regex)) {
        (None, true) => {
            let message = "\"regex\" needs a pattern: set eval.regex, such as '^(yes|no)$'";
            return Err(section.conflict("metrics", message));
        }
        (Some(_), false) => {
            let message =
                "it is the pattern of the metric \"regex\": add that to eval.metrics, or remove this key";
            return Err(section.conflict("regex", message));
        }
        (Some(pattern), true) => {
            // The syntax error ends with the reason; before it, the pattern is drawn over several lines.
            let reason =
                |error: regex::Error| error.to_string().lines().last().unwrap_or_default().to_owned();
            let error = |e| {
                section.conflict("regex", &format!("{pattern:?} is not a regular expression: {}", reason(e)))
            };
            regex::Regex::new(pattern).map_err(error)?;
        }
        (None, false) => {}
    }
    if section.has("metric_samples") && names.is_empty() {
        return Err(
            section.conflict("metric_samples", "there are no eval.metrics; set them, or remove this key")
        );
    }
    let samples = section.count("metric_samples", 50, 1)?;
    let samples = (!names.is_empty()).then_some(samples);
    let best = section.choice("best_metric", BestMetric::Loss)?;
    if let Some(metric) = best.metric().filter(|metric| !names.contains(metric)) {
        let message = format!("eval.metrics does not have it; add {:?} there", metric.name());
        return Err(section.conflict("best_metric", &message));
    }
    Ok(Metrics { names, samples, pattern, best })
}
