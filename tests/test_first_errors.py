"""First mistakes with the library, and the exact text of each error."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import pytest

import cachelb
from cachelb import CacheAware, Router, hash_blocks, policies
from cachelb.policies import POLICIES, BuiltinPolicy, Learned, OverlapCost, Random, Session
from cachelb.testing import ManualClock

OTHER_SEED = "blocks= are of another seed: give hash_blocks the same secret=, or the hash_seed as seed="


def router(**options: Any) -> Router[str]:
    return Router(["a", "b"], seed=1, **options)


HASHES: list[tuple[dict[str, Any], dict[str, Any], str | None]] = [
    ({"hash_seed": 7}, {"seed": 7}, None),
    ({"secret": "known to all gateways"}, {"secret": "known to all gateways"}, None),
    ({"hash_seed": 7, "block_size": 32}, {"seed": 7, "block_size": 32}, None),
    (
        {"hash_seed": 7},
        {"seed": 7, "block_size": 32},
        "blocks= are of blocks of 32 tokens, not 16: hash_blocks(tokens, 16)",
    ),
    ({"hash_seed": 7}, {"seed": 8}, OTHER_SEED),
    ({}, {}, OTHER_SEED),
    ({"secret": "known to all gateways"}, {"secret": "another of the gateways"}, OTHER_SEED),
    (
        {"hash_seed": 7},
        {"seed": 7, "scheme": "eagle"},
        'blocks= are of scheme "eagle", not "chained": hash_blocks(scheme="chained")',
    ),
]


@pytest.mark.parametrize(("options", "made", "text"), HASHES)
def test_hashes_of_another_size_or_seed_are_refused(
    options: dict[str, Any], made: dict[str, Any], text: str | None
) -> None:
    one, hashes = router(**options), hash_blocks(range(200), **made)
    for blocks in (hashes, hashes[:3]):
        if text is None:
            one.select_worker(blocks=blocks).on_complete()
            continue
        with pytest.raises(ValueError, match="blocks= are of") as error:
            one.select_worker(blocks=blocks)
        assert str(error.value) == text
    one.select_worker(blocks=hashes.tolist()).on_complete()  # not known


def test_hashes_of_a_policy_alone_and_of_a_model_are_checked_by_its_own_size() -> None:
    hashes = hash_blocks(range(200), 32)
    CacheAware(block_size=32).select_worker(["a"], blocks=hashes).on_complete()
    with pytest.raises(ValueError, match="blocks of 32 tokens, not 16"):
        CacheAware().select_worker(["a"], blocks=hashes)
    one = router(hash_seed=1337, models={"large": 32})
    one.select_worker(blocks=hashes, model="large").on_complete()
    with pytest.raises(ValueError, match="blocks of 32 tokens, not 16"):
        one.select_worker(blocks=hashes)


def url(worker: str) -> str:
    return worker


CLOCK = ManualClock(1.0)
NAMES = {**vars(policies), "url": url, "CLOCK": CLOCK}
OPTIONS: list[tuple[BuiltinPolicy, str]] = [
    (CacheAware(), "CacheAware()"),
    (CacheAware(load_factor=1.25, index="blocks", ttl_s=None), "CacheAware()"),
    (CacheAware(load_factor=2, seed=3), "CacheAware(load_factor=2, seed=3)"),
    (CacheAware(key=url), "CacheAware(key=url)"),
    (OverlapCost(overlap_score_credit_decay=0.5), "OverlapCost(overlap_score_credit_decay=0.5)"),
    (Session(base="random"), "Session(base='random')"),
    (Session(base=CacheAware(load_factor=3.0), seed=2), "Session(base=CacheAware(load_factor=3.0), seed=2)"),
    (Learned(fallback=Session(base=Random())), "Learned(fallback=Session(base=Random()))"),
    (policies.KvAware(credits={"cpu": 0.5}), "KvAware(credits={'cpu': 0.5})"),
    (policies.EstimatedTtft(prefill=(1, 2, 3)), "EstimatedTtft(prefill=(1, 2, 3))"),
    (policies.QueueOverThroughput(throughput={"a": 2}), "QueueOverThroughput(throughput={'a': 2})"),
]


@pytest.mark.parametrize(("policy", "text"), OPTIONS, ids=[text for _, text in OPTIONS])
def test_repr_of_a_policy_builds_it_again(policy: BuiltinPolicy, text: str) -> None:
    assert repr(policy) == text
    again = eval(text, NAMES)  # noqa: S307 - our own text
    assert (type(again), repr(again)) == (type(policy), text)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_repr_of_every_policy_has_every_number_that_is_not_the_default(policy: Any) -> None:
    given = {name: 0.5 for name, kind, default, _ in policy.keywords().values() if kind == "float" and default != 0.5}
    made: dict[str, float] = {}
    for name, value in given.items():
        try:
            policy(**made, **{name: value})
        except ValueError:  # its range does not hold it
            continue
        made[name] = value
    text = repr(policy(**made))
    assert text == f"{policy.__name__}({', '.join(f'{name}={value}' for name, value in made.items())})"
    assert repr(eval(text, NAMES)) == text  # noqa: S307 - our own text


DROPPED = """
from cachelb import Router
router = Router(["a"])
def drop(end):
    decision = router.select_worker(text="hi")
    end(decision)
drop(lambda decision: decision.on_complete())
drop(lambda decision: decision.on_error(500))
drop(lambda decision: decision.cancel())
drop(lambda decision: decision.__exit__(None, None, None))
router.select_worker(text="hi", dry_run=True)
drop(lambda decision: None)
print(router.stats().endings["abandoned"])
open_at_exit = router.select_worker(text="hi")
"""


@pytest.mark.parametrize("flags", [[], ["-X", "dev"]], ids=["as usual", "development"])
def test_dropped_decision_warns_in_development_mode_alone(flags: list[str]) -> None:
    run = subprocess.run([sys.executable, *flags, "-c", DROPPED], capture_output=True, text=True, check=True)
    assert run.stdout == "1\n"
    if flags:
        assert run.stderr.count("ResourceWarning: decision ") == 2, run.stderr
    else:
        assert run.stderr == ""


def test_policy_alone_matches_texts_and_chats_as_a_router_does() -> None:
    chat = [{"role": "user", "content": "Tell me a story. " * 40}]
    more = [*chat, {"role": "assistant", "content": "Once upon a time"}, {"role": "user", "content": "Go on."}]
    for first, then in (({"text": "x" * 999}, {"text": "x" * 1999}), ({"messages": chat}, {"messages": more})):
        alone, one = CacheAware(seed=1), router(policy="cache-aware")
        found = []
        for select in (partial(alone.select_worker, ["a", "b"]), one.select_worker):
            before = select(**first)
            after = select(**then)
            found.append((after.reason, after.matched_tokens, after.prompt_tokens, after.worker == before.worker))
        assert found[0] == found[1]
        assert found[0][0] == "prefix"
        assert found[0][1] > 100
        alone.validate()


def test_names_of_the_package_are_listed_and_there() -> None:
    code = (
        "import cachelb, sys; names = dir(cachelb); print('cachelb.policies' in sys.modules, names == cachelb.__all__)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False True\n"
    assert cachelb.policies is policies
    assert {"Router", "Policy", "policies"} < set(dir(cachelb))
    assert all(getattr(cachelb, name) is getattr(policies, name) for name in ("Adaptive", "CacheAware", "KvAware"))
