"""Policies in front of two real vLLM on this machine's CPUs: writes docs/maintainers/engines-measured.md.

    make bench-engine                                      # 8 policies, 12 rounds; 25 minutes on two idle cores
    make bench-engine BENCH_ARGS="--policy round-robin,adaptive(a=1)+events"  # others; stored rounds are filled up
    make bench-engine BENCH_ARGS="--minutes 9"             # as many episodes as that; the next call goes on
    make bench-engine BENCH_ARGS="--write"                 # write the page of the episodes there are
    make bench-engine BENCH_ARGS="--size tiny --chats 4 --rounds 1 --out page.md --runs runs.jsonl"

Policies take turns, another one first in each round; in a round all have the same chats. Before each episode the
engines' caches are emptied, and the router is a new one. Every finished episode is kept in bench-results/engines.jsonl.
A policy with options of `cachelb.Admission`, as in adaptive(max_wait_s=1.5), is played through `cachelb serve`, and
clients send what is refused again after `Retry-After`; the simulated fleet, which does not, leaves it out.
Single requests, timed whenever the engines are started, calibrate the simulated fleet that plays the same episodes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benches.engine.alone import LONGEST, measure
from benches.engine.calibration import fit, gateway_s, shaken
from benches.engine.episode import POLICIES, Fleet, play
from benches.engine.figures import BASE, Rounds
from benches.engine.page import page, picture
from benches.engine.replay import replay
from benches.engine.workload import Shape
from benches.learned.store import Store
from benches.report import machine
from tests.engine.engine import BLOCK_SIZE, Engine, running, write_model
from tests.engine.install import VERSION
from tests.engine.model import SIZES, VOCABULARY

from cachelb.common.calls import split_list
from cachelb.events import Endpoint
from cachelb_lab.sim.contender import ORACLE, Contender, admission_apart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
REPLAYS = 5
PICTURE = "images/engines-measured.svg"
# An AVX2 processor has no arithmetic for bfloat16 and is ten times slower with it.
DTYPE = "float32"


def main() -> None:
    """Play missing rounds, then write the page."""
    given = _arguments()
    shape = replace(Shape(vocabulary=VOCABULARY), chats=given.chats, turns=given.turns)
    settings: dict[str, Any] = {"size": given.size, "dtype": DTYPE, "tokens_per_cache": given.cache_tokens}
    settings |= {**asdict(shape), "turn_tokens": list(shape.turn_tokens)}
    settings |= {"distinct": shape.distinct, "last_prompt": shape.last_prompt}
    store = Store(given.runs)
    if "settings" not in store:
        store.add("settings", {"settings": settings, **machine(), "vllm": VERSION})
    elif store["settings"]["settings"] != settings:
        raise SystemExit(f"{given.runs} is of other settings, {store['settings']['settings']}: move it away")
    missing = [
        (number, policy)
        for number in range(given.rounds)
        for policy in _order(given.policy, number)
        if _key(number, policy) not in store
    ]
    if not given.write and missing:
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # engines end with this
        _measure(given, shape, store, missing)
    whole = [number for number in range(given.rounds) if all(_key(number, policy) in store for policy in given.policy)]
    if not whole:
        raise SystemExit("no round is complete: run it again")
    rounds = [{policy: store[_key(number, policy)] for policy in given.policy} for number in whole]
    sessions = _sessions(store)
    simulated = _simulated(given, shape, sessions, whole)
    try:
        text = page(store["settings"], sessions, rounds, simulated, PICTURE)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(text, encoding="utf-8")
    picture(rounds, given.out.parent / PICTURE)
    print(f"wrote {given.out} with {len(rounds)} rounds", file=sys.stderr)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--policy", type=split_list, default=list(POLICIES), help="separated by commas; NAME(OPTION=VALUE)+events"
    )
    parser.add_argument("--size", choices=SIZES, default="mid", help="of the model")
    parser.add_argument("--chats", type=int, default=Shape().chats)
    parser.add_argument("--turns", type=int, default=Shape().turns)
    parser.add_argument("--cache-tokens", type=int, default=32_768, help="what the cache of an engine holds")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no episode that would end later than that")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    parser.add_argument("--runs", type=Path, default=ROOT / "bench-results" / "engines.jsonl")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "maintainers" / "engines-measured.md")
    given = parser.parse_args()
    for name, least in {"rounds": 1, "turns": 2, "chats": Shape().shared * Shape().sharing}.items():
        if getattr(given, name) < least:
            parser.error(f"--{name} must be {least} or more, got {getattr(given, name)}")
    try:
        given.policy = list(dict.fromkeys(_spelled(text) for text in given.policy))
    except ValueError as error:
        parser.error(str(error))
    if BASE not in given.policy:
        parser.error(f"--policy must have {BASE}, which the others are compared with; got {given.policy}")
    return given


def _spelled(text: str) -> str:
    """Return the one spelling of a policy that runs are stored under."""
    contender = Contender.parse(text)
    if contender.ending == ORACLE:
        raise ValueError(f"{text} is no router that engines could have; leave its ending out")
    return str(contender)


def _order(policies: list[str], number: int) -> list[str]:
    """Let another policy go first in each round."""
    first = number % len(policies)
    return policies[first:] + policies[:first]


def _key(number: int, policy: str) -> str:
    return f"{number}/{policy}"


def _measure(given: argparse.Namespace, shape: Shape, store: Store, missing: list[tuple[int, str]]) -> None:
    """Play episodes as long as there is time."""
    began = time.monotonic()
    print(f"the engines start; their logs are beside {given.runs}", file=sys.stderr)
    with engines(given, shape) as fleet:
        print(f"ready after {time.monotonic() - began:.0f} s", file=sys.stderr)
        session = len(_sessions(store))
        store.add(f"alone/{session}", measure(fleet))
        longest_s = 0.0
        for number, policy in missing:
            start = time.monotonic()
            if start + longest_s - began > 60 * given.minutes:
                return
            episode = play(fleet, policy, shape, seed=number)
            store.add(_key(number, policy), {**episode, "session": session})
            longest_s = max(longest_s, time.monotonic() - start)
            took = f"{episode['wall_s']:.1f} s, others {episode['others']:.0%}"
            print(f"{_key(number, policy):20} {took}", file=sys.stderr)


@contextlib.contextmanager
def engines(given: argparse.Namespace, shape: Shape) -> Iterator[Fleet]:
    """Run two engines, each on a core of its own where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="bench-engine-") as folder:
        model = write_model(Path(folder) / given.size, size=given.size)
        started = [
            Engine(
                model,
                given.runs.with_name(f"engine-{name}.log"),
                name=name,
                core=cores[number % len(cores)],
                num_gpu_blocks=given.cache_tokens // BLOCK_SIZE + 1,
                max_model_len=max(shape.longest, LONGEST) + 64,
                flags=("--dtype", DTYPE),
            )
            for number, name in enumerate(("w0", "w1"))
        ]
        with running(started):
            yield _fleet(started)


