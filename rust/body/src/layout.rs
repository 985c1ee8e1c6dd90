//! How a chat template arranges the parts of a conversation: four choices that templates and engines differ in.

use std::fmt;
use std::ops::Range;

/// Where tools are rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Tools {
    /// Behind the leading system text.
    #[default]
    AfterSystem,
    /// Before it.
    BeforeSystem,
    /// Before the last question.
    LastUser,
    /// Nowhere.
    Absent,
}

/// Which thoughts of the assistant are rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Thoughts {
    /// All, or none.
    #[default]
    Kept,
    /// Those behind the last question.
    Dropped,
    /// Those, and an empty one in each answer there that has none.
    Empty,
}

/// The place of system messages, those of developers among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Systems {
    /// They stay where they are.
    #[default]
    InPlace,
    /// Those among the others move behind the leading system text.
    Merged,
    /// The last replaces the leading system text.
    LastOnly,
    /// All move to the last question, if it comes last, and are left out otherwise.
    LastUser,
}

/// An arrangement of a prompt. The default is the likely one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Layout {
    /// Where tools are rendered.
    pub tools: Tools,
    /// The place of system messages.
    pub systems: Systems,
    /// Which thoughts are rendered.
    pub thoughts: Thoughts,
    /// Whether the attribution line of a client is rendered.
    pub attributes: bool,
    /// Whether the first line of the system text, which changes, is left out.
    pub beheads: bool,
}

impl Layout {
    /// Layouts, those that behead last.
    pub const COUNT: usize = 192;

    /// All of them; the likely one first.
    pub fn all() -> impl Iterator<Item = Self> {
        use Tools::{Absent, AfterSystem, BeforeSystem, LastUser};
        const TOOLS: [Tools; 4] = [AfterSystem, BeforeSystem, LastUser, Absent];
        const THOUGHTS: [Thoughts; 3] = [Thoughts::Kept, Thoughts::Dropped, Thoughts::Empty];
        use Systems::{InPlace, LastOnly, Merged};
        const SYSTEMS: [Systems; 4] = [InPlace, Merged, LastOnly, Systems::LastUser];
        (0..Self::COUNT).map(|number| Self {
            tools: TOOLS[number % 4],
            thoughts: THOUGHTS[number / 4 % 3],
            systems: SYSTEMS[number / 12 % 4],
            attributes: number / 48 % 2 == 1,
            beheads: number / 96 == 1,
        })
    }

    /// Its place among all.
    pub(crate) fn number(self) -> usize {
        let flags = 48 * usize::from(self.attributes) + 96 * usize::from(self.beheads);
        self.tools as usize + 4 * self.thoughts as usize + 12 * self.systems as usize + flags
    }
}

/// The options by their names.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tools = match self.tools {
            Tools::AfterSystem => "after-system",
            Tools::BeforeSystem => "before-system",
            Tools::LastUser => "last-user",
            Tools::Absent => "none",
        };
        let inline = match self.systems {
            Systems::InPlace => "in-place",
            Systems::Merged => "merged",
            Systems::LastOnly => "last-only",
            Systems::LastUser => "last-user",
        };
        let thoughts = match self.thoughts {
            Thoughts::Kept => "True",
            Thoughts::Dropped => "False",
            Thoughts::Empty => "empty-thought",
        };
        let attribution = if self.attributes { "kept" } else { "cut" };
        write!(
            f,
            "tools_place={tools} inline_system={inline} keeps_reasoning={thoughts} attribution={attribution}"
        )?;
        if self.beheads {
            f.write_str(" volatile_head=cut")?;
        }
        Ok(())
    }
}

/// A part of a conversation, as layouts tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// System text.
    System,
    /// A further message of the system before all others.
    Further,
    /// The attribution line of a client.
    Attribution,
    /// The first line of the system text.
    FirstLine,
    /// A system or developer message among the others.
    Inline,
    /// A thought of the assistant.
    Thought,
    /// Where an answer without a thought has an empty one in some templates.
    Empty,
    /// Anything else.
    Other,
}

/// Where the sections of a prompt end in the list of its parts: options, system text, tools, and the messages before
/// the last question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sections {
    pub(crate) options: usize,
    pub(crate) system: usize,
    pub(crate) tools: usize,
    pub(crate) question: usize,
    /// Whether nothing follows the question.
    pub(crate) asks: bool,
    /// Whether the engine merges system messages whatever the template does.
    pub(crate) merges: bool,
}

impl Sections {
    /// The parts of `list` in the order of `layout`, each with its position.
    pub(crate) fn arrange<'a, T>(
        &self,
        list: &'a [T],
        part: impl Fn(&T) -> Part + Copy + 'a,
        layout: Layout,
    ) -> impl Iterator<Item = (usize, &'a T)> {
        let Self {
            options,
            system,
            tools,
            question,
            asks,
            merges,
        } = *self;
        let systems = match layout.systems {
            Systems::InPlace if merges => Systems::Merged,
            systems => systems,
        };
        let is_other = move |each: &T| matches!(part(each), Part::Further | Part::Inline);
        let end = list.iter().rposition(is_other).map_or(0, |last| last + 1);
        let run = list[..end].iter().rev();
        let run = run.take_while(|each| is_other(each)).count();
        // The ranges of the leading system text and of messages among the others.
        let (own, moved) = match systems {
            Systems::InPlace => (options..system, 0..0),
            Systems::LastOnly if run > 0 => (0..0, end - run..end),
            _ => (options..system, tools..end.max(tools)),
        };
        let section = move |range: Range<usize>| range.clone().zip(&list[range]);
        let only = |is: bool, range: Range<usize>| if is { range } else { 0..0 };
        let leading = move |(_, each): &(usize, &T)| match part(each) {
            Part::Attribution => layout.attributes,
            Part::FirstLine => !layout.beheads,
            _ => true,
        };
        let rendered = move |(at, each): &(usize, &T)| match part(each) {
            Part::Inline => systems == Systems::InPlace,
            Part::Thought => layout.thoughts == Thoughts::Kept || *at >= question,
            Part::Empty => layout.thoughts == Thoughts::Empty && *at >= question,
            _ => true,
        };
        let text = move |is: bool| {
            let moved = section(only(is, moved.clone()));
            let own = section(only(is, own.clone())).filter(leading);
            own.chain(moved.filter(move |(_, each)| is_other(each)))
        };
        let is_asked = systems == Systems::LastUser;
        let at = |place: Tools| only(layout.tools == place, system..tools);
        section(0..options)
            .chain(section(at(Tools::BeforeSystem)))
            .chain(text(!is_asked))
            .chain(section(at(Tools::AfterSystem)))
            .chain(section(tools..question).filter(rendered))
            .chain(section(at(Tools::LastUser)))
            .chain(text(is_asked && asks))
            .chain(section(question..list.len()).filter(rendered))
    }
}
