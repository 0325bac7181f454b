//! Line charts as SVG that stretches to any width, with labels in HTML, which do not.

use std::fmt::Write;

use serde_json::json;

use super::words::{escape, grouped};

/// Most points of a line; of more, the lowest and the highest of each stretch are drawn.
const POINTS: usize = 800;
/// Side of the SVG's own square of coordinates.
const SIDE: f64 = 1000.0;

/// A line, or dots on a line.
pub struct Series<'a> {
    /// In the legend.
    pub name: &'a str,
    /// Class that gives the colour: `train`, `raw`, `valid` or `plain`.
    pub class: &'static str,
    /// Step and value, by step.
    pub points: Vec<(f64, f64)>,
    /// Each point is a dot.
    pub dots: bool,
}

/// Lines over steps.
pub struct Chart<'a> {
    /// What is shown.
    pub title: &'a str,
    /// The unit or a hint, beside it.
    pub note: &'a str,
    /// At least one with points.
    pub series: Vec<Series<'a>>,
    /// The last step on the axis.
    pub last_step: f64,
    /// What is counted along the axis, in front of its number.
    pub unit: &'a str,
    /// How values are written.
    pub format: fn(f64) -> String,
    /// Ticks are powers of ten where the values span orders of magnitude.
    pub may_be_logarithmic: bool,
    /// The axis begins at 0 however far the values are from it.
    pub from_zero: bool,
    /// Class of the figure.
    pub class: &'static str,
}

/// Values to places on the vertical axis, 0 below and 1 above.
struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Axis {
    fn place(&self, value: f64) -> f64 {
        let scale = |x: f64| if self.logarithmic { x.log10() } else { x };
        ((scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))).clamp(0.0, 1.0)
    }
}

impl Chart<'_> {
    /// A chart of nothing, to be filled in.
    pub fn new(format: fn(f64) -> String) -> Self {
        Chart {
            title: "",
            note: "",
            series: Vec::new(),
            last_step: 1.0,
            unit: "step",
            format,
            may_be_logarithmic: false,
            from_zero: false,
            class: "",
        }
    }

    /// The figure; nothing where there is nothing to draw.
    pub fn html(&self) -> String {
        let series: Vec<&Series> = self.series.iter().filter(|s| !s.points.is_empty()).collect();
        if series.is_empty() {
            return String::new();
        }
        let (axis, ticks) = self.axis(&series);
        let x = |step: f64| SIDE * step / self.last_step.max(1.0);
        let y = |value: f64| SIDE * (1.0 - axis.place(value));
        let mut svg = String::new();
        for tick in &ticks {
            let _ = write!(svg, "<path class=grid d=\"M0 {0:.1}H{SIDE}\"/>", y(*tick));
        }
        let mut data = Vec::new();
        for s in &series {
            let points = thinned(&s.points);
            let mut path = String::new();
            for (i, (step, value)) in points.iter().enumerate() {
                let _ = write!(path, "{}{:.1} {:.1}", if i == 0 { "M" } else { "L" }, x(*step), y(*value));
            }
            // A line from one dot to another would tell of a way that nobody measured.
            if !s.dots || points.len() > 2 {
                let _ = write!(svg, "<path class=\"line {}\" d=\"{path}\"/>", s.class);
            }
            if s.dots || points.len() == 1 {
                let dots: String = points
                    .iter()
                    .map(|(step, value)| format!("M{:.1} {:.1}h0", x(*step), y(*value)))
                    .collect();
                let _ = write!(svg, "<path class=\"dots {}\" d=\"{dots}\"/>", s.class);
            }
            let (steps, places): (Vec<f64>, Vec<f64>) =
                points.iter().map(|&(step, value)| (step, round(axis.place(value)))).unzip();
            let texts: Vec<String> = points.iter().map(|&(_, value)| (self.format)(value)).collect();
            data.push(json!({ "name": s.name, "class": s.class, "x": steps, "y": places, "text": texts }));
        }
        let label = |tick: &f64| {
            let top = 100.0 * (1.0 - axis.place(*tick));
            format!("<span style=\"top:{top:.2}%\">{}</span>", (self.format)(*tick))
        };
        let y_labels: String = ticks.iter().map(label).collect();
        let label = |tick: &f64| {
            let left = 100.0 * tick / self.last_step.max(1.0);
            format!("<span style=\"left:{left:.2}%\">{}</span>", grouped(*tick as usize))
        };
        let x_labels: String = steps_of(self.last_step).iter().map(label).collect();
        let legend = if series.len() > 1 {
            series
                .iter()
                .map(|s| format!("<span class=\"key {}\">{}</span>", s.class, escape(s.name)))
                .collect()
        } else {
            String::new()
        };
        let note =
            if axis.logarithmic { format!("{} · logarithmic", self.note) } else { self.note.to_string() };
        let data = json!({ "last": self.last_step, "unit": self.unit, "series": data });
        format!(
            "<figure class=\"card chart {}\"><figcaption><b>{}</b> <span class=note>{}</span><span class=legend>{legend}</span>\
             </figcaption><div class=plot><div class=ys>{y_labels}</div><div class=area><svg viewBox=\"0 0 {SIDE} {SIDE}\" \
             preserveAspectRatio=none role=img aria-label=\"{}\">{svg}</svg></div><div class=xs>{x_labels}</div>\
             <script type=\"application/json\">{data}</script></div></figure>\n",
            self.class,
            escape(self.title),
            escape(note.trim_start_matches(" · ")),
            escape(self.title),
        )
    }

    fn axis(&self, series: &[&Series]) -> (Axis, Vec<f64>) {
        let values = || series.iter().flat_map(|s| s.points.iter().map(|p| p.1));
        let (low, high) = values().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
        let least_positive = values().filter(|v| *v > 0.0).fold(f64::MAX, f64::min);
        if self.may_be_logarithmic && high > 50.0 * least_positive && low >= 0.0 {
            let (first, last) = (least_positive.log10().floor() as i32, high.log10().ceil() as i32);
            let every = ((last - first) as usize).div_ceil(5).max(1);
            let ticks: Vec<f64> = (first..=last).step_by(every).map(|e| 10f64.powi(e)).collect();
            return (Axis { low: 10f64.powi(first), high: 10f64.powi(last), logarithmic: true }, ticks);
        }
        // Zero belongs on the axis unless it would flatten what there is to see.
        let low = if low > 0.0 && (self.from_zero || low < 0.6 * high) { 0.0 } else { low };
        let step = nice(((high - low) / 4.0).max(high.abs() * 1e-9).max(1e-12));
        let (first, last) = ((low / step).floor() as i64, (high / step * (1.0 - 1e-9)).ceil() as i64);
        let ticks: Vec<f64> = (first..=last.max(first + 1)).map(|i| i as f64 * step).collect();
        (Axis { low: ticks[0], high: ticks[ticks.len() - 1], logarithmic: false }, ticks)
    }
}

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is at least `x`.
fn nice(x: f64) -> f64 {
    let power = 10f64.powf(x.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * power).find(|n| *n >= x * (1.0 - 1e-9)).unwrap_or(x)
}

