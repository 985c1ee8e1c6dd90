"""The gain of boundary learning: the tables of docs/maintainers/boundary-learning-measured.md.

    python benches/boundary_learning.py            # three tables: some minutes on two cores
    python benches/boundary_learning.py depth      # one of depth, diversion, estimate, speed

`estimate` needs tiktoken with its vocabularies in TIKTOKEN_CACHE_DIR, or those that litellm brings along.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pydoc_data.topics
import re
import time
from array import array
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from cachelb import Router
from cachelb.boundaries import MARKERS, estimate, message_boundaries
from cachelb_lab.sim import FleetSpec, Workload, build, simulate
from cachelb_lab.sim.workloads.arrivals import Poisson
from cachelb_lab.sim.workloads.draft import Draft, Piece, Plan, around
from cachelb_lab.sim.workloads.files.columns import runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FLEET = "8xl40s"
SEEDS = (1, 2, 3)
COUNT = 3_000


# === workloads that branch ===


def edits(seed: int) -> Workload:
    """Chats in which a third of the turns goes back to an earlier message and asks something else."""
    draft = Draft("edits", Plan(seed=seed, count=COUNT, arrivals=Poisson(1.6)))
    systems = [draft.piece(int(draft.lengths.integers(300, 1_500))) for _ in range(8)]
    while not draft.full:
        histories: list[list[Piece]] = [[systems[int(draft.prefixes.integers(len(systems)))]]]
        parent = -1
        for turn in range(int(draft.lengths.geometric(1 / 8))):
            back = turn > 1 and draft.prefixes.random() < 1 / 3
            history = histories[int(draft.prefixes.integers(len(histories) - 1))] if back else histories[-1]
            parent = _turn(draft, histories, history, parent, think_s=8.0)
            if len(draft) >= COUNT:
                break
    return draft.finish()


def fan_out(seed: int) -> Workload:
    """Agents that read a task and its files, then send several helpers on from there, each for some turns."""
    draft = Draft("fan-out", Plan(seed=seed, count=COUNT, arrivals=Poisson(0.35)))
    tools = [draft.piece(int(draft.lengths.integers(1_500, 4_000))) for _ in range(4)]
    while not draft.full:
        trunk: list[list[Piece]] = [[tools[int(draft.prefixes.integers(len(tools)))]]]
        parent = -1
        for _ in range(int(draft.lengths.integers(2, 6))):
            parent = _turn(draft, trunk, trunk[-1], parent, think_s=1.0, new_tokens=600)
            if len(draft) >= COUNT:
                return draft.finish()
        for _ in range(int(draft.lengths.integers(2, 6))):
            branch, row = [trunk[-1]], parent
            for _ in range(int(draft.lengths.geometric(1 / 4))):
                row = _turn(draft, branch, branch[-1], row, think_s=1.0, new_tokens=250)
                if len(draft) >= COUNT:
                    return draft.finish()
    return draft.finish()


def _turn(
    draft: Draft,
    histories: list[list[Piece]],
    history: list[Piece],
    parent: int,
    *,
    think_s: float,
    new_tokens: int = 130,
) -> int:
    """Append a turn to a history; the result is the last of the histories."""
    prompt = [*history, draft.piece(around(draft.lengths, new_tokens))]
    answer = draft.piece(around(draft.lengths, 180))
    pause_s = around(draft.pauses, think_s * 1000) / 1000 if parent >= 0 else 0.0
    row = draft.request(prompt, answer, parent=parent, think_s=pause_s, session="")
    histories.append([*prompt, answer])
    return row


def chats(seed: int) -> Workload:
    """Chats behind some system prompts, which part there and nowhere else."""
    return build("chat", seed=seed, count=COUNT, rate=1.4)


def mostly_one(seed: int) -> Workload:
    """Chats of which four of five begin with the same system prompt, the others with one of their own."""
    draft = Draft("mostly-one", Plan(seed=seed, count=COUNT, arrivals=Poisson(1.0)))
    common = draft.piece(4_000)
    while not draft.full:
        histories = [[common if draft.prefixes.random() < 0.8 else draft.piece(4_000)]]
        parent = -1
        for _ in range(int(draft.lengths.geometric(1 / 6))):
            parent = _turn(draft, histories, histories[-1], parent, think_s=8.0)
            if len(draft) >= COUNT:
                break
    return draft.finish()


WORKLOADS: dict[str, Callable[[int], Workload]] = {"chat": chats, "edits": edits, "fan-out": fan_out}

SHARED: dict[str, Callable[[int], Workload]] = {
    "questions, 6/s": lambda seed: build("monopoly", seed=seed, count=COUNT, rate=6.0),
    "questions, 12/s": lambda seed: build("monopoly", seed=seed, count=COUNT, rate=12.0),
    "chats, about 6/s": mostly_one,
}
"""Four of five requests share a system prompt of 4,000 tokens."""


def as_it_is(workload: Workload, _seed: int) -> Workload:
    """The ends of messages are known."""
    return workload


def unknown(workload: Workload) -> Workload:
    """The ends of messages are unknown."""
    return replace(workload, boundaries=None, boundary_offsets=None)


def only_last(workload: Workload) -> Workload:
    """Only the end of the last message of each prompt is known."""
    assert workload.boundaries is not None
    assert workload.boundary_offsets is not None
    last = workload.boundary_offsets[1:].astype(np.int64) - 1
    offsets = np.arange(len(workload) + 1, dtype=np.uint64)
    return replace(workload, boundaries=workload.boundaries[last], boundary_offsets=offsets)


def as_estimated(workload: Workload, seed: int) -> Workload:
    """Ends are off as in an estimate: mostly by 10 tokens, and more in the middle of a prompt."""
    assert workload.boundaries is not None
    assert workload.boundary_offsets is not None
    rng = np.random.default_rng(seed)
    counts = runs(workload.boundary_offsets, workload.boundaries, len(workload))
    ends, total = workload.boundaries.astype(np.float64), np.repeat(workload.prompt_tokens, counts)
    part = ends / total
    off = rng.normal(0.0, 0.75, len(ends)) * np.sqrt(total * part * (1 - part))
    moved = np.clip(ends + off, 0, total).astype(np.uint32)
    rows = np.split(moved, workload.boundary_offsets[1:-1].astype(np.int64))
    return replace(workload, boundaries=np.concatenate([np.maximum.accumulate(row) for row in rows]))


def figures(workload: Workload, policy: str, seed: int, **options: Any) -> tuple[float, float, float]:  # noqa: ANN401 - the policy's
    """Return the hit rate, and the mean and 99th percentile of the time to the first token."""
    result = simulate(workload, FleetSpec.parse(FLEET), policy, seed=seed, **options)
    served = result.finished
    prompt = workload.prompt_tokens[served].sum(dtype=np.int64)
    hits = float(result.cached_tokens[served].sum(dtype=np.int64) / prompt)
    return hits, float(result.ttft_s.mean()), float(np.percentile(result.ttft_s, 99))


# === the tables ===


def depth() -> Iterator[str]:
    """Learn at every boundary, at one of them, or at a fixed length."""
    ways: dict[str, tuple[Callable[[Workload, int], Workload], str, dict[str, Any]]] = {
        "every boundary": (as_it_is, "boundary-learning", {}),
        "every boundary, estimated": (as_estimated, "boundary-learning", {}),
        "the first only (`multi_depth=False`)": (as_it_is, "boundary-learning", {"multi_depth": False}),
        "the last only": (lambda made, _: only_last(made), "boundary-learning", {}),
        "128 tokens (no boundaries)": (lambda made, _: unknown(made), "boundary-learning", {}),
        "`cache-aware`, for comparison": (as_it_is, "cache-aware", {}),
        "`round-robin`, for comparison": (as_it_is, "round-robin", {}),
    }
    yield "| learned at | " + " | ".join(f"{name}: hits, mean TTFT, P99" for name in WORKLOADS) + " |"
    yield "|---" * (len(WORKLOADS) + 1) + "|"
    for way, (change, policy, options) in ways.items():
        yield f"| {way} | " + " | ".join(_cell(make, change, policy, options) for make in WORKLOADS.values()) + " |"


def _cell(
    make: Callable[[int], Workload],
    change: Callable[[Workload, int], Workload],
    policy: str,
    options: dict[str, Any],
) -> str:
    found = [figures(change(make(seed), seed), policy, seed, **options) for seed in SEEDS]
    hits, ttft, p99 = (list(column) for column in zip(*found, strict=True))
    spread = f"{100 * min(hits):.1f}-{100 * max(hits):.1f}"
    return f"{100 * mean(hits):.1f} % ({spread}), {1000 * mean(ttft):.0f} ms, {1000 * mean(p99):.0f} ms"


def diversion() -> Iterator[str]:
    """Leave an overloaded worker, or never, where four of five requests share a system prompt."""
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "never": ("boundary-learning", {"load_imbalance_factor": None, "epsilon": None}),
        "never, but new prefixes are bounded": ("boundary-learning", {"load_imbalance_factor": None}),
        '2x median + 2, `learn="served"`': ("boundary-learning", {}),
        '2x median + 2, `learn="original"`': ("boundary-learning", {"learn": "original"}),
        "`cache-aware`, for comparison": ("cache-aware", {}),
    }
    yield "| diverts | " + " | ".join(f"{name}: hits, mean TTFT, P99" for name in SHARED) + " |"
    yield "|---" * (len(SHARED) + 1) + "|"
    for way, (policy, options) in ways.items():
        cells = [_cell(make, as_it_is, policy, options) for make in SHARED.values()]
        yield f"| {way} | " + " | ".join(cells) + " |"


def agreement() -> Iterator[str]:
    """Compare estimated ends of messages with those of real tokenizers."""
    import tiktoken

    texts = [
        text
        for topic in pydoc_data.topics.topics.values()
        for part in re.split(r"\n\s*\n", topic)
        if len(text := re.sub(r"\s+", " ", part).strip()) > 80
    ]
    yield "| tokenizer | system prompt | ends | same 16-token block | off by at most 5 | median, 90th, 99th error |"
    yield "|---|---|---|---|---|---|"
    for name in ("cl100k_base", "o200k_base"):
        encoding = tiktoken.get_encoding(name)
        for paragraphs in (1, 4, 10):
            errors, same = [], []
            rng = np.random.default_rng(0)
            for _ in range(150):
                parts = _chat(rng, texts, paragraphs)
                lengths = [len(encoding.encode("".join(parts[: at + 1]))) for at in range(len(parts))]
                guess = estimate(list(accumulate(map(len, parts))), lengths[-1])
                # The last one is the length of the prompt and no guess.
                errors += np.abs(guess - lengths)[:-1].tolist()
                same += [int(a) // 16 == b // 16 for a, b in zip(guess[:-1], lengths[:-1], strict=True)]
            median, ninety, most = np.percentile(errors, [50, 90, 99])
            close = mean(error <= 5 for error in errors)
            size = f"{paragraphs} paragraph{'s' * (paragraphs > 1)}"
            yield (
                f"| {name} | {size} | {len(errors)} | {100 * mean(same):.0f} % | {100 * close:.0f} % | "
                f"{median:.0f}, {ninety:.0f}, {most:.0f} tokens |"
            )


def _chat(rng: np.random.Generator, texts: list[str], paragraphs: int) -> list[str]:
    """Return the messages of a chat as a template without markers writes them."""
    parts = ["### System:\n" + " ".join(rng.choice(texts, paragraphs)) + "\n\n"]
    for turn in range(int(rng.integers(1, 9))):
        content = " ".join(rng.choice(texts, int(rng.integers(1, 3))))
        parts.append(f"### {('User', 'Assistant')[turn % 2]}:\n{content}\n\n")
    return parts


def speed() -> Iterator[str]:
    """Time the cost of a request: finding boundaries, and a selection on a full table."""
    yield "| step | time |"
    yield "|---|---|"
    for size in (2_048, 32_768):
        ids = np.arange(size, dtype=np.uint32)
        ids[:: size // 16] = MARKERS["chatml"]
        for form, tokens in (("buffer", array("I", ids.tolist())), ("list", ids.tolist())):
            found = _best(partial(message_boundaries, tokens, messages=15))
            yield f"| `message_boundaries`, {size:,} tokens, {form} | {found * 1e6:.0f} us |"
        for routes in (0, 100_000):
            yield f"| select + complete, {size:,} tokens, {routes:,} routes | {_select(size, routes) * 1e6:.0f} us |"


def _best(call: Callable[[], object], repeat: int = 200) -> float:
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def _select(size: int, routes: int) -> float:
    """Return the seconds of a selection and its end, with so many routes at depths all over."""
    router = Router([f"w{n}" for n in range(8)], policy="boundary-learning", seed=1)
    before = router.stats().memory_bytes
    ends = list(range(16, 32_768 + 1, 16))
    for number in range(routes // len(ends)):
        tokens = np.full(32_768, number + 10, dtype=np.uint32)
        router.select_worker(tokens=tokens, boundaries=ends).on_complete()
    if routes:
        used = (router.stats().memory_bytes - before) / router.stats().routes
        print(f"{used:.0f} bytes a route", flush=True)
    prompt = array("I", range(1 << 20, (1 << 20) + size))
    boundaries = list(range(size // 16, size + 1, size // 16))
    return _best(lambda: router.select_worker(tokens=prompt, boundaries=boundaries).on_complete())


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "depth": depth,
    "diversion": diversion,
    "estimate": agreement,
    "speed": speed,
}


def main() -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=list(TABLES), metavar="TABLE", help=", ".join(TABLES))
    found = importlib.util.find_spec("litellm")
    if found is not None and found.origin is not None:
        brought = Path(found.origin).parent / "litellm_core_utils" / "tokenizers"
        os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(brought))
    for name in parser.parse_args().tables:
        print(f"\n{name}: {TABLES[name].__doc__}\n")
        for line in TABLES[name]():
            print(line, flush=True)


if __name__ == "__main__":
    main()
