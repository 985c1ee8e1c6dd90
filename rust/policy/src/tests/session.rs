mod traffic;

use cachelb_core::ids::Millis;
use cachelb_core::load::BookingId;

use super::super::*;
use crate::testing::{Calls, cache_aware};
use crate::testing::{GATE, Scene, booking, row};

const STICKY: Sessions = Sessions {
    mode: SessionMode::Sticky,
    hard: false,
    gate: GATE,
    idle_ms: 7_200_000,
    max_sessions: 10_000,
    seed: 1337,
};
const MANUAL: Sessions = Sessions {
    mode: SessionMode::Manual(Assignment::MinGroup),
    ..STICKY
};

/// A rule and the number of its bookings.
struct Desk {
    rule: Session,
    next: u32,
}

/// One request that was routed.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Routed {
    worker: u32,
    reason: Reason,
    booking: BookingId,
}

impl Desk {
    fn new(settings: Sessions) -> Self {
        Self::over(settings, None)
    }

    fn over(settings: Sessions, base: Option<Box<dyn Rule>>) -> Self {
        Self {
            rule: Session::new(settings, base),
            next: 0,
        }
    }

    fn route(&mut self, scene: &Scene) -> Routed {
        let choice = scene.pick(&self.rule, 1);
        assert!(!choice.refused);
        let booking = booking(self.next);
        self.next += 1;
        self.rule.settle(&scene.view(), choice, booking);
        Routed {
            worker: scene.rows[choice.row].offer,
            reason: choice.reason,
            booking,
        }
    }

    /// Routes a request of session `key` to one of `workers` at `ms`.
    fn start(&mut self, key: &str, workers: &[u32], ms: u64) -> Routed {
        self.route(&at(key, workers, ms))
    }

    /// As `start`, and the worker serves it.
    fn serve(&mut self, key: &str, workers: &[u32], ms: u64) -> (u32, Reason) {
        let routed = self.start(key, workers, ms);
        self.rule.proven(routed.booking, None);
        self.rule.ended(routed.booking, Ended::Served);
        (routed.worker, routed.reason)
    }

    fn fail(&mut self, routed: Routed) {
        self.rule.ended(routed.booking, Ended::Failed);
    }

    fn sessions(&self) -> usize {
        self.rule.bindings().len()
    }

    fn validate(&self) {
        self.rule.bindings().validate().unwrap();
    }
}

fn at(key: &str, workers: &[u32], ms: u64) -> Scene {
    let rows = workers.iter().map(|&offer| row(offer, 0, 0)).collect();
    let mut scene = Scene::of(rows).key(Some(key));
    scene.now = Millis(ms);
    scene
}

/// All but `gone`.
fn without(workers: &[u32], gone: u32) -> Vec<u32> {
    let mut left = workers.to_vec();
    left.retain(|&offer| offer != gone);
    left
}

const ALL: [u32; 4] = [0, 1, 2, 3];

#[test]
fn new_sessions_are_spread_evenly_and_a_new_worker_moves_none() {
    let mut desk = Desk::new(STICKY);
    let mut homes = Vec::new();
    for i in 0..100 {
        let (worker, reason) = desk.serve(&i.to_string(), &ALL, 0);
        assert_eq!(reason, Reason::LeastLoaded);
        homes.push(worker);
    }
    for worker in ALL {
        assert_eq!(homes.iter().filter(|&&home| home == worker).count(), 25);
    }
    for (i, home) in homes.iter().enumerate() {
        let again = desk.serve(&i.to_string(), &[4, 3, 2, 1, 0], 1);
        assert_eq!(again, (*home, Reason::Session));
    }
    let (newest, _) = desk.serve("another", &[0, 1, 2, 3, 4], 2);
    assert_eq!(newest, 4, "it has no session yet");
    desk.validate();
}

#[test]
fn equal_seeds_place_alike_whatever_the_order() {
    let (mut here, mut there) = (Desk::new(STICKY), Desk::new(STICKY));
    for i in 0..50 {
        let key = i.to_string();
        let ours = here.serve(&key, &[0, 1, 2, 3], 0);
        assert_eq!(ours, there.serve(&key, &[2, 3, 1, 0], 0));
    }
}

#[test]
fn heavier_workers_get_more_sessions() {
    let mut desk = Desk::new(STICKY);
    let mut used = [0; 2];
    for i in 0..80 {
        let mut scene = at(&i.to_string(), &[0, 1], 0);
        scene.rows[0].weight = 3.0;
        used[desk.route(&scene).worker as usize] += 1;
    }
    assert_eq!(used, [60, 20]);
}

