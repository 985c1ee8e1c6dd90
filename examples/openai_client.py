"""A client that routes by itself: each request of OpenAI's client goes to the worker that caches its prompt.

Run `python openai_client.py http://gpu0:8000 http://gpu1:8000`. It needs `openai` and `httpx`, and no gateway.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import httpx
from openai import AsyncOpenAI

import cachelb
from cachelb.integrations.httpx import RoutingTransport

QUESTIONS = ("Why is the sky blue?", "And red in the evening?", "Thanks!")


def client_for(router: cachelb.Router[str]) -> AsyncOpenAI:
    """Return a client whose requests the router places; the host of `base_url` is ignored."""
    http_client = httpx.AsyncClient(transport=RoutingTransport(router, attempts=3), timeout=600)
    return AsyncOpenAI(base_url="http://fleet/v1", api_key="none", http_client=http_client)


async def converse(router: cachelb.Router[str], model: str) -> list[str]:
    """Ask the questions in one conversation; return the keys of the workers that answered."""
    messages: list[Any] = [{"role": "system", "content": "You are a helpful assistant. " * 20}]
    async with client_for(router) as client:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            answer = await client.chat.completions.create(model=model, messages=messages, max_tokens=8)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    return [record.key for record in router.records.recent(len(QUESTIONS))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workers", nargs="+", help="URLs of vLLM or SGLang")
    parser.add_argument("--model", default="any")
    given = parser.parse_args()
    with cachelb.Router[str](given.workers) as router:
        print(*asyncio.run(converse(router, given.model)), sep="\n")
