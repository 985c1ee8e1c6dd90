"""A body, its path and its headers in the place of arguments."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from array import array
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import cachelb
from cachelb import RequestBodies, Router
from cachelb.metrics import PrometheusCollector
from cachelb_gateway import config

if TYPE_CHECKING:
    from collections.abc import Callable

CHAT = "/v1/chat/completions"
LONG = "You are a careful assistant who answers in full sentences and cites sources. " * 40

BILLED = [{"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=secret;"}]


def encoded(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def chat(*texts: str, **fields: object) -> bytes:
    roles = ("system", "user", "assistant")
    messages = [{"role": roles[min(i, 1 + (i + 1) % 2)], "content": text} for i, text in enumerate(texts)]
    return encoded(messages=messages, **fields)


class Watching:
    """Keeps the requests that it is asked about."""

    name = "watching"
    needs: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def choose(self, request: Any, fleet: Any) -> int:
        self.seen.append(request)
        return 0


def matched(router: Router[str], first: dict[str, Any], then: dict[str, Any]) -> tuple[int, int]:
    """Tokens that the second request finds of the first, and its length."""
    router.select_worker(**first).on_complete()
    decision = router.select_worker(**then)
    decision.on_complete()
    return decision.matched_tokens, decision.prompt_tokens


def test_bodies_of_one_conversation_match_and_others_do_not() -> None:
    router = Router(["gpu0", "gpu1"], seed=1)
    first = {"body": chat(LONG, "Hello!"), "path": CHAT}
    found, length = matched(router, first, {"body": chat(LONG, "Hello!", "Hi.", "And now?"), "path": CHAT})
    assert length - 64 <= found <= length
    # The path decides the kind of a body; an Anthropic system prompt counts.
    for name, text in (("other", "x" + LONG), ("same", LONG)):
        body: dict[str, Any] = {
            "body": encoded(system=text, messages=[{"role": "user", "content": "Hello!"}]),
            "path": "/v1/messages",
        }
        decision = router.select_worker(**body)
        decision.on_complete()
        assert (decision.matched_tokens > 0) == (name == "same")
        assert decision.prompt_tokens >= len(LONG) // 4


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_a_body(kind: type) -> None:
    router = Router(["gpu0"], seed=1)
    body = kind(chat(LONG * 3, "Hello!"))
    assert router.select_worker(body=body, path=CHAT).prompt_tokens > 2000


def test_arguments_of_the_caller_win() -> None:
    router = Router(["gpu0", "gpu1"], seed=1)
    body = encoded(prompt=[[1] * 64, [2] * 128], n=2, cache_salt="s", max_tokens=5)
    call: dict[str, Any] = {"body": body, "path": "/v1/completions"}
    assert router.select_worker(**call).prompt_tokens == 2 * (64 + 128)
    assert router.select_worker(**call, prompt_tokens=1000).prompt_tokens == 1000
    assert router.select_worker(**call, tokens=[7] * 32).prompt_tokens == 32
    router.select_worker(**call).on_complete()
    assert router.select_worker(**call).matched_tokens == 128
    # The client's salt never stands for the gateway's, nor falls under the table beside it.
    assert router.select_worker(**call, cache_salt="s").matched_tokens == 0


def test_salts_of_clients_are_kept_apart_beside_that_of_the_gateway() -> None:
    router = Router(["gpu0"], seed=1)
    ask = [
        {"body": encoded(prompt=LONG, cache_salt=salt), "path": "/v1/completions", "cache_salt": "tenant"}
        for salt in ("a", "b")
    ]
    assert matched(router, ask[0], ask[1])[0] == 0
    assert matched(router, ask[0], ask[0])[0] > 0


@pytest.mark.parametrize(
    ("headers", "same"),
    [
        ({"X-Session-Id": "s"}, True),
        ([(b"x-session-id", b"s")], True),
        ((["x-Session-ID", "s"],), True),
        ({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}, True),
        ({"x-tenant-id": "s", "x-user-id": "s"}, False),
        ({"x-own": "s"}, True),
    ],
)
def test_a_session_of_the_headers_is_one(headers: Any, same: bool) -> None:
    router = Router(
        [f"gpu{i}" for i in range(16)],
        policy="session",
        seed=1,
        bodies=RequestBodies(session_headers=("X-Own",)),
    )
    workers = set()
    for i in range(8):
        decision = router.select_worker(body=chat(f"{i} " + LONG), path=CHAT, headers=headers)
        workers.add(decision.worker)
    assert (len(workers) == 1) == same


def test_tenants_do_not_share_sessions() -> None:
    policy = Watching()
    router = Router(["gpu0"], policy=policy)
    for headers in ({"x-session-id": "s"}, [(b"X-Session-Id", b" s ")]):
        for tenant in ("a", "b", None, ""):
            router.select_worker(headers=headers, tenant=tenant, by_load=True)
    sessions = [request.session for request in policy.seen]
    assert sessions[:4] == sessions[4:]
    assert len({*sessions}) == 4


@pytest.mark.parametrize(
    ("trust", "body", "headers", "priority"),
    [
        ((), 5, {}, -5),
        ((), -5, {}, 0),
        (("priority",), -5, {}, 5),
        (("priority",), -5, {"x-vllm-priority": "7"}, -7),
        ((), None, {"x-vllm-priority": "7"}, -7),
        ((), None, {"x-vllm-priority": "-7"}, 0),
        ((), None, {"X-Litellm-Priority": "7"}, -7),
        ((), None, {"x-litellm-priority": "-7"}, 0),
        (("priority",), 3, {"x-litellm-priority": "-7"}, 7),
        ((), None, {"x-dynamo-request-priority": " -7 "}, -7),
        ((), None, {"x-dynamo-request-priority": "7"}, 0),
        (("priority",), 3, {"x-dynamo-request-priority": "7"}, 7),
        (("priority",), 3, {"x-litellm-priority": "1", "x-dynamo-request-priority": "2", "x-vllm-priority": "5"}, -5),
        (("priority",), 3, {"x-litellm-priority": "1", "x-dynamo-request-priority": "2", "x-vllm-priority": "high"}, 2),
        (("priority",), 3, {"x-dynamo-request-priority": str(-(1 << 63))}, -3),
        (("priority",), 3, {"x-llm-d-inference-objective": "9", "x-gateway-inference-objective": "9"}, -3),
    ],
)
def test_clients_may_lower_their_priority(trust: Any, body: int | None, headers: Any, priority: int) -> None:
    policy = Watching()
    router = Router(["gpu0"], policy=policy, bodies=RequestBodies(trust=trust))
    router.select_worker(body=chat("a", priority=body), path=CHAT, headers=headers)
    assert [request.priority for request in policy.seen] == [priority]


@pytest.mark.parametrize(
    ("body", "path", "error", "text"),
    [
        (b"{", CHAT, cachelb.errors.BodyError, "request body: truncated at byte 1"),
        (b"[]", CHAT, cachelb.errors.BodyError, "request body: not-object at byte 2"),
        (b"{}", None, TypeError, "body= needs path="),
        ("{}", CHAT, TypeError, "body must be bytes, got str"),
    ],
)
def test_a_bad_body_is_named_if_asked_for_and_routed_by_load_if_not(
    body: Any, path: str | None, error: type[Exception], text: str
) -> None:
    strict = Router(["gpu0"], bodies=RequestBodies(strict=True, max_bytes=100))
    with pytest.raises(error, match=text):
        strict.select_worker(body=body, path=path)
    if error is cachelb.errors.BodyError:
        lenient = Router(["gpu0"], bodies=RequestBodies(max_bytes=100))
        assert lenient.select_worker(body=body, path=path).matched_tokens == 0


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_a_body_that_is_too_long_counts_by_its_bytes(kind: type) -> None:
    router = Router(["gpu0"], bodies=RequestBodies(max_bytes=100))
    decision = router.select_worker(body=kind(b"x" * 400), path=CHAT, headers={"x-session-id": "s"})
    assert (decision.prompt_tokens, router.stats().bodies.errors) == (100, {"too-large": 1})
    assert decision.explain().convention == "opencode"


def test_a_compressed_body_counts_by_its_bytes() -> None:
    router = Router(["gpu0"], bodies=RequestBodies(strict=True))
    decision = router.select_worker(body=b"\x1f\x8b" + b"0" * 398, path=CHAT, headers={"Content-Encoding": "gzip"})
    assert (decision.prompt_tokens, decision.matched_tokens) == (100, 0)


CALL: dict[str, Any] = {
    "body": encoded(prompt=LONG, cache_salt="s", max_tokens=7, model="m", priority=3),
    "path": "/v1/completions",
    "headers": [("x-session-id", "s")],
}


def test_a_retry_reads_the_body_again() -> None:
    router = Router(["gpu0", "gpu1"], seed=1)
    router.select_worker(**CALL, exclude=["gpu1"]).on_complete()
    router.select_worker(**CALL, exclude=["gpu0"]).on_complete()
    once: Any = {**CALL, "headers": iter(CALL["headers"])}
    first = router.select_worker(**once)
    again = first.retry()
    assert {first.worker, again.worker} == {"gpu0", "gpu1"}
    assert first.matched_tokens == again.matched_tokens > 500
    (batched,) = router.select_batch([once])
    again = batched.retry()
    assert batched.matched_tokens == again.matched_tokens == first.matched_tokens
    again.on_complete()
    assert router.records.recent()[-1].convention == again.explain().convention == batched.explain().convention
    assert sum(router.stats().bodies.kinds.values()) == 4
    assert router.stats().bodies.conventions == {"opencode": 3}  # `once` has been read to its end


def test_every_selection_takes_bodies() -> None:
    router = Router(["gpu0"], seed=1)
    router.select_worker(**CALL).on_complete()
    explained = router.explain(**CALL)
    assert (explained.prompt_tokens, explained.convention) == (len(LONG) // 4, "opencode")
    assert router.records.recent()[0].convention == "opencode"
    assert router.select_worker(**CALL, dry_run=True).matched_tokens > 500
    pair = router.select_pair(**CALL, by_load=True)
    assert pair.decode.prompt_tokens == len(LONG) // 4
    pair.cancel()
    waited = asyncio.run(router.select_worker_when_ready(**CALL, timeout_s=1.0))
    assert waited.matched_tokens > 500
    assert router.stats().bodies.kinds == {"text": 3}


def test_messages_end_where_boundaries_are_learned() -> None:
    router = Router(["gpu0"], policy="boundary-learning", seed=1)
    for i in range(20):
        router.select_worker(body=chat(LONG, f"{i} " + LONG), path=CHAT).on_complete()
    assert router.stats().routes > 0


def test_a_session_of_the_gateway_outranks_the_client() -> None:
    policy = Watching()
    router = Router(["gpu0"], policy=policy)
    for session in ("a", "", None):
        router.select_worker(headers={"x-session-id": "s"}, session=session, by_load=True)
    router.select_worker(session="a", by_load=True)
    first, second, third, alone = (request.session for request in policy.seen)
    assert first == alone != second == third is not None
    assert router.stats().bodies.conventions == {"gateway": 1, "opencode": 2}


def test_what_names_an_application_is_no_session() -> None:
    policy = Watching()
    router = Router(["gpu0"], policy=policy)
    for path, field in (("/v1/responses", "prompt_cache_key"), ("/v1/responses", "session_id")):
        router.select_worker(body=encoded(input="Hello!", **{field: "k"}), path=path)
    soft, hard = policy.seen
    assert soft.session is None
    assert soft.key is not None
    assert hard.session == hard.key


def test_counts_have_fixed_names() -> None:
    router = Router(["gpu0"], bodies=RequestBodies(max_bytes=10_000))
    rows: list[tuple[bytes, str, dict[str, str]]] = [
        (chat("a"), CHAT, {"x-session-id": "a\tb"}),
        (encoded(prompt="a"), "/v1/completions", {"x-session-id": "secret"}),
        (encoded(prompt=[1]), "/v1/completions", {"thread-id": "secret"}),
        (encoded(input="a", previous_response_id="secret"), "/v1/responses", {}),
        (encoded(input="a"), "/v1/embeddings", {}),
        (chat("a"), "/v1/chat/completions/render", {}),
        (b"--", "/v1/audio/transcriptions", {}),
        (b"{}", "/secret", {}),
        (b"{", CHAT, {"x-amp-thread-id": "secret"}),
        (b"[" * 200, CHAT, {}),
        (b"1" * 20_000, CHAT, {}),
        (encoded(prompt=[-1]), "/v1/completions", {}),
        (b"secret", CHAT, {"content-encoding": "zstd"}),
        (encoded(system=BILLED, messages=[{"role": "user", "content": "a"}]), "/v1/messages", {}),
    ]
    for body, path, headers in rows:
        router.select_worker(body=body, path=path, headers=headers).on_complete()
    found = router.stats().bodies
    kinds = ("chat", "text", "tokens", "continuation", "pooling", "load-only", "audio", "unknown")
    assert found.kinds == {**dict.fromkeys(kinds, 1), "chat": 2}
    assert found.errors == {"truncated": 1, "too-deep": 1, "too-large": 1, "token-id": 1}
    assert found.conventions == {"opencode": 1, "codex": 1, "amp": 1}
    assert (found.encoded, found.bad_ids, found.attribution, found.unrendered) == (1, 1, 1, 0)
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(router))
    page = generate_latest(registry).decode()
    assert 'cachelb_bodies_total{kind="chat"} 2' in page
    assert "cachelb_attribution_bodies_total 1" in page
    assert "cachelb_unrendered_bodies_total 0" in page
    assert 'cachelb_identified_total{convention="codex"} 1' in page
    assert "secret" not in page + repr(router.stats()) + repr(router.records.recent())


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"engine": "tgi"}, ValueError, "engine"),
        ({"tools_place": 1}, TypeError, "tools_place"),
        ({"match": "maybe"}, ValueError, "match"),
        ({"keeps_reasoning": "always"}, ValueError, "keeps_reasoning"),
        ({"attribution": True}, TypeError, "attribution"),
        ({"max_bytes": 0}, ValueError, "max_bytes"),
        ({"strict": 1}, TypeError, "strict"),
        ({"trust": ("deadline",)}, ValueError, "trust"),
        ({"trust": "priority"}, TypeError, "trust must be a tuple of str, got str"),
        ({"session_headers": "x-own"}, TypeError, "session_headers must be a tuple of str, got str"),
        ({"session_headers": (1,)}, TypeError, "session_headers"),
        ({"renderer_min_bytes": -1}, ValueError, "renderer_min_bytes"),
    ],
)
def test_settings_out_of_range_are_named(settings: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Router(["gpu0"], bodies=RequestBodies(**settings))
    with pytest.raises(cachelb.errors.ConfigError, match=f"bodies.{text.partition(' ')[0]}: "):
        config.load({"bodies": settings}, environ={})


def test_a_configuration_has_a_table_of_bodies() -> None:
    environ = {"CACHELB_BODIES__SESSION_HEADERS": "X-Own,x-two", "CACHELB_BODIES__STRICT": "true"}
    loaded = config.load({"bodies": {"engine": "vllm", "strict": False}}, environ=environ)
    assert loaded.bodies == RequestBodies(engine="vllm", strict=True, session_headers=("X-Own", "x-two"))
    shown = {row.path: row.value for row in config.show(loaded)}
    assert (shown["bodies.engine"], shown["bodies.max_bytes"]) == ("vllm", 16 << 20)
    with loaded.build() as router:
        router.add_worker("gpu0")
        with pytest.raises(cachelb.errors.BodyError):
            router.select_worker(body=b"", path=CHAT)
    with pytest.raises(cachelb.errors.ConfigError, match=r"bodies\.engin: unknown key; did you mean 'engine'"):
        config.load({"bodies": {"engin": "vllm"}}, environ={})
    with pytest.raises(cachelb.errors.ConfigError, match=r"bodies\.renderer: cannot be written in a configuration"):
        config.load({"bodies": {"renderer": "x"}}, environ={})
    with pytest.raises(TypeError, match="renderer must be callable, not str"):
        Router(["gpu0"], bodies=RequestBodies(renderer="x"))  # type: ignore[arg-type]
    with pytest.raises(
        cachelb.errors.ConfigError, match=r"router.bodies: unknown key; bodies stands at the top level: \[bodies\]"
    ):
        config.load({"router": {"bodies": {"engine": "vllm"}}}, environ={})
    with pytest.raises(TypeError, match="bodies must be RequestBodies, not dict"):
        Router(["gpu0"], bodies={})  # type: ignore[arg-type]


@pytest.mark.parametrize("headers", ["x-session-id", b"a", [1], [("a",)], [("a", 1)], {"a": None}, 7])
def test_headers_of_another_kind_are_refused(headers: Any) -> None:
    with pytest.raises(TypeError, match="headers must be a mapping or pairs"):
        Router(["gpu0"]).select_worker(headers=headers, by_load=True)


def cut_body() -> dict[str, Any]:
    return {"body": chat("x" * (8 << 20))[:-1], "path": CHAT}


def many_tokens() -> dict[str, Any]:
    return {"tokens": array("I", range(1 << 20))}


# The first is only read, the second only looked up.
@pytest.mark.parametrize("arguments", [cut_body, many_tokens])
def test_others_run_while_a_long_prompt_is_read_and_looked_up(arguments: Callable[[], dict[str, Any]]) -> None:
    router = Router(["gpu0"], bodies=RequestBodies(strict=True))
    request = arguments()
    counted, done = 0, threading.Event()
    seen: list[int] = []

    def select() -> None:
        # More than once: the others need a processor, too.
        while len(seen) < 500 and seen[-1:] == seen[:1]:
            with contextlib.suppress(cachelb.errors.BodyError):
                router.select_worker(**request).on_complete()
            seen.append(counted)
        done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # no thread is interrupted: others run only where the lock is released
    try:
        reader = threading.Thread(target=select)
        reader.start()
        while not done.is_set():
            counted += 1
            time.sleep(0)
        reader.join()
    finally:
        sys.setswitchinterval(interval)
    assert seen[-1] > seen[0]
