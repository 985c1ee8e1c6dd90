//! Routers that share state, over a network that loses, repeats and reorders.

mod keeping;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

mod faults;
mod fleet;
mod hostile;
mod network;
mod routes;

use cachelb_core::block_tracker::Origin;
use cachelb_core::groups::{CacheGroup, GroupKind, Resuming, Retention};
use cachelb_core::ids::{Medium, Millis, SequenceHash, WorkerId};
use cachelb_core::index::Listing;
use cachelb_policy::{LeastLoaded, PrefillTimesBatch};

use super::*;
use crate::Selector;
use crate::bookings::ledger::{Ending, Usage};
use crate::selector::PoolId;
use crate::selector::{Facts, Offer, Offers, Placements, PoolSettings, Profile, Request, Settings};
use crate::tests::with_workers;

const WORKERS: [&str; 4] = ["a", "b", "c", "d"];
const TTL_MS: u64 = 1_000_000;

fn router(origin: u64, capacity: u32) -> Selector {
    let placements = Placements {
        max_blocks_per_worker: capacity,
        ..Placements::default()
    };
    let rule = Box::new(PrefillTimesBatch::default());
    sharing(origin, PoolSettings::new(rule, 16, placements))
}

fn sharing(origin: u64, pool: PoolSettings) -> Selector {
    let settings = Settings {
        seed: origin,
        registered: true,
        ..Settings::default()
    };
    let mut selector = with_workers(settings, pool, &WORKERS);
    selector.sharing_mut().share(origin, &[77], TTL_MS, 1 << 20);
    selector
}

fn add(selector: &mut Selector, name: &str, now: u64) -> WorkerId {
    let mut workers = selector.workers_mut();
    workers.add(name, Profile::default(), Millis(now))
}

fn complete(selector: &mut Selector, booking: BookingId, now: u64) {
    let completed = Ending::Completed;
    selector.end(booking, completed, Usage::default(), Millis(now));
}

fn worker_of(selector: &Selector, booking: BookingId) -> String {
    let worker = selector.book().bookings.worker(booking).unwrap();
    selector.fleet.name(worker).unwrap().to_string()
}

fn counts(selector: &Selector) -> SharingCounters {
    selector.sharing().unwrap().counters()
}

/// A prompt of `length` blocks that shares its first `shared` with others of its family.
fn prompt(family: u64, shared: usize, own: u64, length: usize) -> Vec<SequenceHash> {
    let block = |depth: usize| {
        let of = if depth < shared {
            family
        } else {
            1000 + 100 * family + own
        };
        SequenceHash(1 + of * 1000 + depth as u64)
    };
    (0..length).map(block).collect()
}

fn ask(selector: &mut Selector, path: &[SequenceHash], now: u64) -> BookingId {
    ask_one_of(&WORKERS, selector, path, now)
}

fn ask_one_of(
    names: &[&str],
    selector: &mut Selector,
    path: &[SequenceHash],
    now: u64,
) -> BookingId {
    let mut offers = Offers::new(names.iter().map(|&name| Offer::new(name)).collect());
    let request = Request {
        blocks: Some((path, Origin::Tokens)),
        prompt_tokens: 16 * path.len() as u64 + 3,
        now: Millis(now),
        ..Request::default()
    };
    let pick = selector.select(&mut offers, &request).unwrap();
    pick.booking.unwrap()
}

fn held(selector: &Selector, name: &str) -> BTreeSet<u64> {
    let worker = selector.fleet().find(name).unwrap();
    let mut found = BTreeSet::new();
    let Some(index) = selector.pools[PoolId(0)].exact() else {
        panic!("chained blocks are in the exact index");
    };
    let mut listing = Listing::of(worker, Medium::Gpu);
    listing.go_on(index, u64::MAX, usize::MAX, |_, chain| {
        found.extend(chain.iter().map(|hash| hash.0));
    });
    found
}

/// Requests, pending prefill tokens and pairs, blocks of decoding requests.
type Load = (u32, u64, u64, u64);

