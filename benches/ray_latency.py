"""The cost of routing through Ray Serve per request: Serve's default, cachelb, and Ray's prefix router, in turns.

python -m benches.ray_latency [REQUESTS]

A Ray cluster on this machine, three replicas per router that answer at once. One client sends `REQUESTS` (300) requests
of 1,000 and of 32,000 characters per router, one after the other, the routers in turn and in an order that is drawn
anew each time, so that other work of the machine slows all of them. One of four prompts is new, the others are
known. Prints a row of JSON per length and router: the median and the 90th percentile in milliseconds, and the median of
the differences to the default within the same turn.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from types import SimpleNamespace
from typing import Any

LENGTHS = 1_000, 32_000
ROUTERS = {
    "power-of-two": None,
    "cachelb": "cachelb.integrations.ray_serve.router.CachelbRequestRouter",
    "cachelb-shared": "cachelb.integrations.ray_serve.router.CachelbRequestRouter",
    "cachelb-share-load": "cachelb.integrations.ray_serve.router.CachelbRequestRouter",
    "ray-prefix": "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router.PrefixCacheAffinityRouter",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "cachelb-shared": {"shared": True},
    "cachelb-share-load": {"share_load": True, "secret": "known to all gateways"},
}


class Replica:
    """Answers at once."""

    async def __call__(self, request: SimpleNamespace) -> int:
        return len(request.prompt)


def deploy(name: str) -> Any:  # noqa: ANN401 - a handle
    """Run one deployment. Returns its handle."""
    from ray import serve

    path = ROUTERS[name]
    config = (
        {}
        if path is None
        else {"request_router_config": {"request_router_class": path, "request_router_kwargs": OPTIONS.get(name, {})}}
    )
    options: dict[str, Any] = {"num_replicas": 3, "max_ongoing_requests": 100, "ray_actor_options": {"num_cpus": 0}}
    deployment: Any = serve.deployment(Replica)
    return serve.run(deployment.options(**options, **config).bind(), name=name, route_prefix=None)


def measure(handles: dict[str, Any], length: int, requests: int, rng: random.Random) -> dict[str, list[float]]:
    """Send requests by turns. Returns the milliseconds of each, by router."""
    known = [prompt(rng, length) for _ in range(8)]
    found: dict[str, list[float]] = {name: [] for name in handles}
    for turn in range(-20, requests):
        body = SimpleNamespace(prompt=prompt(rng, length) if turn % 4 == 0 else rng.choice(known))
        for name in rng.sample(list(handles), len(handles)):
            begin = time.perf_counter_ns()
            handles[name].remote(body).result(timeout_s=60)
            if turn >= 0:
                found[name].append((time.perf_counter_ns() - begin) / 1e6)
    return found


def prompt(rng: random.Random, length: int) -> str:
    """Write a prompt."""
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz     ", k=length))


def main(requests: int) -> None:
    """Measure and print."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray import serve

    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # short, as Ray makes socket paths of it
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100_000_000,
        _node_ip_address="127.0.0.1",
        _temp_dir=folder,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
        handles = {name: deploy(name) for name in ROUTERS}
        gc.disable()
        for length in LENGTHS:
            found = measure(handles, length, requests, random.Random(1))
            default = found["power-of-two"]
            for name, times in found.items():
                print(
                    json.dumps(
                        {
                            "characters": length,
                            "router": name,
                            "median_ms": round(statistics.median(times), 2),
                            "p90_ms": round(statistics.quantiles(times, n=10)[-1], 2),
                            "added_ms": round(statistics.median(a - b for a, b in zip(times, default, strict=True)), 2),
                        }
                    ),
                    flush=True,
                )
    finally:
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
