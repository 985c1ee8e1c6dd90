//! Snapshots for a router that starts later: the same blocks in the same order of eviction, whatever happens beside it;
//! and no block of a damaged one.

use crate::sharing::messages::{Chain, Entries, Entry, Keeping, Message, put};
use proptest::prelude::*;

use super::*;

const SEED: u64 = 3;

/// Lets `between` happen after every step.
fn keep_while(from: &mut Selector, mut between: impl FnMut(&mut Selector)) -> Vec<u8> {
    let mut out = Vec::new();
    let mut keeper = Keeper::begin(&[77], SEED, 5, &mut out);
    while let Some(next) = keeper.next(from) {
        keeper.write(&next, &mut out);
        between(from);
    }
    keeper.end(&mut out);
    out
}

fn keep(from: &mut Selector) -> Vec<u8> {
    keep_while(from, |_| {})
}

fn restore(to: &mut Selector, bytes: &[u8], now: u64) -> cachelb_core::Result<SharingCounters> {
    let kept = Kept::read(bytes, SEED)?;
    let mut restoring = kept.restore(&[77], TTL_MS)?;
    while restoring.step(to, Millis(now)) {}
    Ok(restoring.counters())
}

fn all_held(selector: &Selector) -> Vec<BTreeSet<u64>> {
    WORKERS.map(|name| held(selector, name)).into()
}

/// With one number of bytes for everything.
fn limited(bytes: Option<usize>) -> Selector {
    let settings = Settings {
        registered: true,
        max_memory_bytes: bytes,
        ..Settings::default()
    };
    let rule = Box::new(PrefillTimesBatch::default());
    let pool = PoolSettings::new(rule, 16, Placements::default());
    with_workers(settings, pool, &WORKERS)
}

fn traffic(selector: &mut Selector, steps: std::ops::Range<u64>) {
    for step in steps {
        let path = prompt(step % 7, 3, step % 23, 3 + (step % 11) as usize);
        let booking = ask(selector, &path, step);
        complete(selector, booking, step);
    }
}

#[test]
fn a_router_that_starts_later_knows_what_workers_hold_and_no_request() {
    let mut a = router(1, 1000);
    traffic(&mut a, 0..100);
    let open = ask(&mut a, &prompt(9, 3, 1, 40), 100);
    let told = tell(&mut a);
    let bytes = keep(&mut a);
    assert_eq!(Kept::read(&bytes, SEED).unwrap().written_ms, 5);
    for shares in [false, true] {
        let mut b = router(2, 1000);
        if !shares {
            b.sharing_mut().unshare(Millis(0));
        }
        let counts = restore(&mut b, &bytes, 200).unwrap();
        assert_eq!(all_held(&a), all_held(&b));
        let blocks: usize = all_held(&b).iter().map(BTreeSet::len).sum();
        assert_eq!(counts.blocks, blocks as u64);
        assert_eq!((counts.orphans, counts.strangers), (0, 0));
        assert!(b.book().bookings.is_empty());
        // Its own workers and nothing of the snapshot.
        assert_eq!(tell(&mut b).len(), usize::from(shares));
        b.validate().unwrap();
    }
    // Its own sharing goes on as before.
    assert!(a.end(open, Ending::Failed, Usage::default(), Millis(101)));
    let mut c = router(3, 1000);
    for message in told.into_iter().chain(tell(&mut a)) {
        let heard = hear(&mut c, &message, 102);
        assert!(matches!(heard, Ok(Receipt::Applied(_))));
    }
    assert_eq!(all_held(&a), all_held(&c));
}

#[test]
fn less_memory_keeps_what_was_used_last_on_every_worker() {
    let mut a = limited(Some(1 << 24));
    traffic(&mut a, 0..60);
    for own in 0..400 {
        ask(&mut a, &prompt(100 + own, 1, own, 200), 60 + own);
    }
    let bytes = keep(&mut a);
    let mut b = limited(Some(1 << 20));
    restore(&mut b, &bytes, 1000).unwrap();
    b.validate().unwrap();
    let (all, left) = (all_held(&a), all_held(&b));
    let newest = (380..400).flat_map(|own| prompt(100 + own, 1, own, 200));
    let newest: BTreeSet<u64> = newest.map(|hash| hash.0).collect();
    for (all, left) in all.iter().zip(&left) {
        assert!(left.is_subset(all) && !left.is_empty() && left.len() < all.len());
        assert!((all - left).is_disjoint(&newest));
    }
}

#[test]
fn a_cache_that_was_lost_since_stays_lost() {
    let (mut a, mut b) = (router(1, 1000), router(2, 1000));
    traffic(&mut a, 0..50);
    let bytes = keep(&mut a);
    b.workers_mut().reset_cache("a", Millis(51));
    let counts = restore(&mut b, &bytes, 52).unwrap();
    assert!(counts.stale > 0 && held(&b, "a").is_empty());
    assert_eq!(held(&b, "b"), held(&a, "b"));
    // A loss before is no second loss for a router that publishes nothing.
    a.workers_mut().reset_cache("b", Millis(53));
    traffic(&mut a, 54..90);
    let bytes = keep(&mut a);
    let mut c = router(3, 1000);
    c.sharing_mut().unshare(Millis(0));
    restore(&mut c, &bytes, 91).unwrap();
    restore(&mut c, &bytes, 92).unwrap();
    assert_eq!(all_held(&a), all_held(&c));
}