fn loads(selector: &Selector) -> BTreeMap<&'static str, Load> {
    let load = |name| (name, load(selector, name));
    WORKERS.into_iter().map(load).collect()
}

fn load(selector: &Selector, name: &str) -> Load {
    let worker = selector.fleet().find(name).unwrap();
    let load = selector.book().loads.get(worker).unwrap();
    (
        load.inflight,
        load.pending_prefill_tokens,
        load.pending_pairs,
        load.decode_blocks,
    )
}

/// All messages that wait at `from`.
fn tell(from: &mut Selector) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| from.sharing_mut().publish()).collect()
}

fn snapshot(from: &mut Selector, now: Millis) -> Vec<Vec<u8>> {
    let mut messages = from.sharing().unwrap().snapshot_changes();
    let (head, mut walk) = from.sharing_mut().snapshot_begin().unwrap();
    messages.push(head);
    while let Some(parts) = from.sharing_mut().snapshot_next(&mut walk) {
        messages.extend(parts);
    }
    let mut told = RouteCursor::default();
    while let Some(part) = from
        .sharing_mut()
        .snapshot_routes(PoolId(0), &mut told, now)
    {
        messages.push(part);
    }
    messages.push(from.sharing().unwrap().snapshot_end());
    messages
}

fn hear(to: &mut Selector, message: &[u8], now: u64) -> cachelb_core::Result<Receipt> {
    to.sharing_mut().receive(message, Millis(now))
}

fn hear_all(to: &mut Selector, messages: &[Vec<u8>], now: u64) {
    for message in messages {
        hear(to, message, now).unwrap();
        to.validate().unwrap();
    }
}

/// Delivers all messages that wait at `from`.
fn pass(from: &mut Selector, to: &mut Selector, now: u64) {
    hear_all(to, &tell(from), now);
}

#[test]
fn what_one_routes_the_other_knows() {
    let (mut a, mut b) = (router(1, 1000), router(2, 1000));
    let path = prompt(1, 4, 1, 9);
    let booking = ask(&mut a, &path, 5);
    let name = worker_of(&a, booking);
    for message in tell(&mut a) {
        let applied = hear(&mut b, &message, 6);
        assert!(matches!(applied, Ok(Receipt::Applied(_))));
        let again = hear(&mut b, &message, 6);
        assert_eq!(again, Ok(Receipt::Applied(0)));
        assert_eq!(hear(&mut a, &message, 6), Ok(Receipt::Own));
    }
    assert_eq!(loads(&a), loads(&b));
    assert_eq!(held(&b, &name).len(), 9);
    assert!(a.first_token(booking, Millis(9)));
    complete(&mut a, booking, 10);
    pass(&mut a, &mut b, 11);
    assert_eq!(loads(&a), loads(&b));
    let counts = b.ledger();
    let ended: u64 = counts.counters.endings.iter().sum();
    assert_eq!((counts.selected(), ended), (0, 0), "not its own requests");
    // It follows where the other cached it.
    let next = ask(&mut b, &prompt(1, 4, 1, 12), 12);
    assert_eq!(worker_of(&b, next), name);
    b.validate().unwrap();
}

#[test]
fn a_failed_request_takes_its_blocks_back_everywhere() {
    let (mut a, mut b) = (router(1, 1000), router(2, 1000));
    let booking = ask(&mut a, &prompt(1, 4, 1, 9), 5);
    let name = worker_of(&a, booking);
    pass(&mut a, &mut b, 6);
    // Shares the first four blocks, at the same worker.
    ask_one_of(&[&name], &mut b, &prompt(1, 4, 2, 6), 7);
    assert_eq!(held(&b, &name).len(), 11);
    a.end(booking, Ending::Failed, Usage::default(), Millis(8));
    pass(&mut a, &mut b, 9);
    assert_eq!(held(&b, &name).len(), 6);
    assert_eq!(held(&a, &name).len(), 0);
    b.validate().unwrap();
}

