"""Token ids in the place of a body's text: from a function, a tokenizer, and an engine that renders."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from typing import Any, cast

import pytest
from tests.answering import Handler, serving
from tests.threads import beside

from cachelb import RequestBodies, Router
from cachelb.renderers import EngineRenderer, TokenizerRenderer
from cachelb_fakes.events import encode_batch, stored

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LONG = "You are a careful assistant who answers in full sentences and cites sources. " * 8
IDS = list(range(1000, 1100))
EVENT = encode_batch([stored([1, 2, 3, 4, 5, 6], IDS[:96], block_size=16)], ts=1.0)


def encoded(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def chat(text: str = LONG, **fields: object) -> bytes:
    return encoded(messages=[{"role": "user", "content": text}], **fields)


class Recording:
    """Renders every body as the same ids, or fails."""

    def __init__(self, result: Any = IDS) -> None:
        self.result = result
        self.calls: list[tuple[Any, Any]] = []

    def __call__(self, body: bytes, path: str) -> Any:
        self.calls.append((body, path))
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


def routed(renderer: Callable[[bytes, str], Any], **options: Any) -> Router[str]:
    return Router(["gpu0"], seed=1, bodies=RequestBodies(renderer=renderer, **options))


@pytest.mark.parametrize("ids", [IDS, tuple(IDS), array("I", IDS), array("q", IDS), range(1000, 1100)])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_rendered_ids_are_as_if_given(ids: Any, kind: type) -> None:
    renderer = Recording(ids)
    router = routed(renderer)
    router.select_worker(tokens=IDS, cache_salt="s").on_complete()
    call: dict[str, Any] = {"body": kind(chat(cache_salt="s", n=3)), "path": CHAT}
    found = router.select_worker(**call)
    assert (found.matched_tokens, found.prompt_tokens) == (96, 3 * len(IDS))
    assert renderer.calls == [(bytes(call["body"]), CHAT)]
    assert type(renderer.calls[0][0]) is bytes
    # In the namespace of the body, and of none else.
    assert router.select_worker(body=chat(), path=CHAT).matched_tokens == 0
    other = router.select_worker(tokens=IDS, cache_salt="s", lora="a")
    other.on_complete()
    assert other.matched_tokens == 0
    assert router.select_worker(body=chat(), path=CHAT, lora="a", cache_salt="s").matched_tokens == 96
    assert router.select_worker(**call, prompt_tokens=500).prompt_tokens == 500


def test_events_meet_rendered_bodies() -> None:
    router = routed(Recording())
    router.event_sink.apply_events("gpu0", EVENT)
    assert router.select_worker(body=chat(), path=CHAT).matched_tokens == 96


def test_every_attempt_renders_and_only_the_first_counts() -> None:
    renderer = Recording(ValueError())
    router: Router[str] = Router(["gpu0", "gpu1"], seed=1, bodies=RequestBodies(renderer=renderer))
    call: dict[str, Any] = {"body": chat(), "path": CHAT}
    first = router.select_worker(**call)
    first.retry().on_complete()
    router.select_worker(**call, dry_run=True)
    router.explain(**call)
    assert len(renderer.calls) == 4
    assert router.stats().bodies.unrendered == 1
    for decision in router.select_batch([{"body": chat(), "path": CHAT}] * 2):
        decision.on_complete()
    assert len(renderer.calls) == 6
    assert router.stats().bodies.unrendered == 3


@pytest.mark.parametrize(
    ("body", "path", "more"),
    [
        (encoded(prompt=[1, 2, 3]), COMPLETIONS, {}),
        (encoded(prompt=[LONG, LONG]), COMPLETIONS, {}),
        (encoded(input="a", previous_response_id="r"), "/v1/responses", {}),
        (encoded(input=LONG), "/v1/embeddings", {}),
        (chat(), "/v1/chat/completions/render", {}),
        (chat(), "/unknown", {}),
        (b"{", CHAT, {}),
        (chat(), CHAT, {"headers": {"content-encoding": "gzip"}}),
        (chat("short"), CHAT, {}),
        (chat(), CHAT, {"tokens": IDS}),
        (chat(), CHAT, {"text": LONG}),
        (chat(), CHAT, {"messages": [{"role": "user", "content": LONG}]}),
        (chat(cast("str", [{"type": "image_url", "image_url": {"url": LONG}}])), CHAT, {}),
        (encoded(prompt=LONG, image_data=["a"]), "/generate", {}),
        (None, None, {"messages": [{"role": "user", "content": LONG}]}),
    ],
)
def test_only_single_texts_are_rendered(body: Any, path: Any, more: dict[str, Any]) -> None:
    renderer = Recording()
    router = routed(renderer, renderer_min_bytes=len(LONG) // 2)
    router.select_worker(body=body, path=path, **more).on_complete()
    assert renderer.calls == []
    assert router.stats().bodies.unrendered == 0


@pytest.mark.parametrize(
    "result", [RuntimeError("secret"), None, "ids", 7, [1, "2"], [-1], [1 << 32], [1.5], array("d", [1.0]), object()]
)
def test_the_text_is_matched_if_rendering_fails(result: Any, caplog: pytest.LogCaptureFixture) -> None:
    renderer = Recording(result)
    router = routed(renderer)
    router.select_worker(body=chat(), path=CHAT).on_complete()
    again = router.select_worker(body=chat(), path=CHAT)
    assert 0 < again.matched_tokens < again.prompt_tokens
    assert len(renderer.calls) == 2
    assert router.stats().bodies.unrendered == 2
    assert "secret" not in caplog.text


def test_what_is_no_failure_goes_to_the_caller() -> None:
    router = routed(Recording(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        router.select_worker(body=chat(), path=CHAT)
    assert router.stats().open_requests == 0


def test_a_renderer_may_use_the_router() -> None:
    router: Router[str]

    def render(body: bytes, path: str) -> list[int]:
        router.select_worker(body=chat("inner"), path=COMPLETIONS).on_complete()
        router.select_worker(text=LONG).on_complete()
        router.remove_worker("gpu1")
        return IDS

    router = Router(["gpu0", "gpu1"], seed=1, bodies=RequestBodies(renderer=render))
    assert router.select_worker(body=chat(), path=CHAT).prompt_tokens == len(IDS)
    assert router.keys() == ["gpu0"]
    router.add_worker("gpu1")
    picked = [decision.worker for decision in router.select_batch([{"body": chat(), "path": CHAT}] * 4)]
    assert picked == ["gpu0"] * 4


def test_a_router_in_a_cycle_with_its_renderer_is_collected() -> None:
    renderer = Recording()
    router = routed(renderer)
    renderer.result = router
    known = weakref.ref(renderer)
    del router, renderer
    gc.collect()
    assert known() is None


def test_text_in_a_fleet_with_events_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    for renderer, warnings in ((Recording(), 0), (None, 1)):
        router: Router[str] = Router(["gpu0"], seed=1, bodies=RequestBodies(renderer=renderer))
        with caplog.at_level(logging.WARNING, "cachelb.bodies"):
            router.select_worker(body=chat(), path=CHAT).on_complete()
            router.event_sink.apply_events("gpu0", EVENT)
            router.select_worker(body=encoded(prompt=[1, 2]), path=COMPLETIONS).on_complete()
            router.select_worker(body=chat(), path=CHAT, tokens=IDS).on_complete()
            assert caplog.records == []
            for _ in range(2):
                router.select_worker(body=chat(), path=CHAT).on_complete()
        assert len(caplog.records) == warnings
        assert LONG not in caplog.text


class Letters:
    """A tokenizer of bytes whose template has roles and tools."""

    def encode(self, text: str) -> list[int]:
        return [0, *text.encode()]

    def apply_chat_template(
        self, messages: Any, tools: Any = None, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        return list(json.dumps([messages, tools, add_generation_prompt, variables]).encode())


@pytest.mark.parametrize(
    ("body", "path", "ids"),
    [
        (encoded(prompt="Hi!"), "/v1/completions?a=b", [0, *b"Hi!"]),
        (encoded(prompt=["Hi!"], reasoning_effort=None), "/v1/completions/", [0, *b"Hi!"]),
        (encoded(text="Hi!"), "/generate", [0, *b"Hi!"]),
        (encoded(messages=[{}]), CHAT, list(b"[[{}], null, true, {}]")),
        (
            encoded(messages=[{}], tools=[1], add_generation_prompt=False, chat_template_kwargs={"a": 1}),
            CHAT,
            list(b'[[{}], [1], false, {"a": 1}]'),
        ),
        *((encoded(messages=[{}], prompt="a", **{name: True}), CHAT, None) for name in ("documents", "chat_template")),
        (encoded(prompt="a", add_special_tokens=False), COMPLETIONS, None),
        (encoded(prompt=["a", "b"]), COMPLETIONS, None),
        (encoded(messages=[{}]), "/v1/messages", None),
        (encoded(input="a"), "/v1/responses", None),
    ],
)
def test_a_tokenizer_renders_chats_and_texts(body: bytes, path: str, ids: list[int] | None) -> None:
    renderer = TokenizerRenderer(Letters())
    if ids is not None:
        assert renderer(body, path) == ids
        return
    with pytest.raises(ValueError, match="only the engine renders"):
        renderer(body, path)


class Engine:
    """A render server, with the requests that it received."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes, dict[str, str]]] = []
        self.connections = 0
        self.status = 200
        self.answer: Any = {"request_id": "a", "token_ids": IDS, "features": None}
        self.piece_s = 0.0  # between two bytes
        self.closes = False
        self.is_open = threading.Event()
        self.is_open.set()


