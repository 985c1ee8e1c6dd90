//! The parts of a conversation that layouts arrange.

use std::ops::Range;

use crate::canon::{Canon, PIECE, Span, TEXT};
use crate::layout::{Layout, Part, Sections};
use crate::outline::Outline;

/// Begins the attribution line of a client.
pub(super) const HEADER: &[u8] = b"x-anthropic-billing-header";
/// Ends a thought in a text.
const THOUGHT_END: &[u8] = b"</think>";

/// The kind of text that begins at a place in the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// A message of the system or a developer.
    System,
    /// A message of a user, not of a tool.
    Question,
    /// Any other message.
    Message,
    /// A part of a message.
    Within(Part),
}

/// A part of the prompt.
#[derive(Debug, Clone, Copy)]
struct Piece {
    part: Part,
    span: Span,
    /// Whether a message begins with it.
    begins: bool,
}

/// Where parts begin in the messages, then the parts of the whole prompt.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// In the order of the arena.
    marks: Vec<(usize, Mark)>,
    list: Vec<Piece>,
    sections: Sections,
    /// The prompt, and where messages end in it.
    arranged: Vec<Span>,
    /// Where messages end in the prompt.
    pub(crate) ends: Vec<usize>,
    /// Attribution lines.
    pub(super) attribution: u32,
}

impl Pieces {
    /// Forgets the last body.
    pub(super) fn clear(&mut self) {
        self.restart();
        self.list.clear();
        self.ends.clear();
        self.attribution = 0;
    }

    /// Forgets the messages.
    pub(super) fn restart(&mut self) {
        self.marks.clear();
    }

    /// Notes the `parts` of a message, or several, that will lie at `at` one after another.
    pub(super) fn note(&mut self, bytes: &[u8], parts: &[Span], mut at: usize) {
        let mut answer = None;
        let mut question = None;
        for part in parts {
            let end = at + part.len();
            match part.of(bytes) {
                [PIECE, b'm', rest @ ..] => {
                    let role = rest.iter().position(|byte| *byte >= PIECE);
                    let role = &rest[..role.unwrap_or(rest.len())];
                    (answer, question) = (None, None);
                    let mark = match role {
                        b"system" | b"developer" => Mark::System,
                        b"user" => Mark::Question,
                        _ => Mark::Message,
                    };
                    self.marks.push((at, mark));
                    if mark == Mark::Question {
                        question = Some(self.marks.len() - 1);
                    }
                    if role == b"assistant" {
                        let begun = at + 2 + role.len();
                        answer = Some(self.marks.len());
                        self.marks.push((begun, Mark::Within(Part::Empty)));
                        self.marks.push((begun, Mark::Within(Part::Other)));
                    }
                }
                [PIECE, b'r', ..] => self.think(answer, at..end),
                content @ [TEXT, ..] => {
                    if let Some(question) = question.take()
                        && is_result(content)
                    {
                        self.marks[question].1 = Mark::Message;
                    }
                    if answer.is_some() && thoughts(content) > 0 {
                        let mut windows = content.windows(THOUGHT_END.len());
                        let last = windows.rposition(|window| window == THOUGHT_END);
                        let thought = last.unwrap_or(0) + THOUGHT_END.len();
                        let space = content[thought..].iter();
                        let space = space.take_while(|byte| byte.is_ascii_whitespace()).count();
                        self.think(answer, at + 1..at + thought + space);
                    }
                }
                _ => {}
            }
            at = end;
        }
    }

    /// Notes a thought, in the answer whose place for an empty one is the mark `answer`.
    fn think(&mut self, answer: Option<usize>, at: Range<usize>) {
        if let Some(answer) = answer {
            self.marks[answer].1 = Mark::Within(Part::Other);
        }
        self.marks.push((at.start, Mark::Within(Part::Thought)));
        self.marks.push((at.end, Mark::Within(Part::Other)));
    }

    /// A text of a user that begins here.
    pub(super) fn ask(&mut self, at: usize) {
        self.marks.push((at, Mark::Question));
    }

    fn put(&mut self, part: Part, span: Span, begins: bool) {
        if span.len() > 0 {
            self.list.push(Piece { part, span, begins });
        }
    }

    /// Lays out `[options][system text][tools][messages]`, where leading system messages end at `leading`.
    pub(super) fn lay_out(
        &mut self,
        canon: &mut Canon,
        [options, system, tools, messages]: [Span; 4],
        leading: usize,
        merges: bool,
    ) {
        self.list.clear();
        self.put(Part::Other, options, false);
        let mut sections = Sections {
            options: self.list.len(),
            merges,
            ..Sections::default()
        };
        self.put_system(canon.bytes(), system);
        let marks = std::mem::take(&mut self.marks);
        let starts = marks.iter().map(|(at, _)| *at);
        let ends = starts.skip(1).chain([messages.end]);
        let marked = marks.iter().zip(ends);
        let mut marked = marked.map(|((at, mark), end)| (*mark, Span::from(*at..end)));
        let mut next = marked.next();
        while let Some((_, span)) = next.filter(|(_, span)| span.start < leading) {
            self.put_system(canon.bytes(), span);
            next = marked.next();
        }
        sections.system = self.list.len();
        self.put(Part::Other, tools, false);
        sections.tools = self.list.len();
        sections.question = sections.tools;
        let first = next.map_or(messages.end, |(_, span)| span.start);
        let unmarked = Span::from(leading.min(first)..first);
        self.put(Part::Other, unmarked, true);
        let empty = canon.begin(b'e');
        for (mark, span) in next.into_iter().chain(marked) {
            if mark == Mark::Question {
                sections.question = self.list.len();
            }
            match mark {
                Mark::System => self.put(Part::Inline, span, true),
                Mark::Question | Mark::Message => self.put(Part::Other, span, true),
                Mark::Within(Part::Empty) => self.put(Part::Empty, empty, false),
                Mark::Within(part) => self.put(part, span, false),
            }
        }
        sections.asks = self.list.len() == sections.question + 1;
        self.sections = sections;
        self.marks = marks;
    }

