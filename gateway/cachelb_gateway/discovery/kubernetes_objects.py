"""Addresses of workers in EndpointSlices and pods of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from cachelb_gateway.discovery.addresses import DiscoveryError, worker_url

Port: TypeAlias = "int | str"
Named: TypeAlias = "tuple[str, int]"
"""Name, empty without one, and number of a port."""

_FAMILIES: Final = {"IPv4": 4, "IPv6": 6}
_MOST_PLACES: Final = 10_000
_MOST_SHOWN: Final = 10


class Place(NamedTuple):
    """A worker in an object."""

    pod: str  # or its address, where no pod is named
    family: int
    url: str


class Parsed(NamedTuple):
    """The workers of an object."""

    places: tuple[Place, ...] = ()
    ports: tuple[Named, ...] = ()
    """The ports there are, where a ready one has none of those asked for."""


def read_slice(scheme: str, asked: Sequence[Port], item: dict[str, Any]) -> Parsed:
    """Return a place per ready endpoint and port of an EndpointSlice of `discovery.k8s.io/v1`.

    This and `read_pod` raise `DiscoveryError` for an object that cannot be one.
    """
    family = _FAMILIES.get(_typed(item, "addressType", str, ""))
    if family is None:  # FQDN, which nothing makes
        return Parsed()
    ready = [host for each in _objects(item, "endpoints") if (host := _ready(each)) is not None]
    declared = _declared(_objects(item, "ports"), "port")
    ports = _chosen(declared, asked, may_be_undeclared=False)
    if not ports and ready:
        return Parsed(ports=tuple(declared))
    _bound(len(ready) * len(ports))
    return Parsed(tuple(Place(pod, family, worker_url(scheme, host, port)) for pod, host in ready for port in ports))


def read_pod(scheme: str, asked: Sequence[Port], item: dict[str, Any]) -> Parsed:
    """Return a place per port of a ready pod."""
    meta, status = _typed(item, "metadata", dict, {}), _typed(item, "status", dict, {})
    host = _typed(status, "podIP", str, "")
    conditions = {
        _typed(each, "type", str, ""): _typed(each, "status", str, "") for each in _objects(status, "conditions")
    }
    if not host or meta.get("deletionTimestamp") is not None or conditions.get("Ready") != "True":
        return Parsed()
    containers = _objects(_typed(item, "spec", dict, {}), "containers")
    declared = [port for each in containers for port in _declared(_objects(each, "ports"), "containerPort")]
    ports = _chosen(declared, asked, may_be_undeclared=True)
    if not ports:
        return Parsed(ports=tuple(declared))
    _bound(len(ports))
    return Parsed(tuple(Place(host, 4, worker_url(scheme, host, port)) for port in ports))


def urls(parsed: Iterable[Parsed], ports: Sequence[Port]) -> set[str]:
    """Return the workers of all objects; of pods with addresses of both families, the IPv4 ones."""
    objects = list(parsed)
    places = [place for each in objects for place in each.places]
    declared = sorted({port for each in objects for port in each.ports})
    if declared and not places:
        shown = ", ".join(f"{name}={number}" if name else str(number) for name, number in declared[:_MOST_SHOWN])
        asked = " or ".join(map(str, ports))
        raise DiscoveryError(f"no port {asked} among {shown}" if ports else f"name one of the ports {shown}")
    first: dict[str, int] = {}
    for place in places:
        first[place.pod] = min(place.family, first.get(place.pod, place.family))
    return {place.url for place in places if place.family == first[place.pod]}


def _ready(endpoint: dict[str, Any]) -> tuple[str, str] | None:
    """Return pod and address of an endpoint that takes requests."""
    conditions = _typed(endpoint, "conditions", dict, {})
    if conditions.get("ready") is False or conditions.get("terminating") is True:
        return None
    addresses = endpoint.get("addresses")
    if not isinstance(addresses, list) or not addresses or not isinstance(addresses[0], str):
        raise DiscoveryError("an endpoint without an address")
    pod = _typed(_typed(endpoint, "targetRef", dict, {}), "uid", str, "")
    return pod or addresses[0], addresses[0]


def _declared(ports: Iterable[dict[str, Any]], number: str) -> list[Named]:
    """Return the TCP ports that have a number."""
    found = []
    for port in ports:
        value = port.get(number)
        if _typed(port, "protocol", str, "TCP") == "TCP" and isinstance(value, int) and not isinstance(value, bool):
            found.append((_typed(port, "name", str, ""), value))
    return found


def _chosen(declared: Sequence[Named], asked: Sequence[Port], *, may_be_undeclared: bool) -> list[int]:
    """Return the numbers of the ports asked for; of none, the only port."""
    if not asked:
        numbers = {number for _, number in declared}
        return sorted(numbers) if len(numbers) == 1 else []
    chosen = {number for name, number in declared if name in asked or number in asked}
    if may_be_undeclared:
        chosen.update(port for port in asked if isinstance(port, int))
    return sorted(chosen)


def _typed(item: dict[str, Any], key: str, kind: type, default: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a member, or the default where it is missing or null."""
    value = item.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise DiscoveryError(f"an object whose {key} is of another type")
    return value


def _objects(item: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _typed(item, key, list, [])
    if not all(isinstance(each, dict) for each in found):
        raise DiscoveryError(f"an object whose {key} are of another type")
    return found


def _bound(places: int) -> None:
    if places > _MOST_PLACES:
        raise DiscoveryError(f"an object with more than {_MOST_PLACES} workers")
