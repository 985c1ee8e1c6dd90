"""The doctor on fake engines: healthy ones, and broken ones of which it names the trouble."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.commands import app
from tests.gateways import wait_until
from tests.models.kv_streams import nothing_left
from tests.models.metrics_server import FakeEngine

from cachelb import Router
from cachelb.events import Endpoint
from cachelb_fakes import EventPublisher, FakeFleet
from cachelb_fakes.events import encode_batch, stored
from cachelb_fakes.fleet.tokens import encode, render_chat
from cachelb_gateway.doctor import Check, Diagnosis, Settings, WorkerReport, examine
from cachelb_gateway.doctor.client import WorkerClient
from cachelb_gateway.doctor.pages import Facts
from cachelb_gateway.doctor.probe import Prober
from cachelb_gateway.doctor.stream import Stream
from cachelb_gateway.doctor.tap import StreamNotes, Tap
from cachelb_gateway.doctor.verdicts import Verdict

WORKER_CHECKS = [
    *("reachable", "model", "block-size", "prefix-caching", "events", "stream", "shape", "cache-groups", "sequence"),
    *("replay", "tokens", "cached-tokens", "prediction", "template"),
]
FLEET_CHECKS = ["models", "block-sizes", "event-addresses", "templates"]
QUICK = 1.0  # for what never comes
PATIENT = 60.0  # for what comes


def four_bytes(bos: str = "") -> Any:
    """The tokenizer and template of fake engines."""

    def render(messages: Any, tools: Any = None, add_generation_prompt: bool = True) -> Any:
        return encode(bos + render_chat(messages, tools, add_generation_prompt=add_generation_prompt)).tolist()

    return SimpleNamespace(encode=lambda text: encode(text).tolist(), apply_chat_template=render)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Keep the handler that the command adds from staying."""
    logger = logging.getLogger("cachelb")
    before = list(logger.handlers)
    yield
    logger.handlers[:] = before


def diagnose(*urls: str, seed: int = 5, **settings: Any) -> Diagnosis:
    return asyncio.run(examine(urls, Settings(seed=seed, **{"timeout_s": PATIENT} | settings)))


def checks_of(fleet: FakeFleet, **settings: Any) -> dict[str, Check]:
    """The checks of the only worker of a fleet."""
    (report,) = diagnose(*fleet.urls, **settings).workers
    return {check.name: check for check in report.checks}


def publisher(fleet: FakeFleet, at: int = 0) -> EventPublisher:
    made = fleet.workers[at].events
    assert made is not None
    return made


def port_of(address: str | None) -> int:
    return int(str(address).rpartition(":")[2])


def assert_is_fine(checks: dict[str, Check]) -> None:
    """But for the template, which takes a tokenizer."""
    assert {check.verdict for name, check in checks.items() if name != "template"} == {"ok"}


