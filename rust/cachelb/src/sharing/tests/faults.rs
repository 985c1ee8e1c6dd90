//! Messages with wrong headers, and requests that come while a snapshot is published.

use crate::sharing::messages::{Kind, Message};

use super::*;

#[test]
fn numbers_beyond_all_bounds_are_a_gap() {
    let (mut a, mut b) = (router(1, 1000), router(2, 1000));
    ask(&mut a, &prompt(1, 4, 1, 9), 5);
    let message = |kind, first, count| {
        Message {
            kind,
            origin: 9,
            first,
            count,
            entries: &[],
        }
        .encode()
    };
    hear(&mut b, &message(Kind::Snapshot, u64::MAX, 0), 6).unwrap();
    hear(&mut b, &message(Kind::Heartbeat, u64::MAX, 7), 6).unwrap();
    let known = hear(&mut b, &message(Kind::Heartbeat, 5, 7), 6);
    assert_eq!(known, Ok(Receipt::Applied(0)));
    for message in tell(&mut a) {
        let news = hear(&mut b, &message, 7);
        assert!(matches!(news, Ok(Receipt::Applied(1..))));
    }
}

#[test]
fn a_message_with_other_entries_than_it_says_starts_its_sender_over() {
    for more in [-1, 1] {
        let (mut from, mut to) = (router(1, 100), router(2, 100));
        hear_all(&mut to, &snapshot(&mut from, Millis(0)), 0);
        ask(&mut from, &prompt(1, 2, 3, 4), 1);
        let bytes = tell(&mut from).remove(0);
        let message = Message::decode(&bytes).unwrap();
        let count = message.count.wrapping_add_signed(more);
        let wrong = Message { count, ..message }.encode();
        let error = hear(&mut to, &wrong, 1).unwrap_err();
        assert!(error.to_string().contains("it declares"), "{error}");
        assert_eq!(to.sharing().unwrap().origins(), [], "it is heard anew");
        assert_eq!(loads(&to)["a"].0 + loads(&to)["b"].0, 0);
        to.validate().unwrap();
    }
}

#[test]
fn what_is_used_all_the_time_is_in_a_snapshot() {
    let (mut from, mut to) = (router(1, 100_000), router(2, 100_000));
    let others: Vec<_> = (0..3000).map(|own| prompt(1, 0, own, 2)).collect();
    let lasting = prompt(40, 0, 7, 20);
    let mut now = 0;
    let mut serve = |from: &mut Selector, path: &[SequenceHash]| {
        now += 1;
        let booking = ask(from, path, now);
        complete(from, booking, now);
    };
    for path in others.iter().chain([&lasting]) {
        serve(&mut from, path);
    }
    let (head, mut walk) = from.sharing_mut().snapshot_begin().unwrap();
    let mut messages = vec![head];
    while let Some(parts) = from.sharing_mut().snapshot_next(&mut walk) {
        messages.extend(parts);
        // More entries than one step publishes, and behind them a lasting one.
        for path in others.iter().chain([&lasting]) {
            serve(&mut from, path);
        }
    }
    messages.push(from.sharing().unwrap().snapshot_end());
    hear_all(&mut to, &messages, 9);
    let all: BTreeSet<u64> = lasting.iter().map(|hash| hash.0).collect();
    let known = WORKERS.map(|name| all.is_subset(&held(&to, name)));
    assert_eq!(known, WORKERS.map(|name| all.is_subset(&held(&from, name))));
    assert!(known.contains(&true));
}
