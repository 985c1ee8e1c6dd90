//! The queue against a list that is searched.

use std::collections::HashMap;

use proptest::prelude::*;

use super::super::tenants;
use super::*;

const MOST: usize = 12;

/// The obvious queue: a list in the order of arrival, and a counter for each tenant.
struct Model {
    order: Order,
    is_fair: bool,
    waiting: Vec<(Ticket, Entry)>,
    served: HashMap<Tenant, f64>,
    weights: HashMap<Tenant, f64>,
}

impl Model {
    fn served(&self, tenant: Tenant) -> f64 {
        self.served.get(&tenant).copied().unwrap_or(0.0)
    }

    fn displaced(&self, priority: i64) -> std::result::Result<Option<Ticket>, Full> {
        if self.waiting.len() < MOST {
            return Ok(None);
        }
        let lowest = self.waiting.iter().map(|(_, one)| one.priority).min();
        let lowest = lowest.filter(|lowest| *lowest < priority).ok_or(Full)?;
        let newest = self
            .waiting
            .iter()
            .rev()
            .find(|(_, one)| one.priority == lowest);
        Ok(newest.map(|(ticket, _)| *ticket))
    }

    fn push(&mut self, ticket: Ticket, mut entry: Entry) {
        if !self.is_fair {
            entry.tenant = OTHERS;
        }
        let waits = |tenant| self.waiting.iter().any(|(_, one)| one.tenant == tenant);
        if !waits(entry.tenant) {
            let others = self.waiting.iter().map(|(_, one)| self.served(one.tenant));
            let least = others.reduce(f64::min).unwrap_or(0.0);
            let lifted = self.served(entry.tenant).max(least);
            self.served.insert(entry.tenant, lifted);
        }
        self.waiting.push((ticket, entry));
    }

    fn charge(&mut self, tenant: Tenant, tokens: u64) {
        let weight = self.weights.get(&tenant).copied().unwrap_or(1.0);
        *self.served.entry(tenant).or_default() += tokens as f64 / weight;
    }

    fn next(&self, now: Millis, uncached: impl Fn(&Entry) -> Option<u64>) -> Option<Ticket> {
        let usable = self
            .waiting
            .iter()
            .filter_map(|(ticket, one)| Some((ticket, one, uncached(one)?)));
        let key = |(ticket, one, tokens): &(&Ticket, &Entry, u64)| {
            let deadline = one.deadline.unwrap_or(Millis(u64::MAX)).0;
            let inner = match self.order {
                Order::Fcfs => 0,
                Order::Edf => i128::from(deadline),
                Order::ShortestUncached {
                    ageing_tokens_per_s,
                } => {
                    let waited = now.0 - one.arrived.0;
                    i128::from(*tokens) - i128::from(ageing_tokens_per_s * waited / 1000)
                }
            };
            (
                Reverse(one.priority),
                self.served(one.tenant).to_bits(),
                one.tenant,
                inner,
                **ticket,
            )
        };
        usable.min_by_key(key).map(|(ticket, _, _)| *ticket)
    }
}

