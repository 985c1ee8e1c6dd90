//! Notices of answers to gateways, which may be late: clients have their answers on time.

use crate::gateway::{Gateway, Notice, Placed};

use super::heap::Kind;
use super::{Outcome, Run};

impl<G: Gateway> Run<'_, G> {
    /// Notifies the gateway of an answer, no earlier than of its first token.
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
        self.gateway.notice(placed, notice, now)
    }
}
