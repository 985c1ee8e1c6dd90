//! The obvious gate: a list of those that wait in the order of arrival, and of all that is booked.

use std::cmp::Reverse;

use super::*;

#[derive(Debug)]
pub struct Waiter {
    pub number: u64,
    pub asked: Asked,
    pub arrived: Millis,
}

#[derive(Debug)]
pub struct Booked {
    pub booking: BookingId,
    worker: usize,
    tokens: u64,
    tenant: u64,
    is_pending: bool,
    /// Output tokens that were charged for.
    pub counted: u64,
}

#[derive(Debug)]
pub struct Model {
    pub settings: GateSettings,
    pub now: Millis,
    pub ready: [bool; 3],
    pub waiting: Vec<Waiter>,
    /// Displaced, and not called since.
    pub displaced: Vec<u64>,
    pub booked: Vec<Booked>,
    /// By caller, the request it is to answer for.
    pub turns: HashMap<u64, u64>,
    pub tallies: HashMap<i64, Tally>,
    pub arrived: HashMap<i64, u64>,
    served: HashMap<u64, f64>,
}

impl Model {
    pub fn new(settings: GateSettings) -> Self {
        Self {
            settings,
            now: Millis(0),
            ready: [true; 3],
            waiting: Vec::new(),
            displaced: Vec::new(),
            booked: Vec::new(),
            turns: HashMap::new(),
            tallies: HashMap::new(),
            arrived: HashMap::new(),
            served: HashMap::new(),
        }
    }

    pub fn tally(&mut self, asked: &Asked) -> &mut Tally {
        self.tallies.entry(asked.priority).or_default()
    }

    /// Requests on a worker without a first token, and their tokens.
    pub fn pending(&self, worker: usize) -> (u32, u64) {
        let own = |one: &&Booked| one.worker == worker && one.is_pending;
        let own = self.booked.iter().filter(own);
        (own.clone().count() as u32, own.map(|one| one.tokens).sum())
    }

    fn has_room(&self, worker: usize) -> bool {
        let (requests, tokens) = self.pending(worker);
        let limits = self.settings.limits;
        let is_below = limits.requests.is_none_or(|most| requests < most)
            && limits.tokens.is_none_or(|most| tokens < most);
        requests == 0 || is_below
    }

    pub fn can_use(&self, asked: &Asked) -> impl Iterator<Item = usize> {
        let (ready, barred) = (self.ready, asked.barred);
        (0..3).filter(move |&worker| ready[worker] && !barred[worker])
    }

    pub fn finds_room(&self, asked: &Asked) -> bool {
        self.can_use(asked).any(|worker| self.has_room(worker))
    }

    /// Whether no request of its band or above waits.
    pub fn is_first(&self, asked: &Asked) -> bool {
        let mut others = self.waiting.iter();
        others.all(|one| one.asked.priority < asked.priority)
    }

    fn tenant(&self, asked: &Asked) -> u64 {
        if self.settings.is_fair {
            asked.tenant
        } else {
            0
        }
    }

    fn served(&self, tenant: u64) -> f64 {
        self.served.get(&tenant).copied().unwrap_or(0.0)
    }

    fn charge(&mut self, tenant: u64, tokens: u64) {
        let weights = &self.settings.weights;
        let weight = weights.iter().find(|(one, _)| one.0 == tenant);
        let weight = weight.map_or(1.0, |(_, weight)| *weight);
        *self.served.entry(tenant).or_default() += tokens as f64 / weight;
    }

    /// The request that it displaces, if any; an error if it cannot wait.
    pub fn displaces(&self, asked: &Asked) -> std::result::Result<Option<u64>, ()> {
        if self.waiting.len() < self.settings.most {
            return Ok(None);
        }
        let lower = self.waiting.iter().rev();
        let lower = lower.min_by_key(|one| one.asked.priority);
        let lower = lower.filter(|one| one.asked.priority < asked.priority);
        lower.map(|one| Some(one.number)).ok_or(())
    }

    pub fn joins(&mut self, number: u64, asked: &Asked) {
        let tenant = self.tenant(asked);
        let tenants = self.waiting.iter().map(|one| self.tenant(&one.asked));
        if tenants.clone().all(|one| one != tenant) {
            let least = tenants.map(|one| self.served(one)).reduce(f64::min);
            let lifted = self.served(tenant).max(least.unwrap_or(0.0));
            self.served.insert(tenant, lifted);
        }
        self.waiting.push(Waiter {
            number,
            asked: asked.clone(),
            arrived: self.now,
        });
    }

    pub fn leaves(&mut self, number: u64) -> Option<Waiter> {
        self.turns.retain(|_, called| *called != number);
        let at = self.waiting.iter().position(|one| one.number == number)?;
        Some(self.waiting.remove(at))
    }

    /// Whether those of this caller are to be called, and who: the first by band, tenant and order, of those that can use
    /// room that there is and are not overdue.
    pub fn next(&self, caller: u64) -> Option<u64> {
        let may = |one: &&Waiter| {
            one.asked.caller == caller
                && one.asked.until.is_none_or(|(until, _)| until > self.now)
                && self.finds_room(&one.asked)
        };
        let key = |one: &&Waiter| {
            let inner = match self.settings.order {
                Order::Fcfs => 0,
                Order::Edf => one
                    .asked
                    .until
                    .map_or(i128::MAX, |(until, _)| until.0.into()),
                Order::ShortestUncached {
                    ageing_tokens_per_s,
                } => {
                    let waited = self.now.0 - one.arrived.0;
                    i128::from(one.asked.tokens) - i128::from(ageing_tokens_per_s * waited / 1000)
                }
            };
            let tenant = self.tenant(&one.asked);
            let served = self.served(tenant).to_bits();
            (
                Reverse(one.asked.priority),
                served,
                tenant,
                inner,
                one.number,
            )
        };
        let all = self.waiting.iter().filter(may);
        all.min_by_key(key).map(|one| one.number)
    }

    /// It goes to a worker, which it may, and by the limits.
    pub fn goes(&mut self, asked: &Asked, pick: &Pick, waited: bool) {
        assert!(self.can_use(asked).any(|worker| worker == pick.offer));
        assert!(self.finds_room(asked), "no worker has room");
        let by_cache = matches!(self.settings.order, Order::ShortestUncached { .. });
        assert!(!(by_cache && waited) || self.has_room(pick.offer));
        if self.settings.is_fair {
            self.charge(asked.tenant, asked.tokens);
        }
        self.booked.push(Booked {
            booking: pick.booking.expect("booked"),
            worker: pick.offer,
            tokens: asked.tokens,
            tenant: asked.tenant,
            is_pending: true,
            counted: 0,
        });
    }

    pub fn first_token(&mut self, at: usize) {
        self.booked[at].is_pending = false;
    }

    /// A booking has so many output tokens in all.
    pub fn outputs(&mut self, at: usize, output: u64) {
        let one = &mut self.booked[at];
        let more = output.saturating_sub(one.counted);
        one.counted += more;
        let tenant = one.tenant;
        if self.settings.is_fair {
            self.charge(tenant, 2 * more);
        }
    }
}
