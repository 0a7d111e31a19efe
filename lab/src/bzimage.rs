//! Takes the plain kernel out of a compressed one.
//!
//! QEMU can enter an ELF kernel directly (PVH). The guest then does not unpack it under emulation, which would be
//! half of its boot. The layout is in the kernel's `Documentation/arch/x86/boot.rst`.

use std::{
    fs::{self, File},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result};

use crate::tool::{self, tool};

const UNPACK_LIMIT: Duration = Duration::from_secs(120);

/// The boot header's fields: how many 512-byte sectors come before the protected-mode part, beside the first.
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;

const XZ: &[u8] = b"\xfd7zXZ\0";

/// Writes a file that QEMU boots: the plain kernel, or the compressed one where it is not xz inside.
pub(crate) fn write_bootable(compressed: &Path, bootable: &Path) -> Result<()> {
    let image = fs::read(compressed).with_context(|| format!("cannot read {}", compressed.display()))?;
    let Some(payload) = payload(&image).filter(|payload| payload.starts_with(XZ)) else {
        fs::copy(compressed, bootable)?;
        return Ok(());
    };
    let packed = bootable.with_extension("xz");
    tool::write(&packed, payload)?;
    let mut command = tool("xz");
    // The payload ends with its unpacked length, which is no part of the stream.
    command.args(["--decompress", "--stdout", "--single-stream"]).arg(&packed);
    tool::run_into(command, UNPACK_LIMIT, File::create(bootable)?.into())?;
    fs::remove_file(packed)?;
    Ok(())
}

fn payload(image: &[u8]) -> Option<&[u8]> {
    if image.get(MAGIC..MAGIC + 4)? != b"HdrS" {
        return None;
    }
    let setup_sectors = match *image.get(SETUP_SECTORS)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (setup_sectors + 1) * 512 + word(image, PAYLOAD_OFFSET)?;
    image.get(start..start.checked_add(word(image, PAYLOAD_LENGTH)?)?)
}

fn word(image: &[u8], offset: usize) -> Option<usize> {
    let bytes = image.get(offset..offset + 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(bytes)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(payload: &[u8], length: u32) -> Vec<u8> {
        let mut image = vec![0; 1024];
        image[SETUP_SECTORS] = 1;
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[PAYLOAD_OFFSET] = 8;
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        image.extend_from_slice(&[0; 8]);
        image.extend_from_slice(payload);
        image
    }

    #[test]
    fn the_payload_is_found() {
        assert_eq!(payload(&image(b"inside and more", 6)).unwrap(), b"inside");
    }

    #[test]
    fn nonsense_is_no_payload() {
        assert_eq!(payload(b"short"), None);
        assert_eq!(payload(&[0; 4096]), None);
        assert_eq!(payload(&image(b"inside", 7)), None);
        assert_eq!(payload(&image(b"inside", u32::MAX)), None);
    }

    #[test]
    fn another_compression_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("vmlinuz"), folder.path().join("vmlinux"));
        fs::write(&from, image(b"inside", 6)).unwrap();
        write_bootable(&from, &to).unwrap();
        assert_eq!(fs::read(from).unwrap(), fs::read(to).unwrap());
    }
}
