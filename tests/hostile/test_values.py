"""Hostile values for every argument: only TypeError and ValueError leave, and name it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hostile.tables import CHATS, FLEET, NUMBERS, survives

from cachelb import Router, policies
from cachelb.answers import header_filter
from cachelb.boundaries import align, estimate, marked, message_boundaries
from cachelb.index import BlockTracker, RadixTree, hash_blocks, hash_text
from cachelb.requests import RequestError, read_request
from cachelb_gateway.relay import Relay
from cachelb_lab import sim
from cachelb_lab.sim import FleetSpec, Incident, Sweep, Workload, workloads

HOSTILE = (*NUMBERS, "", "x" * 100_000, "\ud800", b"", b"\xff", (0, 0, 0), (True,), ("a",), [[]])
PROMPT = list(range(100))
SHARED = "known to the tests alone"


def options(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = inspect.signature(function).parameters.values()
    return [each.name for each in found if each.kind in kinds and each.name not in {"cls", "self"}]


def serve(selects: Callable[..., Any]) -> None:
    for at in range(3):
        decision = selects(tokens=PROMPT[at:], session="s")
        decision.on_first_token()
        decision.on_tokens(3)
        decision.on_complete()


BUILTIN = list(policies.POLICIES.values())


@pytest.mark.parametrize("policy", BUILTIN, ids=lambda policy: policy.__name__)
def test_policy_refuses_an_option_or_selects_with_it(policy: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    made = 0
    for option, value in itertools.product(policy.keywords(), HOSTILE):
        if option == "model" and isinstance(value, str):
            continue  # a path
        built = survives(policy, {option: value})
        if built is None or option == "key":
            continue
        made += 1
        serve(partial(built.select_worker, ["a", "b"]))
        built.update_load("a", kv_usage=0.5)
        built.validate()
        router = Router(["a", "b"], policy=built)
        serve(router.select_worker)
        router.select_pair(tokens=PROMPT).on_complete()
        router.validate()
    assert made > len(policy.keywords())


POLICY_CALLS: dict[str, dict[str, Any]] = {
    "select_worker": {"workers": ["a", "b"], "tokens": PROMPT},
    "set_ready": {"worker": "a", "ready": True},
    "set_weight": {"worker": "a", "weight": 1.0},
    "update_load": {"worker": "a", "kv_usage": 0.5},
    "remove_worker": {"worker": "a"},
    "block_count": {},
}


@pytest.mark.parametrize("policy", BUILTIN, ids=lambda policy: policy.__name__)
def test_call_of_a_policy_refuses_an_argument_or_takes_it(policy: Any) -> None:
    for call, base in POLICY_CALLS.items():
        for argument, value in itertools.product(options(getattr(policy, call)), HOSTILE):
            made = policy(seed=1)
            survives(getattr(made, call), {**base, argument: value})
            made.validate()
            assert not any(made.loads().values())


def test_router_refuses_an_option_or_selects_with_it() -> None:
    made = 0
    for option, value in itertools.product(options(Router.__new__), HOSTILE):
        router = survives(Router, {"workers": ["a", "b"], option: value})
        if router is None or option == "key":
            continue
        made += 1
        router.add_worker("a")
        serve(router.select_worker)
        router.load_sink.update_load("a", running=1)
        router.select_pair(tokens=PROMPT).on_complete()
        router.stats()
        router.validate()
    assert made > len(options(Router.__new__))


ROUTER_CALLS: dict[str, dict[str, Any]] = {
    "select_worker": {"tokens": PROMPT},
    "explain": {"tokens": PROMPT},
    "reserve": {"worker": "a", "tokens": PROMPT},
    "add_worker": {"worker": "n"},
    "load_sink.update_load": {"worker": "a"},
    "load_sink.learn_worker": {"worker": "a"},
    "remove_worker": {"worker": "a"},
    "load_sink.reset_cache": {"worker": "a"},
    "set_ready": {"worker": "a", "ready": True},
    "finish_session": {"session": "s"},
    "event_sink.key_of": {"worker": "a"},
    "records.recent": {},
    "records.since": {"cursor": 0},
    "sync_workers": {"workers": ["a", "b"]},
    "select_batch": {"requests": [{"tokens": PROMPT}]},
    "event_sink.apply_events": {"worker": "a", "payload": b"\x92\x01\x90"},
    "attach": {"source": None},
    "detach": {"source": None},
    "policy.save_model": {"path": "x"},
    "shared_state.restore": {"data": b""},
}


def arguments(call: str) -> list[str]:
    function = attrgetter(call)(Router())
    if call == "explain":
        function = Router.select_worker
    return options(function)


@pytest.mark.parametrize("policy", ["cache-aware", "session", "learned"])
@pytest.mark.parametrize("call", ROUTER_CALLS)
def test_call_of_the_router_refuses_an_argument_or_takes_it(call: str, policy: str) -> None:
    for argument, value in itertools.product(arguments(call), HOSTILE):
        router = Router(["a", "b"], policy=policy, seed=1)
        survives(attrgetter(call)(router), {**ROUTER_CALLS[call], argument: value})
        router.add_worker("a")
        serve(router.select_worker)
        router.stats()
        router.validate()


DECISION_CALLS: dict[str, dict[str, Any]] = {"on_tokens": {}, "on_complete": {}, "on_error": {}}


@pytest.mark.parametrize("call", DECISION_CALLS)
def test_call_of_a_decision_refuses_an_argument_or_takes_it(call: str) -> None:
    router = Router(["a", "b"], seed=1)
    for argument, value in itertools.product(options(getattr(router.select_worker(by_load=True), call)), HOSTILE):
        decision = router.select_worker(tokens=PROMPT)
        survives(getattr(decision, call), {argument: value})
        decision.cancel()
    assert router.loads() == {"a": 0, "b": 0}
    router.validate()


TRACKER_CALLS: dict[str, dict[str, Any]] = {
    "record_request": {"tokens": PROMPT, "worker": "w"},
    "find_best_worker": {"tokens": PROMPT},
    "overlaps": {"tokens": PROMPT},
    "store": {"worker": "w", "hashes": [1]},
    "remove": {"worker": "w", "hashes": [1]},
    "overlaps_of_hashes": {"hashes": [1]},
    "evict_worker": {"worker": "w", "max_blocks": 1},
    "block_count": {},
}
TREE_CALLS: dict[str, dict[str, Any]] = {
    "insert": {"key": PROMPT, "worker": "w"},
    "match_prefix": {"key": PROMPT},
    "overlaps": {"key": PROMPT},
    "evict": {"max_units": 1},
    "evict_oldest": {"worker": "w", "min_units": 1},
    "size": {},
}


@pytest.mark.parametrize(
    ("kind", "call", "base"),
    [(BlockTracker, call, base) for call, base in TRACKER_CALLS.items()]
    + [(RadixTree, call, base) for call, base in TREE_CALLS.items()],
)
def test_call_of_an_index_refuses_an_argument_or_takes_it(kind: Any, call: str, base: dict[str, Any]) -> None:
    for argument, value in itertools.product(options(getattr(kind, call)), HOSTILE):
        index = kind()
        survives(getattr(index, call), {**base, argument: value})
        index.validate()


MAKERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "BlockTracker": (BlockTracker, {}),
    "RadixTree": (RadixTree, {}),
    "hash_blocks": (hash_blocks, {"tokens": PROMPT}),
    "align": (align, {"ends": [16, 32]}),
    "message_boundaries": (message_boundaries, {"tokens": PROMPT}),
}


@pytest.mark.parametrize("name", MAKERS)
def test_function_refuses_an_argument_or_takes_it(name: str) -> None:
    function, base = MAKERS[name]
    for argument, value in itertools.product(options(function), HOSTILE):
        survives(function, {**base, argument: value})


class Endless:
    """Has no last item."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat(self.item)


