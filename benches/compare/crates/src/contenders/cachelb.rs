//! `BlockIndex` behind the lock that `BlockTracker` has, and an `Ingest` per worker, which knows its engine's names.

use std::sync::Arc;

use cachelb_core::hashing::{DEFAULT_SEED, Hasher, Namespace, Scheme};
use cachelb_core::ids::{Millis, SequenceHash, WorkerId};
use cachelb_core::index::{BlockIndex, Matcher, Overlaps};
use cachelb_events::{Batch, Event, Ingest, IngestSettings, Name, Remove, Span, Store};
use crossbeam_utils::sync::ShardedLock;

use super::{BLOCK, Contender, Reader, SOUND, alone};
use crate::indexed::Indexed;

pub struct Cachelb {
    hasher: Hasher,
    index: Arc<ShardedLock<BlockIndex>>,
    ingests: Vec<Ingest>,
    batch: Batch,
    hashes: Vec<SequenceHash>,
    prompts: Arc<Vec<Vec<SequenceHash>>>,
    answer: Overlaps,
}

impl Cachelb {
    pub fn new(workers: u32) -> Self {
        let hasher = Hasher::new(Scheme::Chained, BLOCK, DEFAULT_SEED).expect("16 is a block size");
        let mut index = BlockIndex::new(Matcher::Kary);
        for slot in 0..workers {
            index.add_worker(worker(slot), u32::MAX);
        }
        Self {
            hasher,
            index: Arc::new(ShardedLock::new(index)),
            ingests: (0..workers)
                .map(|_| Ingest::new(IngestSettings::new(hasher)))
                .collect(),
            batch: Batch::default(),
            hashes: Vec::new(),
            prompts: Arc::default(),
            answer: Overlaps::default(),
        }
    }

    fn apply(&mut self, slot: u32) {
        let mut held = Indexed(alone(&mut self.index), worker(slot));
        self.ingests[slot as usize].apply(&self.batch, Millis(0), &mut held);
    }
}

fn worker(slot: u32) -> WorkerId {
    WorkerId {
        slot,
        generation: 0,
    }
}

fn whole(len: usize) -> Span {
    Span {
        start: 0,
        len: len as u32,
    }
}

impl Contender for Cachelb {
    fn name(&self) -> &'static str {
        "cachelb"
    }

    fn hash(&mut self, tokens: &[u32]) -> usize {
        self.hasher
            .hash(tokens, Namespace::default(), &[], &mut self.hashes);
        self.hashes.len()
    }

    fn prepare(&mut self, prompts: &[Vec<u32>]) {
        let hashed = prompts.iter().map(|tokens| {
            self.hasher
                .hash(tokens, Namespace::default(), &[], &mut self.hashes);
            self.hashes.clone()
        });
        self.prompts = Arc::new(hashed.collect());
    }

    fn ask(&mut self, nth: usize, out: &mut Vec<(u32, u32)>) {
        let index = self.index.read().expect(SOUND);
        index.overlaps(&self.prompts[nth], &mut self.answer);
        out.clear();
        out.extend(self.answer.iter());
    }

    fn store(&mut self, slot: u32, parent: Option<u64>, names: &[u64], tokens: &[u32]) {
        self.batch.clear();
        self.batch
            .names
            .extend(names.iter().copied().map(Name::Int));
        self.batch.tokens.extend_from_slice(tokens);
        self.batch.events.push(Event::Store(Store {
            names: whole(names.len()),
            parent: parent.map(Name::Int),
            tokens: whole(tokens.len()),
            block_size: BLOCK as u32,
            ..Store::default()
        }));
        self.apply(slot);
    }

    fn remove(&mut self, slot: u32, names: &[u64]) {
        self.batch.clear();
        self.batch
            .names
            .extend(names.iter().copied().map(Name::Int));
        self.batch.events.push(Event::Remove(Remove {
            names: whole(names.len()),
            ..Remove::default()
        }));
        self.apply(slot);
    }

    fn reader(&self) -> Option<Reader> {
        let (index, prompts) = (Arc::clone(&self.index), Arc::clone(&self.prompts));
        Some(Box::new(move || {
            let mut answer = Overlaps::default();
            Box::new(move |nth| {
                index
                    .read()
                    .expect(SOUND)
                    .overlaps(&prompts[nth], &mut answer);
                answer.iter().count()
            })
        }))
    }
}
