"""The generators by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cachelb.errors import did_you_mean
from cachelb_lab.sim.checks import check_arguments
from cachelb_lab.sim.workloads.adversarial import bursts, churn, giants, hot_set, monopoly, tenants
from cachelb_lab.sim.workloads.arrivals import ArrivalProcess, Poisson, Steps, parse_arrivals, positive
from cachelb_lab.sim.workloads.draft import Plan
from cachelb_lab.sim.workloads.prefix_groups import prefix_groups, prefix_shift, shared_prefix
from cachelb_lab.sim.workloads.sessions import agent, chat, coding_agent, long_documents
from cachelb_lab.sim.workloads.single_turn import prefill_only, rag, tool_agent
from cachelb_lab.sim.workloads.workload import Workload

RATE_SHIFT = 2.2
"""Factor on the rate of ``rate-shift`` half way: from 10 to 22 arrivals per second."""


@dataclass(frozen=True, slots=True)
class Generator:
    """One entry of `WORKLOADS`.

    Attributes:
        summary: The workload, in one line.
        builder: Makes it.
        rate: Default arrivals per second, of sessions where requests follow others.
        count: Default number of requests.
        fixed: Options that the name stands for.

    Example:
        >>> from cachelb_lab.sim import WORKLOADS
        >>> WORKLOADS["prefix-30"].options["share"]
        0.3
    """

    summary: str
    builder: Callable[..., Workload]
    rate: float = 12.0
    count: int = 5_000
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """Return the options and their defaults; the builder's docstring describes them."""
        parameters = list(inspect.signature(self.builder).parameters.values())[1:]
        return {each.name: each.default for each in parameters} | dict(self.fixed)


WORKLOADS: dict[str, Generator] = {
    **{
        f"prefix-{share}": Generator(
            f"{share} % of a prompt shared with its group (Lodestar)", prefix_groups, fixed={"share": share / 100}
        )
        for share in (10, 30, 50, 70)
    },
    "prefix-mixed": Generator("10, 30, 50 and 70 % shared, in equal parts (Lodestar)", prefix_groups),
    "prefix-shift": Generator("5 % shared, then 50 % (Lodestar)", prefix_shift, count=20_000),
    "rate-shift": Generator(
        "prefix-mixed at 10 requests/s, then at 22 (Lodestar)", prefix_groups, rate=10.0, count=20_000
    ),
    "chat": Generator("multi-turn chats, closed loop", chat, rate=1.5),
    "agent": Generator("agents with tools, closed loop", agent, rate=0.6),
    "coding-agent": Generator(
        "coding agents with prompts of 100,000 tokens, closed loop", coding_agent, rate=0.02, count=3_000
    ),
    "rag": Generator("questions behind retrieved documents", rag),
    "rag-sorted": Generator("the same, documents in a fixed order", rag, fixed={"order": "sorted"}),
    "monopoly": Generator("one system prompt for most of the traffic", monopoly, rate=20.0),
    "bursts": Generator("15 requests at one instant every 3 s, one prefix each time", bursts, rate=5.0),
    "bursts-distinct": Generator("the same without common prefixes", bursts, rate=5.0, fixed={"prefixes": "distinct"}),
    "tool-agent": Generator("chat rows and two kinds of templates, like Mooncake's tool-and-agent trace", tool_agent),
    "shared-prefix": Generator("83 groups of 3 prompts, in rounds (llm-d)", shared_prefix, rate=5.0, count=2_000),
    "long-documents": Generator("short chats and long documents, like Mooncake's synthetic mix", long_documents, 1.0),
    "prefill-only": Generator("answers of one token", prefill_only),
    "churn": Generator("every prefix is used three times and never again", churn),
    "hot-set": Generator("ten hot prefixes, replaced every 500 requests", hot_set),
    "giants": Generator("a few giant prompts among small ones", giants),
    "tenants": Generator("tenants with very different lengths", tenants),
}
"""Every generator by name."""


def build(
    name: str,
    *,
    seed: int = 0,
    rate: float | None = None,
    count: int | None = None,
    arrivals: ArrivalProcess | str | None = None,
    block_size: int = 16,
    **options: Any,  # noqa: ANN401 - the generator's
) -> Workload:
    """Generate a workload by name.

    Args:
        name: One of `WORKLOADS`.
        seed: Seed of every random choice.
        rate: Arrivals per second, of sessions where requests follow others.
        count: Requests to generate.
        arrivals: An arrival process, or its short name as in `parse_arrivals`; Poisson by default.
        block_size: Tokens per block.
        options: The generator's own; `Generator.options` lists them.

    Returns:
        The workload.

    Raises:
        ValueError: There is no such workload, or a number makes no sense.
        TypeError: The workload has no such option.

    Example:
        >>> slow, fast = (build("monopoly", seed=1, count=100, rate=rate) for rate in (5, 50))
        >>> (slow.hashes == fast.hashes).all(), bool(slow.arrival_s[-1] > 5 * fast.arrival_s[-1])
        (np.True_, True)
    """
    if name not in WORKLOADS:
        raise ValueError(f"no workload {name!r}{did_you_mean(name, WORKLOADS)}")
    generator = WORKLOADS[name]
    unknown = sorted(set(options) - set(generator.options))
    if unknown:
        raise TypeError(f"workload {name!r} has no option {unknown[0]!r}; it has {', '.join(generator.options)}")
    check_arguments(build, {"rate": rate})
    check_arguments(generator.builder, options)
    per_s = generator.rate if rate is None else rate
    count = generator.count if count is None else count
    if generator.builder is bursts:
        if arrivals is not None:
            raise TypeError(f"workload {name!r} has no arrivals of its own choice; set size and period_s")
        if rate is not None:
            positive("rate", rate)
            options.setdefault("period_s", options.get("size", generator.options["size"]) / rate)
    process = _arrivals(name, arrivals, per_s, count)
    plan = Plan(seed=seed, count=count, arrivals=process, block_size=block_size)
    return replace(generator.builder(plan, **{**generator.fixed, **options}), name=name)


def _arrivals(name: str, arrivals: ArrivalProcess | str | None, rate: float, count: int) -> ArrivalProcess:
    """Return the arrival process of a workload."""
    if isinstance(arrivals, str):
        return parse_arrivals(arrivals, rate)
    if arrivals is not None:
        return arrivals
    if name == "rate-shift":
        return Steps(((rate, max(1, count // 2)), (rate * RATE_SHIFT, 1)))
    return Poisson(rate)
