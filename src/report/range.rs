//! The page of `rullama-train check --lr`: the loss against the learning rate.

use super::chart::{Chart, Series};
use super::page;
use super::text::escape;
use crate::words::power_of_ten;

/// The smoothed and the raw loss of each rate, and what to do.
pub struct Range<'a> {
    /// Subtitle: base, samples and device.
    pub under: &'a str,
    /// Rate, loss and smoothed loss of each step.
    pub points: Vec<[f64; 3]>,
    /// The proposed rate.
    pub proposed: Option<f64>,
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
            note: "share of the loss before training; the rate rises from step to step",
            series: vec![line("loss", "raw", 1), line("smoothed", "train", 2)],
            last_step: self.points.len() as f64,
            class: "wide",
            labels: self.labels(),
            mark: self.proposed.and_then(|rate| self.place(rate)),
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

    /// The place of a rate among the steps, whose rates are powers of one number; `None` if there are too few of them.
    fn place(&self, rate: f64) -> Option<f64> {
        let [[first, ..], .., [last, ..]] = self.points[..] else { return None };
        let share = (rate / first).ln() / (last / first).ln();
        (-1e-9..=1.0 + 1e-9).contains(&share).then(|| 1.0 + share * (self.points.len() - 1) as f64)
    }

    /// The powers of ten, and the proposed rate.
    fn labels(&self) -> Vec<(f64, String)> {
        let powers = (-9..=3).map(power_of_ten);
        let far = |rate: &f64| self.proposed.is_none_or(|proposed| (rate / proposed).log10().abs() > 0.25);
        let text = |rate: f64| Some((self.place(rate)?, format!("{rate:e}")));
        let mut labels: Vec<(f64, String)> = powers.filter(far).filter_map(text).collect();
        let bold = |(place, rate)| (place, format!("<b>{rate}</b>"));
        labels.extend(self.proposed.and_then(text).map(bold));
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_names_powers_of_ten_and_the_proposed_rate() {
        let points = (0..=60).map(|i| [1e-6 * 10f64.powf(f64::from(i) / 10.0), 1.0, 1.0]).collect();
        let range = Range { under: "", points, proposed: Some(6e-4), advice: Vec::new() };
        let labels = range.labels();
        let texts: Vec<&str> = labels.iter().map(|(_, text)| &**text).collect();
        assert_eq!(
            texts,
            ["1e-6", "1e-5", "1e-4", "1e-2", "1e-1", "1e0", "<b>6e-4</b>"],
            "1e-3 would touch it"
        );
        assert!((labels[1].0 - 11.0).abs() < 1e-6, "{labels:?}");
        let html = range.html();
        assert!(html.contains("class=mark") && html.contains("<b>6e-4</b>"), "{html}");
        assert!(Range { points: Vec::new(), ..range }.labels().is_empty());
    }
}
