//! Samples of both managers, and whatever is none. Hashes are computed with Python by the formulas of TensorRT-LLM.

mod fuzz;
mod hashes;

use cachelb_core::ids::Medium;

use super::{MOST_MESSAGE, MOST_WAITING, Polled, PolledSettings, Published};
use crate::batch::{Attention, Batch, Event, Place, Store};
use crate::decode::decode;

const ROOT: u64 = 924_206_229_973_855;
const NEXT: u64 = 2_728_178_455_351_807_326;
const TAIL: u64 = 5_840_390_857_880_430_736;

fn polled() -> Polled {
    with(1, None, true)
}

fn with(ranks: u32, block_size: Option<u32>, verify: bool) -> Polled {
    Polled::new(PolledSettings {
        ranks,
        block_size,
        verify,
    })
}

fn tokens(ids: &[u32]) -> String {
    let tokens = ids
        .iter()
        .map(|id| format!(r#"{{"type": "unique_token", "token_id": {id}, "token_extra_id": 0}}"#));
    tokens.collect::<Vec<_>>().join(", ")
}

fn block(hash: &str, ids: &[u32], more: &str) -> String {
    let tokens = tokens(ids);
    format!(
        r#"{{"type": "stored_block", "block_hash": {hash}, "tokens": [{tokens}], "priority": 35{more}}}"#
    )
}

fn stored(parent: &str, blocks: &[String]) -> String {
    let blocks = blocks.join(", ");
    format!(r#"{{"type": "stored", "parent_hash": {parent}, "blocks": [{blocks}]}}"#)
}

/// The first manager: groups by window.
fn v1(id: u64, window: u32, data: &str) -> String {
    format!(
        r#"{{"event_id": {id}, "data": {data}, "window_size": {window}, "hash_algo": "v1_block_key"}}"#
    )
}

/// The second.
fn v2(id: u64, window: u32, layers: u32, data: &str) -> String {
    let event = v1(id, window, data);
    format!(
        r#"{}, "layer_group_id": {layers}}}"#,
        &event[..event.len() - 1]
    )
}

fn take(polled: &mut Polled, events: &[String]) -> Vec<Published> {
    let answer = format!("[{}]", events.join(", "));
    polled.take(answer.as_bytes(), 1.5).expect("a good answer")
}

fn read(message: &Published) -> Batch {
    let mut batch = Batch::default();
    decode(&message.payload, &mut batch).expect("a good message");
    batch
}

/// The batch of one poll, and its stores.
fn only(polled: &mut Polled, events: &[String]) -> (Batch, Vec<Store>) {
    let messages = take(polled, events);
    assert_eq!(messages.len(), 1);
    let batch = read(&messages[0]);
    let stores = batch.events.iter().filter_map(|event| match event {
        Event::Store(store) => Some(*store),
        _ => None,
    });
    let stores = stores.collect();
    (batch, stores)
}

fn chain() -> String {
    let next = block(&NEXT.to_string(), &[5, 6, 7, 8], "");
    let tail = block(&TAIL.to_string(), &[9], "");
    stored(
        "null",
        &[block(&ROOT.to_string(), &[1, 2, 3, 4], ""), next, tail],
    )
}

fn removed(hashes: &[u64]) -> String {
    format!(r#"{{"type": "removed", "block_hashes": {hashes:?}}}"#)
}

const CREATED: &str = r#"{"type": "created", "num_blocks_per_cache_level": [100, 20]}"#;

#[test]
fn a_chain_comes_without_its_partial_block_nor_the_removal_of_that() {
    let mut polled = polled();
    let events = [
        v1(0, 4096, CREATED),
        v1(1, 4096, &chain()),
        v1(2, 4096, &removed(&[TAIL])),
    ];
    let (batch, stores) = only(&mut polled, &events);
    assert_eq!(
        (batch.events.len(), batch.malformed_events, batch.rank),
        (1, 0, None)
    );
    assert_eq!(batch.tokens_of(stores[0].tokens), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!((stores[0].block_size, stores[0].extras.len), (4, 0));
    assert_eq!(stores[0].group, Some(4096));
    assert_eq!(stores[0].attention, Attention::Full);
    assert_eq!(stores[0].place, Place::In(Medium::Gpu));
    let (batch, _) = only(&mut polled, &[v1(3, 4096, &removed(&[NEXT, ROOT]))]);
    let [Event::Remove(remove)] = batch.events[..] else {
        panic!("{batch:?}")
    };
    assert_eq!(
        (remove.names.len, remove.place, remove.group),
        (2, Place::Unsaid, Some(4096))
    );
}

#[test]
fn only_the_largest_window_is_full_attention_even_if_it_comes_last() {
    let events = [v1(0, 128, &chain()), v1(1, 4096, &chain())];
    let (_, stores) = only(&mut polled(), &events);
    assert_ne!(stores[0].attention, Attention::Full);
    assert_eq!(stores[1].attention, Attention::Full);
    let events = [
        v2(0, 4096, 0, CREATED),
        v2(1, 128, 1, &chain()),
        v2(2, 4096, 0, &chain()),
    ];
    let (_, stores) = only(&mut polled(), &events);
    assert_ne!(stores[0].attention, Attention::Full);
    assert_eq!((stores[0].group, stores[1].group), (Some(1), Some(0)));
    assert_eq!(stores[1].attention, Attention::Full);
}

#[test]
fn a_larger_window_in_a_later_poll_starts_over() {
    let mut polled = polled();
    only(&mut polled, &[v1(0, 128, &chain())]);
    let messages = take(&mut polled, &[v1(1, 4096, &chain())]);
    let numbers: Vec<u64> = messages.iter().map(|message| message.seq).collect();
    assert_eq!(numbers, [0, 2]);
    assert!(read(&messages[0]).events.is_empty());
}

#[test]
fn layers_with_a_state_store_blocks_whose_parents_they_do_not_have() {
    let last = stored(
        &ROOT.to_string(),
        &[block(&NEXT.to_string(), &[5, 6, 7, 8], "")],
    );
    let events = [
        v2(0, 4096, 0, CREATED),
        v2(1, 4096, 1, CREATED),
        v2(2, 4096, 0, &chain()),
        v2(3, 4096, 1, &last),
    ];
    let (_, stores) = only(&mut polled(), &events);
    assert_eq!(stores[0].attention, Attention::Full);
    assert_ne!(stores[1].attention, Attention::Full);
}

#[test]
fn a_block_that_moves_to_the_host_is_there_before_it_is_gone_from_the_device() {
    let mut polled = polled();
    only(&mut polled, &[v1(0, 4096, &chain())]);
    let moved = |old: u32, new: u32| {
        format!(
            r#"{{"type": "updated", "block_hash": {NEXT}, "cache_level": {{"type": "event_diff", "new_value": {new},
            "old_value": {old}}}, "priority": null}}"#
        )
    };
    let (batch, _) = only(&mut polled, &[v1(1, 4096, &moved(0, 1))]);
    let [Event::Store(store), Event::Remove(remove)] = batch.events[..] else {
        panic!("{batch:?}")
    };
    assert_eq!((store.place, store.tokens.len), (Place::In(Medium::Cpu), 0));
    assert_eq!(
        (remove.place, remove.group),
        (Place::In(Medium::Gpu), Some(4096))
    );
    let priority = r#"{"type": "updated", "block_hash": 1, "cache_level": null,
        "priority": {"old_value": 35, "new_value": 80}}"#;
    assert!(
        take(
            &mut polled,
            &[v1(2, 4096, priority), v1(3, 4096, &moved(1, 1))]
        )
        .is_empty()
    );
    assert_eq!(take(&mut polled, &[v1(4, 4096, &moved(1, 0))])[0].seq, 2);
}

