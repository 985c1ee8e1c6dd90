"""Traffic and probes for real engines, tried on a model of their cache."""

from __future__ import annotations

import random
from collections import Counter
from itertools import takewhile

import pytest
from tests.engine.probes import Probe, ProbePlanner, Stratum, Tally, reusable_blocks
from tests.engine.traffic import Identity, Kind, Planned, Prompt, Transcript, plan_traffic, waves
from tests.models.engine_blocks import EngineBlocks

BLOCK = 32
BLOCKS = 63
SEED = 11


class Cache(EngineBlocks):
    """Blocks of one engine, by adapter and salt."""

    def __init__(self) -> None:
        super().__init__(BLOCK, BLOCKS)

    @staticmethod
    def named(prompt: Prompt) -> list[int]:
        return [hash((prompt.identity, token)) for token in prompt.tokens]

    def overlap(self, prompt: Prompt) -> int:
        return sum(1 for _ in takewhile(self.used.__contains__, self.path(self.named(prompt))))

    def add(self, prompt: Prompt) -> None:
        self.keep(self.named(prompt))


def answer(planned: Planned) -> list[int]:
    return random.Random(planned.number).choices(range(5, 4096), k=planned.max_tokens)


def run(plan: list[Planned], caches: list[Cache]) -> list[Prompt]:
    transcript = Transcript()
    for planned in plan:
        prompt = transcript.prompt(planned)
        output = answer(planned)
        transcript.record(planned, output)
        caches[prompt.worker].add(Prompt(prompt.worker, prompt.identity, (*prompt.tokens, *output[:-1])))
    return transcript.sent()


def test_traffic_has_every_kind_identity_and_worker() -> None:
    plan = plan_traffic(SEED)
    assert plan_traffic(SEED) == plan != plan_traffic(SEED + 1)
    kinds = Counter(planned.kind for planned in plan)
    assert len(plan) == 300
    assert all(kinds[kind] >= 15 for kind in Kind), kinds
    assert {planned.worker for planned in plan} == {0, 1}
    identities = {planned.identity for planned in plan}
    assert {identity.adapter for identity in identities} == {None, "la", "lb"}
    assert {identity.cache_salt for identity in identities} == {None, "tenant-a", "tenant-b"}
    assert sum(planned.follows is not None for planned in plan) >= 30


def test_no_prompt_with_its_answer_is_longer_than_allowed() -> None:
    plan = plan_traffic(SEED, longest=704)
    prompts = run(plan, [Cache(), Cache()])
    lengths = [len(prompt.tokens) + planned.max_tokens for prompt, planned in zip(prompts, plan, strict=True)]
    assert 600 < max(lengths) <= 704
    assert min(lengths) <= BLOCK
    assert any(len(prompt.tokens) % BLOCK == 0 for prompt in prompts)


def test_turn_begins_with_prompt_and_answer_of_the_turn_before() -> None:
    plan = plan_traffic(SEED)
    prompts = run(plan, [Cache(), Cache()])
    for planned, prompt in zip(plan, prompts, strict=True):
        if planned.follows is not None:
            before, said = prompts[planned.follows], answer(plan[planned.follows])
            assert prompt.tokens == (*before.tokens, *said, *planned.tokens)
            assert (prompt.worker, prompt.identity) == (before.worker, before.identity)


def test_waves_keep_the_order_and_never_hold_a_turn_with_the_one_it_follows() -> None:
    plan = plan_traffic(SEED)
    grouped = list(waves(plan, 4))
    assert [planned for wave in grouped for planned in wave] == plan
    assert max(map(len, grouped)) == 4
    for wave in grouped:
        numbers = {planned.number for planned in wave}
        assert not any(planned.follows in numbers for planned in wave)


def test_probe_of_each_stratum_is_what_it_says_and_all_meet_their_quotas() -> None:
    caches = [Cache(), Cache()]
    sent = run(plan_traffic(SEED), caches)
    planner = ProbePlanner(sent, lambda prompt: caches[prompt.worker].overlap(prompt), seed=SEED)
    seen, tally = set(), Tally()
    while tally.probes < 200:
        probe = planner.next()
        prompt = probe.prompt
        held, reusable = caches[prompt.worker].overlap(prompt), reusable_blocks(prompt, BLOCK)
        seen.add(probe.stratum)
        before = {Stratum.PARTIAL: 0 < held < reusable, Stratum.WHOLE: held >= reusable, Stratum.GONE: held == 0}
        match probe.stratum:
            case Stratum.EXTENDED:
                assert any(prompt.tokens[: len(other.tokens)] == other.tokens for other in sent)
                assert held > 0
            case Stratum.FOREIGN:
                assert prompt not in sent
                assert any(prompt.tokens == other.tokens for other in sent)
            case Stratum.FILLER:
                assert held == 0
            case stratum:
                assert prompt in sent
                assert before[stratum]
        caches[prompt.worker].add(prompt)
        cached = min(held, reusable) * BLOCK
        tally.add(probe, predicted=cached, cached=cached)
    assert seen >= set(Stratum) - {Stratum.FILLER}
    assert (tally.agreement, tally.misses) == (1.0, [])
    assert tally.cached_share >= 0.5
    assert tally.partial_share >= 0.25


def test_planner_gives_up_when_fillers_evict_nothing() -> None:
    prompt = Prompt(0, Identity(), tuple(range(5, 205)))
    planner = ProbePlanner([prompt], lambda _: 6, seed=SEED)
    assert {planner.next().stratum for _ in range(40)} == {Stratum.FILLER}
    with pytest.raises(RuntimeError, match="no prompt is 'sent before, in part evicted' after 40 fillers"):
        planner.next()


def test_tally_counts_by_what_the_engine_reported() -> None:
    prompt = Prompt(0, Identity(), tuple(range(5, 205)))  # 200 tokens, 6 reusable blocks
    tally, part = Tally(), Stratum.PARTIAL
    rows = [
        (Stratum.FILLER, 1, 0),
        (Stratum.WHOLE, 192, 192),
        (part, 64, 64),
        (part, 64, 192),
        (Stratum.EXTENDED, 64, 64),
    ]
    for stratum, predicted, cached in rows:
        tally.add(Probe(stratum, prompt), predicted=predicted, cached=cached)
    assert (tally.probes, tally.agreement) == (4, 0.75)
    assert (tally.cached_share, tally.partial_share) == (1.0, 0.25)
    assert tally.misses == [(Probe(Stratum.PARTIAL, prompt), 64, 192)]
    assert tally.table().splitlines()[-1].split() == ["all", "4", "3", "4", "1", "after", "partial", "eviction"]
