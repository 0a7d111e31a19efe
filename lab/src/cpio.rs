//! Writes a `newc` cpio archive: what the kernel unpacks as its first root file system.
//!
//! It is not compressed: under emulation the kernel would spend longer unpacking than QEMU does copying.

use std::io::{self, Write};

const MODE_FOLDER: u32 = 0o040_755;
const MODE_PROGRAM: u32 = 0o100_755;
const MODE_LINK: u32 = 0o120_777;

#[derive(Debug)]
pub(crate) struct Archive<W> {
    out: W,
    inode: u32,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, inode: 0 }
    }

    /// Parents come first.
    pub(crate) fn folder(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, MODE_FOLDER, &[])
    }

    pub(crate) fn file(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.entry(name, MODE_PROGRAM, content)
    }

    pub(crate) fn link(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.entry(name, MODE_LINK, target.as_bytes())
    }

    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.inode += 1;
        let size = u32::try_from(content.len()).map_err(io::Error::other)?;
        let name_size = u32::try_from(name.len() + 1).map_err(io::Error::other)?;
        // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        let mut head = String::from("070701");
        for field in fields {
            head.push_str(&format!("{field:08x}"));
        }
        head.push_str(name);
        head.push('\0');
        self.padded(head.as_bytes())?;
        self.padded(content)
    }

    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.out.write_all(&[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let mut archive = Archive::new(Vec::new());
        archive.file("a", b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let first = "07070100000001000081ed00000000000000000000000100000000\
                     00000005000000000000000000000000000000000000000200000000a\0hello\0\0\0";
        assert!(text.starts_with(first), "{text:?}");
        assert!(text.ends_with("TRAILER!!!\0\0\0\0"), "{text:?}");
        assert_eq!(text.len() % 4, 0);
    }
}
