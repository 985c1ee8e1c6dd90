//! Digests of the parts of a prompt, by which prompts are compared under every layout without their text.

use crate::layout::{Layout, Part, Sections};

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
                ..sections
            },
        })
    }

    fn arranged(&self, layout: Layout) -> impl Iterator<Item = &Segment> {
        let segments =
            self.sections
                .arrange(&self.segments, |segment: &Segment| segment.part, layout);
        segments.map(|(_, segment)| segment)
    }

    /// Bytes of the prompt.
    #[must_use]
    pub fn bytes(&self, layout: Layout) -> u64 {
        self.arranged(layout)
            .map(|each| u64::from(each.bytes))
            .sum()
    }

    /// Bytes from the beginning that it has in common with the prompt of `other`.
    #[must_use]
    pub fn shared(&self, other: &Self, layout: Layout) -> u64 {
        let both = self.arranged(layout).zip(other.arranged(layout));
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
        segments.filter(|each| matches!(each.part, Part::System | Part::Further | Part::Other))
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

    /// Digests of the first line of the system text and of the rest, and the bytes of the line, if there is much behind it.
    #[must_use]
    pub fn first_line(&self) -> Option<(u64, u64, u32)> {
        let Sections {
            options, system, ..
        } = self.sections;
        let mut sums = [(0, 0); 2];
        for each in &self.segments[options..system] {
            if each.part != Part::Attribution {
                let (digest, bytes) = &mut sums[usize::from(each.part != Part::FirstLine)];
                // These digests are keyed already.
                *digest = (*digest ^ each.digest).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                *bytes += each.bytes;
            }
        }
        let [(first, bytes), (rest, left)] = sums;
        (bytes > 0 && left >= LEAST_REST).then_some((first, rest, bytes))
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.segments)
    }
}
