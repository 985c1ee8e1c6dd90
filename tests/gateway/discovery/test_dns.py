"""Workers by DNS follow a name server, and outlive its failures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from dnslib import RCODE
from tests.models.name_server import NameServer
from tests.waiting import wait_until

from cachelb import Router
from cachelb_gateway.discovery import DnsWorkers

NAME = "vllm.llm.example"
A, B, C = (f"http://10.0.0.{n}:8000" for n in (1, 2, 3))
THREE = [("A", f"10.0.0.{n}") for n in (1, 2, 3)]


@pytest.fixture
def server() -> Iterator[NameServer]:
    with NameServer() as made:
        yield made


def attach(router: Router[str], server: NameServer, name: str = NAME, **options: Any) -> DnsWorkers:
    source = DnsWorkers(name, **{"nameservers": [server.address], **options})
    router.attach(source)
    return source


def keys(router: Router[str]) -> set[str]:
    return set(router.keys())


def test_addresses_are_followed_no_faster_than_each_second(router: Router[str], server: NameServer) -> None:
    server.records[NAME] = THREE
    attach(router, server, port=8000)
    wait_until(lambda: keys(router) == {A, B, C})
    begun_s, asked = time.monotonic(), len(server.questions)
    server.records[NAME] = THREE[:2]
    wait_until(lambda: keys(router) == {A, B})
    server.records[NAME] = [*THREE[:2], ("A", "10.0.0.9")]
    wait_until(lambda: "http://10.0.0.9:8000" in keys(router))
    assert time.monotonic() - begun_s > 0.9, "the floor of the time to live"
    assert len(server.questions) - asked <= time.monotonic() - begun_s + 2


@pytest.mark.parametrize(("ttl_s", "pause_s"), [(0, 1.0), (7, 7.0), (2**31 - 1, 20.0)])
def test_the_pause_is_the_time_to_live_within_limits(server: NameServer, ttl_s: int, pause_s: float) -> None:
    server.ttl_s, server.records[NAME] = ttl_s, THREE
    source = DnsWorkers(NAME, port=8000, nameservers=[server.address], max_ttl_s=20.0)
    assert asyncio.run(source.look()) == ([A, B, C], pause_s)


@pytest.mark.parametrize("failure", ["NXDOMAIN", "no records", "NoNameservers", "timeout"])
def test_a_failure_keeps_the_workers(router: Router[str], server: NameServer, failure: str) -> None:
    server.records[NAME] = THREE
    source = attach(router, server, port=8000, timeout_s=0.5, drop_wait_s=0)
    wait_until(lambda: keys(router) == {A, B, C})
    match failure:
        case "NXDOMAIN":
            server.records = {}
        case "no records":
            server.records[NAME] = []
        case "NoNameservers":
            server.rcode = RCODE.SERVFAIL
        case _:
            server.is_silent = True
    wait_until(lambda: source.stats().failing == failure and source.stats().failures >= 2)
    assert keys(router) == {A, B, C}
    server.records, server.rcode, server.is_silent = {NAME: THREE[:1]}, None, False
    wait_until(lambda: source.stats().failing == "")
    assert keys(router) == {A}


def test_most_addresses_gone_wait_for_another_answer(router: Router[str], server: NameServer) -> None:
    server.records[NAME] = THREE
    source = attach(router, server, port=8000, drop_wait_s=1.0)
    wait_until(lambda: keys(router) == {A, B, C})
    server.records[NAME] = THREE[:1]
    wait_until(lambda: source.stats().waits == 1)
    assert (keys(router), source.stats().waiting) == ({A, B, C}, 2)
    wait_until(lambda: keys(router) == {A})


def test_ipv6_is_asked_for_where_there_is_no_ipv4(router: Router[str], server: NameServer) -> None:
    server.records[NAME] = [("AAAA", "fd00::1"), ("AAAA", "fd00::2")]
    attach(router, server, port=8000, scheme="https")
    wait_until(lambda: keys(router) == {"https://[fd00::1]:8000", "https://[fd00::2]:8000"})
    assert [kind for _, kind in server.questions[:2]] == ["A", "AAAA"]
    server.records[NAME] += THREE
    wait_until(lambda: keys(router) == {f"https://10.0.0.{n}:8000" for n in (1, 2, 3)})


def test_srv_targets_of_the_lowest_priority_are_workers(router: Router[str], server: NameServer) -> None:
    name = "_http._tcp.vllm.llm.example"
    server.records[name] = [("SRV", (1, 8000, "GPU0.example")), ("SRV", (1, 8001, "gpu0.example"))]
    server.records[name] += [("SRV", (2, 8000, "spare.example"))]
    attach(router, server, name)
    wait_until(lambda: keys(router) == {"http://gpu0.example:8000", "http://gpu0.example:8001"})


def test_many_addresses_come_over_tcp_and_aliases_are_followed(router: Router[str], server: NameServer) -> None:
    server.records["real.example"] = [("A", f"10.1.{n >> 8}.{n & 255}") for n in range(400)]
    server.records[NAME] = [("CNAME", "real.example")]
    attach(router, server, port=8000)
    wait_until(lambda: len(router.keys()) == 400)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "name must be a DNS name, got ''"),
        ({"name": "a..b"}, "name must be a DNS name, got 'a..b'"),
        ({"name": "a" * 64}, "name must be a DNS name"),
        ({"port": 65_536}, "port must be at most 65535, got 65536"),
        ({"max_ttl_s": 0.5}, "max_ttl_s must be 1 or more, got 0.5"),
        ({"scheme": "tcp"}, "scheme must be http or https, got 'tcp'"),
        ({"nameservers": ["dns.example"]}, "a name server is an address, or address:port, got 'dns.example'"),
        ({"nameservers": ["10.0.0.1:x"]}, "a name server is an address, or address:port"),
        ({"nameservers": []}, "nameservers must name one at least"),
        ({"drop_wait_s": -1}, "drop_wait_s must be 0 or more, got -1"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DnsWorkers(**{"name": NAME, **options})
