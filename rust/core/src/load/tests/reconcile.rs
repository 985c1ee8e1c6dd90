//! Reports against bookings, and the rule as slowly as it can be written.

use super::*;

/// One booking as the reference has it.
#[derive(Debug, Clone)]
struct Plain {
    id: BookingId,
    rank: usize,
    seen: u64,
}

/// Everything in one list, searched from end to end.
#[derive(Debug, Default)]
struct Reference {
    open: Vec<Plain>,
    said: Option<(u64, u64)>,
    grace: u64,
}

impl Reference {
    fn touch(&mut self, id: BookingId, now: u64) {
        if let Some(at) = self.open.iter().position(|plain| plain.id == id) {
            let mut plain = self.open.remove(at);
            plain.seen = now;
            self.open.push(plain);
        }
    }

    fn report(&mut self, live: u64, at: u64) -> Vec<BookingId> {
        match self.said {
            Some((_, last)) if at < last => return Vec::new(),
            Some((before, last)) if at == last => {
                self.said = Some((before.max(live), at));
                return Vec::new();
            }
            _ => {}
        }
        let Some((before, first)) = self.said.replace((live, at)) else {
            return Vec::new();
        };
        let beyond = (self.open.len() as u64).saturating_sub(before.max(live));
        let mut silent: Vec<Plain> = self.open.clone();
        silent.retain(|plain| plain.seen + self.grace <= first);
        silent.sort_by_key(|plain| (plain.seen, plain.rank));
        silent.truncate(beyond.min(MOST_DROPPED) as usize);
        silent.into_iter().map(|plain| plain.id).collect()
    }
}

#[test]
fn of_three_bookings_and_one_live_request_the_two_oldest_go() {
    let (mut book, w) = one();
    let ids: Vec<_> = (0..3)
        .map(|i| book.book(w, work(16, 16), Millis(i)).unwrap())
        .collect();
    assert_eq!(book.lost(&[w], 1, Millis(40_000), 30_000), []);
    assert_eq!(book.lost(&[w], 1, Millis(40_000), 30_000), [], "sent twice");
    assert_eq!(book.lost(&[w], 1, Millis(39_000), 30_000), [], "came late");
    assert_eq!(book.lost(&[w], 1, Millis(40_100), 30_000), ids[..2]);
    book.validate().unwrap();
}

#[test]
fn reports_that_disagree_drop_what_both_do_not_count() {
    let (mut book, w) = one();
    for i in 0..4 {
        book.book(w, work(16, 16), Millis(i)).unwrap();
    }
    book.lost(&[w], 0, Millis(40_000), 30_000);
    assert_eq!(book.lost(&[w], 3, Millis(40_100), 30_000).len(), 1);
    book.lost(&[w], 9, Millis(40_200), 30_000);
    assert_eq!(book.lost(&[w], 0, Millis(40_300), 30_000), []);
}

#[test]
fn what_streams_and_what_is_on_its_way_stays() {
    let (mut book, w) = one();
    let streaming = book.book(w, work(16, 16), Millis(0)).unwrap();
    let stalled = book.book(w, work(16, 16), Millis(1)).unwrap();
    book.first_token(stalled, Millis(2));
    book.tokens(streaming, 1, Millis(39_999));
    book.book(w, work(16, 16), Millis(39_999)).unwrap();
    book.lost(&[w], 0, Millis(40_000), 30_000);
    assert_eq!(book.lost(&[w], 0, Millis(90_000), 30_000), [stalled]);
}

#[test]
fn one_report_does_bounded_work_and_the_next_ones_the_rest() {
    let (mut book, w) = one();
    for i in 0..1_000 {
        book.book(w, work(16, 16), Millis(i)).unwrap();
    }
    let mut reports = 0;
    for at in (40_000..).step_by(100) {
        let lost = book.lost(&[w], 10, Millis(at), 30_000);
        assert!(lost.len() as u64 <= MOST_DROPPED);
        for id in &lost {
            book.close(*id);
        }
        reports += 1;
        if book.bookings.len() == 10 {
            break;
        }
    }
    assert_eq!(reports, 1 + 990_u64.div_ceil(MOST_DROPPED));
    book.validate().unwrap();
}

