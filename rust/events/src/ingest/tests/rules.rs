//! Parents, copies, orphans, media, groups.

use super::*;

const GPU: Place = Place::In(Medium::Gpu);
const CPU: Place = Place::In(Medium::Cpu);

#[test]
fn a_store_continues_behind_its_parent() {
    let mut b = Bench::new();
    b.store(None, &[1, 2, 3, 4], &[1, 2, 3, 4]);
    assert_eq!(b.store(Some(4), &[5, 6], &[5, 6]), 1);
    assert_eq!(b.depth_of(&[1, 2, 3, 4, 5, 6, 9]), 6);
    assert_eq!(b.depth_of(&[5, 6]), 0);
    b.remove(&[5, 6]);
    assert_eq!(b.depth_of(&[1, 2, 3, 4, 5, 6]), 4);
    let stats = b.stats();
    assert_eq!((stats.stores, stats.stored_blocks), (2, 6));
    assert_eq!(
        (stats.removals, stats.removed_blocks, stats.unknown_removals),
        (1, 2, 0)
    );
}

#[test]
fn unknown_removals_change_nothing() {
    let mut b = Bench::new();
    b.store(None, &[1], &[1]);
    b.remove(&[2, 3]);
    assert_eq!((b.held(), b.stats().unknown_removals), (1, 2));
}

#[test]
fn every_copy_of_a_block_has_to_go() {
    let mut b = Bench::new();
    b.store(None, &[1, 2, 3], &[1, 2, 3]);
    b.store(Some(2), &[3], &[3]);
    b.remove(&[3]);
    assert_eq!(b.depth_of(&[1, 2, 3]), 3);
    b.remove(&[3]);
    assert_eq!(b.depth_of(&[1, 2, 3]), 2);
}

#[test]
fn a_report_of_held_blocks_adds_no_copy_unless_copies_are_exact() {
    for (exact, after_one) in [(false, 0), (true, 2)] {
        let mut b = Bench::with(4, |settings| settings.reports = !exact);
        let store = || Says::default().stored(None, &[1, 2], &blocks(&[1, 2]));
        b.hear(store());
        b.hear(store());
        assert_eq!(b.stats().reannounced, u64::from(!exact));
        b.remove(&[2, 1]);
        assert_eq!(b.held(), after_one, "exact: {exact}");
        b.remove(&[2, 1]);
        assert_eq!(
            (b.held(), b.stats().unknown_removals),
            (0, if exact { 0 } else { 2 })
        );
    }
}

/// vLLM announces both copies that two requests with one new prefix make, and both removals.
#[test]
fn one_removal_of_two_announced_copies_leaves_the_other() {
    let first = || Says::default().stored(None, &[1, 2], &blocks(&[1, 2]));
    let second = |says: Says| says.stored(Some(2), &[3, 4], &blocks(&[3, 4]));
    let whole = || second(second(first().stored(None, &[1, 2], &blocks(&[1, 2]))));
    let one_by_one = || {
        vec![
            first(),
            first(),
            second(Says::default()),
            second(Says::default()),
        ]
    };
    for steps in [one_by_one(), vec![whole()]] {
        let mut b = Bench::new();
        for step in steps {
            b.hear(step);
        }
        b.remove(&[4, 3, 2, 1]);
        assert_eq!((b.depth_of(&[1, 2, 3, 4]), b.stats().reannounced), (4, 0));
        // One removal may name a block twice.
        b.hear(first());
        b.remove(&[4, 2, 2, 3, 1, 1]);
        assert_eq!((b.held(), b.stats().unknown_removals), (0, 0));
    }
}

/// A report of the blocks that a request reuses: the blocks that it computes follow in the same message.
#[test]
fn a_report_is_known_by_what_follows_and_later_ones_by_their_shape() {
    for (group, reported) in [(Some(0), 2), (None, 0)] {
        let mut b = Bench::new();
        let of = |names, parent, tokens| Blocks {
            names,
            parent,
            tokens,
            size: 4,
            group,
            ..Blocks::default()
        };
        let (two, third) = (blocks(&[1, 2]), blocks(&[3]));
        let first = |says: Says| says.store(of(&[1, 2], None, &two));
        b.hear(first(Says::default()));
        let report = first(Says::default()).removed_at(&[9], GPU, group);
        b.hear(report.store(of(&[3], Some(2), &third)));
        b.hear(first(Says::default()));
        assert_eq!(b.stats().reannounced, reported);
        b.hear(Says::default().removed_at(&[3, 2, 1], GPU, group));
        assert_eq!(b.held() == 0, reported > 0);
    }
}

