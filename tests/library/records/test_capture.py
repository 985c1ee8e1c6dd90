"""Captures of live traffic: figures against a recount of the prompts, secrecy, bounds, damage, and a real gateway."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Sequence
from http.client import HTTPResponse
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.commands import app
from tests.gateways import Served, serving, wait_until
from tests.http_client import complete, connect, send
from tests.models.lru_pool import LruPool

from cachelb import CacheAware, Router
from cachelb.errors import TraceError
from cachelb.policies import POLICIES
from cachelb.records import Capture, capture, read_records
from cachelb.records.capture import Tap
from cachelb.router import records
from cachelb_fakes import FakeFleet
from cachelb_lab.sim.experiments.ladder import climb, fleet_of
from cachelb_lab.sim.figures.lru_bound import PoolProfile
from cachelb_lab.sim.workloads import CapturedTraffic, read_capture

BLOCK = 16
STEP_S = 100.0
Prompt = tuple[int, ...]


class Clock:
    """Time that passes between requests only."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    """Few blocks of few kinds, so that prompts share prefixes, and a rest."""
    kinds = draw(st.lists(st.integers(0, 1), max_size=5))
    rest = draw(st.integers(0, BLOCK - 1)) if kinds else draw(st.integers(1, BLOCK - 1))
    return tuple(token for kind in kinds for token in [kind] * BLOCK) + (9,) * rest


def tapped(router: Router[str]) -> Tap:
    """Capture whatever comes."""
    return Tap(router.records, 1e6, 0.0, 1 << 24)


def read(data: bytes | bytearray, folder: Path) -> CapturedTraffic:
    """Read what a capture wrote."""
    path = folder / "capture.jsonl"
    path.write_bytes(data)
    return read_capture(path)


def naive(sent: Sequence[Prompt], capacity: int | None) -> float:
    """Return the hit rate of one LRU pool of so many blocks, which are named by the whole prefix."""
    pool, hits = LruPool(capacity), 0
    for prompt in sent:
        blocks = [prompt[: end * BLOCK] for end in range(1, len(prompt) // BLOCK + 1)]
        hits += pool.serve(blocks, usable=(len(prompt) - 1) // BLOCK)
    return hits * BLOCK / sum(map(len, sent))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sent=st.lists(prompts(), min_size=1, max_size=25),
    capacity=st.integers(6, 20),
    policy=st.sampled_from(["adaptive", "round-robin", "radix"]),
)
def test_ladder_equals_a_recount_of_the_prompts(sent: list[Prompt], capacity: int, policy: str, tmp_path: Path) -> None:
    clock = Clock()
    router = Router(["gpu0"], seed=1, clock=clock, policy=CacheAware(index="radix") if policy == "radix" else policy)
    tap = tapped(router)
    matched = []
    data = b""
    with mock.patch.object(records, "time", SimpleNamespace(time=clock)):
        for prompt in sent:
            clock.now_s += STEP_S
            decision = router.select_worker(tokens=prompt)
            matched.append(decision.matched_tokens)
            decision.on_complete(cached_tokens=decision.matched_tokens // 2, output_tokens=3)
            data += tap.read() if len(prompt) % 2 else b""
        data += tap.read("stopped")
    traffic = read(data, tmp_path)
    fleet = fleet_of(traffic, kv_tokens=capacity * BLOCK)
    ladder = climb(traffic, fleet, ["round-robin"], knows_capacity=True)
    ideal, pool, _, chosen, delivered = (rung.hit_rate for rung in ladder.rungs)
    tokens = sum(map(len, sent))
    assert (ladder.requests, ladder.prompt_tokens) == (len(sent), tokens)
    assert ideal == pytest.approx(naive(sent, None))
    assert pool == pytest.approx(naive(sent, capacity))
    assert chosen == pytest.approx(sum(matched) / tokens)
    assert delivered == pytest.approx(sum(each // 2 for each in matched) / tokens)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 70), st.integers(1, 50)), min_size=1, max_size=20))
def test_answers_count_where_the_session_goes_on(turns: list[tuple[int, int, int]], tmp_path: Path) -> None:
    clock = Clock()
    router = Router(["gpu0"], seed=1, clock=clock)
    tap = tapped(router)
    chats: dict[int, Prompt] = {}
    known: set[Prompt] = set()
    hits = total = 0
    with mock.patch.object(records, "time", SimpleNamespace(time=clock)):
        for number, (chat, new, answer) in enumerate(turns):
            clock.now_s += STEP_S
            prompt = chats.get(chat, (7,) * 40) + (2 * number,) * new
            whole = prompt + (2 * number + 1,) * answer
            blocks = [whole[: end * BLOCK] for end in range(1, len(whole) // BLOCK + 1)]
            hits += sum(block in known for block in blocks[: (len(prompt) - 1) // BLOCK])
            total += len(prompt)
            known.update(blocks)
            chats[chat] = whole
            router.select_worker(tokens=prompt, session=f"chat {chat}").on_complete(output_tokens=answer)
        data = tap.read("stopped")
    assert PoolProfile(read(data, tmp_path).workload).hits().token_rate == pytest.approx(hits * BLOCK / total)


def sample(router: Router[str], path: Path, texts: Sequence[str], **arguments: Any) -> CapturedTraffic:
    """Send texts while a capture runs, and read it."""
    tap = tapped(router)
    for text in texts:
        router.select_worker(text=text, **arguments).on_complete(cached_tokens=0, prompt_tokens=len(text) // 5)
    path.write_bytes(tap.read("stopped"))
    return read_capture(path)


def names(path: Path) -> set[bytes]:
    """Return every name in a capture: of blocks, sessions and tenants."""
    found: set[bytes] = set()
    for line in path.read_text("utf-8").splitlines():
        shape = json.loads(line).get("capture", {})
        blocks = base64.b64decode(shape.get("blocks", ""))
        found |= {blocks[at : at + 8] for at in range(0, len(blocks), 8)}
        found |= {bytes.fromhex(shape[key]) for key in ("session", "tenant") if shape.get(key)}
    return found


def test_two_captures_of_the_same_traffic_have_no_name_in_common(tmp_path: Path) -> None:
    texts = ["a system prompt " * 20 + str(number) * 90 for number in range(3)]
    found = []
    for number in range(2):
        router = Router(["gpu0"], seed=1)
        traffic = sample(router, tmp_path / f"{number}.jsonl", texts, session="chat-1")
        found.append(names(tmp_path / f"{number}.jsonl"))
        shared = [traffic.workload.prompt(row)[:5].tolist() for row in range(3)]
        assert shared[0] == shared[1] == shared[2]
        assert traffic.workload.session == [traffic.workload.session[0]] * 3 if traffic.workload.session else False
    assert len(found[0]) == len(found[1]) == 9
    assert not found[0] & found[1]


def test_nothing_of_a_prompt_or_a_name_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "capture.jsonl"
    words = {"session": "secret-session", "cache_salt": "secret-salt", "lora": "secret-adapter"}
    sample(Router(["gpu0"], seed=1), path, ["secret words " * 50], **words)
    data = path.read_bytes()
    assert b"secret" not in data
    assert base64.b64encode(b"secret words")[:8] not in data


def test_lengths_of_texts_are_those_that_engines_count(tmp_path: Path) -> None:
    traffic = sample(Router(["gpu0"], seed=1), tmp_path / "capture.jsonl", ["word " * 400, "word " * 800])
    workload = traffic.workload
    assert workload.block_size == 13  # 64 bytes, of which 5 are a token
    assert int(workload.prompt_tokens.sum()) == pytest.approx(1200, rel=0.05)
    assert workload.infinite_hits() == pytest.approx(1 / 3, rel=0.05)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_capture_changes_no_pick(policy: str) -> None:
    picks = []
    for is_captured in (False, True):
        router = Router(["gpu0", "gpu1", "gpu2"], policy=policy, seed=3, clock=Clock())
        tap = tapped(router) if is_captured else None
        chosen = []
        for number in range(40):
            tokens = [number % 4] * (40 * (number % 3)) + [number] * 7
            with router.select_worker(tokens=tokens) as decision:
                chosen.append((decision.worker, decision.reason, decision.matched_tokens))
        picks.append(chosen)
        if tap is not None:
            assert tap.read("stopped").count(b'"capture":{') == 40
    assert picks[0] == picks[1]


def test_each_request_of_pairs_is_replayed_once(tmp_path: Path) -> None:
    router: Router[str] = Router(seed=1)
    router.add_worker("p0", role="prefill")
    router.add_worker("d0", role="decode")
    tap = tapped(router)
    for _ in range(3):
        router.select_pair(tokens=range(320)).on_complete(cached_tokens=160, output_tokens=7)
    traffic = read(tap.read("stopped"), tmp_path)
    assert traffic.workload.prompt_tokens.tolist() == [320] * 3
    assert traffic.workload.output_tokens.tolist() == [7] * 3
    ladder = climb(traffic, fleet_of(traffic), ["round-robin"], knows_capacity=False)
    assert ladder.losses.requests == 3
    assert [ladder.rungs[at].hit_rate for at in (1, 4)] == [None, 0.5]


# === bounds ===


def test_prompts_that_are_not_read_in_time_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_WAITING_BYTES", 20_000)
    router = Router(["gpu0"], seed=1)
    tap = tapped(router)
    before = router.stats().memory_bytes
    for _ in range(500):
        router.select_worker(tokens=range(1600)).on_complete()
    assert router.stats().memory_bytes - before < 3_000_000  # of the records, which are there without a capture, too
    tap.read("stopped")
    assert 0 < tap.stats.requests < 25
    assert tap.stats.requests + tap.stats.missed == 500


def test_requests_that_never_end_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_OPEN_BYTES", 20_000)
    router = Router(["gpu0"], seed=1)
    tap = tapped(router)
    held = [router.select_worker(tokens=range(1600)) for _ in range(100)]
    tap.read()
    assert tap.stats.open == len(held) - tap.stats.missed <= 20
    held[0].on_complete()
    held[1].on_complete()
    more = router.select_worker(tokens=range(1600))
    tap.read()
    assert tap.stats.requests == 2
    assert tap.stats.missed + tap.stats.open + tap.stats.requests == len(held) + 1
    more.on_complete()


def test_a_prompt_too_long_for_a_line_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    router = Router(["gpu0"], seed=1, max_memory_mb=None)
    tap = Tap(router.records, 1e6, 0.0, 1 << 30)
    for blocks in (capture._MOST_BLOCKS, capture._MOST_BLOCKS + 1):
        router.select_worker(blocks=range(blocks), prompt_tokens=blocks * BLOCK).on_complete()
    assert read(tap.read("stopped"), tmp_path).workload.prompt_tokens.tolist() == [capture._MOST_BLOCKS * BLOCK]
    assert tap.stats.missed == 1


def test_a_full_file_ends_the_capture_within_its_bytes(tmp_path: Path) -> None:
    router = Router(["gpu0"], seed=1)
    taken = Capture(tmp_path / "capture.jsonl", seconds=1000, max_bytes=40_000)
    router.attach(taken)
    for _ in range(200):
        router.select_worker(tokens=range(800)).on_complete()
    assert taken.wait(60)
    assert taken.stats().ended == "full"
    assert (tmp_path / "capture.jsonl").stat().st_size == taken.stats().bytes <= 40_000
    traffic = read_capture(tmp_path / "capture.jsonl")
    assert (len(traffic.workload), traffic.ended) == (taken.stats().requests, "full")
    router.close()


def test_a_full_disk_ends_the_capture_and_nothing_else() -> None:
    if not Path("/dev/full").exists():  # only Linux has it
        return
    router = Router(["gpu0"], seed=1)
    taken = Capture("/dev/full", seconds=1000)
    router.attach(taken)
    assert taken.wait(60)
    assert taken.stats().ended == "failed"
    assert "No space left" in str(taken.stats().last_error)
    router.select_worker(tokens=range(800)).on_complete()
    Tap(router.records, 1.0, 0.0, 1 << 20).read("stopped")  # the router has no capture any more
    router.close()


def test_a_router_has_one_capture_at_a_time(tmp_path: Path) -> None:
    router = Router(["gpu0"], seed=1)
    first, second = (Capture(tmp_path / f"{number}.jsonl") for number in range(2))
    router.attach(first)
    with pytest.raises(RuntimeError, match="a capture of this router runs already: wait for its end"):
        router.attach(second)
    with pytest.raises(RuntimeError, match="this Capture runs already"):
        router.attach(first)
    router.detach(first)
    router.attach(second)
    router.close()
    assert (first.stats().ended, second.stats().ended) == ("stopped", "stopped")


def test_it_ends_when_the_requests_of_its_time_have(tmp_path: Path) -> None:
    router = Router(["gpu0"], seed=1)
    tap = Tap(router.records, 1e-9, 1000.0, 1 << 20)
    decision = router.select_worker(tokens=range(100))
    tap.read()
    assert (tap.stats.open, tap.stats.ended) == (1, None)
    late = router.select_worker(tokens=range(100))
    decision.on_complete()
    late.on_complete()
    tap.read()
    assert (tap.stats.requests, tap.stats.open, tap.stats.ended) == (1, 0, "time")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seconds": 0}, "seconds must be"),
        ({"seconds": 1e9}, "seconds must be 86400 at most"),
        ({"linger_s": -1}, "linger_s must be"),
        ({"max_bytes": 10}, "max_bytes must be at least 16384, got 10"),
    ],
    ids=str,
)
def test_bounds_out_of_range_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Capture("capture.jsonl", **wrong)


# === damage ===


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("capture") / "capture.jsonl"
    router = Router(["gpu0", "gpu1"], seed=1)
    sample(router, path, [f"prompt {number % 3} " * 40 for number in range(12)])
    return path.read_bytes()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_cut_file_is_read_up_to_the_cut(data: st.DataObject, whole: bytes, tmp_path: Path) -> None:
    cut = data.draw(st.integers(0, len(whole) - 2))
    path = tmp_path / "cut.jsonl"
    path.write_bytes(whole[:cut])
    lines = whole[:cut].count(b"\n")
    if lines < 2:
        with pytest.raises(TraceError, match="no completed requests of a capture"):
            read_capture(path)
        return
    traffic = read_capture(path)
    assert (len(traffic.workload), traffic.ended) == (lines - 1, None)
    assert traffic.files.bad == (not whole[:cut].endswith(b"\n"))
    assert [record.key for record in read_records(path).decisions()] == [record.key for record in traffic.records]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_damaged_file_has_no_more_requests_than_before(
    changes: list[tuple[int, int]], whole: bytes, tmp_path: Path
) -> None:
    damaged = bytearray(whole)
    for at, byte in changes:
        damaged[at % len(damaged)] = byte
    try:
        traffic = read(damaged, tmp_path)
    except TraceError:
        return  # of blocks whose size was changed, which fit to no others
    traffic.workload.validate()
    assert len(traffic.workload) + traffic.files.bad >= 12 - len(changes)
    assert len(traffic.workload) <= 12


@pytest.mark.parametrize(
    "shape",
    [
        7,
        {"units": -1},
        {"units": 1 << 40},
        {"units": True},
        {"block_size": 0},
        {"block_size": "16"},
        {"blocks": "?"},
        {"blocks": "AAAA"},
        {"blocks": 3},
        {"blocks": base64.b64encode(bytes(8 * 100)).decode()},
    ],
    ids=str,
)
def test_a_shape_that_no_prompt_has_makes_a_line_bad(shape: Any, whole: bytes, tmp_path: Path) -> None:
    lines = whole.splitlines()
    row = json.loads(lines[1])
    row["capture"] = {**row["capture"], **shape} if isinstance(shape, dict) else shape
    traffic = read(b"\n".join([lines[0], json.dumps(row).encode(), *lines[2:]]), tmp_path)
    assert (len(traffic.workload), traffic.files.bad) == (11, 1)


def test_blocks_of_two_sizes_need_a_choice_of_the_model(tmp_path: Path) -> None:
    router = Router(["gpu0"], seed=1, models={"small": 32})
    tap = Tap(router.records, 1e6, 0.0, 1 << 20)
    for model in (None, "small", "small"):
        router.select_worker(tokens=range(100), model=model).on_complete(output_tokens=1)
    path = tmp_path / "capture.jsonl"
    path.write_bytes(tap.read("stopped"))
    with pytest.raises(TraceError, match="blocks of 16, 32 tokens; choose one of the models None, small"):
        read_capture(path)
    assert read_capture(path, model="small").workload.offsets.tolist() == [0, 3, 6]
    assert "choose one of the models" in run("analyze", path).output
    assert run("analyze", path, "--only-model", "small").exit_code == 0


# === the command, with a gateway ===


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["doctor", *map(str, words)])


def prompt_of(number: int) -> str:
    return f"You are assistant {number % 2}. " * 60 + f"Question {number}"


def test_capture_and_analysis_of_a_gateway(tmp_path: Path) -> None:
    path = tmp_path / "capture.jsonl"
    with FakeFleet(2) as fleet, serving(Router(fleet.urls, seed=1), capture=True) as served:
        results: list[Result] = []
        words = ("capture", served.admin_url, "--seconds", 1000, "--linger", 0, "-o", path, "--max-mb", 1)
        client = threading.Thread(target=lambda: results.append(run(*words)))
        client.start()
        wait_until(lambda: path.exists() and path.stat().st_size > 0)
        for number in range(8):
            assert complete(served.url, prompt_of(number), max_tokens=2).status == 200
        wait_until(lambda: path.read_bytes().count(b'"kind":"decision"') == 8)
        assert send(served.admin_url, "/capture", {}).status == 409
        served.stop()
        client.join(60)
    assert results[0].exit_code == 0
    assert "8 requests, without 0 unfinished and 0 missed; ended by stopped" in " ".join(results[0].output.split())
    document = json.loads(run("analyze", path, "--kv-tokens", 10_000, "--json").stdout)
    rates = {rung["name"]: rung["hit_rate"] for rung in document["rungs"]}
    assert document["requests"] == 8
    assert 0.5 < rates["delivered"] <= rates["ideal"] < 0.8
    assert rates["capacity-bound"] == rates["ideal"] >= rates["perfect routing"] > 0.5
    assert [each["policy"] for each in document["policies"]] == ["adaptive", "round-robin"]
    assert [each["is_current"] for each in document["policies"]] == [True, False]
    assert document["policies"][0]["ttft_ratio"] == 1.0
    assert document["ended"] == "stopped"
    shown = run("analyze", path).output
    for words_shown in (
        "capacity-bound",
        "SIMULATED on 2 x a100-80",
        "prompt -> best",
        "the capture ended early: stopped",
    ):
        assert words_shown in shown
    replayed = CliRunner().invoke(app, ["replay", str(path), "--policy", "round-robin", "--fleet", "2xa30", "--json"])
    assert json.loads(replayed.stdout)["workload"]["requests"] == 8
    assert CliRunner().invoke(app, ["explain", str(path)]).exit_code == 0


def test_a_capture_of_some_time_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "capture.jsonl"
    with FakeFleet(1) as fleet, serving(Router(fleet.urls, seed=1), capture=True) as served:
        result = run("capture", served.admin_url, "--seconds", 0.1, "-o", path)
        assert "0 requests, without 0 unfinished and 0 missed; ended by time" in result.output.replace("\n", " ")
        assert result.exit_code == 0
    assert "no completed requests" in run("analyze", path).output


def begin(served: Served) -> tuple[Any, HTTPResponse]:
    """Begin a capture, and read its first line."""
    connection = connect(served.admin_url)
    connection.request("POST", "/capture", b"{}")
    answer = connection.getresponse()
    assert json.loads(answer.readline())["kind"] == "capture"
    return connection, answer


def test_a_capture_ends_with_its_client(tmp_path: Path) -> None:
    router = Router(["http://gpu0:8000"], seed=1)
    with serving(router, capture=True) as served:
        for _ in range(3):
            connection, answer = begin(served)
            answer.close()
            connection.close()
            wait_until(lambda: not router._fleet.captured()[0] and can_begin(router))


def can_begin(router: Router[str]) -> bool:
    try:
        Tap(router.records, 1.0, 0.0, 1 << 20).read("stopped")
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize(
    ("options", "path", "fields", "status", "message"),
    [
        ({}, "/capture", {}, 403, "start cachelb serve with --capture"),
        ({"capture": True, "token": "a token of the tests"}, "/capture", {}, 401, "a bearer token is required"),
        ({"capture": True}, "/capture", {"seconds": -1}, 400, "seconds must be"),
        ({"capture": True}, "/capture", {"path": "/etc/x"}, 400, "a capture has no setting 'path'"),
    ],
    ids=["off", "token", "seconds", "unknown"],
)
def test_capture_is_refused(options: Any, path: str, fields: Any, status: int, message: str) -> None:
    with serving(Router(["http://gpu0:8000"]), **options) as served:
        answer = send(served.admin_url, path, fields)
        assert (answer.status, send(served.url, path, fields).status) == (status, 404)
        assert message in answer.json["error"]


def test_the_command_names_the_reason_of_a_refusal(tmp_path: Path) -> None:
    with serving(Router(["http://gpu0:8000"])) as served:
        output = ("-o", tmp_path / "capture.jsonl")
        assert "start cachelb serve with --capture" in run("capture", served.admin_url, *output).output
        public = run("capture", served.url, *output)
    assert "give the one of cachelb serve --admin" in " ".join(public.output.split())
    assert "must be the admin address" in run("capture", "gpu0:9090", *output).output
    assert run("capture", served.admin_url, *output).exit_code == 1
    assert not (tmp_path / "capture.jsonl").exists()