#[test]
fn a_session_moves_once_and_only_manual_returns() {
    for (settings, returns) in [(STICKY, false), (MANUAL, true)] {
        let mut desk = Desk::new(settings);
        let (home, _) = desk.serve("chat", &ALL, 0);
        let rest = without(&ALL, home);
        let (moved, reason) = desk.serve("chat", &rest, 1);
        assert_eq!(reason, Reason::SessionMoved);
        assert_eq!(desk.serve("chat", &rest, 2), (moved, Reason::Session));
        let back = if returns { home } else { moved };
        assert_eq!(desk.serve("chat", &ALL, 3), (back, Reason::Session));
        let last = without(&rest, moved);
        let (third, reason) = desk.serve("chat", &last, 4);
        assert_eq!(reason, Reason::SessionMoved);
        let second = if returns { moved } else { third };
        assert_eq!(desk.serve("chat", &ALL, 5).0, second, "two are kept");
        desk.validate();
    }
}

#[test]
fn a_removed_worker_is_forgotten_and_does_not_get_its_sessions_back() {
    for settings in [STICKY, MANUAL] {
        let mut desk = Desk::new(Sessions {
            hard: true,
            ..settings
        });
        let (home, _) = desk.serve("chat", &ALL, 0);
        let open = desk.start("chat", &ALL, 0);
        desk.rule.forget(u64::from(home));
        desk.rule.ended(open.booking, Ended::Failed);
        // Hard holds only while it is there.
        let (moved, reason) = desk.serve("chat", &without(&ALL, home), 1);
        assert_eq!(reason, Reason::SessionMoved);
        let mut scene = at("chat", &ALL, 2);
        scene.rows[home as usize].order = 9;
        assert_eq!(desk.route(&scene).worker, moved);
        desk.validate();
    }
}

#[test]
fn a_failure_before_the_first_token_takes_the_binding_back() {
    let mut desk = Desk::new(STICKY);
    let first = desk.start("chat", &[0, 1], 0);
    let second = desk.start("chat", &[0, 1], 0);
    assert_eq!(second.worker, first.worker);
    assert_eq!(second.reason, Reason::Session);
    desk.fail(first);
    assert_eq!(desk.sessions(), 1, "the second may still succeed");
    desk.fail(second);
    assert_eq!(desk.sessions(), 0);
    let other = desk.start("chat", &[1 - first.worker], 0);
    assert_eq!(other.reason, Reason::LeastLoaded, "a new session");
    desk.rule.proven(other.booking, None);
    desk.fail(other);
    let (worker, reason) = desk.serve("chat", &[0, 1], 1);
    assert_eq!((worker, reason), (other.worker, Reason::Session), "proven");
    desk.validate();
}

#[test]
fn a_provisional_session_counts_as_one_of_its_worker() {
    let mut desk = Desk::new(STICKY);
    let started = (0..8).map(|i| desk.start(&i.to_string(), &ALL, 0));
    let started: Vec<Routed> = started.collect();
    for worker in ALL {
        let sessions = started.iter().filter(|routed| routed.worker == worker);
        assert_eq!(sessions.count(), 2);
    }
    for routed in started.iter().filter(|routed| routed.worker == 2) {
        desk.fail(*routed);
    }
    let next = [desk.start("x", &ALL, 0), desk.start("y", &ALL, 0)];
    assert_eq!(next.map(|routed| routed.worker), [2, 2]);
    desk.validate();
}

#[test]
fn a_retry_after_a_failure_does_not_rebind() {
    for settings in [STICKY, MANUAL] {
        let mut desk = Desk::new(settings);
        let (home, _) = desk.serve("chat", &ALL, 0);
        let failed = desk.start("chat", &ALL, 1);
        desk.fail(failed);
        let rest = without(&ALL, home);
        let (detour, reason) = desk.serve("chat", &rest, 1);
        assert_eq!(reason, Reason::SessionMoved);
        assert_eq!(desk.serve("chat", &ALL, 2), (home, Reason::Session));
        assert_eq!(desk.rule.bindings().sessions(u64::from(detour)), 0);

        let failed = desk.start("chat", &ALL, 3);
        desk.fail(failed);
        let again = desk.start("chat", &rest, 3);
        desk.fail(again);
        let others = without(&rest, again.worker);
        let (second, _) = desk.serve("chat", &others, 3);
        // Nor does a second retry.
        assert_eq!(desk.serve("chat", &ALL, 4).0, home);

        let failed = desk.start("chat", &ALL, 5);
        desk.fail(failed);
        let (stand_in, _) = desk.serve("chat", &others, 5);
        assert_ne!(stand_in, home);
        // Home is gone: it stays.
        assert_eq!(desk.serve("chat", &rest, 6).0, stand_in);
        let back = if settings == MANUAL { home } else { stand_in };
        assert_eq!(desk.serve("chat", &ALL, 7).0, back);
        assert!(others.contains(&second));
        desk.validate();
    }
}

