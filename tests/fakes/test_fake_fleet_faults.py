"""Faults of the fake fleet as clients see them, workers that come and go, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from tests.http_client import complete, connect, metrics, send
from tests.support_gateways import begin_stream
from tests.threads import beside

from cachelb_fakes import FakeFleet, FakeWorker
from cachelb_fakes.sockets import Listener, TcpAddress

PROMPT = "word" * 64


@pytest.fixture(name="fleet", params=["tcp", "uds"])
def two_workers(request: pytest.FixtureRequest) -> Iterator[FakeFleet]:
    with FakeFleet(2, uds=request.param == "uds", seed=5) as fleet:
        yield fleet


@pytest.fixture(name="worker")
def first_worker(fleet: FakeFleet) -> FakeWorker:
    return fleet.workers[0]


@contextlib.contextmanager
def stalled(fleet: FakeFleet) -> Iterator[list[str]]:
    """Keep a request of the first worker meanwhile; yield how it ended, once it did."""
    worker, seen = fleet.workers[0], list[str]()
    worker.fail("stall", times=1)
    with beside(lambda url: seen.append(outcome(url)), [worker.url]):
        fleet.wait_for(lambda: worker.counts.faults["stall"] == 1)
        yield seen


def outcome(url: str, **fields: Any) -> str:
    """Return how a request ended for the client."""
    try:
        answer = complete(url, PROMPT, **fields)
    except ConnectionRefusedError:
        return "refused"
    except (ConnectionError, http.client.IncompleteRead):
        return "cut"
    return str(answer.status)


def begin(worker: FakeWorker, body: bytes) -> http.client.HTTPConnection:
    """Send the head of a request and not yet its body."""
    connection = connect(worker.url)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("Content-Length", str(len(body)))
    connection.putheader("Content-Type", "application/json")
    connection.endheaders()
    return connection


def send_again(connection: http.client.HTTPConnection) -> None:
    connection.auto_open = 0
    try:
        connection.request("GET", "/health")
        connection.getresponse()
    finally:
        connection.close()


# --- each fault ---


def test_refused_worker_accepts_no_connection_until_healed(fleet: FakeFleet) -> None:
    worker, other = fleet.workers
    idle = connect(worker.url)
    idle.request("GET", "/health")
    idle.getresponse().read()
    worker.fail("refuse")
    assert (worker.listening, outcome(worker.url), outcome(other.url)) == (False, "refused", "200")
    with pytest.raises((ConnectionError, http.client.HTTPException)):  # an idle connection is of no use either
        send_again(idle)
    worker.heal()
    assert outcome(worker.url) == "200"


def test_request_in_flight_survives_the_closing_of_the_listener_but_its_connection_ends(
    worker: FakeWorker, fleet: FakeFleet
) -> None:
    worker.fail("stall", times=1)
    body = b'{"prompt": "slow"}'
    connection = begin(worker, body)
    connection.send(body)
    fleet.wait_for(lambda: worker.counts.faults["stall"] == 1)
    worker.fail("refuse")
    worker.release()
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["usage"]["prompt_tokens"]) == (200, 1)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        send_again(connection)


@pytest.mark.parametrize("kind", ["refuse", "reset", "die"])
def test_whole_answers_are_cut_before_or_within_their_body(worker: FakeWorker, kind: Any) -> None:
    worker.fail(kind, times=2)
    assert [outcome(worker.url) for _ in range(3)] == ["cut", "cut", "200"]
    computed = 3 * 64 if kind == "die" else 64
    counts = worker.counts
    assert (counts.failed, counts.finished, counts.faults, counts.prompt_tokens) == (2, 1, {kind: 2}, computed)


def test_reset_of_a_tcp_connection_is_a_reset() -> None:
    with FakeFleet(1) as fleet:
        fleet.fail("reset", times=1)
        with pytest.raises(ConnectionResetError) as raised:
            complete(fleet.urls[0], PROMPT)
        assert not isinstance(raised.value, http.client.RemoteDisconnected)


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_status_comes_with_retry_after_if_planned(worker: FakeWorker, status: int) -> None:
    worker.fail("status", status=status, retry_after_s=7, times=1)
    worker.fail("status", status=status, times=1)
    with_header, without = complete(worker.url, PROMPT), complete(worker.url, PROMPT)
    assert (with_header.status, with_header.json["error"]["code"]) == (status, status)
    assert (with_header.headers["Retry-After"], without.headers["Retry-After"]) == ("7", None)
    assert (worker.counts.failed, worker.counts.faults) == (2, {str(status): 2})


def test_stalled_request_is_answered_when_released(worker: FakeWorker, fleet: FakeFleet) -> None:
    with stalled(fleet) as seen:
        assert (worker.counts.open, outcome(worker.url), seen) == (1, "200", [])
        worker.release()
    assert (seen, worker.counts.open, worker.counts.finished) == (["200"], 0, 2)


def test_client_that_gives_up_is_counted_and_its_slot_freed(worker: FakeWorker, fleet: FakeFleet) -> None:
    worker.fail("stall", times=1, after_chunks=2)
    connection = begin_stream(worker.url, PROMPT)
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    assert worker.counts.running == 1
    response.close()
    connection.close()
    fleet.wait_for(lambda: worker.counts.aborted == 1)
    assert (worker.counts.running, worker.counts.open, metrics(worker.url)["vllm:num_requests_running"]) == (0, 0, 0)


@pytest.mark.parametrize("chunks", [1, 3, 99])
def test_stream_dies_after_some_events(worker: FakeWorker, chunks: int) -> None:
    worker.fail("die", times=1, after_chunks=chunks)
    parts: list[bytes] = []
    with contextlib.closing(begin_stream(worker.url, PROMPT, max_tokens=5)) as connection:
        response = connection.getresponse()
        with pytest.raises((ConnectionError, http.client.IncompleteRead)):
            parts.extend(iter(response.read1, b""))
    data = b"".join(parts)
    # The reset may overtake events that the client has not read yet.
    assert data.count(b"data: ") <= min(chunks, 5)
    assert b"[DONE]" not in data
    assert (worker.counts.failed, worker.counts.faults["die"]) == (1, 1)


def test_faults_come_in_the_order_planned_the_worker_first(fleet: FakeFleet) -> None:
    one, other = fleet.workers
    fleet.fail("status", status=500, times=2)
    one.fail("status", status=429, times=1)
    one.fail("status", status=503, times=1)
    urls = [one.url, other.url, one.url, one.url, other.url]
    assert [outcome(url) for url in urls] == ["429", "500", "503", "500", "200"]


def test_planned_fault_goes_to_the_request_that_is_whole_first(worker: FakeWorker, fleet: FakeFleet) -> None:
    body = b'{"prompt": "late"}'
    late = begin(worker, body)
    fleet.wait_for(lambda: worker.counts.started == 1)
    worker.fail("status", status=500, times=1)
    assert outcome(worker.url) == "500"
    late.send(body)
    assert late.getresponse().status == 200
    late.close()


def test_refusal_needs_no_body(worker: FakeWorker) -> None:
    worker.fail("refuse", times=1)
    connection = begin(worker, b"never sent")
    with pytest.raises(ConnectionError):
        connection.getresponse()
    connection.close()
    assert (worker.counts.faults, worker.requests) == ({"refuse": 1}, [])


def test_healing_forgets_everything_planned(fleet: FakeFleet) -> None:
    fleet.fail("status", status=500)
    fleet.fail("refuse")
    fleet.set_rates(reset=1.0)
    fleet.workers[1].set_rates(refuse=1.0)
    fleet.workers[1].fail("status", status=400)
    assert [outcome(url) for url in fleet.urls] == ["refused"] * 2
    fleet.heal()
    assert [outcome(url) for url in fleet.urls] == ["200"] * 2


def test_pages_beside_the_completions_meet_no_planned_fault(worker: FakeWorker) -> None:
    worker.fail("reset")
    pages = [send(worker.url, path).status for path in ("/health", "/metrics", "/v1/models")]
    assert (pages, outcome(worker.url)) == ([200] * 3, "cut")


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"kind": "explode"}, "unknown fault 'explode': one of refuse, reset"),
        ({"kind": "status"}, "status 0 is none of 400, 404"),
        ({"kind": "reset", "times": 0}, "times is 0, it must be at least 1"),
        ({"kind": "die", "after_chunks": -1}, "after_chunks is -1"),
        ({"reset": -0.1}, "rate of reset is -0.1"),
        ({"reset": 0.6, "status": {503: 0.6}}, "add up to 1.2"),
        ({"status": {200: 0.1}}, "status 200 is none of"),
    ],
)
def test_faults_and_rates_that_cannot_be_are_refused(fleet: FakeFleet, plan: dict[str, Any], message: str) -> None:
    places: tuple[Any, ...] = (fleet, fleet.workers[0])
    for place in places:
        with pytest.raises(ValueError, match=message):
            (place.fail if "kind" in plan else place.set_rates)(**plan)


# --- chance ---


def random_outcomes(seed: int) -> list[str]:
    with FakeFleet(2, seed=seed) as fleet:
        fleet.set_rates(refuse=0.2, die=0.2, status={503: 0.2})
        return [outcome(fleet.urls[number % 2], stream=True) for number in range(60)]


def test_same_seed_meets_the_same_faults() -> None:
    first = random_outcomes(1)
    assert first == random_outcomes(1) != random_outcomes(2)
    assert 12 <= first.count("cut") < 37
    assert 4 <= first.count("503") < 21


def test_own_rates_replace_those_of_the_fleet_also_on_new_workers(fleet: FakeFleet) -> None:
    fleet.set_rates(status={500: 1.0})
    fleet.workers[0].set_rates(status={429: 1.0})
    fleet.add_worker()
    assert [outcome(url) for url in fleet.urls] == ["429", "500", "500"]


def test_every_request_has_one_end_through_chance_and_flapping(fleet: FakeFleet) -> None:
    fleet.set_rates(refuse=0.1, reset=0.1, die=0.1, status={429: 0.1})
    seen: list[tuple[int, str]] = []

    def ask(share: int) -> None:
        for at in range(40):
            worker = (share + at) % 2
            seen.append((worker, outcome(fleet.urls[worker], stream=at % 3 > 0)))

    with beside(ask, range(4)):
        for _ in range(5):
            fleet.workers[0].stop()
            fleet.workers[0].start(restart=True)
    fleet.wait_for(lambda: all(worker.counts.open == 0 for worker in fleet.workers))
    assert len(seen) == 160
    counts = [worker.counts for worker in fleet.workers]
    assert all(each.started == each.finished + each.rejected + each.failed + each.aborted for each in counts)
    refused = [counts[worker].faults["429"] - seen.count((worker, "429")) for worker in range(2)]
    assert refused[0] >= 0, "an answer on its way is cut off where the worker is stopped"
    assert refused[1] == 0


# --- workers that come and go ---


def test_stopped_worker_cuts_its_requests_and_keeps_its_address(worker: FakeWorker, fleet: FakeFleet) -> None:
    with stalled(fleet) as seen:
        fleet.workers[0].stop()
    assert (seen, worker.counts.failed, worker.counts.open) == (["cut"], 1, 0)
    assert (outcome(worker.url), worker.listening) == ("refused", False)
    fleet.workers[0].start()
    assert (outcome(worker.url), worker.listening) == ("200", True)


def test_nobody_takes_the_port_of_a_stopped_worker() -> None:
    with FakeFleet(1) as fleet, socket.socket() as other:
        fleet.workers[0].stop()
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", urlsplit(fleet.urls[0]).port))


def test_listener_leaves_no_connection_half_accepted() -> None:
    protocol = Mock(spec=asyncio.Protocol)

    async def close_while_accepting() -> None:
        address = TcpAddress()
        listener = Listener(address.bind(), lambda: protocol)
        with socket.create_connection(("127.0.0.1", urlsplit(address.url).port or 0)):
            listener._accept()
            await listener.close()
            protocol.connection_made.assert_called_once()
            protocol.connection_made.call_args.args[0].close()
        address.release()

    asyncio.run(close_while_accepting())


def test_start_keeps_the_cache_and_restart_drops_it(worker: FakeWorker) -> None:
    complete(worker.url, PROMPT)
    worker.stop()
    worker.start()
    assert (complete(worker.url, PROMPT).cached_tokens, worker.cached_blocks) == (48, 4)
    worker.stop()
    worker.start(restart=True)
    assert metrics(worker.url)["vllm:prefix_cache_queries_total"] == worker.cached_blocks == 0
    assert complete(worker.url, PROMPT).cached_tokens == 0
    assert worker.counts.prompt_tokens == 192


def test_workers_are_added_and_removed_while_running(fleet: FakeFleet) -> None:
    first, second = fleet.workers
    third = fleet.add_worker(engine="sglang", kv_blocks=7)
    assert fleet.remove_worker(0) is first
    assert fleet.workers == [second, third]
    assert [worker.name for worker in fleet.workers] == ["w1", "w2"]
    assert metrics(third.url)["sglang:max_total_num_tokens"] == 112
    with pytest.raises(OSError, match=r"refused|No such file"):
        complete(first.url, PROMPT)
    with pytest.raises(ValueError, match="not in this fleet"):
        fleet.remove_worker(first)
    with pytest.raises(TypeError, match="kv_block"):
        fleet.add_worker(kv_block=7)


def test_last_requests_are_remembered_without_showing_them() -> None:
    with FakeFleet(1, remember=2) as fleet:
        (worker,) = fleet.workers
        for number in range(3):
            complete(worker.url, f"prompt {number}", {"X-Session": f"s{number}"})
        assert [seen.headers["x-session"] for seen in worker.requests] == ["s1", "s2"]
        assert [seen.body["prompt"] for seen in worker.requests] == ["prompt 1", "prompt 2"]
        assert repr(worker.requests[0]) == "SeenRequest(path='/v1/completions')"


def test_waiting_for_what_never_comes_ends(fleet: FakeFleet) -> None:
    with pytest.raises(TimeoutError, match=r"does not hold after 0\.01 s: \{'w0'"):
        fleet.wait_for(lambda: False, timeout_s=0.01)
    with pytest.raises(ZeroDivisionError):
        fleet.wait_for(lambda: 1 // 0)


# --- nothing left behind ---


def open_sockets() -> set[str]:
    names: set[str] = set()
    for link in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # the listing itself, and what is closed in this moment
            names.add(str(link.readlink()))
    return {name for name in names if "socket:" in name}


def test_exit_leaves_no_thread_socket_or_file(fleet: FakeFleet) -> None:
    with pytest.raises(RuntimeError, match="a fleet runs once"):
        fleet.__enter__()
    threads, sockets = set(threading.enumerate()), open_sockets()
    with FakeFleet(3, uds=True) as unix, FakeFleet(3) as tcp:
        folder = Path(urlsplit(unix.urls[0]).path).parent
        assert len(list(folder.iterdir())) == 3
        clients = [connect(url) for url in unix.urls + tcp.urls]
        for client in clients:
            client.connect()  # idle
        tcp.fail("stall", times=1)
        stalled = threading.Thread(target=outcome, args=(tcp.urls[0],))
        stalled.start()
        tcp.wait_for(lambda: tcp.workers[0].counts.faults["stall"] == 1)
        tcp.workers[1].stop()
        unix.workers[1].fail("refuse")
        workers = unix.workers + tcp.workers
    stalled.join()
    for client in clients:
        client.close()
    assert not folder.exists()
    assert set(threading.enumerate()) <= threads
    assert open_sockets() <= sockets
    assert [worker.counts.open for worker in workers] == [0] * 6
    with pytest.raises(RuntimeError, match="fleet is closed"):
        workers[0].start()
