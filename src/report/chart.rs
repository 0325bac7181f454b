//! Line charts. The lines are SVG that stretches to any width; the labels are HTML and keep their size.

use std::fmt::Write;

use serde_json::json;

use super::text::{escape, grouped, number};
use crate::words::power_of_ten;

/// Maximum number of points of a line. Longer lines are reduced to the minimum and maximum of each interval.
const MAX_POINTS: usize = 800;
/// Width and height of the SVG in its own coordinates.
const SIDE: f64 = 1000.0;

/// A line, or dots with a line.
pub struct Series<'a> {
    /// Name in the legend.
    pub name: &'a str,
    /// CSS class for the colour: `train`, `raw`, `valid` or `plain`.
    pub class: &'static str,
    /// Steps and values, sorted by step.
    pub points: Vec<(f64, f64)>,
    /// Whether each point is drawn as a dot.
    pub dots: bool,
}

impl<'a> Series<'a> {
    /// A line without dots.
    pub fn line(name: &'a str, class: &'static str, points: Vec<(f64, f64)>) -> Self {
        Series { name, class, points, dots: false }
    }

    /// Values on the validation samples.
    pub fn validation(points: Vec<(f64, f64)>) -> Self {
        Series { name: "validation", class: "valid", points, dots: true }
    }
}

/// Lines over steps.
pub struct Chart<'a> {
    /// Title of the chart.
    pub title: &'a str,
    /// Unit or hint, beside the title.
    pub note: &'a str,
    /// The lines.
    pub series: Vec<Series<'a>>,
    /// Last step on the horizontal axis.
    pub last_step: f64,
    /// Unit of the horizontal axis.
    pub unit: &'a str,
    /// Formats a value.
    pub format: fn(f64) -> String,
    /// Positions and texts of the labels of the horizontal axis; steps where it is empty.
    pub labels: Vec<(f64, String)>,
    /// Position of a vertical line.
    pub mark: Option<f64>,
    /// Whether the vertical axis is logarithmic if the values span orders of magnitude.
    pub may_be_logarithmic: bool,
    /// Whether the vertical axis always begins at 0.
    pub from_zero: bool,
    /// CSS class of the figure.
    pub class: &'static str,
}

/// Maps values to positions on the vertical axis, from 0 at the bottom to 1 at the top.
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

    /// Vertical position of a value in the SVG.
    fn y(&self, value: f64) -> f64 {
        SIDE * (1.0 - self.place(value))
    }
}

impl<'a> Chart<'a> {
    /// Lines over the steps of a run.
    pub fn of_run(title: &'a str, note: &'a str, series: Vec<Series<'a>>, last_step: f64) -> Self {
        Chart { title, note, series, last_step, ..Chart::new(number) }
    }

    /// An empty chart.
    pub fn new(format: fn(f64) -> String) -> Self {
        Chart {
            title: "",
            note: "",
            series: Vec::new(),
            last_step: 1.0,
            unit: "step",
            labels: Vec::new(),
            mark: None,
            format,
            may_be_logarithmic: false,
            from_zero: false,
            class: "",
        }
    }

