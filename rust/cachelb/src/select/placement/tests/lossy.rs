//! Workers whose engines' messages are lost for good.

use super::*;

#[test]
fn a_lost_message_leaves_blocks_in_doubt_and_placements_count_as_without_events() {
    let mut fleet = Fleet::new(RULE);
    let (path, other) = (prompt(0, 10), prompt(100, 6));
    fleet.store(1, &path[..8], 0);
    assert_eq!(fleet.feed(1).doubt(Millis(1)), 8);
    fleet.trust(1, FeedState::Degraded, 16);
    assert_eq!(fleet.held(1, &path, 2), ([0; 3], 0));
    assert_eq!(fleet.doubtful(1, &path, 2), [8, 0, 0]);
    // Blocks that an event names again are confirmed, and blocks that a removal names are gone.
    fleet.store(1, &path[..4], 3);
    assert_eq!(fleet.held(1, &path, 4), ([4, 0, 0], 0));
    assert_eq!(fleet.doubtful(1, &path, 4), [4, 0, 0]);
    fleet.feed(1).withdraw(&path[6..7], Medium::Gpu);
    assert_eq!(fleet.doubtful(1, &path, 5), [2, 0, 0]);
    let pick = fleet.select(&path, 6);
    assert_eq!(pick.offer, 1);
    assert_eq!(fleet.doubtful(1, &path, 1_000_000), [6, 0, 0]);
    // Half an hour is the most that blocks are in doubt; placements have no end here.
    fleet.store(1, &other, 1_000_001);
    fleet.feed(1).doubt(Millis(1_000_002));
    assert_eq!(fleet.doubtful(1, &other, 2_800_001), [6, 0, 0]);
    fleet.matched(&other, 2_800_003);
    assert_eq!(fleet.doubtful(1, &other, 2_800_004), [0; 3]);
}

#[test]
fn what_is_doubtful_makes_room_for_what_is_sure() {
    let mut fleet = Fleet::new(RULE);
    let (old, new) = (prompt(0, 10), prompt(100, 6));
    fleet.selector.workers_mut().add("b", small(12), Millis(0));
    fleet.store(1, &old, 0);
    fleet.feed(1).doubt(Millis(1));
    fleet.trust(1, FeedState::Degraded, 16);
    fleet.store(1, &new, 2);
    assert_eq!(fleet.held(1, &new, 3), ([6, 0, 0], 0));
    assert_eq!(fleet.doubtful(1, &old, 3), [6, 0, 0]);
}

#[test]
fn what_was_placed_long_ago_does_not_come_back_with_a_lost_message() {
    let mut fleet = Fleet::new(RULE);
    let (path, other) = (prompt(0, 10), prompt(100, 6));
    fleet.selector.workers_mut().add("b", small(14), Millis(0));
    fleet.store(1, &path[..8], 0);
    let doubt = |fleet: &mut Fleet, now| {
        fleet.feed(1).doubt(Millis(now));
        fleet.trust(1, FeedState::Degraded, 16);
    };
    doubt(&mut fleet, 0);
    let pick = fleet.select(&path, 1);
    assert_eq!(pick.offer, 1);
    fleet.selector.first_token(pick.booking.unwrap(), Millis(2));
    fleet.end(pick.booking.unwrap(), Ending::Completed, 3);
    assert_eq!(fleet.doubtful(1, &path, 4), [10, 0, 0]);
    // Its engine reports nothing about the last two, which go when others need their room.
    fleet.store(1, &other, 5);
    assert_eq!(fleet.doubtful(1, &path, 6), [8, 0, 0]);
    fleet.look(&other, 10_000);
    doubt(&mut fleet, 10_001);
    assert_eq!(fleet.doubtful(1, &path, 10_002), [8, 0, 0]);
}
