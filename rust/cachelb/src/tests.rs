//! The selector: booking, dry runs, fleets that change.

use std::collections::HashMap;

use cachelb_core::error::Error;
use cachelb_core::ids::Millis;
use cachelb_policy::{Compare, LeastLoaded, PowerOfTwo, Random, RoundRobin, Rule};

use crate::selector::*;

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

fn seeded(rule: Box<dyn Rule>, seed: u64) -> Selector {
    let placements = Placements {
        max_blocks_per_worker: 1000,
        ..Placements::default()
    };
    let settings = Settings {
        seed,
        ..Settings::default()
    };
    Selector::new(settings, PoolSettings::new(rule, 16, placements))
}

fn selector(rule: Box<dyn Rule>) -> Selector {
    seeded(rule, 1)
}

/// A selector with these workers.
pub(crate) fn with_workers(settings: Settings, pool: PoolSettings, names: &[&str]) -> Selector {
    let mut selector = Selector::new(settings, pool);
    for name in names {
        let mut workers = selector.workers_mut();
        workers.add(name, Profile::default(), Millis(0));
    }
    selector
}

pub(crate) fn offers(names: &[&str]) -> Offers {
    Offers::new(names.iter().map(|&name| Offer::new(name)).collect())
}

fn pick(selector: &mut Selector, names: &[&str]) -> String {
    let mut offers = offers(names);
    let pick = selector.select(&mut offers, &Request::default()).unwrap();
    offers[pick.offer].name.to_string()
}

#[test]
fn round_robin_follows_names_through_flaps() {
    let mut s = selector(Box::new(RoundRobin::new(true)));
    s.workers_mut().set_ready("a", true);
    let all = ["a", "b", "c"];
    s.workers_mut().set_ready("b", false);
    let picks: Vec<String> = (0..4).map(|_| pick(&mut s, &all)).collect();
    assert_eq!(picks, ["a", "c", "a", "c"]);
    s.workers_mut().set_ready("b", true);
    let picks: Vec<String> = (0..3).map(|_| pick(&mut s, &["c", "b", "a"])).collect();
    assert_eq!(picks, ["a", "b", "c"]);
}

#[test]
fn weighted_round_robin_is_smooth() {
    let mut s = selector(Box::new(RoundRobin::new(true)));
    s.workers_mut().set_weight("a", 5.0).unwrap();
    let picks: Vec<String> = (0..14).map(|_| pick(&mut s, &["a", "b", "c"])).collect();
    assert_eq!(picks.concat(), "aabacaaaabacaa");
}

#[test]
fn a_seeded_start_uses_every_worker_as_first() {
    let mut firsts: HashMap<String, u32> = HashMap::new();
    for seed in 0..300 {
        let rule = Box::new(RoundRobin::new(false));
        let mut s = seeded(rule, seed);
        *firsts.entry(pick(&mut s, &["a", "b", "c"])).or_default() += 1;
    }
    assert_eq!(firsts.len(), 3);
    assert!(firsts.values().all(|&n| n > 60), "{firsts:?}");
}

#[test]
fn dry_run_tells_the_next_pick_and_changes_nothing() {
    let rules: [Box<dyn Rule>; 4] = [
        Box::new(LeastLoaded::default()),
        Box::new(RoundRobin::new(false)),
        Box::new(Random),
        Box::new(PowerOfTwo {
            choices: 2,
            load: Compare::Inflight,
        }),
    ];
    for rule in rules {
        let mut s = selector(rule);
        for step in 0..40 {
            let mut list = offers(&NAMES[..=step % 8]);
            let dry = s.preview(&mut list, &Request::default()).unwrap().0;
            assert_eq!(dry.booking, None);
            let again = s.preview(&mut list, &Request::default()).unwrap().0;
            let real = s.select(&mut list, &Request::default()).unwrap();
            let booking = None;
            assert_eq!((dry, dry), (again, Pick { booking, ..real }));
            assert_eq!(s.book().bookings.len(), step + 1);
        }
    }
}

