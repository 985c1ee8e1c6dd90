//! Bytes of snapshots: little-endian numbers, sealed by a checksum.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::registry::SlotState;

/// Kind and version of a snapshot.
#[derive(Debug)]
pub struct Format {
    /// The first bytes.
    pub magic: &'static [u8; 8],
    /// Its name in errors.
    pub name: &'static str,
    /// Another one is refused.
    pub version: u32,
}

/// Bytes of the magic and the version.
const HEAD: usize = 12;
/// Length of a vacant slot's name.
const VACANT: u32 = u32::MAX;

/// A snapshot of which the version is written.
#[must_use]
pub fn begin(format: &Format) -> Vec<u8> {
    let mut out = format.magic.to_vec();
    put32(&mut out, format.version);
    out
}

/// Appends an XXH3 checksum over all of it.
#[must_use]
pub fn seal(mut out: Vec<u8>) -> Vec<u8> {
    let checksum = xxh3_64(&out);
    put64(&mut out, checksum);
    out
}

/// Appends a number.
pub fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a number.
pub fn put64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends slots, as [`Reader::slots`] reads them.
pub(crate) fn put_slots(slots: &[SlotState], out: &mut Vec<u8>) {
    put32(out, slots.len() as u32);
    for slot in slots {
        put32(out, slot.generation);
        let name = slot.name.as_deref();
        put32(out, name.map_or(VACANT, |name| name.len() as u32));
        out.extend_from_slice(name.unwrap_or_default().as_bytes());
    }
}

/// Refuses a snapshot, with the reason.
///
/// # Errors
/// [`Error::BadSnapshot`], always.
pub fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::BadSnapshot(why.into()))
}

const ENDS: &str = "it ends too early";

/// The unread rest of a snapshot.
#[derive(Debug)]
pub struct Reader<'a> {
    pub(crate) bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// The content of a sealed snapshot of one version.
    ///
    /// # Errors
    /// [`Error::BadSnapshot`] for anything but its unchanged bytes.
    pub fn open(bytes: &'a [u8], format: &Format) -> Result<Self> {
        let Format {
            magic,
            name,
            version,
        } = format;
        let Some(body) = bytes.strip_prefix(*magic) else {
            return refuse(format!("it does not start like a {name} of cachelb"));
        };
        let written = Reader { bytes: body }.u32()?;
        if written != *version {
            return refuse(format!("its version is {written}, this is {version}"));
        }
        let Some((content, checksum)) = bytes.split_last_chunk() else {
            return refuse(ENDS);
        };
        if xxh3_64(content) != u64::from_le_bytes(*checksum) {
            return refuse("its checksum does not match: it is damaged or cut off");
        }
        let Some(bytes) = content.get(HEAD..) else {
            return refuse(ENDS);
        };
        Ok(Self { bytes })
    }

    /// The next bytes.
    ///
    /// # Errors
    /// [`Error::BadSnapshot`] if fewer bytes are left.
    pub fn take(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let Some((head, rest)) = self.bytes.split_at_checked(bytes) else {
            return refuse(ENDS);
        };
        self.bytes = rest;
        Ok(head)
    }

    /// As many of them as the array has.
    ///
    /// # Errors
    /// [`Error::BadSnapshot`] if fewer bytes are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// A number.
    ///
    /// # Errors
    /// [`Error::BadSnapshot`] if fewer bytes are left.
    pub fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// A number.
    ///
    /// # Errors
    /// [`Error::BadSnapshot`] if fewer bytes are left.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A number.
    ///
    /// # Errors
    /// [`Error::BadSnapshot`] if fewer bytes are left.
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A count of items of at least `size` bytes each, which the rest of the bytes can hold.
    ///
    /// # Errors
    /// [`Error::BadSnapshot`] if they cannot.
    pub fn count(&mut self, size: usize) -> Result<u32> {
        let count = self.u32()?;
        if count as usize > self.bytes.len() / size {
            return refuse(format!("it announces {count} items and ends before them"));
        }
        Ok(count)
    }

    pub(crate) fn slots(&mut self) -> Result<Vec<SlotState>> {
        let mut slots = Vec::new();
        for _ in 0..self.u32()? {
            let generation = self.u32()?;
            let name = match self.u32()? {
                VACANT => None,
                len => match std::str::from_utf8(self.take(len as usize)?) {
                    Ok(name) => Some(Arc::from(name)),
                    Err(_) => return refuse("a worker's name is not UTF-8"),
                },
            };
            slots.push(SlotState { generation, name });
        }
        Ok(slots)
    }

    /// Nothing is left.
    ///
    /// # Errors
    /// [`Error::BadSnapshot`] if there is.
    pub fn end(&self) -> Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        refuse(format!("{} bytes follow its end", self.bytes.len()))
    }
}
