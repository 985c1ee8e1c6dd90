//! A pool of blocks that workers of a fleet share: what one computes, another loads.
//!
//! It is a tree of prompts. A block goes in behind the one before it, and the one that waited longest of those that no
//! other continues makes room, so that what is left can be loaded from the first block on.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cachelb_core::ids::{AsIs, Medium, SequenceHash};

use crate::engine::change::Change;
use crate::engine::cost::{Pass, Timing};

/// Terms of a pool for a worker that shares it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolTerms {
    /// Blocks that the pool holds.
    pub blocks: u32,
    /// Seconds that loading takes per token.
    pub seconds_per_token: f64,
}

#[derive(Debug)]
struct Entry {
    parent: Option<SequenceHash>,
    children: u32,
    used: u64,
}

/// The blocks of a pool.
#[derive(Debug)]
pub struct BlockPool {
    most: usize,
    entries: HashMap<SequenceHash, Entry, AsIs>,
    /// Blocks that no other continues, by when they were used.
    leaves: BTreeMap<u64, SequenceHash>,
    clock: u64,
    /// Changes since they were last taken.
    changes: Vec<Change>,
    /// Whether the worker went away whose memory it is.
    is_down: bool,
}

impl BlockPool {
    /// An empty one for so many blocks.
    #[must_use]
    pub fn new(blocks: u32) -> Self {
        Self {
            most: blocks as usize,
            entries: HashMap::default(),
            leaves: BTreeMap::new(),
            clock: 0,
            changes: Vec::new(),
            is_down: false,
        }
    }

    /// The worker whose memory it is goes away, and everything in it, or comes back.
    pub fn set_up(&mut self, is_up: bool) {
        *self = Self::new(self.most as u32);
        self.is_down = !is_up;
    }

    /// Whether its worker is there.
    #[must_use]
    pub fn is_up(&self) -> bool {
        !self.is_down
    }

    /// Blocks it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many leading `names` it holds.
    #[must_use]
    pub fn leading(&self, names: &[SequenceHash]) -> usize {
        let held = |name: &&SequenceHash| self.entries.contains_key(name);
        names.iter().take_while(held).count()
    }

    /// Blocks were read.
    pub fn touch(&mut self, names: &[SequenceHash]) {
        for name in names {
            self.clock += 1;
            if let Some(entry) = self.entries.get_mut(name) {
                let before = std::mem::replace(&mut entry.used, self.clock);
                if self.leaves.remove(&before).is_some() {
                    self.leaves.insert(self.clock, *name);
                }
            }
        }
    }

    /// Takes in a block. One behind a block that is not there could not be loaded, and is left out.
    pub fn put(&mut self, hash: SequenceHash, parent: Option<SequenceHash>) {
        if self.entries.contains_key(&hash) {
            return self.touch(&[hash]);
        }
        if let Some(before) = parent {
            let Some(entry) = self.entries.get_mut(&before) else {
                return;
            };
            entry.children += 1;
            self.leaves.remove(&entry.used);
        }
        self.clock += 1;
        let entry = Entry {
            parent,
            children: 0,
            used: self.clock,
        };
        self.entries.insert(hash, entry);
        self.leaves.insert(self.clock, hash);
        self.changes.push(Change::Stored {
            hash,
            parent,
            medium: Medium::Cpu,
        });
        while self.entries.len() > self.most {
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        let Some((_, hash)) = self.leaves.pop_first() else {
            return;
        };
        let parent = self.entries.remove(&hash).and_then(|entry| entry.parent);
        self.changes.push(Change::Removed {
            hash,
            medium: Medium::Cpu,
        });
        if let Some((before, entry)) =
            parent.and_then(|before| Some((before, self.entries.get_mut(&before)?)))
        {
            entry.children -= 1;
            if entry.children == 0 {
                self.leaves.insert(entry.used, before);
            }
        }
    }

    /// The changes since the last call, in order.
    pub fn changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }
}

/// The part of a worker in a pool.
#[derive(Debug, Clone)]
pub struct PoolMember {
    pool: Arc<Mutex<BlockPool>>,
    seconds_per_token: f64,
}

impl PoolMember {
    /// A worker that loads from `pool`.
    #[must_use]
    pub fn new(pool: Arc<Mutex<BlockPool>>, seconds_per_token: f64) -> Self {
        Self {
            pool,
            seconds_per_token,
        }
    }

    /// The pool.
    pub fn pool(&self) -> MutexGuard<'_, BlockPool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tokens to load for a request with the blocks `names` that resumes by itself at `hit` and has `total` tokens, one
    /// of which is computed in any case; 0 if `pass` computes them sooner.
    pub(crate) fn loads(
        &self,
        (names, block_size): (&[SequenceHash], u32),
        (hit, total): (u32, u32),
        (pass, timing): (&Pass, &Timing),
    ) -> u32 {
        let (own, most) = (hit / block_size, total.saturating_sub(1) / block_size);
        let end = names.len().min(most as usize);
        let behind = names.get(own as usize..end).unwrap_or_default();
        let blocks = self.pool().leading(behind);
        let tokens = blocks as u32 * block_size;
        if tokens == 0 {
            return 0;
        }
        let seconds = |new: u32, context: u32| {
            let mut pass = *pass;
            pass.add_prefill(u64::from(new), u64::from(context));
            timing.seconds(&pass)
        };
        // Whatever is loaded, the token behind it is computed in this pass.
        let saved = seconds(tokens + 1, hit) - seconds(1, hit + tokens);
        if self.seconds(tokens) < saved {
            tokens
        } else {
            0
        }
    }

    /// Seconds that loading so many tokens takes.
    pub(crate) fn seconds(&self, tokens: u32) -> f64 {
        f64::from(tokens) * self.seconds_per_token
    }
}
