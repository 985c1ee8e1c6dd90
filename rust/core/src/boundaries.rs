//! Where messages end in a prompt: positions in tokens or characters -> full blocks.

/// Replaces `out` with the full blocks before each of the rising `positions`, without those that repeat or hold none,
/// and without those behind the last of `blocks`.
pub fn to_blocks(positions: &[u32], per_block: usize, blocks: usize, out: &mut Vec<u32>) {
    out.clear();
    for &position in positions {
        let full = (position as usize / per_block.max(1)).min(blocks) as u32;
        if full > 0 && out.last() != Some(&full) {
            out.push(full);
        }
    }
}

/// Turns rising `positions` in characters of the UTF-8 `text` into positions in bytes. O(bytes), 64 at a time.
pub fn to_bytes(text: &[u8], positions: &mut [u32]) {
    const STRIDE: usize = 64;
    let begins = |byte: u8| byte & 0xC0 != 0x80;
    let (mut at, mut seen) = (0, 0);
    for position in positions {
        let wanted = *position as usize;
        while let Some(stride) = text.get(at..at + STRIDE) {
            let begun: usize = stride.iter().map(|&byte| usize::from(begins(byte))).sum();
            if seen + begun >= wanted {
                break;
            }
            (at, seen) = (at + STRIDE, seen + begun);
        }
        while let Some(&byte) = text.get(at) {
            if begins(byte) {
                if seen == wanted {
                    break;
                }
                seen += 1;
            }
            at += 1;
        }
        *position = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn boundaries_are_cut_to_full_blocks_once_each() {
        let cases: [(&[u32], usize, &[u32]); 6] = [
            (&[256, 306, 406, 446], 27, &[16, 19, 25, 27]),
            (&[256, 260, 262], 20, &[16]),
            (&[3, 15, 16, 31], 2, &[1]),
            (&[0, 0, 64], 4, &[4]),
            (&[40, 500], 4, &[2, 4]),
            (&[], 4, &[]),
        ];
        for (positions, blocks, expected) in cases {
            let mut out = vec![9];
            to_blocks(positions, 16, blocks, &mut out);
            assert_eq!(out, expected, "{positions:?}");
        }
    }

    proptest! {
        #[test]
        fn bytes_are_those_before_the_characters(
            text in "[aé日🙂]{0,300}",
            mut at in prop::collection::vec(0_usize..300, 0..12),
        ) {
            at.sort_unstable();
            let offsets: Vec<usize> = text.char_indices().map(|(byte, _)| byte).collect();
            let expected: Vec<u32> = at
                .iter()
                .map(|&at| offsets.get(at).copied().unwrap_or(text.len()) as u32)
                .collect();
            let mut positions: Vec<u32> = at.iter().map(|&at| at as u32).collect();
            to_bytes(text.as_bytes(), &mut positions);
            prop_assert_eq!(positions, expected);
        }
    }
}
