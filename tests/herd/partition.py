"""Two routers between which the network can fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.cutting_proxy import CuttingProxy
from tests.herd.processes import RouterProcess, all_heard
from tests.herd.router_process import Spec
from tests.library.state.addresses import free_addresses


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@contextmanager
def behind_proxies(workers: Sequence[str]) -> Iterator[tuple[list[RouterProcess], list[CuttingProxy]]]:
    """Start two routers that are connected through proxies."""
    own = free_addresses(4)
    with ExitStack() as stack:
        proxies = [CuttingProxy(port_of(own[2 + at]), port_of(own[at])) for at in range(2)]
        for proxy in proxies:
            stack.callback(proxy.close)
        routers = []
        for at in range(2):
            spec = Spec(tuple(workers), {"secret": "known to all gateways", "seed": at}, own[at], (own[3 - at],))
            routers.append(stack.enter_context(RouterProcess(spec)))
        for router in routers:
            router.answer()
        all_heard(routers)
        yield routers, proxies
