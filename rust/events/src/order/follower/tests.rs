use super::*;
use FeedState::{Degraded, Live, Starting, Suspect};

mod orders;

const T: f64 = 1_000.0;

/// A message of the first life: numbers and times rise together.
fn at(seq: u64) -> Mark {
    Mark {
        seq,
        ts: Some(T + seq as f64),
    }
}

/// A message of the next life.
fn later(seq: u64) -> Mark {
    Mark {
        seq,
        ts: Some(T + 10_000.0 + seq as f64),
    }
}

fn unreadable(seq: u64) -> Mark {
    Mark { seq, ts: None }
}

const APPLY: Verdict = Verdict {
    clear: None,
    fate: Fate::Apply,
};
const DUPLICATE: Verdict = Verdict {
    clear: None,
    fate: Fate::Duplicate,
};

fn cleared(cause: Cause, fate: Fate) -> Verdict {
    Verdict {
        clear: Some(cause),
        fate,
    }
}

/// Applied the messages 0 to `last`, with a source that can replay or without any.
fn following(last: u64, replayable: bool) -> Follower {
    let mut follower = Follower::new(FollowerSettings::default());
    if replayable {
        follower.connected(true);
        assert_eq!(follower.ask(), Some(0));
        assert_eq!(follower.replay_ended(true), None);
        assert_eq!(follower.due(), None);
    }
    for seq in 0..=last {
        assert_eq!(follower.live(at(seq)), APPLY);
    }
    assert_eq!(follower.state(), Live);
    follower
}

fn wait(follower: &mut Follower, mark: Mark) {
    assert_eq!(follower.live(mark).fate, Fate::Hold, "{mark:?}");
    follower.hold(mark, &mark.seq.to_be_bytes());
}

/// A new one whose source can replay.
fn connected() -> Follower {
    let mut follower = Follower::new(FollowerSettings::default());
    follower.connected(true);
    follower
}

fn reconnect(follower: &mut Follower) {
    follower.disconnected();
    follower.connected(true);
}

/// A replay of messages that are all missed.
fn replay(follower: &mut Follower, seqs: impl IntoIterator<Item = u64>, mark: fn(u64) -> Mark) {
    for seq in seqs {
        assert_eq!(follower.replayed(mark(seq)), APPLY, "{seq}");
    }
}

/// The end of a replay that clears nothing at once: the actions due after it, and the state.
#[track_caller]
fn ended(follower: &mut Follower, well: bool, all: &[Result<u64, Cause>], state: FeedState) {
    assert_eq!(follower.replay_ended(well), None);
    assert_eq!(due(follower), all);
    assert_eq!(follower.state(), state);
}

/// The actions that are due, messages by number.
fn due(follower: &mut Follower) -> Vec<Result<u64, Cause>> {
    let mut all = Vec::new();
    while let Some(due) = follower.due() {
        all.push(match due {
            Due::Clear(cause) => Err(cause),
            Due::Apply(payload) => Ok(u64::from_be_bytes(payload.as_ref().try_into().unwrap())),
        });
    }
    all
}

#[test]
fn a_gap_is_replayed_and_what_waited_comes_after_it_once() {
    let mut follower = following(42, true);
    wait(&mut follower, at(45));
    assert_eq!(follower.state(), Suspect);
    assert_eq!(follower.ask(), Some(42), "with the last one, to compare");
    assert_eq!(follower.ask(), None, "asked for once");
    wait(&mut follower, at(46));
    assert_eq!(follower.live(at(45)), DUPLICATE, "it waits already");
    assert_eq!(follower.live(at(42)), DUPLICATE);
    assert_eq!(follower.replayed(at(42)), DUPLICATE);
    replay(&mut follower, 43..=45, at);
    ended(&mut follower, true, &[Ok(46)], Live);
    assert_eq!(follower.last_seq(), Some(46));
    let tally = &follower.tally;
    assert_eq!(
        (tally.gaps, tally.replays_complete, tally.resyncs),
        (1, 2, 0)
    );
}

#[test]
fn a_replay_that_begins_too_late_starts_the_stream_over() {
    let mut follower = following(42, true);
    wait(&mut follower, at(100));
    assert_eq!(follower.ask(), Some(42));
    assert_eq!(follower.replayed(at(90)), cleared(Cause::Loss, Fate::Apply));
    replay(&mut follower, 91..=100, at);
    ended(&mut follower, true, &[], Degraded);
    assert_eq!(follower.live(at(101)), APPLY);
    let tally = &follower.tally;
    assert_eq!((tally.replays_short, tally.resyncs), (1, 1));
    follower.cleared_by_engine();
    assert_eq!(follower.state(), Live);
}

