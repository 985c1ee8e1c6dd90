"""Traffic that breaks simple rules.

Prefixes die, hot sets move, giants come between small prompts, tenants are unequal, most traffic shares one prompt, or
requests come together, so that nothing has been reported back when the next one is placed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Literal

from cachelb_lab.sim.workloads.arrivals import Bursts
from cachelb_lab.sim.workloads.draft import Draft, Piece, Plan, Zipf, around
from cachelb_lab.sim.workloads.workload import Workload


def churn(
    plan: Plan,
    *,
    uses: int = 3,
    alive: int = 40,
    prefix_tokens: int = 3_000,
    question_tokens: int = 300,
    output_tokens: int = 100,
) -> Workload:
    """Generate prefixes that are used a few times and never again: caches fill with dead blocks.

    Args:
        plan: How many, how fast, from which seed.
        uses: How often each prefix is used.
        alive: How many prefixes are in use at any time.
        prefix_tokens: Median length of a prefix.
        question_tokens: Median length of the rest.
        output_tokens: Median length of an answer.

    Returns:
        The workload.

    Raises:
        ValueError: ``uses`` or ``alive`` is below 1.
    """
    if uses < 1 or alive < 1:
        raise ValueError(f"uses and alive must be at least 1, got {uses} and {alive}")
    draft = Draft("churn", plan)
    living: list[list[Piece]] = []
    while not draft.full:
        while len(living) < alive:
            living.append([draft.piece(around(draft.lengths, prefix_tokens, 0.4))] * uses)
        pick = int(draft.prefixes.integers(len(living)))
        prefix = living[pick].pop()
        if not living[pick]:
            del living[pick]
        draft.ask([prefix], question_tokens, output_tokens)
    return draft.finish()


def hot_set(
    plan: Plan,
    *,
    prefixes: int = 200,
    hot: int = 10,
    hot_share: float = 0.9,
    period: int = 500,
    prefix_tokens: int = 3_000,
    question_tokens: int = 200,
    output_tokens: int = 100,
) -> Workload:
    """Generate a few hot prefixes that are replaced by others again and again.

    Args:
        plan: How many, how fast, from which seed.
        prefixes: All prefixes; the hot ones go round among them.
        hot: How many are hot at a time.
        hot_share: Part of the requests that they get.
        period: Requests after which others are hot.
        prefix_tokens: Median length of a prefix.
        question_tokens: Median length of the rest.
        output_tokens: Median length of an answer.

    Returns:
        The workload.

    Raises:
        ValueError: A number makes no sense.
    """
    if not (1 <= hot <= prefixes and period >= 1 and 0 <= hot_share <= 1):
        raise ValueError(f"need hot <= prefixes, period >= 1 and a share, got {hot}, {prefixes}, {period}, {hot_share}")
    draft = Draft("hot-set", plan)
    texts = [draft.piece(around(draft.lengths, prefix_tokens, 0.3)) for _ in range(prefixes)]
    while not draft.full:
        first = len(draft) // period * hot
        is_hot = float(draft.prefixes.random()) < hot_share
        number = first + int(draft.prefixes.integers(hot)) if is_hot else int(draft.prefixes.integers(prefixes))
        draft.ask([texts[number % prefixes]], question_tokens, output_tokens)
    return draft.finish()


def giants(
    plan: Plan,
    *,
    share: float = 0.03,
    giant_tokens: int = 60_000,
    prefixes: int = 50,
    prefix_tokens: int = 1_500,
    question_tokens: int = 200,
    output_tokens: int = 120,
) -> Workload:
    """Generate small requests that share prefixes, and giant prompts that share nothing among them.

    Args:
        plan: How many, how fast, from which seed.
        share: Part of the requests that are giants.
        giant_tokens: Median length of a giant.
        prefixes: Prefixes of the small ones.
        prefix_tokens: Their median length.
        question_tokens: Median length of the rest.
        output_tokens: Median length of an answer.

    Returns:
        The workload.

    Raises:
        ValueError: There is no prefix.
    """
    draft = Draft("giants", plan)
    zipf = Zipf(prefixes)
    texts = [draft.piece(around(draft.lengths, prefix_tokens, 0.3)) for _ in range(prefixes)]
    while not draft.full:
        if float(draft.prefixes.random()) < share:
            giant = draft.piece(around(draft.lengths, giant_tokens, 0.3))
            draft.request([giant], around(draft.lengths, output_tokens))
        else:
            draft.ask([texts[int(zipf.draw(draft.prefixes, 1)[0])]], question_tokens, output_tokens)
    return draft.finish()


def tenants(
    plan: Plan,
    *,
    system_tokens: tuple[int, ...] = (200, 1_000, 4_000, 12_000),
    question_tokens: int = 250,
    output_tokens: tuple[int, ...] = (400, 150, 60, 20),
    documents: int = 30,
) -> Workload:
    """Generate tenants whose prompts and answers have very different lengths, in equal parts.

    Args:
        plan: How many, how fast, from which seed.
        system_tokens: Length of each tenant's system prompts.
        question_tokens: Median length of a question.
        output_tokens: Median length of each tenant's answers.
        documents: System prompts of each tenant.

    Returns:
        The workload; ``session`` names the tenant.

    Raises:
        ValueError: There is no tenant, or not one answer for each.
    """
    if not system_tokens or len(system_tokens) != len(output_tokens):
        raise ValueError(f"need as many answers as tenants, got {output_tokens} for {system_tokens}")
    draft = Draft("tenants", plan)
    texts = [[draft.piece(tokens) for _ in range(documents)] for tokens in system_tokens]
    zipf = Zipf(documents)
    recent: deque[int] = deque(maxlen=len(texts))
    while not draft.full:
        # No tenant comes again before all others have, in an order that chance decides.
        if len(recent) == len(texts):
            recent.clear()
        left = [tenant for tenant in range(len(texts)) if tenant not in recent]
        tenant = left[int(draft.prefixes.integers(len(left)))]
        recent.append(tenant)
        text = texts[tenant][int(zipf.draw(draft.prefixes, 1)[0])]
        draft.ask([text], question_tokens, output_tokens[tenant], session=f"tenant-{tenant}")
    return draft.finish()


def monopoly(
    plan: Plan,
    *,
    share: float = 0.8,
    system_tokens: int = 4_000,
    question_tokens: int = 200,
    output_tokens: int = 120,
) -> Workload:
    """Generate single questions, most of them behind the same system prompt.

    Args:
        plan: How many, how fast, from which seed.
        share: Part of the requests with that prompt; the others have one as long of their own.
        system_tokens: Its length.
        question_tokens: Median length of a question.
        output_tokens: Median length of an answer.

    Returns:
        The workload.
    """
    draft = Draft("monopoly", plan)
    system = draft.piece(system_tokens)
    while not draft.full:
        common = float(draft.prefixes.random()) < share
        first = system if common else draft.piece(system_tokens)
        draft.ask([first], question_tokens, output_tokens)
    return draft.finish()


def bursts(
    plan: Plan,
    *,
    size: int = 15,
    period_s: float = 3.0,
    prefixes: Literal["same", "distinct", "pairs"] = "same",
    prefix_tokens: int = 4_000,
    question_tokens: int = 300,
    output_tokens: int = 150,
) -> Workload:
    """Generate bursts; the arrival process of the plan is not used.

    Args:
        plan: How many, from which seed.
        size: Requests of a burst, all at one instant.
        period_s: Seconds between two bursts.
        prefixes: ``"same"``: a burst has one prefix of its own; ``"distinct"``: each request has;
            ``"pairs"``: two requests of a burst have.
        prefix_tokens: Median length of a prefix.
        question_tokens: Median length of the rest.
        output_tokens: Median length of an answer.

    Returns:
        The workload.

    Raises:
        ValueError: A number makes no sense.
    """
    sharing = {"same": size, "distinct": 1, "pairs": 2}
    draft = Draft(
        "bursts" if prefixes == "same" else f"bursts-{prefixes}", replace(plan, arrivals=Bursts(size, period_s))
    )
    prefix = draft.piece(prefix_tokens)
    while not draft.full:
        if len(draft) % size % sharing[prefixes] == 0:
            prefix = draft.piece(around(draft.lengths, prefix_tokens, 0.3))
        draft.ask([prefix], question_tokens, output_tokens)
    return draft.finish()