#[test]
fn hearsay_ends_and_what_was_found_again_stays() {
    let (mut a, mut b) = (router(1, 1000), router(2, 1000));
    let (one, two) = (prompt(1, 4, 1, 4), prompt(2, 4, 2, 4));
    let names = [&one, &two].map(|path| {
        let booking = ask(&mut a, path, 5);
        worker_of(&a, booking)
    });
    pass(&mut a, &mut b, 6);
    ask_one_of(&[&names[0]], &mut b, &one, 7);
    let other = ["a", "b", "c"].into_iter().find(|name| **name != *names[1]);
    ask_one_of(&[other.unwrap()], &mut b, &prompt(9, 1, 9, 1), TTL_MS + 7);
    assert!(one.iter().all(|hash| held(&b, &names[0]).contains(&hash.0)));
    let ended = held(&b, &names[1]);
    assert!(two.iter().all(|hash| !ended.contains(&hash.0)));
}

#[test]
fn a_lost_cache_is_lost_for_all_and_once() {
    let (mut a, mut b) = (router(1, 1000), router(2, 1000));
    let booking = ask(&mut a, &prompt(1, 4, 1, 9), 5);
    let name = worker_of(&a, booking);
    let placed = tell(&mut a);
    // Both see the restart; one receives the placement from before only now.
    a.workers_mut().reset_cache(&name, Millis(6));
    b.workers_mut().reset_cache(&name, Millis(6));
    hear_all(&mut b, &placed, 7);
    assert_eq!((held(&b, &name).len(), counts(&b).stale), (0, 1));
    let cleared = tell(&mut b);
    let new = prompt(2, 1, 3, 5);
    pass(&mut a, &mut b, 8);
    let again = ask(&mut a, &new, 9);
    hear_all(&mut a, &cleared, 10);
    let name = worker_of(&a, again);
    assert_eq!(held(&a, &name).len(), 5, "the same loss is no second one");
    pass(&mut a, &mut b, 11);
    assert_eq!(held(&b, &name).len(), 5);
}

#[test]
fn who_hears_of_a_lost_cache_places_on_the_new_one() {
    let (mut a, mut b) = (router(1, 1000), router(2, 1000));
    ask_one_of(&["a"], &mut a, &prompt(1, 4, 1, 9), 5);
    pass(&mut a, &mut b, 6);
    b.workers_mut().reset_cache("a", Millis(7));
    pass(&mut b, &mut a, 8);
    ask_one_of(&["a"], &mut a, &prompt(2, 4, 1, 5), 9);
    pass(&mut a, &mut b, 10);
    assert_eq!((held(&b, "a").len(), counts(&b).stale), (5, 0));
    assert!(tell(&mut b).is_empty(), "the same loss is published once");
}

#[test]
fn a_booking_waits_for_its_worker() {
    let (mut a, mut b) = (router(1, 1000), router(2, 1000));
    add(&mut a, "new", 1);
    let booking = ask_one_of(&["new"], &mut a, &prompt(1, 4, 1, 9), 5);
    a.first_token(booking, Millis(6));
    pass(&mut a, &mut b, 7);
    assert!(b.book().bookings.is_empty());
    assert_eq!(b.sharing().unwrap().origins(), [(1, 1)]);
    let id = add(&mut b, "new", 8);
    assert_eq!(
        (
            b.book().loads.inflight(id),
            b.book().loads.get(id).unwrap().decode_blocks
        ),
        (1, 9)
    );
    // It leaves and comes back; the booking still waits for its end.
    b.workers_mut().remove("new");
    b.validate().unwrap();
    assert_eq!(b.book().bookings.len(), 0);
    let id = add(&mut b, "new", 9);
    assert_eq!(b.book().loads.inflight(id), 1);
    // Who made it takes the worker out, and the booking with it.
    a.workers_mut().remove("new");
    pass(&mut a, &mut b, 10);
    assert!(b.book().bookings.is_empty());
    assert_eq!(b.sharing().unwrap().origins(), [(1, 0)]);
}

