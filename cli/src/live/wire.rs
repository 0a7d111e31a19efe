//! How the codecs without names write numbers; the rest they write alike.

/// A codec that is spoken here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wire {
    Postcard,
    Bincode,
    /// Its values are checked as those of postcard are, and are read and written by `named`.
    MessagePack,
}

impl Wire {
    /// By the name that a method has it under.
    pub(super) fn of(codec: &str) -> Option<Self> {
        match codec {
            "postcard" => Some(Self::Postcard),
            "bincode" => Some(Self::Bincode),
            "messagepack" => Some(Self::MessagePack),
            _ => None,
        }
    }

    /// Writes a number that is not written as it is: of 16 bits and more, and lengths.
    pub(super) fn write(self, mut number: u128, out: &mut Vec<u8>) {
        let bytes = number.to_le_bytes();
        match self {
            Self::Postcard | Self::MessagePack => {
                while number >= 0x80 {
                    out.push(0x80 | number.to_le_bytes()[0]);
                    number >>= 7;
                }
                out.push(number.to_le_bytes()[0]);
            }
            Self::Bincode => {
                let (mark, len) = match number {
                    0..=250 => (bytes[0], 0),
                    251..=0xffff => (251, 2),
                    0x1_0000..=0xffff_ffff => (252, 4),
                    0x1_0000_0000..=0xffff_ffff_ffff_ffff => (253, 8),
                    _ => (254, 16),
                };
                out.push(mark);
                out.extend_from_slice(&bytes[..len]);
            }
        }
    }

    /// Reads one.
    pub(super) fn read(self, bytes: &mut &[u8]) -> Option<u128> {
        let first = *take(bytes, 1)?.first()?;
        match self {
            Self::Postcard | Self::MessagePack => {
                let (mut number, mut byte) = (u128::from(first & 0x7f), first);
                for shift in (7..128).step_by(7) {
                    if byte < 0x80 {
                        return Some(number);
                    }
                    byte = *take(bytes, 1)?.first()?;
                    number |= u128::from(byte & 0x7f) << shift;
                }
                (byte < 0x80).then_some(number)
            }
            Self::Bincode => {
                let len = match first {
                    0..=250 => return Some(first.into()),
                    251 => 2,
                    252 => 4,
                    253 => 8,
                    254 => 16,
                    255 => return None,
                };
                let mut number = [0; 16];
                number[..len].copy_from_slice(take(bytes, len)?);
                Some(u128::from_le_bytes(number))
            }
        }
    }
}

/// A signed number as the codecs write it: small ones stay small.
pub(super) const fn zigzag(number: i128) -> u128 {
    ((number << 1) ^ (number >> 127)).cast_unsigned()
}

/// Turns [`zigzag`] back.
pub(super) const fn zagzig(number: u128) -> i128 {
    (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
}

pub(super) fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (front, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(front)
}
