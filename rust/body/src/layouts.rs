//! Which layout the engines of each model have, learned from the cached tokens that they report.
//!
//! For each layout the tokens that an answer found cached are predicted from the best earlier prompt on its worker. A
//! layout scores by how likely the report is under it; the current one is left once another leads it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::layout::{Head, Layout, Part, Thoughts, Tools};
use crate::outline::Outline;
use crate::profile::Engine;

/// The least recently used of more models is forgotten.
const MODELS: usize = 64;
/// Prompts that are kept of a model, and bytes of their outlines.
const PROMPTS: usize = 256;
const PROMPT_BYTES: usize = 1 << 20;
/// Of those on a worker that a prompt is compared with under every layout.
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
/// What older reports count for with each new one.
const MEMORY: f64 = 0.98;
/// What the layout at the start has ahead, and what another must lead by.
const AHEAD: f64 = 0.5;
const LEAD: f64 = 1.0;
/// A layout is learned after so many informative answers.
const LEARNED: u32 = 20;
/// After so many, one answer in `SAMPLED` is looked at, and all after `SURPRISES` in a row.
const SETTLED: u64 = 200;
const SAMPLED: u64 = 16;
const SURPRISES: u32 = 3;

/// The choices of a layout that a person made; the others are learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Given {
    /// Where tools are rendered.
    pub tools: Option<Tools>,
    /// Whether system messages among the others move.
    pub merges: Option<bool>,
    /// Which thoughts are rendered.
    pub thoughts: Option<Thoughts>,
    /// Whether attribution lines are rendered.
    pub attributes: Option<bool>,
}

impl Given {
    /// The layout that the engine most likely has.
    #[must_use]
    pub fn start(self, engine: Engine) -> Layout {
        Layout {
            tools: self.tools.unwrap_or_default(),
            merges: self.merges.unwrap_or_default(),
            thoughts: self.thoughts.unwrap_or_default(),
            attributes: self.attributes.unwrap_or(engine == Engine::Sglang),
            beheads: false,
        }
    }

    fn allows(self, layout: Layout) -> bool {
        self.tools.is_none_or(|tools| tools == layout.tools)
            && self.merges.is_none_or(|merges| merges == layout.merges)
            && self.thoughts.is_none_or(|kept| kept == layout.thoughts)
            && self.attributes.is_none_or(|kept| kept == layout.attributes)
    }
}

/// On what ground a prompt counts as shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Basis {
    /// Token ids or block hashes.
    Tokens,
    /// Text that every engine renders alike, or no prompt.
    #[default]
    Certain,
    /// The layout that reports of engines confirm.
    Learned,
    /// The likely layout.
    Likely,
}

impl Basis {
    /// Its name in decisions.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Certain => "certain",
            Self::Learned => "learned",
            Self::Likely => "likely",
        }
    }
}

/// The layout of a model now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Current {
    /// How its prompts are arranged.
    pub layout: Layout,
    /// What of a system text is volatile.
    pub head: Head,
    /// [`Learned`](Basis::Learned) or [`Likely`](Basis::Likely).
    pub basis: Basis,
}

/// A change that is worth a line in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Reports led to another layout.
    Switched(Layout),
    /// Reports contradict what a person set: this layout explains them better.
    Contradicted(Layout),
    /// The first bytes of a system text change while the rest stays: so many.
    VolatileHead(u32),
}

/// Counters since the start.
#[derive(Debug, Default)]
pub struct LayoutCounts {
    /// Changes of a model's layout.
    pub switches: AtomicU64,
    /// Answers without a count of cached tokens.
    pub unreported: AtomicU64,
    /// System texts found to have a volatile head.
    pub volatile_heads: AtomicU64,
    /// Cached tokens beyond those predicted, and those that were missing.
    pub beyond: AtomicU64,
    /// Cached tokens that were predicted and not reported.
    pub missing: AtomicU64,
}

/// The layouts of all models of a router.
#[derive(Debug, Default)]
pub struct Layouts {
    given: Given,
    engine: AtomicU8,
    /// Whether a person named it.
    is_set: bool,
    models: Mutex<HashMap<u64, Model>>,
    current: RwLock<HashMap<u64, Current>>,
    /// Counters.
    pub counts: LayoutCounts,
}

