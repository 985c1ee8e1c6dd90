//! A naive engine with several cache groups: the blocks of each, its announcements, and where prompts resume.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher as _};

use cachelb_core::ids::Medium;
use cachelb_core::rng::Rng;
use cachelb_events::{Attention, Batch, Event, Name, Place, Remove, Span, Store};

/// One cache group.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    pub attention: Attention,
    /// Window or chunk.
    pub window: usize,
    pub size: usize,
}

/// The random properties of an engine.
#[derive(Debug, Clone)]
pub struct Shape {
    pub seed: u64,
    /// In the order of their events.
    pub groups: Vec<Group>,
    /// Beside the ends of prompts, side groups keep the blocks to resume at multiples of this; everything with 1, and
    /// anything at random with 0.
    pub interval: usize,
    pub offloads: bool,
    pub eagle: bool,
    pub wide_names: bool,
}

/// See the module.
pub struct Engine {
    pub shape: Shape,
    random: Rng,
    /// Copies by group, name and medium.
    held: BTreeMap<(usize, u64, Medium), u32>,
    prompts: Vec<Vec<u32>>,
    pub batch: Batch,
}

fn lcm(a: usize, b: usize) -> usize {
    (a..)
        .step_by(a)
        .find(|n| n % b == 0)
        .expect("a common multiple")
}

impl Engine {
    pub fn new(shape: Shape) -> Self {
        Self {
            random: Rng::new(shape.seed),
            shape,
            held: BTreeMap::new(),
            prompts: Vec::new(),
            batch: Batch::default(),
        }
    }

    fn name(tokens: &[u32]) -> u64 {
        let mut state = DefaultHasher::new();
        tokens.hash(&mut state);
        state.finish()
    }

    fn holds(&self, group: usize, tokens: &[u32]) -> bool {
        let name = Self::name(tokens);
        Medium::ANNOUNCED
            .iter()
            .any(|medium| self.held.contains_key(&(group, name, *medium)))
    }

    /// Leading tokens of a prompt in blocks that a group holds.
    fn run(&self, group: usize, prompt: &[u32]) -> usize {
        let size = self.shape.groups[group].size;
        let ends = (size..=prompt.len()).step_by(size);
        ends.take_while(|end| self.holds(group, &prompt[..*end]))
            .last()
            .unwrap_or(0)
    }

    /// Whether a group accepts resuming a prompt behind so many tokens.
    fn accepts(&self, group: usize, prompt: &[u32], at: usize) -> bool {
        let Group {
            attention,
            window,
            size,
        } = self.shape.groups[group];
        let above = if self.shape.eagle { size } else { 0 };
        let all_held = |first: usize, end: usize| {
            end <= prompt.len()
                && (first + size..=end)
                    .step_by(size)
                    .all(|end| self.holds(group, &prompt[..end]))
        };
        match attention {
            Attention::Full => all_held(0, at + above),
            Attention::Sliding => {
                let need = (window - 1).div_ceil(size).min(at / size);
                all_held(at - need * size, at + above)
            }
            Attention::Mamba => all_held(at - size, at),
            Attention::Chunked => all_held(at / window * window / size * size, at),
            _ => unreachable!(),
        }
    }

    /// Tokens per block of the group that attends to the whole prefix.
    pub fn full_size(&self) -> usize {
        let mut groups = self.shape.groups.iter();
        let full = groups.find(|group| group.attention == Attention::Full);
        full.expect("there is one").size
    }

    /// Tokens per block of the group with the largest among those of which EAGLE needs a block above a point.
    pub fn largest_above(&self) -> usize {
        let groups = self.shape.groups.iter();
        let above = groups.filter(|g| matches!(g.attention, Attention::Full | Attention::Sliding));
        above.map(|group| group.size).max().unwrap_or(0)
    }

    /// Hits are multiples of this.
    pub fn unit(&self) -> usize {
        self.shape.groups.iter().map(|g| g.size).fold(1, lcm)
    }

    /// Where the engine resumes a prompt, at multiples of `own` tokens.
    pub fn hit(&self, prompt: &[u32], own: usize) -> usize {
        let step = lcm(self.unit(), own);
        let most = (prompt.len() - 1) / step;
        let all = |at: &usize| (0..self.shape.groups.len()).all(|g| self.accepts(g, prompt, *at));
        (1..=most)
            .rev()
            .map(|steps| steps * step)
            .find(all)
            .unwrap_or(0)
    }

    /// A prompt like those that came, or a new one.
    pub fn prompt(&mut self) -> Vec<u32> {
        let mut prompt = Vec::new();
        if !self.prompts.is_empty() && self.random.below(8) > 0 {
            prompt.clone_from(&self.prompts[self.random.below(self.prompts.len())]);
            if self.random.below(3) == 0 {
                let keep = self.random.below(prompt.len()) + 1;
                prompt.truncate(keep);
            }
        }
        let more = self.random.below(if prompt.len() > 60 { 3 } else { 40 });
        for _ in 0..=more {
            prompt.push(self.random.below(3) as u32);
        }
        prompt
    }

    fn named(&mut self, names: &[u64]) -> Span {
        let start = self.batch.names.len() as u32;
        let wide = self.shape.wide_names;
        let names = names.iter().map(|name| {
            if wide {
                Name::Wide(u128::from(*name) << 32)
            } else {
                Name::Int(*name)
            }
        });
        self.batch.names.extend(names);
        Span {
            start,
            len: self.batch.names.len() as u32 - start,
        }
    }

