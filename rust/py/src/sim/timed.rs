//! Real time taken by selections, for which the core has no clock.

use std::time::Instant;

use cachelb_sim::{Attempt, Gateway, News, Notice, Pair, Placed};

/// A gateway and how long each of its selections took.
#[derive(Debug)]
pub struct Timed<G> {
    inner: G,
    nanoseconds: Vec<u32>,
}

impl<G> Timed<G> {
    pub fn new(inner: G) -> Self {
        Self {
            inner,
            nanoseconds: Vec::new(),
        }
    }

    fn timed<T>(&mut self, select: impl FnOnce(&mut G) -> T) -> T {
        let begin = Instant::now();
        let selected = select(&mut self.inner);
        let ns = u32::try_from(begin.elapsed().as_nanos()).unwrap_or(u32::MAX);
        self.nanoseconds.push(ns);
        selected
    }

    pub fn into_nanoseconds(self) -> Vec<u32> {
        self.nanoseconds
    }
}

impl<G: Gateway> Gateway for Timed<G> {
    type Error = G::Error;

    fn select(&mut self, attempt: &Attempt<'_>) -> Result<Option<Placed>, G::Error> {
        self.timed(|inner| inner.select(attempt))
    }

    fn select_pair(&mut self, attempt: &Attempt<'_>) -> Result<Option<Pair>, G::Error> {
        self.timed(|inner| inner.select_pair(attempt))
    }

    fn held(&mut self, id: u32) -> Result<Option<f64>, G::Error> {
        self.inner.held(id)
    }

    fn called(&mut self, now: f64) -> Result<Vec<u32>, G::Error> {
        self.inner.called(now)
    }

    fn give_up(&mut self, id: u32) -> Result<(), G::Error> {
        self.inner.give_up(id)
    }

    fn elapse(&mut self, now: f64) -> Result<(), G::Error> {
        self.inner.elapse(now)
    }

    fn publish(&mut self) -> Result<Vec<Vec<u8>>, G::Error> {
        self.inner.publish()
    }

    fn receive(&mut self, message: &[u8], now: f64) -> Result<(), G::Error> {
        self.inner.receive(message, now)
    }

    fn entrance(&self, id: u32) -> u16 {
        self.inner.entrance(id)
    }

    fn notice(&mut self, placed: Placed, notice: Notice, now: f64) -> Result<(), G::Error> {
        self.inner.notice(placed, notice, now)
    }

    fn news(&mut self, news: News<'_>, now: f64) -> Result<(), G::Error> {
        self.inner.news(news, now)
    }
}
