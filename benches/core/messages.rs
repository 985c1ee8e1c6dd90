//! Messages of KV events, for the benches that read them.
#![allow(dead_code, reason = "each bench writes what it reads")]

/// A msgpack writer of what events need.
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
}
