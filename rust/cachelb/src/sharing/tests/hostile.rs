//! Messages that are well formed and lie.

use crate::sharing::messages::{Chain, Entries, Entry, Keeping, Kind, Message, put};

use super::*;
use crate::sharing::Kept;
use crate::sharing::peers::{ALL_ORIGINS, MOST_ORIGINS, Remote};

const LIMIT: usize = 4096;

fn small_router() -> Selector {
    let mut selector = router(1, 12);
    selector.sharing_mut().share(1, &[77], TTL_MS, LIMIT);
    selector
}

fn encoded(kind: Kind, origin: u64, first: u64, count: u32, entries: &[u8]) -> Vec<u8> {
    let message = Message {
        kind,
        origin,
        first,
        count,
        entries,
    };
    message.encode()
}

fn placed(key: u64, worker: u32, anchor: Option<u64>, chain: &[u64], out: &mut Vec<u8>) {
    let entry = Entry::Placed {
        key,
        pool: 0,
        worker,
        anchor: anchor.map(SequenceHash),
        chain: Chain::default(),
    };
    put(out, entry, &hashes(chain));
}

fn booked(key: u64, worker: u32, tokens: u64, out: &mut Vec<u8>) {
    let entry = Entry::Booked {
        key,
        pool: 0,
        worker,
        prompt_tokens: tokens,
        prefill_tokens: tokens,
    };
    put(out, entry, &[]);
}

fn hashes(chain: &[u64]) -> Vec<SequenceHash> {
    chain.iter().copied().map(SequenceHash).collect()
}

fn introduction(out: &mut Vec<u8>) {
    let (index, fingerprint, epoch) = (0, 77, 0);
    put(out, Entry::Pool { index, fingerprint }, &[]);
    for (index, name) in (0..).zip(WORKERS) {
        put(out, Entry::Worker { index, epoch, name }, &[]);
    }
}

#[test]
fn a_chain_that_contradicts_another_is_refused_whole_and_counted() {
    let mut selector = small_router();
    let mut entries = Vec::new();
    introduction(&mut entries);
    placed(0, 0, None, &[11, 12, 13], &mut entries);
    placed(0, 0, None, &[21, 12, 14], &mut entries);
    placed(0, 0, None, &[31, 32, 31], &mut entries);
    placed(0, 1, Some(12), &[11], &mut entries);
    placed(0, 1, Some(12), &[13, 14], &mut entries);
    let told = encoded(Kind::Delta, 9, 0, 10, &entries);
    assert_eq!(hear(&mut selector, &told, 1), Ok(Receipt::Applied(10)));
    selector.validate().unwrap();
    assert_eq!(held(&selector, "a"), [11, 12, 13].into());
    assert_eq!(held(&selector, "b"), [13, 14].into());
    let counts = counts(&selector);
    assert_eq!((counts.conflicts, counts.blocks), (3, 5));
}

#[test]
fn a_block_that_a_peer_put_elsewhere_does_not_stand_twice() {
    let mut selector = small_router();
    let mut entries = Vec::new();
    introduction(&mut entries);
    placed(0, 0, None, &[21, 12], &mut entries);
    placed(0, 0, None, &[13], &mut entries);
    hear(&mut selector, &encoded(Kind::Delta, 9, 0, 7, &entries), 1).unwrap();
    ask(&mut selector, &hashes(&[11, 12, 13, 14]), 2);
    selector.validate().unwrap();
    ask(&mut selector, &hashes(&[11, 13, 15]), 3);
    selector.validate().unwrap();
}

#[test]
fn numbers_of_workers_and_models_cost_nothing_but_what_is_named() {
    let mut selector = small_router();
    for origin in 100..140 {
        let (mut entries, fingerprint, epoch) = (Vec::new(), 77, 0);
        let index = (1 << 20) - 1;
        put(&mut entries, Entry::Pool { index, fingerprint }, &[]);
        let name = "w";
        put(&mut entries, Entry::Worker { index, epoch, name }, &[]);
        let told = encoded(Kind::Delta, origin, 0, 2, &entries);
        hear(&mut selector, &told, 1).unwrap();
    }
    let sharing = selector.sharing().unwrap();
    let peers = sharing.peers.by_origin.len();
    assert_eq!((peers, counts(&selector).crowded), (40, 0));
    assert!(sharing.memory_bytes() < 40 * 512);
}

