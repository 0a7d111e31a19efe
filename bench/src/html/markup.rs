//! Text, tables and bars as HTML.

use std::fmt::Write as _;

/// Text that is no markup, also within the quotes of an attribute.
pub(super) fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

/// Decimals with which the smallest of `values` still has three digits; the same for a whole column.
fn decimals(values: impl IntoIterator<Item = f64>) -> usize {
    let least = values.into_iter().filter(|value| *value > 0.0).fold(f64::MAX, f64::min);
    match least {
        least if least < 1.0 => 3,
        least if least < 10.0 => 2,
        least if least < 100.0 => 1,
        _ => 0,
    }
}

/// A number with commas between thousands.
pub(super) fn number(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        let left = whole.len() - at;
        if at > 0 && left % 3 == 0 && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

/// A column: its cells are of one unit.
struct Column {
    name: &'static str,
    unit: &'static str,
    is_words: bool,
    cells: Vec<String>,
}

/// A table whose rows begin with a name. A column without any value is left out.
pub(super) struct Table {
    first: &'static str,
    names: Vec<String>,
    columns: Vec<Column>,
}

impl Table {
    /// A table with a row for each of `names`; `first` is the heading above them.
    pub(super) fn new(first: &'static str, names: impl IntoIterator<Item = String>) -> Self {
        Self { first, names: names.into_iter().collect(), columns: Vec::new() }
    }

    /// Adds a column of numbers, all of `unit`.
    pub(super) fn numbers(
        mut self,
        name: &'static str,
        unit: &'static str,
        values: impl IntoIterator<Item = Option<f64>>,
    ) -> Self {
        let values: Vec<Option<f64>> = values.into_iter().collect();
        let is_whole = values.iter().flatten().all(|value| value.fract() == 0.0);
        let decimals = if is_whole { 0 } else { decimals(values.iter().copied().flatten()) };
        let cells = values.into_iter().map(|value| value.map_or_else(String::new, |it| number(it, decimals)));
        self.columns.push(Column { name, unit, is_words: false, cells: cells.collect() });
        self
    }

    /// Adds a column of text.
    pub(super) fn words(
        mut self,
        name: &'static str,
        values: impl IntoIterator<Item = Option<String>>,
    ) -> Self {
        let cells = values.into_iter().map(Option::unwrap_or_default).collect();
        self.columns.push(Column { name, unit: "", is_words: true, cells });
        self
    }

    /// Adds a column with the ends of intervals.
    pub(super) fn intervals(
        mut self,
        name: &'static str,
        values: impl IntoIterator<Item = Option<[f64; 2]>>,
    ) -> Self {
        let cells = values
            .into_iter()
            .map(|ends| ends.map_or_else(String::new, |[low, high]| format!("{low:.2} to {high:.2}")));
        self.columns.push(Column { name, unit: "95 %", is_words: false, cells: cells.collect() });
        self
    }

    /// The markup; nothing for a table without rows. Writing to a string does not fail, here and below.
    pub(super) fn html(&self) -> String {
        if self.names.is_empty() {
            return String::new();
        }
        let shown = || self.columns.iter().filter(|column| column.cells.iter().any(|cell| !cell.is_empty()));
        let class = |column: &Column| if column.is_words { " class=\"words\"" } else { "" };
        let mut text = format!(
            "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th scope=\"col\">{}</th>",
            self.first
        );
        for column in shown() {
            let _ = write!(text, "<th scope=\"col\"{}>{}", class(column), escaped(column.name));
            if !column.unit.is_empty() {
                let _ = write!(text, "<small>{}</small>", escaped(column.unit));
            }
            text.push_str("</th>");
        }
        text.push_str("</tr></thead><tbody>");
        for (row, name) in self.names.iter().enumerate() {
            let _ = write!(text, "<tr><th scope=\"row\">{}</th>", escaped(name));
            for column in shown() {
                let cell = match column.cells.get(row).map(String::as_str) {
                    None | Some("") if !column.is_words => "–",
                    cell => cell.unwrap_or_default(),
                };
                let _ = write!(text, "<td{}>{}</td>", class(column), escaped(cell));
            }
            text.push_str("</tr>");
        }
        text + "</tbody></table></div>"
    }
}

/// A bar of a [`bars`] or [`ratios`] chart.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) value: f64,
    /// The value with its unit.
    pub(super) shown: String,
    /// Where the value lies with 95 % confidence.
    pub(super) interval: Option<[f64; 2]>,
}

impl Bar {
    /// A ratio with its interval.
    pub(super) fn ratio(name: String, value: f64, interval: Option<[f64; 2]>) -> Self {
        let shown = |value: f64| number(value, if value < 100.0 { 2 } else { 0 });
        let ends = interval.map(|[low, high]| format!(" ({} to {})", shown(low), shown(high)));
        Self { name, value, shown: format!("{} x{}", shown(value), ends.unwrap_or_default()), interval }
    }
}

