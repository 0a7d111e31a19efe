//! Brings tokio's test files from where cargo keeps its source, without their inner attributes.

use std::{env, error::Error, fs, path::PathBuf, process::Command};

const FILES: [&str; 7] = [
    "tcp_split",
    "tcp_into_split",
    "tcp_shutdown",
    "tcp_echo",
    "tcp_stream",
    "io_copy_bidirectional",
    "io_split",
];

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let tests = source()?.join("tests");
    for name in FILES {
        let path = tests.join(name).with_extension("rs");
        println!("cargo::rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        fs::write(out.join(name).with_extension("rs"), adapted(&text))?;
    }
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}

/// Where cargo keeps the source of tokio.
fn source() -> Result<PathBuf, Box<dyn Error>> {
    let output = Command::new(env::var("CARGO")?)
        // Not `--offline`: on a fresh machine, packages that this build does not need are still missing, and cargo
        // wants all of this platform.
        .args(["metadata", "--format-version", "1", "--filter-platform", &env::var("TARGET")?])
        .current_dir(env::var("CARGO_MANIFEST_DIR")?)
        .output()?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let metadata = String::from_utf8(output.stdout)?;
    // The one manifest in a folder with this name; paths hold no quotes.
    let paths = metadata.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    let is_tokio = |path: &PathBuf| {
        let folder = path.parent().and_then(|folder| folder.file_name()).unwrap_or_default();
        let version = folder.to_string_lossy().strip_prefix("tokio-").map(str::to_owned);
        version.is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()))
    };
    let manifest = paths.map(PathBuf::from).find(is_tokio).ok_or("cargo does not know where tokio is")?;
    Ok(manifest.parent().ok_or("a manifest without a folder")?.to_owned())
}

/// Without inner attributes, which an included file may not have, and with our blocking sockets for those of `std`.
fn adapted(text: &str) -> String {
    let mut out = String::new();
    let mut depth = 0_usize;
    for line in text.lines() {
        if depth > 0 || line.starts_with("#![") {
            let count = |of: &str| line.matches(|c| of.contains(c)).count();
            depth = (depth + count("([")).saturating_sub(count(")]"));
            continue;
        }
        out.push_str(line);
        out.push('\n');
    }
    out.replace("use std::{net, thread};", "use std::thread;\nuse tokio::std_net as net;")
}
