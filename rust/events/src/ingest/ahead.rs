//! Fetching what the events of a message are about to touch.
//!
//! Applied one after the other each event waits for memory a dozen times, since nobody's blocks are in cache when it comes.
//! So the names of a few events are asked for ahead of time, and then, together, what the holdings know of their blocks.

use cachelb_core::ids::SequenceHash;

use super::super::batch::{Batch, Event, Name};
use super::super::holdings::Holdings;
use super::super::mirror::{Foreseen, Mirror};
use super::super::space::Space;

/// Events looked at together.
const WINDOW: usize = 16;
/// Names of one event that are fetched; stores of more fetch their own.
const NAMES: usize = 4;

/// What is known of the events of a window before they are applied.
#[derive(Debug, Default)]
pub(super) struct Foresight {
    foreseen: Vec<Option<Foreseen>>,
    /// To be fetched from the holdings.
    blocks: Vec<SequenceHash>,
    /// Of the event at work.
    hashed: Vec<SequenceHash>,
}

impl Foresight {
    /// Looks at the event at `at`, and at all of a window that starts with it, before it is applied.
    pub fn look(
        &mut self,
        mirror: &Mirror,
        batch: &Batch,
        at: usize,
        to: &dyn Holdings,
    ) -> Option<Foreseen> {
        if at.is_multiple_of(WINDOW) {
            self.look_ahead(mirror, batch, at, to);
        }
        self.foreseen.get(at % WINDOW).copied().flatten()
    }

    fn look_ahead(&mut self, mirror: &Mirror, batch: &Batch, at: usize, to: &dyn Holdings) {
        if at == 0 {
            fetch_names(mirror, batch, 0);
        }
        fetch_names(mirror, batch, at + WINDOW);
        self.blocks.clear();
        self.foreseen.clear();
        let events = window(batch, at);
        if events.len() < 2 {
            return;
        }
        for event in events {
            for space in spaces(mirror, event) {
                touched(batch, event).for_each(|name| space.names.prefetch_held(name));
            }
        }
        let mut before = None;
        for event in events {
            for space in spaces(mirror, event) {
                let ends = touched(batch, event).filter_map(|name| space.end(name)?.block);
                self.blocks.extend(ends);
            }
            let foreseen = self.foresee(mirror, batch, event, before);
            before = foreseen.zip(only_name(batch, event));
            self.blocks.extend(foreseen.map(|foreseen| foreseen.block));
            self.foreseen.push(foreseen);
        }
        if !self.blocks.is_empty() {
            to.prefetch(&self.blocks);
        }
    }

    /// The block of an event that stores one behind a known one, or behind the one that the event `before` it stores.
    fn foresee(
        &mut self,
        mirror: &Mirror,
        batch: &Batch,
        event: &Event,
        before: Option<(Foreseen, Name)>,
    ) -> Option<Foreseen> {
        let Event::Store(store) = event else {
            return None;
        };
        let tokens = batch.tokens.get(store.tokens.range())?;
        let is_one = store.names.len == 1 && tokens.len() == mirror.hasher.block_size();
        if !is_one || store.extras.len > 0 {
            return None;
        }
        let (after, namespace) = match before {
            Some((before, name)) if store.parent == Some(name) => (before.block, before.namespace),
            _ => {
                let mut ends = spaces(mirror, event).filter_map(|space| space.end(store.parent?));
                let end = ends.next()?;
                (end.block?, mirror.references.namespaces.get(end.namespace))
            }
        };
        let hashed = &mut self.hashed;
        mirror
            .hasher
            .hash_after(Some(after), tokens, namespace, &[], hashed);
        let block = *hashed.first()?;
        Some(Foreseen {
            after,
            namespace,
            block,
        })
    }

    pub fn memory_bytes(&self) -> usize {
        self.foreseen.capacity() * size_of::<Option<Foreseen>>()
            + (self.blocks.capacity() + self.hashed.capacity()) * size_of::<SequenceHash>()
    }
}

fn fetch_names(mirror: &Mirror, batch: &Batch, at: usize) {
    for event in window(batch, at) {
        for space in spaces(mirror, event) {
            if let Event::Store(store) = event {
                let names = batch.names.get(store.names.range()).unwrap_or_default();
                space.names.prefetch(&names[..names.len().min(NAMES)]);
            }
            for name in touched(batch, event) {
                space.names.prefetch(&[name]);
            }
        }
    }
}

fn window(batch: &Batch, at: usize) -> &[Event] {
    let end = batch.events.len().min(at + WINDOW);
    batch.events.get(at..end).unwrap_or_default()
}

fn spaces<'a>(mirror: &'a Mirror, event: &Event) -> impl Iterator<Item = &'a Space> {
    let group = match event {
        Event::Store(store) => store.group,
        Event::Remove(remove) => remove.group,
        Event::Clear => None,
    };
    let all = mirror.spaces.all.iter();
    all.filter(move |space| space.group == group)
}

/// The name that a store of one block gives it.
fn only_name(batch: &Batch, event: &Event) -> Option<Name> {
    match event {
        Event::Store(store) if store.names.len == 1 => {
            batch.names.get(store.names.start as usize).copied()
        }
        _ => None,
    }
}

/// Names of known blocks that an event is about: what a store follows, and the first that a removal takes.
fn touched<'a>(batch: &'a Batch, event: &'a Event) -> impl Iterator<Item = Name> + 'a {
    let (parent, removed) = match event {
        Event::Store(store) => (store.parent, None),
        Event::Remove(remove) => (None, batch.names.get(remove.names.range())),
        Event::Clear => (None, None),
    };
    let removed = removed.unwrap_or_default().iter().take(NAMES);
    parent.into_iter().chain(removed.copied())
}
