"""`cachelb watch`: tables and JSON from a real metrics page over loopback."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from rich.console import Console
from tests.answering import answering
from tests.commands import app
from tests.models.metrics_server import reserved_port

from cachelb import Router
from cachelb.metrics import PrometheusCollector
from cachelb_gateway.cli.watch import _drawn, _Look
from cachelb_gateway.page import read_page


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachelb_gateway.cli.watch._TIMEOUT_S", 60.0)


@pytest.fixture
def router() -> Router[str]:
    return Router(["http://gpu0:8000", "http://gpu1:8000"], seed=1, shadow=["random"])


@pytest.fixture
def url(router: Router[str]) -> Iterator[str]:
    """Serve the router as its own process would."""
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(router))
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@contextlib.contextmanager
def paged(*pages: bytes) -> Iterator[str]:
    """A server that answers with the next of some pages, and with 503 when there are no more."""
    left = list(pages)
    with answering(lambda handler: handler.reply(left.pop(0)) if left else handler.reply(status=503)) as url:
        yield f"{url}/metrics"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["watch", *map(str, arguments)])


def looks(*arguments: object) -> list[Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_json_has_what_the_router_counts(router: Router[str], url: str) -> None:
    router.select_worker(tokens=range(100)).on_complete(cached_tokens=0)
    router.select_worker(tokens=range(100)).on_complete(cached_tokens=90)
    router.load_sink.update_load("http://gpu0:8000", running=3, kv_usage=0.25)
    router.set_ready("http://gpu1:8000", False)
    open_decision = router.select_worker(by_load=True)
    (look,) = looks(url, "--once")
    stats = router.stats()
    assert look["decisions"] == [
        {"policy": policy, "reason": reason, "count": n} for (policy, reason), n in stats.decisions.items()
    ]
    assert look["requests"]["completed"] == 2
    assert look["funnel"] == {
        "prompt": 200,
        "best_matched": 96,
        "selected_matched": 96,
        "engine_cached": 90,
        "selected_held": 96,
        "selected_shared": 0,
    }
    assert look["totals"]["open_requests"] == 1
    assert look["shadows"]["random"]["decisions"] == 3
    assert 0 < look["select_seconds"]["p50"] <= look["select_seconds"]["p99"]
    told = [[worker[name] for name in ("worker", "state", "running", "kv_usage")] for worker in look["workers"]]
    assert told == [["http://gpu0:8000", "ready", 3, 0.25], ["http://gpu1:8000", "not ready", None, None]]
    held = {worker["worker"]: worker["index_blocks"] for worker in look["workers"]}
    assert held == {worker.key: worker.index_blocks for worker in stats.workers}
    open_decision.cancel()


def test_the_table_has_a_row_per_worker(router: Router[str], url: str) -> None:
    router.select_worker(tokens=range(100)).on_complete(cached_tokens=50)
    result = run(f"{url}/metrics", "--once")
    assert result.exit_code == 0
    output = result.stdout
    for text in ("1 decisions, 0 open", "reasons: cold 1", "ended: completed 1", "engine 50.0%", "random: agrees"):
        assert text in output
    assert sum("http://gpu" in line for line in output.splitlines()) == 2


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["gpu0", "gpu1"], ["decode", "prefill", "index", "report", "wait-", "KV"]),
        (["http://gpu0:8000", "http://gpu1:8000"], ["prefill", "index", "report", "wait-", "KV"]),
        (["http://vllm-0.inference.svc.cluster.local", "http://v:1"], ["wait-", "KV"]),
        (["http://" + "vllm-0." * 12 + "local", "http://v:1"], ["wait-", "KV"]),
    ],
    ids=["all columns", "one too many", "long", "folded"],
)
def test_80_columns_have_the_whole_name_of_each_worker(names: list[str], shown: list[str]) -> None:
    registry = CollectorRegistry()
    router = Router(names, seed=1)
    router.set_ready(names[0], False)
    registry.register(PrometheusCollector(router))
    figures = read_page(generate_latest(registry))
    assert figures is not None
    out = Console(width=80, file=io.StringIO(), record=True)
    out.print(_drawn(_Look(figures, None, None), out))
    text = out.export_text()
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines())
    table, _, caption = text.partition(" MB\n")[2].partition("no room here for ")
    assert [line for line in table.splitlines() if "not ready" in line and names[0][:40] in line]
    columns = ["decode", "prefill", "index", "report", "wait-", "KV"]
    assert [name for name in columns if name in table] == shown
    assert [name for name in columns if name in caption] == [name for name in columns if name not in shown]


def test_rates_are_those_between_two_looks() -> None:
    page = 'cachelb_decisions_total{{policy="random",reason="random"}} {}\n'
    with paged(*(page.format(n).encode() for n in (10, 10, 5, 1000))) as url:
        rates = [look["decisions_per_s"] for look in looks(url, "--count", 4, "--interval", 0.05)]
    assert rates[0] is None
    assert rates[1] == 0
    assert rates[2] is None, "a counter that falls is that of another process"
    assert 0 < rates[3] <= 995 / 0.05


def first_bytes(*counts: int, worker: str = "a") -> str:
    bounds = ("0.1", "0.25", "1.0", "+Inf")
    name = "cachelb_gateway_first_byte_seconds_bucket"
    rows = zip(bounds, counts, strict=True)
    return "".join(f'{name}{{worker="{worker}",model="",le="{bound}"}} {count}\n' for bound, count in rows)


def test_first_bytes_are_those_of_the_fleet_between_two_looks() -> None:
    others = 'cachelb_gateway_requests_total{worker="",model="",status="400"} 7\ncachelb_inflight{worker="a"} 1\n'
    pages = [
        first_bytes(100, 100, 100, 100),
        first_bytes(100, 160, 190, 190) + first_bytes(0, 0, 10, 10, worker="b"),
        first_bytes(100, 160, 190, 190) + first_bytes(0, 0, 10, 10, worker="b"),
        first_bytes(3, 3, 3, 3),
        first_bytes(3, 3, 3, 4),
    ]
    with paged(*((page + others).encode() for page in pages)) as url:
        told = looks(url, "--count", 5, "--interval", 0.05)
    assert [(look["first_byte_seconds"]["p50"], look["first_byte_seconds"]["p99"]) for look in told] == [
        (0.1, 0.1),
        (0.25, 1.0),
        (None, None),
        (None, None),
        (None, None),
    ]
    assert [worker["worker"] for worker in told[1]["workers"]] == ["a"]
    with paged(*((page + others).encode() for page in pages[:2])) as url:
        output = run(url, "--count", 2, "--interval", 0.05).stdout
    assert "first byte: half within 250 ms, 99 % within 1,000 ms" in output
    assert all(len(line.rstrip()) <= 80 for line in output.splitlines())


def test_a_gateway_that_is_gone_for_a_while_is_looked_at_again() -> None:
    page = b"cachelb_open_requests 3\n"
    with paged(page, b"other 1\n", page) as url:
        told = looks(url, "--count", 4, "--interval", 0.05)
    no_router = "the page shows no router: register cachelb.metrics.PrometheusCollector(router) there"
    assert [look.get("error") for look in told] == [None, no_router, None, "could not fetch the metrics page: HTTP 503"]
    with paged(page) as url:
        output = run(url, "--count", 2, "--interval", 0.05).stdout
    assert "3 open" in output
    assert "HTTP 503" in output


@pytest.mark.parametrize(
    ("page", "problem"),
    [(b"", "metrics page: HTTP 503"), (b"up 1\n", "shows no router"), (None, "metrics page: ConnectionRefusedError")],
)
def test_a_page_without_a_router_ends_it_at_once(page: bytes | None, problem: str) -> None:
    with paged(*filter(None, [page])) as url, reserved_port() as port:
        result = run(f"http://127.0.0.1:{port}/metrics" if page is None else url)
    assert result.exit_code == 1
    assert problem in result.stderr


def test_a_bad_url_is_refused_without_repeating_it() -> None:
    result = run("ftp://user:hunter2@gateway/metrics")
    assert result.exit_code == 2
    assert "begins with http://" in result.stderr
    assert "hunter2" not in result.stderr


def test_what_a_page_says_cannot_command_the_terminal() -> None:
    page = b'cachelb_inflight{worker="a\x1b[2Jb"} 1\ncachelb_decisions_total{policy="p",reason="\x1b[31m"} 1\n'
    with paged(page) as url:
        output = run(url, "--once").stdout
    assert "a?[2Jb" in output
    assert "\x1b" not in output


# --- pages ---


@pytest.mark.parametrize(
    "page", [b"", b"\xff\xfe\x00", b"cachelb_inflight{", b"xcachelb_inflight 1\n", b"# cachelb_x 1\n"]
)
def test_pages_without_samples_show_no_router(page: bytes) -> None:
    assert read_page(page) is None


def test_labels_are_unescaped_and_bad_values_passed_over() -> None:
    figures = read_page(
        b'cachelb_inflight{worker="a\\"b\\\\c\\nd",dp_rank="1"} 2\n'
        b'cachelb_worker_state{worker="a\\"b\\\\c\\nd",dp_rank="1",state="failing"} 1\n'
        b'cachelb_worker_state{worker="a\\"b\\\\c\\nd",dp_rank="1",state="ready"} 0\n'
        b'cachelb_inflight{worker="x"} NaN\n'
        b'cachelb_inflight{worker="y"} many\n'
        b'cachelb_inflight{worker="z"} +Inf\ncachelb_requests_total{outcome="failed"} -1e400\n'
        b'cachelb_requests_total{outcome="completed"} 5 1700000000\n'
        b'cachelb_requests_created{outcome="completed"} 1.7e9\n'
        b'cachelb_select_seconds_bucket{le="0.1"} 1\ncachelb_select_seconds_bucket{le="+Inf"} 4\n'
    )
    assert figures is not None
    (worker,) = figures.workers
    assert (worker.worker, worker.dp_rank, worker.inflight, worker.state) == ('a"b\\c\nd', "1", 2, "failing")
    assert figures.requests == {"completed": 5}
    assert figures.select_seconds(0.25) == 0.1
    assert figures.as_dict()["select_seconds"] == {"p50": None, "p99": None}
