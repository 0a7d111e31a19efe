//! The bench's page in headless Chromium: no errors on its console, and pictures of it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    checks::{Checks, bounded, is_installed, run as output},
    tree,
};

/// Makes pages of records, and opens them where there is a browser. With `folder`, of so many calls that the pictures are
/// worth showing, and puts them there.
///
/// # Errors
/// Records or pictures cannot be written.
pub fn run(folder: Option<&str>) -> io::Result<bool> {
    let scratch = tree::root().join("target/page");
    fs::create_dir_all(&scratch)?;
    let bench = bench();
    let (calls, rates) = match folder {
        Some(_) => ("140000", "500,1k,2k,5k,10k,20k"),
        None => ("2000", "500,1k"),
    };
    let lines = [
        format!("lat --loopback -s 64..4k -n {calls} --pairs 9 --against uds,ucx --json"),
        format!("rate --loopback -O 32 -s 64..4k -n {calls} --pairs 7 --json"),
        format!("load --loopback -O 1 -n 20k --rates {rates} -D 3 --stall 100 --json"),
    ];
    let records = [0, 1, 2].map(|line| {
        let words: Vec<&str> = [&*bench].into_iter().chain(lines[line].split(' ')).collect();
        output(1800, &words, &[])
    });
    let [latencies, rates, stalls] = records;
    let at = |name: &str| scratch.join(name).display().to_string();
    fs::write(at("records"), latencies? + &rates?)?;
    fs::write(at("stalls"), stalls?)?;
    let mut checks = Checks::default();
    let mut report = |name: &str, page: &str, of: &[&str]| {
        let of: Vec<String> = of.iter().map(|name| at(name)).collect();
        let mut words = vec![&*bench, "report"];
        words.extend(of.iter().map(String::as_str));
        let page = at(page);
        words.extend(["-o", &page]);
        checks.add(name, output(120, &words, &[]));
    };
    report("a page of several sizes", "report.html", &["records"]);
    report("a page of two runs", "two.html", &["records", "records"]);
    report("a page of stalls", "stall.html", &["stalls"]);
    let browser =
        ["chromium", "google-chrome"].into_iter().find(|name| is_installed(name)).unwrap_or("chromium");
    if checks.has(browser, 3) {
        let folder = folder.map(Path::new);
        for (name, page, height, shown) in [
            ("it opens in a browser", "report", 2400, folder),
            ("two runs open in a browser", "two", 4200, None),
            ("stalls open in a browser", "stall", 1500, folder),
        ] {
            checks.add(name, picture(browser, &scratch.join(page), height, shown));
        }
    }
    Ok(checks.sum())
}

/// The bench's program: that of `BIN`, or the one that is built for speed.
pub(crate) fn bench() -> String {
    let built = || tree::root().join("target/release/gimmal-bench").display().to_string();
    std::env::var("BIN").unwrap_or_else(|_| built())
}

/// Opens `page`.html; what it says on its console is an error. The picture also goes to `folder`.
fn picture(browser: &str, page: &Path, height: u32, folder: Option<&Path>) -> io::Result<String> {
    let (html, png): (PathBuf, PathBuf) = (page.with_extension("html"), page.with_extension("png"));
    let size = format!("--window-size=1000,{height}");
    let (shot, url) = (format!("--screenshot={}", png.display()), format!("file://{}", html.display()));
    let quiet =
        ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"];
    let words: Vec<&str> = [browser].into_iter().chain(quiet).chain([&*size, &*shot, &*url]).collect();
    let opened = bounded(120, &words, &[]).output()?;
    let log = String::from_utf8_lossy(&opened.stderr);
    let said: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
    if !opened.status.success() || !said.is_empty() {
        return Err(io::Error::other(format!("{browser}: {}\n{}", opened.status, said.join("\n"))));
    }
    if let (Some(folder), Some(name)) = (folder, png.file_name()) {
        fs::copy(&png, folder.join(name))?;
    }
    Ok(format!("{} bytes of {}", fs::metadata(&png)?.len(), png.display()))
}
