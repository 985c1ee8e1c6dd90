//! Who the workers are: names, readiness, and how long ago each was last offered.

use std::sync::Arc;

use crate::ids::WorkerId;
use crate::registry::WorkerRegistry;

/// Whether the caller lets a worker take part in one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Standing {
    /// It may be picked.
    #[default]
    Candidate,
    /// The worker says of itself that it is not healthy.
    Unhealthy,
    /// Outside the subset asked for.
    NotAmong,
    /// Ruled out for this request.
    Excluded,
    /// Marked not ready on the policy. Set by the selector.
    NotReady,
}

impl Standing {
    /// In words, for the error that lists them.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Candidate => "available",
            Self::Unhealthy => "unhealthy",
            Self::NotAmong => "not in `among`",
            Self::Excluded => "excluded",
            Self::NotReady => "not ready",
        }
    }
}

/// One worker of the caller's list.
#[derive(Debug, Clone)]
pub struct Offer {
    /// Its key.
    pub name: Arc<str>,
    /// Its id as of an earlier request; checked, and filled in by the selector.
    pub id: Option<WorkerId>,
    /// Whether it takes part.
    pub standing: Standing,
}

impl Offer {
    /// A candidate of that name.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            id: None,
            standing: Standing::Candidate,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Member {
    generation: Option<u32>,
    order: u64,
    last_seen: u64,
    ready: bool,
}

/// What the fleet knows of an offered worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sight {
    /// Whether it is offered for the first time in this call.
    pub first: bool,
    /// Whether it was marked ready.
    pub ready: bool,
}

const VACANT: Member = Member {
    generation: None,
    order: 0,
    last_seen: 0,
    ready: true,
};

/// Known workers by slot.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    registry: WorkerRegistry,
    members: Vec<Member>,
    next_order: u64,
}

impl Fleet {
    pub fn len(&self) -> usize {
        self.registry.len()
    }

    pub fn next_order(&self) -> u64 {
        self.next_order
    }

    pub fn find(&self, name: &str) -> Option<WorkerId> {
        self.registry.get(name)
    }

    /// Names and ids, by slot.
    pub fn ids(&self) -> Vec<(Arc<str>, WorkerId)> {
        self.registry.ids()
    }

    fn member(&self, id: WorkerId) -> Option<&Member> {
        self.members
            .get(id.slot as usize)
            .filter(|m| m.generation == Some(id.generation))
    }

    pub fn is_current(&self, id: WorkerId) -> bool {
        self.member(id).is_some()
    }

    pub fn order(&self, id: WorkerId) -> u64 {
        self.member(id).map_or(0, |m| m.order)
    }

    pub fn set_ready(&mut self, id: WorkerId, ready: bool) {
        if let Some(member) = self
            .members
            .get_mut(id.slot as usize)
            .filter(|m| m.generation == Some(id.generation))
        {
            member.ready = ready;
        }
    }

    /// Marks the worker as offered in `call`; `None` if the id is not current.
    pub fn see(&mut self, id: WorkerId, call: u64) -> Option<Sight> {
        let member = self
            .members
            .get_mut(id.slot as usize)
            .filter(|m| m.generation == Some(id.generation))?;
        let first = member.last_seen != call;
        member.last_seen = call;
        Some(Sight {
            first,
            ready: member.ready,
        })
    }

    /// Registers a new name, seen in `call`.
    pub fn add(&mut self, name: &str, call: u64) -> WorkerId {
        let (id, _) = self.registry.get_or_add(name);
        let slot = id.slot as usize;
        if slot >= self.members.len() {
            self.members.resize(slot + 1, VACANT);
        }
        self.members[slot] = Member {
            generation: Some(id.generation),
            order: self.next_order,
            last_seen: call,
            ready: true,
        };
        self.next_order += 1;
        id
    }

    /// Forgets a name; returns its id and registration order.
    pub fn remove(&mut self, name: &str) -> Option<(WorkerId, u64)> {
        let id = self.registry.remove(name)?;
        let member = std::mem::replace(self.members.get_mut(id.slot as usize)?, VACANT);
        Some((id, member.order))
    }

    /// Names last offered before `call`, longest ago first, at most `limit`.
    pub fn absent_since(&self, call: u64, limit: usize) -> Vec<Arc<str>> {
        let mut absent: Vec<(u64, Arc<str>)> = self
            .registry
            .ids()
            .into_iter()
            .filter_map(|(name, id)| Some((self.member(id)?.last_seen, name)))
            .filter(|(seen, _)| *seen < call)
            .collect();
        absent.sort_unstable();
        absent.truncate(limit);
        absent.into_iter().map(|(_, name)| name).collect()
    }

    pub fn memory_bytes(&self) -> usize {
        let names: usize = self
            .registry
            .ids()
            .iter()
            .map(|(name, _)| name.len() + 64)
            .sum();
        self.members.capacity() * size_of::<Member>() + names
    }
}
