"""Workers by DNS names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cachelb.common.arguments import listed, number, require, seconds, whole
from cachelb.common.extras import need
from cachelb_gateway.discovery.addresses import SCHEMES, DiscoveryError, worker_url
from cachelb_gateway.discovery.base import PolledWorkers

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver
    from dns.resolver import Answer

_LEAST_TTL_S: Final = 1.0
_LAST_PORT: Final = 65_535
_DNS_PORT: Final = 53
_MOST_SERVERS: Final = 16


class DnsWorkers(PolledWorkers):
    """Registers the addresses of a name, or the targets of its SRV records, as they change.

    The name is asked for again when its time to live is over, from 1 second to `max_ttl_s`. A name with addresses of
    both families registers the IPv4 ones. SRV records register those with the lowest priority, by name; their weights
    are not read. A name that does not exist or has no records counts as a failure, as does a name server that does not
    answer: the last workers stay, so that DNS alone never empties a fleet. Needs the extra `dns`.

    Args:
        name: A name, which the system's search domains complete, such as that of a headless service.
        port: Port of the workers; None asks for SRV records, which have ports.
        scheme: "http" or "https".
        nameservers: Addresses of name servers to ask, `address` or `address:port`; None asks the system's.
        timeout_s: Seconds for an answer.
        max_ttl_s: The longest pause between two questions.
        drop_wait_s: Seconds that the loss of more than half of the workers waits to be confirmed.
        worker_options: Options of `Router.add_worker` for each new worker, such as `role`.

    Raises:
        ModuleNotFoundError: dnspython is not installed.
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range, or no name.

    Example:
        >>> from cachelb_gateway.discovery import DnsWorkers
        >>> DnsWorkers("vllm-headless.llm.svc", port=8000).name  # router.attach(...) starts it
        'dns:vllm-headless.llm.svc:8000'
        >>> DnsWorkers("_http._tcp.vllm.example").name
        'srv:_http._tcp.vllm.example'
    """

    def __init__(
        self,
        name: str,
        *,
        port: int | None = None,
        scheme: str = "http",
        nameservers: Sequence[str] | None = None,
        timeout_s: float = 5.0,
        max_ttl_s: float = 30.0,
        drop_wait_s: float = 10.0,
        worker_options: Mapping[str, Any] | None = None,
    ) -> None:
        need("DnsWorkers", "dns")
        require("name", name, str, "text")
        _check_name(name)
        if port is not None:
            whole("port", port, 1, _LAST_PORT)
        if scheme not in SCHEMES:
            raise ValueError(f"scheme must be http or https, got {scheme!r}")
        self._asked = name
        self._port = port
        self._scheme = scheme
        self._timeout_s = seconds("timeout_s", timeout_s)
        self._max_ttl_s = number("max_ttl_s", max_ttl_s, least=_LEAST_TTL_S, most=3600.0)
        self._nameservers = None if nameservers is None else _servers(nameservers)
        self._resolver: Resolver | None = None
        shown = f"srv:{name}" if port is None else f"dns:{name}:{port}"
        super().__init__(shown, drop_wait_s=drop_wait_s, worker_options=worker_options)

    async def look(self) -> tuple[list[str], float]:
        """Ask for the name once.

        Returns:
            The workers, and the seconds until the next question.

        Raises:
            DiscoveryError: There is no usable answer.
            OSError: No name server can be asked.
        """
        if self._port is None:
            answer = await self._ask("SRV")
            first = min(record.priority for record in answer)
            found = [
                worker_url(self._scheme, record.target.to_text(), record.port)
                for record in answer
                if record.priority == first
            ]
        else:
            try:
                answer = await self._ask("A")
            except _NoRecordsError:
                answer = await self._ask("AAAA")
            found = [worker_url(self._scheme, record.address, self._port) for record in answer]
        ttl_s = float(answer.chaining_result.minimum_ttl)
        # Name servers turn the order from answer to answer.
        return sorted(found), min(max(ttl_s, _LEAST_TTL_S), self._max_ttl_s)

    async def _ask(self, kind: str) -> Answer:
        import dns.exception
        import dns.resolver

        try:
            return await self._made().resolve(self._asked, kind, search=True, lifetime=self._timeout_s)
        except dns.resolver.NXDOMAIN:
            raise DiscoveryError("NXDOMAIN") from None
        except dns.resolver.NoAnswer:
            raise _NoRecordsError("no records") from None
        except dns.exception.Timeout:
            raise DiscoveryError("timeout") from None
        except dns.exception.DNSException as error:
            raise DiscoveryError(type(error).__name__) from None

    def _made(self) -> Resolver:
        """Return the resolver, made at the first question: the system's settings may be wrong until then."""
        if self._resolver is None:
            from dns.asyncresolver import Resolver
            from dns.nameserver import Do53Nameserver

            resolver = Resolver(configure=self._nameservers is None)
            if self._nameservers is not None:
                resolver.nameservers = [Do53Nameserver(address, port) for address, port in self._nameservers]
            self._resolver = resolver
        return self._resolver


class _NoRecordsError(DiscoveryError):
    """The name has no records of this type."""


def _check_name(name: str) -> None:
    import dns.exception
    import dns.name

    try:
        made = dns.name.from_text(name)
    except (dns.exception.DNSException, ValueError) as error:
        raise ValueError(f"name must be a DNS name, got {name[:80]!r}: {error}") from error
    if len(made.labels) < 2:  # noqa: PLR2004 - the root alone
        raise ValueError(f"name must be a DNS name, got {name!r}")


def _servers(nameservers: Sequence[str]) -> list[tuple[str, int]]:
    """Read addresses and ports."""
    import dns.inet

    found = []
    for server in listed("nameservers", nameservers, _MOST_SERVERS):
        require("nameservers", server, str, "a list of addresses")
        host, port = server, _DNS_PORT
        if server.startswith("["):
            host, _, rest = server[1:].partition("]")
            port = int(rest[1:]) if rest[1:].isdecimal() and rest[0] == ":" else _DNS_PORT
        elif server.count(":") == 1:
            host, _, rest = server.partition(":")
            port = int(rest) if rest.isdecimal() else 0
        if not dns.inet.is_address(host) or not 0 < port <= _LAST_PORT:
            raise ValueError(f"a name server is an address, or address:port, got {server[:80]!r}")
        found.append((host, port))
    if not found:
        raise ValueError("nameservers must name one at least")
    return found
