//! What gateways hear of answers, and when: clients have them on time.

use crate::gateway::{Gateway, Placed};

use super::heap::{Kind, Notice};
use super::{Outcome, Run};

impl<G: Gateway> Run<'_, G> {
    /// The gateway hears of an answer, no earlier than of its first token.
    pub(super) fn notice(
        &mut self,
        id: u32,
        placed: Placed,
        notice: Notice,
        now: f64,
    ) -> Outcome<G> {
        let noticed = self.requests.all[id as usize].noticed;
        // At the very instant too: the first token was scheduled before.
        if self.options.first_token_delay > 0.0 && now <= noticed {
            self.unheard += 1;
            self.heap.at(noticed, Kind::Notice(id, placed, notice));
            return Ok(());
        }
        notice.give(self.gateway, placed, now)
    }
}

impl Notice {
    pub(super) fn give<G: Gateway>(self, to: &mut G, placed: Placed, now: f64) -> Outcome<G> {
        match self {
            Self::FirstToken => to.first_token(placed, now),
            Self::Tokens(n) => to.tokens(placed, n, now),
            Self::Finished(cached) => to.finished(placed, cached, now),
        }
    }
}
