//! An answer kept from before a change must not mislead a later record.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use cachelb_core::ids::{Medium, SequenceHash, WorkerId};
use cachelb_core::index::{BlockIndex, Matcher, Overlaps};

const A: WorkerId = WorkerId {
    slot: 0,
    generation: 0,
};
const B: WorkerId = WorkerId {
    slot: 1,
    generation: 0,
};

fn path(start: u64, len: u64) -> Vec<SequenceHash> {
    (start..start + len).map(SequenceHash).collect()
}

/// Asks for `asked`, lets `change` happen, records `asked` with the old answer; compares with a record without one.
fn recorded_alike(asked: &[SequenceHash], change: impl Fn(&mut BlockIndex)) {
    let mut snapshots = Vec::new();
    for hinted in [true, false] {
        let mut index = BlockIndex::new(Matcher::Kary);
        index.add_worker(A, 30);
        index.add_worker(B, 30);
        index.record(A, &path(100, 20), None, None).unwrap();
        let mut old = Overlaps::default();
        index.overlaps(asked, &mut old);
        change(&mut index);
        let new = index
            .record(A, asked, hinted.then_some(&old), None)
            .unwrap();
        index.validate().unwrap();
        let mut now = Overlaps::default();
        index.overlaps(asked, &mut now);
        assert_eq!(now.depth(0) as usize, asked.len());
        snapshots.push((
            new,
            index.block_count(A),
            index.len(),
            now.iter().collect::<Vec<_>>(),
        ));
    }
    assert_eq!(snapshots[0], snapshots[1]);
}

#[test]
fn an_answer_from_before_the_path_went_is_not_believed() {
    recorded_alike(&path(100, 20), |index| {
        index.clear(A).unwrap();
    });
    recorded_alike(&path(100, 20), |index| {
        index.remove(A, &path(110, 1), None).unwrap();
    });
    recorded_alike(&path(100, 20), |index| {
        index.evict_worker(A, 5).unwrap();
    });
}

#[test]
fn an_answer_from_before_the_path_came_is_not_believed() {
    recorded_alike(&path(500, 12), |index| {
        index.record(B, &path(500, 12), None, None).unwrap();
    });
    recorded_alike(&path(100, 25), |index| {
        index
            .store(B, Some(SequenceHash(119)), &path(120, 5), Medium::Cpu, None)
            .unwrap();
    });
}

#[test]
fn an_answer_from_before_the_blocks_were_replaced_is_not_believed() {
    recorded_alike(&path(100, 20), |index| {
        index.clear(A).unwrap();
        index.record(B, &path(900, 20), None, None).unwrap();
    });
}
