//! The engine's cache as its events show it: tokens per block, and the attention of each group's layers.
//!
//! No event states either. A block that another follows is full, so it has the size. The largest window is that of full
//! attention, smaller ones slide. Layers with a recurrent state have no window, and are given the largest: their group
//! stores blocks whose parents it never stored, which full attention cannot.

use std::collections::{HashMap, HashSet};

use xxhash_rust::xxh3::xxh3_64;

use super::event::{Data, Event, Hash};

/// Groups that are remembered. Models have fewer than ten.
const MOST_GROUPS: usize = 64;
/// Names that are remembered to find groups with a state.
const MOST_NAMES: usize = 1 << 18;

/// Attention of the layers of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Everything.
    Full,
    /// So many tokens.
    Sliding(u32),
    /// A state at the end of some blocks.
    State,
}

/// A cache group.
type Group = (Option<u32>, Option<u32>);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// Tokens per block.
    pub(super) size: Option<u32>,
    /// Whether that is only the largest seen.
    is_guessed: bool,
    largest: Option<u32>,
    /// Those with an id.
    layers: HashMap<u32, Option<u32>>,
    with_state: HashSet<u32>,
    /// Names stored, by rank and group; none once messages were lost.
    names: Option<HashSet<(u32, u32, u64)>>,
    /// The roles that were published.
    used: HashMap<Group, Role>,
}

impl Layout {
    /// The layout of an engine of which at most the block size is known.
    pub(super) fn new(size: Option<u32>) -> Self {
        Self {
            size,
            names: Some(HashSet::new()),
            ..Self::default()
        }
    }

    /// Learns from events before they are published. Returns whether earlier ones were published wrongly.
    pub(super) fn learn(&mut self, events: &[Event]) -> bool {
        for event in events {
            self.largest = self.largest.max(event.window);
            if let Some(group) = event.layer_group
                && (self.layers.len() < MOST_GROUPS || self.layers.contains_key(&group))
            {
                self.layers.insert(group, event.window);
            }
        }
        let mut is_wrong = false;
        if let Some(size) = size(events).filter(|_| self.size.is_none() || self.is_guessed) {
            is_wrong = self.size.is_some_and(|guess| guess != size);
            self.size = Some(size);
            self.is_guessed = false;
        }
        for event in events {
            self.follow(event);
        }
        let used: Vec<_> = self
            .used
            .iter()
            .map(|(group, role)| (*group, *role))
            .collect();
        let mut used = used.into_iter();
        is_wrong || used.any(|(group, role)| self.find(group) != role)
    }

    /// Takes the largest of these blocks for one of full size, until another shows the size.
    pub(super) fn guess(&mut self, events: &[Event]) {
        self.size = largest(events);
        self.is_guessed = self.size.is_some();
    }

    /// The role of a group, which counts as published from now on.
    pub(super) fn role(&mut self, event: &Event) -> Role {
        let group = (event.layer_group, event.window);
        let role = self.find(group);
        if self.used.len() < MOST_GROUPS {
            self.used.insert(group, role);
        }
        role
    }

    /// Messages were lost: a block that a group seems to lack may have been stored.
    pub(super) fn lost(&mut self) {
        self.names = None;
    }

    /// The published roles are withdrawn.
    pub(super) fn withdrawn(&mut self) {
        self.used.clear();
    }

    fn find(&self, (layers, window): Group) -> Role {
        match window {
            Some(window) if Some(window) < self.largest => Role::Sliding(window),
            _ if layers.is_some_and(|layers| self.with_state.contains(&layers)) => Role::State,
            _ => Role::Full,
        }
    }

    /// Looks for blocks whose parent their group does not have, where several groups have the largest window.
    fn follow(&mut self, event: &Event) {
        let (Some(group), Some(names)) = (event.layer_group, &mut self.names) else {
            return;
        };
        let rank = event.rank.unwrap_or(0);
        let candidates = self
            .layers
            .values()
            .filter(|window| **window == self.largest);
        if candidates.count() < 2 || event.window != self.largest {
            return;
        }
        match &event.data {
            Data::Stored { parent, blocks } => {
                let known = |parent: &Hash| names.contains(&(rank, group, short(parent)));
                if parent.as_ref().is_some_and(|parent| !known(parent)) {
                    self.with_state.insert(group);
                }
                names.extend(blocks.iter().map(|block| (rank, group, short(&block.hash))));
            }
            Data::Removed(hashes) => {
                for hash in hashes {
                    names.remove(&(rank, group, short(hash)));
                }
            }
            _ => {}
        }
        if names.len() > MOST_NAMES {
            self.names = None;
        }
    }
}

fn short(hash: &Hash) -> u64 {
    match hash {
        Hash::Word(word) => *word,
        Hash::Digest(digest) => xxh3_64(digest),
    }
}

/// Tokens of a block that another follows.
fn size(events: &[Event]) -> Option<u32> {
    let mut alone = HashMap::new();
    for event in events {
        let Data::Stored { parent, blocks } = &event.data else {
            continue;
        };
        if let [first, _, ..] = blocks.as_slice() {
            return Some(first.tokens.len() as u32);
        }
        if let Some(tokens) = parent.as_ref().and_then(|parent| alone.get(parent)) {
            return Some(*tokens);
        }
        if let [block] = blocks.as_slice() {
            alone.insert(&block.hash, block.tokens.len() as u32);
        }
    }
    None
}

/// Tokens of the largest block.
fn largest(events: &[Event]) -> Option<u32> {
    let blocks = events.iter().filter_map(|event| match &event.data {
        Data::Stored { blocks, .. } => Some(blocks),
        _ => None,
    });
    blocks
        .flatten()
        .map(|block| block.tokens.len() as u32)
        .max()
}
