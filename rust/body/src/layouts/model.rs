//! The prompts of a model, and how well each layout predicts what is reported of them.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::{Basis, Lesson};
use crate::endpoint::Api;
use crate::layout::{Layout, Part, Systems, Thoughts, Tools};
use crate::outline::Outline;

/// Prompts that are kept of a model, and bytes of their outlines.
const PROMPTS: usize = 256;
const PROMPT_BYTES: usize = 1 << 20;
/// The prompts on one worker that are compared under every layout, beside the best one under the current layout.
const COMPARED: usize = 4;
/// System texts of a model whose heads are compared, and the heads that make one volatile.
const TEXTS: usize = 256;
const HEADS: usize = 3;
/// Predictions within so many tokens, or this part of the prompt, are as good as equal.
const CLOSE_TOKENS: f64 = 32.0;
const CLOSE_PART: f64 = 0.05;
/// Logarithms of the likelihood of a report: as predicted, less, more.
const EXPECTED: f64 = -0.223;
const LESS: f64 = -1.897;
const MORE: f64 = -2.996;
/// The weight of older reports after each new one.
const MEMORY: f64 = 0.98;
/// The lead of the layout at the start.
const PRIOR: f64 = 0.5;
/// A layout is learned after so many informative answers.
pub(super) const LEARNED: u32 = 20;
/// After so many, one answer in `SAMPLED` is looked at, and all after `SURPRISES` in a row.
const SETTLED: u64 = 200;
const SAMPLED: u64 = 16;
const SURPRISES: u32 = 3;

/// The prompts and scores of one model.
#[derive(Debug)]
pub(super) struct Model {
    /// By API, of the reports of its own requests.
    pub(super) scores: [[f64; Layout::COUNT]; Api::COUNT],
    pub(super) current: [Option<Layout>; Api::COUNT],
    /// Whether the first line of a system text changes.
    pub(super) is_volatile: bool,
    pub(super) answers: u64,
    pub(super) informative: u64,
    /// Informative answers under the current layout.
    pub(super) confirmed: u32,
    /// Whether each of the latest informative answers was as predicted, the last in the lowest bit.
    pub(super) expected: u32,
    pub(super) surprises: u32,
    pub(super) contradicted: bool,
    pub(super) prompts: VecDeque<Earlier>,
    pub(super) bytes: usize,
    /// Heads by the digest of the rest of their system text; the oldest text first.
    pub(super) texts: VecDeque<(u64, Vec<u64>)>,
    pub(super) used: u64,
}

/// An earlier prompt.
#[derive(Debug)]
pub(super) struct Earlier {
    pub(super) outline: Arc<Outline>,
    pub(super) place: u64,
    pub(super) answer_tokens: u64,
    pub(super) api: Api,
    /// How later requests look it up.
    pub(super) layout: Layout,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            scores: [[0.0; Layout::COUNT]; Api::COUNT],
            current: [None; Api::COUNT],
            is_volatile: false,
            answers: 0,
            informative: 0,
            confirmed: 0,
            expected: 0,
            surprises: 0,
            contradicted: false,
            prompts: VecDeque::new(),
            bytes: 0,
            texts: VecDeque::new(),
            used: 0,
        }
    }
}

impl Model {
    /// The layout of requests to `api`.
    pub(super) fn layout(&self, api: Api, lesson: &Lesson) -> Layout {
        self.current[api as usize].unwrap_or(lesson.starts[api as usize])
    }

    /// Notes the first line of a system text. Returns its bytes once it is found to be volatile.
    pub(super) fn note_heads(&mut self, outline: &Outline) -> Option<u32> {
        let (first, rest, bytes) = outline.first_line().filter(|_| !self.is_volatile)?;
        let text = self.texts.iter().position(|(known, _)| *known == rest);
        let text = text.and_then(|at| self.texts.remove(at));
        let (_, mut heads) = text.unwrap_or((rest, Vec::new()));
        if !heads.contains(&first) {
            heads.push(first);
        }
        if heads.len() < HEADS {
            self.texts.push_back((rest, heads));
            if self.texts.len() > TEXTS {
                self.texts.pop_front();
            }
            return None;
        }
        self.is_volatile = true;
        self.texts.clear();
        for scores in &mut self.scores {
            let (kept, cut) = scores.split_at_mut(Layout::COUNT / 2);
            cut.copy_from_slice(kept);
        }
        Some(bytes)
    }

