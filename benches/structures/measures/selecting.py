"""A whole decision: a worker is selected and booked for a prompt, the request ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from benches.structures.prompts import WORKERS, Contender, Prompt, prompts
from benches.structures.rows import Row
from benches.structures.timing import timed

from cachelb import Router

LENGTHS = (512, 2_048, 8_192, 32_768)
KEYS = [f"http://w{worker}:8000" for worker in range(WORKERS)]
_MOST_PROMPTS = 256
_MOST_TOKENS = 1 << 21


def measure(calls: int, *others: Callable[[Sequence[Prompt], contextlib.ExitStack], Contender]) -> Iterator[Row]:
    """Select workers for prompts that were seen before."""
    for length in LENGTHS:
        given = prompts(min(_MOST_PROMPTS, _MOST_TOKENS // length), length, seed=3)
        for prompt in given:
            _ = prompt.array
        with contextlib.ExitStack() as stack:
            own = (_own("cachelb", "tokens"), _own("cachelb, numpy", "array"))
            contenders = (*own, *(build(given, stack) for build in others))
            bound = {each.name: each.over(given) for each in contenders}
            for call in bound.values():
                for i in range(len(given)):
                    call(i)
            yield from timed(f"select/{length}", bound, calls, {each.name: each.note for each in contenders})


def _own(name: str, form: str) -> Contender:
    router = Router(KEYS, seed=1)

    def select(prompt: Prompt) -> None:
        decision = router.select_worker(tokens=getattr(prompt, form))
        decision.on_first_token()
        decision.on_complete()

    return Contender(name, select, "the default policy: hash, match, pick, book, remember, end")
