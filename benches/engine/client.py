"""A client that streams a completion and notes when the first token came."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from tests.http_client import connect

from cachelb.answers import retry_after

DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer; `cached_tokens` is the engine's own word."""

    output: list[int]
    prompt_tokens: int
    cached_tokens: int
    first_s: float
    whole_s: float
    refused: int  # times it was answered 429, and sent again


def ask(url: str, prompt: list[int], max_tokens: int) -> Streamed:
    """Complete a prompt of token ids.

    One that is refused for load (429) is sent again when `Retry-After` has passed; its times begin with the first try.

    Args:
        url: An engine, or a gateway in front of some.
        prompt: Token ids.
        max_tokens: Tokens to generate; the end-of-text token does not stop earlier.

    Raises:
        RuntimeError: The answer is not 200, or ends before its usage.
    """
    body = {
        "model": "m",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    data = json.dumps(body).encode()
    began, refused = time.perf_counter(), 0
    while (answer := _try(url, data, began, refused)) is None:
        refused += 1
    return answer


def _try(url: str, data: bytes, began: float, refused: int) -> Streamed | None:
    """Send a request; return None if it was refused, when it may be sent again."""
    output: list[int] = []
    first_s, usage = 0.0, None
    connection = connect(url, DEADLINE_S)
    try:
        connection.request("POST", "/v1/completions", data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        wait_s = retry_after(dict(response.headers))
        if response.status == 429 and wait_s is not None and time.perf_counter() - began < DEADLINE_S:
            connection.close()
            time.sleep(wait_s)
            return None
        if response.status != 200:
            raise RuntimeError(f"{url} answered {response.status}: {response.read(500).decode(errors='replace')}")
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            now = time.perf_counter()
            event = json.loads(line.removeprefix(b"data: "))
            ids = [token for choice in event.get("choices", ()) for token in choice.get("token_ids") or ()]
            if ids and not output:
                first_s = now - began
            output += ids
            usage = event.get("usage") or usage
        whole_s = time.perf_counter() - began
    finally:
        connection.close()
    if usage is None or not output:
        raise RuntimeError(f"the answer of {url} ended after {len(output)} tokens, and usage {usage}")
    cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
    return Streamed(output, usage["prompt_tokens"], cached, first_s, whole_s, refused)
