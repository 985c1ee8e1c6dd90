"""The page and the picture of episodes on real engines."""

from __future__ import annotations

from itertools import chain
from statistics import median
from typing import TYPE_CHECKING, Any

from benches.engine.calibration import PASS_TOKENS, SEQUENCES, UNEVEN, fit, gateway_s
from benches.engine.figures import BASE, MEASURES, Rounds, even, ratio, spread
from benches.engine.goals import goals, predictions, table
from benches.engine.replay import behind_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_HEAD = """# Real engines

`make bench-engine` starts two real vLLM on the CPUs of a machine, one core each, with random weights, sends chats
through `examples/starlette_gateway.py` under each policy in turn, through `cachelb serve` where `max_wait_s` puts an
`Admission` before it, and writes this page. The time to the first token (TTFT) is taken at the client, over HTTP;
cached tokens are the engine's own count (`usage.prompt_tokens_details`).

The machine is small, virtual and not equally fast all the time, so seconds are worth little and ratios more:
policies took turns within each round, with the same chats, and every figure is the median over the rounds, with the
least and the most of a round in brackets. Times of a round count if the share of other processes differed by no more
than ten points between its episodes; cached tokens always do.

Ratios in the tables of goals and of the simulator are geometric means over the rounds; the spread is half of their 95 %
interval, as a factor.
"""
_SIMULATED = f"""
## Simulated

Equal chats with equal draws, closed loop included, in simulated time: the routers are real, each a new one that
is given nothing but names of workers, before two [simulated engines](../simulator.md) with passes of at most
{PASS_TOKENS:,} tokens and {SEQUENCES} requests. They are calibrated with the single requests of the table below, one at
each engine at the same moment, because the engines slow each other down; no episode has a part in it. Each round is
played a few times, with passes up to {UNEVEN:.0%} longer or shorter, drawn for each second and engine. The greatest
difference is first.

"""
_SETTING = """- **Chats**: {chats} of {turns} turns, {requests} requests, prompts as token ids. {shared} system prompts
  begin {sharing} chats each, the others ({own}) begin with their own; each has {system_tokens:,} tokens. A turn adds
  {least} to {most:,} tokens and the answer of {answer_tokens}; the last prompt of a chat has {last_prompt:,}
  on average.
- **Clients**: {in_flight} requests at a time; which chat goes on is drawn.
- **Engines**: the Llama `{size}` of `tests/engine/model.py` in {dtype}, prefix caching in blocks of 32. A cache holds
  {tokens_per_cache:,} tokens, {part:.0%} of all chats. Both are emptied before each episode, which is checked.
- **Router**: a new one for each episode, with the defaults of its policy. There is one gateway, so its own book is the
  whole load, and engines are not polled. `kv-aware` and policies with `+events` receive the engines' events through
  `cachelb.events.ZmqSource`.
"""


def page(
    run: Mapping[str, Any],
    sessions: Sequence[Mapping[str, Any]],
    rounds: Rounds,
    simulated: Sequence[Rounds],
    image: str,
) -> str:
    """Write the page.

    Args:
        run: Settings, machine and versions.
        sessions: Results of `alone.measure` at each start of the engines.
        rounds: Complete rounds: an episode for each policy.
        simulated: Those rounds in simulated time, each a few times.
        image: Where the picture is, from the page.

    Raises:
        ValueError: The times of no round can be compared.
    """
    timed = even(rounds)
    if not timed:
        raise ValueError("other processes slowed one policy more than another in every round: play more")
    parts = [_HEAD, "\n", goals(rounds, simulated), "\n", _times(timed), "\n", _against_base(timed), "\n"]
    parts.append(f"![Share of requests whose first token came within so many seconds]({image})\n")
    parts += ["\n## Cached tokens\n\n", _tokens(rounds), "\n", _believed(rounds)]
    parts += [_SIMULATED, predictions(rounds, simulated), "\n", _calibration(run["settings"], sessions)]
    parts += ["\n## Setting\n\n", _setting(run["settings"]), "\n", _machine(run, rounds)]
    return "".join(parts)


def _times(rounds: Rounds) -> str:
    rows = [["policy", "mean TTFT, s", "p50", "p99", "all chats done after, s"]]
    for policy in rounds[0]:
        rows.append([policy, *(spread(rounds, policy, name).show("{:.2f}".format) for name in ("mean", "p50", "p99"))])
        rows[-1].append(spread(rounds, policy, "wall").show("{:.0f}".format))
    return table(rows)


