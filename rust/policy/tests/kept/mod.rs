//! State of rules for their open bookings.

use std::collections::BTreeMap;

use cachelb_policy::{Choice, Ended, Memo, Memos, Rule, View};

/// State of a rule for its open bookings.
#[derive(Default)]
pub struct Kept(BTreeMap<u32, Vec<Memo>>);

impl Kept {
    pub fn of(&mut self, entry: u32) -> &mut Vec<Memo> {
        self.0.entry(entry).or_default()
    }

    /// Passes back the state that `matches`, as a booking has `ended`.
    pub fn end(&mut self, rule: &mut dyn Rule, ended: Ended, matches: impl Fn(u32, &Memo) -> bool) {
        for (entry, list) in &mut self.0 {
            for mut memo in list.extract_if(.., |memo| matches(*entry, memo)) {
                rule.state_at(memo.depth)
                    .unwrap()
                    .ended(&mut memo.memory, ended);
            }
        }
    }
}

/// Calls a rule whose choice was booked, and keeps its state.
pub fn settle(rule: &mut dyn Rule, view: &View<'_>, choice: Choice, served: usize) -> Vec<Memo> {
    let mut list = Vec::new();
    let mut memos = Memos {
        list: &mut list,
        part: 0,
        depth: 0,
    };
    rule.settled(view, choice, served, &mut memos);
    list
}