#[test]
fn one_router_too_many_is_refused_and_none_is_forgotten_for_it() {
    let mut selector = small_router();
    let hello = |origin| encoded(Kind::Snapshot, origin, 5, 0, &[]);
    for origin in 0..MOST_ORIGINS as u64 {
        hear(&mut selector, &hello(100 + origin), 1).unwrap();
    }
    let mut refused = |message: &[u8], why: &str| {
        let error = hear(&mut selector, message, 1).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    };
    for kind in [Kind::Snapshot, Kind::Delta, Kind::Heartbeat] {
        refused(&encoded(kind, 7, 0, 1, &[0]), "1024 routers");
    }
    let (mut entries, index, fingerprint) = (Vec::new(), 0, 77);
    put(&mut entries, Entry::Pool { index, fingerprint }, &[]);
    refused(&encoded(Kind::Words, 7, 0, 1, &entries), "more than words");
    assert_eq!(selector.sharing().unwrap().origins().len(), MOST_ORIGINS);
    selector.sharing_mut().forget_origin(100, Millis(2));
    hear(&mut selector, &hello(7), 2).unwrap();
    selector.validate().unwrap();
}

#[test]
fn a_router_has_so_many_bytes_and_has_them_again_once_bookings_end() {
    let mut selector = small_router();
    let mut entries = Vec::new();
    introduction(&mut entries);
    for key in 0..100 {
        booked(key, 0, u64::MAX, &mut entries);
    }
    hear(&mut selector, &encoded(Kind::Delta, 9, 0, 105, &entries), 1).unwrap();
    selector.validate().unwrap();
    let open = selector.sharing().unwrap().origins()[0].1;
    let most = LIMIT / Remote::BYTES;
    assert!((most / 2..=most).contains(&open));
    assert_eq!(counts(&selector).crowded, 100 - open as u64);
    let mut entries = Vec::new();
    for key in 0..100 {
        put(&mut entries, Entry::Closed { key, failed: false }, &[]);
    }
    let told = encoded(Kind::Delta, 9, 105, 100, &entries);
    hear(&mut selector, &told, 2).unwrap();
    selector.validate().unwrap();
    assert_eq!(selector.sharing().unwrap().origins()[0].1, 0);
    assert_eq!(loads(&selector)["a"].0, 0);
    let heard = selector.sharing().unwrap().peers.bytes;
    assert!(heard < LIMIT / 4, "{heard}");
}

#[derive(Debug, Clone)]
enum Lie {
    Pool(u32),
    Worker(u32, u64, usize),
    Booked(u64, u32, u64),
    Placed(u64, u32, Option<u64>, Vec<u64>),
    Other(u64, u32),
}

#[derive(Debug, Clone)]
enum Attack {
    Message(u64, Kind, Vec<Lie>),
    Kept(Vec<Lie>),
    Ask(u64),
    Close(prop::sample::Index, bool),
    Reset(usize),
}

fn lies() -> impl Strategy<Value = Lie> {
    let numbers = || prop_oneof![8 => 0..5_u32, 1 => any::<u32>()];
    let chain = || proptest::collection::vec(1..24_u64, 1..7);
    prop_oneof![
        1 => numbers().prop_map(Lie::Pool),
        2 => (numbers(), 0..3_u64, 0..400_usize).prop_map(|(n, e, l)| Lie::Worker(n, e, l)),
        2 => (0..9_u64, numbers(), any::<u64>()).prop_map(|(k, w, t)| Lie::Booked(k, w, t)),
        8 => (0..9_u64, 0..4_u32, proptest::option::of(1..24_u64), chain())
            .prop_map(|(k, w, a, c)| Lie::Placed(k, w, a, c)),
        2 => (0..9_u64, numbers()).prop_map(|(k, w)| Lie::Other(k, w)),
    ]
}

