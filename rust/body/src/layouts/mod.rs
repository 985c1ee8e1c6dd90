//! Which layout the engines of each model have, learned from the cached tokens that they report.
//!
//! For each layout the tokens that an answer found cached are predicted from the best earlier prompt on its worker. A
//! layout scores by how likely the report is under it; the current one is left once another leads it.

mod families;
mod model;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use self::model::{LEARNED, Model};
use crate::endpoint::Api;
use crate::layout::{Layout, Systems, Thoughts, Tools};
use crate::outline::Outline;
use crate::profile::Engine;

/// The least recently used of more models is forgotten.
const MODELS: usize = 64;
/// The lead over the current layout that makes another current.
const LEAD: f64 = 1.0;

/// The choices of a layout that a person made; the others are learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Given {
    /// Where tools are rendered.
    pub tools: Option<Tools>,
    /// The place that system messages get.
    pub systems: Option<Systems>,
    /// Which thoughts are rendered.
    pub thoughts: Option<Thoughts>,
    /// Whether attribution lines are rendered.
    pub attributes: Option<bool>,
}

impl Given {
    /// The layouts that an engine most likely has, by API.
    fn start(self, engine: Engine, family: [Layout; Api::COUNT]) -> [Layout; Api::COUNT] {
        family.map(|likely| Layout {
            tools: self.tools.unwrap_or(likely.tools),
            systems: self.systems.unwrap_or(likely.systems),
            thoughts: self.thoughts.unwrap_or(likely.thoughts),
            attributes: self.attributes.unwrap_or(engine == Engine::Sglang),
            beheads: false,
        })
    }

    fn allows(self, layout: Layout) -> bool {
        self.tools.is_none_or(|tools| tools == layout.tools)
            && self.systems.is_none_or(|systems| systems == layout.systems)
            && self.thoughts.is_none_or(|kept| kept == layout.thoughts)
            && self.attributes.is_none_or(|kept| kept == layout.attributes)
    }
}

cachelb_core::named! {
    /// On what ground a prompt counts as shared.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    Basis {
        /// Token ids or block hashes.
        Tokens = "tokens",
        /// Text that every engine renders alike, or no prompt.
        #[default]
        Certain = "certain",
        /// The layout that reports of engines confirm.
        Learned = "learned",
        /// The likely layout.
        Likely = "likely",
    }
}

/// The layout of a model now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Current {
    /// How its prompts are arranged.
    pub layout: Layout,
    /// [`Learned`](Basis::Learned) or [`Likely`](Basis::Likely).
    pub basis: Basis,
    /// Whether conversations go on that were sent by another layout.
    pub is_new: bool,
    /// The layouts of models of this name, by API.
    family: [Layout; Api::COUNT],
}

/// A change that is worth a line in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Reports led to another layout.
    Switched(Layout),
    /// Reports contradict what a person set: this layout explains them better.
    Contradicted(Layout),
    /// The first line of a system text, of so many bytes, changes while the rest stays.
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
    current: RwLock<HashMap<u64, [Current; Api::COUNT]>>,
    /// Counters.
    pub counts: LayoutCounts,
}

/// The tokens that an engine counted for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Prompt tokens from its cache.
    pub cached_tokens: Option<u64>,
    /// Prompt tokens.
    pub prompt_tokens: Option<u64>,
    /// Output tokens.
    pub output_tokens: Option<u64>,
}

/// A prompt that was sent, to learn from its answer.
#[derive(Debug, Clone)]
pub struct Lesson {
    layouts: Arc<Layouts>,
    model: u64,
    api: Api,
    outline: Arc<Outline>,
    current: Current,
    starts: [Layout; Api::COUNT],
}

impl Lesson {
    /// The worker at `place` answered; `place` differs between workers.
    #[must_use = "a notice is to be logged"]
    pub fn learn(&self, place: u64, usage: Usage) -> Vec<Notice> {
        self.layouts.learn(self, place, usage)
    }

    /// The layout by which the earlier prompt was sent that it most likely continues, if that is another.
    #[must_use]
    pub fn before(&self) -> Option<Layout> {
        let models = self.layouts.models.lock();
        let models = models.unwrap_or_else(PoisonError::into_inner);
        let earlier = models.get(&self.model)?.prompts.iter();
        let earlier = earlier.filter(|each| each.api == self.api);
        let best = earlier.max_by_key(|each| each.outline.alike(&self.outline))?;
        (best.layout != self.current.layout).then_some(best.layout)
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
        let found = self.engine.load(Ordering::Relaxed);
        let known = [Engine::Vllm, Engine::Sglang].into_iter();
        let mut known = known.filter(|engine| *engine as u8 == found);
        known.next().unwrap_or_default()
    }

