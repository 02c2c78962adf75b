//! Drawings: lines over axes, and bars with whiskers, as SVG that takes its colours from the page.

use std::fmt::Write as _;

/// Size of a drawing, and what its axes take.
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 270.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;
/// Names stand left of bars.
const NAMES: f64 = 170.0;
/// Height of a bar, and of the gap before the next subject.
const BAR: f64 = 13.0;
const GAP: f64 = 12.0;
/// Colours that the page defines; further lines have them again, dashed.
pub const COLOURS: usize = 8;
/// Points of a line beyond which nobody sees a difference.
const POINTS_MAX: usize = 400;

/// How values lie on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By powers of ten.
    Log,
}

/// An axis with its marks.
#[derive(Debug, Clone)]
pub struct Axis {
    /// The label.
    pub label: &'static str,
    /// How values lie on it.
    pub scale: Scale,
    /// Least and greatest value.
    pub range: (f64, f64),
    /// Values with what stands beside them.
    pub marks: Vec<(f64, String)>,
}

impl Axis {
    /// By powers of ten, with a mark at each.
    #[must_use]
    pub fn log(label: &'static str, least: f64, greatest: f64) -> Self {
        let (low, high) = (least.max(1e-12).log10().floor(), greatest.max(1e-12).log10().ceil());
        let high = high.max(low + 1.0);
        let marks = (low as i32..=high as i32).map(|power| (10_f64.powi(power), power_text(power))).collect();
        Self { label, scale: Scale::Log, range: (10_f64.powf(low), 10_f64.powf(high)), marks }
    }

    /// From 0 to 1, as percents.
    #[must_use]
    pub fn share(label: &'static str) -> Self {
        let marks =
            (0..=4).map(|quarter| (f64::from(quarter) / 4.0, format!("{} %", quarter * 25))).collect();
        Self { label, scale: Scale::Linear, range: (0.0, 1.0), marks }
    }

    /// Where a value lies, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let (low, high) = self.range;
        let place = match self.scale {
            Scale::Linear => (value - low) / (high - low),
            Scale::Log => (value.max(low) / low).log10() / (high / low).log10(),
        };
        place.clamp(0.0, 1.0)
    }
}

fn power_text(power: i32) -> String {
    match power {
        0..=6 => 10_i64
            .pow(power.unsigned_abs())
            .to_string()
            .replace("1000000", "1M")
            .replace("100000", "100k")
            .replace("10000", "10k"),
        -3..=-1 => format!("{:.*}", power.unsigned_abs() as usize, 10_f64.powi(power)),
        _ => format!("1e{power}"),
    }
}

/// A line of a drawing.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Its name, shown when it is pointed at.
    pub name: String,
    /// The number of its colour.
    pub colour: usize,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
    /// Whether it goes in steps.
    pub is_stepped: bool,
}

