//! Cache groups beside those that attend to the whole prefix. Blocks have 32 tokens, as own ones, unless a test states
//! otherwise.

use super::*;
use crate::GroupStats;

const FULL: Attention = Attention::Full;
const SLIDING: Attention = Attention::Sliding;

/// Prompts of an engine whose side group, number 0, is as given; full attention is group 1.
struct Hybrid {
    bench: Bench,
    kind: Attention,
    window: Option<u32>,
    size: usize,
}

/// `n` tokens: those of the prompt all share, and others from `parts` on.
fn prompt(n: u32, parts: u32) -> Vec<u32> {
    (0..n)
        .map(|at| at + u32::from(at >= parts) * 5_000)
        .collect()
}

/// Names of blocks by their number, which is that of their last 32 tokens.
fn named(blocks: &[u64], size: usize) -> Vec<u64> {
    blocks
        .iter()
        .map(|block| block * size as u64 / 32)
        .collect()
}

impl Hybrid {
    fn new(kind: Attention, window: Option<u32>, size: usize) -> Self {
        Self {
            bench: Bench::with(32, |settings| settings.reports = false),
            kind,
            window,
            size,
        }
    }

    fn sliding() -> Self {
        Self::new(SLIDING, Some(128), 32)
    }

    /// A side store: some blocks of a span of tokens.
    fn aside<'a>(&self, names: &'a [u64], tokens: &'a [u32]) -> Blocks<'a> {
        Blocks {
            names,
            tokens,
            size: self.size as u32,
            place: Place::In(Medium::Gpu),
            group: Some(0),
            attention: self.kind,
            window: self.window,
            ..Blocks::default()
        }
    }

    /// The side group holds those of its blocks.
    fn side(&mut self, blocks: &[u64]) {
        let names = named(blocks, self.size);
        let tokens = prompt(512, 512);
        let store = self.aside(&names, &tokens);
        self.bench.hear(Says::default().store(store));
    }

    /// Full attention holds so many blocks of the prompt all share.
    fn full(&mut self, blocks: u64) {
        let names: Vec<u64> = (1..=blocks).collect();
        let tokens = prompt(blocks as u32 * 32, u32::MAX);
        self.bench
            .hear(Says::default().store(full(&names, None, &tokens)));
    }

    fn gone(&mut self, block: u64, group: u32) {
        let says = Says::default().removed_at(&[block], Place::In(Medium::Gpu), Some(group));
        self.bench.hear(says);
    }

    /// Where a prompt resumes, and the tokens full attention holds.
    fn resumes(&self, prompt: &[u32]) -> (usize, usize) {
        let held = self.bench.depth(prompt);
        let mut blocks = Vec::new();
        let hasher = self.bench.ingest.settings.hasher;
        hasher.hash(prompt, Namespace::default(), &[], &mut blocks);
        let to = &self.bench.to;
        let (marked_only, above) = (to.resumes.0, to.resumes.1 as usize / 32);
        let most = held.saturating_sub(above).min((prompt.len() - 1) / 32);
        let is_point =
            |depth: &usize| !marked_only || to.marks.contains_key(&blocks[depth + above - 1]);
        let deepest = (1..=most).rev().find(is_point).unwrap_or(0);
        (deepest * 32, held * 32)
    }

    fn at(&self, n: u32) -> usize {
        self.resumes(&prompt(n, u32::MAX)).0
    }
}

fn full<'a>(names: &'a [u64], parent: Option<u64>, tokens: &'a [u32]) -> Blocks<'a> {
    Blocks {
        names,
        parent,
        tokens,
        size: 32,
        place: Place::In(Medium::Gpu),
        group: Some(1),
        attention: FULL,
        ..Blocks::default()
    }
}

#[test]
fn a_tail_is_resumed_at_its_end() {
    let mut engine = Hybrid::sliding();
    engine.full(9);
    engine.side(&[6, 7, 8, 9]);
    assert_eq!(engine.resumes(&prompt(300, u32::MAX)), (288, 288));
    assert_eq!(
        engine.resumes(&prompt(300, 200)),
        (0, 192),
        "parts before the tail"
    );
}

