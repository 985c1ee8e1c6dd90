//! Workers whose engines cannot resume from any block they hold.

use super::{index, path, worker};
use crate::ids::{Medium, SequenceHash};
use crate::index::{BlockIndex, Overlaps, Resumes};
use crate::rng::Rng;

const BLOCK: u32 = 32;
const MARKED: Resumes = Resumes {
    marked_only: true,
    above: 0,
};

/// An index in which worker 0 holds the blocks `full` of a path, and has marks at the depths `marks`.
fn marked(blocks: &[SequenceHash], full: &[u32], marks: &[u32]) -> BlockIndex {
    let mut index = index(1000);
    index.set_resumes(worker(0), MARKED).unwrap();
    index
        .announce(worker(0), None, blocks, Medium::Gpu, None)
        .unwrap();
    for depth in marks {
        let hash = blocks[*depth as usize - 1];
        assert_eq!(index.mark(worker(0), hash, Medium::Gpu), Ok(true));
    }
    for depth in (1..=blocks.len() as u32).filter(|depth| !full.contains(depth)) {
        let hash = blocks[depth as usize - 1];
        index.remove(worker(0), &[hash], Some(Medium::Gpu)).unwrap();
    }
    index
}

/// Tokens that a prompt of `tokens` tokens, the first `shared` of them those of the path, reuses and finds held.
fn reused(index: &BlockIndex, blocks: &[SequenceHash], shared: u32, tokens: u32) -> (u32, u32) {
    let mut prompt: Vec<_> = blocks[..(shared / BLOCK) as usize].to_vec();
    let rest = tokens / BLOCK - shared / BLOCK;
    prompt.extend((0..u64::from(rest)).map(|at| SequenceHash(u64::MAX - at)));
    let mut out = Overlaps::default();
    index.overlaps(&prompt, &mut out);
    index.resume((tokens - 1) / BLOCK, &mut out);
    assert_eq!(out.confirmed(0), out.depth(0));
    (out.depth(0) * BLOCK, out.held(0) * BLOCK)
}

/// Blocks held, depths marked; tokens shared and of the prompt; tokens reused and held.
type Case<'a> = (&'a [u32], &'a [u32], (u32, u32), (u32, u32));

/// The rows of the table of hybrid models, with the marks that their side groups come to: a sliding window of four blocks,
/// held from block 6, 3, ..., or states at the ends of blocks.
#[test]
fn prompts_are_reused_where_all_groups_accept() {
    let all = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    let gap = [1, 2, 3, 4, 5, 7, 8, 9];
    let cases: [Case; 9] = [
        (&all, &[9], (288, 300), (288, 288)),
        (&all, &[9], (192, 300), (0, 192)),
        (&all, &[6, 7, 8, 9], (256, 320), (256, 256)),
        (&all, &[], (288, 300), (0, 288)),
        (&all[..2], &[1], (64, 64), (32, 64)),
        (&gap, &[9], (288, 300), (0, 160)),
        (&all, &[8], (288, 300), (256, 288)),
        (&[1, 2, 3, 4, 5, 6, 7, 8], &[8, 4], (256, 256), (128, 256)),
        (&[1, 2, 3, 4, 5, 6, 7, 8], &[8, 4], (256, 260), (256, 256)),
    ];
    for (full, marks, (shared, tokens), expected) in cases {
        let blocks = path(&(0..u64::from(*full.last().unwrap())).collect::<Vec<_>>());
        let index = marked(&blocks, full, marks);
        assert_eq!(
            reused(&index, &blocks, shared, tokens),
            expected,
            "{full:?} {marks:?} {tokens}"
        );
        index.validate().unwrap();
    }
}

#[test]
fn a_gap_that_closes_gives_back_the_marks_behind_it() {
    let blocks = path(&(0..9).collect::<Vec<_>>());
    let mut index = marked(&blocks, &[1, 2, 3, 4, 5, 7, 8, 9], &[9]);
    index
        .announce(worker(0), Some(blocks[4]), &blocks[5..6], Medium::Gpu, None)
        .unwrap();
    assert_eq!(reused(&index, &blocks, 288, 300), (288, 288));
    // But a mark does not outlive its own block.
    index
        .remove(worker(0), &blocks[8..], Some(Medium::Gpu))
        .unwrap();
    index
        .announce(worker(0), Some(blocks[7]), &blocks[8..], Medium::Gpu, None)
        .unwrap();
    assert_eq!(reused(&index, &blocks, 288, 300), (0, 288));
}

#[test]
fn eagle_needs_a_block_above_where_it_resumes() {
    let blocks = path(&(0..9).collect::<Vec<_>>());
    let mut index = marked(&blocks, &[1, 2, 3, 4, 5, 6, 7, 8, 9], &[]);
    let eagle = Resumes {
        marked_only: false,
        above: 1,
    };
    index.set_resumes(worker(0), eagle).unwrap();
    assert_eq!(reused(&index, &blocks, 288, 300), (256, 288));
    index.set_resumes(worker(0), Resumes::default()).unwrap();
    assert_eq!(reused(&index, &blocks, 288, 300), (288, 288));
    // A mark is on the block above, so it does not serve prompts that go on otherwise.
    let marked_only = true;
    index
        .set_resumes(
            worker(0),
            Resumes {
                marked_only,
                ..eagle
            },
        )
        .unwrap();
    index.mark(worker(0), blocks[7], Medium::Gpu).unwrap();
    assert_eq!(reused(&index, &blocks, 288, 300), (224, 288));
    index.mark(worker(0), blocks[8], Medium::Gpu).unwrap();
    assert_eq!(reused(&index, &blocks, 288, 300), (256, 288));
    assert_eq!(reused(&index, &blocks, 256, 300), (224, 256));
    assert_eq!(reused(&index, &blocks, 256, 256), (224, 256));
}

#[test]
fn a_mark_takes_sixteen_bytes_at_most() {
    let cases = [
        ("every 64th", 64, 1),
        ("every 16th", 16, 1),
        ("all", 1, 1),
        ("all, 4 workers", 1, 4),
    ];
    for (name, every, workers) in cases {
        let mut rng = Rng::new(5);
        let mut index = index(u32::MAX);
        (0..workers).for_each(|slot| index.add_worker(worker(slot), u32::MAX));
        let (mut marks, mut bytes) = (0, 0);
        while marks < 12_000 {
            let length = 64 + rng.below(400) as u64;
            let first = rng.bits();
            let blocks = path(&(0..length).map(|at| first ^ at).collect::<Vec<_>>());
            for slot in 0..workers {
                let w = worker(slot);
                index.announce(w, None, &blocks, Medium::Gpu, None).unwrap();
            }
            let before = index.memory_bytes();
            for hash in blocks.iter().skip(every - 1).step_by(every) {
                for slot in 0..workers {
                    assert_eq!(index.mark(worker(slot), *hash, Medium::Gpu), Ok(true));
                    marks += 1;
                }
            }
            bytes += index.memory_bytes() - before;
        }
        let each = bytes as f64 / f64::from(marks);
        assert!(each <= 16.0, "{name}: {each} bytes a mark");
        index.validate().unwrap();
    }
}