#[test]
fn after_a_loss_that_one_saw_what_the_other_places_counts() {
    let (mut a, mut b) = (router(1, 1000), router(2, 1000));
    pass(&mut b, &mut a, 1);
    let name = WORKERS[0];
    let before = ask_one_of(&[name], &mut b, &prompt(1, 4, 1, 9), 2);
    a.workers_mut().reset_cache(name, Millis(5));
    // Placed by one who did not know yet.
    pass(&mut b, &mut a, 6);
    assert_eq!((held(&a, name).len(), counts(&a).stale), (0, 1));
    pass(&mut a, &mut b, 6);
    assert_eq!(held(&b, name).len(), 0);
    ask_one_of(&[name], &mut b, &prompt(2, 4, 1, 5), 7);
    pass(&mut b, &mut a, 8);
    assert_eq!((held(&a, name).len(), counts(&a).stale), (5, 1));
    assert_eq!(held(&a, name), held(&b, name));
    assert!(tell(&mut a).is_empty(), "it ends there");
    complete(&mut b, before, 9);
}

#[test]
fn an_old_snapshot_changes_nothing_and_is_followed_by_what_comes() {
    let (mut a, mut b) = (router(1, 1000), router(2, 1000));
    let first = ask(&mut a, &prompt(1, 4, 1, 9), 5);
    let old = snapshot(&mut a, Millis(99));
    tell(&mut a);
    complete(&mut a, first, 6);
    ask(&mut a, &prompt(2, 4, 1, 9), 6);
    hear_all(&mut b, &snapshot(&mut a, Millis(99)), 7);
    tell(&mut a);
    for message in &old {
        assert_ne!(hear(&mut b, message, 8), Ok(Receipt::Gap));
    }
    assert_eq!(loads(&a), loads(&b));
    ask(&mut a, &prompt(3, 4, 1, 9), 9);
    for message in tell(&mut a) {
        let news = hear(&mut b, &message, 9);
        assert!(matches!(news, Ok(Receipt::Applied(1..))));
    }
    assert_eq!(loads(&a), loads(&b));
    b.validate().unwrap();
}

#[test]
fn parts_of_a_snapshot_from_before_a_loss_are_stale_after_it() {
    let (mut a, mut b) = (router(1, 1000), router(2, 1000));
    let booking = ask(&mut a, &prompt(1, 4, 1, 9), 5);
    let name = worker_of(&a, booking);
    tell(&mut a);
    let parts = snapshot(&mut a, Millis(99));
    hear_all(&mut b, &parts[..1], 6);
    // News go another way than snapshots, and faster.
    a.workers_mut().reset_cache(&name, Millis(7));
    pass(&mut a, &mut b, 8);
    hear_all(&mut b, &parts[1..], 9);
    assert_eq!(held(&b, &name).len(), 0);
    assert!(counts(&b).stale > 0);
    hear_all(&mut b, &snapshot(&mut a, Millis(99)), 10);
    ask_one_of(&[&name], &mut a, &prompt(2, 4, 1, 5), 11);
    pass(&mut a, &mut b, 12);
    assert_eq!(held(&b, &name).len(), 5);
}

#[test]
fn a_router_that_is_gone_takes_its_load_along_and_a_stranger_is_counted() {
    let (mut a, mut b) = (router(1, 1000), router(2, 1000));
    for own in 0..9 {
        ask(&mut a, &prompt(1, 4, own, 9), 5);
    }
    pass(&mut a, &mut b, 6);
    assert_eq!(b.sharing().unwrap().origins(), [(1, 9)]);
    assert_eq!(b.sharing_mut().forget_origin(1, Millis(7)), 9);
    assert_eq!(b.book().bookings.len(), 0);
    let mut c = Selector::new(
        Settings::default(),
        PoolSettings::new(Box::new(LeastLoaded::default()), 16, Placements::default()),
    );
    c.sharing_mut().share(3, &[78], TTL_MS, 1 << 20);
    hear_all(&mut c, &snapshot(&mut a, Millis(8)), 8);
    assert!(counts(&c).strangers > 9 && c.book().bookings.is_empty());
    c.validate().unwrap();
    // The load of a known worker counts, whatever the model.
    for name in WORKERS {
        add(&mut c, name, 9);
    }
    assert_eq!(loads(&c), loads(&a));
    c.validate().unwrap();
}