ENDLESS: dict[str, Callable[[], Any]] = {
    "tokens": lambda: Router(["a"]).select_worker(tokens=range(10**12)),
    "blocks": lambda: Router(["a"]).select_worker(blocks=range(10**12)),
    "boundaries": lambda: Router(["a"]).select_worker(tokens=PROMPT, boundaries=range(10**12)),
    "hash_blocks": lambda: hash_blocks(range(10**12)),
    "store": lambda: BlockTracker().store("w", range(10**12)),
    "overlaps_of_hashes": lambda: BlockTracker().overlaps_of_hashes(range(10**12)),
    "key": lambda: RadixTree().insert(range(10**12), "w"),
    "message_boundaries": lambda: message_boundaries(range(10**12)),
    "workers": lambda: Router(Endless("a")),
    "sync_workers": lambda: Router[Any]().sync_workers(Endless("a")),
    "policy's workers": lambda: policies.RoundRobin().select_worker(Endless("a"), by_load=True),
    "among": lambda: Router(["a"]).select_worker(among=Endless("a"), by_load=True),
    "exclude": lambda: Router(["a"]).select_worker(exclude=Endless("a"), by_load=True),
    "index's among": lambda: BlockTracker().overlaps(PROMPT, among=Endless("a")),
    "mm": lambda: Router(["a"]).select_worker(tokens=PROMPT, mm=Endless((1, 2, 3))),
    "models": lambda: Router[str]().add_worker("a", models=Endless("m")),
    "select_batch": lambda: Router(["a"]).select_batch(Endless({})),
    "cache_boundaries": lambda: policies.PrefixHash(cache_boundaries=cast("Any", Endless(64))),
    "headers": lambda: Router(["a"]).select_worker(headers=Endless(("x-y", "z")), by_load=True),
    "expose": lambda: header_filter(Endless("x-y")),
    "shadow": lambda: Router(["a"], shadow=cast("Any", Endless("random"))),
    "markers": lambda: message_boundaries(PROMPT, markers=cast("Any", Endless("llama3"))),
    "char_ends": lambda: message_boundaries(PROMPT, char_ends=range(10**12)),
    "ends": lambda: align(range(10**12)),
    "estimate": lambda: estimate(range(10**12), 5),
    "relay's workers": lambda: Relay("tcp://127.0.0.1:*", workers=Endless("http://a")),
    "policies": lambda: sim.compare(CHATS, FLEET, cast("Any", Endless("random"))),
    "fleet": lambda: FleetSpec(cast("Any", Endless(FLEET.workers[0]))),
    "incidents": lambda: sim.simulate(CHATS, FLEET, incidents=cast("Any", Endless(Incident(1.0, 0, "crash")))),
    "parts": lambda: Workload.concat(cast("Any", Endless(CHATS))),
    "sweep": lambda: Sweep("rate", cast("Any", Endless(1))),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_does_not_end_is_read_to_a_bound(name: str) -> None:
    with pytest.raises(ValueError, match=r"must have \d+ items at most, got more"):
        ENDLESS[name]()


def endless(item: Any) -> Iterator[Any]:
    while True:
        yield item


MESSAGE = {"role": "user", "content": "x"}
ONLY_SEQUENCES: dict[str, Callable[[Any], Any]] = {
    "messages": lambda given: Router(["a"]).select_worker(messages=given(MESSAGE)),
    "content": lambda given: Router(["a"]).select_worker(messages=[{**MESSAGE, "content": given("x")}]),
    "messages of boundaries": lambda given: message_boundaries(PROMPT, messages=given(MESSAGE)),
    "tokens": lambda given: Router(["a"]).select_worker(tokens=given(1)),
    "blocks": lambda given: Router(["a"]).select_worker(blocks=given(1)),
    "tokens of a pair": lambda given: Router(["a"]).select_pair(tokens=given(1)),
    "hash_blocks": lambda given: hash_blocks(given(1)),
    "hash_text": lambda given: hash_text(given("x")),
    "record_request": lambda given: BlockTracker().record_request(given(1), "w"),
    "find_best_worker": lambda given: BlockTracker().find_best_worker(given(1)),
    "overlaps": lambda given: BlockTracker().overlaps(given(1)),
    "store": lambda given: BlockTracker().store("w", given(1)),
    "remove": lambda given: BlockTracker().remove("w", given(1)),
    "overlaps_of_hashes": lambda given: BlockTracker().overlaps_of_hashes(given(1)),
    "restore": lambda given: BlockTracker().restore(given(1)),
    "key": lambda given: RadixTree().insert(given(1), "w"),
    "match_prefix": lambda given: RadixTree().match_prefix(given(1)),
    "marked": lambda given: marked(given(1), 5),
    "payload": lambda given: Router(["a"]).event_sink.apply_events("a", given(1)),
    "secret": lambda given: Router(["a"], secret=given(SHARED)),
    "models": lambda given: Router(["a"], models=given("m")),
    "stages": lambda given: workloads.Steps(given((1.0, 1))),
    "slowdown": lambda given: FleetSpec.parse("h100", slowdown=given((1.0, 1.0))),
}


@pytest.mark.parametrize("given", [Endless, endless, itertools.repeat], ids=["iterable", "generator", "iterator"])
@pytest.mark.parametrize("name", ONLY_SEQUENCES)
def test_what_must_be_a_sequence_is_not_read_from_an_iterator(name: str, given: Any) -> None:
    with pytest.raises(TypeError, match=given("x").__class__.__name__):
        ONLY_SEQUENCES[name](given)


@pytest.mark.parametrize("option", ["max_bytes", "timeout_s"])
def test_bound_of_a_request_is_refused_or_kept(option: str) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'{"prompt": [1, 2, 3]}'

    for value in HOSTILE:
        with contextlib.suppress(RequestError):
            survives(lambda **given: asyncio.run(read_request(body(), **given)), {option: value})


def test_body_of_empty_pieces_is_read_no_longer_than_the_timeout() -> None:
    async def body() -> AsyncIterator[bytes]:
        while True:
            yield b""

    with pytest.raises(RequestError, match="took longer") as late:
        asyncio.run(read_request(body(), timeout_s=0.05))
    assert late.value.status == 408


TEXTS = st.text(st.characters(codec=None), max_size=8)
VALUES = st.recursive(
    st.one_of(
        st.sampled_from(HOSTILE),
        st.integers(),
        st.floats(),
        TEXTS,
        st.binary(max_size=8),
        st.lists(st.integers(-1, 2**33), max_size=40),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(TEXTS, inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls=st.lists(st.tuples(st.sampled_from(sorted(ROUTER_CALLS)), st.data()), min_size=1, max_size=6))
def test_random_calls_leave_a_router_that_selects(calls: list[tuple[str, Any]]) -> None:
    router: Router[Any] = Router(["a", "b"], seed=1)
    for call, data in calls:
        if call in {"attach", "detach", "policy.save_model"}:
            continue
        changed = data.draw(st.lists(st.sampled_from(arguments(call)), max_size=3))
        given = {**ROUTER_CALLS[call], **{name: data.draw(VALUES) for name in changed}}
        survives(attrgetter(call)(router), given)
        router.validate()
    router.add_worker("a")
    serve(router.select_worker)