#[test]
fn a_failed_replay_goes_on_behind_the_last_hole() {
    let mut follower = following(42, true);
    for seq in [45, 46, 48, 49] {
        wait(&mut follower, at(seq));
    }
    assert_eq!(follower.ask(), Some(42));
    ended(
        &mut follower,
        false,
        &[Err(Cause::Loss), Ok(48), Ok(49)],
        Degraded,
    );
    assert_eq!(follower.live(at(50)), APPLY);
    assert_eq!(
        follower.live(at(47)),
        DUPLICATE,
        "late, and part of what was given up"
    );
}

#[test]
fn without_replay_a_gap_starts_the_stream_over_at_once() {
    let mut follower = following(42, false);
    assert_eq!(follower.live(at(45)), cleared(Cause::Loss, Fate::Apply));
    assert_eq!(follower.ask(), None);
    assert_eq!(follower.state(), Degraded);
    assert_eq!(follower.live(at(46)), APPLY);
}

#[test]
fn a_stream_joined_late_without_replay_is_degraded() {
    let mut follower = Follower::new(FollowerSettings::default());
    assert_eq!(follower.state(), Starting);
    assert_eq!(follower.live(at(7)).fate, Fate::Apply);
    assert_eq!(follower.state(), Degraded);
    assert_eq!(follower.live(at(8)), APPLY);
}

#[test]
fn messages_that_were_lost_while_connecting_come_from_the_replay() {
    let mut follower = connected();
    assert_eq!(follower.ask(), Some(0));
    wait(&mut follower, at(2));
    assert_eq!(follower.state(), Starting);
    assert_eq!(follower.replayed(at(0)), APPLY);
    assert_eq!(follower.replayed(at(1)), APPLY);
    ended(&mut follower, true, &[Ok(2)], Live);
    assert_eq!(follower.tally.gaps, 0);
}

#[test]
fn numbers_that_go_back_are_another_life() {
    for (seq, replayable) in [(0, true), (0, false), (42, true), (7, true)] {
        let mut follower = following(42, replayable);
        let verdict = follower.live(later(seq));
        assert_eq!(verdict.clear, Some(Cause::Restart), "{seq}");
        assert_eq!(follower.tally.restarts, 1);
        if seq == 0 {
            assert_eq!(verdict.fate, Fate::Apply, "nothing came before it");
            assert_eq!(follower.state(), Live);
            assert_eq!(follower.ask(), None);
            continue;
        }
        assert_eq!(verdict.fate, Fate::Hold);
        follower.hold(later(seq), &seq.to_be_bytes());
        assert_eq!(follower.ask(), Some(0));
        replay(&mut follower, 0..seq, later);
        ended(&mut follower, true, &[Ok(seq)], Live);
        assert_eq!(follower.tally.restarts, 1);
    }
}

#[test]
fn a_restart_that_published_more_than_before_is_seen_in_the_replay() {
    let mut follower = following(4, true);
    wait(&mut follower, later(9));
    assert_eq!(follower.ask(), Some(4));
    assert_eq!(
        follower.replayed(later(4)),
        cleared(Cause::Restart, Fate::Drop)
    );
    assert_eq!(follower.ask(), None, "not before the first one is over");
    assert_eq!(
        follower.replayed(later(5)),
        DUPLICATE,
        "of an outdated replay"
    );
    assert_eq!(follower.replay_ended(true), None);
    assert_eq!(follower.ask(), Some(0));
    replay(&mut follower, 0..10, later);
    assert_eq!(follower.replay_ended(true), None);
    assert_eq!(due(&mut follower), []);
    assert_eq!(follower.last_seq(), Some(9));
    assert_eq!(follower.state(), Live);
}

#[test]
fn a_reconnect_to_the_same_life_keeps_the_state() {
    let mut follower = following(42, true);
    follower.disconnected();
    assert_eq!(follower.state(), Suspect);
    follower.connected(true);
    assert_eq!(follower.ask(), Some(0), "all that it remembers");
    assert_eq!(follower.replayed(at(42)), DUPLICATE);
    assert_eq!(follower.replayed(at(43)), APPLY);
    ended(&mut follower, true, &[], Live);
    assert_eq!(follower.tally.restarts, 0);
}

#[test]
fn a_reconnect_to_an_engine_without_the_last_message_is_a_restart() {
    let mut follower = following(42, true);
    reconnect(&mut follower);
    assert_eq!(follower.ask(), Some(0), "all that it remembers");
    assert_eq!(follower.replay_ended(true), Some(Cause::Restart));
    assert_eq!(follower.ask(), Some(0));
    assert_eq!(follower.replayed(later(0)), APPLY);
    ended(&mut follower, true, &[], Live);
}