/// What is known of a model's prompts.
#[derive(Debug)]
struct Model {
    scores: [f64; Layout::COUNT],
    current: Option<Layout>,
    volatile: Option<Head>,
    answers: u64,
    informative: u64,
    /// Informative answers under the current layout.
    confirmed: u32,
    /// Whether each of the latest informative answers was as predicted, the last in the lowest bit.
    expected: u32,
    surprises: u32,
    contradicted: bool,
    prompts: VecDeque<Earlier>,
    bytes: usize,
    /// Heads by the digest of the rest of their system text; the oldest text first.
    texts: VecDeque<(u64, Vec<u64>)>,
    used: u64,
}

/// An earlier prompt.
#[derive(Debug)]
struct Earlier {
    outline: Arc<Outline>,
    place: u64,
    answer_tokens: u64,
}

/// What an engine counted of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Prompt tokens from its cache.
    pub cached: Option<u64>,
    /// Prompt tokens.
    pub prompt: Option<u64>,
    /// Output tokens.
    pub output: Option<u64>,
}

/// A prompt that was sent, to learn from its answer.
#[derive(Debug, Clone)]
pub struct Lesson {
    layouts: Arc<Layouts>,
    model: u64,
    outline: Arc<Outline>,
}

impl Lesson {
    /// The worker at `place` answered; `place` differs between workers.
    #[must_use = "a notice is to be logged"]
    pub fn learn(&self, place: u64, report: Report) -> Vec<Notice> {
        self.layouts.learn(self, place, report)
    }
}

fn key(model: Option<&str>) -> u64 {
    xxh3_64_with_seed(model.unwrap_or_default().as_bytes(), 0)
}

impl Layouts {
    /// Layouts with the choices of a person.
    #[must_use]
    pub fn new(given: Given, engine: Option<Engine>) -> Self {
        Self {
            given,
            engine: AtomicU8::new(engine.unwrap_or_default() as u8),
            is_set: engine.is_some(),
            ..Self::default()
        }
    }

    /// The workers were found to be this engine, which counts unless a person named one.
    pub fn found(&self, engine: Engine) {
        if !self.is_set {
            self.engine.store(engine as u8, Ordering::Relaxed);
        }
    }

    /// The engine that renders the prompts.
    pub fn engine(&self) -> Engine {
        match self.engine.load(Ordering::Relaxed) {
            found if found == Engine::Vllm as u8 => Engine::Vllm,
            found if found == Engine::Sglang as u8 => Engine::Sglang,
            _ => Engine::Unset,
        }
    }

    /// The layout of a model.
    #[must_use]
    pub fn of(&self, model: Option<&str>) -> Current {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let known = current.get(&key(model)).copied();
        known.unwrap_or_else(|| Current {
            layout: self.given.start(self.engine()),
            head: Head::Line,
            basis: Basis::Likely,
        })
    }

    /// A prompt to `model` that is sent.
    #[must_use]
    pub fn lesson(self: &Arc<Self>, model: Option<&str>, outline: Outline) -> Arc<Lesson> {
        Arc::new(Lesson {
            layouts: Arc::clone(self),
            model: key(model),
            outline: Arc::new(outline),
        })
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |model: &Model| {
            size_of::<Model>() + model.bytes + model.texts.len() * (HEADS + 4) * size_of::<u64>()
        };
        models.values().map(of).sum()
    }

