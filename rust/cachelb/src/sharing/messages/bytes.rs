//! Numbers of seven bits per byte, names with their length, hashes as eight bytes.

use cachelb_core::error::{Error, Result};

/// Bytes of the longest name.
const MOST_TEXT: u64 = 1 << 14;

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

pub(super) fn put_number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The bytes left to read.
#[derive(Debug, Clone)]
pub(super) struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn byte(&mut self) -> Result<u8> {
        let (first, rest) = self.0.split_first().ok_or_else(cut_off)?;
        self.0 = rest;
        Ok(*first)
    }

    pub fn number(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Error::BadMessage("a number is out of range".into()))
    }

    pub fn small(&mut self) -> Result<u32> {
        let value = self.number()?;
        u32::try_from(value)
            .map_err(|_| Error::BadMessage(format!("{value} is no number of a worker or model")))
    }

    pub fn word(&mut self) -> Result<u64> {
        let (head, rest) = self.0.split_first_chunk().ok_or_else(cut_off)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*head))
    }

    pub fn text(&mut self) -> Result<&'a str> {
        let length = self.number()?;
        if length > MOST_TEXT {
            let why = format!("a name of {length} bytes is longer than {MOST_TEXT}");
            return Err(Error::BadMessage(why));
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (text, rest) = self.0.split_at_checked(length).ok_or_else(cut_off)?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| Error::BadMessage("a name is not UTF-8".into()))
    }

    /// As many items of `N` bytes each as a number in front of them counts.
    pub fn items<const N: usize>(&mut self) -> Result<&'a [[u8; N]]> {
        let count = self.number()?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let (items, _) = self.0.as_chunks();
        let items = items.get(..count).ok_or_else(cut_off)?;
        self.0 = &self.0[N * count..];
        Ok(items)
    }
}

fn cut_off() -> Error {
    Error::BadMessage("it ends within an entry".into())
}