@contextlib.contextmanager
def rendering() -> Iterator[tuple[Engine, str]]:
    engine = Engine()

    class Rendering(Handler):
        def setup(self) -> None:
            engine.connections += 1
            super().setup()

        def answer(self) -> None:
            engine.seen.append(
                (self.path, self.content(), {name.lower(): value for name, value in self.headers.items()})
            )
            engine.is_open.wait(10)
            answer = engine.answer if isinstance(engine.answer, bytes) else json.dumps(engine.answer).encode()
            with contextlib.suppress(OSError):
                self.send_response(engine.status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                for i in range(len(answer) if engine.piece_s else 0):
                    self.wfile.write(answer[i : i + 1])
                    time.sleep(engine.piece_s)
                if not engine.piece_s:
                    self.wfile.write(answer)
            self.close_connection = engine.closes

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Rendering)) as (_, port):
        try:
            yield engine, f"http://127.0.0.1:{port}"
        finally:
            engine.is_open.set()


def test_an_engine_renders_over_one_connection() -> None:
    with rendering() as (engine, url), EngineRenderer(url + "/", headers={"Authorization": "Bearer k"}) as renderer:
        router = routed(renderer)
        router.select_worker(tokens=IDS).on_complete()
        for path in (CHAT, "/v1/messages", "/v1/responses?beta=true"):
            body = chat() if path != "/v1/responses?beta=true" else encoded(input=LONG)
            headers = {"cookie": "secret", "authorization": "Bearer client"}
            assert router.select_worker(body=body, path=path, headers=headers).matched_tokens == 96
            seen = engine.seen.pop()
            assert seen[:2] == (path.partition("?")[0] + "/render", body)
            assert seen[2]["authorization"] == "Bearer k"
            assert "secret" not in str(seen[2])
        engine.answer = [engine.answer]
        assert router.select_worker(body=encoded(prompt=LONG), path=COMPLETIONS).matched_tokens == 96
        assert (engine.connections, router.stats().bodies.unrendered) == (1, 0)