#[test]
fn holes_and_restarts_are_those_of_messages() {
    let gone = |id| v1(id, 4096, &removed(&[NEXT]));
    let cases: [(&[u64], &[u64]); 6] = [
        (&[0, 1, 2], &[0]),
        (&[5, 6], &[1]),
        (&[0, 1, 3, 4, 9], &[0, 2, 4]),
        (&[0, 1, 0, 1], &[0, 0, 1]),
        (&[0, 4, 2], &[0, 2, 0, 2]),
        (&[3, 0], &[1, 0, 1]),
    ];
    for (ids, expected) in cases {
        let events: Vec<String> = ids.iter().map(|id| gone(*id)).collect();
        let messages = take(&mut polled(), &events);
        let numbers: Vec<u64> = messages.iter().map(|message| message.seq).collect();
        assert_eq!(numbers, expected, "{ids:?}");
        assert!(messages.is_sorted_by(|a, b| read(a).ts < read(b).ts));
        let mut polled = polled();
        let one_by_one = events
            .iter()
            .flat_map(|event| take(&mut polled, std::slice::from_ref(event)));
        let lives = |numbers: &[u64]| numbers.iter().filter(|seq| **seq == 0).count();
        let numbers: Vec<u64> = one_by_one.map(|message| message.seq).collect();
        assert_eq!(lives(&numbers), lives(expected), "{ids:?}");
    }
}

