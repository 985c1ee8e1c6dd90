"""Facts about workers that load sources find out: capacity and block size."""

from __future__ import annotations

import logging

import pytest
from tests.models.loads import indexed_blocks

from cachelb import Router
from cachelb.metrics.families import families


def prompts(count: int, blocks: int = 4) -> list[list[int]]:
    return [[n * 1_000 + i for i in range(blocks * 16)] for n in range(count)]


def test_a_worker_that_is_added_again_keeps_what_it_holds() -> None:
    router = Router(["gpu0"], seed=1, policy="cache-aware")
    router.select_worker(tokens=range(64)).on_complete()
    router.add_worker("gpu0", weight=2.0)
    router.validate()
    assert router.select_worker(tokens=range(64)).matched_tokens == 48
    router.load_sink.learn_worker("gpu0", kv_blocks=2)
    router.validate()
    assert indexed_blocks(router, "gpu0") == 2


def test_a_worker_that_is_added_again_keeps_its_capacity_unless_told_another() -> None:
    router = Router(["gpu0"], seed=1)
    router.load_sink.learn_worker("gpu0", kv_blocks=8, block_size=16)
    held = []
    for options in ({"weight": 2.0}, {"dp_size": 2}, {"kv_blocks": 12}, {}):
        router.add_worker("gpu0", **options)
        for tokens in prompts(20):
            router.select_worker(tokens=tokens).on_complete()
        held.append(indexed_blocks(router, "gpu0"))
    assert held == [8, 16, 12, 12]


@pytest.mark.parametrize("name", ["kv_blocks", "block_size"])
def test_facts_that_are_no_counts_are_refused(name: str) -> None:
    router = Router(["gpu0"])
    with pytest.raises(ValueError, match=f"{name} must be from 1 to 4294967295, got 0"):
        router.load_sink.learn_worker("gpu0", **{name: 0})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=name):
        router.load_sink.learn_worker("gpu0", **{name: 1.5})  # type: ignore[arg-type]


def test_the_latest_program_of_an_engine_is_kept_for_every_rank() -> None:
    router: Router[str] = Router()
    router.add_worker("gpu0", dp_size=2)
    router.load_sink.learn_worker("gpu0", engine="vllm")
    router.load_sink.learn_worker("gpu0", kv_blocks=8)
    router.add_worker("gpu0", dp_size=3)
    assert [row.engine for row in router.stats().workers] == ["vllm"] * 3
    router.load_sink.learn_worker("gpu0", engine="sglang")
    assert [row.engine for row in router.stats().workers] == ["sglang"] * 3
    with pytest.raises(ValueError, match='engine must be one of "vllm", "sglang", "tensorrt-llm", got "tgi"'):
        router.load_sink.learn_worker("gpu0", engine="tgi")
    with pytest.raises(TypeError, match="engine must be one of"):
        router.load_sink.learn_worker("gpu0", engine=1)  # type: ignore[arg-type]
    assert router.stats().workers[0].engine == "sglang"


def test_each_model_has_its_own_block_size() -> None:
    router: Router[str] = Router(block_size=16, models={"long": 64})
    router.add_worker("gpu0", models=["long"])
    router.add_worker("gpu1")
    router.load_sink.learn_worker("gpu0", block_size=64)
    router.load_sink.learn_worker("gpu1", block_size=64)
    with pytest.raises(ValueError, match="96 tokens, the router of 64"):
        router.load_sink.learn_worker("gpu0", block_size=96)
    router.load_sink.learn_worker("gpu1", block_size=96)
    with pytest.raises(ValueError, match="24 tokens, the router of 16 or 64"):
        router.load_sink.learn_worker("gpu1", block_size=24)
    first = router.select_worker(tokens=range(640), model="long")
    again = router.select_worker(tokens=range(640), model="long", among=[first.worker])
    assert again.matched_tokens == 9 * 64


def test_models_never_share_prefixes() -> None:
    router = Router(["gpu0", "gpu1"], seed=1, models={"a": 16})
    router.add_worker("gpu2", models=["b"])
    names: list[str | None] = ["a", "b", "x", "y", None]
    for name in names:
        decision = router.select_worker(tokens=range(320), model=name)
        assert decision.best_matched_tokens == 0, name
        decision.on_complete()
    for name in names:
        assert router.select_worker(tokens=range(320), model=name).best_matched_tokens == 304, name


