//! Messages of KV events, for the benches that read them.
#![allow(dead_code, reason = "each bench writes what it reads")]

/// A msgpack writer of the types that events need.
#[derive(Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    pub fn list(&mut self, items: usize) {
        self.0.push(0xdc);
        self.0.extend((items as u16).to_be_bytes());
    }

    pub fn text(&mut self, text: &str) {
        self.0.push(0xa0 | text.len() as u8);
        self.0.extend(text.as_bytes());
    }

    pub fn key(&mut self, as_map: bool, text: &str) {
        if as_map {
            self.text(text);
        }
    }

    pub fn number(&mut self, value: u32) {
        match value {
            0..=0x7f => self.0.push(value as u8),
            0x80..=0xff => self.0.extend([0xcc, value as u8]),
            0x100..=0xffff => {
                self.0.push(0xcd);
                self.0.extend((value as u16).to_be_bytes());
            }
            _ => {
                self.0.push(0xce);
                self.0.extend(value.to_be_bytes());
            }
        }
    }

    pub fn name(&mut self, name: u64) {
        self.0.push(0xcf);
        self.0.extend(name.to_be_bytes());
    }

    /// A name of 32 bytes.
    pub fn bytes(&mut self, words: [u64; 4]) {
        self.0.extend([0xc4, 32]);
        for word in words {
            self.0.extend(word.to_be_bytes());
        }
    }

    pub fn nil(&mut self) {
        self.0.push(0xc0);
    }

    /// A store in device memory, as a map.
    pub fn store(
        &mut self,
        names: &[u64],
        parent: Option<u64>,
        tokens: impl ExactSizeIterator<Item = u32>,
    ) {
        self.0.push(0x86);
        for key in ["type", "BlockStored", "block_hashes"] {
            self.text(key);
        }
        self.list(names.len());
        for name in names {
            self.name(*name);
        }
        self.text("parent_block_hash");
        match parent {
            Some(parent) => self.name(parent),
            None => self.nil(),
        }
        let block_size = tokens.len() / names.len();
        self.text("token_ids");
        self.list(tokens.len());
        tokens.for_each(|token| self.number(token));
        self.text("block_size");
        self.number(block_size as u32);
        self.text("medium");
        self.text("GPU");
    }

    /// A removal from device memory, as a map.
    pub fn removal(&mut self, names: impl ExactSizeIterator<Item = u64>) {
        self.0.push(0x83);
        for key in ["type", "BlockRemoved", "block_hashes"] {
            self.text(key);
        }
        self.list(names.len());
        names.for_each(|name| self.name(name));
        self.text("medium");
        self.text("GPU");
    }
}
