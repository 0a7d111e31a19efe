//! Plots as SVG text.

use std::fmt::Display;

use plotters::{
    coord::Shift,
    prelude::{
        BLACK, ChartBuilder, DrawingArea, IntoDrawingArea as _, IntoLogRange as _, LineSeries, PathElement,
        Rectangle, SVGBackend, Text, WHITE,
    },
    style::{Color as _, RGBColor},
};

use crate::{error::BenchError, report::Report};

/// Of one plot, pixels.
const SIZE: (u32, u32) = (860, 420);
/// Lines and bars: told apart also without colour vision (Okabe and Ito's).
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
                y if y >= 1e3 => format!("{} us", rounded(y / 1e3)),
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
        x if x >= 1e9 => format!("{:.1} G", x / 1e9),
        x if x >= 1e6 => format!("{:.1} M", x / 1e6),
        x if x >= 1e4 => format!("{:.0} k", x / 1e3),
        x if x >= 1e3 => format!("{:.1} k", x / 1e3),
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

/// Lines over something, on a logarithmic scale; a place on the x axis may be marked.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most seven lines, and powers of two"
)]
pub(crate) fn lines(
    title: &str,
    axis: Axis,
    up: Up,
    lines: &[Line],
    mark: Option<(f64, &str)>,
) -> Result<String, BenchError> {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let (left, right) =
        if axis == Axis::Percentiles { (0.0, 5.0) } else { bounds(points().map(|(x, _)| *x)) };
    let (low, high) = bounds(points().map(|(_, y)| y.max(1.0)));
    // Whole powers of ten, which are labelled; above the lines there is room for the legend.
    let decade = |y: f64, up: bool| 10f64.powf(if up { y.log10().ceil() } else { y.log10().floor() });
    let (low, high) = (decade(low, false), decade(high * 1.01, true));
    let room = (high / low).powf(0.13 * lines.len().min(7) as f64);
    draw(SIZE, |root| {
        let mut chart = ChartBuilder::on(root)
            .caption(title, ("sans-serif", 20))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(84)
            .build_cartesian_2d(left..right, (low..high * room).log_scale())
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
            .label_style(("sans-serif", 14))
            .axis_desc_style(("sans-serif", 15))
            .x_labels(labels)
            .x_label_formatter(&|x| axis.label(*x))
            .y_label_formatter(&|y| up.label(*y))
            .draw()
            .map_err(failed)?;
        if let Some((x, name)) = mark {
            let line = PathElement::new([(x, low), (x, high * room)], COLOURS[6].stroke_width(1));
            // Left of the line where right of it is no room.
            let at = x.min(right - 0.13 * (right - left));
            let label =
                Text::new(name.to_owned(), (at, low * (high * room / low).powf(0.06)), ("sans-serif", 14));
            chart.draw_series([line]).map_err(failed)?;
            chart.draw_series([label]).map_err(failed)?;
        }
        for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
            let style = colour.stroke_width(2);
            chart
                .draw_series(
                    LineSeries::new(line.points.iter().map(|(x, y)| (*x, y.max(1.0))), style).point_size(3),
                )
                .map_err(failed)?
                .label(&*line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        chart
            .configure_series_labels()
            .label_font(("sans-serif", 14))
            .position(plotters::prelude::SeriesLabelPosition::UpperLeft)
            .background_style(WHITE)
            .border_style(GRID)
            .draw()
            .map_err(failed)
    })
}

/// A bar each, with where it lies with 95 % confidence; 1 is drawn as a line.
pub(crate) fn ratios(title: &str, bars: &[(String, f64, [f64; 2])]) -> Result<String, BenchError> {
    let (_, high) = bounds(bars.iter().map(|(_, ratio, [_, high])| ratio.max(*high)).chain([1.0]));
    let count = bars.len().max(1);
    let height = 90 + 48 * u32::try_from(count).unwrap_or(1);
    draw((SIZE.0, height), |root| {
        let rows = 0.0..f64::from(u32::try_from(count).unwrap_or(1));
        let mut chart = ChartBuilder::on(root)
            .caption(title, ("sans-serif", 20))
            .margin(14)
            .x_label_area_size(30)
            .build_cartesian_2d(0.0..high * 1.15, rows.clone())
            .map_err(failed)?;
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(WHITE).bold_line_style(GRID);
        mesh.disable_y_mesh().disable_y_axis().label_style(("sans-serif", 14)).draw().map_err(failed)?;
        for (index, ((name, ratio, [from, to]), colour)) in
            bars.iter().zip(COLOURS.iter().cycle()).enumerate()
        {
            let top = rows.end - f64::from(u32::try_from(index).unwrap_or(0));
            let bar = Rectangle::new([(0.0, top - 0.9), (*ratio, top - 0.5)], colour.mix(0.55).filled());
            let whisker = PathElement::new([(*from, top - 0.7), (*to, top - 0.7)], BLACK.stroke_width(2));
            chart.draw_series([bar]).map_err(failed)?;
            chart.draw_series([whisker]).map_err(failed)?;
            let text = format!("{name}: {ratio:.2} x ({from:.2} to {to:.2})");
            let label = Text::new(text, (high * 0.005, top - 0.1), ("sans-serif", 14));
            chart.draw_series([label]).map_err(failed)?;
        }
        let one = PathElement::new([(1.0, 0.0), (1.0, rows.end)], BLACK);
        chart.draw_series([one]).map_err(failed)?;
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
        for text in ["<svg", "a title", "one line", "99.9", "a mark", "</svg>"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        let svg = ratios("beside", &[("ucx".to_owned(), 0.5, [0.4, 0.6])]).unwrap();
        assert!(svg.contains("ucx: 0.50 x (0.40 to 0.60)"), "{svg}");
    }

    #[test]
    fn empty_and_flat_plots_are_plots() {
        assert!(lines("nothing", Axis::Rate, Up::Rate, &[], None).is_ok());
        assert!(ratios("nothing", &[]).is_ok());
        let flat = Line { name: "flat".to_owned(), points: vec![(6.0, 0.0)] };
        assert!(lines("flat", Axis::Bytes, Up::Bytes, &[flat], None).is_ok());
    }
}
