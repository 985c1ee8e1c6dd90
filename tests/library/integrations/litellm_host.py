"""LiteLLM's own router in front of a fake fleet."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from tests import waiting
from tests.loops import wanted, without

from cachelb.integrations.litellm import CachelbCallback
from cachelb_fakes import FakeFleet

litellm: Any = importlib.import_module("litellm")  # its types stay outside: reading them takes a minute

settled = waiting.until

PROMPT = "The quick brown fox jumps over the lazy dog. " * 40


def deployment(key: str, url: str = "http://127.0.0.1:9", group: str = "m", **params: Any) -> dict[str, Any]:
    """One entry of a model list; its engine serves a model of the group's name."""
    access = {"model": f"openai/{group}", "api_base": f"{url}/v1", "api_key": "none"}
    return {"model_name": group, "litellm_params": access | params, "model_info": {"id": key}}


def groups(**urls: Sequence[str]) -> list[dict[str, Any]]:
    """A model list with the deployments `group/0`, `group/1`, ... of each group."""
    return [
        deployment(f"{group}/{place}", url, group) for group, those in urls.items() for place, url in enumerate(those)
    ]


@contextlib.asynccontextmanager
async def hosted(
    callback: CachelbCallback, model_list: Sequence[Mapping[str, Any]], **options: Any
) -> AsyncIterator[Any]:
    """Give a `litellm.Router` with the callback; leave nothing of LiteLLM behind that was not there before."""
    callbacks: list[Any] = [callback]
    litellm.callbacks = callbacks
    litellm.disable_aiohttp_transport = True
    settings: dict[str, Any] = {"num_retries": 0, "retry_after": 0, "disable_cooldowns": True} | options
    router = litellm.Router(model_list=[dict(entry) for entry in model_list], **settings)
    try:
        yield router
    finally:
        worker = importlib.import_module("litellm.litellm_core_utils.logging_worker").GLOBAL_LOGGING_WORKER
        await worker.flush()
        await worker.stop()
        router.discard()
        litellm.logging_callback_manager._reset_all_callbacks()
        for client in list(litellm.in_memory_llm_clients_cache.cache_dict.values()):
            await client.close()
        litellm.in_memory_llm_clients_cache.flush_cache()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        gc.collect()  # while the warnings of what LiteLLM leaves unclosed are those of this test


def messages(text: str = PROMPT) -> list[dict[str, str]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


async def chat(router: Any, text: str = PROMPT, **options: Any) -> str:
    """Send one message and return the id of the deployment that answered."""
    answer = await router.acompletion(**{"model": "m", "messages": messages(text), "max_tokens": 2} | options)
    key: str = answer._hidden_params["model_id"]
    return key


def _one_group(urls: Sequence[str]) -> list[dict[str, Any]]:
    return groups(m=urls)


def in_litellm(
    workers: int, lists: Callable[[Sequence[str]], list[dict[str, Any]]] = _one_group, *, seed: int = 0, **options: Any
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run a test with LiteLLM's `router` and a `callback` in front of a `fleet`: one group, or those of `lists`."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**kwargs: Any) -> None:
            async def main(fleet: FakeFleet, callback: CachelbCallback) -> None:
                async with hosted(callback, lists(fleet.urls), **options) as router:
                    made = {"fleet": fleet, "callback": callback, "router": router}
                    await test(**kwargs, **wanted(test, made))

            with FakeFleet(workers, seed=seed) as fleet:
                asyncio.run(main(fleet, CachelbCallback(seed=1)))

        run.__signature__ = without(test, {"fleet", "callback", "router"})  # type: ignore[attr-defined]  # for pytest
        return run

    return decorate
