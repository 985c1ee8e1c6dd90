//! Fetching what the events of a message are about to touch.
//!
//! Applied one after the other each event waits for memory a dozen times, since nobody's blocks are in cache when it comes.
//! So the names of a few events are asked for ahead of time, and then, together, what the holdings know of their blocks.

use cachelb_core::hashing::{Hasher, Namespace};
use cachelb_core::ids::SequenceHash;

use super::super::batch::{Batch, Event, Name};
use super::super::holdings::Holdings;
use super::super::space::Space;
use super::{Ingest, Scratch};

/// Events looked at together.
pub(super) const WINDOW: usize = 16;
/// Names of one event that are fetched; stores of more fetch their own.
const NAMES: usize = 4;

/// The block of a store of one, hashed before its turn so that its place could be fetched.
#[derive(Debug, Clone, Copy)]
pub(super) struct Foreseen {
    after: SequenceHash,
    namespace: Namespace,
    block: SequenceHash,
}

impl Foreseen {
    /// The block, if the store follows what it was taken to follow.
    pub(super) fn after(
        self,
        chain: Option<SequenceHash>,
        namespace: Namespace,
    ) -> Option<SequenceHash> {
        (chain == Some(self.after) && namespace == self.namespace).then_some(self.block)
    }
}

impl Ingest {
    /// Before the event at `at` is applied, which starts a window.
    pub(super) fn look_ahead(&mut self, batch: &Batch, at: usize, to: &dyn Holdings) {
        if at == 0 {
            self.fetch_names(batch, 0);
        }
        self.fetch_names(batch, at + WINDOW);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.ahead.clear();
        scratch.foreseen.clear();
        let events = window(batch, at);
        for event in events.iter().filter(|_| events.len() > 1) {
            for space in spaces(&self.spaces, event) {
                touched(batch, event).for_each(|name| space.prefetch_held(name));
            }
        }
        let mut before = None;
        for event in events.iter().filter(|_| events.len() > 1) {
            for space in spaces(&self.spaces, event) {
                let ends = touched(batch, event).filter_map(|name| space.end(name)?.block);
                scratch.ahead.extend(ends);
            }
            let foreseen = self.foresee(batch, event, before, &mut scratch);
            before = foreseen.zip(only_name(batch, event));
            scratch
                .ahead
                .extend(foreseen.map(|foreseen| foreseen.block));
            scratch.foreseen.push(foreseen);
        }
        if !scratch.ahead.is_empty() {
            to.prefetch(&scratch.ahead);
        }
        self.scratch = scratch;
    }

    /// The block of an event that stores one behind a known one, or behind the one that the event `before` it stores.
    fn foresee(
        &self,
        batch: &Batch,
        event: &Event,
        before: Option<(Foreseen, Name)>,
        scratch: &mut Scratch,
    ) -> Option<Foreseen> {
        let Event::Store(store) = event else {
            return None;
        };
        let hasher: &Hasher = &self.settings.hasher;
        let tokens = batch.tokens.get(store.tokens.range())?;
        if store.names.len != 1 || store.extras.len > 0 || tokens.len() != hasher.block_size() {
            return None;
        }
        let (after, namespace) = match before {
            Some((before, name)) if store.parent == Some(name) => (before.block, before.namespace),
            _ => {
                let mut ends =
                    spaces(&self.spaces, event).filter_map(|space| space.end(store.parent?));
                let end = ends.next()?;
                (end.block?, self.namespaces.get(end.namespace))
            }
        };
        let blocks = &mut scratch.identities;
        hasher.hash_after(Some(after), tokens, namespace, &[], blocks);
        let block = *blocks.first()?;
        Some(Foreseen {
            after,
            namespace,
            block,
        })
    }

    fn fetch_names(&self, batch: &Batch, at: usize) {
        for event in window(batch, at) {
            for space in spaces(&self.spaces, event) {
                if let Event::Store(store) = event {
                    let names = batch.names.get(store.names.range()).unwrap_or_default();
                    space.prefetch(&names[..names.len().min(NAMES)]);
                }
                for name in touched(batch, event) {
                    space.prefetch(&[name]);
                }
            }
        }
    }
}

fn window(batch: &Batch, at: usize) -> &[Event] {
    let end = batch.events.len().min(at + WINDOW);
    batch.events.get(at..end).unwrap_or_default()
}

fn spaces<'a>(all: &'a [Space], event: &Event) -> impl Iterator<Item = &'a Space> {
    let group = match event {
        Event::Store(store) => store.group,
        Event::Remove(remove) => remove.group,
        Event::Clear => None,
    };
    all.iter().filter(move |space| space.group == group)
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
