"""A name server on loopback whose records may change while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from dnslib import AAAA, CNAME, QTYPE, RCODE, RR, SRV, A
from dnslib.server import DNSLogger, DNSServer
from tests.ports import free_ports


class NameServer:
    """Answers by name and type over UDP and TCP of one port; names it has no record of do not exist."""

    def __init__(self) -> None:
        self.records: dict[str, list[tuple[str, Any]]] = {}
        self.ttl_s = 0
        self.rcode: int | None = None
        self.is_silent = False
        self.questions: list[tuple[str, str]] = []

    def __enter__(self) -> Self:
        (self.port,) = free_ports(1)
        quiet = DNSLogger("-request,-reply,-truncated,-error")
        self._udp = DNSServer(self, address="127.0.0.1", port=self.port, logger=quiet)
        self._tcp = DNSServer(self, address="127.0.0.1", port=self.port, tcp=True, logger=quiet)
        self._udp.start_thread()
        self._tcp.start_thread()
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self._udp, self._tcp):
            server.stop()
            server.server.server_close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def resolve(self, request: Any, handler: Any) -> Any:
        name, kind = str(request.q.qname).rstrip("."), QTYPE[request.q.qtype]
        self.questions.append((name, kind))
        if self.is_silent:
            raise TimeoutError
        reply = request.reply()
        if self.rcode is not None or name not in self.records:
            reply.header.rcode = RCODE.NXDOMAIN if self.rcode is None else self.rcode
            return reply
        for of, value in self.records[name]:
            if of in (kind, "CNAME"):
                reply.add_answer(RR(name, getattr(QTYPE, of), rdata=_DATA[of](value), ttl=self.ttl_s))
            if of == "CNAME":
                for inner, data in self.records[value]:
                    if inner == kind:
                        reply.add_answer(RR(value, getattr(QTYPE, inner), rdata=_DATA[inner](data), ttl=self.ttl_s))
        return reply


_DATA: dict[str, Callable[[Any], Any]] = {
    "A": A,
    "AAAA": AAAA,
    "CNAME": CNAME,
    "SRV": lambda value: SRV(priority=value[0], weight=1, port=value[1], target=value[2]),
}
