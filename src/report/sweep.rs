//! The page of `rullama-train bench --sweep`: time and memory of a step against one varied quantity.

use serde_json::{Value, json};

use super::chart::{Chart, Series};
use super::page;
use super::text::{escape, grouped, number};

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Value of the varied quantity.
    pub at: usize,
    /// Tokens per step.
    pub tokens: usize,
    /// Seconds per step.
    pub seconds: f64,
    /// Planned device memory in bytes.
    pub bytes: u64,
}

impl Point {
    fn microseconds_per_token(&self) -> f64 {
        1e6 * self.seconds / self.tokens as f64
    }

    fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    fn gibibytes(&self) -> f64 {
        self.bytes as f64 / f64::from(1 << 30)
    }
}

/// A series of measurements.
pub struct Sweep<'a> {
    /// The varied quantity: `tokens`, `layers`, `width`, or `memory`, whose points stand at limits in MiB.
    pub varied: &'a str,
    /// Subtitle: the measurement and the device.
    pub under: &'a str,
    /// At least two measurements, in ascending order.
    pub points: Vec<Point>,
}

impl Sweep<'_> {
    /// Time and memory of `point`, relative to the straight line from the first to the last point. Both are 1 if the cost is
    /// linear. `None` for memory limits, in which no cost is linear.
    pub fn of_line(&self, point: &Point) -> Option<[f64; 2]> {
        if self.by_memory() {
            return None;
        }
        let (first, last) = (self.points[0], self.points[self.points.len() - 1]);
        let part = (point.at - first.at) as f64 / (last.at - first.at).max(1) as f64;
        let of = |value: fn(&Point) -> f64| {
            let (from, to) = (value(&first), value(&last));
            value(point) / (from + part * (to - from))
        };
        Some([of(|p| p.seconds), of(|p| p.bytes as f64)])
    }

    fn by_memory(&self) -> bool {
        self.varied == "memory"
    }

    /// The measurements as JSON, for `--json`.
    pub fn json(&self) -> Value {
        let point = |p: &Point| {
            let mut value = json!({
                self.varied: p.at, "tokens_in_a_step": p.tokens, "step_seconds": p.seconds,
                "seconds_per_token": p.seconds / p.tokens as f64, "tokens_per_second": p.tokens_per_second(),
                "planned_bytes": p.bytes,
            });
            if let Some([time, memory]) = self.of_line(p) {
                value["time_of_straight_line"] = time.into();
                value["memory_of_straight_line"] = memory.into();
            }
            value
        };
        self.points.iter().map(point).collect()
    }

    /// The sweep as an HTML page.
    pub fn html(&self) -> String {
        let title = match self.by_memory() {
            true => "Speed against the memory limit".into(),
            false => format!("Cost against {}", escape(self.varied)),
        };
        let body = format!(
            "<header><div class=brand>rullama-train</div><h1>{title}</h1><p class=under>{}</p></header>\n\
             <div class=charts>{}</div>\n<h2>Measurements</h2>\n<div class=\"card scroll\">{}</div>\n",
            escape(self.under),
            self.charts().iter().map(Chart::html).collect::<String>(),
            self.table(),
        );
        page(&title, &body)
    }

    fn charts(&self) -> Vec<Chart<'_>> {
        if self.by_memory() {
            return vec![self.chart("Speed", "tokens per second", false, Point::tokens_per_second)];
        }
        let by_tokens = self.varied == "tokens";
        let note = "microseconds, forward, backward and update";
        let mut charts = vec![self.chart("Time per token", note, !by_tokens, Point::microseconds_per_token)];
        if by_tokens {
            charts.push(self.chart("Time per step", "milliseconds", true, |p| 1e3 * p.seconds));
        }
        charts.push(self.chart("Memory", "GiB planned on the device", true, Point::gibibytes));
        charts
    }

    fn table(&self) -> String {
        let against_line = |p: &Point| match self.of_line(p) {
            Some(of_line) => {
                of_line.map(|share| format!("<td>{:+.1} %</td>", 100.0 * (share - 1.0))).concat()
            }
            None => String::new(),
        };
        let row = |p: &Point| {
            format!(
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>{}</tr>",
                grouped(p.at),
                number(1e3 * p.seconds),
                number(p.microseconds_per_token()),
                grouped(p.tokens_per_second().round() as usize),
                number(p.gibibytes()),
                against_line(p),
            )
        };
        format!(
            "<table><tr><th>{}<th>ms per step<th>µs per token<th>tokens/s<th>GiB{}</tr>{}</table>",
            escape(self.unit()),
            if self.by_memory() { "" } else { "<th>time vs. line<th>memory vs. line" },
            self.points.iter().map(row).collect::<String>(),
        )
    }

    /// Unit of the varied quantity.
    fn unit(&self) -> &str {
        if self.by_memory() { "MiB" } else { self.varied }
    }

    fn chart<'a>(
        &'a self,
        title: &'a str,
        note: &'a str,
        line: bool,
        value: impl Fn(&Point) -> f64,
    ) -> Chart<'a> {
        let points: Vec<(f64, f64)> = self.points.iter().map(|p| (p.at as f64, value(p))).collect();
        let last = points[points.len() - 1];
        let mut series = Vec::new();
        if line {
            let ends = vec![points[0], last];
            series.push(Series::line("straight line", "raw", ends));
        }
        series.push(Series { name: "measured", class: "train", points, dots: true });
        let format = number as fn(f64) -> String;
        Chart {
            title,
            note,
            series,
            last_step: last.0,
            unit: self.unit(),
            from_zero: true,
            class: "wide",
            ..Chart::new(format)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_costs_are_on_the_line() {
        let point = |at: usize, seconds: f64| Point { at, tokens: at, seconds, bytes: 1000 + at as u64 };
        let sweep = Sweep {
            varied: "tokens",
            under: "a <device>",
            points: vec![point(100, 1.1), point(200, 2.1), point(400, 3.0), point(500, 5.1)],
        };
        let shares: Vec<[f64; 2]> = sweep.points.iter().filter_map(|p| sweep.of_line(p)).collect();
        for (share, expected) in shares.iter().zip([1.0, 1.0, 3.0 / 4.1, 1.0]) {
            assert!((share[0] - expected).abs() < 1e-12 && (share[1] - 1.0).abs() < 1e-12, "{share:?}");
        }
        let html = sweep.html();
        assert_eq!(html.matches("<svg").count(), 3, "one chart per cost");
        assert_eq!(html.matches("line raw").count(), 2, "time per step and memory have a straight line");
        assert!(html.contains("a &lt;device&gt;") && !html.contains("http"), "self-contained");
        assert_eq!(sweep.json()[2]["tokens"], 400);
    }

    #[test]
    fn memory_limits_have_no_line() {
        let point = |at: usize, seconds: f64| Point { at, tokens: 100, seconds, bytes: 1 << 30 };
        let sweep =
            Sweep { varied: "memory", under: "a device", points: vec![point(1024, 2.0), point(2048, 1.0)] };
        assert_eq!(sweep.of_line(&sweep.points[0]), None);
        assert_eq!(sweep.json()[0].get("time_of_straight_line"), None);
        let html = sweep.html();
        assert_eq!(html.matches("<svg").count(), 1, "speed alone");
        assert!(html.contains("MiB") && html.contains("tokens per second") && !html.contains("vs. line"));
    }
}
