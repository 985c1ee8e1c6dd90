//! Any batch at all: nothing panics, memory stays bounded, and the ingester stays sound.

use cachelb_core::hashing::{Hasher, Scheme};
use cachelb_core::ids::{Medium, Millis};
use cachelb_core::rng::Rng;
use cachelb_events::{
    Attention, Batch, Event, Extra, Ingest, IngestSettings, Name, Place, Remove, Span, Store,
};

use super::events_model::sets::Sets;

const EVENTS: u64 = 60_000;

fn pick<T: Copy>(random: &mut Rng, from: &[T]) -> T {
    from[random.below(from.len())]
}

fn place(random: &mut Rng) -> Place {
    let gpu = Place::In(Medium::Gpu);
    let all = [
        gpu,
        gpu,
        Place::In(Medium::Cpu),
        Place::Unsaid,
        Place::Unknown,
        Place::Shared,
    ];
    pick(random, &all)
}

/// Few names, so that they meet, of both kinds.
fn names(random: &mut Rng, batch: &mut Batch, most: usize) -> Span {
    let start = batch.names.len() as u32;
    let len = random.below(most + 1) as u32;
    for _ in 0..len {
        let name = random.below(40) as u64;
        let wide = random.below(4) == 0;
        batch.names.push(if wide {
            Name::Wide(name.into())
        } else {
            Name::Int(name)
        });
    }
    Span { start, len }
}

fn store(random: &mut Rng, batch: &mut Batch, sizes: &[u32]) -> Store {
    let names = names(random, batch, 6);
    let block_size = pick(random, sizes);
    let start = batch.tokens.len() as u32;
    let wrong = u32::from(random.below(20) == 0);
    let len = if random.below(12) == 0 {
        0
    } else {
        names.len * block_size + wrong
    };
    batch
        .tokens
        .extend((0..len).map(|_| random.below(2) as u32));
    let first = batch.extras.len() as u32;
    if random.below(6) == 0 {
        let block = pick(random, &[0, 1, 5, u32::MAX]);
        batch.extras.push(Extra { block, hash: 9 });
    }
    batch.text.push('s');
    let text = Span {
        start: batch.text.len() as u32 - 1,
        len: 1,
    };
    let parents = [
        None,
        Some(Name::Int(random.below(40) as u64)),
        batch.names.last().copied(),
    ];
    Store {
        names,
        parent: pick(random, &parents),
        tokens: Span { start, len },
        block_size,
        place: place(random),
        group: pick(random, &[None, Some(0), Some(0), Some(1), Some(2)]),
        attention: pick(
            random,
            &[
                Attention::Unsaid,
                Attention::Full,
                Attention::Full,
                Attention::Sliding,
                Attention::Mamba,
                Attention::Chunked,
                Attention::Aside,
                Attention::Other(text),
            ],
        ),
        window: pick(random, &[None, Some(0), Some(9), Some(9), Some(u32::MAX)]),
        lora: Some(text).filter(|_| random.below(8) == 0),
        salt: Some(text).filter(|_| random.below(8) == 0),
        extras: Span {
            start: first,
            len: batch.extras.len() as u32 - first,
        },
    }
}

fn fuzz(seed: u64, sizes: &[u32], exact_copies: bool) {
    let mut random = Rng::new(seed);
    let hasher = Hasher::new(Scheme::Chained, 4, 7).expect("the block size is in range");
    let mut ingest = Ingest::new(IngestSettings {
        reports: !exact_copies,
        orphan_blocks: 50,
        orphan_ttl_ms: 30,
        max_blocks: 120,
        ..IngestSettings::new(hasher)
    });
    let (mut sets, mut batch) = (Sets::default(), Batch::default());
    let (mut said, mut now) = (0, 0);
    while said < EVENTS {
        batch.clear();
        for _ in 0..random.below(5) {
            let event = match random.below(100) {
                0..60 => Event::Store(store(&mut random, &mut batch, sizes)),
                60..99 => Event::Remove(Remove {
                    names: names(&mut random, &mut batch, 3),
                    place: place(&mut random),
                    group: pick(&mut random, &[None, Some(0), Some(0), Some(1), Some(2)]),
                }),
                _ => Event::Clear,
            };
            batch.events.push(event);
            said += 1;
        }
        if random.below(50) == 0 {
            // No decoder makes this, and it is no reason to stop either.
            batch.tokens.truncate(random.below(8));
        }
        now += random.below(10) as u64;
        ingest.apply(&batch, Millis(now), &mut sets);
        assert!(sets.held.len() <= 120, "{} blocks held", sets.held.len());
        assert!(ingest.memory_bytes() < 1 << 20);
        let sound = ingest.validate(&sets);
        assert!(
            sound.is_ok(),
            "{sound:?} after {said} events of seed {seed}, sizes {sizes:?}"
        );
    }
}

#[test]
fn blocks_of_one_size() {
    fuzz(1, &[4], false);
    fuzz(2, &[4], true);
}

#[test]
fn large_blocks_and_those_of_other_sizes() {
    fuzz(3, &[8, 8, 4, 12], false);
    fuzz(4, &[8, 3, 0], true);
}

#[test]
fn pages_and_blocks_of_other_sizes() {
    fuzz(5, &[1, 2, 4], false);
    fuzz(6, &[2, 2, 8, 5], true);
}
