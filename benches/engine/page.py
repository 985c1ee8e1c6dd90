"""The page and the picture of episodes on real engines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

Episode = dict[str, Any]
Rounds = list[dict[str, Episode]]
BASE = "round-robin"
EVEN = 0.1
"""Times of a round count if what others took of the machine differs by no more than this between its episodes."""
_HEAD = """# Real engines

`make bench-engine` starts two real vLLM on the CPUs of a machine, one core each, with random weights, sends chats
through `examples/starlette_gateway.py` under each policy in turn, and writes this page. The time to the first token
(TTFT) is taken at the client, over HTTP; cached tokens are the engine's own count (`usage.prompt_tokens_details`).

The machine is small, virtual and not equally fast all the time, so seconds are worth little and ratios more:
policies took turns within each round, with the same chats, and every figure is the median over the rounds, with the
least and the most of a round in brackets. Times of a round count if what others took of the machine differed by no more
than ten points between its episodes; cached tokens always do.
"""
_SETTING = """- **Chats**: {chats} of {turns} turns, {requests} requests, prompts as token ids. {shared} system prompts
  begin {sharing} chats each, the others ({own}) begin with their own; each has {system_tokens:,} tokens. A turn adds
  {least} to {most:,} tokens and the answer of {answer_tokens}; the last prompt of a chat has {last_prompt:,}
  on average.
- **Clients**: {in_flight} requests at a time; which chat goes on is drawn.
- **Engines**: the Llama `{size}` of `tests/engine/model.py` in {dtype}, prefix caching in blocks of 32. A cache holds
  {tokens_per_cache:,} tokens, {part:.0%} of all chats. Both are emptied before each episode, which is checked.
- **Router**: a new one for each episode, with the defaults of its policy. There is one gateway, so its own book is the
  whole load, and engines are not polled. `kv-aware` hears the engines' events through `cachelb.events.ZmqSource`.
"""


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure of every round."""

    values: tuple[float, ...]

    def show(self, form: Callable[[float], str]) -> str:
        """Write the median, and least and most in brackets."""
        return f"{form(median(self.values))} ({form(min(self.values))}-{form(max(self.values))})"


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


MEASURES: dict[str, Callable[[Episode], float]] = {
    "mean": lambda episode: fmean(each["first_s"] for each in episode["requests"]),
    "p50": lambda episode: quantile([each["first_s"] for each in episode["requests"]], 0.5),
    "p99": lambda episode: quantile([each["first_s"] for each in episode["requests"]], 0.99),
    "later": lambda episode: fmean(each["first_s"] for each in episode["requests"] if each["turn"] > 1),
    "wall": lambda episode: float(episode["wall_s"]),
    "cached": lambda episode: _share(episode, "cached"),
    "possible": lambda episode: _share(episode, "possible"),
    "others": lambda episode: float(episode["others"]),
}
"""What is computed of an episode."""


def _share(episode: Episode, what: str) -> float:
    of_all, of_these = (sum(each[name] for each in episode["requests"]) for name in ("prompt", what))
    return float(of_these / of_all)


def spread(rounds: Rounds, policy: str, measure: str) -> Spread:
    """Collect a figure of a policy over the rounds."""
    return Spread(tuple(MEASURES[measure](each[policy]) for each in rounds))


def ratio(rounds: Rounds, policy: str, measure: str) -> Spread:
    """Collect how many times round-robin's of the same round a figure is."""
    found = MEASURES[measure]
    return Spread(tuple(found(each[policy]) / found(each[BASE]) for each in rounds))


def even(rounds: Rounds) -> Rounds:
    """Return the rounds whose times can be compared."""
    others = [[MEASURES["others"](episode) for episode in each.values()] for each in rounds]
    return [each for each, took in zip(rounds, others, strict=True) if max(took) - min(took) <= EVEN]


def page(run: Mapping[str, Any], alone: Sequence[Mapping[str, float]], rounds: Rounds, image: str) -> str:
    """Write the page.

    Args:
        run: Settings, machine and versions.
        alone: Prompts sent with nothing else in flight.
        rounds: Complete rounds: an episode for each policy.
        image: Where the picture is, from the page.

    Raises:
        ValueError: The times of no round can be compared.
    """
    timed = even(rounds)
    if not timed:
        raise ValueError("others took more of the machine from one policy than from another in every round: play more")
    parts = [_HEAD, "\n", _times(timed), "\n", _against_base(timed), "\n"]
    parts.append(f"![Share of requests whose first token came within so many seconds]({image})\n")
    parts += ["\n## Cached tokens\n\n", _tokens(rounds), "\n", _believed(rounds)]
    parts += ["\n## What was measured\n\n", _setting(run["settings"]), "\n", _alone(alone), "\n", _machine(run, rounds)]
    return "".join(parts)


