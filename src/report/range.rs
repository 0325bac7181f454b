//! The page of `rullama-train check --lr`: the loss against the learning rate.

use super::chart::{Chart, Series};
use super::page;
use super::text::escape;

/// The smoothed and the raw loss of each rate, and what to do.
pub struct Range<'a> {
    /// Subtitle: base, samples and device.
    pub under: &'a str,
    /// Rate, loss and smoothed loss of each step.
    pub points: Vec<[f64; 3]>,
    /// The advice, one sentence each.
    pub advice: Vec<String>,
}

impl Range<'_> {
    /// The test as an HTML page.
    pub fn html(&self) -> String {
        let line = |name, class, value: usize| {
            let points = (1..).zip(&self.points).map(|(step, point)| (f64::from(step), point[value]));
            Series::line(name, class, points.collect())
        };
        let chart = Chart {
            title: "Loss against the learning rate",
            note: "share of the loss before training; the rate rises from step to step, see the table",
            series: vec![line("loss", "raw", 1), line("smoothed", "train", 2)],
            last_step: self.points.len() as f64,
            class: "wide",
            ..Chart::new(|value| format!("{value:.2}"))
        };
        let row = |(step, [rate, loss, smoothed]): (usize, &[f64; 3])| {
            format!("<tr><td>{step}</td><td>{rate:.1e}</td><td>{loss:.3}</td><td>{smoothed:.3}</td></tr>")
        };
        let rows: String = (1..).zip(&self.points).map(row).collect();
        let advice: String = self.advice.iter().map(|text| format!("<p>{}</p>", escape(text))).collect();
        let body = format!(
            "<header><div class=brand>rullama-train</div><h1>Learning rate</h1><p class=under>{}</p></header>\n{advice}\n\
             <div class=charts>{}</div>\n<h2>Steps</h2>\n<div class=\"card scroll\"><table><tr><th>step<th>learning rate<th>loss\
             <th>smoothed</tr>{rows}</table></div>\n",
            escape(self.under),
            chart.html(),
        );
        page("Learning rate", &body)
    }
}
