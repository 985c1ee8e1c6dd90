"""Sends planned traffic to engines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from tests.engine.engine import Completion, Engine
from tests.engine.traffic import Planned, Prompt, Transcript, waves


class Send(Protocol):
    """Sends a prompt to the engine of its number."""

    def __call__(self, engines: Sequence[Engine], prompt: Prompt, max_tokens: int = 1) -> Completion: ...


def send_prompt(engines: Sequence[Engine], prompt: Prompt, max_tokens: int = 1) -> Completion:
    """Send a prompt to the engine of its number."""
    return engines[prompt.worker].complete(
        prompt.tokens,
        max_tokens=max_tokens,
        adapter=prompt.identity.adapter,
        cache_salt=prompt.identity.cache_salt,
    )


def run_traffic(
    engines: Sequence[Engine],
    plan: Iterable[Planned],
    transcript: Transcript,
    *,
    width: int = 4,
    send: Send = send_prompt,
) -> list[Completion]:
    """Send a plan, or a part of one, with up to `width` requests in flight; a wave is answered before the next begins.

    Args:
        engines: The engines by the number that the plan uses.
        plan: The requests in their order.
        transcript: Takes the answers; give it again with the next part of the same plan.
        width: Requests in flight over all engines.
        send: How to send one; by default past every router.

    Returns:
        The answers in the order of the plan.
    """
    answers: list[Completion] = []
    with ThreadPoolExecutor(width) as pool:
        for wave in waves(plan, width):
            sent = [pool.submit(send, engines, transcript.prompt(each), each.max_tokens) for each in wave]
            for planned, future in zip(wave, sent, strict=True):
                answer = future.result()
                transcript.record(planned, answer.output)
                answers.append(answer)
    return answers