#[test]
fn a_report_that_names_one_block_more_adds_copies() {
    let mut b = Bench::new();
    b.store(None, &[1], &[1]);
    b.store(None, &[1, 2], &[1, 2]);
    b.remove(&[1]);
    assert_eq!((b.depth_of(&[1, 2]), b.stats().reannounced), (2, 0));
}

#[test]
fn a_report_of_a_block_that_was_given_up_too_early_adds_no_copy_to_the_others() {
    let mut b = Bench::with(4, |settings| settings.reports = true);
    b.store(None, &[1, 2], &[1, 2]);
    // A second copy of block 1 that looks like a report, and the end of one of them.
    b.store(None, &[1], &[1]);
    b.remove(&[1]);
    assert_eq!(b.depth_of(&[1, 2]), 0);
    b.store(None, &[1, 2], &[1, 2]);
    assert_eq!(b.depth_of(&[1, 2]), 2);
    b.remove(&[2]);
    assert_eq!((b.depth_of(&[1, 2]), b.stats().reannounced), (1, 2));
}

#[test]
fn a_report_of_a_parked_block_counts_the_copy_that_was_parked() {
    let mut b = Bench::with(4, |settings| settings.reports = true);
    b.store(None, &[1], &[1]);
    b.store(None, &[1], &[1]);
    b.remove(&[1]);
    b.store(Some(1), &[2], &[2]);
    assert_eq!((b.held(), b.orphans()), (0, 1));
    assert_eq!(b.store(None, &[1, 2], &[1, 2]), 2);
    assert_eq!((b.held(), b.orphans()), (2, 0));
    b.remove(&[2]);
    assert_eq!(b.depth_of(&[1, 2]), 1);
}

#[test]
fn a_name_that_is_given_to_other_content_leaves_no_ghost() {
    let mut b = Bench::new();
    b.store(None, &[1, 2], &[11, 12]);
    b.store(None, &[1, 2], &[21, 22]);
    assert_eq!((b.depth_of(&[11, 12]), b.depth_of(&[21, 22])), (0, 2));
    b.hear(Says::default().cleared());
    assert_eq!((b.held(), b.stats().clears), (0, 1));
    b.store(None, &[1, 2], &[11, 12]);
    assert_eq!(b.depth_of(&[11, 12]), 2);
}

#[test]
fn one_name_twice_in_a_chain_stands_for_the_later_block() {
    let mut b = Bench::new();
    b.store(None, &[1, 1], &[1, 2]);
    assert_eq!(b.held(), 1);
    b.remove(&[1]);
    assert_eq!(b.held(), 0);
}

#[test]
fn names_of_every_size_of_integer_and_of_bytes_are_told_apart() {
    let mut b = Bench::new();
    b.store(None, &[0, 1 << 63, u64::MAX], &[1, 2, 3]);
    assert_eq!(b.depth_of(&[1, 2, 3]), 3);
    let mut says = Says::default().stored(Some(u64::MAX), &[5], &blocks(&[4]));
    says.0.names[0] = Name::Wide(5);
    b.hear(says);
    assert_eq!(b.depth_of(&[1, 2, 3, 4]), 4);
    b.remove(&[5]);
    assert_eq!(b.depth_of(&[1, 2, 3, 4]), 4);
    let mut says = Says::default().removed(&[5]);
    says.0.names[0] = Name::Wide(5);
    b.hear(says);
    assert_eq!(b.depth_of(&[1, 2, 3, 4]), 3);
}

