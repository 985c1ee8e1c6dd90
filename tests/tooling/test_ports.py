"""Ports that `free_ports` returns are free."""

from __future__ import annotations

import socket

import pytest
from tests import ports


def test_free_ports_differ_and_can_be_listened_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ports.free_ports(20)
    assert len(set(found)) == 20
    assert set(found) <= set(ports.PORTS)
    monkeypatch.setattr(ports, "PORTS", range(min(found), max(found) + 1))
    with socket.create_server(("127.0.0.1", min(found))):
        assert min(found) not in ports.free_ports(5)


def test_ports_beside_each_other_belong_to_one_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "PORTS", range(24_000, 24_400))
    found = ports.free_ports(100, together=2)
    assert len({port + above for port in found for above in range(2)}) == 200
    monkeypatch.setattr(ports, "PORTS", range(found[0], found[0] + 2))
    with socket.create_server(("127.0.0.1", found[0] + 1)), pytest.raises(RuntimeError, match="fewer than 1 times 2"):
        ports.free_ports(1, together=2)
