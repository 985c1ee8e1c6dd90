//! Routes that are learned at message boundaries, among three routers.

use super::network::{Fates, Network};
use super::*;
use crate::selector::Wanted;
use cachelb_core::hashing::Scheme;
use cachelb_policy::{BoundaryLearning, BoundaryLearningOptions, Claim, RoutePosition, Seconds};

fn learner(origin: u64, max_routes: usize, ttl_ms: u64) -> Selector {
    let options = BoundaryLearningOptions {
        max_routes,
        ttl_s: Some(Seconds::of((ttl_ms / 1000) as u32)),
        load_imbalance_factor: None,
        ..BoundaryLearningOptions::default()
    };
    let rule = BoundaryLearning::new(options, 1.0, 1337);
    let pool = PoolSettings::new(Box::new(rule), 16, Placements::default());
    sharing(origin, pool)
}

/// Asks with messages that end after three blocks and at the end.
fn ask_chat(selector: &mut Selector, path: &[SequenceHash], names: &[&str], now: u64) -> BookingId {
    let mut offers = Offers::new(names.iter().map(|&name| Offer::new(name)).collect());
    let ends = [3.min(path.len() as u32), path.len() as u32];
    let request = Request {
        blocks: Some((path, Origin::Tokens)),
        boundaries: &ends,
        prompt_tokens: 16 * path.len() as u64 + 3,
        now: Millis(now),
        ..Request::default()
    };
    let pick = selector.select(&mut offers, &request).unwrap();
    pick.booking.unwrap()
}

fn serve(selector: &mut Selector, path: &[SequenceHash], name: &str, now: u64) {
    let booking = ask_chat(selector, path, &[name], now);
    complete(selector, booking, now);
}

fn routes(selector: &Selector) -> usize {
    let rules = selector.pools().rules();
    rules.map(|(.., rule)| rule.routes()).sum()
}

fn remote_routes(selector: &Selector) -> usize {
    let rules = selector.pools().rules();
    rules.map(|(.., rule)| rule.remote_routes()).sum()
}

/// Keys and blocks of all routes, and who holds them.
type Known = BTreeMap<(u64, u32), BTreeSet<String>>;

fn known(selector: &Selector, now: u64) -> Known {
    let mut found = Known::new();
    let rule = selector.pools[PoolId(0)].rules.get(Wanted::Whole);
    let mut note = |claim: Claim| {
        let worker = super::super::learned::by_order(&selector.fleet, claim.order).unwrap();
        let holders = found.entry((claim.key.0, claim.depth)).or_default();
        holders.insert(selector.fleet.name(worker).unwrap().to_string());
    };
    rule.publish_routes(RoutePosition::default(), usize::MAX, Millis(now), &mut note);
    assert_eq!(found.len(), rule.routes());
    found
}

#[test]
fn a_route_is_told_when_it_is_learned_and_nothing_of_its_blocks() {
    let (mut a, mut b) = (learner(1, 100, TTL_MS), learner(2, 100, TTL_MS));
    let path = prompt(1, 3, 1, 9);
    let booking = ask_chat(&mut a, &path, &WORKERS, 5);
    hear_all(&mut b, &tell(&mut a), 6);
    assert_eq!(known(&b, 6), Known::new(), "it may fail yet");
    a.first_token(booking, Millis(7));
    let told = tell(&mut a);
    for hash in &path {
        let bytes = hash.0.to_le_bytes();
        assert!(!told.iter().any(|part| part.windows(8).any(|w| w == bytes)));
    }
    hear_all(&mut b, &told, 8);
    assert_eq!(known(&b, 8), known(&a, 8));
    assert_eq!((remote_routes(&b), counts(&b).routes), (2, 2));
    a.end(booking, Ending::Failed, Usage::default(), Millis(9));
    assert_eq!(routes(&a), 2, "it answered");
    let failing = ask_chat(&mut a, &prompt(2, 3, 1, 9), &WORKERS, 10);
    a.end(failing, Ending::Failed, Usage::default(), Millis(11));
    hear_all(&mut b, &tell(&mut a), 12);
    assert_eq!((routes(&a), routes(&b), counts(&b).strangers), (2, 2, 0));
}

