"""Random operations on a block tracker, and the comparison of a tracker with the oracle.

Alphabets are tiny, so that prompts share prefixes, fork in the middle and repeat: that is where routers go wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from cachelb._core import BlockTracker, hash_blocks
from cachelb.common.arguments import whole
from cachelb.common.extras import need
from cachelb.testing.oracle import NaiveTracker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from hypothesis.strategies import SearchStrategy

    from cachelb._core import Namespace

_DEFAULT_WORKERS: Final = ("w0", "w1", "w2")
_MOST_WORKERS: Final = 65_536
_MOST_TOKENS: Final = 65_536


Tracker: TypeAlias = BlockTracker | NaiveTracker
"""The tracker that operations and queries of a test run on."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call on a tracker, to be made on any number of them.

    Example:
        >>> from cachelb.testing import NaiveTracker, Operation
        >>> oracle = NaiveTracker(block_size=1)
        >>> Operation("record_request", (0, 1, 1), "w0", {}).apply(oracle)
        3
        >>> Operation("remove", (0, 1, 1), "w0", {"start": 1, "stop": 2}).apply(oracle)
        1
        >>> oracle.overlaps([0, 1, 1])
        {'w0': 1}
    """

    name: str
    """The method called."""
    tokens: tuple[int, ...]
    """The prompt whose blocks are meant."""
    worker: str
    """Whose blocks."""
    options: Mapping[str, Any]
    """The other arguments; `store` and `remove` mean the blocks ``start`` to ``stop`` of the prompt."""

    def apply(self, tracker: Tracker, *, block_size: int = 1, seed: int = 1337) -> int:
        """Make the call.

        Args:
            tracker: Where.
            block_size: The tracker's block size.
            seed: The tracker's hash seed.

        Returns:
            The result of the call.
        """
        options = dict(self.options)
        if self.name == "record_request":
            return tracker.record_request(list(self.tokens), self.worker, **options)
        if self.name in ("store", "remove"):
            namespace = options.pop("namespace", None)
            chain = [int(h) for h in hash_blocks(self.tokens, block_size, namespace=namespace, seed=seed)]
            start, stop = options.pop("start", 0), options.pop("stop", None)
            if self.name == "remove":
                return tracker.remove(self.worker, chain[start:stop], **options)
            parent = chain[start - 1] if 0 < start <= len(chain) else None
            return tracker.store(self.worker, chain[start:stop], parent=parent, **options)
        result: int = getattr(tracker, self.name)(self.worker, **options)
        return result


def token_sequences(*, alphabet: int = 2, max_tokens: int = 40, block_size: int = 1) -> SearchStrategy[list[int]]:
    """Prompts that often share long prefixes: a pattern, cut anywhere, with at most one token changed.

    Args:
        alphabet: How many different tokens.
        max_tokens: Longest prompt.
        block_size: Random prompts are kept to a few blocks of this size, where they still collide.

    Returns:
        A strategy of token lists.

    Raises:
        ImportError: hypothesis is not installed.
        ValueError: A number is out of range.

    Example:
        >>> from hypothesis import given, settings
        >>> from cachelb.index import BlockTracker
        >>> from cachelb.testing import token_sequences
        >>> @settings(max_examples=5, database=None)
        ... @given(token_sequences(max_tokens=40))
        ... def fits(tokens):
        ...     assert BlockTracker(block_size=4).record_request(tokens, "w0") == len(tokens) // 4
        >>> fits()
    """
    whole("alphabet", alphabet, 1)
    whole("max_tokens", max_tokens, 0, _MOST_TOKENS)
    whole("block_size", block_size, 1, 1024)
    st = _strategies()
    token = st.integers(0, alphabet - 1)

    def build(period: int, length: int, change: tuple[int, int] | None) -> list[int]:
        tokens = [(at // period) % alphabet for at in range(length)]
        if change is not None and tokens:
            tokens[change[0] % length] = change[1]
        return tokens

    patterned = st.builds(
        build,
        st.sampled_from([max_tokens + 1, 1, 3 * block_size]),
        st.integers(0, max_tokens),
        st.none() | st.tuples(st.integers(0, max_tokens), token),
    )
    bushy = st.lists(token, max_size=min(max_tokens, 6 * block_size))
    result: SearchStrategy[list[int]] = patterned | bushy
    return result


def worker_names(*, count: int = 3) -> SearchStrategy[str]:
    """Names ``w0``, ``w1`` and so on.

    Args:
        count: How many different ones.

    Returns:
        A strategy of names.

    Raises:
        ImportError: hypothesis is not installed.
        ValueError: `count` is out of range.

    Example:
        >>> from hypothesis import given, settings
        >>> from cachelb.testing import worker_names
        >>> @settings(max_examples=5, database=None)
        ... @given(worker_names(count=2))
        ... def known(name):
        ...     assert name in {"w0", "w1"}
        >>> known()
    """
    whole("count", count, 1, _MOST_WORKERS)
    result: SearchStrategy[str] = _strategies().sampled_from([f"w{number}" for number in range(count)])
    return result


def operations(
    *,
    tokens: SearchStrategy[list[int]] | None = None,
    workers: SearchStrategy[str] | None = None,
    ttls_s: Sequence[float | None] = (None,),
    media: Sequence[str] = ("gpu", "gpu", "cpu"),
    namespaces: Sequence[str | Namespace | None] = (None,),
    max_blocks: int = 40,
) -> SearchStrategy[Operation]:
    """Draw any write a tracker offers.

    Args:
        tokens: The prompts, by default `token_sequences`.
        workers: The names, by default `worker_names`.
        ttls_s: Times to live of recorded requests.
        media: Where stored blocks lie.
        namespaces: Identities of the prompts besides their tokens.
        max_blocks: Evictions go down to at most this many blocks.

    Returns:
        A strategy of operations.

    Raises:
        ImportError: hypothesis is not installed.

    Example:
        >>> from hypothesis import given, settings
        >>> from cachelb.index import BlockTracker
        >>> from cachelb.testing import NaiveTracker, operations
        >>> @settings(max_examples=5, database=None)
        ... @given(operations())
        ... def agrees(operation):
        ...     found = operation.apply(BlockTracker(block_size=1))
        ...     assert found == operation.apply(NaiveTracker(block_size=1))
        >>> agrees()
    """
    st = _strategies()
    prompts = (token_sequences() if tokens is None else tokens).map(tuple)
    names = worker_names(count=len(_DEFAULT_WORKERS)) if workers is None else workers

    def writes(name: str, **options: SearchStrategy[Any]) -> SearchStrategy[Operation]:
        built: SearchStrategy[Operation] = st.builds(
            Operation, st.just(name), prompts, names, st.fixed_dictionaries(options)
        )
        return built

    at = st.integers(0, 8)
    namespace = st.sampled_from(list(namespaces))
    record = writes("record_request", ttl_s=st.sampled_from(list(ttls_s)), namespace=namespace)
    store = writes("store", start=at, medium=st.sampled_from(list(media)), namespace=namespace)
    remove = writes(
        "remove", start=at, stop=st.none() | at, medium=st.sampled_from([None, *media]), namespace=namespace
    )
    whole("max_blocks", max_blocks, 0)
    evict = writes("evict_worker", max_blocks=st.integers(0, max_blocks))
    result: SearchStrategy[Operation] = st.one_of(
        record, record, store, remove, evict, writes("clear"), writes("remove_worker")
    )
    return result


def assert_agrees(
    tracker: Tracker,
    oracle: NaiveTracker,
    tokens: Sequence[int],
    *,
    among: Sequence[str] | None = None,
    namespace: str | Namespace | None = None,
) -> None:
    """Compare everything both can be asked.

    Args:
        tracker: The one under test.
        oracle: The truth, after the same operations.
        tokens: The prompt to ask about.
        among: Restrict the question to these workers.
        namespace: Identity of the prompt besides its tokens.

    Raises:
        AssertionError: They differ.

    Example:
        >>> from cachelb.index import BlockTracker
        >>> from cachelb.testing import NaiveTracker, assert_agrees
        >>> tracker, oracle = BlockTracker(block_size=2), NaiveTracker(block_size=2)
        >>> for each in (tracker, oracle):
        ...     _ = each.record_request([1, 2, 3, 4], "gpu0")
        >>> assert_agrees(tracker, oracle, [1, 2, 9])
    """
    expected = oracle.overlaps(tokens, among=among, namespace=namespace)
    got = tracker.overlaps(tokens, among=among, namespace=namespace)
    assert got == expected, f"overlaps of {list(tokens)}: {got}, by linear scan {expected}"
    best = oracle.best_workers(tokens, among=among, namespace=namespace)
    match = tracker.find_best_worker(tokens, among=among, namespace=namespace)
    if match is None:
        assert not best.workers, f"no worker for {list(tokens)}, by linear scan {best}"
    else:
        found = (match.worker in best.workers, match.matched_blocks, match.total_blocks)
        assert found == (True, best.matched_blocks, best.total_blocks), f"{match}, by linear scan {best}"
    assert sorted(tracker.workers()) == sorted(oracle.workers())
    for worker in oracle.workers():
        counts = (tracker.block_count(worker), oracle.block_count(worker))
        assert counts[0] == counts[1], f"{worker} holds {counts[0]} blocks, by recount {counts[1]}"


def _strategies() -> ModuleType:
    need("cachelb.testing", "hypothesis")
    from hypothesis import strategies

    return strategies
