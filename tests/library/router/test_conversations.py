"""Requests go where their conversation lives: continued responses, sub-agents, ended sessions."""

from __future__ import annotations

import json
from collections import Counter
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from cachelb import Decision, Router
from cachelb_fakes import FakeFleet

RESPONSES = "/v1/responses"
TEXT = "The first of many turns about a journey of a week. " * 10


def response(text: str, previous: str | None = None, **fields: object) -> bytes:
    more = {} if previous is None else {"previous_response_id": previous}
    return json.dumps({"model": "base", "input": text, "max_output_tokens": 8, **more, **fields}).encode()


def served(decision: Decision[str], body: bytes) -> tuple[int, str]:
    """Serve a request as a gateway does; return the status and the id of the response."""
    where = urlsplit(decision.worker)
    connection = HTTPConnection(where.hostname or "", where.port, timeout=60)
    try:
        connection.request("POST", RESPONSES, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            decision.on_error(answer.status)
            return answer.status, ""
        # Parts that break the id: it is put together again.
        whole = b"".join(decision.track_sync(iter(lambda: answer.read(5), b"")))
    finally:
        connection.close()
    return 200, whole.partition(b'"id":')[2].lstrip()[1:].partition(b'"')[0].decode()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("policy", ["adaptive", "round-robin"])
def test_a_response_is_continued_by_the_worker_that_made_it(policy: str, *, stream: bool) -> None:
    with FakeFleet(4, models=["base"]) as fleet:
        router = Router(fleet.urls, policy=policy, seed=3)
        chains: list[tuple[str, str]] = []
        for turn in range(8):
            body = response(f"{turn} {TEXT}", stream=stream)
            decision = router.select_worker(body=body, path=RESPONSES)
            status, name = served(decision, body)
            assert status == 200
            chains.append((decision.worker, name))
        assert len({worker for worker, _ in chains}) > 1
        for _ in range(2):
            for at, (worker, name) in enumerate(chains):
                body = response("And then?", name, stream=stream)
                decision = router.select_worker(body=body, path=RESPONSES)
                assert (decision.worker, decision.reason) == (worker, "continuation")
                status, following = served(decision, body)
                assert status == 200
                chains[at] = (worker, following)
        router.validate()
        assert router.stats().bodies.kinds == {"chat": 8, "continuation": 16}

        # Responses made elsewhere are unknown, and the policy decides where a worker is gone.
        worker, name = chains[0]
        router.set_ready(worker, ready=False)
        for previous in (name, "resp_elsewhere"):
            decision = router.select_worker(body=response("And then?", previous), path=RESPONSES)
            assert decision.reason != "continuation"
            assert decision.worker != worker
            decision.on_error(404)


def test_what_is_not_known_of_a_response_its_session_says() -> None:
    router = Router([f"gpu{i}" for i in range(8)], policy="random", seed=1)
    headers = {"x-session-id": "one"}
    first = router.select_worker(body=response(TEXT), path=RESPONSES, headers=headers)
    first.on_complete()
    for body in (
        response("More.", "resp_elsewhere"),
        response("More.", prompt={"id": "stored"}),
    ):
        decision = router.select_worker(body=body, path=RESPONSES, headers=headers)
        assert (decision.worker, decision.reason) == (first.worker, "continuation")
        decision.on_complete()
    # A conversation that the engine stores is a session too.
    first = router.select_worker(body=response("Hello!", conversation="c1"), path=RESPONSES)
    first.on_complete()
    decision = router.select_worker(body=response("More.", conversation={"id": "c1"}), path=RESPONSES)
    assert (decision.worker, decision.reason) == (first.worker, "continuation")
    # So is one that the gateway names.
    first = router.select_worker(body=response("Hello!"), path=RESPONSES, session="own")
    decision = router.select_worker(body=response("More.", "resp_elsewhere"), path=RESPONSES, session="own")
    assert (decision.worker, decision.reason) == (first.worker, "continuation")
    # Another model's worker remembers nothing of it, nor does that of another tenant.
    for other in ({"tenant": "other"}, {"headers": {"x-session-id": "two"}}):
        given: dict[str, Any] = {"headers": headers, **other}
        decision = router.select_worker(body=response("More.", "resp_elsewhere"), path=RESPONSES, **given)
        assert decision.reason == "random"


@pytest.mark.parametrize("name", ["", "x" * 257], ids=["empty", "long"])
def test_an_id_that_names_nothing_is_counted(name: str) -> None:
    router = Router(["gpu0", "gpu1"], seed=1)
    decision = router.select_worker(body=response("Hello!"), path=RESPONSES)
    decision.on_response(name)
    assert router.stats().unread_usage == 1
    # A chat stores no response.
    chat = router.select_worker(body=b'{"messages": []}', path="/v1/chat/completions")
    chat.on_response("resp_1")
    decision = router.select_worker(body=response("More.", "resp_1"), path=RESPONSES)
    assert decision.reason != "continuation"


# --- sub-agents ---


def agent(name: str | None, system: str, user: str) -> dict[str, Any]:
    """A request of an agent, or of a sub-agent called `name`."""
    headers = {"x-claude-code-session-id": "root"} | ({} if name is None else {"x-claude-code-agent-id": name})
    body = {"model": "m", "max_tokens": 200, "system": system, "messages": [{"role": "user", "content": user}]}
    return {"body": json.dumps(body).encode(), "path": "/v1/messages", "headers": headers}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("parent_waits", [False, True], ids=["in-flight", "idle"])
def test_sub_agents_that_begin_at_once_share_some_workers(seed: int, *, parent_waits: bool) -> None:
    """Twenty of 10,000 shared tokens and 1,000 of their own, on eight equal workers."""
    router = Router([f"gpu{i}" for i in range(8)], seed=seed)
    shared = "".join(f"Rule {i:05} of the sub-agents. " for i in range(40_000 // 31))
    main = "".join(f"Rule {i:05} of the agent itself. " for i in range(40_000 // 33))
    parent = router.select_worker(**agent(None, main, "Plan all of it."))
    parent.on_first_token()
    if parent_waits:
        parent.on_complete(output_tokens=100)
    children = [router.select_worker(**agent(f"child{i}", shared, f"Task {i:05}. " * 333)) for i in range(20)]
    assert min(child.prompt_tokens for child in children) > 10_000
    counts = Counter(child.worker for child in children)
    assert max(counts.values()) <= 4, counts
    assert sum(child.matched_tokens == 0 for child in children) in (5, 6)
    again = router.select_worker(**agent(None, main, "Plan all of it."))
    assert again.worker == parent.worker


def test_a_conversation_that_ended_is_forgotten() -> None:
    router = Router([f"gpu{i}" for i in range(4)], policy="session", seed=1)

    def ask(*, last: bool) -> Decision[str]:
        headers = {"x-dynamo-session-id": "chat"} | ({"x-dynamo-session-final": "true"} if last else {})
        return router.select_worker(body=b'{"prompt": "Hello!"}', path="/v1/completions", headers=headers)

    ask(last=False).on_complete()
    given_up = ask(last=True)
    assert given_up.reason == "session"
    given_up.cancel()
    assert ask(last=True).reason == "session"
    final = ask(last=True)
    final.on_complete()
    assert ask(last=False).reason == "least-loaded"


def test_the_worker_that_decodes_continues_its_responses() -> None:
    router: Router[str] = Router(seed=1)
    for name in ("p0", "p1"):
        router.add_worker(name, role="prefill")
    for name in ("d0", "d1", "d2", "d3"):
        router.add_worker(name, role="decode")
    made = []
    for turn in range(6):
        with router.select_pair(body=response(f"{turn} {TEXT * 20}"), path=RESPONSES) as pair:
            pair.on_response(f"resp_{turn}")
            made.append(pair.decode.worker)
    assert len(set(made)) > 1
    for turn, worker in enumerate(made):
        with router.select_pair(body=response("And then?", f"resp_{turn}"), path=RESPONSES) as pair:
            assert (pair.decode.worker, pair.decode.reason) == (worker, "continuation")
