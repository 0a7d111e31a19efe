//! The bench's page in headless Chromium: nothing on its console, nothing wider than the window, and pictures of it.

use std::{fs, io, path::Path};

use crate::{
    checks::{Checks, bounded, is_installed, run as output},
    tree,
};

/// Widths of a window, pixels: a laptop's and a phone's.
const WIDTHS: [u32; 2] = [1000, 400];
/// Colour schemes, and Chromium's numbers for them.
const SCHEMES: [(&str, u8); 2] = [("light", 1), ("dark", 0)];
/// Says on the console how wide the window of a page is, and by how much the page is wider. A copy of the page has it, never the page
/// itself.
const RULER: &str = "<script>addEventListener('load', () => { const e = document.documentElement; \
                     console.info(`ruler ${innerWidth} ${Math.max(0, e.scrollWidth - e.clientWidth)}`) })</script>";

/// A picture for the documentation: the page, its height in pixels, and the scheme.
const PICTURES: [(&str, u32, usize); 2] = [("report", 1380, 0), ("stall", 900, 1)];

/// Makes pages of records, and opens them where there is a browser. With `folder`, of so many calls that the pictures are
/// worth showing, and puts them there.
///
/// # Errors
/// Records or pictures cannot be written.
pub fn run(folder: Option<&str>) -> io::Result<bool> {
    let scratch = tree::root().join("target/page");
    fs::create_dir_all(&scratch)?;
    let at = |name: &str| scratch.join(name).display().to_string();
    let (bench, records, stalls) = (bench(), at("records"), at("stalls"));
    let less = if folder.is_some() { "" } else { "-n 2000 --pairs 7 --starts 1" };
    let rates = if folder.is_some() { "500,1k,2k,5k,10k,20k" } else { "500,1k" };
    let mut checks = Checks::default();
    let suite = [&*bench, "suite", "quick", "--with", less, "--save", &records];
    checks.add("the suite quick", output(1800, &suite, &[]).map(|_| String::new()));
    let line = format!("load --loopback -O 1 -n 20k --rates {rates} -D 3 --stall 100 --json");
    let words: Vec<&str> = [&*bench].into_iter().chain(line.split(' ')).collect();
    fs::write(&stalls, output(600, &words, &[])?)?;
    let pages = ["report", "two", "stall"];
    for (page, of) in pages.iter().zip([&[&*records][..], &[&records, &records], &[&stalls]]) {
        let html = at(&format!("{page}.html"));
        let words: Vec<&str> = [&*bench, "report"].into_iter().chain(of.iter().copied()).collect();
        let words = [&words[..], &["-o", &html]].concat();
        checks.add(&format!("{page}.html is made"), output(120, &words, &[]));
    }
    let browser =
        ["chromium", "google-chrome"].into_iter().find(|name| is_installed(name)).unwrap_or("chromium");
    if checks.has(browser, 12) {
        for page in pages.map(|page| scratch.join(page)) {
            for width in WIDTHS {
                for scheme in SCHEMES {
                    let name = page.file_name().unwrap_or_default().display();
                    let name = format!("{name}.html, {width} pixels, {}", scheme.0);
                    checks.add(&name, opened(browser, &page, width, scheme));
                }
            }
        }
        if let Some(folder) = folder {
            for (page, height, scheme) in PICTURES {
                let to = Path::new(folder).join(page).with_extension("png");
                let taken = picture(browser, &scratch.join(page), (1000, height), SCHEMES[scheme], &to);
                checks.add(&format!("{}", to.display()), taken);
            }
        }
    }
    Ok(checks.sum())
}

/// The bench's program: that of `BIN`, or the one that is built for speed.
pub(crate) fn bench() -> String {
    let built = || tree::root().join("target/release/gimmal-bench").display().to_string();
    std::env::var("BIN").unwrap_or_else(|_| built())
}

/// Lets the browser open a file in a window, with one `more` argument; what it logged.
fn browse(
    browser: &str,
    file: &Path,
    (width, height): (u32, u32),
    scheme: u8,
    more: &str,
) -> io::Result<String> {
    let profile = format!("--user-data-dir={}", tree::root().join("target/page/profile").display());
    let size = format!("--window-size={width},{height}");
    let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
    let url = format!("file://{}", file.display());
    let quiet =
        ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"];
    let words =
        [&[browser], &quiet[..], &["--enable-logging=stderr", &profile, &size, &scheme, more, &url]].concat();
    let ended = bounded(180, &words, &[]).output()?;
    let log = String::from_utf8_lossy(&ended.stderr).into_owned();
    if !ended.status.success() {
        return Err(io::Error::other(format!("{}: {}\n{log}", words.join(" "), ended.status)));
    }
    Ok(log)
}

/// Opens `page`.html. A message on the console is an error, and so is what does not fit the width. The page is in a frame, since
/// windows have a least width.
fn opened(browser: &str, page: &Path, width: u32, scheme: (&str, u8)) -> io::Result<String> {
    let (copy, frame) = (page.with_extension("measured.html"), page.with_extension("frame.html"));
    let text = fs::read_to_string(page.with_extension("html"))?;
    fs::write(&copy, text.replace("</body>", &format!("{RULER}</body>")))?;
    let name = copy.file_name().unwrap_or_default().display();
    let style = format!("border:0;width:{width}px;height:900px");
    fs::write(&frame, format!("<!doctype html><iframe style='{style}' src='{name}'></iframe>"))?;
    let log = browse(browser, &frame, (1200, 1000), scheme.1, "--dump-dom")?;
    let (ruled, said): (Vec<&str>, Vec<&str>) =
        log.lines().filter(|line| line.contains("CONSOLE")).partition(|line| line.contains("\"ruler "));
    if said.is_empty() && ruled.len() == 1 && ruled[0].contains(&format!("\"ruler {width} 0\"")) {
        return Ok(String::new());
    }
    let said = [ruled, said].concat().join("\n");
    Err(io::Error::other(format!("wanted on the console: ruler {width} 0, and nothing else\n{said}")))
}

/// Takes a picture of the top of `page`.html.
fn picture(
    browser: &str,
    page: &Path,
    size: (u32, u32),
    scheme: (&str, u8),
    to: &Path,
) -> io::Result<String> {
    let shot = format!("--screenshot={}", to.display());
    browse(browser, &page.with_extension("html"), size, scheme.1, &shot)?;
    Ok(format!("{} bytes", fs::metadata(to)?.len()))
}
