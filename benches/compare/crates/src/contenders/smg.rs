//! smg-radix-tree: for one writer; behind a lock here, so that threads can be compared.

use std::sync::Arc;

use crossbeam_utils::sync::ShardedLock;
use kv_index::compute_request_content_hashes;
use radix_tree::{Config, HolderId, Overlap, OverlapScratch, RadixTree};

use super::{BLOCK, Contender, Reader, SOUND, alone};

pub struct Smg {
    tree: Arc<ShardedLock<RadixTree>>,
    holders: Vec<HolderId>,
    prompts: Arc<Vec<Vec<u64>>>,
    scratch: OverlapScratch,
    found: Vec<Overlap>,
    blocks: Vec<(u64, u64)>,
}

impl Smg {
    pub fn new(workers: u32) -> Self {
        let mut tree = RadixTree::new(Config::default());
        let holders = (0..workers)
            .map(|worker| tree.create_holder(&worker.to_string()))
            .collect();
        Self {
            tree: Arc::new(ShardedLock::new(tree)),
            holders,
            prompts: Arc::default(),
            scratch: OverlapScratch::default(),
            found: Vec::new(),
            blocks: Vec::new(),
        }
    }
}

fn hashes(tokens: &[u32]) -> Vec<u64> {
    compute_request_content_hashes(tokens, BLOCK)
        .into_iter()
        .map(|hash| hash.0)
        .collect()
}

impl Contender for Smg {
    fn name(&self) -> &'static str {
        "smg-radix-tree"
    }

    fn note(&self) -> &'static str {
        "has no hash: kv-index's; behind a lock of shards"
    }

    fn hash(&mut self, tokens: &[u32]) -> usize {
        hashes(tokens).len()
    }

    fn prepare(&mut self, prompts: &[Vec<u32>]) {
        self.prompts = Arc::new(prompts.iter().map(|tokens| hashes(tokens)).collect());
    }

    fn ask(&mut self, nth: usize, out: &mut Vec<(u32, u32)>) {
        let tree = self.tree.read().expect(SOUND);
        tree.overlap(&self.prompts[nth], &mut self.scratch, &mut self.found);
        out.clear();
        // Holders are never retired here, so that their indices are the workers' numbers.
        out.extend(
            self.found
                .iter()
                .map(|found| (found.holder.parts().0, found.depth)),
        );
    }

    fn store(&mut self, worker: u32, parent: Option<u64>, names: &[u64], tokens: &[u32]) {
        self.blocks.clear();
        self.blocks
            .extend(names.iter().copied().zip(hashes(tokens)));
        // A refused event counts as handled: the lookups after it are compared.
        let _ = alone(&mut self.tree).store(self.holders[worker as usize], parent, &self.blocks);
    }

    fn remove(&mut self, worker: u32, names: &[u64]) {
        alone(&mut self.tree).remove(self.holders[worker as usize], names);
    }

    fn reader(&self) -> Option<Reader> {
        let (tree, prompts) = (Arc::clone(&self.tree), Arc::clone(&self.prompts));
        Some(Box::new(move || {
            let (mut scratch, mut found) = (OverlapScratch::default(), Vec::new());
            Box::new(move |nth| {
                tree.read()
                    .expect(SOUND)
                    .overlap(&prompts[nth], &mut scratch, &mut found);
                found.len()
            })
        }))
    }
}