    fn say_store(
        &mut self,
        group: usize,
        names: &[u64],
        medium: Medium,
        span: Option<(&[u32], usize)>,
    ) {
        let Group {
            attention,
            window,
            size,
        } = self.shape.groups[group];
        let names = self.named(names);
        let start = self.batch.tokens.len() as u32;
        let (prompt, from) = span.unwrap_or((&[], 0));
        self.batch.tokens.extend(&prompt[from..]);
        let parent = (from > 0).then(|| Self::name(&prompt[..from]));
        let parent = parent.map(|parent| {
            let at = self.named(&[parent]).start as usize;
            let name = self.batch.names[at];
            self.batch.names.pop();
            name
        });
        let is_said = span.is_some();
        let has_window = matches!(attention, Attention::Sliding | Attention::Chunked);
        self.batch.events.push(Event::Store(Store {
            names,
            parent,
            tokens: Span {
                start,
                len: (prompt.len() - from) as u32,
            },
            block_size: if is_said { size as u32 } else { 0 },
            place: Place::In(medium),
            group: Some(group as u32),
            attention: if is_said {
                attention
            } else {
                Attention::Unsaid
            },
            window: Some(window as u32).filter(|_| is_said && has_window),
            ..Store::default()
        }));
    }

    /// Blocks of a side group that are kept of a prompt computed from `from` on, of which full attention held `full`.
    fn kept(&mut self, group: usize, prompt: &[u32], from: usize, full: usize) -> Vec<u64> {
        let (
            Group {
                attention,
                window,
                size,
            },
            unit,
        ) = (self.shape.groups[group], self.unit());
        let mut points = vec![(prompt.len() - 1) / unit * unit, full / unit * unit];
        if self.shape.interval > 0 {
            points.extend((0..=prompt.len()).step_by(self.shape.interval * unit));
        }
        let above = if self.shape.eagle { size } else { 0 };
        let mut names = Vec::new();
        for end in (size..=prompt.len())
            .step_by(size)
            .filter(|end| *end > from)
        {
            let is_near = points.iter().any(|point| match attention {
                Attention::Sliding => {
                    end <= point + above && end + (window - 1).div_ceil(size) * size > *point
                }
                Attention::Chunked => end <= *point && end > point / window * window,
                _ => end == *point,
            });
            let is_kept = if self.shape.interval == 0 {
                is_near != (self.random.below(9) == 0)
            } else {
                is_near
            };
            if is_kept {
                names.push(Self::name(&prompt[..end]));
            }
        }
        names
    }

    /// A request is computed, and its filled blocks are announced.
    fn request(&mut self) {
        let prompt = self.prompt();
        let whole = self
            .shape
            .groups
            .iter()
            .position(|g| g.attention == Attention::Full);
        let whole = whole.expect("one attends to all");
        let from = self.hit(&prompt, 1);
        let full = self.run(whole, &prompt);
        for group in 0..self.shape.groups.len() {
            let size = self.shape.groups[group].size;
            let end = prompt.len() / size * size;
            if end <= from {
                continue;
            }
            let names = if group == whole {
                let ends = (from + size..=end).step_by(size);
                ends.map(|end| Self::name(&prompt[..end])).collect()
            } else {
                self.kept(group, &prompt, from, full.min(prompt.len() - 1))
            };
            for name in &names {
                *self.held.entry((group, *name, Medium::Gpu)).or_default() += 1;
            }
            self.say_store(group, &names, Medium::Gpu, Some((&prompt[..end], from)));
        }
        if self.prompts.len() > 30 {
            let at = self.random.below(self.prompts.len());
            self.prompts.swap_remove(at);
        }
        self.prompts.push(prompt);
    }

    fn evict(&mut self) {
        let at = self.random.below(self.held.len().max(1));
        let Some((&key, _)) = self.held.iter().nth(at) else {
            return;
        };
        let (group, name, medium) = key;
        let copies = self.held.get_mut(&key).expect("it is held");
        *copies -= 1;
        if *copies == 0 {
            self.held.remove(&key);
        }
        let names = self.named(&[name]);
        self.batch.events.push(Event::Remove(Remove {
            names,
            place: Place::In(medium),
            group: Some(group as u32),
        }));
    }

    fn offload(&mut self) {
        let at = self.random.below(self.held.len().max(1));
        let Some((&(group, name, medium), _)) = self.held.iter().nth(at) else {
            return;
        };
        let to = [Medium::Cpu, Medium::Disk][self.random.below(2)];
        if medium == Medium::Gpu && self.held.insert((group, name, to), 1).is_none() {
            self.say_store(group, &[name], to, None);
        }
    }

    /// Makes a step. Returns the number of its operations.
    pub fn step(&mut self, most: usize) -> u64 {
        self.batch.clear();
        let operations = self.random.below(5) + 1;
        for _ in 0..operations {
            match self.random.below(400) {
                0 => {
                    self.held.clear();
                    self.batch.events.push(Event::Clear);
                }
                1..=120 => self.request(),
                121..=180 if self.shape.offloads => self.offload(),
                _ => self.evict(),
            }
        }
        while self.held.len() > most {
            self.evict();
        }
        operations as u64
    }
}