#[test]
fn an_age_is_told_too_and_a_route_ends_everywhere_at_once() {
    let (mut a, mut b) = (learner(1, 100, 1000), learner(2, 100, 1000));
    serve(&mut a, &prompt(1, 3, 1, 9), "a", 100);
    // The clock of the other began later.
    let told = snapshot(&mut a, Millis(700));
    hear_all(&mut b, &told, 650);
    let path = prompt(1, 3, 1, 9);
    let pick = |selector: &mut Selector, now| {
        let mut offers = Offers::new(WORKERS.iter().map(|&name| Offer::new(name)).collect());
        let request = Request {
            blocks: Some((&path, Origin::Tokens)),
            now: Millis(now),
            ..Request::default()
        };
        let pick = selector.preview(&mut offers, &request).unwrap().0;
        pick.reason.name()
    };
    for (now, reason) in [(1099, "prefix"), (1100, "hash")] {
        assert_eq!(
            (pick(&mut a, now), pick(&mut b, now - 50)),
            (reason, reason)
        );
    }
    // An expired route is not published, and not applied if it was published before.
    let mut c = learner(3, 100, 1000);
    hear_all(&mut c, &snapshot(&mut a, Millis(1100)), 9000);
    assert_eq!(routes(&c), 0);
    hear_all(&mut c, &told, 1);
    assert_eq!(routes(&c), 2, "older than the clock");
    assert_eq!((pick(&mut c, 400), pick(&mut c, 401)), ("prefix", "hash"));
}

#[test]
fn heard_routes_go_first_and_own_ones_are_never_overwritten() {
    let (mut a, mut b) = (learner(1, 100, TTL_MS), learner(2, 4, TTL_MS));
    let own = prompt(1, 3, 1, 9);
    serve(&mut b, &own, "b", 1);
    serve(&mut a, &own, "a", 2);
    hear_all(&mut b, &tell(&mut a), 3);
    let holders = known(&b, 3).into_values();
    assert!({ holders }.all(|holders| holders.iter().eq(["b"])));
    serve(&mut a, &prompt(2, 3, 1, 9), "a", 4);
    serve(&mut a, &prompt(3, 3, 1, 9), "a", 5);
    hear_all(&mut b, &tell(&mut a), 6);
    assert_eq!((routes(&b), remote_routes(&b)), (4, 2), "the last heard");
    serve(&mut b, &prompt(3, 3, 1, 9), "a", 7);
    assert_eq!((routes(&b), remote_routes(&b)), (4, 0), "now its own");
    serve(&mut a, &prompt(4, 3, 1, 9), "a", 8);
    hear_all(&mut b, &tell(&mut a), 9);
    assert_eq!((routes(&b), remote_routes(&b)), (4, 0), "no room");
    let all = known(&a, 9);
    assert!(known(&b, 9).keys().all(|key| all.contains_key(key)));
}

#[test]
fn routes_on_a_lost_cache_end_and_older_ones_are_ignored() {
    let (mut a, mut b) = (learner(1, 100, TTL_MS), learner(2, 100, TTL_MS));
    serve(&mut a, &prompt(1, 3, 1, 9), "a", 1);
    let before = tell(&mut a);
    b.workers_mut().reset_cache("a", Millis(2));
    hear_all(&mut b, &before, 3);
    assert_eq!((routes(&b), counts(&b).stale), (0, 1));
    hear_all(&mut a, &tell(&mut b), 4);
    assert_eq!(routes(&a), 0);
    serve(&mut a, &prompt(2, 3, 1, 9), "a", 5);
    hear_all(&mut b, &tell(&mut a), 6);
    assert_eq!((routes(&b), counts(&b).stale), (2, 1));
    // A worker that leaves takes its routes along, here only.
    b.workers_mut().remove("a");
    assert_eq!((routes(&a), routes(&b)), (2, 0));
    serve(&mut a, &prompt(3, 3, 1, 9), "a", 7);
    hear_all(&mut b, &tell(&mut a), 8);
    assert_eq!(routes(&b), 0);
    assert!(counts(&b).strangers > 0);
}

