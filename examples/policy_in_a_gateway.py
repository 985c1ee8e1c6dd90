"""A policy class of cachelb inside a gateway that keeps its own workers, their health and its retries.

The gateway's class has one method that picks a backend for a request; that is where the policy goes. Run
`python policy_in_a_gateway.py`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from cachelb import Decision
from cachelb.policies import Adaptive, CacheAware


@dataclass
class Backend:
    """A worker as the gateway has it; `healthy` is read by the policy."""

    url: str
    healthy: bool = True


class Balancer:
    """The gateway's own interface: `pick` in place of its round robin."""

    def __init__(self, backends: list[Backend], policy: Adaptive | CacheAware | None = None) -> None:
        self.backends, self.policy = backends, policy or Adaptive()

    def pick(self, request: dict[str, Any]) -> AbstractContextManager[Decision[Backend]]:
        """Book a backend until the end of the `with` block."""
        if "messages" in request:
            return self.policy.select_worker(self.backends, messages=request["messages"])
        return self.policy.select_worker(self.backends, text=request["prompt"])


if __name__ == "__main__":
    balancer = Balancer([Backend("http://gpu0:8000"), Backend("http://gpu1:8000")], CacheAware(seed=1))
    chat = [{"role": "user", "content": "Tell me a story. " * 40}]
    with balancer.pick({"messages": chat}) as first:
        print(first.worker.url, first.reason)
    with balancer.pick({"messages": [*chat, {"role": "assistant", "content": "Once upon a time"}]}) as second:
        print(second.worker.url, second.reason)
    first.worker.healthy = False
    with balancer.pick({"messages": chat}) as third:
        print(third.worker.url, third.reason)
