"""Optional dependencies, by the extra that brings them."""

from __future__ import annotations

import importlib
from typing import Final

_PACKAGES: Final = {
    "aiohttp": ("aiohttp", "http"),
    "cryptography": ("cryptography", "redis"),
    "dns": ("dnspython", "dns"),
    "jinja2": ("jinja2", "tokenizers"),
    "matplotlib": ("matplotlib", "plots"),
    "opentelemetry.metrics": ("opentelemetry-api", "otel"),
    "prometheus_client": ("prometheus-client", "prometheus"),
    "redis": ("redis-py", "redis"),
    "tokenizers": ("tokenizers", "tokenizers"),
    "yaml": ("PyYAML", "yaml"),
    "zmq": ("pyzmq", "events"),
    "zstandard": ("zstandard", "traces"),
}


def need(who: str, *modules: str, extra: str | None = None) -> None:
    """Raise ModuleNotFoundError, which names the extra to install, if a module that `who` uses is missing.

    `extra` is that of `who`, None for the one that is about the package.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            package, own = _PACKAGES[module]
            text = f"{who} needs {package}: install it, or cachelb[{extra or own}]"
            raise ModuleNotFoundError(text, name=module) from error
