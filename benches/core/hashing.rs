//! Hashing 32,768 tokens at several block sizes, with the tokens in cache and out of it.

mod random;
mod rows;
mod timing;

use std::hint::black_box;
use std::io::Result;

use cachelb_core::hashing::{DEFAULT_SEED, Namespace, hash_blocks};
use random::Random;
use rows::Row;
use timing::{Samples, clock_cost};

const TOKENS: usize = 32_768;

/// 512 prompts of 128 KiB: 64 MiB, beyond any last-level cache share.
const PROMPTS: usize = 512;
const CALLS: usize = 4_000;

fn main() -> Result<()> {
    let mut random = Random(1);
    let prompts: Vec<Vec<u32>> = (0..PROMPTS)
        .map(|_| (0..TOKENS).map(|_| random.below(128_000)).collect())
        .collect();
    let clock = clock_cost();
    let namespace = Namespace::new(None, None);
    let mut hashes = Vec::new();
    for block_size in [16, 32, 64, 128] {
        for warm in [true, false] {
            let mut samples = Samples::default();
            for _ in 0..CALLS {
                let pick = if warm {
                    0
                } else {
                    random.below(PROMPTS as u32)
                };
                let tokens = &prompts[pick as usize];
                samples.time(|| {
                    hash_blocks(tokens, block_size, &namespace, DEFAULT_SEED, &mut hashes);
                    black_box(&hashes);
                });
            }
            let (p50, p99) = samples.percentiles();
            Row {
                id: format!(
                    "hash/{TOKENS}tok/B{block_size}/{}",
                    if warm { "warm" } else { "cold" }
                ),
                unit: "us",
                p50: p50 / 1e3,
                p99: p99 / 1e3,
                n: samples.len(),
                note: format!("clock {clock:.0} ns included"),
            }
            .emit()?;
        }
    }
    Ok(())
}
