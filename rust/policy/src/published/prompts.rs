//! Trees of the prompts that workers were sent, for rules that compare more than blocks.
//!
//! A prompt is compared as it was given: text to the character, tokens to the token, and hashes, where nothing else is
//! known, to the block. Sizes are in characters; a token counts for four.

use std::borrow::Cow;
use std::hash::Hash;
use std::sync::Arc;

use cachelb_core::error::Result;
use cachelb_core::ids::{Millis, WorkerId};
use cachelb_core::owners::{Orphaned, Owners, Ticket};
use cachelb_core::radix_tree::{Key, PrefixOverlaps, RadixTree, Unit, Use};

use crate::common::slots::ByOrder;
use crate::rule::memo::{Memory, Sent};
use crate::rule::parts::{Ended, State};
use crate::rule::view::{Candidate, Content, View};

/// Units per worker and tree that requests without a first token are remembered by.
const MOST_WAITING: usize = 1 << 22;
/// Characters of a token.
const CHARACTERS: u64 = 4;

/// How much of a prompt every row's worker was sent before.
#[derive(Debug, Default)]
pub(super) struct Depths {
    /// Row by row.
    pub held: Vec<u32>,
    /// Length of the prompt in the same unit.
    pub total: u32,
}

/// One tree.
#[derive(Debug)]
struct Kept<U: Unit> {
    tree: RadixTree<U>,
    /// Placements that wait for a first token, along the labels of the tree.
    waiting: Owners<U>,
}

impl<U: Unit + Hash> Default for Kept<U> {
    fn default() -> Self {
        let tree = RadixTree::new(1, None);
        Self {
            tree: tree.expect("pages of one unit without a limit are in range"),
            waiting: Owners::new(MOST_WAITING),
        }
    }
}

/// The trees.
#[derive(Debug, Default)]
pub(super) struct Prompts {
    text: Kept<u8>,
    tokens: Kept<u32>,
    blocks: Kept<u32>,
    /// Workers by their order.
    workers: ByOrder<WorkerId>,
    /// Tokens per block, known with the first of them.
    block_size: u64,
}

/// A key in a namespace.
struct Within<'a, K: ?Sized>(u32, &'a K);

impl<U, K: Key<U> + ?Sized> Key<U> for Within<'_, K> {
    fn len(&self) -> usize {
        self.1.len()
    }

    fn namespace(&self) -> u32 {
        self.0
    }

    fn unit(&self, at: usize) -> U {
        self.1.unit(at)
    }

    fn common(&self, at: usize, label: &[U]) -> usize {
        self.1.common(at, label)
    }

    fn copy(&self, range: std::ops::Range<usize>) -> Arc<[U]> {
        self.1.copy(range)
    }
}

/// Text as a tree takes it: invalid UTF-8, such as halves of surrogate pairs, becomes a mark.
fn readable(text: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(text)
}

impl<U: Unit + Hash> Kept<U> {
    fn depths<K: Key<U> + ?Sized>(&self, rows: &[Candidate], key: &K, total: usize) -> Depths {
        let mut found = PrefixOverlaps::default();
        self.tree.overlaps(key, &mut found);
        let depth = |row: &Candidate| {
            if row.slot == Candidate::NO_SLOT {
                0
            } else {
                found.depth(row.slot)
            }
        };
        Depths {
            held: rows.iter().map(depth).collect(),
            total: u32::try_from(total).unwrap_or(u32::MAX),
        }
    }

    /// Records a key for a worker; the part it lacked waits for the first token.
    fn record<K: Key<U> + ?Sized>(&mut self, worker: WorkerId, key: &K) -> Ticket {
        // A registered worker is refused nothing.
        let new = self.tree.insert(worker, key, Use::default()).unwrap_or(0);
        let path = self.tree.pieces(key);
        let total: usize = path.iter().map(|piece| U::count(piece)).sum();
        let (mut held, mut left) = (0, total.saturating_sub(new as usize));
        for piece in &path {
            let units = U::prefix(piece, left);
            held += units;
            left -= U::count(&piece[..units]);
        }
        self.waiting.placed(worker, (key.namespace(), &path), held)
    }

    fn forget(&mut self, worker: WorkerId) {
        self.waiting.forget(worker.slot);
        let _ = self.tree.remove_worker(worker);
    }

    fn count(&self, worker: WorkerId) -> u64 {
        self.tree.count(worker).unwrap_or(0)
    }

    /// The worker keeps that share of the tree.
    fn evict(&mut self, worker: WorkerId, (target, size): (u64, u64)) {
        let share = u128::from(self.count(worker)) * u128::from(target) / u128::from(size);
        // It is registered, so nothing refuses.
        let _ = self.tree.evict_worker(worker, share as u64);
    }

    fn memory_bytes(&self) -> usize {
        self.tree.memory_bytes() + self.waiting.memory_bytes()
    }
}

impl Kept<u32> {
    fn failed(&mut self, ticket: Ticket) {
        if let Some(gone) = self.waiting.failed(ticket) {
            let key = Within(gone.namespace, &*gone.path);
            let _ = self.tree.truncate(gone.worker, &key, gone.keep as u32);
        }
    }
}

