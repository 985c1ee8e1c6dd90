//! Engine blocks that are larger or smaller than own ones.

use super::*;

#[test]
fn an_own_block_is_held_while_all_its_pages_are() {
    let mut b = Bench::new();
    let prompt: Vec<u32> = (0..9).collect();
    b.sized(None, &[10, 11, 12], &[0, 1, 2], 1);
    assert_eq!(b.held(), 0);
    b.sized(Some(12), &[13, 14, 15, 16, 17, 18], &[3, 4, 5, 6, 7, 8], 1);
    assert_eq!(
        (b.depth(&prompt), b.ingest.engine_block_size()),
        (2, Some(1))
    );
    for page in [10, 11, 13] {
        b.remove(&[page]);
        assert_eq!((b.depth(&prompt), b.held()), (0, 1), "{page}");
        let parent = (page > 10).then_some(page - 1);
        b.sized(parent, &[page], &[page as u32 - 10], 1);
        assert_eq!(b.depth(&prompt), 2, "{page}");
    }
    b.remove(&[18, 17]);
    assert_eq!(b.depth(&prompt), 1);
    b.remove(&[10, 11, 12, 13, 14, 15, 16]);
    assert_eq!(b.held(), 0);
}

#[test]
fn a_page_is_in_every_branch_behind_it() {
    let mut b = Bench::new();
    b.sized(None, &[1, 2], &[1, 1, 2, 2], 2);
    b.sized(Some(1), &[3, 4], &[3, 3, 4, 4], 2);
    b.sized(Some(1), &[5], &[5, 5], 2);
    assert_eq!(b.held(), 3);
    b.remove(&[5]);
    assert_eq!(b.held(), 2);
    b.remove(&[1]);
    assert_eq!(b.held(), 0);
    b.sized(None, &[1], &[1, 1], 2);
    assert_eq!(b.held(), 2);
    assert_eq!(
        (
            b.depth(&[1, 1, 2, 2]),
            b.depth(&[1, 1, 3, 3]),
            b.depth(&[1, 1, 5, 5])
        ),
        (1, 1, 0)
    );
}

#[test]
fn two_names_for_a_page_both_have_to_go() {
    let mut b = Bench::new();
    b.sized(None, &[1, 2], &[1, 1, 2, 2], 2);
    b.sized(None, &[8], &[1, 1], 2);
    b.remove(&[1]);
    assert_eq!(b.held(), 1);
    b.remove(&[8]);
    assert_eq!(b.held(), 0);
}

#[test]
fn a_page_name_given_to_other_content_takes_its_block_along() {
    let mut b = Bench::new();
    b.sized(None, &[1, 2], &[1, 1, 2, 2], 2);
    b.sized(Some(1), &[2], &[3, 3], 2);
    assert_eq!((b.depth(&[1, 1, 2, 2]), b.depth(&[1, 1, 3, 3])), (0, 1));
    b.sized(None, &[2, 2, 2], &[7, 7, 8, 8, 9, 9], 2);
    assert_eq!(b.held(), 0);
}

#[test]
fn objects_of_pages_are_objects_of_their_block_once() {
    let mut b = Bench::new();
    b.hear(Says::default().store(Blocks {
        names: &[1, 2],
        tokens: &[0; 4],
        size: 2,
        extras: &[(0, 9), (1, 9), (1, 5)],
        ..Blocks::default()
    }));
    let objects = [(9, 4), (5, 2)].map(|(hash, len)| MmObject {
        hash,
        start: 0,
        len,
    });
    assert!(b.holds_with(&[0; 4], &objects, 0));
    b.remove(&[1, 2]);
    assert_eq!(b.held(), 0);
}

#[test]
fn pages_of_two_groups_hold_a_block_together() {
    let mut b = Bench::new();
    let of = |group, size| Blocks {
        names: &[1, 2, 3, 4][..4 / size as usize],
        tokens: &[1; 4],
        size,
        group,
        attention: Attention::Full,
        ..Blocks::default()
    };
    b.hear(
        Says::default()
            .store(of(Some(0), 1))
            .store(of(Some(1), 2))
            .store(of(Some(2), 4)),
    );
    for (group, held) in [(0, 1), (2, 1), (1, 0)] {
        b.hear(Says::default().removed_at(&[1], Place::Unsaid, Some(group)));
        assert_eq!(b.held(), held);
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused_by_name() {
    let mut b = Bench::new();
    assert_eq!(b.sized(None, &[1], &[1; 6], 6), 0);
    let refusal = b.ingest.refused().unwrap();
    assert_eq!(refusal, Refusal::BlockSize { engine: 6, ours: 4 });
    assert_eq!(
        refusal.to_string(),
        "the engine's blocks hold 6 tokens and the router's 4: one must be a multiple of the other"
    );
    b.sized(None, &[1, 2], &[1; 16], 8);
    assert_eq!((b.ingest.refused(), b.held()), (None, 4));
    b.sized(None, &[3], &[1; 6], 6);
    b.sized(None, &[4, 5], &[1; 8], 4);
    assert_eq!(
        (
            b.ingest.refused(),
            b.held(),
            b.dropped(DropReason::BlockSize)
        ),
        (None, 4, 3)
    );
}

#[test]
fn a_short_end_before_the_first_whole_block_is_not_taken_for_the_size() {
    let mut b = Bench::new();
    b.sized(None, &[1], &[1; 4], 4);
    b.sized(None, &[2], &[2; 16], 16);
    assert_eq!((b.held(), b.ingest.engine_block_size()), (4, Some(16)));
    b.sized(Some(2), &[3], &[3; 16], 16);
    b.sized(None, &[4], &[4; 32], 32);
    assert_eq!((b.held(), b.dropped(DropReason::BlockSize)), (8, 1));
}

#[test]
fn a_sender_beside_the_engine_has_its_own_size_per_medium() {
    let mut b = Bench::new();
    let prompt = blocks(&[1, 2, 3, 4]);
    b.sized(None, &[1, 2, 3, 4], &prompt, 4);
    b.hear(Says::default().store(Blocks {
        names: &[900],
        tokens: &prompt,
        size: 16,
        place: Place::In(Medium::Cpu),
        ..Blocks::default()
    }));
    assert_eq!(b.depth_in(&prompt, Namespace::default(), Medium::Cpu), 4);
    assert_eq!(b.ingest.engine_block_size(), Some(4));
    b.remove(&[1, 900]);
    assert_eq!((b.depth(&prompt), b.held()), (0, 3));
}
