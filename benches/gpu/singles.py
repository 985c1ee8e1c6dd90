"""Single requests at an engine that runs, beside the simulator's: tables of first tokens and of tokens of answers.

    python -m benches.gpu.singles --url http://127.0.0.1:8000 --gpu h200 --model llama-3.1-8b --vocabulary 4096
    python -m benches.gpu.singles --url http://127.0.0.1:8000 --gpu h200 --mfu 1.31 --prompts 512,8192 --answers 16x512

The engine is one of `engines.sh`, and does nothing else meanwhile. The simulator's times are its passes alone: an
engine's have HTTP, the API and the client on top.
"""

from __future__ import annotations

import argparse
import random
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from benches.engine.client import ask
from benches.engine.replay import new_prompts
from tests.engine.traffic import FIRST_PLAIN_TOKEN

from cachelb.common.calls import split_list
from cachelb_lab.sim import FleetSpec, Signals, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROMPTS = "512,2048,8192,16384,30000"
ANSWERS = "1x512,1x30000,16x512,16x8000"
ANSWER_TOKENS = 65
_WRITTEN = re.compile(r"([1-9]\d*)x([1-9]\d*)")


@dataclass(frozen=True, slots=True)
class Together:
    """So many requests at a time, each with a prompt of so many tokens."""

    count: int
    prompt: int

    @classmethod
    def parse_list(cls, text: str) -> list[Together]:
        """Read COUNTxTOKENS, with commas."""
        parts = [_WRITTEN.fullmatch(each) for each in split_list(text)]
        found = [cls(int(part[1]), int(part[2])) for part in parts if part]
        if len(found) < len(parts):
            raise argparse.ArgumentTypeError(f"must be like {ANSWERS}, got {text!r}")
        return found

    def __str__(self) -> str:
        return f"{self.count} x {self.prompt:,}"


def first_s(url: str, prompt: int, new_prompt: Callable[[int], list[int]], repeats: int) -> float:
    """Return the time to the first token of new prompts, one after the other, in seconds; the median."""
    return median(ask(url, new_prompt(prompt), 1).first_s for _ in range(repeats))


def token_s(url: str, each: Together, new_prompt: Callable[[int], list[int]]) -> float:
    """Return the time between tokens of answers that an engine gives together, in seconds; the median.

    The prompts are cached before, so that all answers begin at nearly the same time.
    """
    prompts = [new_prompt(each.prompt) for _ in range(each.count)]
    for prompt in prompts:
        ask(url, prompt, 1)
    with ThreadPoolExecutor(each.count) as pool:
        answers = list(pool.map(lambda prompt: ask(url, prompt, ANSWER_TOKENS), prompts))
    return median((answer.whole_s - answer.first_s) / (len(answer.output) - 1) for answer in answers)


def simulated(fleet: FleetSpec, each: Together) -> tuple[float, float]:
    """Return the simulator's time to the first token and between tokens, in seconds."""
    workload = new_prompts(
        fleet.workers[0].block_size,
        [each.prompt] * each.count,
        arrival_s=[0.0] * each.count,
        answer_tokens=ANSWER_TOKENS,
    )
    result = simulate(workload, fleet, "round-robin", signals=Signals(net_delay_s=0))
    # The last to begin: before that, passes have prompts of others in them.
    last = int(np.argmax(result.first_token_s))
    between = (result.finish_s[last] - result.first_token_s[last]) / (ANSWER_TOKENS - 1)
    return float(result.first_token_s[0] - result.arrival_s[0]), float(between)


def table(head: str, columns: Sequence[object], found: Sequence[float], modelled: Sequence[float]) -> str:
    """Write the times of both and their ratio, in milliseconds."""
    lines = [f"{head:24}{'engine, ms':>12}{'simulator':>12}{'ratio':>8}"]
    for column, engine, model in zip(columns, found, modelled, strict=True):
        lines.append(f"{column!s:24}{engine * 1e3:>12.1f}{model * 1e3:>12.1f}{model / engine:>8.2f}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Time single requests, then answers, and print both tables."""
    given = _arguments(arguments)
    dice = random.Random(1)
    fleet = FleetSpec.parse(f"1x{given.gpu}", model=given.model, mfu=given.mfu, block_size=given.block_size)

    def new_prompt(tokens: int) -> list[int]:
        return [dice.randrange(FIRST_PLAIN_TOKEN, given.vocabulary) for _ in range(tokens)]

    ask(given.url, new_prompt(max(given.prompts)), 1)  # the first long prompt after a start is slow
    firsts = [first_s(given.url, prompt, new_prompt, given.repeats) for prompt in given.prompts]
    modelled = [simulated(fleet, Together(1, prompt))[0] for prompt in given.prompts]
    print(table("tokens of the prompt", [f"{prompt:,}" for prompt in given.prompts], firsts, modelled), end="\n\n")
    tokens = [token_s(given.url, each, new_prompt) for each in given.answers]
    print(table("requests x prompt", given.answers, tokens, [simulated(fleet, each)[1] for each in given.answers]))


def _numbers(text: str) -> list[int]:
    try:
        return [int(each) for each in split_list(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers with commas, got {text!r}") from None


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="the engine; serves its model as `m`")
    parser.add_argument("--gpu", required=True, help="what the simulator takes it for, as h100 or h200")
    parser.add_argument("--model", default="llama-3.1-8b", help="the same, of the model")
    parser.add_argument("--mfu", type=float, default=1.0, help="factor on the GPU's share of its peak")
    parser.add_argument("--prompts", type=_numbers, default=PROMPTS, help="tokens of each, with commas")
    parser.add_argument(
        "--answers",
        type=Together.parse_list,
        default=ANSWERS,
        help="requests at a time x tokens of each prompt, with commas",
    )
    parser.add_argument("--repeats", type=int, default=4, help="new prompts of each length; their median counts")
    parser.add_argument("--vocabulary", type=int, default=32_000, help="token ids are below this")
    parser.add_argument("--block-size", type=int, default=16)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
