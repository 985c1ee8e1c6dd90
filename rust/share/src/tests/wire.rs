use super::*;
use crate::fleet::tests::words;
use proptest::prelude::*;

fn entries() -> impl Strategy<Value = (Entry<'static>, Vec<SequenceHash>)> {
    let hash = any::<u64>().prop_map(SequenceHash);
    let empty = Chain(&[]);
    prop_oneof![
        (any::<u32>(), any::<u64>())
            .prop_map(|(index, fingerprint)| (Entry::Pool { index, fingerprint }, vec![])),
        (any::<u32>(), any::<u64>()).prop_map(|(index, epoch)| (
            Entry::Worker {
                index,
                epoch,
                name: "gpu-ä"
            },
            vec![]
        )),
        (
            any::<u64>(),
            0..9_u32,
            0..300_u32,
            any::<u64>(),
            any::<u64>()
        )
            .prop_map(|(key, pool, worker, prompt_tokens, prefill_tokens)| (
                Entry::Booked {
                    key,
                    pool,
                    worker,
                    prompt_tokens,
                    prefill_tokens
                },
                vec![]
            )),
        (
            any::<u64>(),
            any::<u32>(),
            proptest::option::of(hash),
            proptest::collection::vec(any::<u64>().prop_map(SequenceHash), 1..40)
        )
            .prop_map(move |(key, worker, anchor, chain)| (
                Entry::Placed {
                    key,
                    pool: 0,
                    worker,
                    anchor,
                    chain: empty
                },
                chain
            )),
        (any::<u64>(), any::<bool>()).prop_map(|(key, failed)| if failed {
            (Entry::FirstToken { key }, vec![])
        } else {
            (Entry::Closed { key, failed: true }, vec![])
        }),
        any::<u64>().prop_map(|epoch| (Entry::Cleared { worker: 7, epoch }, vec![])),
        (
            any::<(u32, u32, u64)>(),
            proptest::collection::vec((any::<u64>(), 1..u32::MAX), 1..9)
        )
            .prop_map(|((part, worker, age_ms), keys)| {
                let packed = keys
                    .iter()
                    .map(|&(key, depth)| Keys::pack(RouteKey(key), depth));
                let packed: Vec<_> = packed.collect();
                let entry = Entry::Learned {
                    pool: 1,
                    part,
                    worker,
                    age_ms,
                    keys: Keys::of(packed.leak()),
                };
                (entry, vec![])
            }),
        (any::<(u64, u64)>(), words()).prop_map(|((counter, origin), word)| {
            let mut bytes = Vec::new();
            word.put(&mut bytes);
            let entry = Entry::Stated {
                name: "http://gpu-ä:8000",
                version: Version { counter, origin },
                word: bytes.leak(),
            };
            (entry, vec![])
        }),
    ]
}

/// The entry with the chain in it, comparable.
fn plain(entry: Entry<'_>) -> (String, Vec<SequenceHash>) {
    match entry {
        Entry::Placed { chain, .. } => {
            let bare = match entry {
                Entry::Placed {
                    key,
                    pool,
                    worker,
                    anchor,
                    ..
                } => format!("{key} {pool} {worker} {anchor:?}"),
                _ => String::new(),
            };
            (bare, chain.iter().collect())
        }
        other => (format!("{other:?}"), vec![]),
    }
}

proptest! {
    #[test]
    fn entries_come_back_and_cut_ones_are_refused(
        all in proptest::collection::vec(entries(), 0..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = Vec::new();
        let mut ends = vec![0];
        for (entry, chain) in &all {
            put(&mut bytes, *entry, chain);
            ends.push(bytes.len());
        }
        let read: Vec<_> = Entries::new(&bytes).map(|e| plain(e.unwrap())).collect();
        prop_assert_eq!(read.len(), all.len());
        for ((entry, chain), read) in all.iter().zip(read) {
            let mut expected = plain(*entry);
            expected.1.clone_from(chain);
            prop_assert_eq!(expected, read);
        }
        let cut = cut.index(bytes.len() + 1);
        let broken = Entries::new(&bytes[..cut]).any(|entry| entry.is_err());
        prop_assert_eq!(broken, !ends.contains(&cut));
    }

    #[test]
    fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let read = Entries::new(&bytes).count();
        prop_assert!(read <= bytes.len());
    }
}

#[test]
fn an_unknown_entry_and_a_route_of_no_blocks_are_refused() {
    let read = |bytes: &[u8]| Entries::new(bytes).next().unwrap().unwrap_err();
    assert_eq!(
        read(&[99]),
        Error::BadMessage("unknown entry 99".into()),
        "who does not know an entry cannot skip it"
    );
    let packed = [Keys::pack(RouteKey(5), 0)];
    let entry = Entry::Learned {
        pool: 0,
        part: 0,
        worker: 0,
        age_ms: 0,
        keys: Keys::of(&packed),
    };
    let mut bytes = Vec::new();
    put(&mut bytes, entry, &[]);
    assert_eq!(
        read(&bytes),
        Error::BadMessage("a route has no blocks".into())
    );
}
