//! Bookings for a part of a request: one worker computes the prompt, another generates.
//!
//! The first token of the decode half measures both workers and the transfer between them, not the speed of its own.
//! The prefill half has no first token: its answer is one.

use crate::ids::{BookingId, Millis};

use super::book::LoadBook;
use super::booking::{Half, Payload};
use super::pace::Prefill;

impl<T: Payload> LoadBook<T> {
    /// Sets the part of its request that an open booking without a first token is for.
    pub fn split(&mut self, id: BookingId, half: Half) {
        let Some(booking) = self.bookings.waiting_mut(id) else {
            return;
        };
        let before = std::mem::replace(&mut booking.half, half);
        if half == Half::Decode {
            booking.backlog = Prefill::default();
        }
        if let Some(apart) = self.loads.apart_mut(booking.worker, before) {
            *apart -= 1;
        }
        if let Some(apart) = self.loads.apart_mut(booking.worker, half) {
            *apart += 1;
        }
    }

    /// Splits a request over two bookings: `prefill` computes the prompt that `decode` waits for.
    pub fn pair(&mut self, prefill: BookingId, decode: BookingId) {
        for (id, half, partner) in [
            (prefill, Half::Prefill, decode),
            (decode, Half::Decode, prefill),
        ] {
            self.split(id, half);
            if let Some(booking) = self.bookings.waiting_mut(id) {
                booking.partner = Some(partner);
            }
        }
    }

    /// A request was answered that had no first token. For a prefill half, that measures the speed of its worker, as a
    /// first token would, and its partner waits no longer; for others, it measures whole answers.
    pub fn prefilled(&mut self, id: BookingId, now: Millis) {
        let Some(booking) = self.bookings.waiting_mut(id) else {
            return;
        };
        let took_ms = now.0.saturating_sub(booking.booked.0);
        if booking.half != Half::Prefill {
            self.pace.observe_answer(took_ms);
            return;
        }
        let partner = booking.partner.take();
        if let Some(load) = self.loads.get_mut(booking.worker) {
            self.pace.observe(&mut load.speed, booking.backlog, took_ms);
        }
        if let Some(partner) = partner.and_then(|id| self.bookings.waiting_mut(id)) {
            (partner.partner, partner.booked) = (None, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::WorkerId;
    use crate::load::{Load, Work};

    const PREFILL: WorkerId = WorkerId {
        slot: 0,
        generation: 0,
    };
    const DECODE: WorkerId = WorkerId {
        slot: 1,
        generation: 0,
    };

    fn book() -> LoadBook {
        let mut book = LoadBook::default();
        book.add_worker(PREFILL);
        book.add_worker(DECODE);
        book
    }

    fn add(book: &mut LoadBook, worker: WorkerId, prefill_tokens: u64, half: Half) -> BookingId {
        let work = Work {
            prompt_tokens: 1_000,
            prefill_tokens,
            estimate_ms: 0.0,
            block_size: 16,
        };
        let id = book.book(worker, work, Millis(0)).unwrap();
        book.split(id, half);
        book.validate().unwrap();
        id
    }

    fn speed(book: &LoadBook, worker: WorkerId) -> Option<f64> {
        book.loads.get(worker).map(|load: &Load| load.speed)?.get()
    }

    #[test]
    fn a_pair_teaches_the_speed_of_its_prefill_worker_alone() {
        let mut book = book();
        let prompt = add(&mut book, PREFILL, 1_000, Half::Prefill);
        // Its own prompt of another request would be all that there is to compute.
        add(&mut book, DECODE, 10, Half::Whole);
        let answer = add(&mut book, DECODE, 0, Half::Decode);
        book.prefilled(prompt, Millis(100));
        book.close(prompt);
        book.first_token(answer, Millis(150));
        assert!(speed(&book, PREFILL).is_some_and(|speed| (speed - 10.0).abs() < 1e-9));
        assert_eq!(speed(&book, DECODE), None);
    }

    #[test]
    fn no_other_booking_is_prefilled() {
        let mut book = book();
        for half in [Half::Whole, Half::Decode] {
            let id = add(&mut book, PREFILL, 1_000, half);
            book.prefilled(id, Millis(100));
            assert_eq!(speed(&book, PREFILL), None, "{half:?}");
        }
        let id = add(&mut book, PREFILL, 1_000, Half::Prefill);
        book.close(id);
        book.prefilled(id, Millis(100));
        assert_eq!(speed(&book, PREFILL), None, "closed");
    }

    #[test]
    fn decode_halves_wait_for_their_prompt_until_their_first_token_or_end() {
        let mut book = book();
        let ids: Vec<BookingId> = (0..4)
            .map(|_| add(&mut book, DECODE, 0, Half::Decode))
            .collect();
        add(&mut book, DECODE, 10, Half::Whole);
        assert_eq!(book.loads.apart, [0, 4]);
        for (id, left) in ids.iter().zip([3, 2]) {
            book.first_token(*id, Millis(9));
            book.first_token(*id, Millis(10));
            assert_eq!(book.loads.apart, [0, left]);
        }
        book.close(ids[0]);
        book.close(ids[2]);
        assert_eq!(book.loads.apart, [0, 1]);
        book.split(ids[1], Half::Whole);
        assert_eq!(book.loads.apart, [0, 1], "it has its first token");
        book.split(ids[3], Half::Whole);
        assert_eq!(book.loads.apart, [0, 0]);
        book.validate().unwrap();
    }

    #[test]
    fn a_decode_half_of_a_removed_worker_counts_for_none() {
        let mut book = book();
        let gone = add(&mut book, DECODE, 0, Half::Decode);
        book.remove_worker(DECODE);
        book.add_worker(WorkerId {
            generation: 1,
            ..DECODE
        });
        assert_eq!(book.loads.apart, [0, 0]);
        book.first_token(gone, Millis(5));
        book.close(gone);
        assert_eq!(book.loads.apart, [0, 0]);
        book.validate().unwrap();
    }
}