#[test]
fn salt_and_adapter_are_inherited_from_the_parent() {
    let mut b = Bench::new();
    let both = |names, salt, lora| Blocks {
        names,
        tokens: &[1; 4],
        size: 4,
        salt,
        lora,
        ..Blocks::default()
    };
    b.hear(
        Says::default()
            .store(both(&[1], Some("s"), None))
            .store(both(&[2], None, Some("la")))
            .store(both(&[3], Some("s"), Some("la")))
            .store(both(&[4], None, None)),
    );
    for parent in 1..=4 {
        b.store(Some(parent), &[parent + 10], &[2]);
    }
    let prompt = blocks(&[1, 2]);
    let depth =
        |b: &Bench, lora, salt| b.depth_in(&prompt, Namespace::new(lora, salt), Medium::Gpu);
    let all = |b: &Bench| {
        [
            (None, Some("s")),
            (Some("la"), None),
            (Some("la"), Some("s")),
            (None, None),
        ]
        .map(|(lora, salt)| depth(b, lora, salt))
    };
    assert_eq!(all(&b), [2; 4]);
    b.remove(&[11, 3]);
    assert_eq!(all(&b), [1, 2, 0, 2]);
    assert_eq!(b.ingest.adapters().collect::<Vec<_>>(), ["la"]);
}

#[test]
fn objects_are_part_of_a_blocks_identity() {
    let mut b = Bench::new();
    b.hear(Says::default().store(Blocks {
        names: &[1, 2],
        tokens: &blocks(&[0, 0]),
        size: 4,
        extras: &[(1, 77)],
        ..Blocks::default()
    }));
    assert_eq!(b.depth_of(&[0, 0]), 1);
    let object = MmObject {
        hash: 77,
        start: 4,
        len: 4,
    };
    assert!(b.holds_with(&blocks(&[0, 0]), &[object], 1));
}

#[test]
fn orphans_are_held_once_their_parents_are_known() {
    let mut b = Bench::new();
    let says = Says::default()
        .stored(Some(3), &[4], &blocks(&[4]))
        .stored(Some(2), &[3], &blocks(&[3]))
        .stored(Some(99), &[100], &blocks(&[1]));
    assert_eq!(b.hear(says), 0);
    assert_eq!((b.held(), b.orphans(), b.stats().parked), (0, 3, 3));
    assert_eq!(b.store(None, &[1, 2], &[1, 2]), 3);
    assert_eq!((b.depth_of(&[1, 2, 3, 4]), b.held()), (4, 4));
    assert_eq!((b.orphans(), b.dropped(DropReason::Orphan)), (1, 0));
}

#[test]
fn a_removal_cancels_what_is_parked_and_not_what_follows_it() {
    let mut b = Bench::new();
    b.hear(
        Says::default()
            .stored(Some(1), &[2, 3], &blocks(&[2, 3]))
            .stored(Some(3), &[4], &blocks(&[4])),
    );
    b.remove(&[3]);
    assert_eq!(b.stats().unknown_removals, 0);
    b.remove(&[3]);
    assert_eq!(b.stats().unknown_removals, 1);
    b.store(None, &[1], &[1]);
    assert_eq!((b.depth_of(&[1, 2, 3, 4]), b.held()), (2, 3));
    b.store(Some(2), &[3], &[3]);
    assert_eq!(b.depth_of(&[1, 2, 3, 4]), 4);
}

#[test]
fn orphans_are_bounded_in_number_and_time() {
    let mut b = Bench::with(4, |s| (s.orphan_blocks, s.orphan_ttl_ms) = (3, 100));
    b.store(Some(1), &[2, 3], &[2, 3]);
    b.store(Some(8), &[9, 10], &[9, 10]);
    assert_eq!((b.orphans(), b.dropped(DropReason::Orphan)), (2, 2));
    b.now = Millis(99);
    b.store(Some(8), &[9], &[9]);
    b.now = Millis(100);
    b.hear(Says::default());
    assert_eq!((b.orphans(), b.dropped(DropReason::Orphan)), (1, 4));
    b.hear(
        Says::default()
            .stored(None, &[1], &blocks(&[1]))
            .stored(None, &[8], &blocks(&[8])),
    );
    assert_eq!((b.depth_of(&[1, 2]), b.depth_of(&[8, 9])), (1, 2));
    b.hear(
        Says::default()
            .stored(Some(70), &[71], &blocks(&[9]))
            .cleared(),
    );
    assert_eq!((b.orphans(), b.dropped(DropReason::Orphan)), (0, 5));
}

