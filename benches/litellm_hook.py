"""The time that the LiteLLM callback adds to a request: its hook alone, and LiteLLM's selection with and without it.

Run `python benches/litellm_hook.py`. Deployments are never contacted. CPU time,
medians of interleaved rounds.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import statistics
import time
from typing import Any

from cachelb.integrations.litellm import CachelbCallback

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
DEPLOYMENTS, ROUNDS, CALLS = 8, 15, 200
SIZES = {"1k": 1_000, "8k": 8_000, "32k": 32_000}


async def main() -> None:
    """Print one row per prompt size."""
    litellm: Any = importlib.import_module("litellm")
    logging.disable()
    entries = [
        {
            "model_name": "m",
            "litellm_params": {"model": "openai/m", "api_base": f"http://gpu{place}:8000/v1", "api_key": "none"},
            "model_info": {"id": f"gpu{place}"},
        }
        for place in range(DEPLOYMENTS)
    ]
    router = litellm.Router(model_list=entries)
    callback = CachelbCallback(seed=1)
    print(f"{DEPLOYMENTS} deployments, us a request     hook   selection without   with   added")
    for name, length in SIZES.items():
        texts = [f"{number}{'The quick brown fox jumps over the lazy dog. ' * 800}"[:length] for number in range(CALLS)]
        asked = [[{"role": "user", "content": text}] for text in texts]

        async def select(messages: list[dict[str, str]]) -> None:
            request: dict[str, Any] = {"metadata": {"model_group": "m", "attempted_retries": 0}}
            await router.async_get_available_deployment(model="m", request_kwargs=request, messages=messages)
            end(request)

        async def hook(messages: list[dict[str, str]]) -> None:
            request: dict[str, Any] = {"metadata": {"model_group": "m", "attempted_retries": 0}}
            await callback.async_filter_deployments("m", router.model_list, messages, request)
            end(request)

        def end(request: dict[str, Any]) -> None:
            booking = callback._bookings.pop(request.get("litellm_call_id", ""), None)  # noqa: SLF001
            if booking is not None:
                booking.decision.on_complete()

        times: dict[str, list[float]] = {"hook": [], "without": [], "with": []}
        for _ in range(ROUNDS):
            for kind, run in (("hook", hook), ("without", select), ("with", select)):
                litellm.callbacks = [callback] if kind == "with" else []
                begun = time.thread_time()
                for messages in asked:
                    await run(messages)
                times[kind].append((time.thread_time() - begun) / CALLS * 1e6)
        middle = {kind: statistics.median(those) for kind, those in times.items()}
        added = statistics.median(b - a for a, b in zip(times["without"], times["with"], strict=True))
        print(
            f"{name:>4} characters {middle['hook']:22.1f} {middle['without']:19.1f} {middle['with']:6.1f} {added:7.1f}"
        )


if __name__ == "__main__":
    asyncio.run(main())