impl Prompts {
    /// How much of the prompt every row's worker was sent, `None` for a request without a prompt.
    pub fn depths(&self, view: &View<'_>) -> Option<Depths> {
        let (rows, space) = (view.rows, view.identity);
        match (view.content, view.blocks) {
            (Content::Text(text), _) => {
                let text = readable(text);
                let key = Within(space, &*text);
                Some(self.text.depths(rows, &key, u8::count(text.as_bytes())))
            }
            (Content::Tokens(tokens), _) => {
                let key = Within(space, tokens);
                Some(self.tokens.depths(rows, &key, tokens.len()))
            }
            (Content::Hidden, Some(blocks)) => Some(self.blocks.depths(rows, blocks, blocks.len())),
            (Content::Hidden, None) => None,
        }
    }

    /// The row's worker is sent the prompt. `None` for a request without one.
    pub fn record(&mut self, view: &View<'_>, row: &Candidate) -> Option<Sent> {
        self.block_size = u64::from(view.block_size);
        let (space, worker) = (view.identity, self.register(row));
        Some(match (view.content, view.blocks) {
            (Content::Text(given), _) => {
                let key = Within(space, &*readable(given));
                Sent::Text(self.text.record(worker, &key))
            }
            (Content::Tokens(given), _) => {
                let key = Within(space, given);
                Sent::Tokens(self.tokens.record(worker, &key))
            }
            (Content::Hidden, Some(given)) => Sent::Blocks(self.blocks.record(worker, given)),
            (Content::Hidden, None) => return None,
        })
    }

    /// A request failed before it was answered: the parts that only it sent to its worker are taken back.
    pub fn failed(&mut self, sent: Sent) {
        // A worker that left was forgotten with all that it was sent.
        match sent {
            Sent::Text(ticket) => {
                if let Some(gone) = self.text.waiting.failed(ticket) {
                    let Orphaned { worker, path, .. } = &gone;
                    let keep = u8::floor(path, gone.keep, 1);
                    let keep = u8::count(&path[..keep]) as u32;
                    let path = readable(path);
                    let key = Within(gone.namespace, &*path);
                    let _ = self.text.tree.truncate(*worker, &key, keep);
                }
            }
            Sent::Tokens(ticket) => self.tokens.failed(ticket),
            Sent::Blocks(ticket) => self.blocks.failed(ticket),
        }
    }

    fn register(&mut self, row: &Candidate) -> WorkerId {
        let worker = WorkerId {
            slot: row.slot,
            generation: row.order as u32,
        };
        if self.workers.insert(row.order, worker) != Some(worker) {
            self.text.tree.add_worker(worker, u32::MAX);
            self.tokens.tree.add_worker(worker, u32::MAX);
            self.blocks.tree.add_worker(worker, u32::MAX);
        }
        worker
    }

    /// Characters that the row's worker was sent.
    pub fn size(&self, row: &Candidate) -> u64 {
        self.workers
            .get(&row.order)
            .map_or(0, |worker| self.size_of(*worker))
    }

    fn size_of(&self, worker: WorkerId) -> u64 {
        let blocks = self.blocks.count(worker) * self.block_size;
        self.text.count(worker) + CHARACTERS * (self.tokens.count(worker) + blocks)
    }

    /// Lets workers that were sent more than `threshold` characters forget, down to `target`.
    pub fn shrink(&mut self, threshold: u64, target: u64) {
        let large: Vec<WorkerId> = self
            .workers
            .values()
            .copied()
            .filter(|worker| self.size_of(*worker) > threshold)
            .collect();
        for worker in large {
            self.evict(worker, target);
        }
    }

    /// Lets the row's worker forget, down to `target` characters.
    pub fn shrink_one(&mut self, row: &Candidate, target: u64) {
        if let Some(worker) = self.workers.get(&row.order).copied() {
            self.evict(worker, target);
        }
    }

    /// Every tree keeps its share.
    fn evict(&mut self, worker: WorkerId, target: u64) {
        let share = (target, self.size_of(worker).max(1));
        self.text.evict(worker, share);
        self.tokens.evict(worker, share);
        self.blocks.evict(worker, share);
    }
}

impl State for Prompts {
    /// Forgets a worker.
    fn forget(&mut self, order: u64) {
        if let Some(worker) = self.workers.remove(&order) {
            self.text.forget(worker);
            self.tokens.forget(worker);
            self.blocks.forget(worker);
        }
    }

    fn memory_bytes(&self) -> usize {
        self.text.memory_bytes() + self.tokens.memory_bytes() + self.blocks.memory_bytes()
    }

    fn validate(&self) -> Result<()> {
        self.text.tree.validate()?;
        self.tokens.tree.validate()?;
        self.blocks.tree.validate()
    }

    fn cache_lost(&mut self, order: u64) {
        self.forget(order);
    }

    fn proven(&mut self, memory: &mut Memory, _first_token: Option<Millis>) {
        match *memory {
            Memory::Prompt(Sent::Text(ticket)) => self.text.waiting.proven(ticket),
            Memory::Prompt(Sent::Tokens(ticket)) => self.tokens.waiting.proven(ticket),
            Memory::Prompt(Sent::Blocks(ticket)) => self.blocks.waiting.proven(ticket),
            _ => {}
        }
    }

    fn ended(&mut self, memory: &mut Memory, ended: Ended) {
        match (ended, &memory) {
            (Ended::Failed, Memory::Prompt(sent)) => self.failed(*sent),
            _ => self.proven(memory, None),
        }
    }
}
