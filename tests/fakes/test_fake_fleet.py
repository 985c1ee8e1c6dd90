"""The fake fleet behaves like the engines it stands for: endpoints, cache, queue, metrics."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import aiohttp
import pytest
from tests.http_client import DEADLINE_S, chat, complete, metrics, send
from tests.models.engine_blocks import EngineBlocks
from tests.threads import one_runs_one_waits

from cachelb_fakes import FakeFleet, FakeWorker
from cachelb_fakes.fleet.tokens import decode, encode

BLOCK = 16
# 64 tokens, four blocks; the last token of a prompt is never taken from the cache, so three of them can be.
MESSAGES = [{"role": "user", "content": "a"}]
PROMPT = "word" * 64


@pytest.fixture(name="fleet")
def two_workers() -> Iterator[FakeFleet]:
    with FakeFleet(2) as fleet:
        yield fleet


@pytest.fixture(name="worker")
def first_worker(fleet: FakeFleet) -> FakeWorker:
    return fleet.workers[0]


# --- answers ---


def test_completion_has_text_and_usage_of_the_length_asked_for(worker: FakeWorker) -> None:
    answer = complete(worker.url, "hello, world", max_tokens=3, headers={"X-Request-Id": "r1"}).json
    (choice,) = answer["choices"]
    assert (answer["id"], answer["object"], choice["finish_reason"]) == ("cmpl-r1", "text_completion", "length")
    assert len(encode(choice["text"])) == 3
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert answer["usage"] == usage


def test_answer_depends_on_the_prompt_only(fleet: FakeFleet) -> None:
    one, other = fleet.urls
    asked = [(one, PROMPT), (one, PROMPT), (other, PROMPT), (one, "another prompt")]
    texts = [complete(url, prompt).json["choices"][0]["text"] for url, prompt in asked]
    assert texts[0] == texts[1] == texts[2] != texts[3]


def test_stream_carries_the_same_answer_in_one_event_a_token(worker: FakeWorker) -> None:
    whole = complete(worker.url, PROMPT, max_tokens=5).json
    answer = complete(worker.url, PROMPT, max_tokens=5, stream=True, stream_options={"include_usage": True})
    *words, usage, done = answer.events
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert "".join(event["choices"][0]["text"] for event in words) == whole["choices"][0]["text"]
    assert [event["choices"][0]["finish_reason"] for event in words] == [None] * 4 + ["length"]
    assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 5, "[DONE]")
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 48}


def test_stream_interval_groups_tokens_after_the_first() -> None:
    with FakeFleet(1, stream_interval=4) as fleet:
        whole = complete(fleet.urls[0], PROMPT, max_tokens=10).json
        *events, done = complete(fleet.urls[0], PROMPT, max_tokens=10, stream=True, return_token_ids=True).events
    choices = [event["choices"][0] for event in events]  # and no usage, which was not requested
    assert not any("usage" in event for event in events)
    assert [len(choice["token_ids"]) for choice in choices] == [1, 4, 4, 1]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]
    assert ("".join(choice["text"] for choice in choices), done) == (whole["choices"][0]["text"], "[DONE]")


def test_chat_answers_whole_and_as_a_stream(worker: FakeWorker) -> None:
    message = chat(worker.url, "hi", max_tokens=4).json["choices"][0]["message"]
    first, *words, done = chat(worker.url, "hi", max_completion_tokens=4, stream=True).events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert done == "[DONE]"
    said = "".join(event["choices"][0]["delta"]["content"] for event in words)
    assert {"role": "assistant", "content": said} == message
    assert len(words) == 4


def test_longer_conversation_finds_the_shorter_one_cached(worker: FakeWorker) -> None:
    turns = ["question " * 20, "answer " * 20, "thanks"]
    first = chat(worker.url, turns[0]).json["usage"]["prompt_tokens"]
    assert chat(worker.url, *turns).cached_tokens in range(first - 2 * BLOCK, first + 1)


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_come_where_vllm_has_them(worker: FakeWorker, stream: bool) -> None:
    fields: dict[str, Any] = {"max_tokens": 2, "return_token_ids": True, "stream": stream}
    completion, conversation = complete(worker.url, PROMPT, **fields), chat(worker.url, "hi", **fields)
    tokens = send(worker.url, "/tokenize", {"messages": [{"role": "user", "content": "hi"}]}).json["tokens"]
    parts = [completion.events[:-1], conversation.events[1:-1]] if stream else [[completion.json], [conversation.json]]
    for answers in parts:
        choices = [answer["choices"][0] for answer in answers]
        texts = [choice.get("text") or (choice.get("delta") or choice["message"])["content"] for choice in choices]
        assert [choice["token_ids"] for choice in choices] == [encode(text).tolist() for text in texts]
    assert parts[0][0]["choices"][0]["prompt_token_ids"] == encode(PROMPT).tolist()
    assert (conversation.events[0] if stream else conversation.json)["prompt_token_ids"] == tokens


@pytest.mark.parametrize(
    "prompt",
    [PROMPT, [PROMPT], encode(PROMPT).tolist(), [encode(PROMPT).tolist()]],
    ids=["text", "texts", "ids", "idss"],
)
def test_every_form_of_a_prompt_is_the_same_prompt(worker: FakeWorker, prompt: object) -> None:
    complete(worker.url, PROMPT)
    assert complete(worker.url, prompt).cached_tokens == 48


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize("declared", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonl"])
def test_body_that_is_not_declared_as_json_is_refused_as_by_vllm(worker: FakeWorker, path: str, declared: str) -> None:
    answer = send(worker.url, path, {"prompt": "a", "messages": MESSAGES}, {"Content-Type": declared})
    why = "Unsupported Media Type: Only 'application/json' is allowed"
    assert answer.status == 400
    assert answer.json["error"] == {"message": why, "type": "Bad Request", "param": None, "code": 400}
    allowed = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert send(worker.url, path, {"prompt": "a", "messages": MESSAGES}, allowed).status == 200


KINDS = {
    **dict.fromkeys(("no JSON", "model must be", "at least one message"), "Bad Request"),
    "prompt is empty": "BadRequestError",
    "`other` does not exist": "NotFoundError",
    "Not Allowed": "Method Not Allowed",
    "Not Found": "Not Found",
}
"""The types that vLLM gives such errors."""


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/completions", b"{", 400, "no JSON"),
        ("/v1/completions", [], 400, "must be a JSON object"),
        ("/v1/completions", {}, 400, "prompt must be a string or a list"),
        ("/v1/completions", {"prompt": ""}, 400, "prompt is empty"),
        ("/v1/completions", {"prompt": ["a", "b"]}, 400, "2 prompts in one request"),
        ("/v1/completions", {"prompt": [1, -1]}, 400, "from 0 to 4294967295"),
        ("/v1/completions", {"prompt": [1, 2**32]}, 400, "from 0 to 4294967295"),
        ("/v1/completions", {"prompt": [1, True]}, 400, "must be an integer"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens must be"),
        ("/v1/completions", {"prompt": "a", "max_tokens": "9"}, 400, "max_tokens must be"),
        ("/v1/completions", {"prompt": "a", "n": 2}, 400, "n is 2, it must be 1"),
        ("/v1/completions", {"prompt": "a", "stream_options": 1}, 400, "stream_options must be"),
        ("/v1/completions", {"prompt": "a", "cache_salt": 1}, 400, "cache_salt must be"),
        ("/v1/completions", {"prompt": "a", "kv_transfer_params": 1}, 400, "kv_transfer_params must be"),
        ("/v1/completions", {"prompt": "a", "model": 1}, 400, "model must be"),
        ("/v1/completions", {"prompt": "a", "model": "other"}, 404, "`other` does not exist"),
        ("/v1/completions", {"prompt": "word" * 60, "max_tokens": 5}, 400, "maximum context length is 64"),
        ("/v1/chat/completions", {}, 400, "at least one message"),
        ("/v1/chat/completions", {"messages": []}, 400, "at least one message"),
        ("/v1/chat/completions", {"messages": [{"content": "a"}]}, 400, "object with a role"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 1}]}, 400, "string or a list"),
        ("/tokenize", {"messages": 1}, 400, "at least one message"),
        ("/nowhere", {}, 404, "Not Found"),
        ("/health", {}, 405, "Not Allowed"),
    ],
)
def test_bad_request_is_an_error_that_says_why(path: str, body: object, status: int, message: str) -> None:
    with FakeFleet(1, models=["base"], kv_blocks=4) as fleet:
        answer = send(fleet.urls[0], path, body)
        assert (answer.status, answer.json["error"]["code"]) == (status, status)
        assert message in answer.json["error"]["message"]
        assert KINDS.get(message, answer.json["error"]["type"]) == answer.json["error"]["type"]
        counts = fleet.workers[0].counts
        assert counts.started == counts.rejected == ("completions" in path)


def test_tokenize_tells_tokens_and_the_longest_context(worker: FakeWorker) -> None:
    page = send(worker.url, "/tokenize", {"prompt": "grüße"}).json
    assert page == {"count": 2, "max_model_len": 65536, "tokens": page["tokens"], "token_strs": None}
    assert decode(page["tokens"]) == "grüße"


def test_tokenize_leaves_the_opening_of_the_answer_out_if_asked(worker: FakeWorker) -> None:
    asked = [{"messages": MESSAGES}, {"messages": MESSAGES, "add_generation_prompt": False}]
    tokens = [send(worker.url, "/tokenize", body).json["tokens"] for body in asked]
    assert [decode(ids) for ids in tokens] == ["<|user|>a<|end|><|assistant|>", "<|user|>a<|end|>"]


def test_pages_and_usage_are_those_of_the_engine_it_stands_for() -> None:
    with FakeFleet(1, models=["base", "adapter"], report_cached_tokens=False) as fleet:
        models = send(fleet.urls[0], "/v1/models").json["data"]
        assert [(model["id"], model["parent"]) for model in models] == [("base", None), ("adapter", "base")]
        assert send(fleet.urls[0], "/health").status == 200
        assert send(fleet.urls[0], "/version").json == {"version": "0.32.0"}
        assert complete(fleet.urls[0], "word" * 32).json["usage"]["prompt_tokens_details"] is None


# --- the cache ---


def test_cached_tokens_equal_a_reference_lru() -> None:
    rng = random.Random(11)
    models = [EngineBlocks(2, 8), EngineBlocks(2, 8)]
    with FakeFleet(2, block_size=2, kv_blocks=8, default_max_tokens=1) as fleet:
        hits = 0
        for _ in range(300):
            number = rng.randrange(2)
            tokens = [rng.randrange(2) for _ in range(rng.randint(1, 15))]
            cached = complete(fleet.urls[number], tokens).cached_tokens
            assert cached == models[number].credit(tokens, own_size=2)
            models[number].keep(tokens)
            hits += cached
        assert [worker.cached_blocks for worker in fleet.workers] == [len(model.used) for model in models]
        assert sum(worker.counts.cached_tokens for worker in fleet.workers) == hits > 200


def test_salts_and_adapters_have_caches_of_their_own() -> None:
    with FakeFleet(1, models=["base", "adapter"]) as fleet:
        identities: list[dict[str, Any]] = [{}, {"model": "adapter"}, {"cache_salt": "s"}, {"cache_salt": "t"}]
        for expected in (0, 48):
            assert [complete(fleet.urls[0], PROMPT, **fields).cached_tokens for fields in identities] == [expected] * 4
        assert complete(fleet.urls[0], PROMPT, model="base").cached_tokens == 48


# --- prefill and decode apart ---


def test_decode_takes_over_the_prompt_that_another_worker_prefilled(fleet: FakeFleet) -> None:
    prefill, decoder = fleet.workers
    ask: dict[str, Any] = {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}, "return_token_ids": True}
    first = complete(prefill.url, PROMPT, **ask).json
    params, ids = first["kv_transfer_params"], first["choices"][0]["prompt_token_ids"]
    assert params.items() >= {("do_remote_prefill", True), ("do_remote_decode", False)}
    assert len(params["remote_block_ids"]) == 4
    second = complete(decoder.url, PROMPT, max_tokens=8, kv_transfer_params=params, prompt_token_ids=ids)
    assert second.cached_tokens == 63
    assert second.json["choices"][0]["text"] == complete(prefill.url, PROMPT, max_tokens=8).json["choices"][0]["text"]
    assert (decoder.counts.remote_prefills, decoder.counts.tokenized) == (1, 0)
    # It was handed over, so a second decode has to compute the prompt; meanwhile the blocks are in the cache.
    assert complete(decoder.url, PROMPT, kv_transfer_params=params).cached_tokens == 48
    assert (decoder.counts.remote_prefills, decoder.counts.tokenized) == (1, 1)


def test_decode_computes_the_prompt_if_the_prefill_worker_is_gone(fleet: FakeFleet) -> None:
    prefill, decoder = fleet.workers
    params = complete(prefill.url, PROMPT, kv_transfer_params={"do_remote_decode": True}).json["kv_transfer_params"]
    fleet.remove_worker(prefill)
    assert complete(decoder.url, PROMPT, kv_transfer_params=params).cached_tokens == 0
    assert decoder.counts.remote_prefills == 0


# --- load ---


@pytest.mark.parametrize(
    ("engine", "names"),
    [
        ("vllm", ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")),
        ("sglang", ("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage")),
    ],
)
def test_metrics_show_who_runs_and_who_waits(engine: Any, names: tuple[str, ...]) -> None:
    with FakeFleet(1, engine=engine, max_running=1, kv_blocks=10) as fleet:
        (worker,) = fleet.workers
        with one_runs_one_waits(fleet, worker, PROMPT):
            busy = metrics(worker.url)
        idle = metrics(worker.url)
        assert (worker.counts.peak_running, worker.counts.finished) == (1, 2)
    assert [busy[name] for name in names] == [1, 1, 0.5]
    assert [idle[name] for name in names] == [0, 0, 0]
    if engine == "sglang":
        more = ("sglang:max_total_num_tokens", "sglang:page_size", "sglang:gen_throughput")
        assert [idle[name] for name in more] == [160, 16, 0]


def test_vllm_metrics_tell_hits_and_the_cache_configuration(worker: FakeWorker) -> None:
    for _ in range(2):
        complete(worker.url, PROMPT)
    page = send(worker.url, "/metrics").body.decode()
    values = metrics(worker.url)
    assert (values["vllm:prefix_cache_queries_total"], values["vllm:prefix_cache_hits_total"]) == (128, 48)
    assert 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="4096",' in page


def test_load_report_comes_in_the_form_asked_for(worker: FakeWorker) -> None:
    def report(form: str) -> str | None:
        return complete(worker.url, PROMPT, {"endpoint-load-metrics-format": form}).headers["endpoint-load-metrics"]

    assert report("JSON") == 'JSON {"named_metrics": {"kv_cache_usage_perc": 0.0, "num_requests_waiting": 0.0}}'
    assert report("text") == "TEXT named_metrics.kv_cache_usage_perc=0.0, named_metrics.num_requests_waiting=0.0"
    assert report("BIN") is None
    assert complete(worker.url, PROMPT).headers["endpoint-load-metrics"] is None


def test_computing_takes_its_time() -> None:
    with FakeFleet(1, time_scale=0.5, prefill_tps=1000, decode_tps=100) as fleet:
        start_s = time.monotonic()
        complete(fleet.urls[0], PROMPT, max_tokens=2)
        assert time.monotonic() - start_s >= 0.5 * (64 / 1000 + 2 / 100)


def test_concurrent_requests_queue_for_the_slots() -> None:
    async def run() -> None:
        async with FakeFleet(1, max_running=4) as fleet, aiohttp.ClientSession() as session:
            (worker,) = fleet.workers
            fleet.fail("stall", times=3, after_chunks=1)

            async def ask(number: int) -> int:
                body = {"prompt": f"{number} {PROMPT}", "stream": True}
                async with session.post(f"{worker.url}/v1/completions", json=body) as answer:
                    return (await answer.read()).count(b"data: ")

            asking = [asyncio.create_task(ask(number)) for number in range(40)]
            served = partial(fleet.wait_for, lambda: (worker.counts.finished, worker.counts.open) == (37, 3))
            await asyncio.to_thread(served, timeout_s=DEADLINE_S)
            fleet.release()
            assert await asyncio.gather(*asking) == [17] * 40
            counts = worker.counts
            assert (counts.peak_running, counts.finished, counts.running, counts.open) == (4, 40, 0, 0)

    asyncio.run(run())