    /// A message of the system before all others; the first of them has a head.
    fn put_system(&mut self, bytes: &[u8], message: Span) {
        if self.list.len() > self.sections.options && self.has_system() {
            self.put(Part::Further, message, true);
            return;
        }
        let end = message.end;
        let find = |from: usize| end_of_text(&bytes[from..end]) + from;
        let mut at = find((message.start + 1).min(end));
        self.put(Part::System, Span::from(message.start..at), true);
        while at < end {
            let block = find(at + 1);
            let is_text = bytes[at] == TEXT;
            let text = &bytes[at + usize::from(is_text)..block];
            if !text.starts_with(HEADER) {
                break;
            }
            self.attribution += 1;
            match line(text) {
                Some(line) if line < text.len() => {
                    let start = block - text.len();
                    self.put(Part::System, Span::from(at..start), false);
                    self.put(Part::Attribution, Span::from(start..start + line), false);
                    at = start + line;
                }
                _ => {
                    self.put(Part::Attribution, Span::from(at..block), false);
                    at = block;
                }
            }
        }
        let block = find((at + 1).min(end));
        let first = line(&bytes[at..block]).map_or(block, |line| at + line);
        self.put(Part::FirstLine, Span::from(at..first), false);
        self.put(Part::System, Span::from(first..end), false);
    }

    fn has_system(&self) -> bool {
        self.list.iter().any(|piece| piece.part == Part::System)
    }

    /// The prompt by a layout.
    pub(super) fn arrange(&mut self, layout: Layout) -> &[Span] {
        self.arranged.clear();
        self.ends.clear();
        let (system, tools) = (self.sections.system, self.sections.tools);
        let (mut length, mut begun, mut last) = (0, false, 0);
        for (at, piece) in self
            .sections
            .arrange(&self.list, |piece: &Piece| piece.part, layout)
        {
            let behind_tools = (system..tools).contains(&last);
            let behind_system = last < system && at >= system;
            if begun && (behind_system || piece.begins && !behind_tools) {
                self.ends.push(length);
            }
            begun |= piece.begins;
            last = at;
            length += piece.span.len();
            self.arranged.push(piece.span);
        }
        &self.arranged
    }

    /// Whether the prompt was arranged.
    pub(crate) fn is_placed(&self) -> bool {
        !self.list.is_empty()
    }

    /// Digests of the parts, if there are any.
    pub(crate) fn outline(&self, bytes: &[u8], digest: impl Fn(&[u8]) -> u64) -> Option<Outline> {
        let parts = self.list.iter();
        let parts = parts.map(|piece| (piece.part, piece.span.of(bytes)));
        Outline::new(parts, self.sections, digest).filter(|_| !self.list.is_empty())
    }
}

/// Where the text ends that a slice begins with.
fn end_of_text(bytes: &[u8]) -> usize {
    const BLOCK: usize = 64;
    let is_mark = |byte: &u8| *byte >= PIECE;
    let marks = |block: &[u8]| block.iter().fold(0, |most: u8, byte| most.max(*byte)) >= PIECE;
    let block = bytes.chunks(BLOCK).position(marks);
    let block = block.map_or(bytes.len(), |block| block * BLOCK);
    let mark = bytes[block..].iter().position(is_mark);
    mark.map_or(bytes.len(), |mark| block + mark)
}

/// Bytes of the first line, its end among them.
fn line(text: &[u8]) -> Option<usize> {
    text.iter()
        .position(|byte| *byte == b'\n')
        .map(|end| end + 1)
}

/// Whether a content begins with a text that some templates take for the result of a tool.
pub(super) fn is_result(content: &[u8]) -> bool {
    content
        .strip_prefix(&[TEXT])
        .is_some_and(|text| text.starts_with(b"<tool_response>"))
}

/// Thoughts in a text, by their ends.
pub(super) fn thoughts(text: &[u8]) -> usize {
    const BLOCK: usize = 32;
    let begins = |block: &[u8; BLOCK]| {
        let begins = |any: u8, byte: &u8| any | u8::from(*byte == THOUGHT_END[0]);
        block.iter().fold(0, begins) != 0
    };
    let count = |places: Range<usize>| {
        places
            .filter(|at| text[*at..].starts_with(THOUGHT_END))
            .count()
    };
    let Some(places) = text.len().checked_sub(THOUGHT_END.len() - 1) else {
        return 0;
    };
    // Blocks without the first byte are passed over as vectors; the last of them overlaps.
    let (blocks, rest) = text.as_chunks();
    let behind = text.len() - rest.len();
    let blocks = blocks.iter().zip((0..).step_by(BLOCK));
    let found = blocks.filter(|(block, _)| begins(block));
    let found: usize = found.map(|(_, start)| count(start..start + BLOCK)).sum();
    let ends = text.last_chunk().is_none_or(begins);
    found + if ends { count(behind..places) } else { 0 }
}