#[test]
fn a_snapshot_of_many_routes_comes_in_parts_and_in_the_order_of_evictions() {
    let serve_all = |selector: &mut Selector| {
        for (own, name) in (0..1200).zip(WORKERS.into_iter().cycle()) {
            serve(selector, &prompt(own, 0, own, 9), name, own);
        }
    };
    let mut a = learner(1, 3000, TTL_MS);
    serve_all(&mut a);
    assert_eq!(routes(&a), 2400);
    let mut b = learner(2, 1000, TTL_MS);
    let parts = snapshot(&mut a, Millis(2000));
    assert!(parts.len() >= 2 + 2400 / 512);
    hear_all(&mut b, &parts, 2000);
    let (all, kept) = (known(&a, 2000), known(&b, 2000));
    assert_eq!(kept.len(), 1000);
    for (key, holders) in &kept {
        assert_eq!(all.get(key), Some(holders));
    }
    // The newest were kept: a table for the last thousand would have kept them too.
    let mut small = learner(3, 1000, TTL_MS);
    serve_all(&mut small);
    assert_eq!(kept, known(&small, 2000));
}

#[test]
fn rules_that_learn_no_routes_and_pools_that_compare_tokens_hear_none() {
    let mut a = learner(1, 100, TTL_MS);
    let mut plain = router(2, 1000);
    serve(&mut a, &prompt(1, 3, 1, 9), "a", 1);
    let told = tell(&mut a);
    hear_all(&mut plain, &told, 2);
    assert_eq!((counts(&plain).strangers, counts(&plain).routes), (1, 0));
    let compares_tokens = Placements {
        scheme: Scheme::Units,
        ..Placements::default()
    };
    a.pools[PoolId(0)].placements = compares_tokens;
    serve(&mut a, &prompt(2, 3, 1, 9), "a", 3);
    let mut b = learner(3, 100, TTL_MS);
    hear_all(&mut b, &told, 4);
    hear_all(&mut b, &tell(&mut a), 5);
    assert_eq!(routes(&b), 2, "those of before");
    let mut from = RouteCursor::default();
    let mut sharing = a.sharing_mut();
    let part = sharing.snapshot_routes(PoolId(0), &mut from, Millis(6));
    assert_eq!(part, None);
}

/// A lesson: at which router, what, on whose cache.
#[derive(Debug, Clone)]
struct Lesson {
    at: usize,
    key: (u64, u32),
    worker: String,
    epoch: u64,
}

#[derive(Debug, Clone)]
enum Move {
    Ask(u64, u64, usize),
    Answer(prop::sample::Index, bool),
    Fail(prop::sample::Index),
    Reset(usize),
    Tell,
    Restart,
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        5 => (0..3_u64, 0..5_u64, 1..8_usize).prop_map(|(f, o, n)| Move::Ask(f, o, n)),
        5 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(i, end)| Move::Answer(i, end)),
        2 => any::<prop::sample::Index>().prop_map(Move::Fail),
        1 => (0..4_usize).prop_map(Move::Reset),
        5 => Just(Move::Tell),
        1 => Just(Move::Restart),
    ]
}

struct Site {
    selector: Selector,
    /// Bookings that were not answered.
    open: Vec<(BookingId, Vec<(u64, u32)>)>,
}

impl Site {
    fn new(origin: u64) -> Self {
        Self {
            selector: learner(origin, 100_000, TTL_MS),
            open: Vec::new(),
        }
    }

