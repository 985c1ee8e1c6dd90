//! The indexes of dynamo-kv-router: the tree that Python's `RadixTree` is, and two that a writer thread applies events to
//! while any thread reads.

use std::sync::Arc;
use std::thread::JoinHandle;

use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData,
    KvCacheStoreData, KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
    compute_block_hash_for_seq,
};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, PositionalIndexer, RadixTree};

use super::{BLOCK, Contender, Reader};

/// Blocks that the positional index skips at a time, as its documentation has it.
const JUMP: usize = 32;

fn hashes(tokens: &[u32]) -> Vec<LocalBlockHash> {
    compute_block_hash_for_seq(tokens, BLOCK as u32, BlockHashOptions::default())
}

fn stored(worker: u32, parent: Option<u64>, names: &[u64], tokens: &[u32]) -> RouterEvent {
    let blocks =
        names
            .iter()
            .zip(hashes(tokens))
            .map(|(name, tokens_hash)| KvCacheStoredBlockData {
                block_hash: ExternalSequenceBlockHash(*name),
                tokens_hash,
                mm_extra_info: None,
            });
    event(
        worker,
        KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: parent.map(ExternalSequenceBlockHash),
            start_position: None,
            blocks: blocks.collect(),
        }),
    )
}

fn removed(worker: u32, names: &[u64]) -> RouterEvent {
    let block_hashes = names
        .iter()
        .copied()
        .map(ExternalSequenceBlockHash)
        .collect();
    event(
        worker,
        KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }),
    )
}

fn event(worker: u32, data: KvCacheEventData) -> RouterEvent {
    RouterEvent::new(
        u64::from(worker),
        KvCacheEvent {
            event_id: 0,
            data,
            dp_rank: 0,
        },
    )
}

fn read(scores: &OverlapScores, out: &mut Vec<(u32, u32)>) {
    out.clear();
    out.extend(
        scores
            .scores
            .iter()
            .map(|(worker, blocks)| (worker.worker_id as u32, *blocks)),
    );
}

/// `RadixTree`, for one thread.
pub struct Radix {
    tree: RadixTree,
    prompts: Vec<Vec<LocalBlockHash>>,
}

impl Radix {
    pub fn new() -> Self {
        Self {
            tree: RadixTree::new(),
            prompts: Vec::new(),
        }
    }
}

impl Contender for Radix {
    fn name(&self) -> &'static str {
        "dynamo RadixTree"
    }

    fn note(&self) -> &'static str {
        "takes the hashes by value: a copy of them is timed"
    }

    fn hash(&mut self, tokens: &[u32]) -> usize {
        hashes(tokens).len()
    }

    fn prepare(&mut self, prompts: &[Vec<u32>]) {
        self.prompts = prompts.iter().map(|tokens| hashes(tokens)).collect();
    }

    fn ask(&mut self, nth: usize, out: &mut Vec<(u32, u32)>) {
        read(
            &self.tree.find_matches(self.prompts[nth].clone(), false),
            out,
        );
    }

    fn store(&mut self, worker: u32, parent: Option<u64>, names: &[u64], tokens: &[u32]) {
        // A refused event counts as handled: the lookups after it are compared.
        let _ = self.tree.apply_event(stored(worker, parent, names, tokens));
    }

    fn remove(&mut self, worker: u32, names: &[u64]) {
        let _ = self.tree.apply_event(removed(worker, names));
    }
}

/// An index with a writer thread of its own; events go through a queue.
pub struct Pooled<T: SyncIndexer> {
    name: &'static str,
    index: Arc<T>,
    tasks: Option<flume::Sender<WorkerTask>>,
    writer: Option<JoinHandle<()>>,
    prompts: Arc<Vec<Vec<LocalBlockHash>>>,
}

impl Pooled<ConcurrentRadixTreeCompressed> {
    pub fn crtc() -> Self {
        Self::new(
            "dynamo ConcurrentRadixTreeCompressed",
            ConcurrentRadixTreeCompressed::new(),
        )
    }
}

impl Pooled<PositionalIndexer> {
    pub fn positional() -> Self {
        Self::new("dynamo PositionalIndexer", PositionalIndexer::new(JUMP))
    }
}

impl<T: SyncIndexer> Pooled<T> {
    fn new(name: &'static str, index: T) -> Self {
        let index = Arc::new(index);
        let (tasks, queue) = flume::unbounded();
        let writing = Arc::clone(&index);
        let writer = std::thread::spawn(move || {
            writing
                .worker(queue, None)
                .expect("the writer ends with its queue");
        });
        Self {
            name,
            index,
            tasks: Some(tasks),
            writer: Some(writer),
            prompts: Arc::default(),
        }
    }

    fn say(&self, task: WorkerTask) {
        let tasks = self.tasks.as_ref().expect("it lives");
        tasks.send(task).expect("the writer lives");
    }
}

impl<T: SyncIndexer> Drop for Pooled<T> {
    fn drop(&mut self) {
        drop(self.tasks.take());
        if let Some(writer) = self.writer.take() {
            writer.join().expect("the writer does not panic");
        }
    }
}

impl<T: SyncIndexer> Contender for Pooled<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn note(&self) -> &'static str {
        "one writer thread beside the caller"
    }

    fn hash(&mut self, tokens: &[u32]) -> usize {
        hashes(tokens).len()
    }

    fn prepare(&mut self, prompts: &[Vec<u32>]) {
        self.prompts = Arc::new(prompts.iter().map(|tokens| hashes(tokens)).collect());
    }

    fn ask(&mut self, nth: usize, out: &mut Vec<(u32, u32)>) {
        read(&self.index.find_matches(&self.prompts[nth], false), out);
    }

    fn store(&mut self, worker: u32, parent: Option<u64>, names: &[u64], tokens: &[u32]) {
        self.say(WorkerTask::Event(stored(worker, parent, names, tokens)));
    }

    fn remove(&mut self, worker: u32, names: &[u64]) {
        self.say(WorkerTask::Event(removed(worker, names)));
    }

    fn flush(&mut self) {
        let (resp, done) = tokio::sync::oneshot::channel();
        // Removing nothing: answered once everything before it was applied.
        self.say(WorkerTask::EventWithAck {
            event: removed(0, &[]),
            resp,
        });
        done.blocking_recv().expect("the writer answers");
    }

    fn reader(&self) -> Option<Reader> {
        let (index, prompts) = (Arc::clone(&self.index), Arc::clone(&self.prompts));
        Some(Box::new(move || {
            Box::new(move |nth| index.find_matches(&prompts[nth], false).scores.len())
        }))
    }
}