#[test]
fn ranks_have_numbers_of_their_own_and_foreign_ones_are_dropped() {
    let of = |id, rank: u32| {
        let event = v1(id, 4096, &removed(&[NEXT]));
        format!(
            r#"{}, "attention_dp_rank": {rank}}}"#,
            &event[..event.len() - 1]
        )
    };
    let mut polled = with(2, None, true);
    let messages = take(
        &mut polled,
        &[of(0, 0), of(0, 1), of(1, 0), of(0, 2), of(2, 1)],
    );
    let found: Vec<_> = messages
        .iter()
        .map(|message| (message.rank, message.seq))
        .collect();
    assert_eq!(found, [(Some(1), 0), (Some(0), 0), (Some(1), 2)]);
    assert_eq!(polled.foreign(), 1);
    assert_eq!(read(&messages[0]).rank, Some(1));
}

#[test]
fn the_size_is_that_of_a_block_which_another_follows() {
    let mut polled = polled();
    let first = stored("null", &[block(&ROOT.to_string(), &[1, 2, 3, 4], "")]);
    assert!(take(&mut polled, &[v1(0, 4096, &first)]).is_empty());
    assert_eq!(polled.block_size(), None);
    let second = stored(
        &ROOT.to_string(),
        &[block(&NEXT.to_string(), &[5, 6, 7, 8], "")],
    );
    let (_, stores) = only(&mut polled, &[v1(1, 4096, &second)]);
    assert_eq!((polled.block_size(), stores.len()), (Some(4), 2));
    let (_, stores) = only(&mut with(1, Some(4), true), &[v1(0, 4096, &first)]);
    assert_eq!(stores.len(), 1);
}

#[test]
fn a_size_that_was_guessed_is_corrected() {
    let mut polled = polled();
    let alone = |id: u64| stored("null", &[block(&id.to_string(), &[1, 2], "")]);
    let events: Vec<String> = (0..MOST_WAITING as u64)
        .map(|id| v1(id, 4096, &alone(id)))
        .collect();
    only(&mut polled, &events);
    assert_eq!(polled.block_size(), Some(2));
    let messages = take(&mut polled, &[v1(events.len() as u64, 4096, &chain())]);
    let numbers: Vec<u64> = messages.iter().map(|message| message.seq).collect();
    assert_eq!((polled.block_size(), numbers), (Some(4), vec![0, 2]));
    assert_eq!(read(&messages[1]).events.len(), 1);
}

#[test]
fn blocks_that_contradict_the_given_size_are_counted() {
    let behind = stored(&TAIL.to_string(), &[block("5", &[1, 2, 3, 4], "")]);
    let cases = [
        (8, chain(), 0, 1),
        (2, chain(), 0, 1),
        (4, chain(), 1, 0),
        (4, behind, 1, 1),
    ];
    for (size, data, stores, malformed) in cases {
        let mut polled = with(1, Some(size), true);
        take(&mut polled, &[v1(0, 4096, &chain())]);
        let messages = take(&mut polled, &[v1(1, 4096, &data)]);
        let batch = read(&messages[0]);
        let found = (batch.events.len(), batch.malformed_events);
        assert_eq!(found, (stores, malformed), "{size}");
    }
}

