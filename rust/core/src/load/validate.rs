//! The recount of a load book.

use super::book::LoadBook;
use super::booking::{Half, Payload, Phase};
use super::pace::Prefill;
use crate::error::{Error, Result};

/// Columns of a worker, in the order of the recount.
type Counted = (u32, Prefill, u64, u64, u64, u64, u32, u32);

impl<T: Payload> LoadBook<T> {
    /// Recounts every column from the open bookings.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first slot or entry that disagrees.
    pub fn validate(&self) -> Result<()> {
        self.bookings.validate(&self.loads)?;
        let firsts = self.bookings.iter().filter_map(|(_, b)| Some(b.named?.0));
        self.named.validate(firsts)?;
        let loads = self.loads.columns();
        let mut counted = vec![Counted::default(); loads.len()];
        for (_, booking) in self.bookings.iter() {
            if self.loads.get(booking.worker).is_some() {
                let row = &mut counted[booking.worker.slot as usize];
                row.0 += 1;
                row.1 += booking.prefill;
                row.2 += booking.decode_blocks;
                row.3 += booking.unnamed_blocks;
                row.4 += booking.output_blocks();
                if booking.phase == Some(Phase::Booked) {
                    row.5 += booking.tokens / booking.block_size;
                    row.6 += 1;
                    row.7 += u32::from(booking.half == Half::Decode);
                }
            }
        }
        for (slot, (load, counted)) in loads.iter().zip(&counted).enumerate() {
            let held = (
                load.inflight,
                Prefill {
                    tokens: load.pending_prefill_tokens,
                    pairs: load.pending_pairs,
                },
                load.decode_blocks,
                load.active_blocks
                    .wrapping_sub(self.named.blocks(slot as u32)),
                load.output_blocks,
                load.prompt_blocks,
                load.pending,
                self.loads.apart[slot],
            );
            if held != *counted {
                let text = format!("load of slot {slot} is {held:?}, its bookings say {counted:?}");
                return Err(Error::Invariant(text));
            }
        }
        Ok(())
    }
}