    /// Scores all layouts by a report of cached and prompt tokens. Returns by how many tokens it exceeds what the current
    /// one predicts, if the answer was looked at.
    pub(super) fn weigh(
        &mut self,
        lesson: &Lesson,
        place: u64,
        (cached, prompt): (f64, f64),
    ) -> Option<f64> {
        let outline = &*lesson.outline;
        self.answers += 1;
        let is_looked_at = self.informative < SETTLED
            || self.surprises >= SURPRISES
            || self.answers.is_multiple_of(SAMPLED);
        let current = self.layout(lesson.api, lesson);
        let here = self.prompts.iter().filter(|each| each.place == place);
        let mut earlier: Vec<_> = here.filter(|_| is_looked_at).collect();
        let best = earlier.iter().copied();
        let best = best.max_by_key(|each| outline.shared(&each.outline, current));
        earlier.sort_by_cached_key(|each| Reverse(each.outline.alike(outline)));
        earlier.truncate(COMPARED);
        earlier.extend(best);
        if earlier.is_empty() {
            return None;
        }
        // The second half beheads.
        let count = Layout::COUNT / (2 - usize::from(self.is_volatile));
        let api = lesson.api as usize;
        let has = |is: &dyn Fn(&Outline) -> bool| {
            is(outline) || earlier.iter().any(|each| is(&each.outline))
        };
        let mut parts = vec![
            Part::Further,
            Part::Inline,
            Part::Thought,
            Part::Empty,
            Part::Attribution,
        ];
        parts.retain(|part| has(&|outline| outline.has(*part)));
        let has_tools = has(&Outline::has_tools);
        // Prompts without tools have the same prediction wherever those are rendered, and so on.
        let mut known: HashMap<Layout, (f64, f64)> = HashMap::new();
        let mut predicted = [(0.0, 0.0); Layout::COUNT];
        for (layout, predicted) in Layout::all().zip(&mut predicted[..count]) {
            *predicted = *known
                .entry(reduced(layout, has_tools, &parts))
                .or_insert_with(|| {
                    let bytes = outline.bytes(layout).max(1) as f64;
                    let shared =
                        |each: &Earlier| outline.shared(&each.outline, layout) as f64 / bytes;
                    let found = earlier
                        .iter()
                        .map(|each| (shared(each) * prompt, each.answer_tokens));
                    let best = found.reduce(|best, each| if each.0 > best.0 { each } else { best });
                    best.map_or((0.0, 0.0), |(tokens, answer)| (tokens, answer as f64))
                });
        }
        let close = CLOSE_TOKENS.max(CLOSE_PART * prompt);
        let least = predicted[..count]
            .iter()
            .fold(f64::MAX, |least, each| least.min(each.0));
        let most = predicted[..count]
            .iter()
            .fold(0.0, |most: f64, each| most.max(each.0));
        let (own, answer) = predicted[current.number()];
        let missed = cached - own;
        if most - least <= close {
            return Some(missed);
        }
        self.informative += 1;
        self.confirmed = self.confirmed.saturating_add(1);
        let scores = self.scores[api].iter_mut();
        for (score, (tokens, answer)) in scores.zip(&predicted[..count]) {
            let more = cached - tokens;
            let likelihood = if more < -close {
                LESS
            } else if more > close + answer {
                MORE
            } else {
                EXPECTED
            };
            *score = MEMORY * *score + likelihood;
        }
        let is_expected = (-close..=close + answer).contains(&missed);
        self.expected = self.expected << 1 | u32::from(is_expected);
        self.surprises = if is_expected { 0 } else { self.surprises + 1 };
        Some(missed)
    }

    /// The score of a layout for requests to `api`. Engines convert the messages of each API in their own way, so what
    /// they do with inline messages in the others is no evidence of it.
    pub(super) fn score(&self, api: Api, layout: Layout, start: Layout) -> f64 {
        let other = Layout {
            systems: match layout.systems {
                Systems::InPlace => Systems::Merged,
                Systems::Merged => Systems::InPlace,
                systems => systems,
            },
            ..layout
        };
        let scores = self.scores.iter().enumerate().map(|(of, scores)| {
            let score = scores[layout.number()];
            if of == api as usize {
                score
            } else {
                score.max(scores[other.number()])
            }
        });
        let prior = f64::from(layout == start) - f64::from(layout.beheads);
        scores.sum::<f64>() + PRIOR * prior
    }

    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.bytes + self.texts.len() * (HEADS + 4) * size_of::<u64>()
    }

    pub(super) fn basis(&self) -> Basis {
        let seen = self.confirmed.min(u32::BITS);
        if self.confirmed >= LEARNED && self.expected.count_ones() * 10 >= seen * 9 {
            Basis::Learned
        } else {
            Basis::Likely
        }
    }

    /// Keeps a prompt, and those that it continues: a layout that moves messages does not render it as their continuation.
    pub(super) fn keep(&mut self, lesson: &Lesson, place: u64, answer_tokens: u64) {
        self.bytes += lesson.outline.memory_bytes();
        self.prompts.push_back(Earlier {
            outline: Arc::clone(&lesson.outline),
            place,
            answer_tokens,
            api: lesson.api,
            layout: lesson.current.layout,
        });
        while self.prompts.len() > PROMPTS || self.bytes > PROMPT_BYTES {
            let Some(oldest) = self.prompts.pop_front() else {
                break;
            };
            self.bytes -= oldest.outline.memory_bytes();
        }
    }
}

/// The layout, with the likely choice where prompts of these parts are equal whatever it is.
fn reduced(layout: Layout, has_tools: bool, parts: &[Part]) -> Layout {
    let has = |part| parts.contains(&part);
    Layout {
        tools: if has_tools {
            layout.tools
        } else {
            Tools::default()
        },
        systems: match layout.systems {
            Systems::LastUser => Systems::LastUser,
            systems if has(Part::Inline) => systems,
            Systems::LastOnly if has(Part::Further) => Systems::LastOnly,
            _ => Systems::InPlace,
        },
        thoughts: match layout.thoughts {
            Thoughts::Empty if has(Part::Empty) => Thoughts::Empty,
            Thoughts::Empty | Thoughts::Dropped if has(Part::Thought) => Thoughts::Dropped,
            _ => Thoughts::Kept,
        },
        attributes: layout.attributes && has(Part::Attribution),
        beheads: layout.beheads,
    }
}
