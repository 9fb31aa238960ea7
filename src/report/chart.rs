//! Line charts as SVG.

use crate::text::{count, escape_html};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 320.0;
/// Room for the labels of the axes.
const LEFT: f64 = 64.0;
const BOTTOM: f64 = 44.0;
const TOP: f64 = 16.0;
const RIGHT: f64 = 20.0;
/// Ticks of an axis, about.
const TICKS: f64 = 6.0;
/// Colours that people with colour blindness can distinguish.
const COLORS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444"];

pub(crate) struct ChartCurve {
    pub name: String,
    /// Points in the order of x.
    pub points: Vec<[f64; 2]>,
    /// True for a thin line in the back, like the loss of every step.
    pub is_faint: bool,
}

/// Returns a chart of curves, or an empty text if none has two points. `x` and `y` name the axes.
pub(super) fn chart(x: &str, y: &str, curves: &[ChartCurve]) -> String {
    let shown: Vec<&ChartCurve> = curves.iter().filter(|curve| curve.points.len() > 1).collect();
    let points = || shown.iter().flat_map(|curve| &curve.points);
    let [columns, rows] = [0, 1].map(|axis| Axis::of(points().map(|point| point[axis])));
    let (Some(columns), Some(rows)) = (columns, rows) else { return String::new() };
    let bottom = HEIGHT - BOTTOM;
    let end = WIDTH - RIGHT;
    let right = |value: f64| LEFT + columns.share(value) * (WIDTH - LEFT - RIGHT);
    let down = |value: f64| TOP + (1.0 - rows.share(value)) * (HEIGHT - TOP - BOTTOM);
    let (x, y) = (escape_html(x), escape_html(y));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"{y} over {x}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for tick in rows.ticks() {
        let at = down(tick);
        svg += &format!("<path d=\"M{LEFT} {at:.1}H{end}\" stroke=\"#ddd\"/>");
        svg += &text(LEFT - 6.0, at + 4.0, "end", "#333", &rows.label(tick));
    }
    for tick in columns.ticks() {
        svg += &text(right(tick), bottom + 16.0, "middle", "#333", &columns.label(tick));
    }
    svg += &format!("<path d=\"M{LEFT} {TOP}V{bottom}H{end}\" fill=\"none\" stroke=\"#888\"/>");
    svg += &text((LEFT + end) / 2.0, HEIGHT - 8.0, "middle", "#333", &x);
    for (index, (curve, color)) in shown.iter().zip(COLORS.iter().cycle()).enumerate() {
        let (width, opacity) = if curve.is_faint { (1.0, 0.45) } else { (1.8, 1.0) };
        let point = |[x, y]: &[f64; 2]| format!("{:.1},{:.1}", right(*x), down(*y));
        let points: Vec<String> = curve.points.iter().map(point).collect();
        svg += &format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\" \
             stroke-opacity=\"{opacity}\"/>",
            points.join(" ")
        );
        let legend = TOP + 8.0 + 16.0 * index as f64;
        svg += &text(end - 4.0, legend, "end", color, &escape_html(&curve.name));
    }
    svg + "</svg>\n"
}

/// Returns a line of text. `anchor` is the part at `x`.
fn text(x: f64, y: f64, anchor: &str, color: &str, content: &str) -> String {
    format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{color}\">{content}</text>\n"
    )
}

struct Axis {
    from: f64,
    to: f64,
    /// The distance of two ticks.
    step: f64,
}

impl Axis {
    /// Returns the axis of these values; `None` without any.
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let from = values.iter().copied().reduce(f64::min)?;
        let mut to = values.iter().copied().reduce(f64::max)?;
        if to <= from {
            to = from + from.abs().max(1.0) * 0.1;
        }
        let rough = (to - from) / TICKS;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = step.into_iter().find(|step| *step >= rough).unwrap_or(10.0 * power);
        Some(Self { from, to, step })
    }

    fn share(&self, value: f64) -> f64 {
        (value - self.from) / (self.to - self.from)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let first = (self.from / self.step).ceil() as i64;
        let last = (self.to / self.step).floor() as i64;
        let step = self.step;
        (first..=last).map(move |tick| tick as f64 * step)
    }

    fn label(&self, tick: f64) -> String {
        if self.step >= 1e15 {
            return format!("{tick:.0e}");
        }
        if self.step >= 1.0 && tick >= 0.0 {
            return count(tick.round() as u64);
        }
        let places = (-self.step.log10().floor()).max(0.0) as usize;
        format!("{tick:.places$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[[f64; 2]]) -> ChartCurve {
        ChartCurve { name: "a < b".into(), points: points.to_vec(), is_faint: false }
    }

    #[test]
    fn ticks_are_round_numbers_inside_the_axis() {
        let labels = |values: &[f64]| -> Vec<String> {
            let axis = Axis::of(values.iter().copied()).unwrap();
            axis.ticks().map(|tick| axis.label(tick)).collect()
        };
        assert_eq!(labels(&[0.0, 5000.0]), ["0", "1,000", "2,000", "3,000", "4,000", "5,000"]);
        assert_eq!(labels(&[1.43, 4.2]), ["1.5", "2.0", "2.5", "3.0", "3.5", "4.0"]);
        assert_eq!(labels(&[0.0, 3e9]), ["0", "500.0M", "1.0B", "1.5B", "2.0B", "2.5B", "3.0B"]);
        assert!(Axis::of([f64::NAN].into_iter()).is_none());
        assert!(!labels(&[2.0, 2.0]).is_empty());
    }

    #[test]
    fn a_chart_has_its_curves_and_escaped_names() {
        let svg =
            chart("tokens", "loss", &[curve(&[[0.0, 4.0], [10.0, 2.0]]), curve(&[[1.0, 1.0]])]);
        assert_eq!(svg.matches("<polyline").count(), 1, "a point is no line");
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"), "{svg}");
        // The first point is at the top left, the last at the bottom right.
        assert!(svg.contains("points=\"64.0,16.0 740.0,276.0\""), "{svg}");
        assert_eq!(chart("tokens", "loss", &[]), "");
    }
}
