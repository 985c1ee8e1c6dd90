//! One message: the events of a rank without a hole between them, in the form that engines publish.

use super::event::{Block, Event, Hash};
use super::identity::{is_proven, objects};
use super::layout::Role;
use super::pack::Pack;

/// The events of a message so far.
#[derive(Debug, Default)]
pub(super) struct Message {
    events: usize,
    pack: Pack,
}

impl Message {
    pub(super) fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// How large it is so far.
    pub(super) fn bytes(&self) -> usize {
        self.pack.0.len()
    }

    /// The message as bytes; it is empty then.
    pub(super) fn take(&mut self, ts: f64, rank: Option<u32>) -> Vec<u8> {
        let Self { events, pack } = std::mem::take(self);
        let mut message = Pack(Vec::with_capacity(pack.0.len() + 24));
        message.array(3);
        message.float(ts);
        message.array(events);
        message.0.extend(pack.0);
        match rank {
            Some(rank) => message.int(rank.into()),
            None => message.nil(),
        }
        message.0
    }

    /// An event that is only counted.
    pub(super) fn note(&mut self, kind: &str) {
        self.event(kind, 1);
    }

    /// Full blocks, one behind the other.
    pub(super) fn stored(
        &mut self,
        event: &Event,
        role: Role,
        (parent, blocks): (Option<&Hash>, &[Block]),
        checked: bool,
        next: Option<&Block>,
    ) {
        let same = |a: &Block, b: &Block| (a.level, a.lora) == (b.level, b.lora);
        let (mut parent, mut at) = (parent, 0);
        for blocks in blocks.chunk_by(same) {
            at += blocks.len();
            let following = next.filter(|_| at == blocks.len());
            self.run(event, role, (parent, blocks), checked, following);
            parent = blocks.last().map(|block| &block.hash);
        }
    }

    /// A part of a chain that fits one event.
    fn run(
        &mut self,
        event: &Event,
        role: Role,
        (parent, blocks): (Option<&Hash>, &[Block]),
        checked: bool,
        next: Option<&Block>,
    ) {
        let Some(first) = blocks.first() else {
            return;
        };
        let mut found = Vec::with_capacity(blocks.len());
        let mut before = parent;
        for (at, block) in blocks.iter().enumerate() {
            let next = blocks.get(at + 1).or(next);
            let proven = !checked || is_proven(event.scheme, before, block, next);
            let mut these = Vec::new();
            objects(block, proven, &mut these);
            found.push(these);
            before = Some(&block.hash);
        }
        let with_objects = found.iter().any(|these| !these.is_empty());
        let salt = first.salt.as_deref().filter(|_| parent.is_none());
        let pairs = 5
            + usize::from(first.lora.is_some())
            + usize::from(salt.is_some())
            + usize::from(with_objects);
        self.event("BlockStored", 1 + pairs + group_pairs(event, role));
        self.names(blocks.iter().map(|block| &block.hash));
        self.pack.text("parent_block_hash");
        match parent {
            Some(parent) => self.pack.hash(parent),
            None => self.pack.nil(),
        }
        self.pack.text("token_ids");
        self.pack.array(blocks.len() * first.tokens.len());
        for block in blocks {
            let tokens = block.tokens.iter();
            tokens.for_each(|token| self.pack.int(u64::from(*token)));
        }
        self.pack.text("block_size");
        self.pack.int(first.tokens.len() as u64);
        if let Some(lora) = first.lora {
            self.pack.text("lora_id");
            self.pack.int(lora);
        }
        self.medium(first.level);
        self.group(event, role);
        if let Some(salt) = salt {
            self.pack.text("cache_salt");
            self.pack.text(salt);
        }
        if with_objects {
            self.objects(&found);
        }
    }

    fn objects(&mut self, found: &[Vec<u64>]) {
        self.pack.text("block_mm_infos");
        self.pack.array(found.len());
        for these in found {
            if these.is_empty() {
                self.pack.nil();
                continue;
            }
            self.pack.map(1);
            self.pack.text("mm_objects");
            self.pack.array(these.len());
            for hash in these {
                self.pack.map(1);
                self.pack.text("mm_hash");
                self.pack.int(*hash);
            }
        }
    }

    /// Blocks went, wherever they were.
    pub(super) fn removed(&mut self, event: &Event, hashes: &[&Hash]) {
        self.event("BlockRemoved", 2 + usize::from(event.group().is_some()));
        self.names(hashes.iter().copied());
        self.group_id(event);
    }

    /// A block moved from one level to another: it is there before it is gone here.
    pub(super) fn moved(&mut self, event: &Event, role: Role, hash: &Hash, levels: (u32, u32)) {
        self.event("BlockStored", 6 + group_pairs(event, role));
        self.names(std::iter::once(hash));
        self.pack.text("parent_block_hash");
        self.pack.nil();
        self.pack.text("token_ids");
        self.pack.array(0);
        self.pack.text("block_size");
        self.pack.int(0);
        self.medium(levels.1);
        self.group(event, role);
        self.event("BlockRemoved", 3 + usize::from(event.group().is_some()));
        self.names(std::iter::once(hash));
        self.medium(levels.0);
        self.group_id(event);
    }

    fn event(&mut self, kind: &str, pairs: usize) {
        self.events += 1;
        self.pack.map(pairs);
        self.pack.text("type");
        self.pack.text(kind);
    }

    fn names<'a>(&mut self, hashes: impl ExactSizeIterator<Item = &'a Hash>) {
        self.pack.text("block_hashes");
        self.pack.array(hashes.len());
        hashes.for_each(|hash| self.pack.hash(hash));
    }

    fn medium(&mut self, level: u32) {
        self.pack.text("medium");
        self.pack.text(match level {
            0 => "GPU",
            1 => "CPU",
            _ => "DISK",
        });
    }

    fn group_id(&mut self, event: &Event) {
        if let Some(group) = event.group() {
            self.pack.text("group_idx");
            self.pack.int(group.into());
        }
    }

    fn group(&mut self, event: &Event, role: Role) {
        if event.group().is_none() {
            return;
        }
        self.group_id(event);
        self.pack.text("kv_cache_spec_kind");
        self.pack.text(match role {
            Role::Full => "full_attention",
            Role::Sliding(_) => "sliding_window",
            Role::State => "mamba",
        });
        if let Role::Sliding(window) = role {
            self.pack.text("kv_cache_spec_sliding_window");
            self.pack.int(window.into());
        }
    }
}

/// Pairs that [`Message::group`] writes.
fn group_pairs(event: &Event, role: Role) -> usize {
    match (event.group(), role) {
        (None, _) => 0,
        (Some(_), Role::Sliding(_)) => 3,
        (Some(_), _) => 2,
    }
}