/// Whole steps to be written under the axis.
fn steps_of(last: f64) -> Vec<f64> {
    let step = nice((last / 5.0).max(1.0)).ceil();
    let count = (last / step).floor() as usize;
    (0..=count).map(|i| i as f64 * step).collect()
}

fn round(x: f64) -> f64 {
    (x * 1e4).round() / 1e4
}

/// At most [`POINTS`] points with the same extremes.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= POINTS {
        return points.to_vec();
    }
    let mut kept = Vec::with_capacity(POINTS);
    for stretch in points.chunks(points.len().div_ceil(POINTS / 2)) {
        let by_value = |&a: &usize, &b: &usize| stretch[a].1.total_cmp(&stretch[b].1);
        let lowest = (0..stretch.len()).min_by(by_value).unwrap_or(0);
        let highest = (0..stretch.len()).max_by(by_value).unwrap_or(0);
        let (first, second) = (lowest.min(highest), lowest.max(highest));
        kept.push(stretch[first]);
        if second != first {
            kept.push(stretch[second]);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spikes_survive_thinning() {
        let mut points: Vec<(f64, f64)> = (0..10_000).map(|i| (f64::from(i), 1.0)).collect();
        points[7777].1 = 50.0;
        points[1234].1 = -3.0;
        let kept = thinned(&points);
        assert!(kept.len() <= POINTS, "{}", kept.len());
        assert!(kept.contains(&(7777.0, 50.0)) && kept.contains(&(1234.0, -3.0)));
        assert!(kept.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(thinned(&points[..POINTS]).len(), POINTS);
    }

    #[test]
    fn two_dots_are_no_line() {
        let html = |points: Vec<(f64, f64)>| {
            let series = vec![Series { name: "", class: "valid", points, dots: true }];
            Chart { series, last_step: 4.0, ..Chart::new(|v| v.to_string()) }.html()
        };
        let (two, three) =
            (html(vec![(0.0, 2.0), (4.0, 1.0)]), html(vec![(0.0, 2.0), (2.0, 1.0), (4.0, 1.0)]));
        assert!(two.contains("dots valid") && !two.contains("line valid"), "{two}");
        assert!(three.contains("dots valid") && three.contains("line valid"), "{three}");
    }

    #[test]
    fn ticks_are_round_and_hold_the_values() {
        let ticks = |values: &[f64], may_be_logarithmic| {
            let points = values.iter().enumerate().map(|(i, &v)| (i as f64, v)).collect();
            let series = Series { name: "", class: "train", points, dots: false };
            let chart = Chart { may_be_logarithmic, ..Chart::new(|v| v.to_string()) };
            chart.axis(&[&series]).1
        };
        assert_eq!(ticks(&[7.3, 0.4], false), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(ticks(&[101.0, 103.0], false), [101.0, 101.5, 102.0, 102.5, 103.0]);
        assert_eq!(ticks(&[0.0, 4e-3], false).len(), 5);
        assert_eq!(ticks(&[2.0, 2.0], false).len(), 2, "a flat line has an axis");
        assert_eq!(ticks(&[0.0, 0.0], false).len(), 2);
        assert_eq!(ticks(&[0.0, 0.02, 40.0], true), [0.01, 0.1, 1.0, 10.0, 100.0]);
        assert_eq!(ticks(&[1.0, 3.0], true), [0.0, 1.0, 2.0, 3.0], "a narrow range stays linear");
        assert_eq!(steps_of(54.0), [0.0, 20.0, 40.0]);
        assert_eq!(steps_of(3.0), [0.0, 1.0, 2.0, 3.0]);
    }
}