/// Lines over two axes.
#[must_use]
pub fn lines(title: &str, x: &Axis, y: &Axis, curves: &[Curve]) -> String {
    let (inner_width, inner_height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let at_x = |value: f64| LEFT + x.place(value) * inner_width;
    let at_y = |value: f64| TOP + (1.0 - y.place(value)) * inner_height;
    let mut out = open(title, WIDTH, HEIGHT);
    for (value, text) in &x.marks {
        let at = at_x(*value);
        let (top, bottom) = (TOP, HEIGHT - BOTTOM);
        put(&mut out, format!("<line class=grid x1={at:.1} y1={top} x2={at:.1} y2={bottom} />"));
        put(
            &mut out,
            format!("<text x={at:.1} y={:.1} text-anchor=middle>{}</text>", bottom + 15.0, escape(text)),
        );
    }
    for (value, text) in &y.marks {
        let at = at_y(*value);
        put(&mut out, format!("<line class=grid x1={LEFT} y1={at:.1} x2={:.1} y2={at:.1} />", WIDTH - RIGHT));
        put(
            &mut out,
            format!("<text x={:.1} y={:.1} text-anchor=end>{}</text>", LEFT - 6.0, at + 4.0, escape(text)),
        );
    }
    let middle = LEFT + inner_width / 2.0;
    put(
        &mut out,
        format!(
            "<text class=label x={middle:.1} y={:.1} text-anchor=middle>{}</text>",
            HEIGHT - 8.0,
            escape(x.label)
        ),
    );
    let middle = TOP + inner_height / 2.0;
    put(
        &mut out,
        format!(
            "<text class=label transform=\"translate(13 {middle:.1}) rotate(-90)\" text-anchor=middle>{}</text>",
            escape(y.label)
        ),
    );
    for curve in curves {
        let path = path(curve, at_x, at_y);
        let dash = if curve.colour >= COLOURS { " dashed" } else { "" };
        let (colour, name) = (curve.colour % COLOURS, escape(&curve.name));
        put(
            &mut out,
            format!("<path class=\"curve c{colour}{dash}\" d=\"{path}\"><title>{name}</title></path>"),
        );
    }
    out.push_str("</svg>");
    out
}

fn path(curve: &Curve, at_x: impl Fn(f64) -> f64, at_y: impl Fn(f64) -> f64) -> String {
    let every = curve.points.len().div_ceil(POINTS_MAX).max(1);
    let last = curve.points.len().saturating_sub(1);
    let kept = curve.points.iter().enumerate().filter(|(at, _)| at % every == 0 || *at == last);
    let mut path = String::new();
    for (at, (_, (x, y))) in kept.enumerate() {
        let (x, y) = (at_x(*x), at_y(*y));
        let _infallible = match (at, curve.is_stepped) {
            (0, _) => write!(path, "M{x:.1} {y:.1}"),
            (_, true) => write!(path, "H{x:.1}V{y:.1}"),
            (_, false) => write!(path, "L{x:.1} {y:.1}"),
        };
    }
    path
}

/// One bar with its interval.
#[derive(Debug, Clone)]
pub struct Bar {
    /// The text that is shown when it is pointed at.
    pub name: String,
    /// The number of its colour.
    pub colour: usize,
    /// Where it ends, and the interval around that.
    pub value: f64,
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

/// Bars from zero, which may go to either side, in groups with a name each.
#[must_use]
pub fn bars(title: &str, unit: &str, groups: &[(String, Vec<Bar>)]) -> String {
    let all = || groups.iter().flat_map(|(_, bars)| bars);
    let least = all().map(|bar| bar.low.min(bar.value)).fold(0.0, f64::min);
    let greatest = all().map(|bar| bar.high.max(bar.value)).fold(1e-9, f64::max);
    let step = step(greatest - least);
    let (least, greatest) = ((least / step).floor() * step, (greatest / step).ceil() * step);
    let width = WIDTH;
    let count: usize = groups.iter().map(|(_, bars)| bars.len()).sum();
    let height = count as f64 * BAR + groups.len() as f64 * GAP + BOTTOM;
    let at_x = |value: f64| NAMES + (value - least) / (greatest - least) * (width - NAMES - RIGHT * 2.0);
    let mut out = open(title, width, height);
    let marks = ((greatest - least) / step).round() as i32;
    for mark in 0..=marks {
        let value = least + f64::from(mark) * step;
        let (at, bottom) = (at_x(value), height - BOTTOM + 4.0);
        put(&mut out, format!("<line class=grid x1={at:.1} y1=0 x2={at:.1} y2={bottom:.1} />"));
        put(
            &mut out,
            format!("<text x={at:.1} y={:.1} text-anchor=middle>{}</text>", bottom + 14.0, figure(value)),
        );
    }
    let middle = f64::midpoint(NAMES, width);
    put(
        &mut out,
        format!(
            "<text class=label x={middle:.1} y={:.1} text-anchor=middle>{}</text>",
            height - 6.0,
            escape(unit)
        ),
    );
    let mut y = GAP / 2.0;
    for (name, bars) in groups {
        let middle = y + bars.len() as f64 * BAR / 2.0 + 4.0;
        put(
            &mut out,
            format!("<text x={:.1} y={middle:.1} text-anchor=end>{}</text>", NAMES - 8.0, escape(name)),
        );
        for bar in bars {
            let (from, to) = (at_x(bar.value.min(0.0)), at_x(bar.value.max(0.0)));
            let (colour, name) = (bar.colour % COLOURS, escape(&bar.name));
            put(
                &mut out,
                format!(
                    "<rect class=\"bar f{colour}\" x={from:.1} y={y:.1} width={:.1} height={:.1}><title>{name}</title></rect>",
                    to - from,
                    BAR - 2.0
                ),
            );
            let (low, high, line) = (at_x(bar.low), at_x(bar.high), y + (BAR - 2.0) / 2.0);
            put(
                &mut out,
                format!(
                    "<path class=whisker d=\"M{low:.1} {line:.1}H{high:.1}M{low:.1} {:.1}v6M{high:.1} {:.1}v6\" />",
                    line - 3.0,
                    line - 3.0
                ),
            );
            y += BAR;
        }
        y += GAP;
    }
    let zero = at_x(0.0);
    put(
        &mut out,
        format!("<line class=zero x1={zero:.1} y1=0 x2={zero:.1} y2={:.1} />", height - BOTTOM + 4.0),
    );
    out.push_str("</svg>");
    out
}

/// A round distance of marks, so that there are some five.
fn step(span: f64) -> f64 {
    let rough = span / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let part = rough / power;
    let round = if part > 5.0 {
        10.0
    } else if part > 2.0 {
        5.0
    } else if part > 1.0 {
        2.0
    } else {
        1.0
    };
    round * power
}

/// A number with as many digits as it is worth.
#[must_use]
pub fn figure(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() => "-".to_owned(),
        0.0 => "0".to_owned(),
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 0.1 => format!("{value:.2}"),
        _ if size >= 0.001 => format!("{value:.4}"),
        _ => format!("{value:.1e}"),
    }
}

/// A text as HTML has it.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn open(title: &str, width: f64, height: f64) -> String {
    let title = escape(title);
    format!(
        "<svg viewBox=\"0 0 {width} {height:.0}\" role=img aria-label=\"{title}\" xmlns=\"http://www.w3.org/2000/svg\">\n"
    )
}