    fn learn(&self, lesson: &Lesson, place: u64, report: Report) -> Vec<Notice> {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let used = models.values().map(|model| model.used).max().unwrap_or(0) + 1;
        if models.len() >= MODELS && !models.contains_key(&lesson.model) {
            let oldest = models.iter().min_by_key(|(_, model)| model.used);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                models.remove(&oldest);
                let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
                current.remove(&oldest);
            }
        }
        let model = models.entry(lesson.model).or_default();
        model.used = used;
        let mut notices = Vec::new();
        if let Some(bytes) = model.note_heads(&lesson.outline) {
            self.counts.volatile_heads.fetch_add(1, Ordering::Relaxed);
            notices.push(Notice::VolatileHead(bytes));
        }
        let start = self.given.start(self.engine());
        if let Some((cached, prompt)) = report.cached.zip(report.prompt).filter(|(_, all)| *all > 0)
        {
            let tokens = (cached.min(prompt) as f64, prompt as f64);
            if let Some(missed) = model.weigh(&lesson.outline, place, tokens, start) {
                let (fewer, more) = (&self.counts.missing, &self.counts.beyond);
                for (counter, tokens) in [(fewer, -missed), (more, missed)] {
                    #[expect(clippy::cast_sign_loss, reason = "negative ones become 0")]
                    counter.fetch_add(tokens as u64, Ordering::Relaxed);
                }
            }
            let before = model.current.unwrap_or(start);
            let allowed = |layout: Layout| {
                self.given.allows(layout) && (model.volatile.is_some() || !layout.beheads)
            };
            let best = model.best(start, allowed);
            let contradicts =
                model.best(start, |layout| model.volatile.is_some() || !layout.beheads);
            if model.leads(best, before, start) {
                model.current = Some(best);
                (model.confirmed, model.expected) = (0, 0);
                self.counts.switches.fetch_add(1, Ordering::Relaxed);
                notices.push(Notice::Switched(best));
            }
            let now = model.current.unwrap_or(start);
            if !model.contradicted
                && model.confirmed >= LEARNED
                && model.leads(contradicts, now, start)
            {
                model.contradicted = true;
                notices.push(Notice::Contradicted(contradicts));
            }
            let known = Current {
                layout: now,
                head: model.volatile.unwrap_or(Head::Line),
                basis: model.basis(),
            };
            let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
            if model.current.is_some() || known.basis == Basis::Learned {
                current.insert(lesson.model, known);
            } else {
                current.remove(&lesson.model);
            }
        } else {
            self.counts.unreported.fetch_add(1, Ordering::Relaxed);
        }
        model.keep(&lesson.outline, place, report.output.unwrap_or(0));
        notices
    }
}

