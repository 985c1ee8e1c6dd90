//! Messages of the Mooncake master.

use super::NIL;
use super::encode::{Value, list, map};
use crate::decode::objects::{ObjectChange, decode_objects};

fn stored() -> Value {
    map! {
        "event_type": "stored", "object_key": "ab12_0_k", "tenant_id": "default",
        "group_id": "sglang-hicache:ab12", "seq_hashes": vec![7], "medium": "cpu",
    }
}

#[test]
fn objects_come_with_tenant_and_group() {
    let removed = map! { "event_type": "removed", "object_key": "ab12_0_v", "tenant_id": "t1", "group_id": "" };
    let cleared = map! { "event_type": "cleared", "object_key": NIL, "tenant_id": NIL };
    let later = map! { "event_type": "pinned", "object_key": "x" };
    let odd = [
        map! { "event_type": "stored" },
        map! { "object_key": "x" },
        list![1],
        stored_with_key(5),
    ];
    let mut events = vec![stored(), removed, cleared, later];
    events.extend(odd);
    let payload = list![1_700_000_000_000_u64, events, 0].encode();
    let mut found = Vec::new();
    let passed_over = decode_objects(&payload, |event| {
        found.push((event.change, event.tenant, event.group));
    });
    assert_eq!(passed_over, Ok(5));
    assert_eq!(
        found,
        [
            (
                ObjectChange::Stored("ab12_0_k"),
                "",
                Some("sglang-hicache:ab12")
            ),
            (ObjectChange::Removed("ab12_0_v"), "t1", None),
            (ObjectChange::Cleared, "", None),
        ]
    );
}

fn stored_with_key(key: u64) -> Value {
    map! { "event_type": "stored", "object_key": key }
}

#[test]
fn what_is_no_batch_is_refused() {
    let good = list![1, vec![stored()], 0].encode();
    let cases = [
        vec![],
        list![1].encode(),
        list![1, 2, 0].encode(),
        good[..good.len() - 1].to_vec(),
        [good.as_slice(), &[0]].concat(),
    ];
    for payload in cases {
        assert!(decode_objects(&payload, |_| {}).is_err(), "{payload:02x?}");
    }
    assert_eq!(decode_objects(&good, |_| {}), Ok(0));
}