def test_syncing_the_same_strings_under_a_key_function_keeps_what_they_hold() -> None:
    router = Router(["gpu0", "gpu1"], key=str.upper, policy="cache-aware", seed=1)
    first = router.select_worker(tokens=range(64))
    router.sync_workers(["gpu0", "gpu1"])
    assert router.keys() == ["GPU0", "GPU1"]
    assert router.select_worker(tokens=range(64)).matched_tokens == 48
    assert first.is_open


HASHING = ["rendezvous", "consistent-hash", "prefix-hash"]


def picks(policy: str, seed: int, hash_seed: int | None = None) -> list[str]:
    router = Router([f"gpu{n}" for n in range(8)], policy=policy, seed=seed, hash_seed=hash_seed)
    prompts_ = prompts(40)
    by_prompt = [router.select_worker(tokens=tokens).worker for tokens in prompts_]
    return by_prompt + [router.select_worker(session=f"chat-{n}", by_load=True).worker for n in range(40)]


@pytest.mark.parametrize("policy", HASHING)
def test_routers_that_share_the_hash_seed_agree_whatever_breaks_their_ties(policy: str) -> None:
    assert picks(policy, seed=1, hash_seed=7) == picks(policy, seed=2, hash_seed=7)
    assert picks(policy, seed=1, hash_seed=7) != picks(policy, seed=1, hash_seed=8)


def test_kv_blocks_that_load_reports_contradict_are_replaced_logged_once_and_exported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "cachelb.router")
    now_s = 0.0
    router: Router[str] = Router(seed=1, clock=lambda: now_s)
    router.add_worker("gpu0", kv_blocks=100)
    decisions = [router.select_worker(tokens=tokens) for tokens in prompts(11, 10)]
    for decision in decisions:
        decision.on_first_token()
    now_s += 0.1
    for decision in decisions:
        decision.on_tokens(4)
    decisions.pop().on_complete()
    seen = []
    for _ in range(20):
        now_s += 0.001
        router.load_sink.update_load("gpu0", running=10, waiting=0, kv_usage=0.25)
        seen.append(router.stats().workers[0].learned.get("kv_blocks"))
    router.validate()
    assert seen[6] is None
    assert seen[7:] == [seen[7]] * 13
    assert seen[7] is not None
    assert 380 <= seen[7] <= 480
    learned = f"worker gpu0: about {seen[7]:.0f} KV blocks by its load reports, which count from now on"
    assert [record.getMessage() for record in caplog.records] == [f"{learned}; kv_blocks is 100: correct it"]
    rows = {family.name: dict(family.rows) for family in families(router.stats())}
    assert rows["worker_learned"] == {("gpu0", "", "kv_blocks"): seen[7]}
    router.add_worker("gpu0", kv_blocks=120)
    assert router.stats().workers[0].learned == {}


def test_contradicted_block_sizes_and_devices_are_logged_once_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    router: Router[str] = Router(seed=1, block_size=16, clock=lambda: now_s)
    for at, speed in enumerate((10_000, 10_000, 2_500, 10_000)):
        router.add_worker(f"gpu{at}", gpu="h100")
        for tokens in prompts(100, 125):
            decision = router.select_worker(tokens=[token + at * 10**7 for token in tokens], among=[f"gpu{at}"])
            now_s += len(tokens) / speed
            decision.on_first_token()
            decision.on_complete()
    # Those that came later are what the first ones are compared with.
    for tokens in prompts(100, 125):
        decision = router.select_worker(tokens=[token + 9 * 10**7 for token in tokens], among=["gpu2"])
        now_s += len(tokens) / 2_500
        decision.on_first_token()
        decision.on_complete()
    assert [worker.learned for worker in router.stats().workers] == [{}, {}, {"gpu": pytest.approx(0.25, rel=0.05)}, {}]
    (found,) = [record.getMessage() for record in caplog.records]
    assert found.startswith("worker gpu2: 0.25 times as fast as others of its gpu by its first tokens")
