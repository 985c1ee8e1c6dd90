"""One stream for all: every router reads it in order, and answers only questions to itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.library.state.transports import SECRET, STORY, RedisFleet, make_router
from tests.waiting import wait_until

from cachelb.common.secret import Secret
from cachelb.state.carrier import Asked, Received, Refused
from cachelb.state.options import ExchangeSettings
from cachelb.state.redis.carrier import RedisCarrier
from cachelb.state.redis.link import RedisLink, _View
from cachelb.state.seal import Seal

SETTINGS = ExchangeSettings(interval_s=0.005, peer_timeout_s=2.0, ttl_s=60.0)


def messages() -> tuple[bytes, bytes]:
    """News of a router, and a heartbeat."""
    router = make_router()
    router._fleet.share(1, 60.0, 1 << 20)
    router.select_worker(tokens=STORY).on_complete()
    (news,), beat = router._fleet.publish(), router._fleet.heartbeat(7)
    assert beat is not None
    return news, beat


NEWS, BEAT = messages()
KEYS = Secret(SECRET)


def fresh(count: int) -> list[Seal]:
    """Make `count` seals that trust each other."""
    found = [Seal([KEYS], "") for _ in range(count)]
    for reader in found:
        for writer in found:
            reader.unwrap(b"", writer.wrap(b"", b""))
            reader.answered(writer.life)
    return found


@contextmanager
def carriers(fleet: RedisFleet, *seals: Seal) -> Iterator[list[RedisCarrier]]:
    """Carriers that are open."""
    with ExitStack() as stack:
        found = [RedisCarrier(RedisLink(fleet.server.url), fleet.stream, frames, SETTINGS, 1 << 20) for frames in seals]
        for carrier in found:
            stack.callback(carrier.close)
            carrier.open()
        yield found


def receive(carrier: RedisCarrier, count: int) -> list[Received | Asked | Refused]:
    """Receive at least `count` messages of others."""
    found: list[Received | Asked | Refused] = []

    def enough() -> bool:
        found.extend(carrier.receive(0.005))
        return len(found) >= count

    wait_until(enough)
    return found


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writes=st.lists(st.tuples(st.integers(0, 2), st.integers(35, 3000)), max_size=200))
def test_everybody_reads_what_the_others_wrote_in_its_order(
    redis_fleet: RedisFleet, writes: list[tuple[int, int]]
) -> None:
    """The model is a list."""
    redis_fleet.stream = f"carriers-{os.urandom(4).hex()}"
    with carriers(redis_fleet, *fresh(3)) as found:
        log: list[tuple[int, bytes]] = []
        for number, (author, size) in enumerate(writes):
            message = number.to_bytes(4, "big") + bytes(size - 4)
            found[author].publish(message)
            log.append((author, message))
        heard: list[list[bytes]] = [[], [], []]

        def complete() -> bool:
            for at, carrier in enumerate(found):
                heard[at] += [one.message for one in carrier.receive(0.001) if isinstance(one, Received)]
            return [len(messages) for messages in heard] == [sum(author != at for author, _ in log) for at in range(3)]

        wait_until(complete)
        for at, messages in enumerate(heard):
            for other in {0, 1, 2} - {at}:
                ours = {message for author, message in log if author == other}
                told = [message for message in messages if message in ours]
                assert told == [message for author, message in log if author == other]
        orders = [[message for message in messages if message in heard[1]] for messages in (heard[0], heard[2])]
        assert [m for m in orders[0] if m in heard[2]] == [m for m in orders[1] if m in heard[0]], "one log"


def test_heartbeat_comes_after_all_news_before_it(redis_fleet: RedisFleet) -> None:
    writer, own = fresh(2)
    with carriers(redis_fleet, own) as (reader,), redis_fleet.server.client() as client:
        for number in range(3):
            for _ in range(50):
                client.xadd(redis_fleet.stream, {"f": writer.wrap(b"n", b"n" + NEWS)})
            client.xadd(f"{redis_fleet.stream}:beats", {"f": writer.wrap(b"b", b"b%d" % number + BEAT)})
        found = receive(reader, 151)
        address = f"{redis_fleet.stream}/{writer.life.hex()}"
        assert found == [Received(NEWS, address)] * 150 + [Received(b"2" + BEAT, address)], "and only the latest"


def test_who_is_asked_is_told_and_nobody_else(redis_fleet: RedisFleet) -> None:
    seals = [Seal([KEYS], redis_fleet.stream) for _ in range(3)]
    with carriers(redis_fleet, *seals) as (asking, asked, third):
        asked.publish(NEWS)
        asked.receive(0.005)
        # It never answered, so it is asked before its state is trusted.
        questions: list[Asked] = []

        def is_asked() -> bool:
            assert asking.receive(0.001) == []
            questions.extend(one for one in asked.receive(0.001) if isinstance(one, Asked))
            return bool(questions)

        wait_until(is_asked)
        question = questions[0]
        messages = [bytes([part]) * 100 for part in range(200)]
        asked.answer(question.return_to, messages)
        heard: list[Received | Asked | Refused] = []

        def told() -> bool:
            asked.receive(0.001)
            heard.extend(asking.receive(0.001))
            return len(heard) >= len(messages)

        wait_until(told)
        assert heard == [Received(message, f"{redis_fleet.stream}/{seals[1].life.hex()}") for message in messages]
        assert not [one for one in third.receive(0.005) if isinstance(one, Received)]
        asked.publish(NEWS)
        asked.receive(0.005)
        assert receive(asking, 1) == [Received(NEWS, f"{redis_fleet.stream}/{seals[1].life.hex()}")]


def test_heartbeats_do_not_pile_up(redis_fleet: RedisFleet) -> None:
    with carriers(redis_fleet, *fresh(1)) as (carrier,), redis_fleet.server.client() as client:
        for _ in range(500):
            carrier.publish(BEAT)
        carrier.receive(0.005)
        wait_until(lambda: client.xlen(f"{redis_fleet.stream}:beats") > 0)
        carrier.receive(0.005)
        assert client.xlen(f"{redis_fleet.stream}:beats") < 250


def test_the_parser_for_hiredis_peeks_at_a_socket_whose_bytes_count() -> None:
    counted: list[int] = []
    server, client = socket.socketpair()
    with server, client:
        server.sendall(b"+OK\r\n")
        view = _View(client, counted.append)
        buffer = bytearray(3)
        assert view.recv(1, socket.MSG_PEEK) == b"+"
        assert (view.recv(2), view.recv_into(buffer), bytes(buffer)) == (b"+O", 3, b"K\r\n")
        assert counted == [1, 2, 3]
        assert view.fileno() == client.fileno()  # type: ignore[operator]
