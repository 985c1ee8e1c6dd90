//! A gate in front of three workers against the obvious one, whatever happens in whatever order.

use cachelb_policy::RoundRobin;
use proptest::prelude::*;

use super::model::Model;
use super::*;

#[derive(Debug, Clone)]
enum Step {
    /// With how long it waits at most; whether it may wait.
    Arrive(Asked, Option<(u64, bool)>, bool),
    /// By position among those that were called and have not answered.
    Answer(usize),
    /// By position among those that wait, as are the next two. It was not called.
    Wake(usize),
    /// It waits no longer.
    Last(usize),
    GiveUp(usize),
    /// By position among the bookings, as are the next two.
    FirstToken(usize),
    Generate(usize, u64),
    Close(usize, Option<u64>),
    Ready(usize, bool),
    Elapse(u64),
}

fn asked(callers: u64) -> impl Strategy<Value = Asked> {
    let of = (-1_i64..2, 0_u64..4, 0_u64..3000, 0..callers, any::<bool>());
    // Mostly none.
    let barred = (0_u32..7, 0_u32..7).prop_map(|(a, b)| [1, 2, 4].map(|bit| a & b & bit != 0));
    (of, barred).prop_map(
        |((priority, tenant, tokens, caller, for_workers), barred)| Asked {
            priority,
            tenant,
            tokens,
            caller,
            for_workers,
            barred,
            ..Asked::default()
        },
    )
}

fn step(callers: u64) -> impl Strategy<Value = Step> {
    let wait = prop::option::of((0_u64..3000, any::<bool>()));
    let come = (asked(callers), wait, prop::bool::weighted(0.9));
    let usage = prop::option::of(0_u64..500);
    prop_oneof![
        9 => come.prop_map(|(asked, wait, may_wait)| Step::Arrive(asked, wait, may_wait)),
        4 => any::<usize>().prop_map(Step::Answer),
        1 => any::<usize>().prop_map(Step::Wake),
        1 => any::<usize>().prop_map(Step::Last),
        1 => any::<usize>().prop_map(Step::GiveUp),
        4 => any::<usize>().prop_map(Step::FirstToken),
        1 => (any::<usize>(), 0_u64..100).prop_map(|(at, n)| Step::Generate(at, n)),
        3 => (any::<usize>(), usage).prop_map(|(at, output)| Step::Close(at, output)),
        1 => (0_usize..3, prop::bool::weighted(0.7)).prop_map(|(at, is)| Step::Ready(at, is)),
        2 => (0_u64..1000).prop_map(Step::Elapse),
    ]
}

fn settings() -> impl Strategy<Value = GateSettings> {
    let order = prop_oneof![
        Just(Order::Fcfs),
        Just(Order::Edf),
        (0_u64..1000).prop_map(|ageing_tokens_per_s| Order::ShortestUncached {
            ageing_tokens_per_s
        }),
    ];
    let limits = (prop::option::of(1_u32..5), prop::option::of(500_u64..4000));
    let weights = prop_oneof![Just(0.5), Just(1.0), Just(3.0)];
    let all = (order, limits, any::<bool>(), weights, 1_usize..13);
    all.prop_map(
        |(order, (requests, tokens), is_fair, weight, most)| GateSettings {
            order,
            is_fair,
            weights: vec![(Tenant(1), weight)],
            most,
            ..gate(requests, tokens)
        },
    )
}

fn why<T>(outcome: &Result<T>) -> &'static str {
    match outcome {
        Ok(_) => "it goes or waits",
        Err(Error::Overloaded { why, .. }) => why,
        Err(Error::NoCandidate) => "no candidate",
        Err(_) => "another error",
    }
}

struct Run {
    door: Door,
    model: Model,
    /// Called, and have not answered.
    called: Vec<u64>,
}

impl Run {
    /// Those are called who are next, one for each caller that has answered, and those who were displaced.
    fn call(&mut self, is_event: bool) {
        let mut expected = std::mem::take(&mut self.model.displaced);
        for caller in 0..2 {
            if !self.model.turns.contains_key(&caller)
                && let Some(next) = self.model.next(caller)
            {
                self.model.turns.insert(caller, next);
                expected.push(next);
            }
        }
        expected.sort_unstable();
        let mut called = self.door.call_next(is_event);
        called.sort_unstable();
        assert_eq!(called, expected);
        called.retain(|one| !self.called.contains(one) && self.door.waiting.contains_key(one));
        self.called.append(&mut called);
    }