impl Default for Model {
    fn default() -> Self {
        Self {
            scores: [0.0; Layout::COUNT],
            current: None,
            volatile: None,
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
    /// Notes the head of a system text. Returns its bytes once it is found to be volatile.
    fn note_heads(&mut self, outline: &Outline) -> Option<u32> {
        if self.volatile.is_some() {
            return None;
        }
        for head in [Head::Line, Head::Block] {
            let Some((first, rest, bytes)) = outline.without(head) else {
                continue;
            };
            let text = self.texts.iter().position(|(known, _)| *known == rest);
            let text = text.and_then(|at| self.texts.remove(at));
            let (_, mut heads) = text.unwrap_or((rest, Vec::new()));
            if !heads.contains(&first) {
                heads.push(first);
            }
            if heads.len() >= HEADS {
                self.volatile = Some(head);
                self.texts.clear();
                let (kept, cut) = self.scores.split_at_mut(Layout::COUNT / 2);
                for (cut, kept) in cut.iter_mut().zip(kept) {
                    *cut = *kept - AHEAD;
                }
                return Some(bytes);
            }
            self.texts.push_back((rest, heads));
            if self.texts.len() > TEXTS {
                self.texts.pop_front();
            }
        }
        None
    }

    /// Scores all layouts by a report of cached and prompt tokens. Returns by how many tokens it exceeds what the current
    /// one predicts, if the answer was looked at.
    fn weigh(
        &mut self,
        outline: &Outline,
        place: u64,
        (cached, prompt): (f64, f64),
        start: Layout,
    ) -> Option<f64> {
        self.answers += 1;
        let is_looked_at = self.informative < SETTLED
            || self.surprises >= SURPRISES
            || self.answers.is_multiple_of(SAMPLED);
        let here = self.prompts.iter().filter(|each| each.place == place);
        let mut earlier: Vec<_> = here
            .filter(|_| is_looked_at)
            .map(|each| (each.outline.alike(outline), each))
            .collect();
        earlier.sort_by_key(|(alike, _)| std::cmp::Reverse(*alike));
        earlier.truncate(COMPARED);
        if earlier.is_empty() {
            return None;
        }
        let head = self.volatile.unwrap_or(Head::Line);
        let count = if self.volatile.is_some() {
            Layout::COUNT
        } else {
            Layout::COUNT / 2
        };
        let current = self.current.unwrap_or(start);
        let has = |is: &dyn Fn(&Outline) -> bool| {
            is(outline) || earlier.iter().any(|(_, each)| is(&each.outline))
        };
        let mut parts = vec![Part::Inline, Part::Thought, Part::Empty, Part::Attribution];
        parts.retain(|part| has(&|outline| outline.has(*part)));
        let has_tools = has(&Outline::has_tools);
        // Prompts without tools have the same prediction wherever those are rendered, and so on.
        let mut known: HashMap<Layout, (f64, f64)> = HashMap::new();
        let mut predicted = [(0.0, 0.0); Layout::COUNT];
        for (layout, predicted) in Layout::all().zip(&mut predicted[..count]) {
            *predicted = *known
                .entry(reduced(layout, has_tools, &parts))
                .or_insert_with(|| {
                    let by = (layout, head);
                    let bytes = outline.bytes(by).max(1) as f64;
                    let shared = |each: &Earlier| outline.shared(&each.outline, by) as f64 / bytes;
                    let found = earlier
                        .iter()
                        .map(|(_, each)| (shared(each) * prompt, each.answer_tokens));
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
        let by_current = Layout::all().position(|layout| layout == current);
        let (own, answer) = by_current.map_or((0.0, 0.0), |at| predicted[at]);
        let missed = cached - own;
        if most - least <= close {
            return Some(missed);
        }
        self.informative += 1;
        self.confirmed = self.confirmed.saturating_add(1);
        for (score, (tokens, answer)) in self.scores.iter_mut().zip(&predicted[..count]) {
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

    fn score(&self, layout: Layout, start: Layout) -> f64 {
        let number = Layout::all().position(|each| each == layout);
        let score = number.map_or(f64::MIN, |number| self.scores[number]);
        score + if layout == start { AHEAD } else { 0.0 }
    }

    /// The best layout of those that `is_allowed`, the likelier first.
    fn best(&self, start: Layout, is_allowed: impl Fn(Layout) -> bool) -> Layout {
        let layouts = Layout::all().filter(|layout| is_allowed(*layout));
        let better = |best: Layout, each| {
            let leads = self.score(each, start) > self.score(best, start) + 1e-9;
            if leads { each } else { best }
        };
        layouts.fold(start, better)
    }

    fn leads(&self, best: Layout, other: Layout, start: Layout) -> bool {
        self.score(best, start) - self.score(other, start) >= LEAD
    }

    fn basis(&self) -> Basis {
        let seen = self.confirmed.min(u32::BITS);
        if self.confirmed >= LEARNED && self.expected.count_ones() * 10 >= seen * 9 {
            Basis::Learned
        } else {
            Basis::Likely
        }
    }

    /// Keeps a prompt, in the place of one that it continues.
    fn keep(&mut self, outline: &Arc<Outline>, place: u64, answer_tokens: u64) {
        let continues = |each: &Earlier| {
            each.place == place && outline.alike(&each.outline) >= each.outline.alike(&each.outline)
        };
        if let Some(before) = self.prompts.iter().rposition(continues)
            && let Some(before) = self.prompts.remove(before)
        {
            self.bytes -= before.outline.memory_bytes();
        }
        self.bytes += outline.memory_bytes();
        self.prompts.push_back(Earlier {
            outline: Arc::clone(outline),
            place,
            answer_tokens,
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
        merges: layout.merges && has(Part::Inline),
        thoughts: match layout.thoughts {
            Thoughts::Empty if has(Part::Empty) => Thoughts::Empty,
            Thoughts::Empty | Thoughts::Dropped if has(Part::Thought) => Thoughts::Dropped,
            _ => Thoughts::Kept,
        },
        attributes: layout.attributes && has(Part::Attribution),
        beheads: layout.beheads,
    }
}