#[test]
fn duplicates_and_nobody_ready_are_refused_without_booking() {
    let (mut s, request) = (selector(Box::new(Random)), Request::default());
    let nobody = s.select(&mut offers(&[]), &request);
    assert_eq!(nobody, Err(Error::NoCandidate));
    for _ in 0..2 {
        let twice = s.select(&mut offers(&["a", "b", "a"]), &request);
        assert_eq!(twice, Err(Error::DuplicateWorker("a".into())));
        if s.book().bookings.is_empty() {
            pick(&mut s, &["a", "b"]);
        }
    }
    s.workers_mut().set_ready("a", false);
    let mut list = offers(&["a", "b"]);
    list.set_eligibility(1, Eligibility::Excluded);
    assert_eq!(s.select(&mut list, &request), Err(Error::NoCandidate));
    assert_eq!(list[0].eligibility, Eligibility::NotReady);
    assert_eq!(list[1].eligibility, Eligibility::Excluded);
    assert_eq!(s.book().bookings.len(), 1);
    let counted = s.ledger().counters.no_worker;
    let dry = s.preview(&mut list, &request).map(|(pick, _)| pick);
    assert_eq!(dry, Err(Error::NoCandidate));
    assert_eq!(s.ledger().counters.no_worker, counted);
}

#[test]
fn a_draining_worker_is_listed_as_such_and_a_dry_run_registers_none() {
    let (mut s, request) = (
        selector(Box::new(LeastLoaded::default())),
        Request::default(),
    );
    pick(&mut s, &["a"]);
    assert!(s.workers_mut().drain("a"));
    let mut list = offers(&["a", "b"]);
    let dry = s.preview(&mut list, &request).unwrap().0;
    assert_eq!((dry.offer, s.fleet().find("b")), (1, None));
    let real = s.select(&mut list, &request).unwrap();
    assert_eq!(
        (real.offer, list[0].eligibility),
        (1, Eligibility::Draining)
    );
}

#[test]
fn a_worker_that_fails_its_health_check_is_not_picked_until_it_passes_or_is_another() {
    let mut s = selector(Box::new(RoundRobin::new(true)));
    let picks_a = |s: &mut Selector| (0..4).any(|_| pick(s, &["a", "b"]) == "a");
    s.workers_mut().set_healthy("b", false);
    assert_eq!(s.fleet().find("b"), None, "it is not registered");
    assert!(picks_a(&mut s));
    s.workers_mut().set_healthy("a", false);
    s.workers_mut().set_ready("a", true);
    assert!(!picks_a(&mut s), "readiness is apart");
    s.workers_mut().set_healthy("a", true);
    assert!(picks_a(&mut s));
    s.workers_mut().set_healthy("a", false);
    s.workers_mut().add("a", Profile::default(), Millis(0));
    assert!(!picks_a(&mut s), "it is the one that failed");
    s.workers_mut().remove("a");
    assert!(picks_a(&mut s), "it is another one");
}

#[test]
fn workers_absent_for_long_are_forgotten_and_memory_stays_bounded() {
    let mut s = selector(Box::new(LeastLoaded::default()));
    for i in 0..20_000 {
        let names = [format!("pod-{i}"), format!("pod-{}", i + 1)];
        pick(&mut s, &[&names[0], &names[1]]);
        let known = s.fleet().ids().len();
        assert!(known <= 68 + 1024 + 64, "{known}");
    }
    assert!(s.ledger().counters.forgotten > 18_000);
    s.validate().unwrap();
}

#[test]
fn two_pools_in_turn_keep_each_other() {
    let mut s = selector(Box::new(LeastLoaded::default()));
    let large: Vec<String> = (0..300).map(|i| format!("pod-{i}")).collect();
    let large: Vec<&str> = large.iter().map(String::as_str).collect();
    for _ in 0..2_000 {
        pick(&mut s, &large);
        pick(&mut s, &["a", "b"]);
    }
    assert_eq!(
        (s.fleet().ids().len(), s.ledger().counters.forgotten),
        (302, 0)
    );
}

#[test]
fn decisions_keep_the_names_of_the_workers_they_saw() {
    let mut s = selector(Box::new(LeastLoaded::default()));
    let lists: [(&[&str], Option<u64>); 5] = [
        (&["a", "b"], Some(1)),
        (&["a", "b"], Some(1)),
        (&["b", "c"], Some(2)),
        (&["d", "e"], None),
        (&["e", "d"], None),
    ];
    for (number, (names, version)) in (0..).zip(lists) {
        let list = names.iter().map(|&name| Offer::new(name)).collect();
        let mut offers = match version {
            Some(version) => Offers::versioned(list, version),
            None => Offers::new(list),
        };
        let request = Request {
            number,
            ..Request::default()
        };
        s.select(&mut offers, &request).unwrap();
    }
    for (number, (names, _)) in (0..).zip(lists) {
        let seen = s.trace().get(number).unwrap();
        let told: Vec<&str> = seen.iter().map(|seen| &*seen.name).collect();
        assert_eq!(told, names, "decision {number}");
    }
}
