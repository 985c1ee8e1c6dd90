"""Keys that sharing through Redis leaves on the server, who may read and write them, and the ways to reach one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.certificates import certificate
from tests.library.state.redis_server import RedisServer
from tests.library.state.transports import SECRET, STORY, RedisFleet, load, make_router, matched, routers
from tests.ports import free_ports
from tests.waiting import wait_until

from cachelb.common.secret import Secret
from cachelb.state import RedisState
from cachelb.state.seal import Seal


@contextmanager
def pair(make: Callable[[], RedisState]) -> Iterator[None]:
    """Two routers that share load through what `make` makes."""
    with make_router() as router, make_router() as other:
        states = [make(), make()]
        router.attach(states[0])
        other.attach(states[1])
        with router.select_worker(tokens=STORY):
            wait_until(lambda: load(other) == 1)
            yield
        assert [state.stats().failures for state in states] == [0, 0]


def entries(client: redis.Redis, key: str) -> list[Any]:
    found = client.xrange(key)
    assert isinstance(found, list)
    return found


def last_id(client: redis.Redis, key: str) -> Any:
    return client.xinfo_stream(key)["last-generated-id"]


def test_idle_fleet_leaves_the_stream_as_it_is(redis_fleet: RedisFleet) -> None:
    beats = f"{redis_fleet.stream}:beats"
    with routers(redis_fleet, 3, peer_timeout_s=60.0), redis_fleet.server.client() as client:
        seen: set[Any] = set()

        def beats_seen(count: int) -> bool:
            seen.update(number for number, _ in entries(client, beats))
            return len(seen) >= count

        # Until all know each other there are questions.
        wait_until(lambda: beats_seen(24))
        before = last_id(client, redis_fleet.stream)
        wait_until(lambda: beats_seen(48))
        assert last_id(client, redis_fleet.stream) == before
        wait_until(lambda: client.ttl(redis_fleet.stream) > 3000 and client.ttl(beats) > 3000)


def test_stream_is_bounded_in_bytes_and_who_missed_what_was_trimmed_is_told(server: RedisServer) -> None:
    fleet = RedisFleet(server)
    with make_router() as router, make_router() as other, server.client() as client:
        mine = fleet.member(max_server_mb=1.0, peer_timeout_s=60.0)
        router.attach(mine)
        state, proxy = fleet.cut_off(peer_timeout_s=60.0)
        try:
            other.attach(state)
            wait_until(lambda: len(state.stats().peers) == 1 and 0 < state.stats().snapshots >= state.stats().gaps)
            gaps = state.stats().gaps
            proxy.cut()
            most = 0
            stories = [[at, *range(100_000)] for at in range(200)]

            def size() -> int:
                return int(client.memory_usage(fleet.stream, samples=0) or 0)

            def is_written() -> bool:
                nonlocal most
                most = max(most, size())
                assert mine._runs.latest is not None
                carrier: Any = mine._runs.latest._carrier
                return mine.stats().sent_bytes > 9_000_000 and not carrier._queue and not carrier._sent

            for story in stories:
                # 6,250 blocks, 50 kB an entry: 10 MB. The router itself keeps the last 64.
                router.select_worker(tokens=story).on_complete()
                most = max(most, size())
            wait_until(is_written)
            known = [matched(router, story) for story in stories]
            assert sum(known) >= 50 * 100_000
            proxy.heal()
            wait_until(lambda: [matched(other, story) for story in stories] == known, 60.0)
            assert state.stats().gaps > gaps
            assert 500_000 < most < 2_000_000
        finally:
            other.detach(state)
            proxy.close()


def test_only_the_router_that_is_asked_answers_and_no_faster_than_it_is_read(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachelb.state.redis.answers._GIVE_UP_S", 600.0)
    fleet = RedisFleet(server)
    with routers(fleet, 2, peer_timeout_s=60.0) as found, server.client() as client:
        (router, state), (other, _) = found
        for at in range(1500):
            router.select_worker(tokens=[at, *range(3200)]).on_complete()
        wait_until(lambda: matched(other, [1499, *range(3200)]) == 3200)
        (asked,) = (peer.address.rpartition("/")[2] for peer in found[1][1].stats().peers)
        asker, inbox, nonce = Seal([Secret(SECRET)], fleet.stream), os.urandom(8), os.urandom(8)
        key = f"{fleet.stream}:to:{inbox.hex()}"
        client.xadd(fleet.stream, {"f": asker.wrap(b"n", b"a" + bytes.fromhex(asked) + inbox + nonce)})
        wait_until(lambda: client.xlen(key) == 160)  # the last 32 were added while no more than 128 lay there
        beats: set[Any] = set()

        def beats_seen(count: int) -> bool:
            beats.add(last_id(client, f"{fleet.stream}:beats"))
            return len(beats) >= count

        wait_until(lambda: beats_seen(4))
        number = last_id(client, key)
        wait_until(lambda: beats_seen(8))
        assert last_id(client, key) == number, "nothing is added without a reader"
        assert client.xlen(key) <= 160
        assert 0 < client.ttl(key) <= 30
        parts: list[bytes] = []
        while not parts or not parts[-1][13]:
            wait_until(lambda: client.xlen(key) > 0)
            for number, fields in entries(client, key):
                life, body = asker.unwrap(key.encode(), fields[b"f"])
                assert life.hex() == asked
                assert body[1:9] == nonce
                assert int.from_bytes(body[9:13], "big") == len(parts), "in order, without holes"
                parts.append(body)
                client.xdel(key, number)
        assert sum(map(len, parts)) > 1500 * 200 * 8
        assert state.stats().failures == 0


def test_server_behind_tls(tmp_path: Path) -> None:
    shown, hidden = certificate(tmp_path)
    (port,) = free_ports(1)
    tls = ("--tls-port", str(port), "--tls-cert-file", str(shown), "--tls-key-file", str(hidden))
    with RedisServer(tmp_path, *tls, "--tls-ca-cert-file", str(shown), "--tls-auth-clients", "no"):
        with pair(lambda: RedisState(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={shown}")):
            pass
        with make_router() as router:
            state = RedisState(f"rediss://127.0.0.1:{port}/0")
            router.attach(state)
            wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in state.stats().failing)


def test_user_of_a_unix_socket_needs_few_permissions(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with RedisServer(tmp_path, "--unixsocket", str(path)) as server, server.client() as client:
        permitted = ["+select", "+xadd", "+xread", "+xdel", "+xlen", "+expire"]
        client.execute_command("ACL", "SETUSER", "gateway", "on", ">pass%word", "~fleet", "~fleet:*", *permitted)
        url = f"unix://gateway:pass%25word@{path}?db=3"
        with pair(lambda: RedisState(url, stream="fleet")):
            with server.client(3) as third:
                wait_until(lambda: third.exists("fleet", "fleet:beats") == 2)
            assert client.dbsize() == 0
        with make_router() as router:
            state = RedisState(url, stream="another")
            router.attach(state)
            wait_until(lambda: "permissions" in state.stats().failing)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://10.0.0.1:6379", "url must begin with redis://, rediss:// or unix://, got 'http://'"),
        ("10.0.0.1:6379", "url must begin with redis://, rediss:// or unix://, got something else"),
        ("redis://:pass/word@10.0.0.1", "url cannot be read: it must look like"),
        ("redis://:1/word@10.0.0.1", "url must end in the number of a database"),
        ("redis://10.0.0.1/first", "url must end in the number of a database"),
        ("redis://10.0.0.1?color=red", "url has an option behind . that redis-py does not know, among color"),
        ("redis://10.0.0.1?db=red", "url cannot be used: Invalid value for .db."),
        ("unix://", "url must name a socket"),
        ("", "url must not be empty"),
        (6379, "url must be text"),
    ],
)
def test_url_that_cannot_be_used_is_explained_without_its_password(url: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        RedisState(url)
    assert "word" not in str(caught.value).replace("user:password@host", "").replace("of a password", "")


def test_stream_has_a_name() -> None:
    with pytest.raises(ValueError, match="stream must not be empty"):
        RedisState("redis://127.0.0.1", stream="")


def test_one_state_shares_one_router(redis_fleet: RedisFleet) -> None:
    state = redis_fleet.member()
    with pytest.raises(RuntimeError, match="this RedisState is not attached"):
        state.stats()
    with make_router() as router, make_router() as other:
        router.attach(state)
        with pytest.raises(RuntimeError, match="make one RedisState per router"):
            other.attach(state)


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


def test_rubbish_on_the_stream_is_refused_and_counted(
    redis_fleet: RedisFleet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachelb.state.exchange._WARN_AGAIN_S", 3600.0)
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
        wait_until(lambda: all(each.stats().refused >= 8 for _, each in found))
        logged = [record.message for record in caplog.records if "refused" in record.message]
        assert len(logged) == 2, "one line each, whatever was refused"
        with router.select_worker(tokens=STORY):
            wait_until(lambda: load(other) == 1)
        assert state.stats().failures == 0
