"""The `LLMConfig` form of the documented snippet. Engines are not needed to construct one, a GPU neither."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from ray import serve
from tests.library.integrations.ray_fakes import PREFIX_KWARGS

from cachelb.integrations.ray_serve import CachelbRequestRouter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    # `ray.serve.llm` exports this class, but its import needs an installed engine.
    from ray.llm._internal.serve.core.configs.llm_config import LLMConfig

PATH = "cachelb.integrations.ray_serve.CachelbRequestRouter"


class Engine:
    """Stands where Ray puts the deployment of the engine."""


def llm_config(router: object, kwargs: dict[str, Any]) -> LLMConfig:
    """Ray's example with another router."""
    return LLMConfig(
        model_loading_config={"model_id": "qwen-0.5b", "model_source": "Qwen/Qwen2.5-0.5B-Instruct"},
        deployment_config={
            "autoscaling_config": {"min_replicas": 4, "max_replicas": 4},
            "request_router_config": {"request_router_class": router, "request_router_kwargs": kwargs},
        },
        runtime_env={"env_vars": {"VLLM_USE_V1": "1"}},
    )


@pytest.mark.parametrize("router", [CachelbRequestRouter, PATH], ids=["class", "path"])
def test_llm_config_takes_the_router_and_its_six_options(router: object) -> None:
    config = llm_config(router, PREFIX_KWARGS).deployment_config
    deployment: Any = serve.deployment(Engine)
    chosen = deployment.options(**config)._deployment_config.request_router_config
    assert chosen.get_request_router_class() is CachelbRequestRouter
    assert chosen.request_router_kwargs == PREFIX_KWARGS