#[derive(Debug, Clone)]
enum Step {
    Push {
        priority: i64,
        tenant: u64,
        class: u32,
        wait_ms: Option<u64>,
        tokens: u64,
    },
    /// By position among those that wait.
    Remove(usize),
    /// For those whose length has no common bit with the first, of classes that are bits of the second.
    Release(u64, u32),
    Charge(u64, u64),
    Weigh(u64, f64),
    Elapse(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let push = (
        -1_i64..2,
        0_u64..4,
        0_u32..3,
        prop::option::of(0_u64..3000),
        0_u64..2000,
    );
    let push = push.prop_map(|(priority, tenant, class, wait_ms, tokens)| Step::Push {
        priority,
        tenant,
        class,
        wait_ms,
        tokens,
    });
    let step = prop_oneof![
        5 => push,
        1 => (0_usize..MOST).prop_map(Step::Remove),
        3 => (0_u64..4, 0_u32..8).prop_map(|(mask, classes)| Step::Release(mask, classes)),
        1 => (0_u64..4, 0_u64..3000).prop_map(|(tenant, tokens)| Step::Charge(tenant, tokens)),
        1 => (0_u64..4, prop_oneof![Just(0.5), Just(1.0), Just(3.0)]).prop_map(|(t, w)| Step::Weigh(t, w)),
        1 => (0_u64..2000).prop_map(Step::Elapse),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    /// After any steps in any order: the next is the one that a search of a list finds, no request that can use the
    /// room is passed over, none that cannot is named, and the counts are those of a recount.
    #[test]
    fn a_queue_is_a_list_that_is_searched(
        order in prop_oneof![
            Just(Order::Fcfs),
            Just(Order::Edf),
            (0_u64..1000).prop_map(|ageing_tokens_per_s| Order::ShortestUncached { ageing_tokens_per_s }),
        ],
        is_fair: bool,
        steps in steps(),
    ) {
        let mut queue = Queue::new(order, is_fair, MOST);
        let (waiting, served, weights) = (Vec::new(), HashMap::new(), HashMap::new());
        let mut model = Model { order, is_fair, waiting, served, weights };
        let mut now = Millis(0);
        for step in steps {
            match step {
                Step::Push { priority, tenant, class, wait_ms, tokens } => {
                    let deadline = wait_ms.map(|wait| Millis(now.0 + wait));
                    let (tenant, class) = (Tenant(tenant), Class(class));
                    let entry = Entry { priority, tenant, class, arrived: now, deadline, tokens };
                    let displaced = queue.displaced(priority);
                    prop_assert_eq!(displaced, model.displaced(priority));
                    if let Ok(displaced) = displaced {
                        prop_assert_eq!(displaced.is_some(), displaced.and_then(|one| queue.remove(one)).is_some());
                        model.waiting.retain(|(ticket, _)| Some(*ticket) != displaced);
                        model.push(queue.push(entry, !tokens), entry);
                    }
                }
                Step::Remove(at) => {
                    let at = at.min(model.waiting.len());
                    let ticket = model.waiting.get(at).map_or(Ticket(u64::MAX), |(ticket, _)| *ticket);
                    let known = (at < model.waiting.len()).then(|| model.waiting.remove(at).1);
                    let known = known.map(|one| (one, !one.tokens));
                    prop_assert_eq!(queue.remove(ticket), known);
                }
                Step::Release(mask, classes) => {
                    let may = |class: Class| classes & (1 << class.0) != 0;
                    let uncached = |one: &Entry| (one.tokens & mask == 0).then_some(one.tokens / 2);
                    let expected = model.next(now, |one| uncached(one).filter(|_| may(one.class)));
                    let found = queue.next(now, may, |one, _| uncached(one));
                    prop_assert_eq!(found, expected);
                    if let Some((entry, _)) = found.and_then(|ticket| queue.remove(ticket)) {
                        model.waiting.retain(|(ticket, _)| Some(*ticket) != found);
                        queue.tenants.charge(entry.tenant, entry.tokens);
                        model.charge(entry.tenant, entry.tokens);
                    }
                }
                Step::Charge(tenant, tokens) => {
                    queue.tenants.charge(Tenant(tenant), tokens);
                    model.charge(Tenant(tenant), tokens);
                }
                Step::Weigh(tenant, weight) => {
                    queue.tenants.set_weight(Tenant(tenant), weight);
                    model.weights.insert(Tenant(tenant), weight);
                }
                Step::Elapse(ms) => now.0 += ms,
            }
            let tokens: u64 = model.waiting.iter().map(|(_, one)| one.tokens).sum();
            prop_assert_eq!((queue.len(), queue.tokens), (model.waiting.len(), tokens));
            for priority in -2..3 {
                let above = model.waiting.iter().filter(|(_, one)| one.priority >= priority);
                let sum = above.clone().map(|(_, one)| one.tokens).sum();
                prop_assert_eq!(queue.before(priority), (above.count(), sum));
                let own = model.waiting.iter().filter(|(_, one)| one.priority == priority);
                prop_assert_eq!(queue.in_band(priority), own.count());
            }
            queue.validate()?;
        }
    }
}

fn entry(number: u64, tenant: u64, class: u32) -> Entry {
    Entry {
        priority: 0,
        tenant: Tenant(tenant),
        class: Class(class),
        arrived: Millis(number),
        deadline: Some(Millis(number)),
        tokens: 100,
    }
}

#[test]
fn a_release_costs_no_more_with_many_that_wait() {
    let mut queue = Queue::new(Order::Fcfs, true, 100_000);
    for n in 0..100_000_u64 {
        let priority = (n % 5).cast_signed();
        let one = entry(n, n % 20_000, 0);
        queue.push(Entry { priority, ..one }, ());
    }
    let mut looked = 0;
    let mut look = |_: &Entry, (): &()| {
        looked += 1;
        Some(1)
    };
    while let Some(next) = queue.next(Millis(0), |_| true, &mut look) {
        let (entry, ()) = queue.remove(next).expect("waits");
        queue.tenants.charge(entry.tenant, 1);
    }
    assert_eq!((looked, queue.len(), queue.tokens), (100_000, 0, 0));
    assert!(queue.bands.is_empty() && queue.entries.is_empty());
}

#[test]
fn those_that_cannot_use_the_room_hold_up_no_others_and_are_not_looked_at() {
    for is_fair in [false, true] {
        let mut queue = Queue::new(Order::Edf, is_fair, 1000);
        for n in 0..250 {
            queue.push(entry(n, n % 7, 1), ());
        }
        let last = queue.push(entry(250, 9, 2), ());
        let mut looked = 0;
        let mut look = |_: &Entry, (): &()| {
            looked += 1;
            Some(1)
        };
        let may = |class| class == Class(2);
        assert_eq!(queue.next(Millis(0), may, &mut look), Some(last));
        queue.remove(last);
        assert_eq!(queue.next(Millis(0), may, &mut look), None);
        assert_eq!((looked, queue.len()), (1, 250));
    }
}

#[test]
fn more_tenants_than_there_are_counters_share_one_and_named_ones_keep_their_weight() {
    const ALL: u64 = 20_000;
    let named = Tenant(1);
    for is_waiting in [false, true] {
        let mut queue = Queue::new(Order::Fcfs, true, usize::MAX);
        queue.tenants.set_weight(named, 4.0);
        let mut tickets = Vec::new();
        for n in 1..=ALL {
            tickets.push(queue.push(entry(n, n, 0), ()));
            let charged = queue.tenants.charge(Tenant(n), n);
            if is_waiting {
                let is_own = n <= tenants::MOST as u64;
                assert_eq!(charged, if is_own { Tenant(n) } else { OTHERS });
            } else {
                assert_eq!(charged, Tenant(n));
                tickets.drain(..).for_each(|ticket| {
                    queue.remove(ticket);
                });
            }
            assert!(queue.tenants.counters() <= tenants::MOST + 1);
        }
        let own = tenants::MOST as u64;
        let is_served = |queue: &Queue<()>, tenant, expected: f64| {
            (queue.tenants.served(tenant) - expected).abs() < 1e-6
        };
        let before = if is_waiting {
            // The shared one began where the least served one was.
            let shared = (own + 1..=ALL).sum::<u64>() as f64;
            assert!(is_served(&queue, OTHERS, 0.25 + shared));
            0.25
        } else {
            // Those served least made room, and come back with nothing.
            assert!(is_served(&queue, Tenant(ALL), ALL as f64));
            0.0
        };
        assert!(is_served(&queue, named, before));
        queue.tenants.charge(named, 400);
        assert!(is_served(&queue, named, before + 100.0));
        // Each joined and each leaves, whosever counter it goes by.
        for ticket in tickets {
            assert!(queue.remove(ticket).is_some());
        }
        queue.validate().expect("counts agree");
        assert!(queue.bands.is_empty());
        let ticket = queue.push(entry(0, ALL + 1, 0), ());
        assert_eq!(
            queue.next(Millis(0), |_| true, |_, ()| Some(1)),
            Some(ticket)
        );
        assert!(queue.tenants.counters() <= tenants::MOST + 1);
    }
}
