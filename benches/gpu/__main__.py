"""Policies in front of engines that run: TTFT and cached tokens of chats, policies in turns, a table of medians.

    benches/gpu/engines.sh meta-llama/Llama-3.1-8B-Instruct                     # in one shell: an engine per GPU
    python -m benches.gpu --engines 8                                           # in another: 5 policies, 3 rounds
    python -m benches.gpu --engines 8 --chats 200 --in-flight 64 --rounds 5     # more load
    python -m benches.gpu --url http://10.0.0.1:8000 --events tcp://10.0.0.1:5600 --url ... --events ...

The engines are vLLM started as `engines.sh` does it: model name `m`, KV events, details of prompt tokens, development
mode for /reset_prefix_cache. Prompts are random token ids below --vocabulary. All policies of a round have the same
chats. Options of `cachelb.Admission`, as in adaptive(max_wait_s=1.5), put one before a policy (see benches/engine).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from benches.engine.episode import Fleet, play
from benches.engine.figures import BASE, ratio, spread
from benches.engine.workload import Shape
from tests.http_client import send

from cachelb.common.calls import split_list
from cachelb.events import Endpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benches.engine.figures import Rounds

POLICIES = f"{BASE},adaptive,adaptive+events,cache-aware,prefill-times-batch"
SHAPE = Shape(
    chats=80,
    turns=6,
    shared=10,
    sharing=4,
    system_tokens=4000,
    turn_tokens=(500, 3000),
    answer_tokens=128,
    in_flight=32,
)
DEADLINE_S = 60.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the rounds, then print the table."""
    given = _arguments(arguments)
    sizes = {name: getattr(given, name) for name in ("chats", "turns", "in_flight", "vocabulary")}
    fleet = Fleet(
        urls=given.url,
        endpoints={
            url: Endpoint(events, _next_port(events)) for url, events in zip(given.url, given.events, strict=True)
        },
        reset=lambda: empty(given.url),
        block_size=given.block_size,
    )
    print(table(measure(fleet, given.policy, replace(SHAPE, **sizes), given.rounds)))


def measure(fleet: Fleet, policies: Sequence[str], shape: Shape, rounds: int) -> Rounds:
    """Play every policy in every round, another one first in each; after ctrl-C, return the rounds that are whole."""
    found: Rounds = []
    try:
        for number in range(rounds):
            first = number % len(policies)
            order = [*policies[first:], *policies[:first]]
            found.append({policy: play(fleet, policy, shape, seed=number) for policy in order})
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    except KeyboardInterrupt:
        if not found:
            raise
    return found


def table(rounds: Rounds) -> str:
    """Write a line per policy: medians of the rounds, least and most in brackets."""
    lines = [f"{'policy':32}{'TTFT mean':>26}{'p99':>26}{f'mean by {BASE}':>26}{'cached':>26}"]
    for policy in sorted(rounds[0], key=lambda name: spread(rounds, name, "mean").show("{:012.4f}".format)):
        times = [spread(rounds, policy, name).show("{:.3f} s".format) for name in ("mean", "p99")]
        others = (
            ratio(rounds, policy, "mean").show("{:.2f}".format),
            spread(rounds, policy, "cached").show("{:.1%}".format),
        )
        lines.append(f"{policy:32}" + "".join(f"{each:>26}" for each in (*times, *others)))
    return "\n".join(lines)


def empty(urls: Sequence[str]) -> None:
    """Empty the caches of engines."""
    for url in urls:
        status = send(url, "/reset_prefix_cache", b"", {}, DEADLINE_S).status
        if status != 200:
            raise SystemExit(f"{url} answered {status} to /reset_prefix_cache: start it with VLLM_SERVER_DEV_MODE=1")


def _next_port(address: str) -> str:
    """Return the replay socket of `engines.sh`: one port above."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + 1}"


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=0, help="so many engines of engines.sh on this machine")
    parser.add_argument("--url", action="append", default=[], help="an engine; with --events, once for each")
    parser.add_argument("--events", action="append", default=[], help="where it publishes; replays one port above")
    parser.add_argument(
        "--policy", type=split_list, default=split_list(POLICIES), help="with commas; NAME(OPTION=VALUE)+events"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chats", type=int, default=SHAPE.chats)
    parser.add_argument("--turns", type=int, default=SHAPE.turns)
    parser.add_argument("--in-flight", type=int, default=SHAPE.in_flight, help="requests at a time")
    parser.add_argument("--vocabulary", type=int, default=32_000, help="token ids are below this")
    parser.add_argument("--block-size", type=int, default=16)
    given = parser.parse_args(arguments)
    given.url += [f"http://127.0.0.1:{8000 + number}" for number in range(given.engines)]
    given.events += [f"tcp://127.0.0.1:{5600 + 10 * number}" for number in range(given.engines)]
    if not given.url or len(given.url) != len(given.events):
        parser.error(f"need --engines, or as many --events as --url, got {len(given.events)} and {len(given.url)}")
    if given.chats < SHAPE.shared * SHAPE.sharing:
        parser.error(f"--chats must be {SHAPE.shared * SHAPE.sharing} or more, got {given.chats}")
    if BASE not in given.policy:
        parser.error(f"--policy must have {BASE}, which the others are compared with; got {','.join(given.policy)}")
    return given


if __name__ == "__main__":
    main()
