//! Shared caches of models with several cache groups: the blocks that one adds must satisfy every group.

use cachelb_policy::Segment;
use proptest::prelude::*;

use super::shared_cache::{MEASURED, adaptive, assert_near, runs, segment, terms};
use super::*;

/// State of the first worker: blocks for full attention, blocks it is marked behind, blocks needed above.
type Own<'a> = (u32, &'a [usize], u32);

impl Fleet {
    /// Workers that resume only at marks; the first holds `own` of `path`.
    fn hybrid(path: &[SequenceHash], own: Own<'_>, ms_per_token: f64) -> (Self, WorkerId) {
        let mut fleet = Self::new(adaptive());
        let (held, marks, above) = own;
        for worker in 0..3 {
            let marked_only = above == 0 || !marks.is_empty();
            fleet
                .feed(worker)
                .set_resumes(marked_only, above * 16, None);
        }
        fleet.store(0, &path[..held as usize], 0);
        // So that the index has the blocks behind gaps.
        fleet.store(2, path, 0);
        for end in marks {
            assert!(fleet.feed(0).mark(path[end - 1], Medium::Gpu));
        }
        fleet.measure();
        let pool = fleet.share(terms(ms_per_token), path, &[]);
        (fleet, pool)
    }

    /// The shared cache holds `held` of `path`, and is marked behind `marks`.
    fn fill(&mut self, pool: WorkerId, path: &[SequenceHash], held: &[Segment], marks: &[usize]) {
        for &(start, end) in held {
            let (start, end) = (start as usize, end as usize);
            let parent = start.checked_sub(1).map(|at| path[at]);
            let mut feed = self.selector.feed(pool).unwrap();
            feed.announce(parent, &path[start..end], Medium::Cpu, Millis(0));
        }
        for end in marks {
            let mut feed = self.selector.feed(pool).unwrap();
            assert!(feed.mark(path[end - 1], Medium::Cpu), "{end}");
        }
        self.selector.validate().unwrap();
    }
}

type Case<'a> = (
    &'static str,
    Own<'a>,
    f64,
    &'a [Segment],
    &'a [usize],
    (f64, u32, u32),
);

#[test]
fn a_shared_cache_adds_what_every_group_can_resume_from() {
    let (all, eight): (&[Segment], &[Segment]) = (&[(0, 12)], &[(0, 8)]);
    let cases: [Case<'_>; 12] = [
        (
            "full 1-8, no state",
            (4, &[4], 0),
            0.5,
            eight,
            &[],
            (4.0, 4, 0),
        ),
        (
            "no state anywhere",
            (8, &[], 0),
            0.5,
            eight,
            &[],
            (0.0, 0, 0),
        ),
        ("state at 8", (4, &[4], 0), 0.5, eight, &[8], (6.0, 4, 4)),
        (
            "state before the end",
            (4, &[4], 0),
            0.5,
            eight,
            &[2, 6],
            (5.0, 4, 2),
        ),
        (
            "state behind that of the worker",
            (4, &[4], 0),
            0.5,
            eight,
            &[3],
            (4.0, 4, 0),
        ),
        (
            "the state alone",
            (8, &[], 0),
            0.5,
            eight,
            &[8],
            (8.0, 0, 8),
        ),
        (
            "state and four blocks",
            (8, &[4], 0),
            0.5,
            all,
            &[12],
            (10.0, 4, 8),
        ),
        (
            "slower than computing",
            (4, &[4], 0),
            1.25,
            eight,
            &[8],
            (4.0, 4, 4),
        ),
        (
            "slow blocks for a state",
            (8, &[4], 0),
            1.25,
            all,
            &[12],
            (7.0, 4, 8),
        ),
        (
            "a gap",
            (4, &[4], 0),
            0.5,
            &[(0, 3), (5, 8)],
            &[8],
            (4.0, 4, 0),
        ),
        (
            "nothing on the worker",
            (0, &[], 0),
            0.5,
            eight,
            &[8],
            (4.0, 0, 8),
        ),
        ("a block above", (4, &[], 1), 0.5, eight, &[], (5.5, 3, 4)),
    ];
    for (name, own, ms, held, marks, expected) in cases {
        let path = prompt(0, 12);
        let (mut fleet, pool) = Fleet::hybrid(&path, own, ms);
        fleet.fill(pool, &path, held, marks);
        assert_near(&fleet.credited(&path, MEASURED)[..1], &[expected], name);
    }
}

