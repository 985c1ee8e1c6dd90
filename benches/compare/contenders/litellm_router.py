"""LiteLLM's router, which looks at no prompt."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from benches.structures.measures.selecting import KEYS
from benches.structures.prompts import Contender

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Sequence

    from benches.structures.prompts import Prompt


def contender(_given: Sequence[Prompt], stack: contextlib.ExitStack) -> Contender:
    """Build the router with a deployment per worker."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no download of a price list
    from litellm.router import Router

    models = [
        {"model_name": "m", "litellm_params": {"model": "openai/m", "api_base": key, "api_key": "none"}} for key in KEYS
    ]
    router: Any = Router(model_list=models)
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    messages = [{"role": "user", "content": "x"}]

    def select(_prompt: Prompt) -> None:
        picking = router.async_get_available_deployment(model="m", messages=messages, request_kwargs={})
        loop.run_until_complete(picking)

    return Contender("LiteLLM", select, "simple-shuffle: looks at no prompt, books nothing")
