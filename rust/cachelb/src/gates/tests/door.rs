//! A selector behind one gate, and the requests that wait there.

use std::sync::{Arc, Mutex};

use super::*;

pub const GATE: GateId = GateId(7);
pub const NAMES: [&str; 3] = ["a", "b", "c"];

/// Notes in a list that a request was called.
struct Call {
    number: u64,
    called: Arc<Mutex<Vec<u64>>>,
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        self.called.lock().expect("sound").push(self.number);
    }
}

#[derive(Debug, Clone, Default)]
pub struct Asked {
    pub priority: i64,
    pub tenant: u64,
    pub tokens: u64,
    pub until: Option<(Millis, bool)>,
    pub caller: u64,
    /// Whether it waits too while no worker may be picked.
    pub for_workers: bool,
    /// Workers it may not use.
    pub barred: [bool; 3],
    pub blocks: Vec<SequenceHash>,
}

pub fn of(tokens: u64) -> Asked {
    Asked {
        tokens,
        ..Asked::default()
    }
}

pub fn gate(requests: Option<u32>, tokens: Option<u64>) -> GateSettings {
    GateSettings {
        limits: PendingLimits { requests, tokens },
        routers: 1,
        lag_ms: 0.0,
        order: Order::Fcfs,
        is_fair: false,
        weights: Vec::new(),
        most: 1000,
    }
}

/// Workers behind one gate, and the requests that wait there, by number.
pub struct Door {
    pub selector: Selector,
    called: Arc<Mutex<Vec<u64>>>,
    pub now: Millis,
    next: u64,
    settings: GateSettings,
    pub waiting: HashMap<u64, (Asked, Ticket)>,
}

impl Door {
    pub fn new(names: &[&str], rule: Box<dyn Rule>, settings: &GateSettings) -> Self {
        let registered = Settings {
            registered: true,
            breaker: Some(Breaker::new(1, 1000)),
            ..Settings::default()
        };
        let pool = PoolSettings::new(rule, 16, Placements::default());
        let mut selector = with_workers(registered, pool, names);
        selector.gates.open(GATE, settings);
        Self {
            selector,
            called: Arc::default(),
            now: Millis(0),
            next: 0,
            settings: settings.clone(),
            waiting: HashMap::new(),
        }
    }

    pub fn least_loaded(workers: usize, settings: &GateSettings) -> Self {
        let rule = Box::new(LeastLoaded::default());
        Self::new(&NAMES[..workers], rule, settings)
    }

    pub fn pass(
        &mut self,
        asked: &Asked,
        way: &Way,
        select: impl FnOnce(&mut Selector, &mut Offers, &Request<'_>) -> Result<Pick>,
    ) -> Result<std::result::Result<Pick, Waits>> {
        let mut offers = offers(&NAMES);
        for at in (0..NAMES.len()).filter(|&at| asked.barred[at]) {
            offers.set_eligibility(at, Eligibility::NotAmong);
        }
        let passage = Passage {
            gate: GATE,
            priority: asked.priority,
            tenant: Tenant(asked.tenant),
            ticket: way.ticket(),
            ..Passage::default()
        };
        let request = Request {
            blocks: Some((&asked.blocks[..], Origin::Tokens)).filter(|(all, _)| !all.is_empty()),
            prompt_tokens: asked.tokens,
            passage: Some(passage),
            now: self.now,
            ..Request::default()
        };
        let gate = Some((&self.settings, way));
        (self.selector).pass(gate, &mut offers, &request, select)
    }

    /// A request comes, the number of which is returned too.
    pub fn arrive(
        &mut self,
        asked: &Asked,
        may_wait: bool,
    ) -> (u64, Result<std::result::Result<Pick, Waits>>) {
        let number = self.next;
        self.next += 1;
        let called = Arc::clone(&self.called);
        let newcomer = Newcomer {
            waker: Waker::from(Arc::new(Call { number, called })),
            caller: asked.caller,
            until: asked.until,
            for_workers: asked.for_workers,
        };
        let way = if may_wait {
            Way::Hold(newcomer)
        } else {
            Way::Now
        };
        let passed = self.pass(asked, &way, Selector::select);
        if let Ok(Err(Waits { ticket, .. })) = passed {
            self.waiting.insert(number, (asked.clone(), ticket));
        }
        (number, passed)
    }

    pub fn try_again(
        &mut self,
        number: u64,
        is_last: bool,
    ) -> Result<std::result::Result<Pick, Waits>> {
        let (asked, ticket) = self.waiting.remove(&number).expect("waits");
        let passed = self.pass(&asked, &Way::Again(ticket, is_last), Selector::select);
        if matches!(passed, Ok(Err(_))) {
            self.waiting.insert(number, (asked, ticket));
        }
        passed
    }

    pub fn give_up(&mut self, number: u64) -> bool {
        let (_, ticket) = self.waiting.remove(&number).expect("waits");
        self.selector.give_up(GATE, ticket)
    }

    /// The numbers of those who are called.
    pub fn call_next(&mut self, is_event: bool) -> Vec<u64> {
        self.selector.call_next(is_event, self.now).wake();
        std::mem::take(&mut *self.called.lock().expect("sound"))
    }

    pub fn gate(&self) -> &Gate {
        self.selector.gates.get(GATE).expect("open")
    }

    /// A request goes at once.
    pub fn goes(&mut self, asked: &Asked) -> Pick {
        match self.arrive(asked, true).1 {
            Ok(Ok(pick)) => pick,
            other => panic!("{other:?}"),
        }
    }

    /// A request waits, and no caller is called.
    pub fn waits(&mut self, asked: &Asked) -> u64 {
        let (number, passed) = self.arrive(asked, true);
        assert!(matches!(passed, Ok(Err(_))), "{passed:?}");
        assert!(self.call_next(false).is_empty());
        number
    }

    pub fn first_token(&mut self, pick: &Pick) {
        let booking = pick.booking.expect("booked");
        assert!(self.selector.first_token(booking, self.now));
    }

    pub fn end(&mut self, pick: &Pick, ending: Ending) {
        let booking = pick.booking.expect("booked");
        let usage = Usage::default();
        assert!(self.selector.end(booking, ending, usage, self.now));
    }

    /// Picks that a release leads to: every called request tries at once.
    pub fn released(&mut self) -> Vec<(u64, Pick)> {
        let (mut picks, mut is_event) = (Vec::new(), true);
        loop {
            let called = self.call_next(is_event);
            let Some(&number) = called.first() else {
                return picks;
            };
            if let Ok(Ok(pick)) = self.try_again(number, false) {
                picks.push((number, pick));
            }
            is_event = false;
        }
    }

    /// Which ones the first token of a booking releases.
    pub fn after(&mut self, pick: &Pick) -> Vec<u64> {
        self.first_token(pick);
        self.released().iter().map(|(number, _)| *number).collect()
    }
}
