"""Workers of a Kubernetes cluster: endpoints of a service, or pods."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cachelb.common.arguments import require, seconds, whole
from cachelb.common.extras import need
from cachelb.sources.http import PageError
from cachelb_gateway.discovery.addresses import SCHEMES, DiscoveryError
from cachelb_gateway.discovery.base import Findings, WorkerSource, backoff_s
from cachelb_gateway.discovery.kubernetes_access import VERSION, ClusterAccess, GoneError, check_url, of_metadata
from cachelb_gateway.discovery.kubernetes_objects import Parsed, Port, read_pod, read_slice, urls

if TYPE_CHECKING:
    from cachelb.router import Router

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_PORT_NAME: Final = re.compile(r"[a-z0-9-]{1,15}")
_MOST_OBJECTS: Final = 16_384
_MOST_PORTS: Final = 64
_LONGEST_SELECTOR: Final = 1024
_LAST_PORT: Final = 65_535
_SHORTEST_WATCH_S: Final = 1.0


class KubernetesWorkers(WorkerSource):
    """Registers the ready endpoints of a service, or the ready pods with certain labels, as they change.

    It lists and watches EndpointSlices or pods: a pod that is deleted, terminating or not ready takes no new requests
    as soon as the event arrives. Address, certificates and token of the API server are those of the pod's service
    account, outside a cluster those of a kubeconfig, and are read again for each request. Each address and port is a
    worker; of pods with addresses of both families, the IPv4 one is taken. When the API server does not answer, the
    last workers stay, and it is asked again after up to 30 seconds. Needs the extra `kubernetes`, and the rights to
    `list` and `watch` `endpointslices` of `discovery.k8s.io`, or `pods`.

    Args:
        service: Name of a service, whose EndpointSlices are read.
        selector: Instead of a service, a label selector of pods, such as `app=vllm,tier in (a, b)`.
        namespace: Their namespace; None is that of this pod.
        port: Name or number of the port at the pods, which a service calls its target port, or several, each of which
            is a worker. None takes the only one there is.
        scheme: "http" or "https", of the workers.
        api_url: The API server, for another cluster or `kubectl proxy`. Token and certificates are then those of
            `token_file` and `ca_file`, or none and the system's.
        token_file: File with a bearer token.
        ca_file: File with the certificates that the API server is checked with.
        silence_s: Seconds without a byte from a watch after which it is begun again. API servers send a bookmark about
            once a minute.
        drop_wait_s: Seconds that the loss of more than half of the workers waits to be confirmed.
        worker_options: Options of `Router.add_worker` for each new worker, such as `role`.

    Raises:
        ModuleNotFoundError: kubernetes_asyncio is not installed.
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range, there is neither or both of `service` and `selector`, or a token would
            be sent without TLS.

    Example:
        >>> from cachelb_gateway.discovery import KubernetesWorkers
        >>> source = KubernetesWorkers(service="vllm", namespace="llm", port="http")
        >>> source.name  # router.attach(source) starts it
        'kubernetes:llm/vllm'
    """

    def __init__(
        self,
        *,
        service: str | None = None,
        selector: str | None = None,
        namespace: str | None = None,
        port: int | str | Sequence[int | str] | None = None,
        scheme: str = "http",
        api_url: str | None = None,
        token_file: str | None = None,
        ca_file: str | None = None,
        silence_s: float = 90.0,
        drop_wait_s: float = 10.0,
        worker_options: Mapping[str, Any] | None = None,
    ) -> None:
        need("KubernetesWorkers", "kubernetes_asyncio")
        for name, text in (("api_url", api_url), ("token_file", token_file), ("ca_file", ca_file)):
            if text is not None:
                require(name, text, str, "text")
        if scheme not in SCHEMES:
            raise ValueError(f"scheme must be http or https, got {scheme!r}")
        if (service is None) == (selector is None):
            raise ValueError("give either service or selector")
        for name, text in (("service", service), ("namespace", namespace)):
            if text is not None:
                _check_name(name, text)
        if api_url is not None:
            check_url(api_url, has_token=token_file is not None)
        self._ports = _ports(port)
        if service is not None:
            kind, name, asked = "kubernetes", service, f"kubernetes.io/service-name={service}"
            objects, read = "endpoint_slice", read_slice
        else:
            kind, name = "pods", _checked_selector(selector)
            objects, asked, read = "pod", name, read_pod
        self._reader = partial(read, scheme, self._ports)
        self._access = ClusterAccess(objects, namespace, asked, api_url, token_file, ca_file)
        self._silence_s = seconds("silence_s", silence_s)
        shown = f"{kind}:{name}" if namespace is None else f"{kind}:{namespace}/{name}"
        super().__init__(shown, drop_wait_s=drop_wait_s, worker_options=worker_options)

    def start(self, router: Router[Any], /) -> None:
        """Start looking for workers.

        Args:
            router: The router to register them with.

        Raises:
            RuntimeError: The source is running already; one source serves one router.
            TypeError: The router's `key` function does not take a URL.
            ValueError: This is no pod, and there is neither `api_url` nor a kubeconfig.
        """
        self._access.check()
        super().start(router)

    async def follow(self, findings: Findings, /) -> None:
        """List and watch until cancelled.

        Args:
            findings: Takes every answer, and every failure.
        """
        self._findings = findings
        self._objects: dict[str, Parsed] = {}
        self._version = ""  # empty: a list is needed
        failures = 0
        while True:
            self._is_fresh, problem = False, ""  # whether the last watch brought something
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except GoneError:
                self._version = ""
            except DiscoveryError as error:  # not to be continued from
                self._version, problem = "", str(error)
            except (PageError, OSError) as error:
                problem = str(error) if isinstance(error, PageError) else type(error).__name__
            else:
                failures = 0
                continue
            failures = 1 if self._is_fresh else failures + 1
            if problem:
                self._findings.failed(problem)
            elif failures == 1:  # a version that is too old is no failure
                continue
            await asyncio.sleep(backoff_s(failures))

    async def _list(self) -> None:
        items, version = await self._access.list()
        if not all(isinstance(item, dict) for item in items):
            raise DiscoveryError("not a list of objects")
        objects = {of_metadata(item, "name", _NAME): self._reader(item) for item in items}
        _check_count(objects)
        self._publish(objects)
        self._version = version

    async def _watch(self) -> None:
        """Apply changes until the server ends the watch, or a list is to confirm a drop."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        async with aclosing(self._access.watch(self._version)) as events:
            while True:
                due_s = self._findings.confirm_in_s()
                is_due = due_s is not None and due_s < self._silence_s
                try:
                    async with asyncio.timeout(due_s if is_due else self._silence_s):
                        kind, item = await anext(events)
                except StopAsyncIteration:
                    break
                except TimeoutError:
                    if not is_due:
                        raise PageError("silence") from None
                    self._version = ""
                    return
                self._apply(kind, item)
        if not self._is_fresh and loop.time() - begun_s < _SHORTEST_WATCH_S:
            raise PageError("the watch ended at once")

    def _apply(self, kind: str, item: dict[str, Any]) -> None:
        version = of_metadata(item, "resourceVersion", VERSION)
        objects = self._objects
        if kind in ("ADDED", "MODIFIED"):
            objects = {**objects, of_metadata(item, "name", _NAME): self._reader(item)}
            _check_count(objects)
        elif kind == "DELETED":
            objects = {name: parsed for name, parsed in objects.items() if name != of_metadata(item, "name", _NAME)}
        elif kind != "BOOKMARK":
            raise DiscoveryError("an event of an unknown type")
        self._publish(objects)
        self._version, self._is_fresh = version, True

    def _publish(self, objects: dict[str, Parsed]) -> None:
        self._findings.found(sorted(urls(objects.values(), self._ports)))
        self._objects = objects


