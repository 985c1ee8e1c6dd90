//! Requests at a gate: which go, which wait, which a release calls.

use std::collections::HashMap;
use std::task::{Wake, Waker};

use cachelb_core::block_tracker::Origin;
use cachelb_core::error::{Error, Result};
use cachelb_core::ids::{BookingId, Millis, SequenceHash};
use cachelb_policy::{LeastLoaded, Placements, PrefillTimesBatch, Rule};

use self::door::{Asked, Door, GATE, NAMES, gate, of};
use super::*;
use crate::Selector;
use crate::admission::{GateId, Order, Passage, PendingLimits, Tenant, Ticket};
use crate::selector::{
    Breaker, Eligibility, Ending, Offers, Pick, PoolSettings, Request, Settings, Usage,
};
use crate::tests::{offers, with_workers};

mod door;
mod model;
mod random;
mod threads;

#[test]
fn what_is_computed_and_not_known_of_yet_may_be_pending_beyond_the_bounds() {
    let settings = GateSettings {
        lag_ms: 500.0,
        ..gate(Some(2), None)
    };
    let mut door = Door::least_loaded(1, &settings);
    // Ten first tokens in a second, for long: five of them are under way.
    let mut pending = std::collections::VecDeque::new();
    for at in 0..600 {
        door.now = Millis(100 * at);
        while let Ok(Ok(pick)) = door.arrive(&of(100), false).1 {
            pending.push_back(pick);
        }
        let oldest: Pick = pending.pop_front().expect("an idle worker takes one");
        door.first_token(&oldest);
        door.end(&oldest, Ending::Completed);
    }
    assert_eq!(pending.len(), 2 - 1 + 5);
    // Nothing is computed any more.
    door.now = Millis(door.now.0 + 1_000_000);
    assert_eq!(why_of(&door.arrive(&of(100), false).1), "no room");
    while pending.len() > 1 {
        let oldest = pending.pop_front().expect("pending");
        door.end(&oldest, Ending::Cancelled);
    }
    door.goes(&of(100));
    assert_eq!(why_of(&door.arrive(&of(100), false).1), "no room");
}

#[test]
fn one_whose_pick_vanished_keeps_its_turn() {
    let mut door = Door::least_loaded(1, &gate(Some(1), None));
    let blocking = door.goes(&of(1));
    let first = door.waits(&of(1));
    door.waits(&of(1));
    door.first_token(&blocking);
    assert_eq!(door.call_next(true), [first]);
    for is_last in [false, true] {
        let (asked, ticket) = door.waiting[&first].clone();
        let way = Way::Again(ticket, is_last);
        let moved = door.pass(&asked, &way, |_, _, _| Err(Error::Moved));
        assert_eq!(moved, Err(Error::Moved));
        assert!(door.call_next(false).is_empty());
        assert_eq!(door.gate().waiting().0, 2);
    }
    assert!(matches!(door.try_again(first, false), Ok(Ok(_))));
}

fn why_of<T>(outcome: &Result<T>) -> &'static str {
    match outcome {
        Err(Error::Overloaded { why, .. }) => why,
        _ => "it goes or waits",
    }
}

#[test]
fn a_prefix_that_is_cached_meanwhile_counts() {
    let shared: Vec<SequenceHash> = (1..=125).map(SequenceHash).collect();
    for is_shared in [true, false] {
        let order = Order::ShortestUncached {
            ageing_tokens_per_s: 0,
        };
        let settings = GateSettings {
            order,
            ..gate(Some(1), None)
        };
        let rule = Box::new(PrefillTimesBatch::default());
        let mut door = Door::new(&["a"], rule, &settings);
        let with = |blocks: &[SequenceHash], priority| Asked {
            blocks: blocks.to_vec(),
            priority,
            ..of(2000)
        };
        let blocking = door.goes(&of(1));
        let long = door.waits(&with(&shared, 0));
        let short = door.waits(&of(1000));
        let blocks = if is_shared { &shared[..100] } else { &[] };
        let urgent = door.waits(&with(blocks, 1));
        door.first_token(&blocking);
        let [(number, pick)] = door.released()[..] else {
            panic!("one worker has room");
        };
        assert_eq!(number, urgent);
        let expected = if is_shared { long } else { short };
        assert_eq!(door.after(&pick), [expected]);
    }
}

#[test]
fn a_thousand_that_give_up_leave_nothing() {
    let mut door = Door::least_loaded(1, &gate(Some(1), None));
    let blocking = door.goes(&of(10));
    let numbers: Vec<u64> = (0..1000).map(|n| door.waits(&of(n))).collect();
    let (_, full) = door.arrive(&of(1), true);
    let Err(Error::Overloaded { why, .. }) = full else {
        panic!("{full:?}");
    };
    assert_eq!((why, door.gate().waiting().0), ("queue full", 1000));
    // The first of them was called, which must not keep the turn.
    door.first_token(&blocking);
    assert_eq!(door.call_next(true), [numbers[0]]);
    for (gone, number) in (1..).zip(numbers) {
        assert!(door.give_up(number));
        let tokens = (gone..1000).sum();
        assert_eq!(door.gate().waiting(), (1000 - gone as usize, tokens));
        let (tally, waiting) = door.gate().tallies()[&0];
        assert_eq!((tally.cancelled, waiting), (gone, 1000 - gone as usize));
        let next = Some(number + 1).filter(|next| door.waiting.contains_key(next));
        assert_eq!(door.call_next(false), Vec::from_iter(next));
    }
    assert_eq!(door.selector.book().bookings.len(), 1);
    door.selector.validate().expect("counts agree");
    door.goes(&of(1));
}

#[test]
fn bookings_of_which_nothing_is_heard_any_more_keep_nobody_out_for_ever() {
    for may_wait in [true, false] {
        let mut door = Door::least_loaded(1, &gate(Some(1), None));
        door.goes(&of(1));
        door.now = Millis(Settings::default().booking_ttl_ms + 1);
        let (number, passed) = door.arrive(&of(1), may_wait);
        let waited = door.call_next(false) == [number] && door.try_again(number, false).is_ok();
        assert!(matches!(passed, Ok(Ok(_))) || waited, "{passed:?}");
        door.selector.validate().expect("counts agree");
    }
}

#[test]
fn one_of_those_that_wait_looks_again_when_a_worker_that_failed_may_be_back() {
    let mut door = Door::least_loaded(2, &gate(Some(1), None));
    let failed = door.goes(&of(1));
    door.goes(&of(1));
    door.end(&failed, Ending::Failed);
    door.now = Millis(400);
    let mut looks_again = Vec::new();
    for _ in 0..2 {
        let (number, passed) = door.arrive(&of(1), true);
        let Ok(Err(Waits { again_ms, .. })) = passed else {
            panic!("{passed:?}");
        };
        looks_again.push((number, again_ms));
        assert!(door.call_next(false).is_empty());
    }
    let [(first, Some(600)), (second, None)] = looks_again[..] else {
        panic!("{looks_again:?}");
    };
    // If that one goes, another is asked to.
    assert!(door.give_up(first));
    assert_eq!(door.call_next(false), [second]);
    let waits = door.try_again(second, false);
    let again_ms = Some(600);
    assert!(matches!(waits, Ok(Err(Waits { again_ms: ms, .. })) if ms == again_ms));
    assert!(door.call_next(false).is_empty());
    door.now = Millis(1000);
    let [(number, pick)] = door.released()[..] else {
        panic!("the worker may be tried again");
    };
    assert_eq!((number, pick.offer), (second, failed.offer));
}
