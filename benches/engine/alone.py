"""Single requests, timed while their engine has no other: all that a simulated fleet is calibrated with."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from threading import Barrier
from typing import TYPE_CHECKING, Any

from benches.engine.client import DEADLINE_S, ask
from tests.engine.model import VOCABULARY
from tests.engine.traffic import FIRST_PLAIN_TOKEN
from tests.gateways import GATEWAYS

from cachelb import Router

if TYPE_CHECKING:
    from benches.engine.episode import Fleet

COLD = (512, 1024, 2048, 3072, 4096, 6144, 8192)
"""Lengths of new prompts; each is sent again afterwards."""
PARTS = ((2048, 3072), (4096, 5120), (2048, 4096))
"""Tokens that an engine has of a prompt, and those of the prompt."""
LONGEST = 8192
ANSWER = 17
REPEATS = 3
TOGETHER = 3
OTHERS_AFTER_S = 0.05


@dataclass(frozen=True, slots=True)
class Single:
    """A request that an engine served alone.

    Attributes:
        engine: Position of the engine.
        prompt: Tokens.
        cached: Those of them that the engine found, by its own count.
        output: Tokens of the answer.
        first_s: To the first token, at the client.
        whole_s: To the last token.
    """

    engine: int
    prompt: int
    cached: int
    output: int
    first_s: float
    whole_s: float


def measure(fleet: Fleet) -> dict[str, Any]:
    """Time single requests, the overhead of a gateway, and then requests that the calibration does not use.

    Engines on one machine slow each other down, and in an episode all of them are at work. So the requests that
    calibrate go to all engines at the same moment, one to each.

    Returns:
        `singles`, with all engines at work; `alone`, the same with one at work; `gateway_s`, what a gateway adds to the
        first token of a repeated prompt; and `checks`, requests that met others. It is plain data, for JSON.
    """
    engines = range(len(fleet.urls))
    for url in fleet.urls:  # the first long prompt after a start is slow
        ask(url, _prompt(0, LONGEST), 1)
    singles = []
    for repeat in range(REPEATS):
        fleet.reset()
        start = Barrier(len(engines))
        with ThreadPoolExecutor(len(engines)) as pool:
            working = [pool.submit(_singles, fleet, engine, repeat, start) for engine in engines]
            singles += [single for done in working for single in done.result()]
    fleet.reset()
    alone = [single for engine in engines for single in _singles(fleet, engine, REPEATS, Barrier(1))]
    return {
        "singles": [asdict(single) for single in singles],
        "alone": [asdict(single) for single in alone],
        "gateway_s": _gateway_s(fleet),
        "checks": _checks(fleet),
    }


def _singles(fleet: Fleet, engine: int, repeat: int, start: Barrier) -> list[Single]:
    found = []
    seed = 1_000_000 * (1 + repeat) + 100_000 * engine

    def timed(prompt: list[int]) -> None:
        start.wait(DEADLINE_S)
        answer = ask(fleet.urls[engine], prompt, ANSWER)
        tokens = answer.prompt_tokens, answer.cached_tokens, len(answer.output)
        found.append(Single(engine, *tokens, answer.first_s, answer.whole_s))

    try:
        for length in COLD:
            prompt = _prompt(seed + length, length)
            timed(prompt)
            timed(prompt)
        for held, length in PARTS:
            prompt = _prompt(seed + 10 * held + length, length)
            ask(fleet.urls[engine], prompt[:held], 1)
            timed(prompt)
    except BaseException:
        start.abort()
        raise
    return found


def _gateway_s(fleet: Fleet) -> float:
    """Return the overhead of a gateway, by the medians of a repeated prompt with and without."""
    fleet.reset()
    prompt = _prompt(1, 2048)
    with (
        Router(list(fleet.urls)[:1], policy="round-robin", block_size=fleet.block_size) as router,
        GATEWAYS["starlette"](router) as gateway,
    ):
        for url in (gateway, fleet.urls[0]):
            ask(url, prompt, 1)
        pairs = [[ask(url, prompt, 1).first_s for url in (gateway, fleet.urls[0])] for _ in range(9)]
    through, direct = (sorted(times)[len(times) // 2] for times in zip(*pairs, strict=True))
    return float(max(0.0, through - direct))


def _checks(fleet: Fleet) -> dict[str, float]:
    """Time requests that meet others, to see whether the calibration holds for them."""
    url = fleet.urls[0]

    def behind() -> float:
        time.sleep(OTHERS_AFTER_S)
        return ask(url, _prompt(12, 2048), 1).first_s

    fleet.reset()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(behind)
        ask(url, _prompt(11, 4096), 1)
        waited_s = waiting.result()
    prompts = [_prompt(20 + number, 1024) for number in range(TOGETHER)]
    for prompt in prompts:
        ask(url, prompt, 1)
    with ThreadPoolExecutor(TOGETHER) as pool:
        answers = list(pool.map(lambda prompt: ask(url, prompt, 65), prompts))
    token_s = sum((answer.whole_s - answer.first_s) / (len(answer.output) - 1) for answer in answers) / TOGETHER
    return {"behind_s": waited_s, "token_together_s": token_s}


def _prompt(seed: int, length: int) -> list[int]:
    dice = random.Random(1_000_003 + seed)
    return [dice.randrange(FIRST_PLAIN_TOKEN, VOCABULARY) for _ in range(length)]
