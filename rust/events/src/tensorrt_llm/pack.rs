//! Messages in msgpack, as `crate::decode` reads them.

use super::event::Hash;

/// A writer of msgpack.
#[derive(Debug, Default)]
pub(super) struct Pack(pub(super) Vec<u8>);

impl Pack {
    pub(super) fn nil(&mut self) {
        self.0.push(0xc0);
    }

    pub(super) fn int(&mut self, value: u64) {
        match value {
            0..0x80 => self.0.push(value as u8),
            0x80..=0xffff_ffff => {
                self.0.push(0xce);
                self.0.extend((value as u32).to_be_bytes());
            }
            _ => {
                self.0.push(0xcf);
                self.0.extend(value.to_be_bytes());
            }
        }
    }

    pub(super) fn float(&mut self, value: f64) {
        self.0.push(0xcb);
        self.0.extend(value.to_bits().to_be_bytes());
    }

    pub(super) fn text(&mut self, value: &str) {
        self.head(0xdb, value.len());
        self.0.extend(value.as_bytes());
    }

    pub(super) fn array(&mut self, items: usize) {
        self.head(0xdd, items);
    }

    pub(super) fn map(&mut self, pairs: usize) {
        self.head(0xdf, pairs);
    }

    pub(super) fn hash(&mut self, hash: &Hash) {
        match hash {
            Hash::Word(word) => self.int(*word),
            Hash::Digest(digest) => {
                self.head(0xc6, digest.len());
                self.0.extend(&**digest);
            }
        }
    }

    /// Short lengths have a byte of their own but for binary data.
    fn head(&mut self, tag: u8, len: usize) {
        let short = match tag {
            0xdb if len < 32 => Some(0xa0),
            0xdd if len < 16 => Some(0x90),
            0xdf if len < 16 => Some(0x80),
            _ => None,
        };
        if let Some(short) = short {
            self.0.push(short | len as u8);
        } else {
            self.0.push(tag);
            self.0.extend((len as u32).to_be_bytes());
        }
    }
}
