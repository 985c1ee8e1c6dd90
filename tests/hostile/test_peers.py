"""Routers that share: askers without end, too many routers, and frames too long to be read."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from tests.hostile.strangers import resident_mb
from tests.library.router.router_parts import replaced
from tests.library.state.redis_server import RedisServer
from tests.library.state.transports import OTHER, SECRET, STORY, MeshFleet, RedisFleet, load, routers
from tests.waiting import wait_until

from cachelb import Router
from cachelb.state.exchange import _SEND_ALL_S
from cachelb.state.redis.carrier import RedisCarrier
from cachelb.state.redis.link import _MOST_BYTES
from cachelb.state.zmq_carrier import ZmqCarrier


def test_all_who_ask_are_told_what_was_put_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: Counter[Router[Any]] = Counter()

    def counting(router: Router[Any], state: Any) -> dict[str, Any]:
        def counted() -> Any:
            told[router] += 1
            return state.publish_all()

        return {"publish_all": counted}

    monkeypatch.setattr(Router, "_fleet", replaced("_fleet", counting))
    receive = ZmqCarrier.receive

    def asking(carrier: ZmqCarrier, timeout_s: float) -> Any:
        for address in list(carrier._peers):
            carrier.ask(0, address)
        return receive(carrier, timeout_s)

    with routers(MeshFleet(), 3) as found:
        told.clear()
        begun = time.monotonic()
        monkeypatch.setattr(ZmqCarrier, "receive", asking)
        wait_until(lambda: len(told) == 3 and min(told.values()) >= 5)
        most = max(told.values())
        assert most <= (time.monotonic() - begun) / _SEND_ALL_S + 2, "one per interval, for any number of questions"
        assert all(state.stats().failures == 0 for _, state in found)


@pytest.mark.parametrize(
    ("frame_bytes", "secret"),
    [(_MOST_BYTES // 8, SECRET), (_MOST_BYTES // 8, [SECRET, OTHER]), (50_000_000, SECRET)],
    ids=["together too long", "together too long, two secrets", "each too long"],
)
def test_frames_too_long_to_be_read_stop_sharing_for_a_moment_only(
    redis_fleet: RedisFleet, server: RedisServer, monkeypatch: pytest.MonkeyPatch, frame_bytes: int, secret: Any
) -> None:
    # A process that stands still for seconds is no broken connection, after which it would connect once more.
    monkeypatch.setattr("cachelb.state.redis.link._TIMEOUT_S", 60.0)
    monkeypatch.setattr("cachelb.state.redis.carrier._ECHO_S", 60.0)
    redis_fleet.server = server
    opened: Counter[RedisCarrier] = Counter()
    original = RedisCarrier.open

    def counted(carrier: RedisCarrier) -> None:
        original(carrier)
        opened[carrier] += 1

    with routers(redis_fleet, 2, make={"secret": secret}) as ((router, mine), (other, theirs)):
        monkeypatch.setattr(RedisCarrier, "open", counted)
        before = resident_mb()
        with server.client() as client:
            pipe = client.pipeline(transaction=True)
            for _ in range(16):
                pipe.xadd(redis_fleet.stream, {"f": bytes(frame_bytes)})
            pipe.execute()
        for state in (mine, theirs):
            wait_until(lambda state=state: state.stats().failures > 0, 60)  # type: ignore[misc]
            wait_until(lambda state=state: state.stats().failing == "", 60)  # type: ignore[misc]
        decision = router.select_worker(tokens=STORY)
        wait_until(lambda: load(other) == 1, 60)
        decision.on_complete()
        wait_until(lambda: load(other) == 0)
        # That is 0.3 to 1.4 s where nothing else runs. The server takes longer to answer at all where others do.
        assert max(opened.values()) <= 3, "connections after the one that failed"
        assert resident_mb() < before + 4 * (_MOST_BYTES >> 20)
        with server.client() as client:
            assert int(client.memory_usage(redis_fleet.stream) or 0) < _MOST_BYTES, "the server has it no more"