@pytest.mark.parametrize("kept_by", ["engine", "nobody"])
def test_a_connection_that_the_engine_closed_is_replaced(kept_by: str) -> None:
    with rendering() as (engine, url), EngineRenderer(url) as renderer:
        engine.closes = kept_by == "nobody"  # without a word of it in the answer
        for _ in range(3):
            assert renderer(chat(), CHAT).tolist() == IDS
        assert engine.connections == (3 if engine.closes else 1)


@pytest.mark.parametrize(
    ("status", "answer", "path"),
    [
        (400, {"token_ids": IDS}, CHAT),
        (200, {"token_ids": []}, CHAT),
        (200, {"token_ids": ["1"]}, CHAT),
        (200, {"token_ids": [-1]}, CHAT),
        (200, {"token_ids": IDS, "features": {"mm_hashes": {"image": ["a"]}}}, CHAT),
        (200, [{"token_ids": IDS}] * 2, COMPLETIONS),
        (200, {"count": 5}, CHAT),
        (200, b"<html>", CHAT),
        (200, b"[" * 5000, CHAT),
        (200, {"token_ids": IDS * 20}, CHAT),
        (200, {"token_ids": IDS}, "/a b/chat/completions"),
        (200, {"token_ids": IDS}, "/a\r\nX: y/chat/completions"),
    ],
)
def test_answers_without_ids_are_counted_and_do_not_pause(status: int, answer: Any, path: str) -> None:
    with rendering() as (engine, url), EngineRenderer(url, max_bytes=10_000) as renderer:
        router = routed(renderer)
        engine.status, engine.answer = status, answer
        body = encoded(prompt=LONG) if path == COMPLETIONS else chat()
        for _ in range(4):
            router.select_worker(body=body, path=path).on_complete()
        assert router.stats().bodies.unrendered == 4
        engine.status, engine.answer = 200, {"token_ids": IDS}
        assert router.select_worker(body=chat(), path=CHAT).prompt_tokens == len(IDS)


