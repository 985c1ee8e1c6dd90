//! The cache groups of a stream: the attention of their layers, and where prompts can resume.
//!
//! A group is learned from its first store that states its kind, and stores that contradict it are refused. Engines
//! that leave the kind out may have several groups: then a group is indexed if each of its stores named all blocks it
//! has tokens of, since only groups that attend to the whole prefix keep every block.

use cachelb_core::groups::{CacheGroup, GroupKind, Resuming, Retention};

use crate::batch::{Attention, Batch, Store};

/// Groups that are remembered. Models have fewer than ten.
const MAX_GROUPS: usize = 64;
/// Characters kept of the name of an unknown kind.
const MAX_NAME: usize = 64;

/// Use of the stores of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Its blocks are prefixes.
    Prefix,
    /// Its blocks determine behind which prefixes a prompt can resume.
    Side,
    /// Nothing follows from its blocks.
    Ignored,
}

/// One cache group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) id: Option<u32>,
    pub(crate) attention: Attention,
    /// Name of a kind that is not known.
    name: Option<Box<str>>,
    pub(crate) window: Option<u32>,
    /// Tokens per block, 0 until it is known.
    pub(crate) size: u32,
    /// Whether every store named all blocks it had tokens of.
    complete: bool,
}

impl Group {
    /// Its kind, as engines call it.
    pub(crate) fn kind(&self) -> &str {
        match self.attention {
            Attention::Unsaid => "unsaid",
            Attention::Full => "full_attention",
            Attention::Sliding => "sliding_window",
            Attention::Mamba => "mamba",
            Attention::Chunked => "chunked_local_attention",
            Attention::Aside => "none",
            Attention::Other(_) => self.name.as_deref().unwrap_or("unknown"),
        }
    }

    /// Its attention, if that is known.
    pub(crate) fn rule(&self) -> Option<GroupKind> {
        let window = self.window.filter(|window| *window > 0);
        match self.attention {
            Attention::Full => Some(GroupKind::Full),
            Attention::Sliding => window.map(|window| GroupKind::SlidingWindow { window }),
            Attention::Mamba => Some(GroupKind::Mamba),
            Attention::Chunked => window.map(|chunk| GroupKind::Chunked { chunk }),
            _ => None,
        }
    }

    /// Its attention and block size, if both are known.
    pub(crate) fn cache(&self) -> Option<CacheGroup> {
        let block_size = self.size;
        self.rule().map(|kind| CacheGroup { kind, block_size })
    }

    pub(crate) fn is_side(&self) -> bool {
        use Attention::{Chunked, Mamba, Other, Sliding};
        matches!(self.attention, Sliding | Mamba | Chunked | Other(_))
    }

    fn states_kind(&self) -> bool {
        self.attention != Attention::Unsaid
    }

    /// Whether a store cannot belong to this group.
    fn contradicts(&self, store: &Store) -> bool {
        let kind = self.states_kind() && states_kind(store) && kind(store) != self.attention;
        // A window that is stated for full attention has no effect.
        let is_side = self.is_side();
        let differs =
            |ours: u32, theirs: u32| is_side && ours != 0 && theirs != 0 && ours != theirs;
        let (window, stated) = (self.window.unwrap_or(0), store.window.unwrap_or(0));
        let size = if store.tokens.len > 0 {
            store.block_size
        } else {
            0
        };
        kind || differs(window, stated) || differs(self.size, size)
    }

    /// Learns from a store. Returns whether anything changed.
    fn learn(&mut self, batch: &Batch, store: &Store) -> bool {
        let before = (self.attention, self.window, self.size, self.complete);
        if !self.states_kind() && states_kind(store) {
            self.attention = kind(store);
            self.name = name(batch, store);
        }
        self.window = self.window.or(store.window);
        if store.tokens.len > 0 {
            if self.size == 0 {
                self.size = store.block_size;
            }
            let named = u64::from(store.names.len) * u64::from(store.block_size);
            self.complete &= named == u64::from(store.tokens.len);
        }
        before != (self.attention, self.window, self.size, self.complete)
    }
}

fn states_kind(store: &Store) -> bool {
    store.attention != Attention::Unsaid
}

/// The attention that a store states, without the position of its name in the batch.
fn kind(store: &Store) -> Attention {
    match store.attention {
        Attention::Other(_) => Attention::Other(crate::batch::Span::default()),
        known => known,
    }
}

fn name(batch: &Batch, store: &Store) -> Option<Box<str>> {
    let Attention::Other(name) = store.attention else {
        return None;
    };
    let name = batch
        .text
        .get(name.range())
        .filter(|name| !name.is_empty())?;
    Some(name.chars().take(MAX_NAME).collect())
}

/// The groups of a stream, in the order they came.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    all: Vec<Group>,
    /// Whether there were more than are remembered.
    overflow: bool,
}

