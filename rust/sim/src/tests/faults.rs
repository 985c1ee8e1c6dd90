//! Clients that go away and KV events that get lost.

use super::pairs::at_once;
use super::run::{done, fleet, workload};
use super::*;

#[test]
fn a_client_that_goes_away_frees_its_worker_for_the_next() {
    // Passes take half a second: the second request waits for the blocks of the first.
    let mut w = workload(&[(0.0, 160, 96, 1), (0.0, 160, 4, 2)]);
    w.abort = vec![2.25, f64::NAN];
    let (out, gateway) = done(&w, &fleet(1, 16), &at_once());
    assert_eq!(out.status, [Status::Aborted, Status::Finished]);
    assert_eq!((out.finish[0], out.first_token[0]), (2.25, 1.0));
    // Its pass ends at 3; the next computes the other's prompt.
    assert_eq!(out.first_token[1..], [4.0]);
    assert!(gateway.held[&0].len() >= 10, "its prompt stays cached");
}

#[test]
fn a_client_may_go_away_wherever_its_request_is() {
    for (patience, first) in [(0.0, false), (0.4, false), (1.2, false), (2.2, true)] {
        let mut w = workload(&[(0.0, 160, 96, 1), (0.0, 160, 96, 2)]);
        w.abort = vec![patience; 2];
        let options = Options {
            net_delay: 0.5,
            ..at_once()
        };
        let (out, _) = done(&w, &fleet(1, 16), &options);
        assert_eq!(out.status, [Status::Aborted; 2]);
        assert_eq!(out.finish, [patience; 2]);
        assert_eq!(out.first_token[0].is_finite(), first, "{patience}");
    }
}

#[test]
fn a_request_that_is_over_is_not_aborted_and_a_follower_comes_after_an_aborted_one() {
    let mut w = workload(&[(0.0, 32, 1, 1), (0.0, 32, 30, 1), (0.0, 32, 1, 1)]);
    w.arrival[2] = f64::NAN;
    w.parent[2] = 1;
    w.think[2] = 1.0;
    w.abort = vec![20.0, 4.0, f64::INFINITY];
    let (out, _) = done(&w, &fleet(1, 64), &at_once());
    let finished = Status::Finished;
    assert_eq!(out.status, [finished, Status::Aborted, finished]);
    assert_eq!(out.arrival[2..], [5.0]);
}

/// Two families in turn on a small cache, so that blocks come and go.
fn churn() -> Workload {
    let rows = (0..60_u32).map(|i| (f64::from(i) * 3.0, 64, 2, u64::from(i % 5)));
    workload(&rows.collect::<Vec<_>>())
}

#[test]
fn lost_messages_are_replayed() {
    let w = churn();
    let (_, lossless) = done(&w, &fleet(2, 12), &at_once());
    let mut same = 0;
    for (loss_seed, delay) in (0..12_u64).zip([0.0, 0.2, 7.0].into_iter().cycle()) {
        let options = Options {
            event_loss: 0.3,
            replay_delay: Some(delay),
            loss_seed,
            ..at_once()
        };
        let (out, gateway) = done(&w, &fleet(2, 12), &options);
        for worker in [0, 1] {
            let share = out.lost_messages[worker] as f64 / out.event_messages[worker] as f64;
            assert!((0.1..0.6).contains(&share), "{share}");
            assert!(out.replays[worker] > 0 && out.resyncs[worker] == 0);
            same += u32::from(gateway.held[&(worker as u32)] == lossless.held[&(worker as u32)]);
        }
    }
    // Nothing comes behind the last message, so only there a loss remains unknown.
    assert!(same >= 12, "{same} of 24");
}

#[test]
fn without_a_replay_a_gap_begins_from_nothing() {
    let options = Options {
        event_loss: 0.3,
        replay_delay: None,
        loss_seed: 5,
        ..at_once()
    };
    let (out, gateway) = done(&churn(), &fleet(2, 12), &options);
    let (all, _) = done(&churn(), &fleet(2, 12), &at_once());
    assert!(out.resyncs.iter().all(|&n| n > 0) && out.replays == [0, 0]);
    assert_eq!(all.resyncs, [0, 0]);
    assert!(gateway.held.values().all(|held| held.len() <= 12));
}

#[test]
fn what_is_lost_depends_on_worker_and_number_alone() {
    let lost = |seed, w: &Workload| {
        let options = Options {
            event_loss: 0.5,
            loss_seed: seed,
            ..at_once()
        };
        done(w, &fleet(2, 12), &options).0.lost_messages
    };
    assert_eq!(lost(1, &churn()), lost(1, &churn()));
    assert_ne!(lost(1, &churn()), lost(2, &churn()));
}

#[test]
fn a_worker_that_comes_back_is_followed_from_its_first_message() {
    let options = Options {
        event_loss: 0.4,
        replay_delay: Some(0.1),
        incidents: vec![(31.2, 0, Incident::Crash), (60.2, 0, Incident::Join)],
        retries: 3,
        ..at_once()
    };
    for loss_seed in 0..20 {
        let options = Options {
            loss_seed,
            ..options.clone()
        };
        // The gateway asserts that no block is stored twice or removed unknown.
        let (out, _) = done(&churn(), &fleet(2, 12), &options);
        assert!(out.status.iter().all(|s| *s == Status::Finished));
    }
}