#[test]
fn other_hashes_are_refused_and_strangers_are_skipped() {
    let mut a = router(1, 1000);
    traffic(&mut a, 0..50);
    let bytes = keep(&mut a);
    let kept = Kept::read(&bytes, SEED).unwrap();
    let other = kept.restore(&[78], 1);
    assert!(matches!(other, Err(cachelb_core::Error::BadSnapshot(_))));
    assert_eq!(kept.workers().collect::<Vec<_>>(), WORKERS);
    let mut b = router(2, 1000);
    b.workers_mut().remove("c");
    let counts = restore(&mut b, &bytes, 60).unwrap();
    assert!(counts.strangers > 0);
    assert_eq!(held(&a, "d"), held(&b, "d"));
    assert_eq!(b.fleet().find("c"), None);
    for message in tell(&mut a).iter().chain(&snapshot(&mut a, Millis(60))) {
        assert!(Kept::read(message, SEED).is_err());
        assert!(restore(&mut b, message, 60).is_err());
    }
    assert!(hear(&mut b, &bytes, 61).is_err());
}

/// Entries with seal and checksum, as only a router with the seed can write them.
fn sealed(entries: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut keeping = Keeping::begin(5, SEED, &mut out);
    keeping.add(entries);
    out.extend_from_slice(entries);
    keeping.end(&mut out);
    out
}

#[test]
fn entries_out_of_place_are_refused() {
    let (index, fingerprint) = (0, 77);
    let pool = Entry::Pool { index, fingerprint };
    let worker = |index| Entry::Worker {
        index,
        epoch: 0,
        name: "a",
    };
    let placed = |pool, worker| Entry::Placed {
        key: 0,
        pool,
        worker,
        anchor: None,
        chain: Chain::default(),
    };
    let cases = [
        (vec![], true),
        (vec![pool, worker(0), placed(0, 0)], true),
        (vec![pool, placed(0, 0)], false),
        (vec![worker(0), placed(0, 0)], false),
        (vec![pool, worker(0), placed(0, 1)], false),
        (vec![pool, worker(0), placed(u32::MAX, 0)], false),
        (vec![pool, worker(0), Entry::FirstToken { key: 0 }], false),
        (vec![worker(u32::MAX)], true),
    ];
    let chain = [SequenceHash(9)];
    for (entries, fine) in cases {
        let mut bytes = Vec::new();
        for entry in &entries {
            let is_placed = matches!(entry, Entry::Placed { .. });
            put(&mut bytes, *entry, &chain[..usize::from(is_placed)]);
        }
        let bytes = sealed(&bytes);
        assert_eq!(Kept::read(&bytes, SEED).is_ok(), fine, "{entries:?}");
    }
    assert!(Kept::read(&sealed(&[]), SEED + 1).is_err());
}

proptest! {
    /// Whatever is damaged is refused, though the checksum is put right, and changes nothing.
    #[test]
    fn damage_is_refused(
        at in any::<prop::sample::Index>(),
        bytes in proptest::collection::vec(any::<u8>(), 1..12),
        cut in any::<bool>(),
    ) {
        let mut a = router(1, 1000);
        traffic(&mut a, 0..40);
        let good = keep(&mut a);
        let damage = |good: &[u8]| {
            let at = at.index(good.len());
            let mut bad = good.to_vec();
            if cut {
                bad.truncate(at);
            } else {
                let end = good.len().min(at + bytes.len());
                bad[at..end].copy_from_slice(&bytes[..end - at]);
            }
            bad
        };
        let message = Message::decode(&good).unwrap();
        let entries = &damage(message.entries);
        let signed = Message { entries, ..message }.encode();
        let mut b = router(2, 1000);
        for bad in [damage(&good), signed] {
            prop_assume!(bad != good);
            prop_assert!(restore(&mut b, &bad, 60).is_err());
            prop_assert!(all_held(&b).iter().all(BTreeSet::is_empty));
        }
        b.validate().unwrap();
        // Entries that a router could have written are read to their end, whatever they contain.
        if let Ok(kept) = Kept::read(&sealed(entries), SEED) {
            prop_assert!(kept.workers().count() <= entries.len());
        }
    }

    /// Others place, use, lose and forget between any two steps: blocks that a worker holds all the time are kept.
    #[test]
    fn what_is_held_all_the_time_is_kept(
        capacity in prop_oneof![Just(60_u32), Just(3_000), Just(100_000)],
        before in 1..400_u64,
        steps in proptest::collection::vec((0..9_u64, 0..60_u64, 1..600_usize, any::<bool>()), 0..40),
    ) {
        let mut a = router(1, capacity);
        for own in 0..before {
            ask(&mut a, &prompt(own % 9, 20, own % 60, 40 + (own % 160) as usize), own);
        }
        let mut always = all_held(&a);
        let mut steps = steps.into_iter();
        let bytes = keep_while(&mut a, |a| {
            let Some((family, own, length, reset)) = steps.next() else { return };
            if reset && own % 5 == 0 {
                a.workers_mut().reset_cache(WORKERS[family as usize % 4], Millis(before));
            }
            ask(a, &prompt(family, 20, own, length), before);
            for (always, now) in always.iter_mut().zip(all_held(a)) {
                always.retain(|hash| now.contains(hash));
            }
        });
        let entries = Keeping::open(&Message::decode(&bytes).unwrap(), SEED).unwrap();
        prop_assert_eq!(Entries::new(entries).filter(Result::is_err).count(), 0);
        let mut b = router(2, 1_000_000);
        b.sharing_mut().unshare(Millis(0));
        let counts = restore(&mut b, &bytes, before).unwrap();
        prop_assert_eq!(counts.strangers, 0);
        b.validate().unwrap();
        for (always, restored) in always.iter().zip(all_held(&b)) {
            prop_assert!(always.is_subset(&restored));
        }
    }
}
