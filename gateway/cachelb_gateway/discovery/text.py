"""Sources of workers from a short text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from cachelb_gateway.discovery.base import WorkerSource
from cachelb_gateway.discovery.dns import DnsWorkers
from cachelb_gateway.discovery.file import FileWorkers
from cachelb_gateway.discovery.kubernetes import KubernetesWorkers

FORMS: Final = (
    "dns:NAME:PORT",
    "srv:NAME",
    "file:PATH",
    "kubernetes:[NAMESPACE/]SERVICE[:PORT]",
    "pods:[NAMESPACE/]SELECTOR[:PORT]",
)
"""Forms that `from_text` takes."""

KINDS: Final[Mapping[str, Callable[..., WorkerSource]]] = MappingProxyType(
    {"kubernetes": KubernetesWorkers, "dns": DnsWorkers, "file": FileWorkers}
)
"""The sources by what a configuration calls them."""

_DNS: Final = re.compile(r"(?P<name>[^:]+):(?P<port>[0-9]{1,5})")
_KUBERNETES: Final = re.compile(r"(?:(?P<namespace>[a-z0-9-]+)/)?(?P<rest>[^:]+)(?::(?P<port>[a-z0-9,-]+))?")


def from_text(text: str, **options: Any) -> WorkerSource:  # noqa: ANN401 - options of several classes
    """Make a source of workers from a short text, such as an argument of a command.

    Args:
        text: `dns:NAME:PORT`, `srv:NAME`, `file:PATH`, `kubernetes:[NAMESPACE/]SERVICE[:PORT]` or
            `pods:[NAMESPACE/]SELECTOR[:PORT]`. A port of Kubernetes is a name or a number, or several with commas.
        **options: Further options of the source, such as `scheme` and `worker_options`.

    Returns:
        The source, for `Router.attach`.

    Raises:
        ModuleNotFoundError: A package that the source needs is not installed; the message names the extra.
        TypeError: The source has no such option.
        ValueError: The text has no such form, or a part of it is wrong.

    Example:
        >>> from cachelb_gateway.discovery import from_text
        >>> from_text("kubernetes:llm/vllm:http", drop_wait_s=30)
        <KubernetesWorkers kubernetes:llm/vllm>
        >>> from_text("consul:vllm")
        Traceback (most recent call last):
        ValueError: a source of workers is dns:NAME:PORT, srv:NAME, file:PATH, ..., got 'consul:vllm'
    """
    kind, read = read_text(text)
    return KINDS[kind](**{**read, **options})


def read_text(text: str) -> tuple[str, dict[str, Any]]:
    """Return the kind of a source that a text describes, one of `KINDS`, and its options."""
    if not isinstance(text, str):
        raise TypeError(f"a source of workers is text, got {type(text).__name__}")
    kind, _, rest = text.strip().partition(":")
    if kind == "dns" and (parts := _DNS.fullmatch(rest)):
        return kind, {"name": parts["name"], "port": int(parts["port"])}
    if kind == "srv" and rest:
        return "dns", {"name": rest}
    if kind == "file" and rest:
        return kind, {"path": rest}
    if kind in ("kubernetes", "pods") and (parts := _KUBERNETES.fullmatch(rest)):
        ports = (parts["port"] or "").split(",")
        found = {
            "service" if kind == "kubernetes" else "selector": parts["rest"],
            "namespace": parts["namespace"],
            "port": ports[0] if len(ports) == 1 else tuple(ports),
        }
        return "kubernetes", {name: value for name, value in found.items() if value}
    raise ValueError(f"a source of workers is {', '.join(FORMS[:-1])} or {FORMS[-1]}, got {text[:80]!r}")
