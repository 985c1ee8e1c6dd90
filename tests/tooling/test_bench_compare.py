"""`python -m benches.compare`: the tasks of `python -m benches.structures` with other systems, and the page of it."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from benches.compare import contenders, following, tasks
from benches.compare.contenders import feeds
from benches.compare.page import page
from benches.structures import Row
from benches.structures.measures.events import EventRouter
from benches.structures.running import TASKS
from benches.structures.streams import Stream


def test_missing_packages_are_named_and_leave_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (contenders, tasks):
        monkeypatch.setattr(module, "installed", lambda _module: False)
    report = tasks.measure(["hashing", "memory"], calls=8, progress=lambda _task: None)
    memory = ["cachelb", "cachelb, numpy", "cachelb, text", "nested maps"]
    assert [row.contender for row in report.rows if row.task == "memory"] == memory
    assert {row.contender for row in report.rows if row.task != "memory"} == set(memory[:2])
    assert report.missing == ["ai-dynamo-runtime", "ray[serve,llm]", "production-stack's vllm_router", "litellm"]


def test_every_task_of_the_command_can_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[str] = []
    monkeypatch.setattr(tasks, "run", lambda tasks, *_, **__: known.extend(tasks))
    tasks.measure([], calls=8, progress=lambda _task: None)
    assert tuple(known) == TASKS


class Forgetful(EventRouter):
    """Ignores removals."""

    name = "forgetful"

    def send(self, number: int, worker: int, encoded: bytes) -> None:
        super().send(number, worker, encoded.replace(b"BlockRemoved", b"BlockIgnored"))


def test_feeds_are_compared_with_the_model_over_sockets_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "FEEDS", (EventRouter, feeds.EventRouterOverZmq, Forgetful))
    monkeypatch.setattr(following, "ROUNDS", 1)
    monkeypatch.setattr(following, "_SHARES", (0.5,))
    monkeypatch.setattr(following, "Stream", lambda messages: Stream(messages, held=1))
    rows = {(row.task, row.contender): row for row in following.measure(8)}
    overload = [rows["events/overload", contender] for contender in ("cachelb", "cachelb over ZeroMQ", "forgetful")]
    assert [row.wrong for row in overload[:2]] == [0, 0]
    assert (overload[2].wrong or 0) > 0
    assert all(row.answers == 16 and row.p50 > 0 for row in overload)
    kept = rows["events/keep-up", "cachelb"]
    assert kept.wrong == 0
    assert kept.p50 <= overload[0].p50
    assert rows["events/lookup", "cachelb"].unit == "us"


def test_the_page_lists_losses_and_wrong_answers() -> None:
    rows = [
        Row("hash/512", "cachelb", 2.0, 4.0, "us", p10=1.0),
        Row("hash/512", "Other", 1.0, 3.0, "us", p10=0.5),
        Row("events/overload", "cachelb", 2e6, None, "blocks/s", 0, 64),
        Row("events/overload", "Other", 1e6, None, "blocks/s", 3, 64),
        Row("answers", "Other", 1.0, None, "wrong", 1, 8, note="a hole: 5 instead of 2"),
    ]
    text = page({"rows": [asdict(row) for row in rows], "machine": "M", "versions": {}, "missing": []}, None)
    losses, wrong = text.partition("## Wrong answers")[::2]
    assert "- Other: unexplained\n  - token ids to block hashes, 512 tokens: 1.0 against 2.0 us\n" in losses
    assert "following engines' events" not in losses
    assert "- Other: 3 of 64 in events/overload" in wrong
    assert "ask for a, b, c, d, e): 5 instead of 2" in wrong
    assert "| Other | 1,000,000 | 2.0 | 3 of 64 |" in wrong
