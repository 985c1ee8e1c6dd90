"""Configuration from TOML, YAML and JSON files, mappings and `CACHELB_*` variables.

A file in the natural form:

    [router]                        # keyword arguments of cachelb.Router
    policy = "cache-aware"          # "adaptive" without this line
    block_size = 16

    [policy]                        # options of that policy
    cache_threshold = 0.3

    [[workers]]                     # url, and what Router.add_worker takes
    url = "http://gpu0:8000"
    weight = 2.0

    [[discovery]]                   # find further workers: kind, and what its class in cachelb_gateway.discovery takes
    kind = "dns"
    name = "vllm-headless.llm.svc"
    port = 8000

    [kv_events]                     # receive the engines' KV cache events
    default_port = 5557
    replay_port = 5657

    [load]                          # poll the engines for their load
    interval_s = 0.1

`prefill_policy` and `decode_policy` are written like `policy`: a name in `[router]`, options in a table of their own,
which may name the policy as `type`. The layouts of vllm-router are read too: `routing:` with a section that is called
like the policy, and `mode:` with `prefill_urls` and `decode_urls`.

Example:
    >>> from cachelb_gateway import config
    >>> loaded = config.load(
    ...     {"router": {"policy": "power_of_two"}, "policy": {"choices": 3}, "workers": ["http://gpu0:8000"]},
    ...     environ={"CACHELB_BLOCK_SIZE": "32"},
    ... )
    >>> loaded
    RouterConfig('mapping', policy='power-of-two', workers=1)
    >>> loaded.options["block_size"], loaded.origins["router.block_size"]
    (32, 'env CACHELB_BLOCK_SIZE')
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike
from typing import Any

from cachelb_gateway.config.environment import read_environment
from cachelb_gateway.config.files import read_file
from cachelb_gateway.config.json_schema import json_schema
from cachelb_gateway.config.layer import read_layer
from cachelb_gateway.config.model import (
    DiscoveryConfig,
    PeerGroupConfig,
    PolicyConfig,
    RouterConfig,
    SharedCacheConfig,
    WorkerConfig,
)
from cachelb_gateway.config.resolve import resolve
from cachelb_gateway.config.show import Shown, show

__all__ = [
    "DiscoveryConfig",
    "PeerGroupConfig",
    "PolicyConfig",
    "RouterConfig",
    "SharedCacheConfig",
    "Shown",
    "WorkerConfig",
    "json_schema",
    "load",
    "show",
]


def load(source: str | PathLike[str] | Mapping[str, Any], *, environ: Mapping[str, str] | None = None) -> RouterConfig:
    """Read and check a configuration.

    Args:
        source: A file that ends in .toml, .json, .yaml or .yml, or a mapping of the same form.
        environ: Environment variables; those that begin with `CACHELB_` win over the source. None takes the
            process's, an empty mapping none.

    Returns:
        The configuration.

    Raises:
        ConfigError: The content is malformed, a key is unknown, or a value does not fit. The message names the file,
            the dotted path, and the nearest known key or the expected value.
        ModuleNotFoundError: PyYAML, for YAML, aiohttp, for a table `load`, pyzmq, for KV events, or a package for a
            source in `discovery` is not installed; the message names the extra.
        OSError: The file cannot be read.

    Example:
        >>> load({"router": {"policy": "cache-awar"}}, environ={})
        Traceback (most recent call last):
        cachelb.errors.ConfigError: mapping: router.policy: there is no policy 'cache-awar'; did you mean 'cache-aware'?
    """
    name = "mapping" if isinstance(source, Mapping) else str(source)
    data = source if isinstance(source, Mapping) else read_file(source)
    variables = read_environment(os.environ if environ is None else environ)
    return resolve(name, [read_layer(data, name), *(read_layer(each, origin) for origin, each in variables)])
