"""Types that checkers must accept and infer; mypy and pyright read this file, nothing runs it."""

from __future__ import annotations

from array import array
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray
from tests.typing.router import Engine, Replica

from cachelb import Decision
from cachelb.policies import CacheAware, RoundRobin


def strings(policy: CacheAware) -> None:
    decision = policy.select_worker(["http://gpu0:8000"], tokens=[1, 2, 3])
    assert_type(decision.worker, str)
    assert_type(decision.matched_tokens, int)
    decision.on_complete()


def own_objects(policy: RoundRobin, replicas: list[Replica], engines: tuple[Engine, ...]) -> None:
    assert_type(policy.select_worker(replicas).worker, Replica)
    assert_type(policy.select_worker(engines).worker, Engine)


def dicts(deployments: list[dict[str, Any]]) -> None:
    policy = CacheAware(key=lambda deployment: deployment["model_info"]["id"])
    assert_type(policy.select_worker(deployments).worker, dict[str, Any])


def token_inputs(policy: CacheAware, tokens: NDArray[np.uint32], packed: array[int], view: memoryview) -> None:
    workers = ["http://gpu0:8000"]
    for given in (tokens, packed, view, b"\0\0\0\0", (1, 2), range(3)):
        policy.select_worker(workers, tokens=given)


def context_manager(policy: CacheAware) -> None:
    with policy.select_worker(["http://gpu0:8000"]) as decision:
        assert_type(decision.worker, str)


def passed_on(decision: Decision[Replica]) -> str:
    return decision.worker.url
