//! Numbers that say how much a request will generate, and how soon.

use crate::error::Result;
use crate::facts::Facts;
use crate::scan::{Reader, Token};
use crate::writer::Writer;

/// The hints of a request and its agent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Hints {
    /// `n`.
    answers: Option<u32>,
    /// `max_completion_tokens`, and its other names.
    most: [Option<u32>; 2],
    priority: Option<i64>,
    agent: AgentHints,
}

/// `nvext.agent_hints`.
#[derive(Debug, Clone, Copy, Default)]
struct AgentHints {
    expected_output: Option<u32>,
    /// The lower first, other than Dynamo has it.
    priority: Option<i64>,
}

impl Hints {
    /// Reads the field, if it is one of them.
    pub(super) fn read_field(&mut self, w: &mut Writer, reader: &mut Reader<'_>) -> Result<bool> {
        match w.key() {
            b"max_completion_tokens" => self.most[0] = read_count(reader)?,
            b"max_output_tokens" => self.most[1] = read_count(reader)?,
            b"priority" => self.priority = read_whole(reader)?,
            b"sampling_params" => return self.read_sampling(w, reader).map(|()| true),
            _ => return self.read_sampling_field(w, reader),
        }
        Ok(true)
    }

    /// A field that `SGLang` has among the others of sampling.
    fn read_sampling_field(&mut self, w: &Writer, reader: &mut Reader<'_>) -> Result<bool> {
        match w.key() {
            b"n" => self.answers = read_count(reader)?,
            b"max_tokens" | b"max_new_tokens" => self.most[1] = read_count(reader)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn read_sampling(&mut self, w: &mut Writer, reader: &mut Reader<'_>) -> Result<()> {
        if reader.peek()? != Token::Object {
            return reader.skip();
        }
        reader.open()?;
        while w.next_key(reader)? {
            if !self.read_sampling_field(w, reader)? {
                reader.skip()?;
            }
        }
        Ok(())
    }

    /// Forgets the hints of an agent.
    pub(super) fn forget_agent(&mut self) {
        self.agent = AgentHints::default();
    }

    /// Hints of an agent, as Dynamo takes them: it serves the higher priority first.
    pub(super) fn read_agent(&mut self, w: &mut Writer, reader: &mut Reader<'_>) -> Result<()> {
        self.forget_agent();
        if reader.peek()? != Token::Object {
            return reader.skip();
        }
        reader.open()?;
        while w.next_key(reader)? {
            match w.key() {
                b"osl" => self.agent.expected_output = read_count(reader)?,
                b"priority" => {
                    self.agent.priority = read_whole(reader)?.and_then(i64::checked_neg);
                }
                _ => reader.skip()?,
            }
        }
        Ok(())
    }

    /// Adds them to `facts`.
    pub(super) fn state(&self, facts: &mut Facts) {
        let [first, second] = self.most;
        facts.answers = self.answers;
        facts.max_output = first.or(second);
        let most = facts.max_output.unwrap_or(u32::MAX);
        facts.expected_output = self.agent.expected_output.map(|count| count.min(most));
        facts.priority = self.priority.or(self.agent.priority);
    }
}

/// A whole number from 0 to 2^31 - 1; nothing for any other value.
fn read_count(reader: &mut Reader<'_>) -> Result<Option<u32>> {
    let count = read_whole(reader)?.and_then(|count| i32::try_from(count).ok());
    Ok(count.and_then(|count| u32::try_from(count).ok()))
}

/// A whole number of 64 bits; nothing for any other value.
fn read_whole(reader: &mut Reader<'_>) -> Result<Option<i64>> {
    if reader.peek()? != Token::Number {
        reader.skip()?;
        return Ok(None);
    }
    let digits = std::str::from_utf8(reader.number()?).ok();
    Ok(digits.and_then(|digits| digits.parse().ok()))
}
