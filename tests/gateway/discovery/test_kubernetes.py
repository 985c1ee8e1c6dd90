"""Workers of a Kubernetes cluster follow its API server, through all that goes wrong with it."""

from __future__ import annotations

import json
import logging
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import certificate
from tests.models.kubernetes_api import CUT, END, FakeKubernetes, endpoint, endpoint_slice, pod
from tests.waiting import wait_until

from cachelb import NoWorkerAvailable, Router
from cachelb_gateway.discovery import KubernetesWorkers

A, B, C = (f"http://10.0.0.{n}:8000" for n in (1, 2, 3))
ALL = endpoint_slice("s", endpoint("10.0.0.1"), endpoint("10.0.0.2"), endpoint("10.0.0.3"))


@pytest.fixture
def api() -> Iterator[FakeKubernetes]:
    with FakeKubernetes() as server:
        yield server


def attach(router: Router[str], api: FakeKubernetes, **options: Any) -> KubernetesWorkers:
    given = {"service": "vllm", "namespace": "llm", "api_url": api.url, **options}
    if "selector" in options:
        del given["service"]
    source = KubernetesWorkers(**given)
    router.attach(source)
    return source


def keys(router: Router[str]) -> set[str]:
    return set(router.keys())


def watched(router: Router[str], api: FakeKubernetes, **options: Any) -> KubernetesWorkers:
    """Attach a source to three workers, and wait until it watches."""
    api.put(ALL)
    source = attach(router, api, **options)
    wait_until(lambda: keys(router) == {A, B, C} and api.watches == 1)
    return source


def picks(router: Router[str]) -> set[str]:
    found = set()
    for _ in range(12):
        decision = router.select_worker(by_load=True)
        found.add(decision.worker)
        decision.on_complete()
    return found


def test_endpoints_come_and_go_with_events(router: Router[str], api: FakeKubernetes) -> None:
    watched(router, api)
    assert api.asked[0] == "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices?kubernetes.io/service-name=vllm"
    api.put(endpoint_slice("t", endpoint("10.0.0.4"), endpoint("10.0.0.5", ready=False)))
    wait_until(lambda: "http://10.0.0.4:8000" in keys(router))
    assert len(router.keys()) == 4
    api.delete("t")
    wait_until(lambda: keys(router) == {A, B, C})
    assert api.lists == 1


@pytest.mark.parametrize("conditions", [{"ready": False}, {"ready": True, "terminating": True}, None])
def test_what_is_gone_or_unready_is_not_picked_a_second_after_the_event(
    router: Router[str], api: FakeKubernetes, conditions: dict[str, bool] | None
) -> None:
    watched(router, api)
    open_request = router.select_worker(among=[C], by_load=True)
    last = [] if conditions is None else [endpoint("10.0.0.3", **conditions)]
    api.put(endpoint_slice("s", endpoint("10.0.0.1"), endpoint("10.0.0.2"), *last))
    begun_s = time.monotonic()
    wait_until(lambda: C not in keys(router))
    assert time.monotonic() - begun_s < 1.0
    assert picks(router) == {A, B}
    assert C in {row.key for row in router.stats().workers}, "it finishes its request"
    open_request.on_complete()
    assert C not in {row.key for row in router.stats().workers}