    fn arrive(&mut self, asked: &Asked, may_wait: bool) {
        *self.model.arrived.entry(asked.priority).or_default() += 1;
        let (number, passed) = self.door.arrive(asked, may_wait);
        let model = &mut self.model;
        if model.is_first(asked) && model.finds_room(asked) {
            let Ok(Ok(pick)) = passed else {
                panic!("a worker has room and no request is ahead: {passed:?}");
            };
            model.goes(asked, &pick, false);
            model.tally(asked).admitted += 1;
            return;
        }
        let is_nobody = model.can_use(asked).next().is_none();
        let may_wait = may_wait && (asked.for_workers || !is_nobody);
        match model.displaces(asked) {
            Ok(displaced) if may_wait => {
                assert!(matches!(passed, Ok(Err(_))), "{passed:?}");
                if let Some(gone) = displaced.and_then(|number| model.leaves(number)) {
                    model.tally(&gone.asked).displaced += 1;
                    model.displaced.push(gone.number);
                }
                model.joins(number, asked);
                self.call(false);
            }
            _ => {
                let expected = match is_nobody {
                    _ if may_wait => "queue full",
                    true => "no candidate",
                    false => "no room",
                };
                assert_eq!(why(&passed), expected);
                model.tally(asked).refused += 1;
            }
        }
    }

    fn try_again(&mut self, number: u64, is_last: bool) {
        self.called.retain(|one| *one != number);
        let passed = self.door.try_again(number, is_last);
        let model = &mut self.model;
        let waiters = model.waiting.iter();
        let Some(one) = waiters.rev().find(|one| one.number == number) else {
            assert_eq!(why(&passed), "queue full");
            return self.call(false);
        };
        let (asked, arrived) = (one.asked.clone(), one.arrived);
        let until = asked.until;
        let over = until.filter(|(until, _)| is_last || *until <= model.now);
        let was_called = model.turns.get(&asked.caller) == Some(&number);
        model.turns.retain(|_, called| *called != number);
        let is_nobody = model.can_use(&asked).next().is_none();
        let goes = over.is_none() && (was_called || is_last) && model.finds_room(&asked);
        if goes {
            let Ok(Ok(pick)) = passed else {
                panic!("a worker has room: {passed:?}");
            };
            model.goes(&asked, &pick, true);
            model.leaves(number);
            let waited = model.now.0 - arrived.0;
            let tally = model.tally(&asked);
            tally.released += 1;
            tally.waited_ms += waited;
        } else if over.is_some() || is_last {
            let expected = match over {
                _ if is_nobody => "no candidate",
                Some((_, true)) => "deadline passed",
                Some((_, false)) => "waited too long",
                None => "no room",
            };
            assert_eq!(why(&passed), expected);
            model.leaves(number);
            model.tally(&asked).expired += 1;
        } else {
            assert!(matches!(passed, Ok(Err(_))), "{passed:?}");
        }
        self.call(false);
    }

    fn answer_all(&mut self) {
        while let Some(&number) = self.called.first() {
            self.try_again(number, false);
        }
    }

    fn close(&mut self, at: usize, output_tokens: Option<u64>) {
        let booking = self.model.booked[at].booking;
        let usage = Usage {
            output_tokens,
            ..Usage::default()
        };
        let (ending, now) = (Ending::Completed, self.model.now);
        assert!(self.door.selector.end(booking, ending, usage, now));
        self.model.outputs(at, output_tokens.unwrap_or(0));
        self.model.booked.remove(at);
        self.call(true);
    }

