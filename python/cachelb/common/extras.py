"""Optional dependencies, by the extra that brings them."""

from __future__ import annotations

import importlib
from typing import Final

_PACKAGES: Final = {
    "aiohttp": ("aiohttp", "cachelb[http]"),
    "cryptography": ("cryptography", "cachelb[redis]"),
    "dns": ("dnspython", "cachelb-gateway[dns]"),
    "hypothesis": ("hypothesis", "cachelb[testing]"),
    "jinja2": ("jinja2", "cachelb[tokenizers]"),
    "kubernetes_asyncio": ("kubernetes_asyncio", "cachelb-gateway[kubernetes]"),
    "litellm": ("LiteLLM", "cachelb[litellm]"),
    "matplotlib": ("matplotlib", "cachelb-lab[plots]"),
    "opentelemetry.metrics": ("opentelemetry-api", "cachelb[otel]"),
    "prometheus_client": ("prometheus-client", "cachelb[prometheus]"),
    "redis": ("redis-py", "cachelb[redis]"),
    "tokenizers": ("tokenizers", "cachelb[tokenizers]"),
    "yaml": ("PyYAML", "cachelb-gateway[yaml]"),
    "zmq": ("pyzmq", "cachelb[events]"),
    "zstandard": ("zstandard", "cachelb-lab[traces]"),
}


def need(who: str, *modules: str, extra: str | None = None) -> None:
    """Raise ModuleNotFoundError, which names the extra to install, if a module that `who` uses is missing.

    `extra` is that of `who`, None for the one that is about the package.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != module.partition(".")[0]:
                raise  # it is there, and lacks another
            package, own = _PACKAGES[module]
            raise ModuleNotFoundError(f"{who} needs {package}: install it, or {extra or own}", name=module) from error