fn attacks() -> impl Strategy<Value = Attack> {
    let told = || proptest::collection::vec(lies(), 1..9);
    let kinds =
        prop_oneof![6 => Just(Kind::Delta), 1 => Just(Kind::Snapshot), 2 => Just(Kind::Continued)];
    prop_oneof![
        6 => (2..40_u64, kinds, told()).prop_map(|(o, k, l)| Attack::Message(o, k, l)),
        1 => told().prop_map(Attack::Kept),
        5 => (1..48_u64).prop_map(Attack::Ask),
        3 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(i, f)| Attack::Close(i, f)),
        1 => (0..4_usize).prop_map(Attack::Reset),
    ]
}

fn written(lies: &[Lie]) -> Vec<u8> {
    let mut out = Vec::new();
    introduction(&mut out);
    for lie in lies {
        match lie {
            &Lie::Pool(index) => {
                let fingerprint = 77 + u64::from(index % 2);
                put(&mut out, Entry::Pool { index, fingerprint }, &[]);
            }
            &Lie::Worker(index, epoch, length) => {
                let long = "x".repeat(length);
                let name = if length < 40 {
                    WORKERS[length % 4]
                } else {
                    &long
                };
                put(&mut out, Entry::Worker { index, epoch, name }, &[]);
            }
            &Lie::Booked(key, worker, tokens) => {
                booked(key, worker, tokens, &mut out);
            }
            Lie::Placed(key, worker, anchor, chain) => {
                placed(*key, *worker, *anchor, chain, &mut out);
            }
            &Lie::Other(key, worker) => {
                let failed = worker % 2 == 0;
                put(&mut out, Entry::FirstToken { key }, &[]);
                put(&mut out, Entry::Cleared { worker, epoch: key }, &[]);
                put(&mut out, Entry::Closed { key, failed }, &[]);
            }
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// After any messages of others, and any placements here between, the index is sound, every sum is a recount, and
    /// nothing grows beyond the limits.
    #[test]
    fn lies_break_nothing_and_take_a_bounded_memory(
        plan in proptest::collection::vec(attacks(), 1..60),
    ) {
        let mut selector = small_router();
        let mut open = Vec::new();
        for (now, attack) in (0..).zip(plan) {
            let at = Millis(now);
            match attack {
                Attack::Message(origin, kind, lies) => {
                    let entries = written(&lies);
                    let count = Entries::new(&entries).count() as u32;
                    let next = selector.sharing.as_ref().unwrap().peers.by_origin.get(&origin);
                    let first = next.map_or(0, |peer| peer.next);
                    let first = if kind == Kind::Snapshot { first + 1 } else { first };
                    let _ = hear(&mut selector, &encoded(kind, origin, first, count, &entries), now);
                }
                Attack::Kept(lies) => {
                    let mut bytes = Vec::new();
                    let mut keeping = Keeping::begin(5, 3, &mut bytes);
                    let entries: Vec<u8> = written(&lies);
                    keeping.add(&entries);
                    bytes.extend_from_slice(&entries);
                    keeping.end(&mut bytes);
                    if let Ok(kept) = Kept::read(&bytes, 3) {
                        let mut restoring = kept.restore(&[77], 1000).unwrap();
                        while restoring.step(&mut selector, at) {}
                    }
                }
                Attack::Ask(last) => {
                    // Every block has one before it, as if hashed here.
                    let mut path: Vec<u64> = std::iter::successors(Some(last), |block| Some(block / 2))
                        .take_while(|block| *block > 0)
                        .collect();
                    path.reverse();
                    open.push(ask(&mut selector, &hashes(&path), now));
                }
                Attack::Close(which, failed) if !open.is_empty() => {
                    let booking = open.swap_remove(which.index(open.len()));
                    let ending = if failed { Ending::Failed } else { Ending::Completed };
                    selector.end(booking, ending, Usage::default(), at);
                }
                Attack::Reset(worker) => {
                    selector.workers_mut().reset_cache(WORKERS[worker], at);
                }
                Attack::Close(..) => {}
            }
            selector.validate().unwrap();
            let sharing = selector.sharing.as_ref().unwrap();
            prop_assert!(sharing.peers.bytes <= ALL_ORIGINS * LIMIT);
            prop_assert!(sharing.peers.by_origin.values().all(|peer| peer.bytes() <= LIMIT));
            prop_assert!(sharing.epochs.bytes <= LIMIT + 4 * 200);
        }
    }
}