#[test]
fn media_are_kept_apart_and_a_removal_without_one_means_all() {
    for device_first in [true, false] {
        let mut b = Bench::new();
        let prompt = blocks(&[1, 2]);
        let at = |place| Blocks {
            names: &[1, 2],
            tokens: &prompt,
            size: 4,
            place,
            ..Blocks::default()
        };
        b.hear(Says::default().store(at(GPU)));
        let gone = |says: Says| says.removed_at(&[1, 2], GPU, None);
        let says = if device_first {
            gone(Says::default()).store(at(CPU))
        } else {
            gone(Says::default().store(at(CPU)))
        };
        b.hear(says);
        let depth = |b: &Bench, medium| b.depth_in(&prompt, Namespace::default(), medium);
        assert_eq!((depth(&b, Medium::Gpu), depth(&b, Medium::Cpu)), (0, 2));
        b.hear(
            Says::default()
                .store(at(GPU))
                .removed_at(&[1], Place::Unknown, None),
        );
        assert_eq!(b.held(), 2);
        b.remove(&[2]);
        assert_eq!(b.held(), 0);
    }
}

#[test]
fn stores_in_unknown_places_are_dropped() {
    let mut b = Bench::new();
    for (place, reason) in [
        (Place::Unknown, DropReason::UnknownMedium),
        (Place::Shared, DropReason::SharedPool),
    ] {
        let store = Blocks {
            names: &[1],
            tokens: &[1; 4],
            size: 4,
            place,
            ..Blocks::default()
        };
        assert_eq!(b.hear(Says::default().store(store)), 0);
        assert_eq!((b.held(), b.dropped(reason)), (0, 1));
    }
    b.hear(
        Says::default()
            .stored(None, &[1], &[1; 4])
            .removed_at(&[1], Place::Shared, None),
    );
    assert_eq!((b.held(), b.dropped(DropReason::SharedPool)), (1, 2));
}

#[test]
fn placeholders_add_a_medium_to_known_blocks_alone() {
    let mut b = Bench::new();
    let prompt = blocks(&[1, 2]);
    b.hear(Says::default().stored(None, &[1, 2], &prompt));
    let offloaded = Blocks {
        names: &[2, 1, 50],
        place: CPU,
        ..Blocks::default()
    };
    assert_eq!(b.hear(Says::default().store(offloaded)), 1);
    assert_eq!(b.dropped(DropReason::Placeholder), 1);
    assert_eq!(b.depth_in(&prompt, Namespace::default(), Medium::Cpu), 2);
    b.hear(
        Says::default()
            .store(offloaded)
            .removed_at(&[1, 2], GPU, None),
    );
    assert_eq!((b.depth(&prompt), b.held()), (0, 2));
    b.hear(Says::default().removed_at(&[1, 2], CPU, None));
    assert_eq!(b.held(), 0);
    let unknown = Blocks {
        names: &[60],
        ..Blocks::default()
    };
    assert_eq!(b.hear(Says::default().store(unknown)), 0);
    assert_eq!(b.held(), 0);
}

#[test]
fn an_offloaded_block_may_follow_one_that_stayed() {
    let mut b = Bench::new();
    b.hear(Says::default().stored(None, &[1], &[1; 4]));
    let store = Blocks {
        names: &[2],
        parent: Some(1),
        tokens: &[2; 4],
        size: 4,
        place: CPU,
        ..Blocks::default()
    };
    assert_eq!(b.hear(Says::default().store(store)), 1);
    assert_eq!(b.held(), 2);
}

