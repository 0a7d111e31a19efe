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

use crate::{
    error::BenchError,
    report::{Report, time},
};

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
            Self::Bytes => thousands(x.exp2()),
            Self::Rate => thousands(x),
        }
    }
}

/// A number with a unit prefix.
fn thousands(x: f64) -> String {
    match x {
        x if x >= 1e6 => format!("{:.1} M", x / 1e6),
        x if x >= 1e4 => format!("{:.0} k", x / 1e3),
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

/// Times over something, on a logarithmic scale of nanoseconds.
pub(crate) fn times(title: &str, axis: Axis, lines: &[Line]) -> Result<String, BenchError> {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let (left, right) =
        if axis == Axis::Percentiles { (0.0, 5.0) } else { bounds(points().map(|(x, _)| *x)) };
    let (low, high) = bounds(points().map(|(_, y)| y.max(1.0)));
    draw(SIZE, |root| {
        let mut chart = ChartBuilder::on(root)
            .caption(title, ("sans-serif", 20))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(84)
            .build_cartesian_2d(left..right, (low * 0.8..high * 1.3).log_scale())
            .map_err(failed)?;
        let labels = if axis == Axis::Percentiles { 6 } else { 10 };
        chart
            .configure_mesh()
            .x_desc(axis.title())
            .label_style(("sans-serif", 14))
            .axis_desc_style(("sans-serif", 15))
            .x_labels(labels)
            .x_label_formatter(&|x| axis.label(*x))
            .y_label_formatter(&|y| label_of_time(*y))
            .draw()
            .map_err(failed)?;
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
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()
            .map_err(failed)
    })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "for people")]
fn label_of_time(nanos: f64) -> String {
    time(nanos.max(0.0) as u64)
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
        let one = PathElement::new([(1.0, 0.0), (1.0, rows.end)], BLACK.mix(0.6));
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
        let svg = times("a title", Axis::Percentiles, &[line]).unwrap();
        for text in ["<svg", "a title", "one line", "99.9", "</svg>"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        let svg = ratios("beside", &[("ucx".to_owned(), 0.5, [0.4, 0.6])]).unwrap();
        assert!(svg.contains("ucx: 0.50 x (0.40 to 0.60)"), "{svg}");
    }

    #[test]
    fn empty_and_flat_plots_are_plots() {
        assert!(times("nothing", Axis::Rate, &[]).is_ok());
        assert!(ratios("nothing", &[]).is_ok());
        let flat = Line { name: "flat".to_owned(), points: vec![(6.0, 0.0)] };
        assert!(times("flat", Axis::Bytes, &[flat]).is_ok());
    }
}