#[test]
fn a_move_that_fails_keeps_the_old_binding() {
    let mut desk = Desk::new(STICKY);
    let (home, _) = desk.serve("chat", &ALL, 0);
    let moved = desk.start("chat", &without(&ALL, home), 1);
    desk.fail(moved);
    assert_eq!(desk.serve("chat", &ALL, 2), (home, Reason::Session));
    desk.validate();
}

#[test]
fn a_request_backs_the_proposal_it_made_and_no_later_one_of_its_worker() {
    let mut desk = Desk::new(STICKY);
    desk.serve("chat", &[0], 0);
    let early = desk.start("chat", &[1], 1);
    desk.start("chat", &[2], 2);
    let late = desk.start("chat", &[1], 3);
    desk.fail(early);
    assert_eq!(desk.start("chat", &[0, 1], 4).worker, 1, "late may succeed");
    desk.fail(late);
    desk.validate();
}

#[test]
fn an_idle_session_is_new_after_its_time_to_live() {
    let mut desk = Desk::new(Sessions {
        idle_ms: 1_000,
        ..STICKY
    });
    desk.serve("chat", &ALL, 0);
    assert_eq!(desk.serve("chat", &ALL, 1_000).1, Reason::Session);
    assert_eq!(desk.serve("chat", &ALL, 2_001).1, Reason::LeastLoaded);
    let open = desk.start("chat", &ALL, 2_002);
    // An open request keeps it.
    assert_eq!(desk.serve("chat", &ALL, 9_000).1, Reason::Session);
    desk.rule.ended(open.booking, Ended::Served);
    for i in 0..10 {
        desk.serve(&i.to_string(), &ALL, 9_500);
    }
    desk.serve("late", &ALL, 10_501);
    assert_eq!(desk.sessions(), 1, "the idle ones are gone");
    desk.validate();
}

#[test]
fn the_idlest_session_makes_room_for_a_new_one() {
    let mut desk = Desk::new(Sessions {
        max_sessions: 3,
        ..STICKY
    });
    let busy = desk.start("busy", &ALL, 0);
    desk.serve("b", &ALL, 1);
    desk.serve("c", &ALL, 2);
    desk.serve("b", &ALL, 3);
    desk.serve("d", &ALL, 4);
    let is_known =
        |desk: &Desk, key: &str| at(key, &ALL, 5).choose(&desk.rule, 1).1 == Reason::Session;
    let known = |desk: &Desk| ["busy", "b", "c", "d"].map(|key| is_known(desk, key));
    assert_eq!(known(&desk), [true, true, false, true]);
    desk.start("b", &ALL, 5);
    desk.start("d", &ALL, 6);
    desk.start("e", &ALL, 7);
    // All are busy: the one used longest ago.
    assert_eq!(known(&desk), [false, true, false, true]);
    desk.start("busy", &ALL, 8);
    desk.rule.proven(busy.booking, None);
    desk.rule.ended(busy.booking, Ended::Failed);
    // The evicted binding's booking ends no other.
    assert!(is_known(&desk, "busy"));
    desk.validate();

    let mut desk = Desk::new(STICKY);
    for i in 0..=10_000 {
        desk.serve(&i.to_string(), &ALL, i);
    }
    assert_eq!(desk.sessions(), 10_000);
    let known = ["0", "1", "10000"].map(|key| is_known(&desk, key));
    assert_eq!(known, [false, true, true]);
    desk.validate();
}

#[test]
fn an_overloaded_worker_is_left_for_this_request_only() {
    for mode in [SessionMode::Sticky, SessionMode::Hash] {
        let soft = Sessions { mode, ..STICKY };
        let mut desk = Desk::new(soft);
        let (home, _) = desk.serve("chat", &ALL, 0);
        let mut busy = at("chat", &ALL, 1);
        busy.rows[home as usize].inflight = 100;
        let spilled = desk.route(&busy);
        assert_eq!(spilled.reason, Reason::Spill);
        assert_ne!(spilled.worker, home);
        desk.rule.proven(spilled.booking, None);
        assert_eq!(desk.serve("chat", &ALL, 2).0, home);
        let mut hard = Desk::new(Sessions { hard: true, ..soft });
        hard.serve("chat", &ALL, 0);
        assert_eq!(hard.route(&busy).worker, home);
        desk.validate();
    }
}

#[test]
fn hard_refuses_rather_than_serve_elsewhere() {
    for settings in [STICKY, MANUAL] {
        let mut desk = Desk::new(Sessions {
            hard: true,
            ..settings
        });
        let unproven = desk.start("chat", &ALL, 0);
        let elsewhere = at("chat", &without(&ALL, unproven.worker), 0);
        assert!(!elsewhere.pick(&desk.rule, 1).refused, "nothing is firm");
        desk.rule.proven(unproven.booking, None);
        assert!(elsewhere.pick(&desk.rule, 1).refused);
        assert!(!at("new", &[0], 0).pick(&desk.rule, 1).refused);
        assert_eq!(desk.serve("chat", &ALL, 1).1, Reason::Session);
    }
}

