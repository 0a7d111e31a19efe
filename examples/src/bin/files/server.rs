//! The server: a folder, read as it is asked for.

use std::{
    collections::HashMap,
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use gimmal::{Cx, Server, WithLoan};

use crate::{
    service::{
        AHEAD_BYTES, AHEAD_FILES, Content, Entry, FileError, Files, PAGE, Page, SMALL_BYTES, serve_files,
    },
    tree,
};

/// Serves `folder` until standard input ends; prints where.
pub(crate) fn run(folder: &Path, address: &str) -> anyhow::Result<()> {
    let root = folder.canonicalize().with_context(|| format!("the folder {}", folder.display()))?;
    anyhow::ensure!(root.is_dir(), "{} is not a folder", root.display());
    let server =
        Server::builder().service(serve_files(Folder { root, ahead: Mutex::default() })).listen(address)?;
    println!("listening on {}", server.address());
    io::copy(&mut io::stdin(), &mut io::sink())?;
    anyhow::ensure!(server.shutdown(Duration::from_secs(5)), "calls were still running after 5 s");
    Ok(())
}

struct Folder {
    root: PathBuf,
    /// What the last `read_ahead` read and nobody has fetched yet.
    ahead: Mutex<HashMap<String, WithLoan<Content>>>,
}

impl Folder {
    fn entry(&self, path: &Path) -> io::Result<Entry> {
        let meta = fs::metadata(path)?;
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        Ok(Entry { path: below.to_string_lossy().into_owned(), bytes: meta.len(), is_folder: meta.is_dir() })
    }

    /// A file's content: small files as a value, others in memory that the client reads or pulls.
    fn read(&self, cx: &Cx, path: &str) -> Result<WithLoan<Content>, FileError> {
        let mut file = fs::File::open(tree::inside(&self.root, path)?)?;
        let bytes = file.metadata()?.len();
        if bytes <= SMALL_BYTES {
            let mut content = Content { bytes: Vec::new() };
            file.take(SMALL_BYTES).read_to_end(&mut content.bytes)?;
            return Ok(WithLoan::without(content));
        }
        let len = usize::try_from(bytes).map_err(|error| FileError::Other(error.to_string()))?;
        let mut loan = cx.loan(len).map_err(|error| FileError::Other(error.to_string()))?;
        file.read_exact(&mut loan)?;
        Ok(WithLoan::new(Content { bytes: Vec::new() }, loan))
    }
}

impl Files for Folder {
    async fn list(&self, _: &Cx, folder: String, skip: u32) -> Result<Page, FileError> {
        let folder = tree::inside(&self.root, &folder)?;
        let mut names: Vec<_> = fs::read_dir(folder)?.flatten().filter(|entry| !is_link(entry)).collect();
        names.sort_by_key(fs::DirEntry::file_name);
        let rest = names.get(skip as usize..).unwrap_or_default();
        let entries = rest.iter().take(PAGE).filter_map(|entry| self.entry(&entry.path()).ok()).collect();
        Ok(Page { entries, more: rest.len() > PAGE })
    }

    async fn stat(&self, _: &Cx, path: String) -> Result<Entry, FileError> {
        Ok(self.entry(&tree::inside(&self.root, &path)?)?)
    }

    async fn read_ahead(&self, cx: &Cx, paths: Vec<String>) -> Result<(), FileError> {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        ahead.clear();
        let mut bytes = 0;
        for path in paths.into_iter().take(AHEAD_FILES) {
            let content = self.read(cx, &path)?;
            bytes += content.loan.as_ref().map_or(0, |loan| loan.len() as u64);
            if bytes > AHEAD_BYTES && !ahead.is_empty() {
                break;
            }
            ahead.insert(path, content);
        }
        Ok(())
    }

    async fn fetch(&self, cx: &Cx, path: String) -> Result<WithLoan<Content>, FileError> {
        let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner).remove(&path);
        ahead.map_or_else(|| self.read(cx, &path), Ok)
    }
}

fn is_link(entry: &fs::DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_symlink())
}
