use super::super::register::tests::words;
use super::*;
use proptest::prelude::*;
use proptest::{collection, option};

fn entries() -> impl Strategy<Value = (Entry<'static>, Vec<SequenceHash>)> {
    let alone = prop_oneof![
        any::<(u32, u64)>().prop_map(|(index, fingerprint)| Entry::Pool { index, fingerprint }),
        any::<(u32, u64)>().prop_map(|(index, epoch)| {
            let name = "gpu-ä";
            Entry::Worker { index, epoch, name }
        }),
        (0..9_u32, 0..300_u32, any::<(u64, u64, u64)>()).prop_map(|(pool, worker, numbers)| {
            let (key, prompt_tokens, prefill_tokens) = numbers;
            Entry::Booked {
                key,
                pool,
                worker,
                prompt_tokens,
                prefill_tokens,
            }
        }),
        any::<u64>().prop_map(|key| Entry::FirstToken { key }),
        any::<(u64, bool)>().prop_map(|(key, failed)| Entry::Closed { key, failed }),
        any::<u64>().prop_map(|epoch| Entry::Cleared { worker: 7, epoch }),
        (
            any::<(u32, u32, u64)>(),
            collection::vec((any::<u64>(), 1..u32::MAX), 1..9)
        )
            .prop_map(|((part, worker, age_ms), keys)| {
                let packed = keys
                    .iter()
                    .map(|&(key, depth)| Keys::pack(RouteKey(key), depth));
                let packed: Vec<_> = packed.collect();
                Entry::Learned {
                    pool: 1,
                    part,
                    worker,
                    age_ms,
                    keys: Keys::of(packed.leak()),
                }
            }),
        (any::<(u64, u64)>(), words()).prop_map(|((counter, origin), word)| {
            let mut bytes = Vec::new();
            word.put(&mut bytes);
            Entry::Stated {
                name: "http://gpu-ä:8000",
                version: Version { counter, origin },
                word: bytes.leak(),
            }
        }),
    ];
    let hash = || any::<u64>().prop_map(SequenceHash);
    let placed = (
        any::<(u64, u32)>(),
        option::of(hash()),
        collection::vec(hash(), 1..40),
    );
    let placed = placed.prop_map(|((key, worker), anchor, chain)| {
        let entry = Entry::Placed {
            key,
            pool: 0,
            worker,
            anchor,
            chain: Chain(&[]),
        };
        (entry, chain)
    });
    let resumed = (any::<(u32, u32)>(), collection::vec(hash(), 1..4));
    let resumed = resumed.prop_map(|((pool, worker), chain)| {
        let entry = Entry::Resumed {
            pool,
            worker,
            blocks: Chain(&[]),
        };
        (entry, chain)
    });
    prop_oneof![8 => alone.prop_map(|entry| (entry, vec![])), 1 => placed, 1 => resumed]
}

/// The entry with the chain in it, comparable.
fn plain(entry: Entry<'_>) -> (String, Vec<SequenceHash>) {
    match entry {
        Entry::Placed {
            key,
            pool,
            worker,
            anchor,
            chain,
        } => {
            let bare = format!("{key} {pool} {worker} {anchor:?}");
            (bare, chain.iter().collect())
        }
        Entry::Resumed {
            pool,
            worker,
            blocks,
        } => (format!("{pool} {worker}"), blocks.iter().collect()),
        other => (format!("{other:?}"), vec![]),
    }
}

proptest! {
    #[test]
    fn entries_come_back_and_cut_ones_are_refused(
        all in collection::vec(entries(), 0..20),
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
    fn any_bytes_end(bytes in collection::vec(any::<u8>(), 0..200)) {
        let read = Entries::new(&bytes).count();
        prop_assert!(read <= bytes.len());
    }
}

#[test]
fn an_unknown_entry_and_a_route_of_no_blocks_are_refused() {
    let read = |bytes: &[u8]| Entries::new(bytes).next().unwrap().unwrap_err();
    // Who does not know an entry cannot skip it.
    assert_eq!(read(&[99]), Error::BadMessage("unknown entry 99".into()));
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
    let error = Error::BadMessage("a route has no blocks".into());
    assert_eq!(read(&bytes), error);
}
