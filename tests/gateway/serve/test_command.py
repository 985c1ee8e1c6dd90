"""`cachelb serve` as a process: options, signals, what it keeps."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from tests.certificates import certificate
from tests.commands import app
from tests.gateways import wait_until
from tests.http_client import DEADLINE_S, Answer, complete, send
from tests.programs import running
from tests.support_gateways import begin_stream

from cachelb.records import read_records
from cachelb.sources import MetricsSource
from cachelb_fakes import FakeFleet
from cachelb_gateway.cli.serve import build_router

PROMPT = "The quick onyx goblin jumps over the lazy dwarf. " * 20
SECRET = "known to all gateways"  # noqa: S105 - of these tests


class Command:
    """The process."""

    def __init__(self, process: subprocess.Popen[str], output: IO[str]) -> None:
        self.process, self.output = process, output
        self.url, self.admin_url = (output.readline().split()[-1] for _ in range(2))

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


@contextlib.contextmanager
def command(*words: object) -> Iterator[Command]:
    """Run `cachelb serve` on free ports."""
    ports = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--drain-s", "0")
    with running("-m", "cachelb", "serve", *ports, *map(str, words), errors=subprocess.DEVNULL) as (process, output):
        yield Command(process, output)


@pytest.mark.parametrize(
    ("table", "is_polled"), [("", True), ("[load]\ninterval_s = 0.5", True), ("[load]\nenabled = false", False)]
)
def test_engines_are_polled_with_a_configuration_as_without(tmp_path: Path, table: str, *, is_polled: bool) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(f'workers = ["http://gpu0:8000"]\n{table}\n')
    for named, given, expected in (([], file, is_polled), (["http://gpu0:8000"], None, True)):
        with build_router(named, given, 1 << 20) as router:
            assert any(isinstance(source, MetricsSource) for source in router._sources._attached.values()) == expected


def workers(urls: list[str]) -> list[str]:
    return [word for url in urls for word in ("--worker", url)]


def refused(*words: object) -> str:
    result = CliRunner().invoke(app, ["serve", *map(str, words)])
    assert result.exit_code in {1, 2}
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--worker", "gpu0:8000"], "worker 'gpu0:8000' must be http://host:port"),
        (["--worker", "http://gpu0:8000/v1"], "must end before /v1"),
        (["--worker", "http://me:secret@gpu0:8000/?a=b"], "worker 'http://gpu0:8000' must not have a query"),
        (["--worker", "http://a", "--worker", "http://a"], "a --worker is named twice"),
        (["--worker", "http://a,http://b"], "--worker takes one URL"),
        (["--worker", "http://a", "--admin", "none", "--listen", "8080"], "'8080' is no address: host:port"),
        (["--worker", "http://a", "--admin", "0.0.0.0:0"], "is no loopback address: give --admin-token-file"),
        (["--worker", "http://a", "--capture", "--admin", "none"], "--capture needs an --admin address"),
        (["--worker", "http://a", "--snapshot", "x.snapshot", "--admin", "none"], "secret"),
        (
            ["--worker", "http://a", "--admin", "none", "--expose-headers", "x-cachelb-wroker"],
            "no header of decisions is called",
        ),
        (
            ["--worker", "http://a", "--tls-key", "key.pem", "--admin", "none"],
            "--tls-key and --client-ca need --tls-cert",
        ),
        (["--worker", "http://a", "--tls-cert", "none.pem", "--listen", "127.0.0.1:0", "--admin", "none"], "none.pem"),
        (["--worker", "http://a", "--upstream-ca", "none.pem", "--listen", "127.0.0.1:0"], "none.pem"),
        (["--config", "none.toml"], "none.toml"),
        (["--worker", "http://a", "--idle-timeout-s", "0"], "idle_timeout_s must be"),
        (["--worker", "http://a", "--admission", "order=lifo"], "order must be one of 'fcfs', 'edf', 'shortest-uncac"),
    ],
    ids=lambda each: each[-1] if isinstance(each, list) else "",
)
def test_wrong_options_are_named(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("key.pem").touch()
    shown = refused(*words)
    assert message in shown
    assert ":secret@" not in shown


def test_prefill_workers_and_short_tokens_are_refused(tmp_path: Path) -> None:
    config, token = tmp_path / "gateway.json", tmp_path / "token"
    config.write_text(json.dumps({"workers": [{"url": "http://p0:8000", "role": "prefill"}]}))
    token.write_text("short\n")
    assert "has no pairs of prefill and decode workers" in refused("--config", config)
    ports = ("--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0")
    assert "token must have 16 characters" in refused("--worker", "http://a", *ports, "--admin-token-file", token)


def test_address_in_use_is_named() -> None:
    with FakeFleet(1) as fleet:
        address = fleet.urls[0].removeprefix("http://")
        assert f"cannot listen on {address}" in refused("--worker", "http://a", "--admin", "none", "--listen", address)


def test_capture_of_a_gateway_that_is_killed_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "capture.jsonl"
    with FakeFleet(1) as fleet, command(*workers(fleet.urls), "--capture") as served:
        words = ("doctor", "capture", served.admin_url, "-o", path)
        with running("-m", "cachelb", *map(str, words), errors=subprocess.STDOUT) as (client, output):
            wait_until(lambda: path.exists() and path.stat().st_size > 0)
            assert [complete(served.url, PROMPT, max_tokens=1).status for _ in range(3)] == [200] * 3
            wait_until(lambda: path.read_bytes().count(b'"kind":"decision"') == 3)
            served.end(signal.SIGKILL)
            assert client.wait(DEADLINE_S) == 1
            assert "has the rest" in " ".join(output.read().split())
    document = json.loads(CliRunner().invoke(app, ["doctor", "analyze", str(path), "--json"]).stdout)
    assert (document["requests"], document["ended"], document["bad_lines"]) == (3, None, 0)


def test_configuration_environment_and_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHELB_POLICY", "round-robin")
    config, records = tmp_path / "gateway.json", tmp_path / "records.jsonl"
    with FakeFleet(2) as fleet:
        config.write_text(json.dumps({"router": {"policy": "random"}, "workers": fleet.urls}))
        with command("--config", config, "--records", records) as served:
            assert [complete(served.url, PROMPT, max_tokens=1).status for _ in range(4)] == [200] * 4
            assert complete(served.url, PROMPT).headers["x-cachelb-worker"] is None
            shown = json.loads(CliRunner().invoke(app, ["watch", served.admin_url, "--once", "--json"]).output)
            assert served.end() == 0
        assert sum(worker.counts.finished for worker in fleet.workers) == 5
    assert {each["reason"]: each["count"] for each in shown["decisions"]} == {"round-robin": 5}
    assert [record.outcome for record in read_records(records).decisions()] == ["completed"] * 5


def test_workers_are_found_and_go(tmp_path: Path) -> None:
    listed = tmp_path / "workers.json"
    with FakeFleet(2) as fleet:
        listed.write_text(json.dumps([{"targets": [fleet.urls[0].removeprefix("http://")]}]), "utf-8")
        with command("--discover", f"file:{listed}") as gateway:
            wait_until(lambda: send(gateway.url, "/ready").status == 200)
            assert complete(gateway.url, PROMPT).status == 200
            assert gateway.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_with_stalled_workers_and_keeps_the_snapshot(tmp_path: Path, number: int) -> None:
    config, snapshot = tmp_path / "gateway.json", tmp_path / "router.snapshot"
    with FakeFleet(1) as fleet, contextlib.ExitStack() as held:
        config.write_text(json.dumps({"router": {"secret": SECRET}, "workers": fleet.urls}))
        with command("--config", config, "--snapshot", snapshot, "--grace-s", 0.5) as served:
            assert complete(served.url, PROMPT, max_tokens=1).status == 200
            fleet.fail("stall")
            for _ in range(3):
                held.enter_context(contextlib.closing(begin_stream(served.url, PROMPT)))
            fleet.wait_for(lambda: fleet.workers[0]._replica.counts.faults["stall"] == 3, timeout_s=DEADLINE_S)
            assert served.end(number) == 0
        fleet.wait_for(lambda: fleet.workers[0]._replica.counts.open == 0, timeout_s=DEADLINE_S)
    assert snapshot.stat().st_size > 0


def test_killed_process_starts_again_with_its_snapshot_and_an_empty_book(tmp_path: Path) -> None:
    config, snapshot = tmp_path / "gateway.json", tmp_path / "router.snapshot"
    with FakeFleet(3) as fleet:
        # With weights, speeds do not count: idle workers take turns.
        weighted = [{"url": url, "weight": 2.0} for url in fleet.urls]
        config.write_text(json.dumps({"router": {"secret": SECRET}, "workers": weighted}))
        words = ("--config", config, "--snapshot", snapshot, "--expose-headers", "x-cachelb-worker")
        prompts = [f"{n} {PROMPT}" for n in range(12)]
        with command(*words) as served:
            first = [complete(served.url, prompt, max_tokens=1).headers["x-cachelb-worker"] for prompt in prompts]
            assert served.end() == 0
        with command(*words) as served, contextlib.ExitStack() as held:
            fleet.fail("stall", times=4)
            for _ in range(4):
                held.enter_context(contextlib.closing(begin_stream(served.url, PROMPT)))
            stalled = [worker._replica.counts.faults for worker in fleet.workers]
            fleet.wait_for(lambda: sum(each["stall"] for each in stalled) == 4, timeout_s=DEADLINE_S)
            served.end(signal.SIGKILL)
            fleet.wait_for(lambda: not any(w._replica.counts.open for w in fleet.workers), timeout_s=DEADLINE_S)
        with command(*words) as served:
            dump = send(served.admin_url, "/dump").json
            assert dump["stats"]["open_requests"] == 0
            again = [complete(served.url, prompt, max_tokens=1).headers["x-cachelb-worker"] for prompt in prompts]
            assert served.end() == 0
    assert len(set(first)) == 3
    assert again == first


def test_stopped_worker_holds_up_its_own_requests_only() -> None:
    with contextlib.ExitStack() as stack:
        fleet = [
            stack.enter_context(running("-m", "cachelb_fakes", "--workers", "1", errors=subprocess.DEVNULL))
            for _ in range(2)
        ]
        urls = [output.readline().strip() for _, output in fleet]
        limits = ("--attempts", "2", "--idle-timeout-s", "1", "--health-interval-s", "0")
        config = (*limits, "--expose-headers", "x-cachelb-worker")
        served = stack.enter_context(command(*workers(urls), *config))
        stopped = fleet[0][0]
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            answers: list[Answer] = []
            # Which of two idle workers is picked is drawn.
            while len(answers) < 8 or (len(answers) < 64 and {answer.status for answer in answers} == {200}):
                answers.append(complete(served.url, f"{len(answers)} {PROMPT}", max_tokens=1))
            timed_out = [answer for answer in answers if answer.status == 504]
            assert {answer.status for answer in answers} == {200, 504}
            assert len(timed_out) <= 6, "it is passed over once it has failed often enough"
            wait_until(lambda: send(served.admin_url, "/dump").json["stats"]["open_requests"] == 0)
        finally:
            os.kill(stopped.pid, signal.SIGCONT)

        def is_back() -> bool:
            answer = complete(served.url, os.urandom(8).hex() + PROMPT, max_tokens=1)
            return answer.headers["x-cachelb-worker"] == urls[0]

        wait_until(is_back)
        dump = send(served.admin_url, "/dump").json
        assert dump["stats"]["open_requests"] == 0
        assert served.end() == 0


def test_policy_of_the_command_line_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHELB_POLICY", "random")
    with build_router(["http://gpu0:8000"], None, 1 << 20, "round-robin") as router:
        assert router.policy.name == "round-robin"
    assert "there is no policy 'cache-awar'; did you mean 'cache-aware'?" in refused("--policy", "cache-awar")


@pytest.mark.parametrize("form", ["json", "text"])
def test_access_log_has_a_line_for_each_request(tmp_path: Path, form: str) -> None:
    log = tmp_path / "access.log"
    with (
        FakeFleet(1) as fleet,
        command(*workers(fleet.urls), "--access-log", log, "--access-log-format", form) as served,
    ):
        complete(served.url, PROMPT, {"X-Request-Id": "mine"}, max_tokens=1)
        complete(served.url, PROMPT, max_tokens=1)
        assert served.end() == 0
        lines = log.read_text("utf-8").splitlines()
    assert len(lines) == 2
    assert "mine" in lines[0]
    for line in lines:
        assert "/v1/completions" in line
        assert fleet.urls[0] in line
        assert (json.loads(line)["status"] if form == "json" else "200" in line) in {200, True}


def test_log_lines_have_time_and_level_and_those_below_the_level_are_left_out() -> None:
    words = ("serve", "--listen", "127.0.0.1:0", "--admin", "none", "--drain-s", "0")
    for level, shown in (("warning", True), ("error", False)):
        with running("-m", "cachelb", *words, "--log-level", level, errors=subprocess.PIPE) as (process, output):
            assert output.readline().startswith("serving on http://127.0.0.1:")
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
            assert process.stderr is not None
            logged = process.stderr.read()
        assert bool(re.match(r"[-\d]+ [\d:,]+ WARNING cachelb_gateway.serve: there are no workers", logged)) == shown
        assert "INFO" not in logged


def test_changed_certificate_is_used_after_sighup(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    cert, key = certificate(first)

    def served_certificate(url: str) -> str:
        parts = urlsplit(url)
        return ssl.get_server_certificate((parts.hostname or "", parts.port or 0), timeout=DEADLINE_S)

    with FakeFleet(1) as fleet, command(*workers(fleet.urls), "--tls-cert", cert, "--tls-key", key) as served:
        old = served_certificate(served.url)
        cert.write_text("no certificate")
        served.process.send_signal(signal.SIGHUP)
        assert served_certificate(served.url) == old
        for source, target in zip(certificate(second), (cert, key), strict=True):
            source.replace(target)
        served.process.send_signal(signal.SIGHUP)
        wait_until(lambda: served_certificate(served.url) == cert.read_text() != old)
        assert served.end() == 0


def test_fleet_of_the_command_serves_on_the_ports_that_are_asked_for() -> None:
    with running("-m", "cachelb_fakes", "--help") as (_, output):
        assert "--workers" in output.read()
    with running("-m", "cachelb_fakes", "--workers", "3", "--model", "m") as (process, output):
        urls = [output.readline().strip() for _ in range(3)]
        assert all(re.fullmatch(r"http://127\.0\.0\.1:\d+", url) for url in urls)
        assert [complete(url, "x", max_tokens=1, model="m").status for url in urls] == [200] * 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