def in_vain(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Give up early what the doctor waits for and never comes, by the names of its conditions, and nothing else."""
    wait_for = Tap.wait_for

    def shortened(tap: Tap, condition: Callable[[], object], _timeout_s: float) -> bool:
        return wait_for(tap, condition, QUICK if getattr(condition, "__name__", "") in names else PATIENT)

    monkeypatch.setattr(Tap, "wait_for", shortened)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)])


def test_healthy_workers_pass_every_check() -> None:
    with nothing_left(), FakeFleet(2, kv_events=True) as fleet:
        diagnosis = diagnose(*fleet.urls, tokenizer=four_bytes())
    assert diagnosis.is_healthy
    assert {
        check.verdict for checks in (diagnosis.fleet, *(w.checks for w in diagnosis.workers)) for check in checks
    } == {"ok"}
    assert [check.name for check in diagnosis.fleet] == FLEET_CHECKS
    assert [[check.name for check in report.checks] for report in diagnosis.workers] == [WORKER_CHECKS] * 2
    seen = {check.name: check.seen for check in diagnosis.workers[0].checks}
    assert seen["tokens"].startswith("6 blocks with the very tokens that were sent, linked in order")
    assert seen.items() >= {
        ("reachable", "healthy, version 0.32.0"),
        ("block-size", "16 tokens"),
        ("cached-tokens", "prompts sent again: 64 of 64, 48 of 48 reusable tokens cached"),
        ("prediction", "predicted/cached tokens of 4 requests: 0/0, 64/64, 32/32, 48/48"),
        ("sequence", "numbers 0 to 1 without a gap"),
    }


def test_a_worker_that_has_published_before_is_caught_up_with() -> None:
    with FakeFleet(1, kv_events=True, block_size=32) as fleet:
        diagnose(*fleet.urls, seed=1)
        checks = checks_of(fleet)
        assert_is_fine(checks)
        assert checks["replay"].seen == "2 batches, numbers 0 to 1"
        assert checks["sequence"].seen == "numbers 2 to 3 without a gap"
        assert checks["prediction"].seen.endswith("0/0, 128/128, 64/64, 96/96")


@pytest.mark.parametrize(
    ("made", "asked", "seen"),
    [
        ({"models": ["base", "adapter"]}, {"model": "adapter"}, {}),
        ({"engine": "sglang", "block_size": 32}, {}, {"block-size": "32 tokens"}),
        ({"kv_blocks": 4}, {}, {"prediction": "predicted/cached tokens of 4 requests: 0/0, 48/48, 16/16, 32/32"}),
    ],
    ids=["adapter", "sglang", "short context"],
)
def test_workers_of_other_kinds_pass_as_well(made: Any, asked: Any, seen: dict[str, str]) -> None:
    with FakeFleet(1, kv_events=True, **made) as fleet:
        checks = checks_of(fleet, **asked)
        assert_is_fine(checks)
        assert ("prefix-caching" in checks) == ("engine" not in made)
        assert {name: checks[name].seen for name in seen} == seen
        asked_for = {request.body["model"] for request in fleet.workers[0].requests}
        assert asked_for == {checks["model"].seen.partition(",")[0]}


NO_STREAM = dict.fromkeys(["stream", "shape", "cache-groups", "sequence", "replay", "tokens", "prediction"], "skip")


@pytest.mark.parametrize(
    ("made", "found", "words"),
    [
        ({"kv_events": False}, {"events": "fail", **NO_STREAM}, "--kv-events-config"),
        ({"kv_replay": False}, {"replay": "warn"}, "replay_endpoint"),
        ({"report_cached_tokens": False}, {"cached-tokens": "warn", "prediction": "skip"}, "--enable-prompt-tokens-d"),
        (
            {"report_cached_tokens": False, "engine": "sglang"},
            {"cached-tokens": "warn", "prediction": "skip"},
            "start the engine with --enable-cache-report",
        ),
        ({"kv_events": False, "engine": "sglang"}, {"events": "fail", **NO_STREAM}, 'config \'{"publisher": "zmq"'),
    ],
    ids=["events", "replay", "cached tokens", "cached tokens of SGLang", "events of SGLang"],
)
def test_what_is_off_is_named_and_the_rest_is_still_checked(made: Any, found: Any, words: str) -> None:
    with FakeFleet(1, **{"kv_events": True} | made) as fleet:
        for _ in range(5):  # without a replay, events are lost that come before the subscription
            checks = checks_of(fleet)
            if "stream" in found or checks["stream"].verdict == "ok":
                break
        off = {name: check.verdict for name, check in checks.items() if check.verdict != "ok"}
        assert off == {"template": "skip", **found}
        assert words in checks[next(iter(found))].fix


def test_an_event_port_that_nobody_listens_at_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = Stream.ready

    async def refused(stream: Stream) -> bool:
        source = stream._source
        await asyncio.to_thread(wait_until, lambda: any(each.last_error for each in source.stats().streams.values()))
        return await ready(stream)

    monkeypatch.setattr(Stream, "ready", refused)
    in_vain(monkeypatch, "is_connected")
    with socket.socket() as held, FakeFleet(1) as fleet:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        checks = checks_of(fleet, events_port=port)
        assert checks["events"].seen == f"looked for at tcp://127.0.0.1:{port}"
        assert checks["stream"].verdict == "fail"
        assert "not reachable" in checks["stream"].seen
        assert checks["prediction"].verdict == "skip"


def test_ports_can_be_named_for_engines_that_do_not_tell_them() -> None:
    with FakeFleet(1, kv_events=True) as fleet:
        endpoint = publisher(fleet).endpoint
        ports = [port_of(address) for address in (endpoint.address, endpoint.replay)]
        assert_is_fine(checks_of(fleet, events_port=ports[0], replay_port=ports[1]))
        assert checks_of(fleet, seed=1, events_port=ports[0])["replay"].verdict == "warn"


def test_the_stream_of_another_engine_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    in_vain(monkeypatch, "is_covered", "has_spoken")
    with FakeFleet(2, kv_events=True) as fleet:
        other = port_of(publisher(fleet, 1).endpoint.address)
        report = diagnose(fleet.urls[0], events_port=other).workers[0]
        checks = {check.name: check for check in report.checks}
        assert (checks["stream"].verdict, checks["prediction"].verdict) == ("fail", "skip")
        assert "this very engine's" in checks["stream"].fix


@pytest.mark.parametrize(
    ("block_size", "verdict"),
    [(16, "ok"), (8, "warn"), (32, "warn"), (24, "fail")],
    ids=["same", "part", "more", "odd"],
)
def test_block_size_of_the_router_is_compared(block_size: int, verdict: str) -> None:
    with FakeFleet(1, kv_events=True) as fleet:
        checks = checks_of(fleet, block_size=block_size)
        assert checks["block-size"].verdict == verdict
        assert checks["prediction"].verdict == ("ok" if block_size <= 16 else "fail")
        if verdict != "ok":
            assert checks["block-size"].fix == "use block_size=16 in the router"


@pytest.mark.parametrize(
    ("waits", "name", "seen"), [("caught_up", "replay", "not answer"), ("covered", "sequence", "missing")]
)
def test_a_mute_replay_socket_and_a_lost_message_fail(
    waits: str, name: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_vain(monkeypatch, f"is_{waits}")
    with FakeFleet(1, kv_events=True) as fleet:
        if name == "replay":
            publisher(fleet).mute_replay()
        else:
            diagnose(*fleet.urls, seed=1)
            publisher(fleet).drop(1)
        checks = checks_of(fleet)
    assert checks[name].verdict == "fail"
    assert seen in checks[name].seen
    assert name == "sequence" or checks["stream"].verdict == "ok"


def test_a_template_that_differs_is_found_in_the_chats_only() -> None:
    with FakeFleet(1) as fleet:
        check = checks_of(fleet, tokenizer=four_bytes("<s>."))["template"]
    assert check.verdict == "fail"
    assert check.seen.startswith("a chat of 1 messages: 12 tokens here, 11 in the engine, which differ from token 0")


def test_workers_with_other_block_sizes_and_models_are_a_matter_of_the_fleet() -> None:
    with FakeFleet(1, kv_events=True, models=["a"]) as fleet:
        fleet.add_worker(models=["b"], block_size=24)
        checks = diagnose(*fleet.urls).fleet
        assert [(check.name, check.verdict) for check in checks] == list(
            zip(FLEET_CHECKS, ("warn", "fail", "ok", "ok"), strict=True)
        )
        assert fleet.urls[1] in checks[0].seen


def test_one_event_address_for_two_workers_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    in_vain(monkeypatch, "is_covered", "has_spoken")  # whose events the second worker receives is a matter of luck
    with FakeFleet(2, kv_events=True) as fleet:
        port = port_of(publisher(fleet).endpoint.address)
        fleet_checks = {check.name: check for check in diagnose(*fleet.urls, events_port=port).fleet}
        assert fleet_checks["event-addresses"].verdict == "fail"


def test_a_dead_worker_is_a_verdict_and_the_others_are_examined() -> None:
    with FakeFleet(2, kv_events=True) as fleet:
        fleet.workers[0].stop()
        dead, alive = diagnose(*fleet.urls).workers
        assert [(check.name, check.verdict) for check in dead.checks] == [("reachable", "fail")]
        assert dead.checks[0].fix == "start the engine, or correct the URL"
        assert alive.verdict == "ok"


def test_deep_json_of_an_engine_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = WorkerClient._ask
    pages = {"/v1/models": "model", "/kv_event_sources": "events", "/v1/completions": "cached-tokens"}

    for deep, name in pages.items():

        async def answer(client: WorkerClient, page: str, *rest: Any, deep: str = deep) -> bytes:
            return b"[" * 200_000 if page == deep else await ask(client, page, *rest)

        monkeypatch.setattr(WorkerClient, "_ask", answer)
        with FakeFleet(1, kv_events=True) as fleet:
            check = checks_of(fleet)[name]
        assert (check.verdict, "the answer is not JSON, or nested too deeply" in check.seen) == ("fail", True)


def test_an_engine_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = WorkerClient._ask

    async def patient(client: WorkerClient, page: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        if page != "/v1/completions":
            monkeypatch.setattr(client, "_timeout_s", PATIENT)
        try:
            return await ask(client, page, body, headers)
        finally:
            monkeypatch.setattr(client, "_timeout_s", QUICK)

    monkeypatch.setattr(WorkerClient, "_ask", patient)
    with FakeFleet(1, kv_events=True) as fleet:
        fleet.workers[0].fail("stall")
        checks = checks_of(fleet, timeout_s=QUICK)
        assert checks["cached-tokens"].verdict == "fail"
        assert checks["cached-tokens"].seen.endswith("no answer within 1 s")


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (["ok", "warn", "fail", "skip"], "fail"),
        (["skip", "ok", "warn"], "warn"),
        (["skip", "ok"], "ok"),
        (["skip"], "skip"),
        ([], "skip"),
    ],
)
def test_one_failure_among_warnings_decides(found: list[Verdict], verdict: Verdict) -> None:
    checks = [Check(f"check {at}", each, "seen") for at, each in enumerate(found)]
    assert WorkerReport("http://gpu0:8000", checks).verdict == verdict
    for diagnosis in (Diagnosis([WorkerReport("http://gpu0:8000", checks)], []), Diagnosis([], checks)):
        assert diagnosis.is_healthy == (verdict != "fail")


# --- ranks ---


def ranked(fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch) -> str:
    """One URL for two fake engines, which are its data-parallel ranks."""
    publishers = [publisher(fleet, rank) for rank in (0, 1)]
    for rank, each in enumerate(publishers):
        monkeypatch.setattr(each, "_dp_rank", rank)
    endpoints = [each.endpoint for each in publishers]
    monkeypatch.setattr("cachelb.events.fleet.Endpoint.of_rank", lambda _, rank: endpoints[rank])
    ask = WorkerClient._ask

    async def routed(client: WorkerClient, page: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        async def of_rank(rank: int) -> bytes:
            monkeypatch.setattr(client, "_url", fleet.urls[rank])
            return await ask(client, page, body, headers)

        if page != "/kv_event_sources":
            return await of_rank(int(headers.get("X-data-parallel-rank", 0)))
        return json.dumps({str(rank): json.loads(await of_rank(rank))["0"] for rank in (0, 1)}).encode()

    monkeypatch.setattr(WorkerClient, "_ask", routed)
    return fleet.urls[0]


def test_every_rank_is_probed_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeFleet(2, kv_events=True) as fleet:
        url = ranked(fleet, monkeypatch)
        (report,) = diagnose(url).workers
        checks = {check.name: check for check in report.checks}
        assert_is_fine(checks)
        assert checks["prediction"].seen == "rank 0: predicted/cached tokens of 4 requests: 0/0, 64/64, 32/32, 48/48"
        assert [len(worker.requests) for worker in fleet.workers] == [4, 4]
        publisher(fleet, 1).lose(1000)
        probe = Prober.run

        async def hurried(prober: Prober) -> list[Check]:
            if prober._rank == 1:
                monkeypatch.setattr(prober, "_timeout_s", QUICK)
            return await probe(prober)

        monkeypatch.setattr(Prober, "run", hurried)
        checks = {check.name: check for check in diagnose(url, seed=6).workers[0].checks}
        assert checks["stream"].verdict == "fail"
        assert checks["stream"].seen.startswith("rank 1: connected, but nothing came")


# --- contents of messages ---


def heard(*messages: tuple[int | None, bytes]) -> dict[str, Check]:
    """The checks of a stream of which the doctor received these live messages while it probed."""
    facts = Facts(endpoints={0: Endpoint("tcp://gpu0:5557")}, block_size=2)
    stream = Stream("http://gpu0:8000", facts, Settings())
    stream.tap.watch([1, 2, 3, 4])
    for number, payload in messages:
        stream.tap.event_sink.live("http://gpu0:8000", None, number, payload)
    stream.tap.streams.setdefault(None, StreamNotes())
    return {check.name: check for check in stream.checks()}


def told(*names: int, tokens: list[int], **fields: Any) -> bytes:
    """A message of one store, of two tokens per block unless `block_size` is given."""
    return encode_batch([stored(names, tokens, **{"block_size": 2, **fields})], ts=1.0)


FIRST = told(7, tokens=[1, 2])
SECOND = told(8, tokens=[3, 4], parent=7)


@pytest.mark.parametrize(
    ("messages", "name", "verdict", "words"),
    [
        ([(0, FIRST), (1, SECOND)], "sequence", "ok", "numbers 0 to 1 without a gap"),
        ([(0, FIRST), (2, SECOND)], "sequence", "fail", "1 are missing"),
        ([(5, FIRST), (0, SECOND)], "sequence", "fail", "went back 1 times"),
        ([(None, FIRST), (None, SECOND)], "sequence", "warn", "2 of 2 messages have no number"),
        ([], "sequence", "skip", "no live message"),
        ([(0, FIRST), (1, SECOND)], "shape", "ok", "2 BlockStored"),
        ([(0, FIRST), (1, b"\xc1")], "shape", "fail", "1 messages cannot be read"),
        ([(0, encode_batch([{"type": "BlockMoved"}], ts=1.0))], "shape", "warn", "1 are passed over"),
        ([(0, told(7, tokens=[1, 2, 3, 4], block_size=4))], "shape", "warn", "its metrics have 2"),
        ([(0, FIRST), (1, SECOND)], "tokens", "ok", "2 blocks with the very tokens"),
        ([(0, FIRST), (1, told(8, tokens=[3, 4], parent=9))], "tokens", "fail", "name another block"),
        ([(0, told(7, tokens=[1, 2], parent=9))], "tokens", "fail", "1 of 1 events name another block"),
        ([(0, told(7, tokens=[5, 6]))], "tokens", "skip", "no event of the probe"),
        ([(0, told(7, tokens=[5, 6]))], "stream", "fail", "none about the probe"),
        ([], "stream", "fail", "nothing came"),
    ],
)  # fmt: skip
def test_a_stream_is_judged_by_its_messages(
    messages: list[tuple[int | None, bytes]], name: str, verdict: str, words: str
) -> None:
    check = heard(*messages)[name]
    assert check.verdict == verdict
    assert words in check.seen
    assert bool(check.fix) == (verdict in {"warn", "fail"})


# --- the command ---


def test_the_command_shows_a_table_per_worker_and_succeeds() -> None:
    with FakeFleet(2, kv_events=True) as fleet:
        result = run(*fleet.urls)
        assert (result.exit_code, result.stderr) == (0, "")
        for title in (*fleet.urls, "the fleet"):
            assert title in result.stdout
        assert "fail" not in result.stdout


def test_settings_of_the_router_that_engines_contradict_are_a_warning() -> None:
    sample = 'cachelb_worker_learned{worker="http://gpu0",dp_rank="",fact="kv_blocks"} 4096.0\n'
    seen = "kv_blocks of http://gpu0 is rather 4096.0"
    cases: dict[str, tuple[Verdict, str]] = {
        "cachelb_inflight 1\n": ("ok", "no setting"),
        "cachelb_inflight 1\n" + sample: ("warn", seen),
        "up 1\n": ("fail", "/metrics is not of a router"),
    }
    for page, (verdict, words) in cases.items():
        with FakeFleet(1, kv_events=True) as fleet, FakeEngine(page.encode()) as gateway:
            (check,) = diagnose(*fleet.urls, router=gateway.key).fleet
        assert (check.name, check.verdict) == ("router", verdict)
        assert check.seen.startswith(words)
        assert bool(check.fix) == (verdict != "ok")
    with FakeFleet(1, kv_events=True) as fleet:
        result = run(*fleet.urls, "--router", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "refused" in result.stdout


@pytest.mark.parametrize(
    ("counts", "verdict", "seen"),
    [
        ({"rack": (0, 0, 7)}, "ok", "rack: 0 of 7"),
        ({"rack": (0, 0, 8), "island": (9, 0, 0)}, "warn", "rack: 8"),
        ({"rack": (0, 1, 8), "island": (1, 0, 0)}, "ok", "rack: 1 of 9, island: 1 of 1"),
    ],
)
def test_a_peer_group_without_copies_that_land_is_a_warning(
    counts: dict[str, tuple[int, int, int]], verdict: Verdict, seen: str
) -> None:
    page = "".join(
        f'cachelb_pulls_total{{group="{group}",outcome="{outcome}"}} {count}.0\n'
        for group, numbers in counts.items()
        for outcome, count in zip(("landed", "short", "missed"), numbers, strict=True)
    )
    with FakeFleet(1, kv_events=True) as fleet, FakeEngine(page.encode()) as gateway:
        router, copies = diagnose(*fleet.urls, router=gateway.key).fleet
    assert (router.name, router.verdict, copies.name, copies.verdict) == ("router", "ok", "copies", verdict)
    assert copies.seen.endswith(seen)
    causes = ("PYTHONHASHSEED", "--block-size", "tensor parallelism", "KV layout")
    assert all((cause in copies.fix) == (verdict == "warn") for cause in causes)


def test_json_has_every_check_and_a_failure_is_exit_code_1() -> None:
    with FakeFleet(1) as fleet:
        result = run(*fleet.urls, "--json", "--timeout", PATIENT)
        document = json.loads(result.stdout)
        checks = document["workers"][0].pop("checks")
        workers = [{"worker": fleet.urls[0], "verdict": "fail"}]
        assert (result.exit_code, document) == (1, {"healthy": False, "workers": workers, "fleet": []})
        assert {frozenset(check) for check in checks} == {frozenset({"name", "verdict", "seen", "fix"})}
        assert run(*fleet.urls).exit_code == 1


def test_a_tokenizer_file_that_is_not_the_engines_fails_the_template(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))  # noqa: S106 - a token
    with FakeFleet(1, kv_events=True) as fleet:
        for path in (tmp_path, tmp_path / "tokenizer.json"):
            result = run(*fleet.urls, "--tokenizer", path, "--json")
            assert result.exit_code == 1
            assert "which differ from token 0" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument"),
        (["ftp://gpu0"], "begins with http://"),
        (["http://a:1", "http://a:1"], "http://a:1 is named twice; name each engine once"),
        (["http://a:1", "--replay-port", 5], "--replay-port needs --events-port"),
        (["http://a:1", "--tokenizer", "/nowhere"], "does not exist"),
        (["http://a:1", "--events-port", 70_000], "is not in the range"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[object], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_an_unknown_model_names_those_there_are() -> None:
    with FakeFleet(1, models=["base", "adapter"]) as fleet:
        result = run(*fleet.urls, "--model", "other")
        assert result.exit_code == 1
        assert "serves base, adapter, not other" in result.stdout


def test_neither_key_nor_password_nor_prompt_is_shown() -> None:
    with FakeFleet(1, kv_events=True) as fleet:
        url = fleet.urls[0].replace("http://", "http://ann:hidden1@")
        result = run(url, "--api-key", "hidden2", "--json")
        assert result.exit_code == 0
        assert "hidden" not in result.output
        request = fleet.workers[0].requests[0]
        assert request.headers["Authorization"] == "Bearer hidden2"
        assert ", ".join(map(str, request.body["prompt"][:3])) not in result.output
    assert "hidden2" not in repr(Settings(api_key="hidden2"))


def test_what_one_rank_announces_does_not_cover_the_prompt_of_another() -> None:
    router = Router[str](block_size=4)
    router.add_worker("a", dp_size=2)
    tap = Tap(router)
    prompt = list(range(8))
    first, second = tap.watch(prompt), tap.watch(prompt)
    tap.event_sink.connected("a", 0, False)
    tap.event_sink.live("a", 0, 0, encode_batch([stored([1, 2], prompt)], ts=1.0))
    assert [tap.covered(first, 0), tap.covered(second, 0), tap.covered(second, 1)] == [8, 8, 0]
    router.close()