#[test]
fn a_large_answer_becomes_several_messages_without_a_hole() {
    let mut polled = with(1, Some(4), false);
    let names = vec![u64::MAX; 1000];
    let events: Vec<String> = (0..1000).map(|id| v1(id, 4096, &removed(&names))).collect();
    let messages = take(&mut polled, &events);
    let numbers: Vec<u64> = messages.iter().map(|message| message.seq).collect();
    assert_eq!(numbers, [0, 1]);
    assert!(
        messages
            .iter()
            .all(|each| each.payload.len() < MOST_MESSAGE + 10_000)
    );
}

#[test]
fn an_answer_of_a_million_names_is_refused_whole() {
    let long = format!("[{}]", vec!["{}"; 1 << 20].join(","));
    let long_list = format!("[{}]", vec!["1"; (1 << 20) + 1].join(","));
    let data = format!(r#"{{"type": "removed", "block_hashes": {long_list}}}"#);
    let mut polled = polled();
    let batch = read(&take(&mut polled, &[v1(0, 4096, &data)])[0]);
    assert_eq!((batch.events.len(), batch.malformed_events), (0, 1));
    assert!(polled.take(long.as_bytes(), 1.0).is_ok());
    let long = long.replacen("[{}", "[{},{}", 1);
    let refused = polled.take(long.as_bytes(), 1.0).expect_err("too many");
    assert!(refused.what.contains("a million"), "{refused}");
}

#[test]
fn events_that_make_no_sense_are_counted_and_those_around_them_come_out() {
    let cases = [
        ("7", [0, 1]),
        ("{}", [0, 1]),
        (r#"{"type": "all_cleared"}"#, [1, 0]),
        (r#"{"type": "removed"}"#, [0, 1]),
        (
            r#"{"type": "stored", "parent_hash": 1.5, "blocks": []}"#,
            [0, 1],
        ),
        (
            r#"{"type": "stored", "parent_hash": null, "blocks": [{"block_hash": 1, "tokens": []}]}"#,
            [0, 1],
        ),
        (r#"{"type": "removed", "block_hashes": ["xy"]}"#, [0, 1]),
        (
            r#"{"type": "removed", "block_hashes": [18446744073709551616]}"#,
            [0, 1],
        ),
    ];
    for (data, counts) in cases {
        let events = [
            v1(0, 4096, &chain()),
            v1(1, 4096, data),
            v1(2, 4096, &removed(&[NEXT])),
        ];
        let batches: Vec<Batch> = take(&mut polled(), &events).iter().map(read).collect();
        let events: usize = batches.iter().map(|batch| batch.events.len()).sum();
        let unknown: u32 = batches.iter().map(|batch| batch.unknown_events).sum();
        let malformed: u32 = batches.iter().map(|batch| batch.malformed_events).sum();
        assert_eq!((events, [unknown, malformed]), (2, counts), "{data}");
    }
}

#[test]
fn what_is_no_array_of_json_is_refused_whole() {
    let deep = format!("[{}{}]", "[".repeat(40), "]".repeat(40));
    let cases = [
        ("", "no JSON array"),
        ("{}", "no JSON array"),
        ("[", "ends early"),
        ("[{},]", "ends early"),
        ("[{\"event_id\": 01}]", "ends early"),
        ("[{\"a\": \"\\ud800\"}]", "ends early"),
        ("[] []", "follows"),
        (deep.as_str(), "ends early"),
    ];
    for (answer, expected) in cases {
        let refused = polled().take(answer.as_bytes(), 1.0).expect_err(answer);
        assert!(
            refused.to_string().contains(expected),
            "{answer}: {refused}"
        );
    }
    assert_eq!(polled().take(b" [ ] ", 1.0), Ok(vec![]));
}
