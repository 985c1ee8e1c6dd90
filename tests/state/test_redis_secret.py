"""Who can reach the server and does not know the secret reads nothing, and is heard by nobody."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.state.transports import STORY, RedisFleet, load, matched, routers
from tests.waiting import wait_until


def everything(fleet: RedisFleet) -> list[tuple[str, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """All entries of all streams of a fleet."""
    with fleet.server.client() as client:
        keys = [bytes(key).decode() for key in client.scan_iter(f"{fleet.stream}*")]
        found: Any = [(key, client.xrange(key)) for key in sorted(keys)]
        return list(found)


def test_nothing_of_a_worker_or_a_hash_can_be_read_on_the_server(redis_fleet: RedisFleet) -> None:
    def shown() -> bytes:
        return b"".join(b"".join(fields.values()) for _, found in everything(redis_fleet) for _, fields in found)

    with routers(redis_fleet, 2, peer_timeout_s=60.0) as found:
        found[0][0].select_worker(tokens=STORY).on_complete()
        wait_until(lambda: matched(found[1][0]) == 992)
        assert b"gpu" not in shown()
        assert b"clbs" not in shown(), "what messages begin with"


def test_other_secrets_are_refused_counted_and_not_applied(
    redis_fleet: RedisFleet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachelb.state.exchange._WARN_AGAIN_S", 3600.0)
    with (
        routers(redis_fleet, 2, peer_timeout_s=60.0) as ours,
        routers(redis_fleet, 2, make={"secret": "known to others only"}, peer_timeout_s=60.0) as others,
    ):
        fleets = [ours, others]
        everybody = [each for found in fleets for each in found]
        decisions = [found[0][0].select_worker(tokens=STORY) for found in fleets for _ in range(3)]
        wait_until(lambda: all(load(found[1][0]) == 3 for found in fleets))
        before = [state.stats().refused for _, state in everybody]
        for decision in decisions:
            decision.on_complete()
        wait_until(lambda: all(load(router) == 0 for router, _ in everybody))
        wait_until(
            lambda: all(state.stats().refused > count for (_, state), count in zip(everybody, before, strict=True))
        )
        for _, state in everybody:
            assert [peer.bookings for peer in state.stats().peers] == [0], "its own fleet only"
            assert state.stats().failures == 0
        # Of heartbeats alone there are more and more.
        wait_until(lambda: sum(state.stats().refused for _, state in everybody) > 4 * 3)
        logged = [record.message for record in caplog.records if "refused" in record.message]
        assert len(logged) == 4, "one line each, whatever was refused"
        assert any("another secret" in text for text in logged)


def test_rubbish_on_the_stream_is_refused_and_counted(redis_fleet: RedisFleet) -> None:
    with routers(redis_fleet, 2) as found, redis_fleet.server.client() as client:
        (router, state), (other, _) = found
        begins = b"\x01" + os.urandom(8)
        frames = [b"", b"\x01", b"\x02" * 40, os.urandom(1000), begins + b"n", begins + b"nclbs" + os.urandom(50)]
        for key in (redis_fleet.stream, f"{redis_fleet.stream}:beats"):
            for frame in frames:
                client.xadd(key, {"f": frame})
            client.xadd(key, {"else": b"", "and": b"more"})
        for ask in (b"", os.urandom(24), bytes.fromhex(found[1][1].stats().peers[0].address.rpartition("/")[2])):
            client.xadd(redis_fleet.stream, {"f": begins + b"a" + ask})
            client.xadd(redis_fleet.stream, {"f": begins + b"p" + ask})
        wait_until(lambda: state.stats().refused >= 8)
        with router.select_worker(tokens=STORY):
            wait_until(lambda: load(other) == 1)
        assert state.stats().failures == 0
