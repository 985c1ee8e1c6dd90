"""The harness drives real engines: what it promises to tests built upon it."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator

import pytest
import zmq
from tests.engine.drive import run_traffic, send_prompt
from tests.engine.engine import BLOCK_SIZE, Engine, EngineError
from tests.engine.probes import reusable_blocks
from tests.engine.traffic import Transcript, plan_traffic

DEADLINE_S = 30.0
SEED = 5
END_OF_REPLAY = b"\xff" * 8


def prompt(seed: int, length: int) -> list[int]:
    """Return token ids that no other seed gives."""
    generator = random.Random(seed)
    return [generator.randrange(5, 4096) for _ in range(length)]


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context[zmq.Socket[bytes]]() as context:
        context.setsockopt(zmq.LINGER, 0)
        yield context


def replay(context: zmq.Context[zmq.Socket[bytes]], engine: Engine, start: int) -> list[list[bytes]]:
    """Ask for the batches from `start` on; return the frames of each without the end marker."""
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(engine.replay_endpoint)
        dealer.send_multipart([b"", start.to_bytes(8, "big")])
        messages: list[list[bytes]] = []
        while dealer.poll(int(DEADLINE_S * 1000)):
            frames = dealer.recv_multipart()
            if frames[-2] == END_OF_REPLAY:
                return messages
            messages.append(frames)
    pytest.fail(f"the replay of {engine.name} does not end")


def test_prompt_sent_twice_reports_cached_tokens_on_each_engine_alone(engines: list[Engine]) -> None:
    tokens = prompt(1, 5 * BLOCK_SIZE + 3)
    for engine in engines:
        assert engine.complete(tokens).cached_tokens == 0
        again = engine.complete(tokens)
        assert (again.prompt_tokens, again.cached_tokens) == (len(tokens), 5 * BLOCK_SIZE)
        assert len(again.output) == 1


def test_adapter_and_salt_have_caches_of_their_own(engines: list[Engine]) -> None:
    tokens = prompt(2, 3 * BLOCK_SIZE + 1)
    for adapter, salt in ((None, None), ("la", None), ("lb", None), (None, "a"), ("la", "a")):
        cached = [engines[0].complete(tokens, adapter=adapter, cache_salt=salt).cached_tokens for _ in range(2)]
        assert cached == [0, 3 * BLOCK_SIZE], (adapter, salt)


def test_whole_blocks_evict_the_tail_of_older_prompts_first(engines: list[Engine]) -> None:
    engine = engines[0]
    old = prompt(3, 20 * BLOCK_SIZE + 1)
    engine.complete(old)
    for seed in range(4, 7):  # 20 and 3 times 16 blocks do not fit into 63
        engine.complete(prompt(seed, 16 * BLOCK_SIZE))
    cached = engine.complete(old).cached_tokens
    assert 0 < cached < 20 * BLOCK_SIZE


def test_reset_empties_the_cache(engines: list[Engine]) -> None:
    tokens = prompt(7, 4 * BLOCK_SIZE)
    engines[0].complete(tokens)
    engines[0].reset_cache()
    assert engines[0].complete(tokens).cached_tokens == 0


def test_events_arrive_and_replay_gives_the_same_bytes(
    engines: list[Engine], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    for engine in engines:
        with context.socket(zmq.SUB) as subscriber:
            subscriber.subscribe(b"")
            subscriber.connect(engine.events_endpoint)
            end = time.monotonic() + DEADLINE_S
            for seed in itertools.count(100):  # what is published before the subscription is known is lost
                engine.complete(prompt(seed, 2 * BLOCK_SIZE))
                if subscriber.poll(200):
                    break
                assert time.monotonic() < end, "no event arrives"
            topic, number, payload = subscriber.recv_multipart()
        assert topic == engine.topic.encode()
        assert b"BlockStored" in payload
        first = int.from_bytes(number, "big")
        assert replay(context, engine, first)[0][-3:] == [topic, number, payload]
        everything = replay(context, engine, 0)
        assert [int.from_bytes(frames[-2], "big") for frames in everything] == list(range(len(everything)))
        assert everything[first][-1] == payload


def test_killed_engine_is_gone_and_comes_back_on_its_ports_empty(
    engines: list[Engine], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    engine, other = engines
    tokens = prompt(8, 4 * BLOCK_SIZE + 1)
    for each in engines:
        each.complete(tokens)
    before = replay(context, engine, 0)
    endpoints = (engine.url, engine.events_endpoint, engine.replay_endpoint)
    engine.kill()
    assert not engine.is_alive()
    with pytest.raises(OSError, match="refused"):
        engine.get("/health")
    assert other.complete(tokens).cached_tokens == 4 * BLOCK_SIZE
    engine.restart()
    assert (engine.url, engine.events_endpoint, engine.replay_endpoint) == endpoints
    assert engine.complete(tokens).cached_tokens == 0
    after = replay(context, engine, 0)
    assert int.from_bytes(after[0][-2], "big") == 0
    assert after[0][-1] != before[0][-1]


def test_refused_request_names_the_engine_and_shows_its_log(engines: list[Engine]) -> None:
    with pytest.raises(EngineError, match="engine w0 answered 404 to /v1/completions") as refused:
        engines[0].complete(prompt(9, 10), adapter="unknown")
    assert "POST /reset_prefix_cache" in str(refused.value)


def test_planned_traffic_is_answered_in_full_and_shares_prefixes(engines: list[Engine]) -> None:
    plan = plan_traffic(SEED, requests=60)
    transcript = Transcript()
    answers = run_traffic(engines, plan[:30], transcript) + run_traffic(engines, plan[30:], transcript)
    assert [len(answer.output) for answer in answers] == [planned.max_tokens for planned in plan]
    sent = transcript.sent()
    assert [answer.prompt_tokens for answer in answers] == [len(prompt.tokens) for prompt in sent]
    assert sum(answer.cached_tokens for answer in answers) > 0.1 * sum(answer.prompt_tokens for answer in answers)
    last = max((prompt for prompt in sent if prompt.worker == 0), key=lambda prompt: len(prompt.tokens))
    send_prompt(engines, last)
    assert send_prompt(engines, last).cached_tokens == reusable_blocks(last, BLOCK_SIZE) * BLOCK_SIZE