fn put(out: &mut String, line: String) {
    out.push_str(&line);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_where_they_belong() {
        let axis = Axis::log("us", 12.0, 900.0);
        assert_eq!(axis.range, (10.0, 1_000.0));
        assert!((axis.place(100.0) - 0.5).abs() < 1e-9 && axis.place(1.0) == 0.0 && axis.place(1e9) == 1.0);
        assert_eq!(
            axis.marks.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(),
            ["10", "100", "1000"]
        );
    }

    #[test]
    fn names_of_others_stay_text() {
        let curve = Curve {
            name: "<script>\"&".into(),
            colour: 9,
            points: vec![(1.0, 0.0), (10.0, 1.0)],
            is_stepped: true,
        };
        let drawn = lines("a \"title\"", &Axis::log("us", 1.0, 10.0), &Axis::share("share"), &[curve]);
        assert!(!drawn.contains("<script") && drawn.contains("&lt;script&gt;&quot;&amp;"), "{drawn}");
        assert!(drawn.contains("c1 dashed") && drawn.contains("aria-label=\"a &quot;title&quot;\""));
    }

    #[test]
    fn bars_go_to_both_sides_of_zero() {
        let bar =
            |value: f64| Bar { name: "x".into(), colour: 0, value, low: value - 1.0, high: value + 1.0 };
        let drawn = bars("parts", "us", &[("a".into(), vec![bar(20.0), bar(-5.0)])]);
        assert_eq!(drawn.matches("<rect").count(), 2);
        assert!(!drawn.contains("width=-"), "{drawn}");
    }

    #[test]
    fn numbers_have_the_digits_that_they_are_worth() {
        assert_eq!([1234.0, 12.34, 1.234, 0.01234, 0.0].map(figure), ["1234", "12.3", "1.23", "0.0123", "0"]);
        assert_eq!(figure(1.2e-7), "1.2e-7");
    }
}