    /// The layout of a model for requests to `api`.
    #[must_use]
    pub fn of(&self, model: Option<&str>, api: Api) -> Current {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let known = current.get(&key(model)).map(|known| known[api as usize]);
        known.unwrap_or_else(|| {
            let family = families::of(model);
            Current {
                layout: self.given.start(self.engine(), family)[api as usize],
                basis: Basis::Likely,
                is_new: false,
                family,
            }
        })
    }

    /// A prompt to a model that is sent.
    #[must_use]
    pub fn lesson(
        self: &Arc<Self>,
        (model, api): (Option<&str>, Api),
        outline: Outline,
        current: Current,
    ) -> Arc<Lesson> {
        Arc::new(Lesson {
            layouts: Arc::clone(self),
            model: key(model),
            api,
            outline: Arc::new(outline),
            current,
            starts: self.given.start(self.engine(), current.family),
        })
    }

    /// Bytes of memory.
    #[must_use]
    #[cfg(test)]
    pub fn memory_bytes(&self) -> usize {
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        models.values().map(Model::memory_bytes).sum()
    }

    fn learn(&self, lesson: &Lesson, place: u64, usage: Usage) -> Vec<Notice> {
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
        let (mut notices, mut changes, mut contradicted) = (Vec::new(), Vec::new(), false);
        if let Some(bytes) = model.note_heads(&lesson.outline) {
            self.counts.volatile_heads.fetch_add(1, Ordering::Relaxed);
            notices.push(Notice::VolatileHead(bytes));
        }
        if let Some((cached, prompt)) = usage
            .cached_tokens
            .zip(usage.prompt_tokens)
            .filter(|(_, all)| *all > 0)
        {
            let tokens = (cached.min(prompt) as f64, prompt as f64);
            let informative = model.informative;
            if let Some(missed) = model.weigh(lesson, place, tokens) {
                let (fewer, more) = (&self.counts.missing, &self.counts.beyond);
                for (counter, tokens) in [(fewer, -missed), (more, missed)] {
                    #[expect(clippy::cast_sign_loss, reason = "negative ones become 0")]
                    counter.fetch_add(tokens as u64, Ordering::Relaxed);
                }
            }
            let is_there = |layout: Layout| model.is_volatile || !layout.beheads;
            let allowed = |layout| self.given.allows(layout) && is_there(layout);
            for api in Api::ALL
                .into_iter()
                .filter(|_| model.informative > informative)
            {
                let start = lesson.starts[api as usize];
                let score = |layout| model.score(api, layout, start);
                let best = best_of(start, allowed, score);
                if score(best) - score(model.layout(api, lesson)) >= LEAD {
                    notices.push(Notice::Switched(best));
                    changes.push((api, best));
                }
                let likeliest = best_of(start, is_there, score);
                if api == lesson.api
                    && !model.contradicted
                    && model.confirmed >= LEARNED
                    && score(likeliest) - score(best) >= LEAD
                {
                    contradicted = true;
                    notices.push(Notice::Contradicted(likeliest));
                }
            }
            notices.dedup();
            model.contradicted |= contradicted;
            for (api, layout) in changes {
                model.current[api as usize] = Some(layout);
                if api == lesson.api {
                    (model.confirmed, model.expected) = (0, 0);
                    self.counts.switches.fetch_add(1, Ordering::Relaxed);
                }
            }
        } else {
            self.counts.unreported.fetch_add(1, Ordering::Relaxed);
        }
        model.keep(lesson, place, usage.output_tokens.unwrap_or(0));
        let layouts = Api::ALL.map(|api| model.layout(api, lesson));
        let mut prompts = model.prompts.iter();
        let is_new = prompts.any(|each| each.layout != layouts[each.api as usize]);
        let basis = model.basis();
        let known = layouts.map(|layout| Current {
            layout,
            basis,
            is_new,
            family: lesson.current.family,
        });
        let current = || self.current.read().unwrap_or_else(PoisonError::into_inner);
        if current().get(&lesson.model) != Some(&known) {
            let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
            current.insert(lesson.model, known);
        }
        notices
    }
}

/// The best layout of those that are `allowed`, the likelier first.
fn best_of(
    start: Layout,
    allowed: impl Fn(Layout) -> bool,
    score: impl Fn(Layout) -> f64,
) -> Layout {
    let better = |best: Layout, each| {
        let leads = score(each) > score(best) + 1e-9;
        if leads { each } else { best }
    };
    Layout::all()
        .filter(|layout| allowed(*layout))
        .fold(start, better)
}