    fn epoch(&self, name: &str) -> u64 {
        self.selector.sharing().unwrap().epochs.of(name)
    }
}

impl network::Site for Site {
    fn selector(&mut self) -> &mut Selector {
        &mut self.selector
    }
}

/// Keys of the routes of a prompt, learned by a router of its own.
fn keys(path: &[SequenceHash]) -> Vec<(u64, u32)> {
    let mut scratch = learner(99, 100, TTL_MS);
    serve(&mut scratch, path, "a", 1);
    known(&scratch, 1).into_keys().collect()
}

proptest! {
    /// Messages are lost, come twice or late, routers restart; then all is delivered. No router keeps a route that was
    /// not learned on the worker's present cache, and every router has all that were, but where it has learned its own.
    #[test]
    fn all_know_the_routes_of_all_once_the_network_heals(
        plan in proptest::collection::vec((0..3_usize, moves(), any::<Fates>()), 1..80),
    ) {
        let mut network = Network::new(Site::new);
        let mut lessons: Vec<Lesson> = Vec::new();
        for (now, (at, step, fates)) in (0..).zip(plan) {
            let sites = &mut network.sites;
            match step {
                Move::Ask(family, own, length) => {
                    let path = prompt(family, 3, own, length);
                    let booking = ask_chat(&mut sites[at].selector, &path, &WORKERS, now);
                    sites[at].open.push((booking, keys(&path)));
                }
                Move::Answer(which, end) if !sites[at].open.is_empty() => {
                    let which = which.index(sites[at].open.len());
                    let (booking, keys) = sites[at].open.swap_remove(which);
                    let selector = &mut sites[at].selector;
                    let worker = worker_of(selector, booking);
                    if end {
                        complete(selector, booking, now);
                    } else {
                        selector.first_token(booking, Millis(now));
                    }
                    let epoch = sites[at].epoch(&worker);
                    lessons.extend(keys.into_iter().map(|key| Lesson {
                        at,
                        key,
                        worker: worker.clone(),
                        epoch,
                    }));
                }
                Move::Fail(which) if !sites[at].open.is_empty() => {
                    let which = which.index(sites[at].open.len());
                    let (booking, _) = sites[at].open.swap_remove(which);
                    let ending = Ending::Failed;
                    sites[at].selector.end(booking, ending, Usage::default(), Millis(now));
                }
                Move::Reset(worker) => {
                    sites[at].selector.workers_mut().reset_cache(WORKERS[worker], Millis(now));
                }
                Move::Restart => {
                    network.restart(at, now);
                    // Lessons that no other router received are lost.
                    lessons.retain(|lesson| lesson.at != at);
                }
                Move::Tell => network.tell(at, fates, now),
                _ => {}
            }
            network.pass(fates, now);
        }
        network.heal();
        let sites = &network.sites;
        let epoch = |name: &str| sites.iter().map(|site| site.epoch(name)).max().unwrap();
        for (at, site) in sites.iter().enumerate() {
            site.selector.validate().unwrap();
            let known = known(&site.selector, 1_000);
            for lesson in lessons.iter().filter(|lesson| lesson.epoch == epoch(&lesson.worker)) {
                let own = lessons.iter().any(|other| other.at == at && other.key == lesson.key);
                let holds = known.get(&lesson.key).is_some_and(|h| h.contains(&lesson.worker));
                prop_assert!(holds || own && lesson.at != at, "{at} lacks {lesson:?}: {known:?}");
            }
        }
        // Only routers that are gone can have taught anything else.
        if network.restarts == 0 {
            for site in sites {
                for ((key, depth), holders) in known(&site.selector, 1_000) {
                    for worker in holders {
                        let taught = lessons.iter().any(|lesson| {
                            lesson.key == (key, depth)
                                && lesson.worker == worker
                                && lesson.epoch == epoch(&worker)
                        });
                        prop_assert!(taught, "{key} at {worker}");
                    }
                }
            }
        }
    }
}