#[test]
fn only_groups_that_attend_to_the_whole_prefix_are_indexed() {
    let mut b = Bench::new();
    let of = |group, attention| Blocks {
        names: &[1],
        tokens: &[1; 4],
        size: 4,
        group,
        attention,
        ..Blocks::default()
    };
    let cases = [
        (None, Attention::Unsaid, 1),
        (Some(1), Attention::Aside, 0),
        (Some(1), Attention::Unsaid, 0),
        (Some(3), Attention::Unsaid, 0),
        (Some(2), Attention::Full, 1),
        (Some(2), Attention::Unsaid, 1),
        (None, Attention::Unsaid, 1),
    ];
    for (group, attention, applied) in cases {
        assert_eq!(
            b.hear(Says::default().store(of(group, attention))),
            applied,
            "{group:?} {attention:?}"
        );
    }
    assert_eq!((b.held(), b.dropped(DropReason::AttentionGroup)), (1, 3));
    // Two copies in each of two groups; a removal in another group is none of it.
    let removals = [
        (Some(1), 1),
        (Some(2), 1),
        (Some(2), 1),
        (Some(2), 1),
        (None, 1),
        (None, 0),
    ];
    for (group, held) in removals {
        b.hear(Says::default().removed_at(&[1], GPU, group));
        assert_eq!(b.held(), held, "{group:?}");
    }
    assert_eq!(b.dropped(DropReason::AttentionGroup), 4);
}

#[test]
fn an_event_that_does_not_add_up_is_dropped_alone() {
    let mut b = Bench::new();
    let applied = b.hear(
        Says::default()
            .stored(None, &[1], &[1; 3840])
            .stored(None, &[], &[])
            .stored(None, &[2, 3], &blocks(&[1, 2])),
    );
    assert_eq!((applied, b.held()), (1, 2));
    assert_eq!(
        (
            b.dropped(DropReason::TokenCount),
            b.dropped(DropReason::MalformedEvent)
        ),
        (1, 1)
    );
}

#[test]
fn clearing_forgets_what_was_learned() {
    let mut b = Bench::new();
    b.store(None, &[1, 2], &[1, 2]);
    assert_eq!(b.ingest.engine_block_size(), Some(4));
    b.ingest.clear(&mut b.to);
    assert_eq!((b.held(), b.ingest.engine_block_size()), (0, None));
    assert_eq!(b.stats().stores, 1);
    b.hear(Says::default().store(Blocks {
        names: &[1, 2],
        tokens: &[3; 16],
        size: 8,
        ..Blocks::default()
    }));
    assert_eq!((b.held(), b.ingest.engine_block_size()), (4, Some(8)));
}

#[test]
fn blocks_beyond_the_bound_are_dropped_or_replace_those_of_a_sender_that_never_removes() {
    let mut b = Bench::with(4, |settings| settings.max_blocks = 3);
    b.store(None, &[1, 2], &[1, 2]);
    b.store(None, &[3, 4], &[3, 4]);
    assert_eq!((b.depth_of(&[1, 2]), b.depth_of(&[3, 4])), (0, 2));
    b.remove(&[4]);
    b.store(None, &[5, 6, 7], &[5, 6, 7]);
    assert_eq!((b.held(), b.dropped(DropReason::Full)), (1, 1));
    b.store(None, &[5, 6], &[5, 6]);
    assert_eq!(b.held(), 3);
    let b = Bench::with(4, |settings| settings.max_blocks = u64::MAX);
    assert_eq!(b.ingest.settings.max_blocks, 16_777_216);
}

#[test]
fn spans_outside_their_batch_are_malformed() {
    let mut b = Bench::new();
    let mut says = Says::default().stored(None, &[1], &[1; 4]).removed(&[1]);
    says.0.names.clear();
    assert_eq!(b.hear(says), 0);
    assert_eq!(b.dropped(DropReason::MalformedEvent), 2);
}

#[test]
fn schemes_that_cannot_be_continued_are_refused() {
    for scheme in [Scheme::Eagle, Scheme::Positional] {
        let mut b = Bench::with(4, |s| s.hasher = Hasher::new(scheme, 4, 7).unwrap());
        assert_eq!(b.ingest.refused(), Some(Refusal::Scheme(scheme)));
        assert_eq!(b.hear(Says::default().stored(None, &[1], &[1; 4])), 0);
        assert_eq!((b.held(), b.dropped(DropReason::BlockSize)), (0, 1));
    }
}
