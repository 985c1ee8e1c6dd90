//! Engines with several cache groups: where a prompt can resume follows from the held and marked blocks.
//!
//! `CACHELB_GROUP_OPERATIONS` sets how many operations an engine does; run a long one with `cargo test --release`.

#[path = "groups_model/engine.rs"]
mod engine;

use std::collections::BTreeSet;

use cachelb_core::hashing::{Hasher, Namespace, Scheme};
use cachelb_core::ids::{Medium, Millis};
use cachelb_core::rng::Rng;
use cachelb_events::{Attention, DropReason, Event, Ingest, IngestSettings};

use super::events_model::sets::Sets;
use engine::{Engine, Group, Shape};

/// Tokens per own block.
const OWN: usize = 4;

fn operations() -> u64 {
    std::env::var("CACHELB_GROUP_OPERATIONS").map_or(3_000, |text| text.parse().expect("a number"))
}

/// Where a prompt resumes by the holdings, as far as that is sure.
fn resumes(sets: &Sets, hasher: &Hasher, prompt: &[u32]) -> usize {
    let mut blocks = Vec::new();
    hasher.hash(prompt, Namespace::default(), &[], &mut blocks);
    let is_held = |hash: &&_| {
        Medium::ANNOUNCED
            .iter()
            .any(|m| sets.held.contains(&(**hash, *m)))
    };
    let held = blocks.iter().take_while(is_held).count() * OWN;
    let (marked_only, above) = (sets.resumes.0, (sets.resumes.1 as usize).div_ceil(OWN));
    let most = (held / OWN)
        .saturating_sub(above)
        .min((prompt.len() - 1) / OWN);
    let is_marked = |depth: &usize| {
        let mark = sets.marks.get(&blocks[depth + above - 1]);
        !marked_only || mark.is_some_and(|medium| *medium != Medium::Speculative)
    };
    (1..=most).rev().find(is_marked).unwrap_or(0) * OWN
}

struct Outcome {
    checks: u64,
    hits: u64,
    missed: u64,
}

/// Follows an engine; `one_in` messages is lost, none with 0.
fn follow(shape: Shape, one_in: usize) -> Outcome {
    let hasher = Hasher::new(Scheme::Chained, OWN, 7).expect("the block size is in range");
    let mut ingest = Ingest::new(IngestSettings {
        reports: false,
        eagle: shape.eagle,
        ..IngestSettings::new(hasher)
    });
    let (mut sets, mut luck) = (Sets::default(), Rng::new(shape.seed ^ 1));
    let mut engine = Engine::new(shape);
    let (mut done, mut lossy) = (0, false);
    let mut outcome = Outcome {
        checks: 0,
        hits: 0,
        missed: 0,
    };
    let mut message = 0;
    let mut groups = BTreeSet::new();
    while done < operations() {
        message += 1;
        done += engine.step(150);
        if one_in > 0 && luck.below(one_in) == 0 {
            ingest.lost(&mut sets);
            lossy = true;
            continue;
        }
        ingest.apply(&engine.batch, Millis(message), &mut sets);
        lossy &= !engine.batch.events.contains(&Event::Clear);
        let stores = engine.batch.events.iter().filter_map(|event| match event {
            Event::Store(store) if store.tokens.len > 0 => store.group,
            _ => None,
        });
        groups.extend(stores);
        if groups.len() < engine.shape.groups.len() {
            // A group that filled no block yet is not known.
            continue;
        }
        for _ in 0..3 {
            let prompt = engine.prompt();
            let truth = engine.hit(&prompt, OWN);
            let found = resumes(&sets, &hasher, &prompt);
            // Tokens above the point count in whole blocks: own ones, and those of the group with the largest.
            let is_rounded =
                engine.shape.eagle && engine.largest_above().max(OWN) > engine.full_size();
            let is_right = if lossy || is_rounded {
                found <= truth
            } else {
                found == truth
            };
            assert!(
                is_right,
                "{found}, not {truth}, of {} after message {message} of {:?}",
                prompt.len(),
                engine.shape
            );
            outcome.checks += 1;
            outcome.hits += u64::from(truth > 0);
            outcome.missed += u64::from(found < truth);
        }
        if message % 16 == 0 {
            ingest.validate(&sets).expect("the ingester is sound");
        }
    }
    let stats = &ingest.stats;
    if one_in == 0 {
        let unresolved = (
            stats.side_parked,
            stats.side_unresolved,
            stats.unknown_removals,
        );
        assert_eq!(unresolved, (0, 0, 0), "{stats:?}");
        for reason in DropReason::ALL {
            assert_eq!(stats.dropped(reason), 0, "{reason:?} of {:?}", engine.shape);
        }
    }
    outcome
}

fn shape(seed: u64, eagle: bool) -> Shape {
    let mut random = Rng::new(seed);
    let full = [OWN, OWN, 2 * OWN, OWN / 2][random.below(4)];
    let mut groups = vec![];
    for _ in 0..=random.below(3) {
        let kinds = [
            Attention::Sliding,
            Attention::Sliding,
            Attention::Mamba,
            Attention::Chunked,
        ];
        groups.push(Group {
            attention: kinds[random.below(4)],
            window: random.below(40) + 1,
            size: full * [1, 1, 1, 2, 3][random.below(5)],
        });
    }
    let whole = Group {
        attention: Attention::Full,
        window: 0,
        size: full,
    };
    groups.insert(random.below(groups.len() + 1), whole);
    Shape {
        seed,
        groups,
        interval: random.below(4),
        // Placeholders of pages are not taken.
        offloads: full >= OWN && random.below(2) == 0,
        eagle,
        wide_names: random.below(4) == 0,
    }
}

fn all(seeds: std::ops::Range<u64>, eagle: bool, one_in: usize) -> Outcome {
    let mut sum = Outcome {
        checks: 0,
        hits: 0,
        missed: 0,
    };
    for seed in seeds {
        let outcome = follow(shape(seed, eagle), one_in);
        sum.checks += outcome.checks;
        sum.hits += outcome.hits;
        sum.missed += outcome.missed;
    }
    let Outcome { checks, hits, .. } = sum;
    assert!(hits * 8 > checks, "{hits} of {checks} prompts hit");
    sum
}

#[test]
fn prompts_resume_where_all_groups_can() {
    assert_eq!(all(0..40, false, 0).missed, 0);
}

#[test]
fn a_lost_message_leaves_no_wrong_mark() {
    let outcome = all(100..120, false, 40);
    assert!(outcome.missed < outcome.hits, "something is found again");
}

#[test]
fn drafts_need_the_block_above() {
    let outcome = all(200..230, true, 0);
    assert!(
        outcome.missed * 4 < outcome.hits,
        "the larger part is exact"
    );
}