    /// The chart as an HTML figure. Empty if no line has points.
    pub fn html(&self) -> String {
        let series: Vec<&Series> = self.series.iter().filter(|s| !s.points.is_empty()).collect();
        if series.is_empty() {
            return String::new();
        }
        let (axis, ticks) = self.axis(&series);
        let mut svg = String::new();
        for tick in &ticks {
            let _ = write!(svg, "<path class=grid d=\"M0 {0:.1}H{SIDE}\"/>", axis.y(*tick));
        }
        if let Some(mark) = self.mark {
            let _ = write!(svg, "<path class=mark d=\"M{0:.1} 0V{SIDE}\"/>", self.x(mark));
        }
        let mut data = Vec::new();
        for s in &series {
            let points = downsample(&s.points);
            self.draw(&mut svg, s, &points, &axis);
            let steps: Vec<f64> = points.iter().map(|point| point.0).collect();
            let places: Vec<f64> = points.iter().map(|point| round(axis.place(point.1))).collect();
            let texts: Vec<String> = points.iter().map(|point| (self.format)(point.1)).collect();
            data.push(json!({ "name": s.name, "class": s.class, "x": steps, "y": places, "text": texts }));
        }
        let data = json!({ "last": self.last_step, "unit": self.unit, "series": data });
        let legend = if series.len() > 1 { legend(&series) } else { String::new() };
        let note =
            if axis.logarithmic { format!("{} · logarithmic", self.note) } else { self.note.to_string() };
        format!(
            "<figure class=\"card chart {}\"><figcaption><b>{}</b> <span class=note>{}</span><span class=legend>{legend}</span>\
             </figcaption><div class=plot><div class=ys>{}</div><div class=area><svg viewBox=\"0 0 {SIDE} {SIDE}\" \
             preserveAspectRatio=none role=img aria-label=\"{}\">{svg}</svg></div><div class=xs>{}</div>\
             <script type=\"application/json\">{data}</script></div></figure>\n",
            self.class,
            escape(self.title),
            escape(note.trim_start_matches(" · ")),
            self.y_labels(&axis, &ticks),
            escape(self.title),
            self.x_labels(),
        )
    }

    /// Horizontal position of a step in the SVG.
    fn x(&self, step: f64) -> f64 {
        SIDE * step / self.last_step.max(1.0)
    }

    /// Draws the line and the dots of a series.
    fn draw(&self, svg: &mut String, series: &Series, points: &[(f64, f64)], axis: &Axis) {
        let mut path = String::new();
        let mut dots = String::new();
        for (i, (step, value)) in points.iter().enumerate() {
            let x = self.x(*step);
            let y = axis.y(*value);
            let _ = write!(path, "{}{x:.1} {y:.1}", if i == 0 { "M" } else { "L" });
            let _ = write!(dots, "M{x:.1} {y:.1}h0");
        }
        // A line between two dots would suggest values that nobody measured.
        if !series.dots || points.len() > 2 {
            let _ = write!(svg, "<path class=\"line {}\" d=\"{path}\"/>", series.class);
        }
        if series.dots || points.len() == 1 {
            let _ = write!(svg, "<path class=\"dots {}\" d=\"{dots}\"/>", series.class);
        }
    }

    fn y_labels(&self, axis: &Axis, ticks: &[f64]) -> String {
        let label = |tick: &f64| {
            let top = 100.0 * (1.0 - axis.place(*tick));
            format!("<span style=\"top:{top:.2}%\">{}</span>", (self.format)(*tick))
        };
        ticks.iter().map(label).collect()
    }

    fn x_labels(&self) -> String {
        let label = |(tick, text): &(f64, String)| {
            let left = 100.0 * tick / self.last_step.max(1.0);
            format!("<span style=\"left:{left:.2}%\">{text}</span>")
        };
        if self.labels.is_empty() {
            let steps = steps_of(self.last_step).into_iter().map(|tick| (tick, grouped(tick as usize)));
            return steps.map(|step| label(&step)).collect();
        }
        self.labels.iter().map(label).collect()
    }