#[test]
fn hash_mode_remembers_nothing() {
    let mut desk = Desk::new(Sessions {
        mode: SessionMode::Hash,
        ..STICKY
    });
    let draw = Rendezvous {
        seed: 1337,
        epsilon: None,
    };
    for i in 0..100 {
        let scene = at(&i.to_string(), &ALL, 0);
        let routed = desk.route(&scene);
        let found = (routed.worker as usize, routed.reason);
        assert_eq!(found, scene.choose(&draw, 1));
        let scores = [&desk.rule as &dyn Rule, &draw].map(|rule| rule.score(&scene.view(), 2));
        assert_eq!(scores[0], scores[1]);
    }
    assert_eq!(desk.sessions(), 0);
    // Nor does the other mode remember a request without a key.
    let mut sticky = Desk::new(STICKY);
    sticky.route(&at("", &ALL, 0).key(None));
    assert_eq!(sticky.sessions(), 0);
}

#[test]
fn manual_places_by_its_assignment() {
    let by = |assignment| {
        Desk::new(Sessions {
            mode: SessionMode::Manual(assignment),
            ..STICKY
        })
    };
    let mut scene = at("chat", &[0, 1, 2], 0);
    scene.rows[0].inflight = 5;
    scene.rows[2].inflight = 5;
    let least = scene.choose(&by(Assignment::MinLoad).rule, 1);
    assert_eq!(least, (1, Reason::LeastLoaded));
    let mut grouped = by(Assignment::MinGroup);
    let first = grouped.serve("a", &[0, 1], 0).0;
    assert_eq!(grouped.serve("b", &[0, 1], 0).0, 1 - first);
    at("chat", &[0, 1], 0).assert_even(&by(Assignment::MinGroup).rule, 0..2);
    scene.rows[0].weight = 2.0;
    let drawn = by(Assignment::Random);
    let heavy = scene.share(&drawn.rule, 0);
    assert!((0.42..=0.58).contains(&heavy), "{heavy}");
    assert_eq!(scene.choose(&drawn.rule, 1).1, Reason::Random);
}

#[test]
fn a_base_policy_places_new_sessions_and_hears_only_of_those() {
    let turns = || -> Option<Box<dyn Rule>> { Some(Box::new(RoundRobin::new(true))) };
    let mut desk = Desk::over(STICKY, turns());
    let workers = [0, 1, 2];
    assert_eq!(desk.serve("a", &workers, 0), (0, Reason::RoundRobin));
    for _ in 0..5 {
        assert_eq!(desk.serve("a", &workers, 0), (0, Reason::Session));
    }
    assert_eq!(desk.serve("b", &workers, 0), (1, Reason::RoundRobin));
    let moved = desk.serve("a", &[1, 2], 0);
    assert_eq!(moved, (2, Reason::SessionMoved), "the next in turn");
    let keyless = at("", &workers, 0).key(None);
    assert_eq!(desk.route(&keyless).worker, 0);
    assert!(!desk.rule.properties().records_placement);
    let mut desk = Desk::over(STICKY, Some(Box::new(cache_aware())));
    assert!(desk.rule.properties().records_placement);
    let mut scene = Scene::new(&[(0, 0), (9, 0)])
        .blocks(Some(10))
        .key(Some("chat"));
    let first = desk.route(&scene);
    assert_eq!((first.worker, first.reason), (1, Reason::Prefix));
    assert_eq!(desk.rule.score(&scene.view(), 1), Some(9.0));
    scene.rows[0].overlap = 10;
    let second = desk.route(&scene);
    assert_eq!((second.worker, second.reason), (1, Reason::Session));
}

#[test]
fn a_finished_session_is_new() {
    let mut desk = Desk::new(STICKY);
    let open = desk.start("chat", &ALL, 0);
    assert!(desk.rule.finish_session(b"chat"));
    assert!(!desk.rule.finish_session(b"chat"));
    desk.rule.proven(open.booking, None);
    desk.rule.ended(open.booking, Ended::Served);
    assert_eq!(desk.sessions(), 0, "late news of it bind nothing");
    assert_eq!(desk.serve("chat", &ALL, 1).1, Reason::LeastLoaded);
    desk.validate();
}

#[test]
fn nothing_readable_of_a_session_is_kept() {
    let mut desk = Desk::new(STICKY);
    desk.start("secret-name", &ALL, 0);
    assert!(!format!("{:?}", desk.rule).contains("secret"));
}
