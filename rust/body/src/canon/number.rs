//! One spelling per number, by its decimal digits: nothing is rounded, and any exponent is fine.
//!
//! Integers stay as they are but for `-0`. Anything with a fraction or an exponent is a float, which never equals an
//! integer: `100.0` and `1e2` are both `1e2`. Zeros keep their sign, as floats print it.

use std::io::Write;

/// Exponents of more digits are not added to; such a number is 0 or infinite for every engine.
const EXPONENT_DIGITS: usize = 17;

/// Appends the canonical spelling of `text`, a number of JSON.
pub(crate) fn put_number(text: &[u8], out: &mut Vec<u8>) {
    let Some(end) = text
        .iter()
        .position(|byte| matches!(byte, b'.' | b'e' | b'E'))
    else {
        out.extend_from_slice(if text == b"-0" { b"0" } else { text });
        return;
    };
    let start = usize::from(text[0] == b'-');
    out.extend_from_slice(&text[..start]);
    let (whole, rest) = (&text[start..end], &text[end..]);
    let power = rest.iter().position(|byte| matches!(byte, b'e' | b'E'));
    let (fraction, power) = match power {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, &b"0"[..]),
    };
    let fraction = fraction.strip_prefix(b".").unwrap_or_default();
    put_float(whole, fraction, power, out);
}

/// Appends `digits e exponent` of the number whose digits are `whole` and `fraction`.
fn put_float(whole: &[u8], fraction: &[u8], power: &[u8], out: &mut Vec<u8>) {
    let fraction = trim_end(fraction);
    let (whole, fraction, mut shift) = if fraction.is_empty() {
        let kept = trim_end(whole);
        (kept, fraction, signed(whole.len() - kept.len()))
    } else {
        (whole, fraction, -signed(fraction.len()))
    };
    let before = out.len();
    for part in [whole, fraction] {
        let part = if out.len() == before {
            trim_start(part)
        } else {
            part
        };
        out.extend_from_slice(part);
    }
    if out.len() == before {
        out.extend_from_slice(b"0e0");
        return;
    }
    let negative = power[0] == b'-';
    let digits = trim_start(
        power
            .strip_prefix(b"+")
            .or(power.strip_prefix(b"-"))
            .unwrap_or(power),
    );
    if digits.len() > EXPONENT_DIGITS {
        out.extend_from_slice(if negative { b"E-" } else { b"E+" });
        out.extend_from_slice(digits);
        out.push(b'.');
    } else {
        let size = digits
            .iter()
            .fold(0, |size: i64, digit| size * 10 + i64::from(digit - b'0'));
        shift += if negative { -size } else { size };
        out.push(b'e');
    }
    let _ = write!(out, "{shift}"); // a vector takes all of it
}

/// A number of digits.
fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn trim_start(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    &digits[zeros..]
}

fn trim_end(digits: &[u8]) -> &[u8] {
    let zeros = digits
        .iter()
        .rev()
        .take_while(|digit| **digit == b'0')
        .count();
    &digits[..digits.len() - zeros]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        let mut out = Vec::new();
        put_number(text.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_value_has_one_spelling() {
        let rows = [
            ("0", "0"),
            ("-0", "0"),
            ("-1", "-1"),
            ("12345678901234567890123", "12345678901234567890123"),
            ("1.0", "1e0"),
            ("1e2", "1e2"),
            ("100.0", "1e2"),
            ("100e0", "1e2"),
            ("1E+2", "1e2"),
            ("1e02", "1e2"),
            ("0.10", "1e-1"),
            ("0.1", "1e-1"),
            ("1e-1", "1e-1"),
            ("0.0", "0e0"),
            ("0e5", "0e0"),
            ("-0.00e-7", "-0e0"),
            ("10.01", "1001e-2"),
            ("0.00102", "102e-5"),
            ("-2.50e3", "-25e2"),
            ("1e400", "1e400"),
            ("10e399", "1e400"),
            ("1e-400", "1e-400"),
            ("1e99999999999999999", "1e99999999999999999"),
            ("1e999999999999999999", "1E+999999999999999999.0"),
            ("10e-00999999999999999999999", "1E-999999999999999999999.1"),
            ("0e999999999999999999999", "0e0"),
        ];
        for (text, expected) in rows {
            assert_eq!(canonical(text), expected, "{text}");
        }
    }
}
