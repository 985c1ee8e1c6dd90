//! `ChainIndex` of kv-index: lookups without a lock; the names of a worker's blocks are the caller's.

use std::sync::Arc;

use kv_index::{
    ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock,
    compute_request_content_hashes,
};

use super::{BLOCK, Contender, Reader};

pub struct Chains {
    index: Arc<ChainIndex>,
    ids: Vec<u32>,
    maps: Vec<ChainBlockMap>,
    prompts: Arc<Vec<Vec<ContentHash>>>,
}

impl Chains {
    pub fn new(workers: u32) -> Self {
        let index = ChainIndex::with_max_workers(workers as usize);
        let ids = (0..workers).map(|worker| index.intern_worker(&worker.to_string()));
        let ids: Vec<u32> = ids.map(|id| id.expect("there is room")).collect();
        assert!(
            ids.iter().copied().eq(0..workers),
            "ids are the workers' numbers"
        );
        Self {
            index: Arc::new(index),
            ids,
            maps: (0..workers).map(|_| ChainBlockMap::default()).collect(),
            prompts: Arc::default(),
        }
    }
}

impl Contender for Chains {
    fn name(&self) -> &'static str {
        "kv-index ChainIndex"
    }

    fn hash(&mut self, tokens: &[u32]) -> usize {
        compute_request_content_hashes(tokens, BLOCK).len()
    }

    fn prepare(&mut self, prompts: &[Vec<u32>]) {
        let hashed = prompts
            .iter()
            .map(|tokens| compute_request_content_hashes(tokens, BLOCK));
        self.prompts = Arc::new(hashed.collect());
    }

    fn ask(&mut self, nth: usize, out: &mut Vec<(u32, u32)>) {
        out.clear();
        let report = |worker, blocks| out.push((worker, blocks));
        self.index
            .score_into(&self.prompts[nth], |hash| hash.0, false, report);
    }

    fn store(&mut self, worker: u32, parent: Option<u64>, names: &[u64], tokens: &[u32]) {
        let contents = compute_request_content_hashes(tokens, BLOCK);
        let blocks = names
            .iter()
            .zip(contents)
            .map(|(name, content_hash)| StoredBlock {
                seq_hash: SequenceHash(*name),
                content_hash,
            });
        let blocks: Vec<StoredBlock> = blocks.collect();
        let (id, map) = (self.ids[worker as usize], &mut self.maps[worker as usize]);
        // A refused event counts as handled: the lookups after it are compared.
        let _ = self
            .index
            .apply_stored(id, &blocks, parent.map(SequenceHash), map);
    }

    fn remove(&mut self, worker: u32, names: &[u64]) {
        let names: Vec<SequenceHash> = names.iter().copied().map(SequenceHash).collect();
        let (id, map) = (self.ids[worker as usize], &mut self.maps[worker as usize]);
        self.index.apply_removed(id, &names, map);
    }

    fn reader(&self) -> Option<Reader> {
        let (index, prompts) = (Arc::clone(&self.index), Arc::clone(&self.prompts));
        Some(Box::new(move || {
            Box::new(move |nth| {
                let mut workers = 0;
                index.score_into(&prompts[nth], |hash| hash.0, false, |_, _| workers += 1);
                workers
            })
        }))
    }
}
