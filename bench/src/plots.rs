//! Plots as SVG text.

use std::fmt::Display;

use plotters::{
    coord::Shift,
    prelude::{
        ChartBuilder, DrawingArea, IntoDrawingArea as _, IntoLogRange as _, LineSeries, PathElement,
        SVGBackend, Text, WHITE,
    },
    style::{Color as _, RGBColor},
};

use crate::{error::BenchError, report::Report};

/// Told apart also without colour vision (Okabe and Ito's). The page changes them where it is dark.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

/// Of the grid. This and black and white are changed by the page where it is dark.
const GRID: RGBColor = RGBColor(221, 221, 221);

/// A line with its name.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Line {
    /// For the legend.
    pub(crate) name: String,
    /// In the order of x.
    pub(crate) points: Vec<(f64, f64)>,
}

/// What the axes say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Axis {
    /// 50 %, 90 %, 99 % …: the number of nines behind.
    Percentiles,
    /// Bytes, as their binary logarithm.
    Bytes,
    /// Calls per second.
    Rate,
}

impl Axis {
    const fn title(self) -> &'static str {
        match self {
            Self::Percentiles => "percentile of all calls",
            Self::Bytes => "bytes of one body",
            Self::Rate => "calls per second offered",
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "for people")]
    fn label(self, x: f64) -> String {
        match self {
            Self::Percentiles => {
                const NAMES: [&str; 6] = ["50", "90", "99", "99.9", "99.99", "max"];
                let name = NAMES.get(x.round() as usize).filter(|_| (x - x.round()).abs() < 0.01);
                name.map_or_else(String::new, |name| (*name).to_owned())
            }
            Self::Bytes if (x - x.round()).abs() < 0.01 => binary(x.exp2()),
            Self::Bytes => String::new(),
            Self::Rate => thousands(x),
        }
    }
}

/// What goes up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Up {
    /// Nanoseconds.
    Time,
    /// Calls per second.
    Rate,
    /// Bytes per second.
    Bytes,
}

impl Up {
    fn label(self, y: f64) -> String {
        match self {
            Self::Time => match y {
                y if y >= 1e9 => format!("{} s", rounded(y / 1e9)),
                y if y >= 1e6 => format!("{} ms", rounded(y / 1e6)),
                y if y >= 1e3 => format!("{} µs", rounded(y / 1e3)),
                y => format!("{} ns", rounded(y)),
            },
            Self::Rate => format!("{}/s", thousands(y)),
            Self::Bytes => format!("{}B/s", thousands(y)),
        }
    }
}

/// Bytes, as they are typed: 64, 4k, 1m.
fn binary(x: f64) -> String {
    match x {
        x if x >= 1_048_576.0 => format!("{}m", rounded(x / 1_048_576.0)),
        x if x >= 1024.0 => format!("{}k", rounded(x / 1024.0)),
        x => rounded(x),
    }
}

/// One digit behind the point, when it says something.
fn rounded(x: f64) -> String {
    let text = format!("{x:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

/// A number with a unit prefix.
fn thousands(x: f64) -> String {
    match x {
        x if x >= 1e9 => format!("{} G", rounded(x / 1e9)),
        x if x >= 1e6 => format!("{} M", rounded(x / 1e6)),
        x if x >= 1e4 => format!("{:.0} k", x / 1e3),
        x if x >= 1e3 => format!("{} k", rounded(x / 1e3)),
        x => format!("{x:.0}"),
    }
}

fn failed<E: Display>(error: E) -> BenchError {
    BenchError::Plot(error.to_string())
}

/// The least and the most of all, never the same.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .filter(|value| value.is_finite())
        .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    if low > high { (0.0, 1.0) } else { (low, high.max(low + f64::EPSILON.max(low.abs() * 0.01))) }
}

/// Draws into a new SVG.
fn draw(
    size: (u32, u32),
    act: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), BenchError>,
) -> Result<String, BenchError> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        act(&root)?;
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

/// A size of a plot: the page shows the one that fits its width.
struct Size {
    class: &'static str,
    pixels: (u32, u32),
    /// Left of the plot, pixels.
    left: u32,
    font: u32,
    /// At most so many labels below the plot.
    labels_max: usize,
}

const SIZES: [Size; 2] = [
    Size { class: "wide", pixels: (900, 340), left: 84, font: 17, labels_max: 24 },
    Size { class: "narrow", pixels: (380, 300), left: 64, font: 15, labels_max: 8 },
];