#[test]
fn a_message_before_the_reconnect_is_told_waits_for_its_replay() {
    let mut follower = following(42, true);
    follower.disconnected();
    wait(&mut follower, later(43));
    assert_eq!(follower.ask(), None);
    follower.connected(true);
    assert_eq!(follower.ask(), Some(0));
    assert_eq!(follower.replayed(later(0)).clear, Some(Cause::Restart));
}

#[test]
fn a_replay_that_fails_with_the_connection_is_made_again_with_the_next() {
    let mut follower = following(4, true);
    wait(&mut follower, at(9));
    assert_eq!(follower.ask(), Some(4));
    follower.disconnected();
    ended(&mut follower, false, &[], Suspect);
    wait(&mut follower, at(10));
    follower.connected(true);
    assert_eq!(follower.ask(), Some(0));
    replay(&mut follower, 5..=10, at);
    ended(&mut follower, true, &[], Live);
    assert_eq!(follower.tally.resyncs, 0);
}

#[test]
fn a_message_that_happens_to_follow_does_not_hide_a_restart() {
    let mut follower = following(42, true);
    assert_eq!(follower.live(later(43)), APPLY, "the restart is unknown");
    reconnect(&mut follower);
    assert_eq!(follower.ask(), Some(0));
    let verdict = follower.replayed(later(0));
    assert_eq!(verdict.clear, Some(Cause::Restart));
}

#[test]
fn a_failed_replay_after_a_reconnect_leaves_nothing_believed() {
    let mut follower = following(42, true);
    reconnect(&mut follower);
    assert_eq!(follower.replay_ended(false), Some(Cause::Loss));
    assert_eq!(due(&mut follower), []);
    assert_eq!(follower.state(), Degraded);
    assert_eq!(
        follower.live(at(50)).fate,
        Fate::Apply,
        "no second try without a new gap"
    );
    assert_eq!(follower.tally.replays_failed, 1);
}

#[test]
fn an_unreadable_message_is_replayed_and_given_up_if_it_stays_unreadable() {
    let mut follower = following(4, true);
    wait(&mut follower, unreadable(5));
    assert_eq!(follower.ask(), Some(4));
    wait(&mut follower, at(6));
    assert_eq!(follower.replayed(at(4)), DUPLICATE);
    let mut second = following(4, true);
    wait(&mut second, unreadable(5));
    assert_eq!(
        follower.replayed(unreadable(5)),
        cleared(Cause::Loss, Fate::Drop)
    );
    ended(&mut follower, true, &[Ok(6)], Degraded);

    assert_eq!(second.replayed(at(5)), APPLY, "damaged on its way only");
    ended(&mut second, true, &[], Live);
    assert_eq!(
        following(4, false).live(unreadable(5)),
        cleared(Cause::Loss, Fate::Drop)
    );
}

#[test]
fn a_full_buffer_gives_the_replay_up() {
    for settings in [
        FollowerSettings {
            max_messages: 3,
            max_bytes: 1_000,
        },
        FollowerSettings {
            max_messages: 100,
            max_bytes: 31,
        },
    ] {
        let mut follower = Follower::new(settings);
        follower.connected(true);
        assert_eq!(follower.ask(), Some(0));
        for seq in 5..9 {
            assert_eq!(due(&mut follower), []);
            wait(&mut follower, at(seq));
        }
        assert_eq!(
            due(&mut follower),
            [Err(Cause::Loss), Ok(5), Ok(6), Ok(7), Ok(8)]
        );
        assert_eq!(follower.state(), Degraded);
        assert_eq!(follower.replayed(at(0)), DUPLICATE, "too late");
        assert_eq!(follower.replay_ended(true), None);
        assert_eq!(follower.live(at(9)), APPLY);
        wait(&mut follower, at(12));
        assert_eq!(follower.ask(), Some(9), "the next gap is tried again");
    }
}

#[test]
fn messages_dropped_during_a_replay_are_asked_for_again() {
    let mut follower = following(4, true);
    wait(&mut follower, at(7));
    assert_eq!(follower.ask(), Some(4));
    for seq in 4..=7 {
        follower.replayed(at(seq));
    }
    wait(&mut follower, at(10));
    assert_eq!(follower.replay_ended(true), None);
    assert_eq!(due(&mut follower), []);
    assert_eq!(follower.ask(), Some(7));
    for seq in 7..=10 {
        follower.replayed(at(seq));
    }
    ended(&mut follower, true, &[], Live);
    assert_eq!(follower.last_seq(), Some(10));
}

