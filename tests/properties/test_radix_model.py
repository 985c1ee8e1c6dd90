"""`RadixTree` against the obvious model, under random operations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.models.naive_prefixes import NaivePrefixes

from cachelb import RadixTree

WORKERS = ["a", "b", "c"]
# ASCII, letters that share their first byte, an emoji sequence, a combining mark.
LETTERS = ["a", "b", "é", "è", "👩‍🚀", "e\u0301"]

keys = st.one_of(
    st.lists(st.sampled_from(LETTERS), max_size=10).map("".join),
    st.text("ab", max_size=12),
    st.integers(0, 12).map(lambda times: "a" * times),
    st.integers(0, 5).map(lambda times: "abc" * times),
)
operations = st.one_of(
    st.tuples(st.just("insert"), keys, st.sampled_from(WORKERS), st.booleans()),
    st.tuples(st.just("insert"), keys, st.sampled_from(WORKERS), st.just(value=False)),
    st.tuples(st.just("evict"), st.integers(0, 40), st.sampled_from([*WORKERS, None])),
    st.tuples(st.just("remove"), st.sampled_from(WORKERS)),
    st.tuples(st.just("look"), keys),
)


@given(st.one_of(st.none(), st.integers(1, 60)), st.lists(operations, max_size=40))
def test_the_tree_equals_the_model(max_units: int | None, history: list[tuple[object, ...]]) -> None:
    tree = RadixTree(max_units=max_units)
    model = NaivePrefixes(max_units=max_units)
    for operation in history:
        match operation:
            case ("insert", str(key), str(worker), bool(remote)):
                assert tree.insert(key, worker, remote=remote) == model.insert(key, worker, remote=remote)
            case ("evict", int(units), None):
                assert tree.evict(units) == model.evict(units)
            case ("evict", int(units), str(worker)):
                assert tree.evict(units, worker=worker) == model.evict(units, worker)
            case ("remove", str(worker)):
                assert tree.remove_worker(worker) == model.remove(worker)
            case ("look", str(key)):
                check(tree, model, key)
            case _:
                raise AssertionError(operation)
        tree.validate()
        assert {worker: tree.size(worker) for worker in tree.workers()} == {
            worker: len(model.held(worker)) for worker in model.local
        }
    restored = RadixTree.restore(tree.snapshot())
    for worker in WORKERS:
        for key in model.held(worker):
            check(tree, model, key + "x")
            check(restored, model, key + "x")
    assert restored.evict(7) == tree.evict(7) == model.evict(7)
    assert {worker: restored.size(worker) for worker in restored.workers()} == {
        worker: len(model.held(worker)) for worker in model.local
    }


def check(tree: RadixTree, model: NaivePrefixes, key: str) -> None:
    expected = model.overlaps(key)
    assert tree.overlaps(key) == expected
    best = max(expected.values(), default=0)
    found = tree.match_prefix(key)
    assert (found.matched, found.total) == (best, len(key))
    assert set(found.workers) == {worker for worker, depth in expected.items() if depth == best}
    some = tree.match_prefix(key, among=["a", "b", "nobody"])
    depths = {worker: depth for worker, depth in expected.items() if worker in {"a", "b"}}
    best = max(depths.values(), default=0)
    assert some.matched == best
    assert set(some.workers) == {worker for worker, depth in depths.items() if depth == best}
