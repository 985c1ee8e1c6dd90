//! Events into a batch.

use cachelb_core::ids::Medium;
use cachelb_events::{Attention, Batch, Event, Name, Place, Remove, Span, Store};

/// A store as the engine announces it.
#[derive(Debug, Clone, Copy)]
pub struct Stored<'a> {
    pub names: &'a [u64],
    pub parent: Option<u64>,
    pub tokens: &'a [u32],
    pub block_size: usize,
    pub medium: Medium,
    pub lora: Option<&'a str>,
    pub salt: Option<&'a str>,
}

/// The batch that a step of the engine fills.
#[derive(Debug, Default)]
pub struct Writer {
    pub batch: Batch,
    /// Names as bytes instead of integers.
    pub wide_names: bool,
}

impl Writer {
    fn name(&self, name: u64) -> Name {
        if self.wide_names {
            Name::Wide(u128::from(name) << 64 | 1)
        } else {
            Name::Int(name)
        }
    }

    fn names(&mut self, names: &[u64]) -> Span {
        let start = self.batch.names.len() as u32;
        for name in names {
            let name = self.name(*name);
            self.batch.names.push(name);
        }
        Span {
            start,
            len: names.len() as u32,
        }
    }

    fn text(&mut self, text: &str) -> Span {
        let start = self.batch.text.len() as u32;
        self.batch.text.push_str(text);
        Span {
            start,
            len: text.len() as u32,
        }
    }

    pub fn stored(&mut self, stored: Stored<'_>) {
        let start = self.batch.tokens.len() as u32;
        self.batch.tokens.extend_from_slice(stored.tokens);
        let placeholder = stored.tokens.is_empty();
        let event = Store {
            names: self.names(stored.names),
            parent: stored.parent.map(|parent| self.name(parent)),
            tokens: Span {
                start,
                len: stored.tokens.len() as u32,
            },
            block_size: if placeholder {
                0
            } else {
                stored.block_size as u32
            },
            place: Place::In(stored.medium),
            group: Some(0),
            attention: if placeholder {
                Attention::Unsaid
            } else {
                Attention::Full
            },
            window: None,
            lora: stored.lora.map(|lora| self.text(lora)),
            salt: stored.salt.map(|salt| self.text(salt)),
            extras: Span::default(),
        };
        self.batch.events.push(Event::Store(event));
    }

    pub fn removed(&mut self, name: u64, medium: Medium) {
        let names = self.names(&[name]);
        self.batch.events.push(Event::Remove(Remove {
            names,
            place: Place::In(medium),
            group: Some(0),
        }));
    }

    pub fn cleared(&mut self) {
        self.batch.events.push(Event::Clear);
    }
}
