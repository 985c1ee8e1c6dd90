//! The recount of a load book.

use std::collections::HashMap;

use super::book::LoadBook;
use super::booking::{Half, NONE, Phase};
use super::pace::Prefill;
use crate::error::{Error, Result};

impl LoadBook {
    /// Recounts every column from the open bookings.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first slot or entry that disagrees.
    pub fn validate(&self) -> Result<()> {
        let mut counted =
            vec![(0_u32, Prefill::default(), 0_u64, 0_u64, 0_u64, 0_u64, 0_u32); self.loads.len()];
        let mut open = 0;
        for booking in self.bookings.iter().filter(|b| b.phase.is_some()) {
            open += 1;
            if self.load(booking.worker).is_some() {
                let row = &mut counted[booking.worker.slot as usize];
                row.0 += 1;
                row.1 += booking.prefill;
                row.2 += booking.decode_blocks;
                row.3 += booking.unnamed_blocks;
                row.4 += booking.output_blocks();
                if booking.phase == Some(Phase::Booked) {
                    row.5 += booking.tokens / booking.block_size;
                    row.6 += 1;
                }
            }
        }
        if open != self.len() {
            return Err(Error::Invariant(format!(
                "{open} open bookings, {} entries in use",
                self.len()
            )));
        }
        self.validate_queues()?;
        self.validate_halves()?;
        self.named.by_worker.validate()?;
        let mut firsts = HashMap::default();
        for first in self.bookings.iter().filter_map(|b| b.first) {
            *firsts.entry(first).or_default() += 1;
        }
        if firsts != self.named.firsts {
            return Err(Error::Invariant("first blocks are miscounted".into()));
        }
        for (slot, (load, counted)) in self.loads.iter().zip(&counted).enumerate() {
            let held = (
                load.inflight,
                Prefill {
                    tokens: load.pending_prefill_tokens,
                    pairs: load.pending_pairs,
                },
                load.decode_blocks,
                load.active_blocks
                    .wrapping_sub(self.named.by_worker.distinct(slot as u32) as u64),
                load.output_blocks,
                load.prompt_blocks,
                load.pending,
            );
            if held != *counted {
                let text = format!("load of slot {slot} is {held:?}, its bookings say {counted:?}");
                return Err(Error::Invariant(text));
            }
        }
        Ok(())
    }

    /// Every open booking of a registered worker is in its list once.
    fn validate_queues(&self) -> Result<()> {
        let mut listed = 0;
        for (slot, ends) in self.queues.iter().enumerate() {
            let (mut before, mut at) = (NONE, ends.oldest);
            while at != NONE {
                let booking = self.bookings.get(at as usize);
                let fits = booking.is_some_and(|booking| {
                    booking.phase.is_some()
                        && booking.worker.slot as usize == slot
                        && self.load(booking.worker).is_some()
                        && booking.neighbours.older == before
                });
                if !fits || listed > self.bookings.len() {
                    let text = format!("booking {at} is not where the list of slot {slot} has it");
                    return Err(Error::Invariant(text));
                }
                listed += 1;
                before = at;
                at = self.bookings[at as usize].neighbours.newer;
            }
            if ends.newest != before {
                let text = format!("the list of slot {slot} ends at {before}, not at its end");
                return Err(Error::Invariant(text));
            }
        }
        let open = self
            .bookings
            .iter()
            .filter(|booking| booking.phase.is_some() && self.load(booking.worker).is_some());
        let open = open.count();
        if open != listed {
            let text = format!("{open} open bookings of workers, {listed} in their lists");
            return Err(Error::Invariant(text));
        }
        Ok(())
    }

    fn validate_halves(&self) -> Result<()> {
        let mut counted = vec![0; self.apart.len()];
        for booking in &self.bookings {
            let waits = booking.phase == Some(Phase::Booked) && booking.half == Half::Decode;
            if waits && self.load(booking.worker).is_some() {
                counted[booking.worker.slot as usize] += 1;
            }
        }
        if counted == self.apart {
            return Ok(());
        }
        let text = format!(
            "{:?} wait for prompts, their bookings say {counted:?}",
            self.apart
        );
        Err(Error::Invariant(text))
    }
}