    fn take(&mut self, step: Step) {
        let now = self.model.now;
        let booked = self.model.booked.len();
        let mut waiting: Vec<u64> = self.door.waiting.keys().copied().collect();
        waiting.sort_unstable();
        let at = |at: usize| waiting.get(at % waiting.len().max(1)).copied();
        match step {
            Step::Arrive(mut asked, wait, may_wait) => {
                asked.until = wait.map(|(ms, own)| (Millis(now.0 + ms), own));
                self.arrive(&asked, may_wait);
            }
            Step::Answer(at) if !self.called.is_empty() => {
                self.try_again(self.called[at % self.called.len()], false);
            }
            Step::Wake(n) => at(n).into_iter().for_each(|one| self.try_again(one, false)),
            Step::Last(n) => at(n).into_iter().for_each(|one| self.try_again(one, true)),
            Step::GiveUp(n) => {
                let Some(number) = at(n) else { return };
                self.called.retain(|one| *one != number);
                let left = self.model.leaves(number);
                assert_eq!(self.door.give_up(number), left.is_some());
                if let Some(left) = left {
                    self.model.tally(&left.asked).cancelled += 1;
                }
                self.call(false);
            }
            Step::FirstToken(at) if booked > 0 => {
                let at = at % booked;
                let booking = self.model.booked[at].booking;
                self.door.selector.first_token(booking, now);
                self.model.first_token(at);
                self.call(true);
            }
            Step::Generate(at, n) if booked > 0 => {
                let at = at % booked;
                let one = &self.model.booked[at];
                self.door.selector.first_token(one.booking, now);
                self.door.selector.tokens(one.booking, n, now);
                let output = one.counted + n;
                self.model.first_token(at);
                self.model.outputs(at, output);
                self.call(true);
            }
            Step::Close(at, output) if booked > 0 => self.close(at % booked, output),
            Step::Ready(worker, is_ready) => {
                let mut workers = self.door.selector.workers_mut();
                workers.set_ready(NAMES[worker], is_ready);
                self.model.ready[worker] = is_ready;
                self.call(true);
            }
            Step::Elapse(ms) => {
                self.model.now.0 += ms;
                self.door.now = self.model.now;
            }
            _ => {}
        }
    }

    fn check(&self) {
        let (model, selector, gate) = (&self.model, &self.door.selector, self.door.gate());
        let tokens = model.waiting.iter().map(|one| one.asked.tokens).sum();
        assert_eq!(gate.waiting(), (model.waiting.len(), tokens));
        let mut bands = 0;
        for (band, (tally, waiting)) in gate.tallies() {
            let own = model
                .waiting
                .iter()
                .filter(|one| one.asked.priority == band);
            assert_eq!(waiting, own.count());
            assert_eq!(tally, model.tallies.get(&band).copied().unwrap_or_default());
            let gone = tally.refused + tally.expired + tally.displaced + tally.cancelled;
            let all = tally.admitted + tally.released + gone + waiting as u64;
            assert_eq!(model.arrived.get(&band), Some(&all));
            bands += 1;
        }
        assert_eq!(bands, model.arrived.len());
        for priority in -2..3 {
            let ahead = model.waiting.iter();
            let ahead = ahead.filter(|one| one.asked.priority >= priority);
            assert_eq!(selector.before(GATE, priority).requests, ahead.count());
        }
        assert_eq!(selector.book().bookings.len(), model.booked.len());
        for (worker, name) in NAMES.iter().enumerate() {
            let id = selector.fleet().find(name).expect("registered");
            let load = selector.book().loads.get(id).expect("registered");
            let pending = (load.pending, load.pending_prefill_tokens);
            assert_eq!(pending, model.pending(worker));
        }
        selector.validate().expect("counts agree");
        if self.called.is_empty() {
            let is_idle = |caller| model.next(caller).is_none();
            assert!((0..2).all(is_idle), "one could use the room there is");
        }
    }

    /// Everybody answers and everything ends, time and again.
    fn end(&mut self) {
        for name in NAMES {
            self.door.selector.workers_mut().set_ready(name, true);
        }
        self.model.ready = [true; 3];
        self.call(true);
        self.answer_all();
        while !self.model.booked.is_empty() {
            self.close(0, None);
            self.answer_all();
            self.check();
        }
        let now = self.model.now;
        for one in &self.model.waiting {
            assert!(one.asked.until.is_some_and(|(until, _)| until <= now));
        }
    }
}

proptest! {
    /// No request that could use the room waits longer than callers need to answer, the next is the one that a search
    /// of a list finds, the limits hold, and a request that leaves leaves nothing behind.
    #[test]
    fn a_gate_is_a_list_that_is_searched(
        settings in settings(),
        is_round_robin: bool,
        (is_prompt, steps) in (1_u64..3, any::<bool>()).prop_flat_map(|(callers, is_prompt)| {
            let steps = prop::collection::vec((step(callers), any::<bool>()), 0..=240);
            (Just(is_prompt), steps)
        }),
    ) {
        let rule: Box<dyn Rule> = if is_round_robin {
            Box::new(RoundRobin::new(true))
        } else {
            Box::new(LeastLoaded::default())
        };
        let door = Door::new(&NAMES, rule, &settings);
        let mut run = Run { door, model: Model::new(settings), called: Vec::new() };
        for (step, is_slow) in steps {
            run.take(step);
            if is_prompt || !is_slow {
                run.answer_all();
            }
            run.check();
        }
        run.end();
    }
}
