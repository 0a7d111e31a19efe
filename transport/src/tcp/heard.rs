//! Messages of a handshake, read as they arrive.

use rustix::io::Errno;

use super::wire::Wire;

/// A message of a handshake, as far as it came.
#[derive(Debug, Default)]
pub(super) struct Heard {
    bytes: Vec<u8>,
}

impl Heard {
    /// Reads until there are `want` bytes; whether there are. Nothing behind them is read.
    ///
    /// # Errors
    /// `PIPE`: the peer has closed.
    pub(super) fn read(&mut self, wire: &mut Wire, want: usize) -> Result<bool, Errno> {
        let mut buffer = [0; 256];
        while self.bytes.len() < want {
            let room = buffer.len().min(want - self.bytes.len());
            let read = match wire.hear(&mut buffer[..room]) {
                Err(Errno::AGAIN) => return Ok(false),
                other => other?,
            };
            if read == 0 {
                return Err(Errno::PIPE);
            }
            self.bytes.extend_from_slice(&buffer[..read]);
        }
        Ok(true)
    }

    /// What came so far.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
