"""The example for the LiteLLM proxy: its configuration, loaded as the proxy does, in LiteLLM's own router."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.litellm_host import PROMPT, chat, hosted, settled

from cachelb.integrations.litellm import CachelbCallback
from cachelb.testing import FakeFleet

CONFIG = Path(__file__).parent.parent / "examples" / "litellm_proxy.yaml"


# LiteLLM warns about its own models and leaves sockets to the collector.
@pytest.mark.filterwarnings("ignore")
def test_example_routes_and_reads_the_engines_metrics() -> None:
    load = importlib.import_module("litellm.proxy.types_utils.utils").get_instance_fn
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text("utf-8"))
    callback: CachelbCallback = load(config["litellm_settings"]["callbacks"], str(CONFIG))

    async def run(fleet: FakeFleet) -> None:
        for entry, url in zip(config["model_list"], fleet.urls, strict=True):
            entry["litellm_params"] |= {"api_base": f"{url}/v1", "api_key": "none"}
        async with hosted(callback, config["model_list"], **config["router_settings"]) as router:
            homes = [await chat(router, f"{number}{PROMPT}", model="llama") for number in range(2)] * 2
            again = [await chat(router, f"{number % 2}{PROMPT}", model="llama") for number in range(4)]
            assert again == homes
            assert set(homes) == {"gpu0", "gpu1"}
            await settled(lambda: callback.router.stats().open_requests == 0)
            await settled(lambda: all(worker.report_age_s is not None for worker in callback.router.stats().workers))

    with callback.router, FakeFleet(2) as fleet:
        asyncio.run(run(fleet))
    assert callback.router.stats().endings["completed"] == 6
