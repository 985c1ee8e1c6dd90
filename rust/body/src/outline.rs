//! Digests of the parts of a prompt, by which prompts are compared under every layout without their text.

use crate::layout::{Head, Layout, Part, Sections};

/// Longer texts are split.
const CHUNK: usize = 1024;
/// A prompt of more segments has no outline.
const MOST: usize = 4096;
/// A head is volatile only beside as many bytes of system text that stay.
const LEAST_REST: u32 = 256;

/// A part of a prompt, or a piece of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    digest: u64,
    bytes: u32,
    part: Part,
}

/// The segments of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    segments: Box<[Segment]>,
    sections: Sections,
}

impl Outline {
    /// The outline of `parts`, each with its text; `None` if they are too long.
    pub(crate) fn new<'a>(
        parts: impl Iterator<Item = (Part, &'a [u8])>,
        sections: Sections,
        digest: impl Fn(&[u8]) -> u64,
    ) -> Option<Self> {
        let mut segments = Vec::with_capacity(128);
        let mut ends = Vec::with_capacity(128);
        ends.push(0);
        for (part, text) in parts {
            for chunk in text.chunks(CHUNK) {
                segments.push(Segment {
                    digest: digest(chunk),
                    bytes: chunk.len() as u32,
                    part,
                });
            }
            if segments.len() > MOST {
                return None;
            }
            ends.push(segments.len());
        }
        Some(Self {
            segments: segments.into(),
            sections: Sections {
                options: ends[sections.options],
                system: ends[sections.system],
                tools: ends[sections.tools],
                question: ends[sections.question],
                merges: sections.merges,
            },
        })
    }

    fn arranged(&self, by: (Layout, Head)) -> impl Iterator<Item = &Segment> {
        let segments = self
            .sections
            .arrange(&self.segments, |segment: &Segment| segment.part, by);
        segments.map(|(_, segment)| segment)
    }

    /// Bytes of the prompt.
    #[must_use]
    pub fn bytes(&self, by: (Layout, Head)) -> u64 {
        self.arranged(by).map(|each| u64::from(each.bytes)).sum()
    }

    /// Bytes from the beginning that it has in common with the prompt of `other`.
    #[must_use]
    pub fn shared(&self, other: &Self, by: (Layout, Head)) -> u64 {
        let both = self.arranged(by).zip(other.arranged(by));
        let equal = both.take_while(|(one, other)| one == other);
        equal.map(|(each, _)| u64::from(each.bytes)).sum()
    }

    /// The segments that no layout moves.
    fn fixed(&self) -> impl Iterator<Item = &Segment> {
        let Sections {
            options,
            system,
            tools,
            ..
        } = self.sections;
        let segments = self.segments[options..system]
            .iter()
            .chain(&self.segments[tools..]);
        segments.filter(|each| matches!(each.part, Part::System | Part::FirstBlock | Part::Other))
    }

    /// Bytes that it has in common with `other` whatever the layout: of messages and system text that no layout moves.
    #[must_use]
    pub fn alike(&self, other: &Self) -> u64 {
        let both = self.fixed().zip(other.fixed());
        let equal = both.take_while(|(one, other)| one == other);
        equal.map(|(each, _)| u64::from(each.bytes)).sum()
    }

    /// Whether it has a part of this kind, so that layouts that treat it differently differ.
    #[must_use]
    pub fn has(&self, part: Part) -> bool {
        self.segments.iter().any(|each| each.part == part)
    }

    /// Whether it has tools.
    #[must_use]
    pub fn has_tools(&self) -> bool {
        self.sections.system < self.sections.tools
    }

    /// Digests of a head of the system text and of the system text without it, and the bytes of the head, if it has one.
    #[must_use]
    pub fn without(&self, head: Head) -> Option<(u64, u64, u32)> {
        let system = &self.segments[self.sections.options..self.sections.system];
        let is_head = |each: &Segment| match each.part {
            Part::FirstLine => true,
            Part::FirstBlock => head == Head::Block,
            _ => false,
        };
        let (mut first, mut rest, mut bytes, mut left) = (0, 0, 0, 0);
        for each in system.iter().filter(|each| each.part != Part::Attribution) {
            let (digest, length) = if is_head(each) {
                (&mut first, &mut bytes)
            } else {
                (&mut rest, &mut left)
            };
            // A chain of digests that are keyed already.
            *digest = (*digest ^ each.digest)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(29);
            *length += each.bytes;
        }
        (bytes > 0 && left >= LEAST_REST).then_some((first, rest, bytes))
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.segments)
    }
}
