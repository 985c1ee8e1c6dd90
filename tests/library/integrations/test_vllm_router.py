"""The callable for vllm-router, called as such a router calls it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.threads import beside

from cachelb.integrations.vllm_router import VllmRouterSelect
from cachelb.testing import ManualClock

PROMPT = "The quick brown fox jumps over the lazy dog. " * 40


class Host:
    """Counts open requests by worker as the router does: up at the selection, down at the end of the stream."""

    def __init__(self, count: int = 3, **options: Any) -> None:
        self.clock = ManualClock(1_000.0)
        self.select = VllmRouterSelect(clock=self.clock, **{"seed": 1} | options)
        self.loads = Counter({f"http://gpu{place}:8000": 0 for place in range(count)})

    def request(self, text: str | None = PROMPT, headers: dict[str, str] | None = None, *, model: str = "m") -> str:
        workers = [
            {"url": url, "load": load, "model_id": model, "worker_type": "regular"} for url, load in self.loads.items()
        ]
        place = self.select(workers, text, headers)
        assert place is not None
        url = [*self.loads][place]
        self.loads[url] += 1
        return url


def test_prompts_stay_where_they_are_cached() -> None:
    host = Host()
    homes = []
    for number in [*range(6), *range(6)]:
        homes.append(host.request(f"{number}{PROMPT}"))
        host.loads[homes[-1]] -= 1
    assert homes[:6] == homes[6:]
    assert Counter(homes).most_common(1)[0][1] < 12


def test_open_requests_count_until_the_router_stops_counting_them() -> None:
    host = Host(policy="least-loaded")
    picked = [host.request() for _ in range(6)]
    assert sorted(Counter(picked).values()) == [2, 2, 2]
    host.loads[picked[0]] -= 2
    assert [host.request() for _ in range(2)] == [picked[0]] * 2
    assert host.select.router.loads() == dict(host.loads)
    host.loads.update(dict.fromkeys(host.loads, -10))
    host.request()
    assert sum(host.select.router.loads().values()) == 1


def test_session_comes_from_the_headers() -> None:
    host = Host(policy="session")
    homes = []
    for turn in range(24):
        homes.append(host.request(f"{turn}", {"x-session-id": "talk" if turn < 12 else f"{turn}"}))
        host.loads[homes[-1]] -= 1
    assert (len({*homes[:12]}), len({*homes})) == (1, 3)


def test_models_do_not_share_prefixes() -> None:
    host = Host(models={"m": 16, "n": 16})
    host.request(model="m")
    host.request(model="n")
    host.request(model="m")
    assert [record > 0 for record in _matched(host)] == [False, False, True]


def _matched(host: Host) -> list[int]:
    host.loads.update(dict.fromkeys(host.loads, -10))
    host.request("")
    return [record.matched_tokens for record in host.select.router.records.recent(3)]


def test_request_without_text_is_picked_by_load() -> None:
    host = Host()
    assert len({host.request(None) for _ in range(3)}) == 3


@pytest.mark.parametrize(
    ("workers", "reason"),
    [([], "no-worker"), ([{"load": 0}], "error"), ([{"url": "http://gpu0:8000", "load": "many"}], "error")],
)
def test_router_picks_where_this_cannot(
    workers: list[dict[str, Any]], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    select = VllmRouterSelect()
    for _ in range(2):
        assert select(workers, "a secret", {}) is None
    assert select.fallbacks == {reason: 2}
    assert len(caplog.records) == (reason == "error")
    assert "secret" not in caplog.text


def test_worker_that_is_gone_is_forgotten_with_its_bookings() -> None:
    host = Host(forget_after_s=100)
    for _ in range(9):
        host.request("")
    host.loads = Counter({"http://gpu0:8000": 3})
    for _ in range(5):
        host.clock.advance(30)
        host.request("")
    host.loads["http://new:8000"] = 0
    host.request("")
    assert set(host.select.router.keys()) == set(host.loads) == set(host.select._open)
    assert set(host.select.router.loads()) == set(host.loads)


def test_threads_leave_no_booking_behind() -> None:
    host = Host()
    workers = [{"url": url, "load": 0} for url in host.loads]

    def work(_: int) -> None:
        for n in range(100):
            host.select(workers, f"{n}{PROMPT}", {})

    with beside(work, range(4)):
        pass
    host.request("")
    assert sum(host.select.router.loads().values()) == 1
    assert host.select.fallbacks.total() == 0
    assert host.select.router.stats().endings["completed"] == 400