@pytest.mark.parametrize("piece_s", [0.0, 0.05])
def test_the_deadline_covers_the_whole_call(piece_s: float) -> None:
    with rendering() as (engine, url), EngineRenderer(url, timeout_s=0.2) as renderer:
        router = routed(renderer)
        engine.piece_s = piece_s  # each piece comes in time, and all of them take 20 seconds
        if not piece_s:
            engine.is_open.clear()
        begun = time.monotonic()
        router.select_worker(body=chat(), path=CHAT).on_complete()
        assert 0.2 <= time.monotonic() - begun < 5
        assert router.stats().bodies.unrendered == 1


def test_a_dead_engine_is_left_alone_for_a_while() -> None:
    with rendering() as (engine, url), EngineRenderer(url, timeout_s=0.1, pause_s=1000.0) as renderer:
        engine.is_open.clear()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                renderer(chat(), CHAT)
        engine.is_open.set()
        asked = engine.connections
        with pytest.raises(ConnectionError, match="failed lately"):
            renderer(chat(), CHAT)
        assert engine.connections == asked
        renderer._resumes_s = time.monotonic()
        assert renderer(chat(), CHAT).tolist() == IDS
        assert engine.connections == asked + 1


def test_threads_have_connections_of_their_own_and_forks_too() -> None:
    with rendering() as (engine, url), EngineRenderer(url, timeout_s=10.0) as renderer:

        def ask(_: int) -> None:
            for _ in range(20):
                assert renderer(chat(), CHAT).tolist() == IDS

        with beside(ask, range(4)):
            pass
        assert 1 <= engine.connections <= 4
        renderer._idle[:] = [(os.getpid() + 1, sock) for _, sock in renderer._idle]  # as a child of a fork has them
        before = engine.connections
        ask(0)
        assert engine.connections == before + 1


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"url": "gpu0:8000"}, ValueError, "url must be http://host:port"),
        ({"url": "http://user:secret@gpu0"}, ValueError, "url must be"),
        ({"url": "http://gpu0:secret"}, ValueError, "url must be"),
        ({"url": "http://gpu0/v1"}, ValueError, "url must be"),
        ({"url": b"http://gpu0"}, TypeError, "url must be text"),
        ({"timeout_s": 0}, ValueError, "timeout_s"),
        ({"max_bytes": 0}, ValueError, "max_bytes"),
        ({"pause_s": -1}, ValueError, "pause_s"),
        ({"headers": {"a": "b\r\nc: secret"}}, ValueError, "header 'a' has a control character"),
        ({"headers": {"a": 1}}, TypeError, "header 'a'"),
        ({"headers": ["a"]}, TypeError, "headers must be a mapping"),
    ],
)
def test_arguments_are_checked(arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as raised:
        EngineRenderer(**{"url": "http://gpu0:8000", **arguments})
    assert "secret" not in str(raised.value)