#[test]
fn tails_that_join_are_resumed_between_their_ends() {
    let mut engine = Hybrid::sliding();
    engine.full(9);
    engine.side(&[3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(engine.resumes(&prompt(320, 260)), (256, 256));
}

#[test]
fn a_tail_with_a_hole_is_not_resumed() {
    let mut engine = Hybrid::sliding();
    engine.full(9);
    engine.side(&[5, 6, 8, 9]);
    assert_eq!(engine.at(300), 0);
    engine.side(&[7]);
    assert_eq!(engine.at(300), 288);
    engine.gone(7, 0);
    assert_eq!(engine.at(300), 0);
}

#[test]
fn near_the_root_less_than_a_window_is_needed() {
    let mut engine = Hybrid::sliding();
    engine.full(2);
    engine.side(&[1]);
    assert_eq!(engine.at(64), 32);
}

#[test]
fn full_attention_may_leave_and_return_while_the_tail_stays() {
    let mut engine = Hybrid::sliding();
    engine.full(9);
    engine.side(&[6, 7, 8, 9]);
    engine.gone(6, 1);
    engine.gone(9, 1);
    assert_eq!(engine.resumes(&prompt(300, u32::MAX)), (0, 160));
    let tokens = prompt(288, u32::MAX);
    for block in [6, 9] {
        let own = &tokens[(block - 1) * 32..block * 32];
        let names = [block as u64];
        let store = full(&names, Some(block as u64 - 1), own);
        engine.bench.hear(Says::default().store(store));
    }
    assert_eq!(engine.at(300), 288);
}

#[test]
fn hits_are_multiples_of_the_largest_block() {
    let mut engine = Hybrid::new(SLIDING, Some(128), 64);
    engine.full(9);
    engine.side(&[3, 4]);
    assert_eq!(engine.at(300), 256);
}

#[test]
fn a_state_is_resumed_where_it_is() {
    let mut engine = Hybrid::new(Attention::Mamba, None, 64);
    engine.full(16);
    engine.side(&[4, 8]);
    assert_eq!((engine.at(520), engine.at(512)), (512, 256));
}

#[test]
fn a_chunk_is_needed_from_its_begin() {
    let mut engine = Hybrid::new(Attention::Chunked, Some(128), 32);
    engine.full(9);
    engine.side(&[5, 6]);
    for (n, hit) in [(190, 160), (200, 192), (129, 128), (160, 128), (300, 256)] {
        assert_eq!(engine.at(n), hit, "{n}");
    }
    // The size of the chunks is not stated.
    let mut engine = Hybrid::new(Attention::Chunked, None, 32);
    engine.full(9);
    engine.side(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(engine.at(300), 0);
}

#[test]
fn a_side_store_may_come_before_the_store_that_names_its_blocks() {
    for is_one_message in [true, false] {
        let mut engine = Hybrid::sliding();
        let tokens = prompt(288, u32::MAX);
        let names: Vec<u64> = (1..=9).collect();
        let side = engine.aside(&[6, 7, 8, 9], &tokens);
        let full = full(&names, None, &tokens);
        if is_one_message {
            engine.bench.hear(Says::default().store(side).store(full));
        } else {
            engine.bench.hear(Says::default().store(side));
            engine.bench.hear(Says::default().store(full));
        }
        assert_eq!(engine.at(300), 288);
        let stats = engine.bench.stats();
        let waited = if is_one_message { 0 } else { 4 };
        assert_eq!((stats.side_parked, stats.side_unresolved), (waited, 0));
    }
}

#[test]
fn a_store_that_names_no_block_teaches_its_group() {
    let mut engine = Hybrid::sliding();
    let tokens = prompt(32, u32::MAX);
    engine
        .bench
        .hear(Says::default().store(engine.aside(&[], &tokens)));
    assert_eq!(
        (engine.bench.to.resumes, engine.bench.held()),
        ((true, 0), 0)
    );
    assert_eq!(
        engine.bench.ingest.groups(),
        [GroupStats {
            id: Some(0),
            kind: "sliding_window".to_owned(),
            window: Some(128),
            block_size: 32,
            blocks: 0,
        }]
    );
    engine.full(9);
    assert_eq!(engine.resumes(&prompt(300, u32::MAX)), (0, 288));
}

#[test]
fn blocks_whose_names_never_come_are_given_up() {
    let mut engine = Hybrid::sliding();
    engine.side(&[1, 2, 3]);
    engine.gone(2, 0);
    engine.bench.now = Millis(30_000);
    engine.full(1);
    let stats = engine.bench.stats();
    assert_eq!((stats.side_parked, stats.side_unresolved), (3, 2));
    assert_eq!(stats.unknown_removals, 0);
}

#[test]
fn groups_that_are_known_late_are_resumed_too() {
    let mut engine = Hybrid::sliding();
    engine.full(9);
    assert_eq!(engine.at(300), 288, "an engine like any other");
    engine.side(&[]);
    assert_eq!(engine.at(300), 0);
    engine.side(&[2, 3, 4, 5]);
    assert_eq!(engine.at(300), 160);
}

#[test]
fn what_contradicts_its_group_is_refused_whole() {
    let mut engine = Hybrid::sliding();
    engine.full(9);
    engine.side(&[6, 7, 8, 9]);
    let tokens = prompt(512, 512);
    let good = engine.aside(&[1], &tokens);
    let bad = [
        Blocks { size: 64, ..good },
        Blocks {
            window: Some(64),
            ..good
        },
        Blocks {
            attention: Attention::Mamba,
            ..good
        },
        Blocks {
            attention: FULL,
            ..good
        },
        Blocks {
            attention: Attention::Mamba,
            ..full(&[9], Some(8), &tokens[..32])
        },
    ];
    for store in bad {
        assert_eq!(
            engine.bench.hear(Says::default().store(store)),
            0,
            "{store:?}"
        );
    }
    assert_eq!(engine.bench.dropped(DropReason::GroupContradiction), 5);
    assert_eq!(engine.resumes(&prompt(300, u32::MAX)), (288, 288));
    // An engine that starts over is learned anew.
    let Bench { ingest, to, .. } = &mut engine.bench;
    ingest.clear(to);
    assert_eq!(to.resumes, (false, 0));
    engine.window = Some(64);
    engine.full(9);
    engine.side(&[8, 9]);
    assert_eq!(engine.at(300), 288);
}

#[test]
fn nothing_is_resumed_with_a_group_of_an_unknown_kind() {
    let mut engine = Hybrid::sliding();
    engine.full(9);
    engine.side(&[6, 7, 8, 9]);
    let tokens = prompt(288, u32::MAX);
    let mut says = Says::default();
    let name = says.text("retention");
    let store = Blocks {
        group: Some(2),
        attention: Attention::Other(name),
        ..engine.aside(&[9], &tokens)
    };
    engine.bench.hear(says.store(store));
    assert_eq!(engine.resumes(&prompt(300, u32::MAX)), (0, 288));
    assert_eq!(engine.bench.stats().unknown_kinds, 1);
    assert_eq!(engine.bench.ingest.groups()[2].kind, "retention");
    assert_eq!(engine.bench.dropped(DropReason::AttentionGroup), 1);
}

#[test]
fn of_groups_that_do_not_say_their_kind_complete_ones_are_indexed() {
    let mut engine = Hybrid::sliding();
    let tokens = prompt(288, u32::MAX);
    let names: Vec<u64> = (1..=9).collect();
    let unsaid = |names, group| Blocks {
        group: Some(group),
        attention: Attention::Unsaid,
        ..full(names, None, &tokens)
    };
    let says = Says::default().store(unsaid(&names, 0));
    engine.bench.hear(says.store(unsaid(&names, 2)));
    assert_eq!(engine.at(300), 288);
    engine
        .bench
        .hear(Says::default().store(unsaid(&names[5..], 0)));
    engine
        .bench
        .hear(Says::default().removed_at(&[9], Place::Unsaid, Some(0)));
    assert_eq!(engine.at(300), 288, "group 0 is none of it");
    engine
        .bench
        .hear(Says::default().removed_at(&[9], Place::Unsaid, Some(2)));
    assert_eq!(engine.at(300), 256);
    let kinds: Vec<_> = engine
        .bench
        .ingest
        .groups()
        .into_iter()
        .map(|g| (g.id, g.kind))
        .collect();
    let unsaid = "unsaid".to_owned();
    assert_eq!(kinds, [(Some(0), unsaid.clone()), (Some(2), unsaid)]);
}

#[test]
fn marks_are_as_slow_as_the_slowest_block() {
    let mut engine = Hybrid::sliding();
    engine.full(9);
    engine.side(&[6, 7, 8, 9]);
    let place = |place, names| Blocks {
        place: Place::In(place),
        size: 0,
        attention: Attention::Unsaid,
        window: None,
        ..Hybrid::sliding().aside(names, &[])
    };
    let marks = |engine: &Hybrid| engine.bench.to.marks.values().copied().collect::<Vec<_>>();
    assert_eq!(marks(&engine), [Medium::Gpu]);
    engine
        .bench
        .hear(Says::default().store(place(Medium::Disk, &[6, 7])));
    engine.gone(7, 0);
    assert_eq!(marks(&engine), [Medium::Disk]);
    engine
        .bench
        .hear(Says::default().store(place(Medium::Cpu, &[7])));
    assert_eq!(marks(&engine), [Medium::Cpu]);
    let Bench { ingest, to, .. } = &mut engine.bench;
    ingest.lost(to);
    assert_eq!(marks(&engine), [], "what was elsewhere is given up");
}

#[test]
fn a_lost_message_makes_marks_doubtful_until_their_blocks_are_stored_again() {
    let mut engine = Hybrid::sliding();
    engine.full(9);
    engine.side(&[6, 7, 8, 9]);
    let Bench { ingest, to, .. } = &mut engine.bench;
    ingest.lost(to);
    let marks = |engine: &Hybrid| engine.bench.to.marks.values().copied().collect::<Vec<_>>();
    assert_eq!(marks(&engine), [Medium::Speculative]);
    engine.full(9);
    engine.side(&[6, 7, 8]);
    assert_eq!(
        marks(&engine),
        [],
        "the block is sure and its window is not"
    );
    engine.side(&[9]);
    assert_eq!(marks(&engine), [Medium::Gpu]);
    assert_eq!(engine.at(300), 288);
}

#[test]
fn drafts_need_the_block_above_the_point() {
    let mut engine = Hybrid::sliding();
    let change = |settings: &mut IngestSettings| settings.eagle = true;
    engine.bench = Bench::with(32, change);
    engine.full(9);
    assert_eq!(engine.bench.to.resumes, (false, 32));
    engine.side(&[5, 6, 7, 8]);
    assert_eq!(engine.at(300), 0);
    engine.side(&[9]);
    assert_eq!((engine.at(300), engine.bench.to.resumes), (256, (true, 32)));
    assert_eq!(
        engine.resumes(&prompt(300, 260)),
        (0, 256),
        "the block above is another one"
    );
    assert_eq!(engine.bench.to.marks.len(), 1);
}