def _table(rows: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(rows[0]) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in [rows[0], rule, *rows[1:]])


def _times(rounds: Rounds) -> str:
    rows = [["policy", "mean TTFT, s", "p50", "p99", "all chats done after, s"]]
    for policy in rounds[0]:
        rows.append([policy, *(spread(rounds, policy, name).show("{:.2f}".format) for name in ("mean", "p50", "p99"))])
        rows[-1].append(spread(rounds, policy, "wall").show("{:.0f}".format))
    return _table(rows)


def _against_base(rounds: Rounds) -> str:
    measures = {"mean TTFT": "mean", "p50": "p50", "p99": "p99", "mean TTFT after the first turn": "later"}
    measures["all chats done"] = "wall"
    rows = [[f"of {BASE}'s in the same round", *measures]]
    for policy in rounds[0]:
        if policy != BASE:
            ratios = [ratio(rounds, policy, name).show("{:.2f}".format) for name in measures.values()]
            rows.append([policy, *ratios])
    return _table(rows)


def _tokens(rounds: Rounds) -> str:
    rows = [["policy", "cached part of all prompt tokens", "part that one cache without bounds would have"]]
    for policy in rounds[0]:
        shares = [spread(rounds, policy, name).show("{:.1%}".format) for name in ("cached", "possible")]
        rows.append([policy, *shares])
    return _table(rows)


def _believed(rounds: Rounds) -> str:
    """Compare what the routers expected, and what the engines' counters say, with what the answers say."""
    lines = []
    for policy in rounds[0]:
        episodes = [each[policy] for each in rounds]
        expected = sum(episode["expected_tokens"] for episode in episodes)
        cached = sum(each["cached"] for episode in episodes for each in episode["requests"])
        if expected:
            lines.append(f"`{policy}` expected {expected:,} cached tokens, the engines found {cached:,}.")
    everything = [episode for each in rounds for episode in each.values()]
    hits = sum(episode["hits"] for episode in everything)
    cached = sum(each["cached"] for episode in everything for each in episode["requests"])
    lines.append(f"Over all episodes the answers say {cached:,}, and `vllm:prefix_cache_hits_total` rose by {hits:,}.")
    return "\n".join(lines) + "\n"


def _setting(settings: Mapping[str, Any]) -> str:
    least, most = settings["turn_tokens"]
    derived = {
        "requests": settings["chats"] * settings["turns"],
        "own": settings["chats"] - settings["shared"] * settings["sharing"],
        "least": least,
        "most": most,
        "part": settings["tokens_per_cache"] / settings["distinct"],
    }
    return _SETTING.format(**settings, **derived)


def _alone(alone: Sequence[Mapping[str, float]]) -> str:
    rows = [["a prompt with nothing else in flight", *(f"{row['tokens']:,} tokens" for row in alone)]]
    rows.append(["TTFT of a new one, s", *(f"{row['cold_s']:.2f}" for row in alone)])
    rows.append(["the same again, s", *(f"{row['warm_s']:.2f}" for row in alone)])
    return _table(rows)


def _machine(run: Mapping[str, Any], rounds: Rounds) -> str:
    everything = [episode for each in rounds for episode in each.values()]
    others = [MEASURES["others"](episode) for each in even(rounds) for episode in each.values()]
    loads = [episode["load"] for episode in everything]
    times = sorted(episode["time"] for episode in everything)
    count = len(everything[0]["requests"])
    return (
        f"{run['cpu']}, {run['cores']} cores, vLLM {run['vllm']} on CPU, Python {run['python']}, cachelb at"
        f" {run['commit']}, {times[0]} to {times[-1]} UTC.\n{len(rounds)} rounds of {count} requests per policy;"
        f" times are of {len(even(rounds))} of them. Of {count} requests, p99 is the slowest.\n\n"
        f"*Others*: processes that do not belong to the measurement took {min(others):.0%} to {max(others):.0%} of all"
        f" cores\nin the rounds with times, {median(others):.0%} in the median episode. Load averages at the ends of"
        f" episodes were {min(loads):.0f} to {max(loads):.0f}.\n"
    )


def picture(rounds: Rounds, path: Path) -> None:
    """Draw which share of the requests had their first token within how many seconds, of rounds whose times count."""
    from matplotlib import pyplot as plt
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    rounds = even(rounds)
    plt.rcParams["svg.hashsalt"] = "cachelb"  # the same figures give the same file
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for policy in rounds[0]:
        times = sorted(chain.from_iterable((one["first_s"] for one in each[policy]["requests"]) for each in rounds))
        axes.step(times, [(at + 1) / len(times) for at in range(len(times))], where="post", label=policy)
    axes.set(xscale="log", xlabel="seconds to the first token", ylabel="share of requests", ylim=(0, 1.02))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small", loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