def _check_count(objects: Mapping[str, Parsed]) -> None:
    if len(objects) > _MOST_OBJECTS:
        raise DiscoveryError(f"more than {_MOST_OBJECTS} objects")


def _check_name(argument: str, name: object) -> None:
    require(argument, name, str, "text")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{argument} must be a name of Kubernetes, such as vllm-0, got {str(name)[:80]!r}")


def _checked_selector(selector: object) -> str:
    require("selector", selector, str, "text")
    text = str(selector).strip()
    if not text or len(text) > _LONGEST_SELECTOR or not text.isprintable():
        raise ValueError(f"selector must be a label selector such as app=vllm, got {text[:80]!r}")
    return text


def _ports(port: object) -> tuple[Port, ...]:
    """Read names and numbers of ports."""
    given = () if port is None else (port,) if isinstance(port, int | str) else port
    if not isinstance(given, Sequence) or len(given) > _MOST_PORTS:
        raise TypeError(f"port must be a number, a name, or up to {_MOST_PORTS} of them, got {type(port).__name__}")
    ports: list[Port] = []
    for each in given:
        if isinstance(each, str):
            if not _PORT_NAME.fullmatch(each):
                raise ValueError(f"port must be a number or a name of Kubernetes, got {each[:40]!r}")
            ports.append(int(each) if each.isdecimal() else each)
        else:
            ports.append(each)
        if not isinstance(ports[-1], str):
            whole("port", ports[-1], 1, _LAST_PORT)
    return tuple(ports)