#[test]
fn a_snapshot_keeps_the_order_of_evictions() {
    let mut a = router(1, 60);
    for step in 0..200_u64 {
        let path = prompt(step % 7, 3, step % 23, 3 + (step % 11) as usize);
        let booking = ask(&mut a, &path, step);
        complete(&mut a, booking, step);
    }
    let mut b = router(2, 60);
    hear_all(&mut b, &snapshot(&mut a, Millis(300)), 300);
    for name in WORKERS {
        assert_eq!(held(&a, name), held(&b, name));
    }
    // Further requests evict equal blocks in both: a third router publishes them, so that both take the same steps.
    let mut c = router(3, 1000);
    for step in 200..260_u64 {
        ask(&mut c, &prompt(step % 5, 3, step, 9), step);
    }
    for message in tell(&mut c) {
        hear(&mut a, &message, 400).unwrap();
        hear(&mut b, &message, 400).unwrap();
        for name in WORKERS {
            assert_eq!(held(&a, name), held(&b, name));
        }
    }
    a.validate().unwrap();
    b.validate().unwrap();
}

#[test]
fn news_and_snapshots_tell_where_workers_resume() {
    let group = |kind| CacheGroup {
        kind,
        block_size: 16,
    };
    let groups = [group(GroupKind::Mamba), group(GroupKind::Full)];
    let profile = Profile {
        engine: Facts {
            resuming: Resuming::of(&groups, Retention::Ends, false),
            ..Facts::default()
        },
        ..Profile::default()
    };
    let [mut a, mut b, mut c] = [1, 2, 3].map(|origin| {
        let mut selector = router(origin, 100);
        selector.workers_mut().add("a", profile.clone(), Millis(0));
        selector
    });
    let path = prompt(1, 6, 1, 9);
    let booking = ask_one_of(&["a"], &mut a, &path, 1);
    complete(&mut a, booking, 2);
    hear_all(&mut b, &tell(&mut a), 3);
    hear_all(&mut c, &snapshot(&mut a, Millis(3)), 3);
    for selector in [&mut a, &mut b, &mut c] {
        let worker = selector.fleet.find("a").unwrap();
        let index = selector.pools[PoolId(0)].exact().unwrap();
        let marked = |hash: &&SequenceHash| index.is_marked(worker, **hash, &Medium::ALL).unwrap();
        let marked: Vec<_> = path.iter().filter(marked).collect();
        assert_eq!(marked, [&path[8]]);
        selector.validate().unwrap();
    }
}

#[test]
fn speeds_are_learned_from_own_first_tokens_only() {
    let (mut a, mut b) = (router(1, 1000), router(2, 1000));
    for i in 0..10_u64 {
        let now = i * 10_000;
        let id = ask_one_of(&["a"], &mut a, &prompt(i, 0, i, 50), now);
        pass(&mut a, &mut b, now + 5);
        a.first_token(id, Millis(now + 100));
        // With the next round of messages.
        pass(&mut a, &mut b, now + 1_000);
        complete(&mut a, id, now + 2_000);
    }
    let learned = |selector: &Selector| {
        let worker = selector.fleet().find("a").unwrap();
        let load = selector.book().loads.get(worker).unwrap();
        (load.speed.get(), load.observed_prefill_tps.get())
    };
    let (speed, observed) = learned(&a);
    assert!((speed.unwrap() - 8.03).abs() < 1e-9 && (observed.unwrap() - 8_030.0).abs() < 1e-9);
    assert_eq!(learned(&b), (None, None));
    b.validate().unwrap();
}