#[test]
fn ranks_are_counted_together() {
    let mut book = LoadBook::<()>::default();
    let ranks: Vec<_> = (0..4).map(|slot| worker(slot, 0)).collect();
    for &rank in &ranks {
        book.add_worker(rank);
    }
    for i in 0..3 {
        book.book(ranks[0], work(16, 16), Millis(i)).unwrap();
    }
    for at in [40_000, 40_100, 40_200] {
        assert_eq!(book.lost(&ranks, 3, Millis(at), 30_000), []);
        book.loads.credit_others(&ranks, 3);
    }
    assert!(book.loads.columns().iter().all(|load| load.others == 0));
    book.loads.credit_others(&ranks, 9);
    let others: Vec<_> = book
        .loads
        .columns()
        .iter()
        .map(|load| load.others)
        .collect();
    assert_eq!(others, [2, 2, 1, 1]);
}

#[test]
fn requests_that_ended_since_the_report_before_are_no_load_of_others() {
    let (mut book, w) = one();
    let ids: Vec<_> = (0..5)
        .map(|_| book.book(w, work(16, 16), T0).unwrap())
        .collect();
    book.close(ids[0]);
    book.close(ids[1]);
    book.loads.credit_others(&[w], 5);
    assert_eq!(book.loads.columns()[0].others, 0);
    book.loads.credit_others(&[w], 5);
    assert_eq!(book.loads.columns()[0].others, 2);
    let report = Report {
        at: Millis(1_000),
        ..Report::NONE
    };
    book.loads.set_report(w, report).unwrap();
    assert_eq!(book.loads.columns()[0].others, 0);
    book.loads.credit_others(&[w], 5);
    let load = &book.loads.columns()[0];
    assert_eq!(load.requests(Millis(3_000), 2_000), 5);
    assert_eq!(load.requests(Millis(3_001), 2_000), 3, "too old");
}

#[test]
fn a_worker_of_the_same_name_begins_without_its_predecessors_reports() {
    let (mut book, old, new) = (LoadBook::<()>::default(), worker(0, 0), worker(0, 1));
    book.add_worker(old);
    let orphan = book.book(old, work(16, 16), T0).unwrap();
    book.lost(&[old], 0, Millis(40_000), 30_000);
    book.remove_worker(old);
    book.add_worker(new);
    book.book(new, work(16, 16), T0).unwrap();
    assert_eq!(book.lost(&[new], 0, Millis(40_100), 30_000), []);
    assert_eq!(book.lost(&[old], 0, Millis(40_200), 30_000), []);
    book.first_token(orphan, T0);
    book.validate().unwrap();
    book.close(orphan);
    book.validate().unwrap();
}

proptest! {
    #[test]
    fn reports_drop_what_the_reference_drops(
        grace in 0_u64..40,
        ops in prop::collection::vec((0_u8..8, 0_usize..64, 0_u64..12, 0_u64..20), 0..150),
    ) {
        let ranks = [worker(0, 0), worker(1, 0)];
        let mut book = LoadBook::<()>::default();
        for rank in ranks {
            book.add_worker(rank);
        }
        let mut reference = Reference { grace, ..Reference::default() };
        let mut now = 0;
        for (op, pick, live, step) in ops {
            now += step;
            let some = reference.open.get(pick % reference.open.len().max(1)).map(|plain| plain.id);
            match (op, some) {
                (0..=2, _) => {
                    let rank = pick % 2;
                    let id = book.book(ranks[rank], work(32, 16), Millis(now)).unwrap();
                    reference.open.push(Plain { id, rank, seen: now });
                }
                (3, Some(id)) => {
                    book.first_token(id, Millis(now));
                    reference.touch(id, now);
                }
                (4, Some(id)) => {
                    book.tokens(id, live, Millis(now));
                    reference.touch(id, now);
                }
                (5, Some(id)) => {
                    book.close(id);
                    reference.open.retain(|plain| plain.id != id);
                }
                _ => {
                    let at = now.saturating_sub(if op == 6 { live } else { 0 });
                    let expected = reference.report(live, at);
                    let lost = book.lost(&ranks, live, Millis(at), grace);
                    prop_assert_eq!(&lost, &expected);
                    for id in lost {
                        prop_assert!(book.close(id).is_some());
                        reference.open.retain(|plain| plain.id != id);
                    }
                }
            }
            book.validate().unwrap();
        }
    }
}