def test_a_version_that_is_too_old_is_listed_again_at_once(router: Router[str], api: FakeKubernetes) -> None:
    source = watched(router, api)
    api.objects["s"] = endpoint_slice("s", endpoint("10.0.0.1"), endpoint("10.0.0.2"))
    api.expire()
    api.send(END)
    wait_until(lambda: keys(router) == {A, B})
    assert api.lists == 2
    assert source.stats().failures <= 1  # a watch that ends within a second counts


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_a_refusing_server_keeps_the_workers(
    router: Router[str], api: FakeKubernetes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cachelb_gateway.discovery")
    source = watched(router, api)
    api.status = status
    api.send(END)
    wait_until(lambda: source.stats().failing == f"HTTP {status}" and source.stats().failures >= 3)
    assert keys(router) == {A, B, C}
    assert caplog.text.count(f"does not answer: HTTP {status}") == 1
    api.status = 200
    api.put(endpoint_slice("s", endpoint("10.0.0.1"), endpoint("10.0.0.2")))
    wait_until(lambda: source.stats().failing == "")
    assert keys(router) == {A, B}
    assert caplog.text.count("answers again") == 1


def test_silence_begins_the_watch_again_and_bookmarks_do_not(router: Router[str], api: FakeKubernetes) -> None:
    source = watched(router, api, silence_s=0.3)
    wait_until(lambda: api.watches >= 2)
    assert source.stats().failing == "silence"
    answers = source.stats().answers
    api.bookmark()
    wait_until(lambda: source.stats().answers > answers)
    assert source.stats().failing == ""
    assert (keys(router), api.lists) == ({A, B, C}, 1)


BROKEN: dict[str, tuple[Callable[[FakeKubernetes], None], str, int]] = {
    "cut within a line": (lambda api: api.send(CUT), "cut short", 1),
    "garbage": (lambda api: api.send(b"\x00\xff not JSON\n"), "not JSON", 2),
    "deeply nested": (lambda api: api.send(b"[" * 100_000 + b"\n"), "not JSON", 2),
    "no event": (lambda api: api.send(b'{"type": 3}\n'), "not an event of a watch", 2),
    "unknown type": (
        lambda api: api.send(b'{"type": "X", "object": {"metadata": {"resourceVersion": "9", "name": "s"}}}\n'),
        "an event of an unknown type",
        2,
    ),
    "other error": (
        lambda api: api.send(b'{"type": "ERROR", "object": {"code": 500}}\n'),
        "the watch ends with error 500",
        2,
    ),
    "huge line": (lambda api: api.send(b"x" * (5 << 20)), "line too long", 2),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_watch_loses_no_worker_and_no_change(
    router: Router[str], api: FakeKubernetes, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "cachelb_gateway.discovery")
    send, reason, lists = BROKEN[broken]
    source = watched(router, api)
    send(api)
    wait_until(lambda: source.stats().failures == 1)
    assert keys(router) == {A, B, C}
    assert reason in caplog.text
    api.put(endpoint_slice("s", endpoint("10.0.0.1"), endpoint("10.0.0.2")))
    wait_until(lambda: keys(router) == {A, B})
    wait_until(lambda: api.watches == 2)
    assert api.lists == lists


def test_a_list_that_does_not_come_and_one_without_end_are_failures(
    router: Router[str], api: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachelb_gateway.discovery.kubernetes_access._LIST_S", 0.3)
    api.is_silent = True
    source = attach(router, api)
    wait_until(lambda: source.stats().failing == "TimeoutError")
    monkeypatch.undo()
    api.put({**ALL, "padding": "x" * (9 << 20)})
    api.is_silent = False
    wait_until(lambda: source.stats().failing == "line too long")
    api.put(ALL)
    wait_until(lambda: keys(router) == {A, B, C})


def test_an_answer_that_cannot_be_read_changes_nothing(router: Router[str], api: FakeKubernetes) -> None:
    source = watched(router, api)
    for strange in (
        {**ALL, "endpoints": [{"addresses": ["not an address!"]}]},
        {**ALL, "endpoints": [{"addresses": ["fe80::1%eth0"]}], "addressType": "IPv6"},
        {**ALL, "endpoints": 3},
        {**ALL, "ports": [{"name": "other", "port": 70_000}]},
    ):
        failures = source.stats().failures
        api.put(strange)
        wait_until(lambda n=failures: source.stats().failures > n)  # type: ignore[misc]
        assert keys(router) == {A, B, C}
    api.put(ALL)
    wait_until(lambda: source.stats().failing == "")


def test_most_workers_gone_are_dropped_by_another_list_only(router: Router[str], api: FakeKubernetes) -> None:
    source = watched(router, api, drop_wait_s=0.4)
    api.put(endpoint_slice("s"))
    wait_until(lambda: source.stats().waits == 1)
    assert keys(router) == {A, B, C}
    assert source.stats().waiting == 3
    wait_until(lambda: keys(router) == set())
    assert api.lists == 2
    with pytest.raises(NoWorkerAvailable):
        router.select_worker(by_load=True)


def test_a_server_that_is_gone_confirms_nothing(router: Router[str], api: FakeKubernetes) -> None:
    source = watched(router, api, drop_wait_s=0.2)
    api.status = 503
    api.put(endpoint_slice("s"))
    wait_until(lambda: source.stats().failures >= 2)
    assert (keys(router), source.stats().waits, source.stats().waiting) == ({A, B, C}, 1, 3)


def test_pods_are_workers_while_they_are_ready_and_not_terminating(router: Router[str], api: FakeKubernetes) -> None:
    web = [{"name": "web", "containerPort": 8000}, {"name": "metrics", "containerPort": 9000}]
    for n in range(1, 5):
        api.put(pod(f"p{n}", f"10.0.0.{n}", ports=web))
    api.put(pod("starting", None, ready="False"))
    attach(router, api, selector="app=vllm,tier in (a, b)", port="web")
    wait_until(lambda: len(router.keys()) == 4)
    assert api.asked[0] == "/api/v1/namespaces/llm/pods?app=vllm,tier in (a, b)"
    api.put(pod("p4", "10.0.0.4", ports=web, deletionTimestamp="2026-01-01T00:00:00Z"))
    wait_until(lambda: keys(router) == {A, B, C})
    api.put(pod("p3", "10.0.0.3", ready="False", ports=web))
    wait_until(lambda: keys(router) == {A, B})
    api.put(pod("starting", "fd00::5", ports=web))
    wait_until(lambda: keys(router) == {A, B, "http://[fd00::5]:8000"})


def test_long_lists_come_in_pages(router: Router[str]) -> None:
    with FakeKubernetes(page_items=3) as api:
        for n in range(10):
            api.put(pod(f"p{n}", f"10.0.1.{n}"))
        attach(router, api, selector="app=vllm", port=(8000, 8001), scheme="https")
        wait_until(lambda: len(router.keys()) == 20)
        assert api.lists == 4
        assert {"https://10.0.1.9:8000", "https://10.0.1.9:8001"} < keys(router)


PORTS = [{"name": "http", "port": 8000}, {"name": "grpc", "port": 9000}, {"name": "dns", "port": 53, "protocol": "UDP"}]


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        ("grpc", "9000"),
        (8000, "8000"),
        (("http", 9000), "8000 9000"),
        (80, "no port 80 among grpc=9000, http=8000"),
        ("dns", "no port dns among grpc=9000, http=8000"),
        (None, "name one of the ports grpc=9000, http=8000"),
    ],
)
def test_ports_are_those_at_the_pods(router: Router[str], api: FakeKubernetes, port: Any, expected: str) -> None:
    api.put(endpoint_slice("s", endpoint("10.0.0.1"), ports=PORTS))
    source = attach(router, api, port=port)
    wait_until(lambda: source.stats().failing or router.keys())
    found = source.stats().failing or " ".join(sorted(key.rpartition(":")[2] for key in keys(router)))
    assert found == expected


def test_a_pod_with_addresses_of_both_families_is_one_worker(router: Router[str], api: FakeKubernetes) -> None:
    api.put(endpoint_slice("v4", endpoint("10.0.0.1", pod="a"), endpoint("10.0.0.1", pod="a")))
    api.put(endpoint_slice("v6", endpoint("fd00::1", pod="a"), endpoint("fd00::2", pod="b"), family="IPv6"))
    api.put(endpoint_slice("names", endpoint("gpu.example", pod=None), family="FQDN"))
    source = attach(router, api)
    wait_until(lambda: source.stats().answers)
    assert keys(router) == {A, "http://[fd00::2]:8000"}


def test_token_and_certificate_are_read_again(router: Router[str], tmp_path: Path) -> None:
    shown, hidden = certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(shown, hidden)
    token = tmp_path / "token"
    token.write_text("first\n")
    with FakeKubernetes(tls=tls) as api:
        api.token = "first"  # noqa: S105 - of this test
        source = watched(router, api, token_file=str(token), ca_file=str(shown))
        api.token = "second"  # noqa: S105 - likewise
        api.send(END)
        wait_until(lambda: source.stats().failing == "HTTP 401")
        token.write_text("second\n")
        api.put(endpoint_slice("s", endpoint("10.0.0.1"), endpoint("10.0.0.2")))
        wait_until(lambda: keys(router) == {A, B})
        token.write_text("two\nlines")
        api.send(END)
        wait_until(lambda: "it must hold one line" in source.stats().failing)
        assert "two" not in source.stats().failing


def test_a_server_without_a_known_certificate_gets_no_token(router: Router[str], tmp_path: Path) -> None:
    shown, hidden = certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(shown, hidden)
    (tmp_path / "token").write_text("known")
    with FakeKubernetes(tls=tls) as api:
        api.put(ALL)
        source = attach(router, api, token_file=str(tmp_path / "token"))
        wait_until(lambda: source.stats().failing)
        assert (api.asked, router.keys()) == ([], [])


def test_in_a_pod_everything_is_that_of_its_service_account(
    router: Router[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, hidden = certificate(tmp_path)
    (tmp_path / "ca.crt").write_bytes(shown.read_bytes())
    (tmp_path / "token").write_text("own")
    (tmp_path / "namespace").write_text("llm")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(shown, hidden)
    monkeypatch.setattr("cachelb_gateway.discovery.kubernetes_access.ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    source = KubernetesWorkers(service="vllm")
    with pytest.raises(ValueError, match="not in a pod, as KUBERNETES_SERVICE_HOST is not set: give api_url"):
        router.attach(source)
    with FakeKubernetes(tls=tls) as api:
        api.token = "own"  # noqa: S105 - of this test
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
        api.put(ALL)
        router.attach(source)
        wait_until(lambda: keys(router) == {A, B, C})
        assert "/namespaces/llm/" in api.asked[0]
        wait_until(lambda: api.watches == 1)
        (tmp_path / "token").unlink()
        api.send(END)
        wait_until(lambda: source.stats().failing == "Service token file does not exist.")


def test_outside_a_cluster_a_kubeconfig_leads_to_it(
    router: Router[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, hidden = certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(shown, hidden)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{tmp_path / 'config'}")
    with FakeKubernetes(tls=tls) as api:
        api.token = "own"  # noqa: S105 - of this test
        cluster = {"server": api.url, "certificate-authority": str(shown)}
        known: dict[str, Any] = {
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "clusters": [{"name": "a", "cluster": cluster}],
            "users": [{"name": "a", "user": {"token": "own"}}],
        }
        (tmp_path / "config").write_text(json.dumps(known))
        source = watched(router, api, api_url=None)
        (tmp_path / "config").write_text(json.dumps({**known, "users": [{"user": {"token": "hidden"}}]}))
        api.send(END)
        wait_until(lambda: source.stats().failing == "unusable kubeconfig: ConfigException")


def test_what_the_server_sends_is_not_in_statistics_and_log(
    router: Router[str], api: FakeKubernetes, caplog: pytest.LogCaptureFixture
) -> None:
    source = watched(router, api)
    api.send(json.dumps({"type": "hidden", "object": {"metadata": "hidden"}}).encode() + b"\n")
    wait_until(lambda: source.stats().failures)
    assert "hidden" not in caplog.text + source.stats().failing


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either service or selector"),
        ({"service": "a", "selector": "b=c"}, "either service or selector"),
        ({"service": "A_b"}, "service must be a name of Kubernetes, such as vllm-0, got 'A_b'"),
        ({"service": "a", "namespace": "../b"}, "namespace must be a name of Kubernetes"),
        ({"selector": " "}, "selector must be a label selector such as app=vllm, got ''"),
        ({"service": "a", "port": 0}, "port must be at least 1, got 0"),
        ({"service": "a", "port": "HTTP"}, "port must be a number or a name of Kubernetes, got 'HTTP'"),
        ({"service": "a", "scheme": "ftp"}, "scheme must be http or https, got 'ftp'"),
        ({"service": "a", "api_url": "gpu0:80"}, "api_url must be http://host:port"),
        ({"service": "a", "api_url": "http://a", "token_file": "t"}, "token_file needs an api_url of https://"),
        ({"service": "a", "worker_options": {"weight": -1}}, "worker_options: "),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KubernetesWorkers(**options)


def test_without_the_client_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio", None)
    with pytest.raises(ModuleNotFoundError, match=r"install it, or cachelb-gateway\[kubernetes\]"):
        KubernetesWorkers(service="vllm")