    fn axis(&self, series: &[&Series]) -> (Axis, Vec<f64>) {
        let values = || series.iter().flat_map(|s| s.points.iter().map(|p| p.1));
        let (low, high) = values().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
        let least_positive = values().filter(|v| *v > 0.0).fold(f64::MAX, f64::min);
        if self.may_be_logarithmic && high > 50.0 * least_positive && low >= 0.0 {
            let (first, last) = (least_positive.log10().floor() as i32, high.log10().ceil() as i32);
            let every = ((last - first) as usize).div_ceil(5).max(1);
            let ticks: Vec<f64> = (first..=last).step_by(every).map(power_of_ten).collect();
            return (Axis { low: power_of_ten(first), high: power_of_ten(last), logarithmic: true }, ticks);
        }
        // The axis includes zero unless that would flatten the line.
        let low = if low > 0.0 && (self.from_zero || low < 0.6 * high) { 0.0 } else { low };
        let step = nice(((high - low) / 4.0).max(high.abs() * 1e-9).max(1e-12));
        let (first, last) = ((low / step).floor() as i64, (high / step * (1.0 - 1e-9)).ceil() as i64);
        let ticks: Vec<f64> = (first..=last.max(first + 1)).map(|i| i as f64 * step).collect();
        (Axis { low: ticks[0], high: ticks[ticks.len() - 1], logarithmic: false }, ticks)
    }
}

fn legend(series: &[&Series]) -> String {
    let key = |s: &&Series| format!("<span class=\"key {}\">{}</span>", s.class, escape(s.name));
    series.iter().map(key).collect()
}

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is at least `x`.
fn nice(x: f64) -> f64 {
    let power = power_of_ten(x.log10().floor() as i32);
    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * power).find(|n| *n >= x * (1.0 - 1e-9)).unwrap_or(x)
}

/// Steps to label on the horizontal axis.
fn steps_of(last: f64) -> Vec<f64> {
    let step = nice((last / 5.0).max(1.0)).ceil();
    let count = (last / step).floor() as usize;
    (0..=count).map(|i| i as f64 * step).collect()
}

fn round(x: f64) -> f64 {
    (x * 1e4).round() / 1e4
}

/// Reduces a line to at most [`MAX_POINTS`] points with the same extremes.
fn downsample(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= MAX_POINTS {
        return points.to_vec();
    }
    let mut kept = Vec::with_capacity(MAX_POINTS);
    for stretch in points.chunks(points.len().div_ceil(MAX_POINTS / 2)) {
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
    fn downsampling_keeps_spikes() {
        let mut points: Vec<(f64, f64)> = (0..10_000).map(|i| (f64::from(i), 1.0)).collect();
        points[7777].1 = 50.0;
        points[1234].1 = -3.0;
        let kept = downsample(&points);
        assert!(kept.len() <= MAX_POINTS, "{}", kept.len());
        assert!(kept.contains(&(7777.0, 50.0)) && kept.contains(&(1234.0, -3.0)));
        assert!(kept.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(downsample(&points[..MAX_POINTS]).len(), MAX_POINTS);
    }

    #[test]
    fn two_dots_are_not_joined() {
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
    fn ticks_are_round_and_include_the_values() {
        let ticks = |values: &[f64], may_be_logarithmic| {
            let points = values.iter().enumerate().map(|(i, &v)| (i as f64, v)).collect();
            let series = Series::line("", "train", points);
            let chart = Chart { may_be_logarithmic, ..Chart::new(|v| v.to_string()) };
            chart.axis(&[&series]).1
        };
        assert_eq!(ticks(&[7.3, 0.4], false), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(ticks(&[101.0, 103.0], false), [101.0, 101.5, 102.0, 102.5, 103.0]);
        assert_eq!(ticks(&[0.0, 4e-3], false).len(), 5);
        assert_eq!(ticks(&[2.0, 2.0], false).len(), 2, "a flat line has two ticks");
        assert_eq!(ticks(&[0.0, 0.0], false).len(), 2);
        assert_eq!(ticks(&[0.0, 0.02, 40.0], true), [0.01, 0.1, 1.0, 10.0, 100.0]);
        assert_eq!(ticks(&[1.0, 3.0], true), [0.0, 1.0, 2.0, 3.0], "a narrow range stays linear");
        assert_eq!(steps_of(54.0), [0.0, 20.0, 40.0]);
        assert_eq!(steps_of(3.0), [0.0, 1.0, 2.0, 3.0]);
    }
}
