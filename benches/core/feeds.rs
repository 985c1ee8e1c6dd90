//! The events of 64 engines at once, from the bytes of their messages to a router's selector, to drain, on one core.
//!
//! As in a router: a budget of bytes, each worker's streams behind their locks, the selector locked for a slice at a time.
//! Payloads are those of vLLM 0.24: maps, one removal per evicted block before the store that took its place. `decode`
//! extends 16 prompts by a block per message, `prefill` a prompt by 64 blocks. Workers take turns message by message, so
//! that no worker's tables are in cache. The clock stops when a look-up sees the last block.

mod messages;
mod random;
mod routed;
mod rows;

use std::hint::black_box;
use std::io::Result;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use cachelb_core::hashing::{DEFAULT_SEED, Hasher, Namespace, Scheme, hash_blocks};
use cachelb_core::ids::{Medium, SequenceHash};
use cachelb_events::Holdings;

use messages::Writer;
use random::Random;
use routed::Routed;
use rows::{Row, wanted};

const WORKERS: usize = 64;
const BLOCK: usize = 16;
const VOCABULARY: u32 = 128_000;
/// Prompts of one worker that grow, and their length in blocks.
const CHAINS: usize = 16;
const CHAIN: usize = 256;
const BLOCKS: usize = WORKERS * CHAINS * CHAIN;
const ROUNDS: usize = 5;

fn main() -> Result<()> {
    for (what, prompts, blocks) in [("decode", 16, 1), ("prefill", 1, 64)] {
        let id = |how| format!("feeds/{what}/{WORKERS}w/{how}");
        if !["fill", "evicting"].into_iter().any(|how| wanted(&id(how))) {
            continue;
        }
        let mut random = Random(6);
        let old = Generation::new(&mut random);
        let new = Generation::new(&mut random);
        let first = old.messages(prompts, blocks, None);
        let fill = new.messages(prompts, blocks, None);
        let churn = new.messages(prompts, blocks, Some(&old));
        let (mut filled, mut churned) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            if wanted(&id("fill")) {
                filled.push(drain(&[], &fill, &new, BLOCKS as u64));
            }
            if wanted(&id("evicting")) {
                churned.push(drain(&first, &churn, &new, BLOCKS as u64));
            }
        }
        for (how, mut spent) in [("fill", filled), ("evicting", churned)] {
            if spent.is_empty() {
                continue;
            }
            spent.sort_unstable();
            let per_block = |spent: Duration| spent.as_nanos() as f64 / BLOCKS as f64;
            Row {
                id: id(how),
                unit: "ns/block",
                p50: per_block(spent[ROUNDS / 2]),
                p99: per_block(spent[ROUNDS - 1]),
                n: BLOCKS,
                note: format!(
                    "per block stored, median and worst of {ROUNDS} drains; {prompts} stores of {blocks} a message"
                ),
            }
            .emit()?;
        }
    }
    Ok(())
}

/// Tokens and names of all prompts of all workers.
struct Generation {
    /// By prompt, those of a worker beside each other.
    tokens: Vec<Vec<u32>>,
    names: Vec<Vec<u64>>,
    /// The last block of each.
    ends: Vec<SequenceHash>,
}

impl Generation {
    fn new(random: &mut Random) -> Self {
        let prompts = 0..WORKERS * CHAINS;
        let mut new = Self {
            tokens: Vec::new(),
            names: Vec::new(),
            ends: Vec::new(),
        };
        let mut hashes = Vec::new();
        for _ in prompts {
            let tokens: Vec<u32> = (0..CHAIN * BLOCK)
                .map(|_| random.below(VOCABULARY))
                .collect();
            let nobody = Namespace::new(None, None);
            hash_blocks(&tokens, BLOCK, &nobody, DEFAULT_SEED, &mut hashes);
            new.ends.push(hashes[CHAIN - 1]);
            new.tokens.push(tokens);
            new.names.push((0..CHAIN).map(|_| random.bits()).collect());
        }
        new
    }