/// A chart of bars from 0. Nothing without bars.
pub(super) fn bars(title: &str, note: &str, bars: &[Bar]) -> String {
    let most =
        bars.iter().map(|bar| bar.value).filter(|end| end.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
    let place = |value: f64| (value / most * 98.0).clamp(0.0, 100.0);
    drawn(title, note, bars, |bar| format!("<i style=\"left:0;width:{:.2}%\"></i>", place(bar.value)))
}

/// A chart of ratios on a logarithmic scale: bars to either side of 1, with their intervals. Nothing without bars.
pub(super) fn ratios(title: &str, note: &str, bars: &[Bar]) -> String {
    let ends = bars
        .iter()
        .flat_map(|bar| [bar.value, bar.value].into_iter().chain(bar.interval.into_iter().flatten()));
    let ends = ends.filter(|end| end.is_finite() && *end > 0.0).map(f64::ln);
    let (least, most) = ends.fold((-0.1_f64, 0.1_f64), |(least, most), end| (least.min(end), most.max(end)));
    let place = |value: f64| ((value.ln() - least) / (most - least) * 96.0 + 2.0).clamp(0.0, 100.0);
    let one = place(1.0);
    drawn(title, note, bars, |bar| {
        let span = |ends: [f64; 2]| {
            let (low, high) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
            format!("left:{low:.2}%;width:{:.2}%", high - low)
        };
        let whisker = bar.interval.map(|ends| format!("<b style=\"{}\"></b>", span(ends.map(place))));
        let bar = span([one, place(bar.value)]);
        format!("<i style=\"{bar}\"></i>{}<u style=\"left:{one:.2}%\"></u>", whisker.unwrap_or_default())
    })
}

fn drawn(title: &str, note: &str, bars: &[Bar], track: impl Fn(&Bar) -> String) -> String {
    if bars.is_empty() {
        return String::new();
    }
    let mut text = figure(title, note);
    for bar in bars {
        let (name, track, shown) = (escaped(&bar.name), track(bar), escaped(&bar.shown));
        let _ = write!(
            text,
            "<div class=\"bar\"><span>{name}</span><span class=\"track\">{track}</span><span class=\"number\">{shown}</span></div>"
        );
    }
    text + "</figure>"
}

/// A figure up to its drawing; the caller ends it.
pub(super) fn figure(title: &str, note: &str) -> String {
    let note = if note.is_empty() { String::new() } else { format!("<p>{}</p>", escaped(note)) };
    format!("<figure><figcaption>{}</figcaption>{note}", escaped(title))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas_and_a_column_has_one_number_of_decimals() {
        assert_eq!(number(1_234_567.0, 0), "1,234,567");
        assert_eq!((number(999.5, 1), number(-1234.0, 0)), ("999.5".to_owned(), "-1,234".to_owned()));
        let table = Table::new("test", ["a".to_owned(), "b".to_owned(), "<c>".to_owned()]);
        let html = table
            .numbers("p50", "µs", [Some(0.1544), Some(30_412.5), None])
            .numbers("nothing", "µs", [None, None, None])
            .words("note", [Some("a & b".to_owned()), None, None])
            .intervals("ratio", [Some([0.5, 1.25]), None, None])
            .html();
        for part in
            ["p50<small>µs</small>", "0.154", "30,412.500", "–", "a &amp; b", "&lt;c&gt;", "0.50 to 1.25"]
        {
            assert!(html.contains(part), "{part}: {html}");
        }
        assert!(!html.contains("nothing"), "{html}");
        assert!(Table::new("test", []).html().is_empty());
    }

    #[test]
    fn bars_end_within_their_track_and_ratios_begin_at_1() {
        let ratio = |value, interval| Bar::ratio("a \"name\"".to_owned(), value, interval);
        let made =
            ratios("title", "", &[ratio(2.0, Some([1.9, 4.0])), ratio(0.25, None), ratio(3000.0, None)]);
        assert!(made.contains("a &quot;name&quot;") && made.contains("2.00 x (1.90 to 4.00)"), "{made}");
        assert!(made.contains("3,000 x") && made.contains("left:2.00%"), "{made}");
        let made = bars("title", "", &[ratio(2.0, None), ratio(1.0, None)]);
        assert!(made.contains("left:0;width:98.00%") && made.contains("left:0;width:49.00%"), "{made}");
        assert!(bars("title", "", &[]).is_empty() && ratios("title", "", &[]).is_empty());
        for strange in [f64::NAN, 0.0, f64::INFINITY] {
            let made =
                bars("title", "", &[ratio(strange, None)]) + &ratios("title", "", &[ratio(strange, None)]);
            assert!(made.ends_with("</figure>"), "{made}");
        }
    }
}
