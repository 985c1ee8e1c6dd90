"""`RadixTree` through the binding, with text of any script; `rust/core/tests/radix_model.rs` has the whole model."""

from __future__ import annotations

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from cachelb.index import RadixTree

WORKERS = ["a", "b", "c"]
# ASCII, letters that share their first byte, an emoji sequence, a combining mark.
keys = st.lists(st.sampled_from(["a", "b", "é", "è", "👩‍🚀", "e\u0301"]), max_size=10).map("".join)
inserts = st.lists(st.tuples(keys, st.sampled_from(WORKERS), st.booleans()), max_size=30)


def depths(held: dict[str, list[str]], key: str) -> dict[str, int]:
    """Count by worker the leading characters that are the same."""
    found = {
        worker: max(
            sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(key, each, strict=False))) for each in those
        )
        for worker, those in held.items()
    }
    return {worker: depth for worker, depth in found.items() if depth}


@given(inserts, st.sampled_from(WORKERS))
def test_the_tree_equals_the_model(made: list[tuple[str, str, bool]], gone: str) -> None:
    tree, held = RadixTree(), dict[str, list[str]]()
    for key, worker, remote in made:
        new = len(key) - depths(held, key).get(worker, 0)
        assert tree.insert(key, worker, remote=remote) == new
        held.setdefault(worker, []).append(key)
    sizes = {
        worker: len({each[:end] for each in those for end in range(1, len(each) + 1)}) for worker, those in held.items()
    }
    assert {worker: tree.size(worker) for worker in held} == sizes
    assert tree.remove_worker(gone) == sizes.pop(gone, 0)
    held.pop(gone, None)
    for each in (tree, RadixTree.restore(tree.snapshot())):
        for key in {key + "x" for key, _, _ in made}:
            expected = depths(held, key)
            assert each.overlaps(key) == expected
            for among in (None, ["a", "b", "nobody"]):
                some = {worker: depth for worker, depth in expected.items() if among is None or worker in among}
                found, best = each.match_prefix(key, among=among), max(some.values(), default=0)
                assert (found.matched, found.total) == (best, len(key))
                assert set(found.workers) == {worker for worker, depth in some.items() if depth == best}
    assert tree.evict(1, worker="a") == max(0, sizes.get("a", 0) - 1)
    assert tree.evict(0) == sum(sizes.values()) - max(0, sizes.get("a", 0) - 1)
    tree.validate()