    /// Messages in their order with their worker: each extends `prompts` prompts by `blocks` blocks. Every block takes the
    /// place of one of `old`, ends first, as an engine evicts.
    fn messages(&self, prompts: usize, blocks: usize, old: Option<&Self>) -> Vec<(usize, Vec<u8>)> {
        let mut messages = Vec::new();
        for step in (0..CHAIN).step_by(blocks) {
            for group in (0..CHAINS).step_by(prompts) {
                for worker in 0..WORKERS {
                    let group = worker * CHAINS + group..worker * CHAINS + group + prompts;
                    let mut out = Writer(vec![0x93, 0xcb]);
                    out.0.extend(1.5e9_f64.to_be_bytes());
                    let removals = old.map_or(0, |_| blocks);
                    out.list(prompts * (1 + removals));
                    for prompt in group {
                        if let Some(old) = old {
                            let names = old.names[prompt].iter().rev();
                            for name in names.skip(step).take(blocks) {
                                removal(&mut out, *name);
                            }
                        }
                        self.store(&mut out, prompt, step, blocks);
                    }
                    out.number(0);
                    messages.push((worker, out.0));
                }
            }
        }
        messages
    }

    fn store(&self, out: &mut Writer, prompt: usize, from: usize, blocks: usize) {
        out.0.push(0x8b);
        out.text("type");
        out.text("BlockStored");
        out.text("block_hashes");
        out.list(blocks);
        for name in &self.names[prompt][from..from + blocks] {
            out.name(*name);
        }
        out.text("parent_block_hash");
        match from.checked_sub(1) {
            Some(parent) => out.name(self.names[prompt][parent]),
            None => out.nil(),
        }
        out.text("token_ids");
        out.list(blocks * BLOCK);
        for token in &self.tokens[prompt][from * BLOCK..(from + blocks) * BLOCK] {
            out.number(*token);
        }
        out.text("block_size");
        out.number(BLOCK as u32);
        out.text("lora_id");
        out.nil();
        out.text("medium");
        out.text("GPU");
        out.text("lora_name");
        out.nil();
        out.text("extra_keys");
        out.list(blocks);
        for _ in 0..blocks {
            out.nil();
        }
        out.text("group_idx");
        out.number(0);
        out.text("kv_cache_spec_kind");
        out.text("full_attention");
    }
}

fn removal(out: &mut Writer, name: u64) {
    out.0.push(0x84);
    out.text("type");
    out.text("BlockRemoved");
    out.text("block_hashes");
    out.list(1);
    out.name(name);
    out.text("medium");
    out.text("GPU");
    out.text("group_idx");
    out.number(0);
}

/// How long it takes to apply `timed` where `first` was applied before.
fn drain(
    first: &[(usize, Vec<u8>)],
    timed: &[(usize, Vec<u8>)],
    held: &Generation,
    blocks: u64,
) -> Duration {
    let hasher =
        Hasher::new(Scheme::Chained, BLOCK, DEFAULT_SEED).expect("the block size is in range");
    let mut router = Routed::new(WORKERS, BLOCK, hasher);
    let mut take = |messages: &[(usize, Vec<u8>)]| {
        for (n, payload) in messages {
            router.take(*n, black_box(payload));
        }
    };
    take(first);
    let start = Instant::now();
    take(timed);
    let last = held.ends[WORKERS * CHAINS - 1];
    assert!(router.worker(WORKERS - 1).holds(last, Medium::Gpu));
    let spent = start.elapsed();

    for (prompt, end) in held.ends.iter().enumerate() {
        assert!(
            router.worker(prompt / CHAINS).holds(*end, Medium::Gpu),
            "prompt {prompt}"
        );
    }
    let selector = router
        .selector
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    assert_eq!(
        selector.pools().block_count(None),
        blocks,
        "all that went is gone"
    );
    selector.validate().expect("the selector is sound");
    spent
}
