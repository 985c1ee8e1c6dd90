//! Routers over a network that loses, repeats and mixes up.

use super::*;

/// One router of a network, and the state kept outside of its selector.
pub trait Site {
    fn selector(&mut self) -> &mut Selector;

    fn receive(&mut self, message: &[u8], now: u64) -> cachelb_core::Result<Receipt> {
        hear(self.selector(), message, now)
    }
}

/// Fates of messages.
pub type Fates = [u8; 2];

/// Three routers, and the messages that come late.
pub struct Network<S> {
    pub sites: Vec<S>,
    late: Vec<(usize, usize, Vec<u8>)>,
    new: fn(u64) -> S,
    /// Restarts so far.
    pub restarts: u64,
}

impl<S: Site> Network<S> {
    pub fn new(new: fn(u64) -> S) -> Self {
        Self {
            sites: (1..=3).map(new).collect(),
            late: Vec::new(),
            new,
            restarts: 0,
        }
    }

    /// Publishes all that waits at router `at`: every message is lost, comes once, twice or late.
    pub fn tell(&mut self, at: usize, fates: Fates, now: u64) {
        let messages = tell(self.sites[at].selector());
        for to in (0..3).filter(|&to| to != at) {
            for (i, message) in messages.iter().enumerate() {
                match fates[(i + to) % 2] % 5 {
                    0 => {}
                    1 => self.late.push((at, to, message.clone())),
                    twice => {
                        for _ in 0..=u8::from(twice == 2) {
                            let _ = self.sites[to].receive(message, now);
                        }
                    }
                }
            }
        }
    }

    /// Now and then a message comes that is late.
    pub fn pass(&mut self, fates: Fates, now: u64) {
        if fates[0].is_multiple_of(7) && !self.late.is_empty() {
            let at = usize::from(fates[1]) % self.late.len();
            let (_, to, message) = self.late.swap_remove(at);
            let _ = self.sites[to].receive(&message, now);
        }
    }

    /// A router starts over, and the others notice the silence of the one before.
    pub fn restart(&mut self, at: usize, now: u64) {
        let gone = self.sites[at].selector().sharing().unwrap().origin;
        self.sites[at] = (self.new)(10 + self.restarts);
        self.restarts += 1;
        self.late.retain(|(from, to, _)| *from != at && *to != at);
        for site in &mut self.sites {
            let mut sharing = site.selector().sharing_mut();
            sharing.forget_origin(gone, Millis(now));
        }
    }

    /// Late messages come, then all publish how far they are. Losses may be published in turn.
    pub fn heal(&mut self) {
        for (_, to, message) in std::mem::take(&mut self.late) {
            let _ = self.sites[to].receive(&message, 1_000);
        }
        for from in (0..3).cycle().take(9) {
            self.deliver(from);
        }
    }

    /// All receive the messages that wait at `from`, and ask it for a snapshot if something is missing.
    pub fn deliver(&mut self, from: usize) {
        let mut messages = tell(self.sites[from].selector());
        messages.extend(self.sites[from].selector().sharing().unwrap().heartbeat(7));
        for to in (0..3).filter(|&to| to != from) {
            let [from, to] = self.sites.get_disjoint_mut([from, to]).unwrap();
            for message in &messages {
                if to.receive(message, 1_000) == Ok(Receipt::Gap) {
                    for part in snapshot(from.selector(), Millis(1_000)) {
                        assert_ne!(to.receive(&part, 1_000), Ok(Receipt::Gap));
                    }
                }
            }
        }
    }
}