#[test]
fn a_gap_that_replays_do_not_close_is_given_up() {
    let mut follower = following(4, true);
    wait(&mut follower, at(9));
    let mut rounds = 0;
    while follower.ask().is_some() {
        rounds += 1;
        assert_eq!(follower.replayed(at(4)), DUPLICATE);
        assert_eq!(follower.replay_ended(true), None);
        let due = due(&mut follower);
        assert!(
            due.is_empty() || due == [Err(Cause::Loss), Ok(9)],
            "{due:?}"
        );
    }
    assert_eq!(rounds, 2);
    assert_eq!(follower.state(), Degraded);
}

#[test]
fn what_waits_of_an_earlier_life_is_dropped() {
    let mut follower = connected();
    for seq in 81..84 {
        wait(&mut follower, at(seq));
    }
    replay(&mut follower, 0..4, later);
    assert_eq!(follower.replay_ended(true), None);
    assert_eq!(due(&mut follower), []);
    assert_eq!(follower.last_seq(), Some(3));
    assert_eq!(follower.state(), Live);

    let mut live = connected();
    wait(&mut live, at(81));
    assert_eq!(live.live(later(3)), cleared(Cause::Restart, Fate::Hold));
}

#[test]
fn messages_without_numbers_are_applied_as_they_come() {
    let mut follower = Follower::new(FollowerSettings::default());
    assert_eq!(follower.unnumbered(true), APPLY);
    assert_eq!(follower.unnumbered(true), APPLY);
    assert_eq!(follower.state(), Live);
    assert_eq!(follower.unnumbered(false), cleared(Cause::Loss, Fate::Drop));
    assert_eq!(follower.state(), Degraded);
}

#[test]
fn an_old_duplicate_beyond_memory_is_no_restart() {
    let mut follower = following(500, true);
    assert_eq!(follower.live(at(3)), DUPLICATE);
    assert_eq!(follower.live(later(3)).clear, Some(Cause::Restart));
}

#[test]
fn a_restart_during_a_replay_waits_for_its_end() {
    let mut follower = following(4, true);
    wait(&mut follower, at(9));
    assert_eq!(follower.ask(), Some(4));
    assert_eq!(follower.live(later(2)), cleared(Cause::Restart, Fate::Hold));
    follower.hold(later(2), &2_u64.to_be_bytes());
    assert_eq!(follower.ask(), None);
    assert_eq!(follower.replayed(at(5)), DUPLICATE);
    assert_eq!(follower.replay_ended(false), None);
    assert_eq!(follower.ask(), Some(0));
    replay(&mut follower, 0..=2, later);
    ended(&mut follower, true, &[], Live);
}

#[test]
fn the_highest_number_does_not_overflow() {
    let mut follower = Follower::new(FollowerSettings::default());
    follower.live(at(u64::MAX));
    assert_eq!(follower.live(at(u64::MAX)), DUPLICATE);
    let mut follower = connected();
    wait(&mut follower, unreadable(u64::MAX));
    assert_eq!(follower.replay_ended(false), None);
    assert_eq!(due(&mut follower), [Err(Cause::Loss)]);
    assert_eq!(follower.live(later(0)).clear, Some(Cause::Restart));
}

#[test]
fn a_restart_at_a_number_that_was_unreadable_is_no_duplicate() {
    for replayable in [false, true] {
        let mut follower = Follower::new(FollowerSettings::default());
        follower.connected(replayable);
        follower.live(unreadable(0));
        if replayable {
            follower.hold(unreadable(0), &[]);
            follower.replay_ended(false);
        }
        due(&mut follower);
        assert_eq!(follower.live(at(1)), APPLY);
        assert_eq!(follower.live(at(0)), DUPLICATE, "readable, and too late");
        assert_eq!(
            follower.live(later(0)),
            cleared(Cause::Restart, Fate::Apply),
            "younger than the message after it"
        );
        assert_eq!(follower.state(), Live);
    }
}

#[test]
fn a_message_that_can_be_read_at_last_is_applied() {
    let mut follower = following(4, false);
    assert_eq!(follower.live(unreadable(5)).clear, Some(Cause::Loss));
    assert_eq!(follower.live(unreadable(5)), DUPLICATE);
    assert_eq!(follower.live(at(3)), DUPLICATE, "applied before the loss");
    assert_eq!(follower.live(at(5)), APPLY);
    assert_eq!(follower.live(at(5)), DUPLICATE);
    assert_eq!(follower.live(at(6)), APPLY);
}

#[test]
fn a_duplicate_of_the_life_before_is_no_news() {
    let mut follower = following(4, false);
    assert_eq!(
        follower.live(later(0)),
        cleared(Cause::Restart, Fate::Apply)
    );
    for seq in 0..=4 {
        assert_eq!(follower.live(at(seq)), DUPLICATE, "{seq}");
    }
    assert_eq!(follower.live(later(1)), APPLY);
}