/// Lines over something, on a logarithmic scale, for wide and for narrow pages; a place on the x axis may be marked. The
/// caller writes title and legend.
pub(crate) fn lines(
    title: &str,
    axis: Axis,
    up: Up,
    lines: &[Line],
    mark: Option<(f64, &str)>,
) -> Result<String, BenchError> {
    let mut text = String::new();
    for size in &SIZES {
        let svg = drawn(size, axis, up, lines, mark)?;
        let class = format!(
            "<svg class=\"{}\" role=\"img\" aria-label=\"{}\" ",
            size.class,
            title.replace('"', "&quot;")
        );
        text += &svg.replacen("<svg ", &class, 1);
    }
    Ok(text)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "powers of two")]
fn drawn(
    size: &Size,
    axis: Axis,
    up: Up,
    lines: &[Line],
    mark: Option<(f64, &str)>,
) -> Result<String, BenchError> {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let (left, right) =
        if axis == Axis::Percentiles { (0.0, 5.0) } else { bounds(points().map(|(x, _)| *x)) };
    let (low, high) = bounds(points().map(|(_, y)| y.max(1.0)));
    // Whole powers of ten, which are labelled.
    let (low, high) = (10f64.powf(low.log10().floor()), 10f64.powf((high * 1.01).log10().ceil()));
    let font = ("sans-serif", size.font);
    draw(size.pixels, |root| {
        let mut chart = ChartBuilder::on(root)
            .margin(8)
            .margin_right(24)
            .x_label_area_size(5 * size.font / 2)
            .y_label_area_size(size.left)
            .build_cartesian_2d(left..right, (low..high).log_scale())
            .map_err(failed)?;
        let labels = match axis {
            Axis::Percentiles => 6,
            // One for each power of two.
            Axis::Bytes => (right - left).round() as usize + 1,
            Axis::Rate => 10,
        };
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .bold_line_style(GRID)
            .x_desc(axis.title())
            .label_style(font)
            .axis_desc_style(font)
            .x_labels(labels.min(size.labels_max))
            .x_label_formatter(&|x| axis.label(*x))
            .y_label_formatter(&|y| up.label(*y))
            .draw()
            .map_err(failed)?;
        if let Some((x, name)) = mark {
            let line = PathElement::new([(x, low), (x, high)], COLOURS[6].stroke_width(1));
            // Left of the line where right of it is no room.
            let at = x.min(right - 0.13 * (right - left));
            let label = Text::new(name.to_owned(), (at, low * (high / low).powf(0.12)), font);
            chart.draw_series([line]).map_err(failed)?;
            chart.draw_series([label]).map_err(failed)?;
        }
        for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
            let points = line.points.iter().map(|(x, y)| (*x, y.max(1.0)));
            let series = LineSeries::new(points, colour.stroke_width(2)).point_size(3);
            chart.draw_series(series).map_err(failed)?;
        }
        Ok(())
    })
}

/// The percentiles of a report as a line.
#[expect(clippy::cast_precision_loss, reason = "for a plot")]
pub(crate) fn percentiles(name: String, report: &Report) -> Line {
    let times = [report.p50_ns, report.p90_ns, report.p99_ns, report.p999_ns, report.p9999_ns, report.max_ns];
    let points = times.iter().enumerate().map(|(nines, nanos)| (nines as f64, *nanos as f64)).collect();
    Line { name, points }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_have_their_names_and_numbers() {
        let line = Line { name: "one line".to_owned(), points: vec![(0.0, 500.0), (1.0, 7e6)] };
        let svg = lines("a title", Axis::Percentiles, Up::Time, &[line], Some((1.0, "a mark"))).unwrap();
        for text in ["class=\"wide\"", "class=\"narrow\"", "a title", "99.9", "10 ms", "a mark"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert_eq!((svg.matches("<svg").count(), svg.matches("</svg>").count()), (2, 2));
    }

    #[test]
    fn empty_and_flat_plots_are_plots() {
        assert!(lines("nothing", Axis::Rate, Up::Rate, &[], None).is_ok());
        let flat = Line { name: "flat".to_owned(), points: vec![(6.0, 0.0)] };
        assert!(lines("flat", Axis::Bytes, Up::Bytes, &[flat], None).is_ok());
    }
}
