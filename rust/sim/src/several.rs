//! Several gateways before one fleet: each serves its own clients, and all receive the workers' reports.
//!
//! Gateways that share exchange the messages that routers make themselves; each arrives a stated time after its
//! cause, none is lost and none overtakes another.

use std::collections::VecDeque;
use std::time::Duration;

use crate::gateway::{Attempt, Gateway, News, Notice, Pair, Placed};

/// Gateways that are independent of each other, unless they share.
#[expect(missing_debug_implementations, reason = "a clock has none")]
pub struct Several<'a, G> {
    gateways: Vec<G>,
    of: &'a [u16],
    gossip: Option<Gossip>,
    clock: &'a dyn Fn() -> Duration,
    /// How long each selection took, in nanoseconds of the clock.
    pub nanoseconds: Vec<u32>,
}

/// Messages between gateways.
#[derive(Debug)]
struct Gossip {
    /// Seconds that a message takes.
    lag: f64,
    /// Up to when everything was published.
    now: f64,
    /// By arrival: the time, the sender, the message.
    under_way: VecDeque<(f64, usize, Vec<u8>)>,
}

impl Gossip {
    /// Sends the messages of a gateway since the last time.
    fn publish<G: Gateway>(&mut self, from: usize, gateway: &mut G) -> Result<(), G::Error> {
        let at = self.now + self.lag;
        for message in gateway.publish()? {
            self.under_way.push_back((at, from, message));
        }
        Ok(())
    }
}

impl<'a, G> Several<'a, G> {
    /// `of` is the position of the gateway that serves each request; those it does not name go to the first. `clock` has
    /// the real time since some moment, by which selections are timed. Messages of each gateway reach all others after
    /// `lag` seconds; `None` for no messages.
    #[must_use]
    pub fn new(
        gateways: Vec<G>,
        of: &'a [u16],
        clock: &'a dyn Fn() -> Duration,
        lag: Option<f64>,
    ) -> Self {
        let gossip = lag.map(|lag| Gossip {
            lag,
            now: 0.0,
            under_way: VecDeque::new(),
        });
        Self {
            gateways,
            of,
            gossip,
            clock,
            nanoseconds: Vec::new(),
        }
    }

    /// Selects by `select` of the gateway that serves a request, whose position comes first.
    fn timed<T>(&mut self, id: u32, select: impl FnOnce(&mut G) -> T) -> (u16, T)
    where
        G: Gateway,
    {
        let gateway = self.entrance(id);
        let begun = (self.clock)();
        let selected = select(&mut self.gateways[gateway as usize]);
        let took = (self.clock)().saturating_sub(begun).as_nanos();
        self.nanoseconds
            .push(u32::try_from(took).unwrap_or(u32::MAX));
        (gateway, selected)
    }
}

impl<G: Gateway> Gateway for Several<'_, G> {
    type Error = G::Error;

    fn elapse(&mut self, now: f64) -> Result<(), G::Error> {
        let Some(gossip) = &mut self.gossip else {
            return Ok(());
        };
        for (from, gateway) in self.gateways.iter_mut().enumerate() {
            gossip.publish(from, gateway)?;
        }
        while gossip.under_way.front().is_some_and(|next| next.0 <= now) {
            let Some((at, from, message)) = gossip.under_way.pop_front() else {
                break;
            };
            gossip.now = at;
            for (to, gateway) in self.gateways.iter_mut().enumerate() {
                if to != from {
                    gateway.receive(&message, at)?;
                    gossip.publish(to, gateway)?;
                }
            }
        }
        gossip.now = now;
        Ok(())
    }

    fn select(&mut self, attempt: &Attempt<'_>) -> Result<Option<Placed>, G::Error> {
        let (gateway, placed) = self.timed(attempt.id, |one| one.select(attempt));
        Ok(placed?.map(|placed| Placed { gateway, ..placed }))
    }

    fn select_pair(&mut self, attempt: &Attempt<'_>) -> Result<Option<Pair>, G::Error> {
        let (gateway, pair) = self.timed(attempt.id, |one| one.select_pair(attempt));
        let own = |placed| Placed { gateway, ..placed };
        Ok(pair?.map(|pair| Pair {
            prefill: pair.prefill.map(own),
            decode: own(pair.decode),
        }))
    }

    fn held(&mut self, id: u32) -> Result<Option<f64>, G::Error> {
        let gateway = self.entrance(id);
        self.gateways[gateway as usize].held(id)
    }

    fn called(&mut self, now: f64) -> Result<Vec<u32>, G::Error> {
        let mut called = Vec::new();
        for gateway in &mut self.gateways {
            called.extend(gateway.called(now)?);
        }
        Ok(called)
    }

    fn give_up(&mut self, id: u32) -> Result<(), G::Error> {
        let gateway = self.entrance(id);
        self.gateways[gateway as usize].give_up(id)
    }

    fn entrance(&self, id: u32) -> u16 {
        self.of.get(id as usize).copied().unwrap_or(0)
    }

    fn notice(&mut self, placed: Placed, notice: Notice, now: f64) -> Result<(), G::Error> {
        self.gateways[placed.gateway as usize].notice(placed, notice, now)
    }

    fn news(&mut self, news: News<'_>, now: f64) -> Result<(), G::Error> {
        let mut gateways = self.gateways.iter_mut();
        gateways.try_for_each(|gateway| gateway.news(news, now))
    }
}
