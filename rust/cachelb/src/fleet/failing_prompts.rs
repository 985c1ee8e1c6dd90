//! Prompts that failed lately, and on which workers.
//!
//! A prompt that fails on several workers is taken to be the reason, so it counts against none of them. Once a worker
//! answers it, the others have failed after all.

use std::collections::{HashMap, VecDeque};

use cachelb_core::ids::{Millis, WorkerId};

use crate::fleet::health::Blame;

/// Prompts remembered, and workers of each.
const MOST: usize = 1024;
const MOST_WORKERS: usize = 16;
/// How long a prompt is remembered.
const MEMORY_MS: u64 = 300_000;

/// The failure of a prompt on one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blamed {
    pub worker: WorkerId,
    pub blame: Blame,
    /// When the first of it came.
    pub at: Millis,
}

#[derive(Debug)]
struct Suspect {
    is_answered: bool,
    blamed: Vec<Blamed>,
}

/// How evidence against a worker is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It counts.
    Counts,
    /// It does not, and this is to be taken back.
    Excused(Vec<Blamed>),
}

/// The prompts by their marks.
#[derive(Debug, Default)]
pub(crate) struct FailingPrompts {
    prompts: HashMap<u64, Suspect>,
    /// From the oldest.
    order: VecDeque<(u64, Millis)>,
}

impl FailingPrompts {
    /// The prompt called `mark`, 0 for one that cannot be recognised, brought evidence against a worker, of which nothing
    /// older than `since` counts.
    pub fn failed(
        &mut self,
        mark: u64,
        (worker, since): (WorkerId, Millis),
        blame: Blame,
        now: Millis,
    ) -> Verdict {
        if mark == 0 {
            return Verdict::Counts;
        }
        self.forget_old(now);
        let suspect = self.prompts.entry(mark).or_insert_with(|| {
            self.order.push_back((mark, now));
            Suspect {
                is_answered: false,
                blamed: Vec::new(),
            }
        });
        let blamed = &mut suspect.blamed;
        let before = blamed.len();
        let new = Blamed {
            worker,
            blame,
            at: now,
        };
        match blamed.iter_mut().find(|known| known.worker == worker) {
            Some(known) if known.at < since => *known = new,
            Some(known) => known.blame.add(blame),
            None if before < MOST_WORKERS => blamed.push(new),
            None => {}
        }
        if suspect.is_answered || blamed.len() < 2 {
            return Verdict::Counts;
        }
        // With the second worker the evidence against the first one goes.
        let first = usize::from(before == 1);
        Verdict::Excused(blamed[..first].to_vec())
    }

    /// A worker answered the prompt. Returns the evidence that counts after all.
    pub fn answered(&mut self, mark: u64) -> Vec<Blamed> {
        let suspect = self.prompts.get_mut(&mark).filter(|s| !s.is_answered);
        suspect.map_or_else(Vec::new, |suspect| {
            suspect.is_answered = true;
            let was_excused = suspect.blamed.len() > 1;
            suspect.blamed.retain(|_| was_excused);
            std::mem::take(&mut suspect.blamed)
        })
    }

    /// Whether no prompt failed lately.
    pub fn is_empty(&self) -> bool {
        self.prompts.is_empty()
    }

    fn forget_old(&mut self, now: Millis) {
        while let Some(&(mark, at)) = self.order.front()
            && (self.order.len() >= MOST || at.0.saturating_add(MEMORY_MS) <= now.0)
        {
            self.order.pop_front();
            self.prompts.remove(&mark);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILURE: Blame = Blame {
        failures: 1,
        give_ups: 0,
    };

    fn worker(slot: u32) -> WorkerId {
        WorkerId {
            slot,
            generation: 0,
        }
    }

    fn blamed(slot: u32, failures: u32, at: u64) -> Blamed {
        Blamed {
            worker: worker(slot),
            blame: Blame {
                failures,
                give_ups: 0,
            },
            at: Millis(at),
        }
    }

    #[test]
    fn a_prompt_that_fails_on_a_second_worker_is_the_reason_until_one_answers_it() {
        let mut suspects = FailingPrompts::default();
        let mut fail =
            |slot, at| suspects.failed(7, (worker(slot), Millis(0)), FAILURE, Millis(at));
        assert_eq!(fail(0, 1), Verdict::Counts);
        assert_eq!(fail(0, 2), Verdict::Counts);
        assert_eq!(fail(1, 3), Verdict::Excused(vec![blamed(0, 2, 1)]));
        assert_eq!(fail(1, 4), Verdict::Excused(vec![]));
        assert_eq!(fail(2, 5), Verdict::Excused(vec![]));
        let all = [blamed(0, 2, 1), blamed(1, 2, 3), blamed(2, 1, 5)];
        assert_eq!(suspects.answered(7), all);
        assert_eq!(suspects.answered(7), []);
        for slot in 0..3 {
            let verdict = suspects.failed(7, (worker(slot), Millis(0)), FAILURE, Millis(6));
            assert_eq!(verdict, Verdict::Counts, "{slot}");
        }
    }

    #[test]
    fn what_an_answer_of_the_worker_ended_is_not_taken_back() {
        let mut suspects = FailingPrompts::default();
        suspects.failed(7, (worker(0), Millis(0)), FAILURE, Millis(1));
        suspects.failed(7, (worker(0), Millis(2)), FAILURE, Millis(3));
        let verdict = suspects.failed(7, (worker(1), Millis(0)), FAILURE, Millis(4));
        assert_eq!(verdict, Verdict::Excused(vec![blamed(0, 1, 3)]));
    }

    #[test]
    fn what_counted_already_does_not_count_twice() {
        let mut suspects = FailingPrompts::default();
        suspects.failed(7, (worker(0), Millis(0)), FAILURE, Millis(1));
        assert_eq!(suspects.answered(7), []);
        assert_eq!(suspects.answered(8), []);
    }

    #[test]
    fn prompts_are_forgotten_after_a_time_and_beyond_a_number() {
        let mut suspects = FailingPrompts::default();
        for mark in 0..5_000 {
            suspects.failed(mark, (worker(0), Millis(0)), FAILURE, Millis(mark));
        }
        assert_eq!(suspects.prompts.len(), MOST);
        for slot in 0..100 {
            suspects.failed(4_999, (worker(slot), Millis(0)), FAILURE, Millis(5_000));
        }
        assert_eq!(suspects.prompts[&4_999].blamed.len(), MOST_WORKERS);
        let verdict = suspects.failed(
            1,
            (worker(1), Millis(0)),
            FAILURE,
            Millis(4_999 + MEMORY_MS),
        );
        assert_eq!(verdict, Verdict::Counts);
        assert_eq!((suspects.prompts.len(), suspects.order.len()), (1, 1));
    }
}
