//! Escapes of strings.

use super::{Output, Reader};
use crate::error::{ErrorKind, Result};

/// The byte that an escape of one letter stands for; 0 where there is no such escape.
const PLAIN: [u8; 256] = {
    let mut plain = [0; 256];
    let pairs = *b"\"\"\\\\//b\x08f\x0cn\nr\rt\t";
    let mut at = 0;
    while at < pairs.len() {
        plain[pairs[at] as usize] = pairs[at + 1];
        at += 2;
    }
    plain
};

impl Reader<'_> {
    /// Reads the escape at this backslash, and those that follow it directly.
    pub(super) fn escapes<O: Output>(&mut self, out: &mut O) -> Result<()> {
        while self.byte() == b'\\' {
            self.at += 1;
            let byte = self.byte();
            if byte == b'u' {
                self.unicode(out)?;
                continue;
            }
            let plain = PLAIN[usize::from(byte)];
            if plain == 0 {
                return Err(self.error(ErrorKind::Syntax));
            }
            self.at += 1;
            out.put(&[plain]);
        }
        Ok(())
    }

    /// From the `u` of an escape on.
    fn unicode<O: Output>(&mut self, out: &mut O) -> Result<()> {
        let first = self.hex()?;
        let code = match first {
            0xD800..=0xDBFF => {
                if self.byte() != b'\\' || self.bytes.get(self.at + 1) != Some(&b'u') {
                    return Err(self.error(ErrorKind::Surrogate));
                }
                self.at += 1;
                let second = self.hex()?;
                if !(0xDC00..=0xDFFF).contains(&second) {
                    return Err(self.error(ErrorKind::Surrogate));
                }
                0x10000 + ((first & 0x3FF) << 10 | second & 0x3FF)
            }
            other => other,
        };
        let Some(character) = char::from_u32(code) else {
            return Err(self.error(ErrorKind::Surrogate));
        };
        out.put(character.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(())
    }

    /// The four digits behind this `u`.
    fn hex(&mut self) -> Result<u32> {
        let mut code = 0;
        for _ in 0..4 {
            self.at += 1;
            let Some(digit) = char::from(self.byte()).to_digit(16) else {
                return Err(self.error(ErrorKind::Syntax));
            };
            code = code << 4 | digit;
        }
        self.at += 1;
        Ok(code)
    }
}