impl Groups {
    /// Learns about a store's group. Returns whether anything changed.
    #[inline]
    pub(crate) fn learn(&mut self, batch: &Batch, store: &Store) -> bool {
        let known = self.all.iter_mut().find(|group| group.id == store.group);
        if let Some(group) = known {
            return !group.contradicts(store) && group.learn(batch, store);
        }
        // Offloaded blocks have neither tokens nor a kind.
        if store.tokens.len == 0 && !states_kind(store) {
            return false;
        }
        if self.all.len() == MAX_GROUPS {
            return !std::mem::replace(&mut self.overflow, true);
        }
        let mut group = Group {
            id: store.group,
            attention: Attention::Unsaid,
            name: None,
            window: None,
            size: 0,
            complete: true,
        };
        group.learn(batch, store);
        self.all.push(group);
        true
    }

    /// The use of a store; `None` if it contradicts its group.
    pub(crate) fn admit(&self, store: &Store) -> Option<Role> {
        match self.find(store.group) {
            Some(group) if group.contradicts(store) => None,
            Some(group) => Some(self.role_of(group)),
            None if states_kind(store) => Some(Role::Ignored),
            None if store.group.is_some() && self.named().next().is_some() => Some(Role::Ignored),
            None => Some(Role::Prefix),
        }
    }

    /// The use of a group, if it is known.
    pub(crate) fn role(&self, id: Option<u32>) -> Option<Role> {
        self.find(id).map(|group| self.role_of(group))
    }

    fn find(&self, id: Option<u32>) -> Option<&Group> {
        self.all.iter().find(|group| group.id == id)
    }

    fn role_of(&self, group: &Group) -> Role {
        match group.attention {
            Attention::Full => Role::Prefix,
            Attention::Unsaid if group.id.is_none() || self.named().nth(1).is_none() => {
                Role::Prefix
            }
            Attention::Unsaid if group.complete && !self.named().any(Group::states_kind) => {
                Role::Prefix
            }
            Attention::Unsaid | Attention::Aside => Role::Ignored,
            _ => Role::Side,
        }
    }

    /// Groups with an id.
    fn named(&self) -> impl Iterator<Item = &Group> {
        self.all.iter().filter(|group| group.id.is_some())
    }

    pub(crate) fn all(&self) -> &[Group] {
        &self.all
    }

    /// Groups that resuming depends on beside those that attend to the whole prefix.
    pub(crate) fn sides(&self) -> impl Iterator<Item = &Group> {
        self.all.iter().filter(|group| group.is_side())
    }

    /// Whether prompts resume only where groups beside the indexed ones accept it.
    pub(crate) fn is_hybrid(&self) -> bool {
        self.sides().next().is_some() || self.has_riddles()
    }

    /// Whether there are groups of unknown kind although others state theirs.
    pub(crate) fn has_riddles(&self) -> bool {
        let unsaid = self.named().any(|group| !group.states_kind());
        self.overflow || unsaid && self.named().any(Group::states_kind)
    }

    /// Groups that resuming depends on.
    fn counting(&self) -> impl Iterator<Item = &Group> {
        let counts = |group: &&Group| group.is_side() || group.attention == Attention::Full;
        self.all.iter().filter(counts)
    }

    /// Tokens per block of each group that resuming depends on, 0 where that is not known.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = u32> {
        self.counting().map(|group| group.size)
    }

    /// Tokens per block of the first group that attends to the whole prefix.
    pub(crate) fn prefix_size(&self) -> Option<u32> {
        let mut full = self.all.iter().filter(|g| g.attention == Attention::Full);
        full.find(|group| group.size > 0).map(|group| group.size)
    }

    /// Where prompts leave the blocks that resuming needs, as far as that follows from the known groups; `None` without
    /// side groups, and without drafts by EAGLE or MTP.
    pub(crate) fn resuming(&self, eagle: bool) -> Option<Resuming> {
        let known = self
            .counting()
            .map(Group::cache)
            .collect::<Option<Vec<_>>>();
        let known = known.filter(|_| !self.has_riddles())?;
        Resuming::of(&known, Retention::Ends, eagle)
    }

    /// Whether all groups either attend to the whole prefix or are followed.
    pub(crate) fn are_known(&self) -> bool {
        let is_known =
            |group: &Group| self.role_of(group) == Role::Prefix || group.rule().is_some();
        !self.has_riddles() && self.all.iter().all(is_known)
    }

    /// Number of groups of an unknown kind.
    pub(crate) fn unknown_kinds(&self) -> u64 {
        let other = |group: &&Group| matches!(group.attention, Attention::Other(_));
        self.all.iter().filter(other).count() as u64
    }

    /// Whether a request may reuse less than every leading block that is indexed.
    pub(crate) fn are_several(&self) -> bool {
        let is_other = |group: &Group| self.role_of(group) != Role::Prefix;
        self.overflow || self.all.iter().any(is_other)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