def _against_base(rounds: Rounds) -> str:
    measures = {"mean TTFT": "mean", "p50": "p50", "p99": "p99", "mean TTFT after the first turn": "later"}
    measures["all chats done"] = "wall"
    rows = [[f"of {BASE}'s in the same round", *measures]]
    for policy in rounds[0]:
        if policy != BASE:
            ratios = [ratio(rounds, policy, name).show("{:.2f}".format) for name in measures.values()]
            rows.append([policy, *ratios])
    return table(rows)


def _tokens(rounds: Rounds) -> str:
    rows = [["policy", "cached part of all prompt tokens", "part that one cache without bounds would have"]]
    for policy in rounds[0]:
        shares = [spread(rounds, policy, name).show("{:.1%}".format) for name in ("cached", "possible")]
        rows.append([policy, *shares])
    return table(rows)


def _believed(rounds: Rounds) -> str:
    """Compare the cached tokens that routers expected, and the engines' counters, with those of the answers."""
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
    lines.append(
        f"Over all episodes the answers report {cached:,}, and `vllm:prefix_cache_hits_total` rose by {hits:,}."
    )
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


def _calibration(settings: Mapping[str, Any], sessions: Sequence[Mapping[str, Any]]) -> str:
    """Show the single requests beside their fitted times, and requests that meet others beside predicted times."""
    singles = [row for session in sessions for row in session["singles"]]
    speed = fit(singles)
    lines = [
        f"A request takes {1e3 * speed.request_s:.1f} ms, {1e6 * speed.prompt_s:.1f} us per token of its prompt and",
        f" {1e3 * gateway_s(sessions):.1f} ms in the gateway; a pass\n{1e3 * speed.pass_s:.1f} ms,",
        f" a token {1e6 * speed.token_s:.0f} us, a pair of tokens in the",
        f" attention of prompts {1e9 * speed.pair_s:.1f} ns, a token that a\ndecode attends to",
        f" {1e9 * speed.context_s:.0f} ns.\n\n",
    ]
    kinds = sorted({(row["prompt"], row["cached"]) for row in singles})
    alone = [row for session in sessions for row in session["alone"]]
    head = ["tokens of the prompt", "cached", "TTFT, ms, one engine at work", "both", "by the fit"]
    rows = [[*head, "between tokens, ms, both at work", "by the fit"]]
    for prompt, cached in kinds:
        same = [row for row in singles if (row["prompt"], row["cached"]) == (prompt, cached)]
        single = [row["first_s"] for row in alone if (row["prompt"], row["cached"]) == (prompt, cached)]
        first = median(row["first_s"] for row in same)
        token = median((row["whole_s"] - row["first_s"]) / max(1, row["output"] - 1) for row in same)
        fitted = speed.token_after_s(prompt + median(row["output"] for row in same) / 2)
        times = (first, speed.first_s(prompt, cached), token, fitted)
        one = f"{1e3 * median(single):.1f}" if single else ""
        rows.append([f"{prompt:,}", f"{cached:,}", one, *(f"{1e3 * time:.1f}" for time in times)])
    lines += [table(rows), "\n"]
    fleet = speed.fleet(2, settings["tokens_per_cache"])
    said = {
        "behind_s": ("TTFT of 2,048 new tokens sent 50 ms after 4,096", behind_s(fleet, speed.signals(0.0, 2048))),
        "token_together_s": ("between tokens of three answers at a time", speed.token_after_s(1056, together=3)),
    }
    rows = [["requests that meet others, not fitted", "measured, ms", "simulated, ms"]]
    for name, (what, seconds) in said.items():
        measured = median(session["checks"][name] for session in sessions)
        rows.append([what, f"{1e3 * measured:.1f}", f"{1e3 * seconds:.1f}"])
    return "".join([*lines, table(rows)])


def _machine(run: Mapping[str, Any], rounds: Rounds) -> str:
    everything = [episode for each in rounds for episode in each.values()]
    others = [MEASURES["others"](episode) for each in even(rounds) for episode in each.values()]
    loads = [episode["load"] for episode in everything]
    times = sorted(episode["time"] for episode in everything)
    count = len(everything[0]["requests"])
    later = sum(len({episode.get("session") for episode in each.values()}) > 1 for each in rounds)
    apart = f"In {later} rounds, some policies were played after another start of the engines.\n" if later else ""
    return (
        f"{run['cpu']}, {run['cores']} cores, vLLM {run['vllm']} on CPU, Python {run['python']}, cachelb at"
        f" {run['commit']}, {times[0]} to {times[-1]} UTC.\n{len(rounds)} rounds of {count} requests per policy;"
        f" times are of {len(even(rounds))} of them. With {count} requests, p99 is the slowest.\n{apart}\n"
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
