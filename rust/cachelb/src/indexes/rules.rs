//! The rules of one model: the one that picks, those for the halves of a pair, and shadows.

use cachelb_policy::parts::State;
use cachelb_policy::{Choice, Ended, Memo, Memory, Memos, Reason, Rng, Rule, View};

use crate::request::{Request, Wanted};
use crate::settings::PoolSettings;

/// A rule that decides beside the first one, with a generator of its own.
#[derive(Debug)]
struct Shadow {
    rule: Box<dyn Rule>,
    rng: Rng,
}

/// All rules of one model.
#[derive(Debug)]
pub(crate) struct Rules {
    whole: Box<dyn Rule>,
    prefill: Option<Box<dyn Rule>>,
    decode: Option<Box<dyn Rule>>,
    shadows: Vec<Shadow>,
}

impl Rules {
    /// The rules of a pool; shadows get generators of `seed`.
    pub fn new(settings: PoolSettings, seed: u64) -> Self {
        let mut seeds = Rng::new(seed);
        let shadow = |rule| Shadow {
            rule,
            // Each its own, or rules that draw would all draw alike.
            rng: Rng::new(seeds.bits()),
        };
        Self {
            whole: settings.rule,
            prefill: settings.prefill,
            decode: settings.decode,
            shadows: settings.shadows.into_iter().map(shadow).collect(),
        }
    }

    /// Number, part and rule of each. Numbers are the same at all routers of these settings.
    pub fn parts(&self) -> impl Iterator<Item = (u32, &'static str, &dyn Rule)> {
        let picking = [
            (Wanted::Whole, Some(&self.whole)),
            (Wanted::Prefill, self.prefill.as_ref()),
            (Wanted::Decode, self.decode.as_ref()),
        ];
        let picking = picking.map(|(wanted, rule)| (wanted.name(), rule));
        let shadows = self.shadows.iter();
        let shadows = shadows.map(|shadow| ("shadow", Some(&shadow.rule)));
        let all = (0..).zip(picking.into_iter().chain(shadows));
        all.filter_map(|(number, (part, rule))| Some((number, part, &**rule?)))
    }

    /// Those that pick, which shadows do not.
    pub fn picking(&self) -> impl Iterator<Item = (&'static str, &dyn Rule)> {
        let picking = self.parts().take_while(|(number, ..)| *number < 3);
        picking.map(|(_, part, rule)| (part, rule))
    }

    /// Every rule.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Rule> {
        self.parts().map(|(.., rule)| rule)
    }

    /// Calls `each` with the states of every rule.
    pub fn each(&mut self, mut each: impl FnMut(&mut dyn State)) {
        let halves = [&mut self.prefill, &mut self.decode].into_iter().flatten();
        let shadows = self.shadows.iter_mut().map(|shadow| &mut shadow.rule);
        for rule in halves.chain([&mut self.whole]).chain(shadows) {
            rule.each_state(&mut each);
        }
    }

    /// The rule of a number.
    pub fn numbered_mut(&mut self, number: u32) -> Option<&mut dyn Rule> {
        let rule = match number {
            0 => &mut self.whole,
            1 => self.prefill.as_mut()?,
            2 => self.decode.as_mut()?,
            more => &mut self.shadows.get_mut(more as usize - 3)?.rule,
        };
        Some(&mut **rule)
    }

    /// The rule that decides.
    pub fn get(&self, wanted: Wanted) -> &dyn Rule {
        let special = match wanted {
            Wanted::Whole => None,
            Wanted::Prefill => self.prefill.as_deref(),
            Wanted::Decode => self.decode.as_deref(),
        };
        special.unwrap_or(&*self.whole)
    }

    /// The number of the rule that decides.
    fn number(&self, wanted: Wanted) -> u32 {
        match wanted {
            Wanted::Prefill if self.prefill.is_some() => 1,
            Wanted::Decode if self.decode.is_some() => 2,
            _ => 0,
        }
    }

    /// The rule that decides both halves of a pair at once, if neither has one of its own.
    pub fn pair_rule(&self) -> Option<&dyn Rule> {
        let halves = self.prefill.is_some() || self.decode.is_some();
        Some(&*self.whole).filter(|rule| !halves && rule.properties().weighs_pairs)
    }

    /// Passes the booked choice to the rule that made it, and lets the shadows of a whole request decide. `note` gets the
    /// choice of each. Returns the state that rules keep for the booking, too.
    pub fn settle<T>(
        &mut self,
        view: &View<'_>,
        choice: Choice,
        request: &Request<'_>,
        note: impl Fn(&Choice) -> T,
    ) -> (Box<[T]>, Vec<Memo>) {
        let mut list = Vec::new();
        let mut memos = Memos {
            list: &mut list,
            part: self.number(request.wanted),
            depth: 0,
        };
        if let Some(rule) = self.numbered_mut(memos.part) {
            rule.settled(view, choice, choice.row, &mut memos);
        }
        if request.wanted != Wanted::Whole {
            return (Box::default(), list);
        }
        let decide = |(at, shadow): (usize, &mut Shadow)| {
            let pinned = request.shadow_picks.get(at).copied().flatten();
            let own = pinned
                .and_then(|pinned| choose_pinned(view, pinned, &mut shadow.rng))
                .unwrap_or_else(|| shadow.rule.choose(view, &mut shadow.rng));
            if !own.refused {
                memos.part = 3 + at as u32;
                shadow.rule.settled(view, own, choice.row, &mut memos);
            }
            note(&own)
        };
        let shadows = self.shadows.iter_mut().enumerate();
        let noted = shadows.map(decide).collect();
        (noted, list)
    }

    /// Calls the states of the rules that have memos of a booking.
    pub fn each_memo(
        &mut self,
        memos: &mut [Memo],
        mut call: impl FnMut(&mut dyn State, &mut Memory),
    ) {
        for memo in memos {
            let rule = self.numbered_mut(memo.part);
            if let Some(own) = rule.and_then(|rule| rule.state_at(memo.depth)) {
                call(own, &mut memo.memory);
            }
        }
    }

    /// The worker registered as `order` is gone, and with it the state about it.
    pub fn worker_gone(&mut self, memos: &mut Vec<Memo>, order: u64) {
        let gone = memos.extract_if(.., |memo| memo.memory.order() == Some(order));
        let mut gone: Vec<Memo> = gone.collect();
        self.each_memo(&mut gone, |own, memory| {
            own.ended(memory, Ended::WorkerGone);
        });
    }

    /// Next draws of the shadows' generators.
    pub fn shadow_seeds(&self) -> Box<[u64]> {
        let seeds = self.shadows.iter().map(|s| s.rng.clone().bits());
        seeds.collect()
    }
}

/// The choice made outside, of an offer and a reason; `None` if it is no candidate any more. It was given the generator's
/// next bits to draw from.
pub(crate) fn choose_pinned(
    view: &View<'_>,
    (offer, reason): (u32, Reason),
    rng: &mut Rng,
) -> Option<Choice> {
    let row = view.rows.iter().position(|row| row.offer == offer)?;
    rng.bits();
    Some(Choice::pinned(row, reason))
}