def _fleet(started: Sequence[Engine]) -> Fleet:
    def reset() -> None:
        for engine in started:
            engine.reset_cache()

    return Fleet(
        urls=[engine.url for engine in started],
        endpoints={engine.url: Endpoint(engine.events_endpoint, engine.replay_endpoint) for engine in started},
        reset=reset,
        block_size=BLOCK_SIZE,
        groups=[engine.pid for engine in started],
    )


def _sessions(store: Store) -> list[dict[str, Any]]:
    """Return the single requests of each start of the engines."""
    found: list[dict[str, Any]] = []
    while (key := f"alone/{len(found)}") in store:
        found.append(store[key])
    return found


def _simulated(
    given: argparse.Namespace, shape: Shape, sessions: list[dict[str, Any]], numbers: list[int]
) -> list[Rounds]:
    """Play the same rounds, each a few times, with a simulated fleet that is fitted to single requests alone."""
    if not sessions:
        raise SystemExit(f"{given.runs} has no single requests to calibrate a simulated fleet with: move it away")
    speed = fit([row for session in sessions for row in session["singles"]])
    # In the simulator a refused request is not sent again.
    policies = [policy for policy in given.policy if not admission_apart(Contender.parse(policy).options)[1]]
    fleet, signals = speed.fleet(2, given.cache_tokens), speed.signals(gateway_s(sessions), shape.mean_prompt)
    return [
        [
            {policy: replay(shaken(fleet, seed), signals, policy, shape, number) for policy in policies}
            for seed in range(REPLAYS)
        ]
        for number in numbers
    ]


if __name__ == "__main__":
    main()