/// With EAGLE marks lie one block beyond the point, and those of other engines do not count for it.
#[test]
fn marks_of_a_cache_count_for_engines_that_draft_alike() {
    let path = prompt(0, 12);
    for (above, expected) in [(1, (5.5, 3, 4)), (0, (3.0, 3, 0))] {
        let (mut fleet, pool) = Fleet::hybrid(&path, (4, &[4], 1), 0.5);
        let mut feed = fleet.selector.feed(pool).unwrap();
        feed.set_trust(Worth::Believed {
            state: FeedState::Live,
            engine_block_size: Some(16),
        });
        feed.set_resumes(true, above * 16, None);
        fleet.fill(pool, &path, &[(0, 8)], &[8]);
        assert_near(&fleet.credited(&path, MEASURED)[..1], &[expected], "EAGLE");
    }
}

/// A removed block takes its mark with it.
#[test]
fn a_state_that_the_shared_cache_lost_resumes_nothing() {
    let path = prompt(0, 12);
    let (mut fleet, pool) = Fleet::hybrid(&path, (4, &[4], 0), 0.5);
    fleet.fill(pool, &path, &[(0, 8)], &[6, 8]);
    assert!(fleet.selector.feed(pool).unwrap().unmark(path[7]));
    assert_near(
        &fleet.credited(&path, MEASURED)[..1],
        &[(5.0, 4, 2)],
        "unmarked",
    );
    let mut feed = fleet.selector.feed(pool).unwrap();
    feed.withdraw(&path[5..6], Medium::Cpu);
    assert_near(
        &fleet.credited(&path, MEASURED)[..1],
        &[(4.0, 4, 0)],
        "removed",
    );
}

#[test]
fn the_part_of_a_shared_cache_is_told() {
    let path = prompt(0, 12);
    let (mut fleet, pool) = Fleet::hybrid(&path, (4, &[4], 0), 0.5);
    fleet.fill(pool, &path, &[(0, 8)], &[8]);
    let asked = request((&path, Origin::Tokens), 12 * 16 + 1, MEASURED);
    let (pick, _) = fleet.selector.preview(&mut offers(&["a"]), &asked).unwrap();
    assert_eq!((pick.matched_tokens, pick.shared_tokens), (128, 64));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Block by block: the deepest place that the groups of the worker, or of the cache, accept.
    #[test]
    fn places_are_those_that_all_groups_accept(
        own in 0_u32..=12,
        marks in prop::collection::btree_set(1_usize..=12, 0..4),
        shared in prop::collection::vec(segment(12), 0..3),
        shared_marks in prop::collection::btree_set(1_usize..=12, 0..4),
        ms in 0.0_f64..1.5,
    ) {
        let path = prompt(0, 12);
        let held = runs(&shared, 12);
        let in_pool = |at: u32| held.iter().any(|(start, end)| (*start..*end).contains(&at));
        let marks: Vec<usize> = marks.into_iter().filter(|end| *end <= own as usize).collect();
        let shared_marks: Vec<usize> = shared_marks
            .into_iter()
            .filter(|end| in_pool(*end as u32 - 1))
            .collect();
        let (mut fleet, pool) = Fleet::hybrid(&path, (own, &marks, 0), ms);
        fleet.fill(pool, &path, &held, &shared_marks);

        let mut end = own;
        while end < 12 && in_pool(end) {
            end += 1;
        }
        let deepest = |marks: &[usize]| marks.iter().map(|at| *at as u32).filter(|at| *at <= end).max();
        let alone = deepest(&marks).unwrap_or(0);
        let place = deepest(&shared_marks).unwrap_or(0);
        let device = own.min(place);
        let with = f64::from(device) + f64::from(place - device) * (1.0 - ms);
        let expected = if place > alone { with.max(f64::from(alone)) } else { f64::from(alone) };
        let expected = (expected, alone, place.saturating_sub(alone));
        assert_near(&fleet.credited(&path, MEASURED)[..1], &[expected], "place");
    }
}
