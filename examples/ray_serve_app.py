"""An LLM application on Ray Serve whose requests go where their prompt is cached.

    pip install '.[ray]'        # in a checkout of cachelb
    python examples/ray_serve_app.py --replicas 3

The deployment stands in for `ray.serve.llm`'s, so that it runs without a GPU: it "caches" the prompts it saw. With a
real one, the same `request_router_config` goes into `LLMConfig(deployment_config=...)`.
"""

from __future__ import annotations

import argparse
from typing import Any

from ray import serve

ROUTER = {
    "request_router_class": "cachelb.integrations.ray_serve.CachelbRequestRouter",
    "request_router_kwargs": {
        "block_size": 16,  # as the engines have it; any other option of cachelb.Router goes beside it
        "shared": True,  # several ingress replicas or proxies share what they know
    },
}


SMALL = {"num_cpus": 0.1}


@serve.deployment(num_replicas=3, max_ongoing_requests=64, request_router_config=ROUTER, ray_actor_options=SMALL)
class Model:
    """An engine with a prefix cache and no model."""

    def __init__(self) -> None:
        self._name = serve.get_replica_context().replica_id.unique_id
        self._conversations: dict[str, int] = {}

    async def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        """Say how many messages of the conversation were cached, and cache this one."""
        head, turns = body["messages"][0]["content"], len(body["messages"])
        cached = self._conversations.get(head, 0)
        self._conversations[head] = turns
        return {"replica": self._name, "cached_messages": cached, "messages": turns}


@serve.deployment(ray_actor_options=SMALL)
class Ingress:
    """Passes requests on. Its handle picks the replica, in its own process."""

    def __init__(self, model: Any) -> None:
        self._model = model

    async def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a request."""
        answer: dict[str, Any] = await self._model.remote(body)
        return answer


def build(replicas: int) -> serve.Application:
    """Build the application, as `serve run` and `serve.run` take it."""
    model: Any = Model
    ingress: Any = Ingress
    application: serve.Application = ingress.bind(model.options(num_replicas=replicas).bind())
    return application


def converse(handle: Any, conversations: int, turns: int) -> float:
    """Hold conversations by turns. Returns the share of earlier messages that the replica had cached."""
    cached = earlier = 0
    for turn in range(1, turns + 1):
        for number in range(conversations):
            text = f"Conversation {number}. " * 20
            messages = [{"role": "user", "content": text}] * (2 * turn - 1)
            answer = handle.remote({"messages": messages}).result()
            cached += answer["cached_messages"]
            earlier += max(2 * turn - 3, 0)
    return cached / earlier


def main() -> None:
    """Run the application, talk to it, and say how much was cached."""
    parser = argparse.ArgumentParser(description="Talk to cachelb in Ray Serve")
    parser.add_argument("--replicas", type=int, default=3)
    replicas = parser.parse_args().replicas
    handle = serve.run(build(replicas), name="cachelb-example", route_prefix=None)
    share = converse(handle, conversations=12, turns=4)
    print(f"{share:.0%} of the earlier messages were in the cache of the replica that got the next one")


if __name__ == "__main__":
    main()
